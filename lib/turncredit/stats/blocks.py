"""Means and differences of means where seeds form blocks, by a bootstrap within the blocks.

The bootstrap is studentised (percentile-t; Efron and Tibshirani 1993, section 12.5, drawn within
strata): each draw of n_b seeds with replacement in every block b gives a mean and its standard
error, and the quantiles of (drawn mean - mean) / drawn error, times the error of the data, bound
the mean.  Plain percentiles are too narrow, since drawing n_b from n_b values shrinks the variance
by (n_b - 1) / n_b.  Coverage of nominal 95 % intervals with 4 blocks, 1500 simulated experiments:

| population of the seeds | seeds a block | percentile | BCa | studentised |
|---|---|---|---|---|
| normal | 4 | 0.890 | 0.884 | 0.964 |
| normal | 10 | 0.930 | 0.931 | 0.951 |
| exponential | 4 | 0.853 | 0.855 | 0.947 |
| exponential | 10 | 0.913 | 0.914 | 0.946 |
| two modes, 3/4 or 1/4 of a block in the lower | 4 | 0.894 | 0.885 | 0.978 |
| the same | 10 | 0.923 | 0.924 | 0.949 |
| two modes, 1/10 in the lower | 4 | 0.845 | 0.840 | 0.911 |
| the same | 10 | 0.908 | 0.921 | 0.949 |

`tests/unit/test_stats_blocks.py` measures the percentile and the studentised column anew, with
fewer experiments.  A yes or no belongs to `block_rate`, not here: where most draws hold one value
alone, their error is 0 and says nothing.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turncredit.seeding import derive
from turncredit.stats.intervals import Interval, known_values

Blocks = Mapping[Hashable, Sequence[float]]
"""Values of the seeds of each block; NaN = missing."""

_ROUNDING = 1e-9
"""Share of the standard error below which a difference is rounding."""


@dataclass(frozen=True)
class BlockInterval(Interval):
    """A mean over blocks of the means over their seeds, with its interval."""

    blocks: int
    """Blocks used: those that hold at least one value, of both arms if two are compared."""
    single: int
    """Of these, blocks that hold one value only; their spread is taken from the others."""
    empty: int
    """Blocks left out because they hold no value, or none of one arm."""


def seed_blocks(seeds: Iterable[int], warm_starts: int) -> dict[int, int]:
    """The block of each seed: seed s starts from warm start s modulo their number.

    >>> seed_blocks([0, 1, 5], 4)
    {0: 0, 1: 1, 5: 1}
    """
    if warm_starts < 1:
        raise ValueError(f"warm_starts = {warm_starts!r} must be at least 1")
    return {seed: seed % warm_starts for seed in seeds}


def block_mean(
    values: Blocks, *, level: float = 0.95, draws: int = 10_000, seed: int
) -> BlockInterval:
    """Mean over blocks of the block means, with its studentised bootstrap interval.

    values: {block: (seeds,)}.  Blocks weigh equally however many seeds they hold.  A block without
    a value is left out and counted; one with a single value keeps its place in the mean, and its
    spread is that of the other blocks, pooled.  Without a block of two there is no interval.  An
    end is infinite where too many draws have no spread at all to say where it lies.
    """
    kept, counts, missing = _kept([values])
    return _interval(kept, counts, missing, level, draws, derive(seed, "block bootstrap"))


def block_paired_difference(
    a: Mapping[int, float],
    b: Mapping[int, float],
    blocks: Mapping[int, Hashable],
    *,
    level: float = 0.95,
    draws: int = 10_000,
    seed: int,
) -> BlockInterval:
    """Mean of a - b over the seeds that both have, drawn in pairs within the blocks.

    a, b: seed to value, NaN = missing; blocks: the block of every seed of either (`seed_blocks`).
    `missing` counts the seeds that only one of them has or whose difference is NaN.
    Raises ValueError for a seed without a block.
    """
    differences: dict[Hashable, list[float]] = {}
    for number in sorted(set(a) | set(b)):
        if number not in blocks:
            raise ValueError(f"seed {number} has no block")
        difference = a.get(number, math.nan) - b.get(number, math.nan)
        differences.setdefault(blocks[number], []).append(difference)
    return block_mean(differences, level=level, draws=draws, seed=seed)


def block_difference(
    a: Blocks, b: Blocks, *, level: float = 0.95, draws: int = 10_000, seed: int
) -> BlockInterval:
    """Mean over blocks of the difference of the block means, a - b, drawing each arm by itself.

    For arms that share warm starts but not seeds, or whose equal seeds have nothing else in common.
    `n` counts the values of both arms.  Rules as in `block_mean`; a block without a value in one
    of the arms is left out.
    """
    kept, counts, missing = _kept([a, b])
    return _interval(kept, counts, missing, level, draws, derive(seed, "block bootstrap", "two"))


def _kept(arms: list[Blocks]) -> tuple[list[list[np.ndarray]], tuple[int, int, int], int]:
    """Values of the blocks that every arm has: by arm and block; blocks used, single and empty;
    values that are NaN, in any block.
    """
    names = sorted(set().union(*arms), key=repr)
    cleaned = [{name: known_values(arm.get(name, ())) for name in names} for arm in arms]
    missing = sum(absent for arm in cleaned for _, absent in arm.values())
    used = [name for name in names if all(len(arm[name][0]) for arm in cleaned)]
    single = sum(any(len(arm[name][0]) == 1 for arm in cleaned) for name in used)
    kept = [[arm[name][0] for name in used] for arm in cleaned]
    return kept, (len(used), single, len(names) - len(used)), missing


def _interval(
    arms: list[list[np.ndarray]],
    counts: tuple[int, int, int],
    missing: int,
    level: float,
    draws: int,
    seed: int,
) -> BlockInterval:
    n = sum(len(values) for arm in arms for values in arm)
    if not counts[0]:
        return BlockInterval(math.nan, math.nan, math.nan, n, missing, *counts)
    mean, error = _difference([_mean_and_error(arm) for arm in arms])
    if math.isnan(error):
        return BlockInterval(float(mean), math.nan, math.nan, n, missing, *counts)
    generator = np.random.default_rng(seed)
    drawn = [_mean_and_error(_draw(arm, generator, draws)) for arm in arms]
    low, high = _studentised(mean, error, *_difference(drawn), level)
    return BlockInterval(float(mean), low, high, n, missing, *counts)


def _difference(arms: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Of one arm itself, of two the first minus the second: mean and standard error."""
    mean = arms[0][0] if len(arms) == 1 else arms[0][0] - arms[1][0]
    return mean, np.sqrt(sum(error**2 for _, error in arms))


def _mean_and_error(blocks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the block means and its standard error, both (...); blocks: (..., seeds) each."""
    means = np.stack([values.mean(axis=-1) for values in blocks])
    squares = np.stack([values.var(axis=-1) * values.shape[-1] for values in blocks])
    sizes = np.array([values.shape[-1] for values in blocks]).reshape(-1, *[1] * (means.ndim - 1))
    if not (sizes > 1).any():
        return means.mean(axis=0), np.full(means.shape[1:], math.nan)
    pooled = squares.sum(axis=0) / (sizes - 1).sum(axis=0)
    variances = np.where(sizes > 1, squares / np.maximum(sizes - 1, 1), pooled)
    return means.mean(axis=0), np.sqrt((variances / sizes).sum(axis=0)) / len(blocks)


def _draw(blocks: list[np.ndarray], generator: np.random.Generator, draws: int) -> list[np.ndarray]:
    """(draws, seeds) for each block, drawn from its values with replacement.

    A block of one value draws it plus a residual of the other blocks, scaled to their variance.
    """
    residuals = np.concatenate(
        [(v - v.mean()) * math.sqrt(len(v) / (len(v) - 1)) for v in blocks if len(v) > 1]
    )
    drawn = []
    for values in blocks:
        if len(values) > 1:
            drawn.append(values[generator.integers(len(values), size=(draws, len(values)))])
        else:
            drawn.append(values + residuals[generator.integers(len(residuals), size=(draws, 1))])
    return drawn


def _studentised(
    mean: float, error: float, means: np.ndarray, errors: np.ndarray, level: float
) -> tuple[float, float]:
    """Ends of the interval; a draw without spread has an infinite t unless it is the mean."""
    if error == 0.0:
        return float(mean), float(mean)
    away = (means - mean) / error
    away[np.abs(away) < _ROUNDING] = 0.0
    scale = np.where(errors < _ROUNDING * error, 0.0, errors / error)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(away == 0.0, 0.0, away / scale)
    tail = (1 - level) / 2
    lowest = np.quantile(ratios, tail, method="lower")
    highest = np.quantile(ratios, 1 - tail, method="higher")
    return float(mean - highest * error), float(mean - lowest * error)
