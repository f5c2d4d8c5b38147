"""Makes `tests/batches.py` importable, since --import-mode=importlib adds no folder itself."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

# A slow machine is not a failing law, and CI must not depend on the draw.
settings.register_profile("turncredit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("turncredit")
