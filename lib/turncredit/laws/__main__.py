"""Test one base or turn weight by the laws: `python -m turncredit.laws NAME [--module FILE]`.

Exit codes: 0 every law holds, 1 a law is broken, 2 there is no such estimator or module.
"""

import argparse
import sys

from turncredit.laws.cases import SCOPES
from turncredit.laws.checks import bias_line, check, report
from turncredit.training.extensions import enter


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="turncredit.laws", description=__doc__)
    parser.add_argument("name", help="of the base or turn weight")
    parser.add_argument("--module", help="a file or dotted name that enters it", metavar="FILE")
    parser.add_argument(
        "--scope", choices=SCOPES, default="group", help="batch: other groups are meant to matter"
    )
    options = parser.parse_args(arguments)
    try:
        if options.module:
            enter(options.module)
        verdicts = check(options.name, scope=options.scope)
    except ValueError as error:
        print(f"laws: {error}", file=sys.stderr)
        return 2
    print(report(options.name, verdicts))
    print(bias_line(options.name, scope=options.scope))
    return int(any(verdict.state == "broken" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
