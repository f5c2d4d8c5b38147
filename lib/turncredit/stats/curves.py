"""Training curves: smoothed, and the step at which behaviour shifts with the steps around it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
