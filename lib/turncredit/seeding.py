"""Random streams: one per purpose and counter, derived from the seed instead of carried along.

A stream is a function of (seed, purpose, counters).  Nothing has to be saved to resume a run,
drawing more numbers for one purpose cannot shift another, and no global generator is touched.
"""

import hashlib
import random

import torch


def derive(seed: int, purpose: str, *counters: int | str) -> int:
    """A 63-bit seed that depends on every argument.

    >>> derive(0, "rollout", 3) == derive(0, "rollout", 3)
    True
    >>> derive(0, "rollout", 3) == derive(0, "questions", 3)
    False
    """
    text = repr((seed, purpose, *counters))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def python_stream(seed: int, purpose: str, *counters: int | str) -> random.Random:
    """A `random.Random` of its own, for worlds and environments."""
    return random.Random(derive(seed, purpose, *counters))


def torch_stream(seed: int, purpose: str, *counters: int | str) -> torch.Generator:
    """A CPU `torch.Generator` of its own, for sampling tokens and initialising weights."""
    return torch.Generator().manual_seed(derive(seed, purpose, *counters))
