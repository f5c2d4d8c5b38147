"""Makes `tests/verl/peers.py` importable, since --import-mode=importlib adds no folder itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
