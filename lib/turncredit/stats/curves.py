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


def level_step(values: Sequence[float]) -> int | None:
    """Step before which the values are best taken for one level, and from which on for another.

    The split into two means with the least sum of squares; the first of equal ones.  One rule for
    every curve, so that two can be asked which moves first: of curves that hold nothing but the
    same kind of noise neither does so more often.  None for fewer than two values, a missing one,
    or values that are all equal.

    >>> level_step([1.0, 1.0, 0.0, 0.0, 0.0]), level_step([1.0, 1.0])
    (2, None)
    """
    found = np.asarray(values, dtype=float)
    if len(found) < 2 or np.isnan(found).any() or np.ptp(found) == 0.0:
        return None
    squares = [
        sum(float(part.var()) * len(part) for part in (found[:split], found[split:]))
        for split in range(1, len(found))
    ]
    return 1 + int(np.argmin(squares))


def transition(values: Sequence[float], around: Windows, *, margin: float = 0.2) -> int | None:
    """Steps that a curve takes to fall from its level before to its level after.

    values: one per step; around: see `windows`.  From the last step that is at most `margin` of the
    fall below the mean before, to the first later one that is at most `margin` of it above the mean
    after, among the steps from the window before to that after.  None without a shift, without a
    fall, or if no such steps are there.

    >>> transition([1.0, 1.0, 0.7, 0.3, 0.0, 0.0], Windows(range(0, 2), range(4, 6), True))
    3
    """
    found = np.asarray(values, dtype=float)
    before, after = (found[list(steps)] for steps in (around.before, around.after))
    if not around.shifted or not len(before) or not len(after):
        return None
    first, fall = float(before.mean()), float(before.mean() - after.mean())
    if not fall > 0:
        return None
    steps = np.arange(around.before.start, around.after.stop)
    down = steps[found[steps] <= first - (1 - margin) * fall]
    down = down[down >= around.before.stop]
    if not len(down):
        return None
    up = steps[(found[steps] >= first - margin * fall) & (steps < down[0])]
    return int(down[0] - up[-1]) if len(up) else None
