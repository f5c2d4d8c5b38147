"""Does a method spread its runs more widely than another?"""

import math

import numpy as np
from scipy import stats as distributions

from turncredit.stats.blocks import Blocks
from turncredit.stats.intervals import Estimate, known_values


def sd_ratio(a: Blocks, b: Blocks, *, level: float = 0.95) -> Estimate:
    """Standard deviation over seeds of `a` over that of `b`, both within blocks, with interval.

    a, b: {block: (seeds,)}; {0: values} for no blocks.  Miller's jackknife of the log variance
    (1968), block by block, with Student's t: unlike the F interval it allows for values that
    are not normal.  Coverage of 95 % intervals with 4 blocks of 4 / of 10 seeds over 1500 simulated
    experiments: normal values 0.91 / 0.95, two modes 0.97 / 0.98, exponential 0.86 / 0.89, where F
    has 0.77 / 0.71 (`tests/unit/test_stats_spread.py`).  NaN ends where an arm has less than two
    values more than blocks, its spread hangs on one value, or a block holds two values: leaving out
    either gives the same, so that their jackknife would tell of no spread at all.
    """
    arms = [[known_values(values) for values in arm.values()] for arm in (a, b)]
    missing = sum(absent for arm in arms for _, absent in arm)
    kept = [[values for values, _ in arm if len(values)] for arm in arms]
    n = sum(len(values) for arm in kept for values in arm)
    logs, variances = zip(*(_log_variance(arm) for arm in kept), strict=True)
    degrees = sum(len(values) - 1 for arm in kept for values in arm)
    half_log = (logs[0] - logs[1]) / 2
    value = float(np.exp(half_log))
    if not all(map(math.isfinite, variances)):
        return Estimate(value, math.nan, math.nan, n, missing)
    quantile = float(distributions.t.ppf((1 + level) / 2, degrees))
    half = quantile * math.sqrt(sum(variances)) / 2
    low, high = math.exp(half_log - half), math.exp(half_log + half)
    return Estimate(value, low, high, n, missing)


def _log_variance(blocks: list[np.ndarray]) -> tuple[float, float]:
    """Log of the variance within blocks, pooled, and its jackknife variance; NaN if undefined."""
    squares = sum(((values - values.mean()) ** 2).sum() for values in blocks)
    degrees = sum(len(values) - 1 for values in blocks)
    if degrees < 1:
        return math.nan, math.nan
    with np.errstate(divide="ignore"):
        whole = float(np.log(squares / degrees))
    if degrees < 2 or not squares or any(len(values) == 2 for values in blocks):
        return whole, math.nan
    return whole, sum(_jackknifed(values, squares, degrees) for values in blocks if len(values) > 1)


def _jackknifed(values: np.ndarray, squares: float, degrees: int) -> float:
    """A block's part of the jackknife variance; infinite or NaN if one value is all the spread."""
    n = len(values)
    # Leaving out x lowers the sum of squares by n / (n - 1) times its squared distance.
    lowered = squares - (values - values.mean()) ** 2 * n / (n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(lowered > 1e-12 * squares, lowered, 0.0) / (degrees - 1))
        return (n - 1) / n * float(((logs - logs.mean()) ** 2).sum())
