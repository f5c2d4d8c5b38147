"""Intervals of a mean over seeds that form no blocks.

`t_interval` throughout: with three to ten seeds a percentile bootstrap is too narrow.  Of the 27
equally likely samples of three seeds one holds the smallest value alone, so that its 95 % interval
is the range of the values, which covers the mean of a symmetric distribution with probability 3/4.
All treat seeds as independent draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions


@dataclass(frozen=True)
class Estimate:
    """A mean, rate, ratio or effect size with its interval; NaN where there is none."""

    value: float
    low: float
    high: float
    n: int
    """Values used."""
    missing: int
    """Values that were NaN, or for a paired difference seeds without a partner; not in `n`."""


@dataclass(frozen=True)
class Interval(Estimate):
    """An estimate that is a mean over seeds."""

    @property
    def mean(self) -> float:
        """The value by its name."""
        return self.value


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over seeds; the one used in the results table.

    values: (seeds,), NaN = missing, left out and counted.  One value has no interval.  Exact for
    normal values; for outcomes with two modes (drifted or not) and few seeds an approximation.
    """
    present, missing = known_values(values)
    n = len(present)
    mean = float(present.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, missing)
    quantile = distributions.t.ppf((1 + level) / 2, n - 1)
    half = float(quantile * present.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n, missing)


def paired_difference(
    a: Mapping[int, float], b: Mapping[int, float], *, level: float = 0.95
) -> Interval:
    """Mean of a - b over the seeds that both have, with its t interval.

    a, b: seed to value, NaN = missing.  `missing` counts the seeds that only one of them has or
    whose difference is NaN.

    >>> paired_difference({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25, 2: 0.9}).mean
    0.25
    """
    seeds = sorted(set(a) | set(b))
    return t_interval([a.get(s, math.nan) - b.get(s, math.nan) for s in seeds], level=level)


def known_values(values: Sequence[float]) -> tuple[np.ndarray, int]:
    """The values that are not NaN, and how many are."""
    array = np.asarray(values, dtype=float)
    absent = np.isnan(array)
    return array[~absent], int(absent.sum())
