"""Statistics across seeds and along steps: pure functions of numbers, no files, no figures.

The results table uses `t_interval` throughout: with the three to ten seeds of an experiment the
percentile bootstrap is too narrow (see there), and one rule for all rows can be compared.  Both
treat seeds as independent draws; neither sees the uncertainty of the fixed evaluation questions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from turncredit.seeding import derive


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its interval; NaN where there are too few values to say."""

    mean: float
    low: float
    high: float
    n: int
    """Values used."""
    missing: int
    """Values that were NaN, or for a paired difference seeds without a partner; not in `n`."""


@dataclass(frozen=True)
class Windows:
    """Steps compared before and after a shift."""

    before: range
    after: range
    shifted: bool
    """False: there was no shift, and these are the first and the last steps of the run."""


def ema(values: Sequence[float], weight: float) -> np.ndarray:
    """Exponential moving average as TensorBoard draws it, debiased.

    values: (steps,); weight: share of the past, in [0, 1), 0 leaves the values as they are.
    Result: (steps,); entry t is sum_i weight^(t-i) x_i / sum_i weight^(t-i) over i <= t.
    A value that is not finite stays where it is and does not enter the average of later steps.

    >>> ema([1.0, 3.0], 0.5).round(4).tolist()
    [1.0, 2.3333]
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight = {weight!r} must be in [0, 1)")
    smoothed, total, norm = np.array(values, dtype=float), 0.0, 0.0
    for index, value in enumerate(smoothed):
        if math.isfinite(value):
            total, norm = weight * total + value, weight * norm + 1.0
            smoothed[index] = total / norm
    return smoothed


def shift_step(
    search_first: Sequence[float], *, threshold: float = 0.5, window: int = 10
) -> int | None:
    """First step at which the mean of the `window` steps that end with it is below `threshold`.

    search_first: (steps,), share of trajectories that search at turn 0.  None: never, or fewer than
    `window` steps.  The rule dates the crossing, not its cause: a run that starts below the
    threshold gets step `window` - 1.  A window with a missing step has no mean and is passed over.

    >>> shift_step([1.0, 1.0, 0.0, 0.0], window=2), shift_step([1.0, 1.0], window=2)
    (3, None)
    """
    if window < 1:
        raise ValueError(f"window = {window!r} must be at least 1")
    values = np.asarray(search_first, dtype=float)
    if len(values) < window:
        return None
    means = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    below = np.flatnonzero(means < threshold)
    return int(below[0]) + window - 1 if len(below) else None


def windows(shift: int | None, steps: int, *, length: int = 20, shift_window: int = 10) -> Windows:
    """Steps before and after the shift of a run of `steps` steps, at most `length` each.

    shift: result of `shift_step` with `window=shift_window`, whose averaging window is the steps
    shift - shift_window + 1 .. shift.  Before: the `length` steps that end just before that window.
    After: the `length` steps that follow it.  Both are cut at the ends of the run and may be empty.
    Without a shift: the first and the last `length` steps, of a run shorter than twice that its
    halves (the middle step of an odd number is in neither).

    >>> windows(60, 200)
    Windows(before=range(31, 51), after=range(61, 81), shifted=True)
    >>> windows(None, 200)
    Windows(before=range(0, 20), after=range(180, 200), shifted=False)
    """
    if shift is None:
        size = min(length, steps // 2)
        return Windows(range(size), range(steps - size, steps), shifted=False)
    if not 0 <= shift < steps:
        raise ValueError(f"shift = {shift} is not a step of a run of {steps} steps")
    start = max(0, shift - shift_window + 1)
    before = range(max(0, start - length), start)
    return Windows(before, range(shift + 1, min(steps, shift + 1 + length)), shifted=True)


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over seeds; the one used in the results table.

    values: (seeds,), NaN = missing, left out and counted.  One value has no interval.  Exact for
    normal values; for outcomes with two modes (drifted or not) and few seeds an approximation.
    """
    present, missing = _present(values)
    n = len(present)
    mean = float(present.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, missing)
    quantile = distributions.t.ppf((1 + level) / 2, n - 1)
    half = float(quantile * present.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n, missing)


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, draws: int = 10_000, seed: int
) -> Interval:
    """Percentile bootstrap interval of the mean, drawing seeds with replacement.

    values: (seeds,), NaN = missing, left out and counted.  Weak for few seeds: of the 27 equally
    likely samples of three, one holds the smallest value alone, which is more than 2.5 %, so that
    the 95 % interval is the range of the values.  That range covers the mean of a symmetric
    distribution with probability 3/4, not 0.95.
    """
    present, missing = _present(values)
    n = len(present)
    mean = float(present.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, missing)
    generator = np.random.default_rng(derive(seed, "bootstrap"))
    means = present[generator.integers(n, size=(draws, n))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), n, missing)


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


def _present(values: Sequence[float]) -> tuple[np.ndarray, int]:
    """The values that are not NaN, and how many are."""
    array = np.asarray(values, dtype=float)
    absent = np.isnan(array)
    return array[~absent], int(absent.sum())
