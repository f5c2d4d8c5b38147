"""Rates within blocks: Cochran-Mantel-Haenszel test, and intervals that respect the blocks.

If warm starts differ in how often they collapse, pooling their seeds compares unlike with like.
Here arms are compared within each block and the blocks are put together.  A block that one arm has
no outcome in, or where all or none of the outcomes are events, tells nothing about a difference in
odds; the first is left out everywhere, and both are counted.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats as distributions

from turncredit.stats.intervals import Estimate
from turncredit.stats.proportions import Rate, count_events, square_and_add, wilson

Rates = Mapping[Hashable, Rate]
"""The rate of each block."""


@dataclass(frozen=True)
class BlockTest:
    """Whether the odds are equal in every block; the p values are two-sided."""

    statistic: float
    """Events of the first arm, over the blocks used."""
    exact: float
    """Conditional on the margins of every block; never too small, and larger than it need be."""
    mid: float
    """The same with half the chance of what is as likely as the events seen: the one to use."""
    chi_square: float
    """Mantel and Haenszel's, without continuity correction: for large tables only."""
    odds_ratio: Estimate
    """Mantel and Haenszel's common odds ratio with the interval of Robins, Breslow and Greenland
    (1986); NaN ends where it is 0 or infinite."""
    blocks: int
    """Blocks in which both arms have outcomes."""
    informative: int
    """Of these, blocks in which some outcomes are events and some are not."""


def count_blocks(outcomes: Mapping[Hashable, Sequence[float]]) -> dict[Hashable, Rate]:
    """`count_events` of each block: {block: outcomes that are 0, 1 or NaN}."""
    return {name: count_events(values) for name, values in outcomes.items()}


def cmh_test(a: Rates, b: Rates, *, level: float = 0.95) -> BlockTest:
    """Cochran-Mantel-Haenszel test of equal rates within blocks, exactly.

    Given the margins of a block, the events of `a` are hypergeometric under equal odds, so their
    sum over blocks has the convolution of these distributions (Mehta, Patel and Gray 1985); the
    two-sided p value adds the sums that are no likelier than the one seen.  Without an informative
    block there is one possible sum and both p values are 1; without a block at all they are NaN.
    """
    blocks = _shared(a, b)
    events = sum(first.events for first, _ in blocks)
    n = sum(first.total + second.total for first, second in blocks)
    missing = sum(rate.missing for rates in (a, b) for rate in rates.values())
    if not blocks:
        nothing = Estimate(math.nan, math.nan, math.nan, 0, missing)
        return BlockTest(math.nan, math.nan, math.nan, math.nan, nothing, 0, 0)
    lowest, chances = _null_distribution(blocks)
    exact, mid = _two_sided(chances, events - lowest)
    return BlockTest(
        statistic=events,
        exact=exact,
        mid=mid,
        chi_square=_chi_square(blocks),
        odds_ratio=_common_odds_ratio(blocks, n, missing, level),
        blocks=len(blocks),
        informative=sum(0 < x.events + y.events < x.total + y.total for x, y in blocks),
    )


def block_rate(rates: Rates, *, level: float = 0.95) -> Estimate:
    """Mean of the shares of the blocks that have outcomes, with a stratified Wilson interval.

    Yan and Su 2010: each block's Wilson limits, with a quantile shortened so that the weighted sum
    of the limits has the right width.  Blocks weigh equally.
    """
    known = [rate for rate in rates.values() if rate.total]
    weights = np.full(len(known), 1 / max(len(known), 1))
    share, low, high = _stratified_wilson(known, weights, level)
    total, missing = (sum(getattr(r, x) for r in rates.values()) for x in ("total", "missing"))
    return Estimate(share, low, high, total, missing)


def block_rate_difference(a: Rates, b: Rates, *, level: float = 0.95) -> Estimate:
    """Rate of a minus rate of b within blocks, with a stratified Newcombe interval.

    Yan and Su 2010: Mantel-Haenszel weights n_a n_b / (n_a + n_b); the stratified Wilson limits of
    each arm are squared and added: of one block Newcombe's method 10 (1998b).  NaN without a block
    in which both arms have outcomes.  Coverage of 95 % intervals over 1500 simulated experiments
    with rates of 3/4 and 1/4 by turns in `a`, the same or 9/20 and 1/10 in `b`: 0.93 and 0.92 with
    4 blocks of 4 seeds, 0.95 for the second with 10 (`tests/unit/test_stats_proportions.py`).
    """
    blocks = _shared(a, b)
    missing = sum(rate.missing for rates in (a, b) for rate in rates.values())
    n = sum(first.total + second.total for first, second in blocks)
    if not blocks:
        return Estimate(math.nan, math.nan, math.nan, 0, missing)
    weights = np.array([x.total * y.total / (x.total + y.total) for x, y in blocks])
    weights /= weights.sum()
    arms = [_stratified_wilson([pair[i] for pair in blocks], weights, level) for i in (0, 1)]
    shares, limits = [arm[0] for arm in arms], [arm[1:] for arm in arms]
    low, high = square_and_add(tuple(shares), limits)
    return Estimate(shares[0] - shares[1], low, high, n, missing)


def _shared(a: Rates, b: Rates) -> list[tuple[Rate, Rate]]:
    """The rates of the blocks in which both arms have outcomes."""
    names = sorted(set(a) & set(b), key=repr)
    return [(a[name], b[name]) for name in names if a[name].total and b[name].total]


def _null_distribution(blocks: Sequence[tuple[Rate, Rate]]) -> tuple[int, np.ndarray]:
    """Least possible number of events of the first arm, and the chance of each from it on."""
    lowest, chances = 0, np.ones(1)
    for first, second in blocks:
        events = first.events + second.events
        low, of_block = hypergeometric(events, first.total, second.total)
        lowest, chances = lowest + low, np.convolve(chances, of_block)
    return lowest, chances


@lru_cache(maxsize=4096)
def hypergeometric(events: int, first: int, second: int) -> tuple[int, np.ndarray]:
    """Of `events` dealt to first + second places: least number in the first, chances from it on."""
    low, high = max(0, events - second), min(events, first)
    ways = [math.comb(first, k) * math.comb(second, events - k) for k in range(low, high + 1)]
    chances = np.array([way / math.comb(first + second, events) for way in ways])
    chances.flags.writeable = False
    return low, chances


def _two_sided(chances: np.ndarray, seen: int) -> tuple[float, float]:
    """Exact and mid p value: equal chances may differ by rounding, as in R's fisher.test."""
    as_unlikely = chances <= chances[seen] * (1 + 1e-7)
    exact = min(1.0, float(chances[as_unlikely].sum()))
    tied = np.abs(chances - chances[seen]) <= chances[seen] * 1e-7
    return exact, min(1.0, exact - float(chances[tied].sum()) / 2) if len(chances) > 1 else 1.0


def _chi_square(blocks: list[tuple[Rate, Rate]]) -> float:
    """p value of the asymptotic test; NaN if no block is informative."""
    away, variance = 0.0, 0.0
    for first, second in blocks:
        events, total = first.events + second.events, first.total + second.total
        away += first.events - first.total * events / total
        if total > 1:
            scale = first.total * second.total * events * (total - events)
            variance += scale / (total**2 * (total - 1))
    return float(distributions.chi2.sf(away**2 / variance, 1)) if variance else math.nan


def _common_odds_ratio(
    blocks: list[tuple[Rate, Rate]], n: int, missing: int, level: float
) -> Estimate:
    """Sum of a d / N over sum of b c / N, and the variance of its logarithm."""
    table = np.array([[x.events, x.total - x.events, y.events, y.total - y.events]
                      for x, y in blocks], dtype=float).T  # fmt: skip
    a, b, c, d = table
    size = table.sum(axis=0)
    with_, against = a * d / size, b * c / size
    top, bottom = with_.sum(), against.sum()
    if not top or not bottom:
        value = math.nan if not top and not bottom else (math.inf if top else 0.0)
        return Estimate(value, math.nan, math.nan, n, missing)
    same, other = (a + d) / size, (b + c) / size
    variance = (
        (same * with_).sum() / (2 * top**2)
        + (same * against + other * with_).sum() / (2 * top * bottom)
        + (other * against).sum() / (2 * bottom**2)
    )
    half = distributions.norm.ppf((1 + level) / 2) * math.sqrt(variance)
    value = top / bottom
    low, high = value * math.exp(-half), value * math.exp(half)
    return Estimate(float(value), float(low), float(high), n, missing)


def _stratified_wilson(
    rates: list[Rate], weights: np.ndarray, level: float
) -> tuple[float, float, float]:
    """Weighted share and limits.  The shares that set the quantile are (events + 1/2) / (n + 1),
    so that blocks in which all or none are events have a spread.
    """
    if not rates:
        return math.nan, math.nan, math.nan
    quantile = distributions.norm.ppf((1 + level) / 2)
    smooth = np.array([(rate.events + 0.5) / (rate.total + 1) for rate in rates])
    variances = smooth * (1 - smooth) / np.array([rate.total for rate in rates])
    shortened = math.sqrt((weights**2 * variances).sum()) / (weights * np.sqrt(variances)).sum()
    limits = np.array([wilson(rate.share, rate.total, quantile * shortened) for rate in rates])
    low, high = weights @ limits
    share = float(weights @ np.array([rate.share for rate in rates]))
    return share, float(low), float(high)
