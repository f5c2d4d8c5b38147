"""What the options of a method may be, in one place, so that every refusal reads alike."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

RANGES: dict[str, tuple[str, type, Callable[[Any], bool]]] = {
    "count": ("be a whole number of at least 1", Integral, lambda value: value >= 1),
    "decay": ("lie in 0 .. 1, 1 excluded", Real, lambda value: 0 <= value < 1),
    "flag": ("be True or False", bool, lambda value: True),
    "number": ("be finite", Real, math.isfinite),
    "part": ("lie in 0 .. 1, 0 excluded", Real, lambda value: 0 < value <= 1),
    "scale": ("be at least 0 and finite", Real, lambda value: 0 <= value < math.inf),
    "share": ("lie in 0 .. 1", Real, lambda value: 0 <= value <= 1),
    "threshold": ("be at least 0", Real, lambda value: value >= 0),
}
"""What the value must do, its type, and the test of it."""


def check_range(method: str, kind: str, **options: Any) -> None:
    """Raise ValueError for the first option that is not of the `kind`, NaN and text included.

    >>> check_range("gae", "share", gamma=1.0, lam=0.95)
    >>> check_range("gae", "share", gamma=1.0, lam=1.05)
    Traceback (most recent call last):
    ValueError: gae: lam is 1.05; it must lie in 0 .. 1
    """
    demand, type_, holds = RANGES[kind]
    for name, value in options.items():
        if not isinstance(value, type_) or not holds(value):
            raise ValueError(f"{method}: {name} is {value!r}; it must {demand}")


def check_choice(method: str, option: str, value: str, choices: tuple[str, ...]) -> None:
    """ValueError naming method, option and value unless the value is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{method}: unknown {option} {value!r}; there are: {', '.join(choices)}")
