"""One arm against another: how surely better, and how far apart in units of their spread.

Differences of means themselves have their intervals in `intervals` and `blocks`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize
from scipy import stats as distributions
from scipy.special import gammaln

from turncredit.seeding import derive
from turncredit.stats.blocks import Blocks
from turncredit.stats.intervals import Estimate, known_values


def probability_of_improvement(
    a: Blocks, b: Blocks, *, level: float = 0.95, draws: int = 2_000, seed: int
) -> Estimate:
    """Chance that a run of `a` ends above a run of `b`, ties counting half; mean over strata.

    Agarwal et al. 2021 ("Deep RL at the edge of the statistical precipice", section 4.3), with
    their percentile interval from drawing the runs of each arm within each stratum.  There the
    strata are tasks, here tasks or warm starts: a, b: {stratum: (seeds,)}.  A stratum that one arm
    has no value in is left out.  Of few seeds percentiles are too narrow (see `intervals`).

    >>> probability_of_improvement({0: [1, 2]}, {0: [0, 2]}, seed=0).value  # wins 1 1/2 of 2, ...
    0.625
    """
    names = [name for name in a if name in b]
    pairs = [[known_values(arm[name])[0] for arm in (a, b)] for name in names]
    pairs = [pair for pair in pairs if all(map(len, pair))]
    n = sum(len(values) for pair in pairs for values in pair)
    missing = sum(known_values(values)[1] for arm in (a, b) for values in arm.values())

    def chance(drawn: Sequence[np.ndarray]) -> np.ndarray:
        """drawn: (..., seeds) by arm and stratum, in turn."""
        wins = [_win_share(x, y) for x, y in zip(drawn[::2], drawn[1::2], strict=True)]
        return np.mean(wins, axis=0)

    flat = [values for pair in pairs for values in pair]
    return _bootstrap(chance, flat, n, missing, level, draws, derive(seed, "improvement"))


def interquartile_mean(
    values: Blocks, *, level: float = 0.95, draws: int = 2_000, seed: int
) -> Estimate:
    """Mean of the middle half of all values, drawing runs within each stratum for the interval.

    Agarwal et al. 2021, section 4.3.  values: {stratum: (seeds,)}; of n values the lowest and the
    highest quarter, rounded down, are left out.

    >>> interquartile_mean({0: [0, 1, 2, 3], 1: [4, 5, 6, 100]}, seed=0).value
    3.5
    """
    cleaned = [known_values(stratum) for stratum in values.values()]
    flat = [stratum for stratum, _ in cleaned if len(stratum)]
    missing = sum(absent for _, absent in cleaned)

    def middle(drawn: Sequence[np.ndarray]) -> np.ndarray:
        ordered = np.sort(np.concatenate(drawn, axis=-1), axis=-1)
        cut = ordered.shape[-1] // 4
        return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)

    n = sum(map(len, flat))
    return _bootstrap(middle, flat, n, missing, level, draws, derive(seed, "interquartile"))


def effect_size(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Hedges' g: (mean a - mean b) over the pooled standard deviation, freed of its bias.

    a, b: (seeds,), unpaired.  Cohen's d times Hedges' factor (1981, exact), and the interval from
    the noncentral t distribution of d, times the same; exact for normal values of equal spread.
    NaN below four values, if an arm has none, or if nothing varies.
    """
    (first, lost), (second, also) = known_values(a), known_values(b)
    n, degrees = len(first) + len(second), len(first) + len(second) - 2
    if not len(first) or not len(second) or degrees < 2:
        return Estimate(math.nan, math.nan, math.nan, n, lost + also)
    squares = sum(((values - values.mean()) ** 2).sum() for values in (first, second))
    d = _ratio(float(first.mean() - second.mean()), math.sqrt(squares / degrees))
    scale = math.sqrt(1 / len(first) + 1 / len(second))
    return Estimate(*_hedges(d, scale, degrees, level), n, lost + also)


def _win_share(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of pairs in which the first is larger, ties half: (..., n), (..., m) to (...)."""
    away = first[..., :, None] - second[..., None, :]
    return ((away > 0) + 0.5 * (away == 0)).mean(axis=(-1, -2))


def _bootstrap(
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    strata: list[np.ndarray],
    n: int,
    missing: int,
    level: float,
    draws: int,
    seed: int,
) -> Estimate:
    """Percentile interval of a statistic of the strata; without a stratum of two, none."""
    if not strata:
        return Estimate(math.nan, math.nan, math.nan, n, missing)
    value = float(statistic(strata))
    if max(map(len, strata)) < 2:
        return Estimate(value, math.nan, math.nan, n, missing)
    generator = np.random.default_rng(seed)
    drawn = [
        values[generator.integers(len(values), size=(draws, len(values)))] for values in strata
    ]
    low, high = np.quantile(statistic(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), n, missing)


def _ratio(difference: float, spread: float) -> float:
    return difference / spread if spread else math.nan


def _hedges(d: float, scale: float, degrees: int, level: float) -> tuple[float, float, float]:
    """g and its limits from d, whose t value is d / scale with these degrees of freedom."""
    if math.isnan(d):
        return math.nan, math.nan, math.nan
    log_factor = gammaln(degrees / 2) - gammaln((degrees - 1) / 2)
    factor = math.exp(log_factor) / math.sqrt(degrees / 2)
    tail = (1 - level) / 2
    low, high = (scale * _noncentrality(d / scale, degrees, p) for p in (1 - tail, tail))
    return d * factor, low * factor, high * factor


def _noncentrality(t: float, degrees: int, chance: float) -> float:
    """The noncentrality under which a t of at most `t` has this chance."""

    def surplus(noncentrality: float) -> float:
        return float(distributions.nct.cdf(t, degrees, noncentrality)) - chance

    # Step by step: far from t, where the chance is 0 or 1, scipy's distribution may be NaN.
    low, high = t - 1.0, t + 1.0
    while surplus(low) < 0:
        low -= 1.0
    while surplus(high) > 0:
        high += 1.0
    return float(optimize.brentq(surplus, low, high))
