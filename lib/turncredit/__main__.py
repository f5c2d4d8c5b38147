"""`python -m turncredit` is the command `turncredit`."""

import sys

from turncredit.cli import main

if __name__ == "__main__":
    sys.exit(main())
