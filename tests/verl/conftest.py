"""Makes `tests/verl/peers.py` importable, since --import-mode=importlib adds no folder itself."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

collect_ignore = (
    [] if find_spec("ray") else ["actor_rank.py", "cpu_engine.py", "cpu_server.py", "tiny_run.py"]
)
"""Helpers that import verl and Ray, which are searched for doctests too."""
