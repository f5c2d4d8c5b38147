"""How many seeds a question takes: to be asked before the run, with a number that then stands.

Powers are chances of a two-sided test at level `alpha`; the seeds are per arm.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import optimize
from scipy import stats as distributions

from turncredit.stats.strata import hypergeometric

_MOST_SEEDS = 100_000


def fisher_power(a: float, b: float, seeds: int, *, alpha: float = 0.05) -> float:
    """Chance that Fisher's exact test tells rates a and b apart with `seeds` in each arm.

    Summed over all pairs of outcomes, so exact.

    >>> round(fisher_power(0.5, 0.2, 40), 3)
    0.749
    """
    _require_rates(a, b)
    chances = [distributions.binom.pmf(np.arange(seeds + 1), seeds, rate) for rate in (a, b)]
    return float(chances[0] @ _rejected(seeds, alpha) @ chances[1])


def seeds_for_rates(
    a: float, b: float, *, alpha: float = 0.05, power: float = 0.8, test: str = "fisher"
) -> int:
    """Fewest seeds per arm that tell rates a and b apart with this power.

    test: "fisher", the exact test, whose power falls a little now and then as seeds are added: the
    number from which on it never falls below `power` again within the next twenty; or "normal", the
    usual approximation (z_alpha sqrt(2 r (1 - r)) + z_power sqrt(a (1 - a) + b (1 - b)))^2 /
    (a - b)^2 with r the mean rate (Fleiss 1981, without continuity correction).
    Raises ValueError for equal rates, or another test.

    >>> seeds_for_rates(0.5, 0.2, test="normal"), seeds_for_rates(0.5, 0.2)
    (39, 44)
    """
    _require_rates(a, b)
    if a == b:
        raise ValueError(f"rates a = b = {a} are never told apart")
    if test not in ("fisher", "normal"):
        raise ValueError(f"test = {test!r} is not 'fisher' or 'normal'")
    mean, z = (a + b) / 2, [distributions.norm.ppf(p) for p in (1 - alpha / 2, power)]
    spread = z[0] * math.sqrt(2 * mean * (1 - mean))
    spread += z[1] * math.sqrt(a * (1 - a) + b * (1 - b))
    normal = math.ceil(spread**2 / (a - b) ** 2)
    if test == "normal":
        return normal
    return _first_lasting(
        lambda seeds: fisher_power(a, b, seeds, alpha=alpha) >= power, max(2, normal // 2)
    )


def mean_power(
    difference: float, sd: float, seeds: int, *, alpha: float = 0.05, paired: bool = False
) -> float:
    """Chance that Student's t test finds a difference of means.

    sd: standard deviation over the seeds of an arm; if `paired`, of the differences.  From the
    noncentral t distribution, so exact for normal values.

    >>> round(mean_power(1.0, 1.0, 20), 4)
    0.869

    Raises ValueError unless sd is above 0 and there are two seeds or more.
    """
    degrees = seeds - 1 if paired else 2 * (seeds - 1)
    if degrees < 1:
        raise ValueError(f"seeds = {seeds} must be at least 2")
    if not sd > 0:
        raise ValueError(f"sd = {sd!r} must be above 0")
    shift = abs(difference) / sd * math.sqrt(seeds if paired else seeds / 2)
    limit = distributions.t.ppf(1 - alpha / 2, degrees)
    above = float(distributions.nct.sf(limit, degrees, shift))
    below = float(distributions.nct.cdf(-limit, degrees, shift))
    # scipy gives up, or strays by a rounding, where they are next to 1 and to 0
    found = (1.0 if math.isnan(above) else above) + (0.0 if math.isnan(below) else below)
    return min(found, 1.0)


def detectable_mean_difference(
    sd: float, seeds: int, *, alpha: float = 0.05, power: float = 0.8, paired: bool = False
) -> float:
    """Smallest difference of means that `mean_power` finds with this power, in the unit of `sd`.

    Raises ValueError unless alpha < power < 1, since a test at level alpha finds any difference,
    also none, with a chance of alpha.
    """
    if not alpha < power < 1:
        raise ValueError(f"power = {power!r} must be between alpha = {alpha!r} and 1")

    def surplus(ratio: float) -> float:
        return mean_power(ratio, 1.0, seeds, alpha=alpha, paired=paired) - power

    highest = 1.0
    while surplus(highest) < 0:
        highest *= 2
    return sd * float(optimize.brentq(surplus, 0.0, highest))


def detectable_rate(
    rate: float, seeds: int, *, alpha: float = 0.05, power: float = 0.8, lower: bool = True
) -> float:
    """The rate nearest to `rate`, below or above it, that Fisher's test tells from it.

    NaN if not even 0 (or 1) is far enough with this number of seeds.

    >>> round(detectable_rate(0.5, 40), 3)
    0.185
    """

    def surplus(other: float) -> float:
        return fisher_power(rate, other, seeds, alpha=alpha) - power

    end = 0.0 if lower else 1.0
    if surplus(end) < 0 or surplus(rate) >= 0:
        return math.nan
    return float(optimize.brentq(surplus, min(rate, end), max(rate, end), xtol=1e-9))


def _require_rates(*rates: float) -> None:
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"rate {rate!r} is outside 0 .. 1")


def _first_lasting(holds: Callable[[int], bool], start: int) -> int:
    """First number of seeds, from `start` on, from which twenty in a row hold."""
    run = 0
    for seeds in range(start, _MOST_SEEDS):
        run = run + 1 if holds(seeds) else 0
        if run == 20:
            return seeds - 19
    raise ValueError(f"more than {_MOST_SEEDS} seeds")


@lru_cache(maxsize=256)
def _rejected(seeds: int, alpha: float) -> np.ndarray:
    """[seeds + 1, seeds + 1]: whether Fisher's test rejects, by the events of each arm."""
    rejected = np.zeros((seeds + 1, seeds + 1))
    for events in range(2 * seeds + 1):
        low, chances = hypergeometric(events, seeds, seeds)
        first = low + np.arange(len(chances))
        # Sums of the chances no larger than each, as in `fisher_test`.
        p = (chances[None] * (chances[None] <= chances[:, None] * (1 + 1e-7))).sum(axis=1)
        rejected[first, events - first] = p <= alpha
    return rejected
