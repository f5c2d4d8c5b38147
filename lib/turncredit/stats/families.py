"""Several comparisons at once: p values that allow for how many were made."""

import math
from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Holm's adjusted p values (1979): compare them with the level that the family is to keep.

    p_values: {comparison: p}; result: the same names, in the same order.  The k-th smallest of m is
    multiplied by m - k + 1, and none is smaller than the one before it.  NaN stays NaN, yet counts
    in m: a comparison that was planned and could not be made is part of the family.
    Raises ValueError for a p outside [0, 1].

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    {'a': 0.03, 'b': 0.06, 'c': 0.06, 'd': 0.02}
    """
    for name, p in p_values.items():
        if not (math.isnan(p) or 0 <= p <= 1):
            raise ValueError(f"p value of {name!r} is {p!r}, outside 0 .. 1")
    known = [name for name, p in p_values.items() if not math.isnan(p)]
    adjusted, largest = dict(p_values), 0.0
    for rank, name in enumerate(sorted(known, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted
