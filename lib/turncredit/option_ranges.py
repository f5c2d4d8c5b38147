"""What an option may be, in one place, so that every refusal reads alike.

A truth value is no number and a number is no flag, though Python takes each for the other: a flag
that slipped into the place of a number would count as 0 or 1 without a word.  Numpy's scalars count
as what they are; texts, tensors, None and NaN never do.
"""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

_NUMPY_FLAGS = {("numpy", "bool"), ("numpy", "bool_")}
"""Module and name of numpy's truth values, from version 2 on and before."""


def is_flag(value: Any) -> bool:
    """Whether the value is Python's or numpy's True or False."""
    return isinstance(value, bool) or (type(value).__module__, type(value).__name__) in _NUMPY_FLAGS


def is_number(value: Any) -> bool:
    """Whether the value is an int, a float or a real number of numpy's, and a float can hold it.

    >>> is_number(1), is_number(float("inf")), is_number(True), is_number("1"), is_number(10**400)
    (True, True, False, False, False)
    """
    real = isinstance(value, (int, float)) or (isinstance(value, Real) and hasattr(value, "dtype"))
    if not real or is_flag(value):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: Any) -> bool:
    """Whether the value is a number of a whole type; 3.0 is not."""
    return is_number(value) and isinstance(value, Integral)


def plain(value: Any) -> Any:
    """A number or flag of numpy's as Python's, so that it is computed with alike; else the value.

    In numpy's own types minus an unsigned 1 is 255, and 1 minus a float16 is rounded to float16.
    """
    if not hasattr(value, "dtype"):
        return value
    for of_type, convert in ((is_flag, bool), (is_whole, int), (is_number, float)):
        if of_type(value):
            return convert(value)
    return value


RANGES: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], bool]]] = {
    "above_one": ("be a finite number above 1", is_number, lambda value: 1 < value < math.inf),
    "count": ("be a whole number of at least 1", is_whole, lambda value: value >= 1),
    "decay": ("be a number in 0 .. 1, 1 excluded", is_number, lambda value: 0 <= value < 1),
    "flag": ("be True or False", is_flag, lambda value: True),
    "length": ("be a finite number of at least 1", is_number, lambda value: 1 <= value < math.inf),
    "number": ("be a finite number", is_number, math.isfinite),
    "part": ("be a number in 0 .. 1, 0 excluded", is_number, lambda value: 0 < value <= 1),
    "positive": ("be a number above 0", is_number, lambda value: value > 0),
    "scale": ("be a finite number of at least 0", is_number, lambda value: 0 <= value < math.inf),
    "several": ("be a whole number of at least 2", is_whole, lambda value: value >= 2),
    "share": ("be a number in 0 .. 1", is_number, lambda value: 0 <= value <= 1),
    "strength": ("be a finite number above 0", is_number, lambda value: 0 < value < math.inf),
    "threshold": ("be a number of at least 0", is_number, lambda value: value >= 0),
}
"""What the value must do, and the tests of its type and of its range."""


def check_range(method: str, kind: str, **options: Any) -> None:
    """Raise ValueError naming the first option that is not of the `kind`, with the range.

    >>> check_range("gae", "share", gamma=1.0, lam=0.95)
    >>> check_range("gae", "share", gamma=1.0, lam=1.05)
    Traceback (most recent call last):
    ValueError: gae: lam is 1.05; it must be a number in 0 .. 1
    """
    demand, of_type, holds = RANGES[kind]
    for name, value in options.items():
        if not of_type(value) or not holds(plain(value)):
            raise ValueError(f"{method}: {name} is {value!r}; it must {demand}")


def check_choice(method: str, option: str, value: Any, choices: tuple[str, ...]) -> None:
    """ValueError naming method, option and value unless the value is one of `choices`.

    >>> check_choice("grpo", "std", "smaple", ("population", "sample"))
    Traceback (most recent call last):
    ValueError: grpo: unknown std 'smaple'; there are: population, sample
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{method}: unknown {option} {value!r}; there are: {', '.join(choices)}")
