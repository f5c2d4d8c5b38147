"""The range of each numeric option, in one place, so that every refusal reads alike."""

import math
from collections.abc import Callable
from typing import Any

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "clip_low": ("lie in [0, 1)", lambda value: 0 <= value < 1),
    "clip_high": ("be at least 0", lambda value: value >= 0),
    "dual_clip": ("exceed 1", lambda value: value > 1),
    "beta_low": ("be at least 0 and finite", lambda value: 0 <= value < math.inf),
    "beta_high": ("be at least 0 and finite", lambda value: 0 <= value < math.inf),
    "upper_cap": ("exceed 0", lambda value: value > 0),
    "limit": ("exceed 0", lambda value: value > 0),
    "coefficient": ("be at least 0 and finite", lambda value: 0 <= value < math.inf),
    "total_tokens": ("be at least 0 and finite", lambda value: 0 <= value < math.inf),
    "total_sequences": ("be at least 0 and finite", lambda value: 0 <= value < math.inf),
    "max_length": ("be at least 1 and finite", lambda value: 1 <= value < math.inf),
}
"""What the value must do, and the test of it."""
UNUSED = ("dual_clip", "upper_cap", "total_tokens", "total_sequences", "max_length")
"""Options that may be None: not used."""


def check_ranges(owner: str, **options: Any) -> None:
    """Raise ValueError for the first option outside its range, NaN, None and text included.

    >>> check_ranges("gspo", clip_low=3.0e-4, aggregation="token_mean", max_length=None)
    >>> check_ranges("gspo", clip_low=1.0)
    Traceback (most recent call last):
    ValueError: gspo: clip_low is 1.0; it must lie in [0, 1)
    """
    for name, value in options.items():
        if name not in RANGES or (value is None and name in UNUSED):
            continue
        demand, holds = RANGES[name]
        if not isinstance(value, (int, float)) or not holds(value):
            raise ValueError(f"{owner}: {name} is {value!r}; it must {demand}")
