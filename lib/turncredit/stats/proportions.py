"""Outcomes that happen or not, such as a collapse: rates, their intervals and Fisher's test.

Counts come from `count_events`, which leaves missing outcomes out and says how many they were.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from turncredit.stats.intervals import Estimate, known_values


@dataclass(frozen=True)
class Rate:
    """How often something happened."""

    events: int
    total: int
    """Seeds of which it is known."""
    missing: int = 0
    """Seeds of which it is not; not in `total`."""

    def __post_init__(self) -> None:
        if not 0 <= self.events <= self.total:
            raise ValueError(f"events = {self.events} is not in 0 .. total = {self.total}")

    @property
    def share(self) -> float:
        """Events over total; NaN if nothing is known."""
        return self.events / self.total if self.total else math.nan


def count_events(outcomes: Sequence[float]) -> Rate:
    """Count outcomes that are 1 or True, 0 or False, or NaN for missing.  Others are an error.

    >>> count_events([1, 0, math.nan, 1])
    Rate(events=2, total=3, missing=1)
    """
    known, missing = known_values(outcomes)
    strange = known[(known != 0) & (known != 1)]
    if len(strange):
        raise ValueError(f"outcome {strange[0]:g} is neither 0 nor 1")
    return Rate(int(known.sum()), len(known), missing)


def rate_interval(rate: Rate, *, level: float = 0.95) -> Estimate:
    """The share with Wilson's score interval (Newcombe 1998a, method 3); NaN without outcomes.

    Unlike mean plus or minus two errors it stays in [0, 1] and has a width at 0 of n.

    >>> end = rate_interval(Rate(0, 20)).high
    >>> round(end, 4)
    0.1611
    """
    low, high = wilson(rate.share, rate.total, _quantile(level))
    return Estimate(rate.share, float(low), float(high), rate.total, rate.missing)


def fisher_test(a: Rate, b: Rate) -> float:
    """Two-sided p value of Fisher's exact test that both rates are equal; NaN without outcomes.

    Two-sided as usual: the tables with these margins that are no likelier than the one seen.

    >>> round(fisher_test(Rate(3, 4), Rate(1, 4)), 4)  # the lady tasting tea
    0.4857
    """
    if not a.total or not b.total:
        return math.nan
    return float(distributions.fisher_exact(_table(a, b)).pvalue)


def wilson(share: float, total: float, quantile: float) -> tuple[float, float]:
    """Wilson limits of a share with `quantile` standard errors each side; NaN if total is 0."""
    if not total:
        return math.nan, math.nan
    square = quantile**2
    middle = share + square / (2 * total)
    half = quantile * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    scale = 1 + square / total
    # Rounding must not lift the limit of no events above 0, nor that of events alone below 1.
    low = (middle - half) / scale if share > 0 else 0.0
    high = (middle + half) / scale if share < 1 else 1.0
    return low, high


def square_and_add(
    shares: tuple[float, float], limits: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Limits of the first share minus the second, from the limits of each (Newcombe 1998b)."""
    (low_a, high_a), (low_b, high_b) = limits
    value = shares[0] - shares[1]
    below = math.hypot(shares[0] - low_a, high_b - shares[1])
    above = math.hypot(high_a - shares[0], shares[1] - low_b)
    return value - below, value + above


def _quantile(level: float) -> float:
    return float(distributions.norm.ppf((1 + level) / 2))


def _table(a: Rate, b: Rate) -> np.ndarray:
    return np.array([[rate.events, rate.total - rate.events] for rate in (a, b)])
