"""Figures of one quantity along training: arms in colour, one panel per task."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.plots.panels import (
    arm_entries,
    legend,
    mark_shifts,
    say_absent,
    say_no_runs,
    seed_lines,
    select,
    shift_entry,
    step_axis,
    stop_entries,
    task_grid,
    thin_and_thick,
)
from turncredit.plots.style import arm_colours, arm_looks, styled


@styled
def training_reward(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, weight: float
) -> Figure:
    """Training reward.  table: task, arm, seed, step, reward, already smoothed with `weight`."""
    figure, axes = _curves(table, "reward", tasks, arms)
    axes[0, 0].set_ylabel(
        f"training reward per trajectory\n(EMA as in TensorBoard, weight {weight:g})"
    )
    return figure


@styled
def total_entropy(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, weight: float
) -> Figure:
    """Mean token entropy of a step.  table: task, arm, seed, step, entropy, already smoothed."""
    figure, axes = _curves(table, "entropy", tasks, arms)
    axes[0, 0].set_ylabel(f"token entropy (nats)\n(EMA, weight {weight:g})")
    return figure


@styled
def clip_fraction(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, weight: float
) -> Figure:
    """Clipped share of tokens, in percent.

    table: task, arm, seed, step, clip_fraction as a share, already smoothed with `weight`.
    """
    table = table.assign(clip_fraction=100 * table["clip_fraction"])
    figure, axes = _curves(table, "clip_fraction", tasks, arms)
    axes[0, 0].set_ylabel(f"clipped tokens (%)\n(EMA, weight {weight:g})")
    for axis in axes[0]:
        axis.set_ylim(bottom=0)
    return figure


@styled
def turns(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, weight: float
) -> Figure:
    """Mean turns of a trajectory.  table: task, arm, seed, step, turns, already smoothed."""
    figure, axes = _curves(table, "turns", tasks, arms)
    axes[0, 0].set_ylabel(f"turns per trajectory\n(EMA, weight {weight:g})")
    return figure


@styled
def decision_alone(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, weight: float
) -> Figure:
    """Failed trajectories in which the decision alone was wrong.

    table: task, arm, seed, step, failed_decision_alone, already smoothed.
    """
    figure, axes = _curves(table, "failed_decision_alone", tasks, arms)
    axes[0, 0].set_ylabel(
        "failed trajectories with a wrong decision\n"
        f"and correct execution (share; EMA, weight {weight:g})"
    )
    for axis in axes[0]:
        axis.set_ylim(-0.03, 1.03)
    return figure


@styled
def evaluation(table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str]) -> Figure:
    """Held-out exact match along training.  table: task, arm, seed, step, exact_match."""
    figure, axes = _curves(table, "exact_match", tasks, arms)
    axes[0, 0].set_ylabel("held-out exact match (share)")
    return figure


@styled
def search_first(
    table: pd.DataFrame,
    shifts: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    threshold: float,
) -> Figure:
    """Share of trajectories that search at turn 0, not smoothed, with the shift steps.

    table: task, arm, seed, step, search_first; shifts: task, arm, seed, shift_step (NaN: never).
    """
    figure, axes = _curves(table, "search_first", tasks, arms, further=[shift_entry()])
    axes[0, 0].set_ylabel("trajectories that\nsearch first (share)")
    for axis, task in zip(axes[0], tasks, strict=True):
        axis.set_ylim(-0.03, 1.03)
        if (table["task"] == task).any():
            axis.axhline(threshold, color="#444444", linewidth=0.9, linestyle=":")
            axis.annotate(
                f"threshold {threshold:g}", (1, threshold), xycoords=("axes fraction", "data"),
                ha="right", va="bottom", fontsize=7.5, color="#444444",
            )  # fmt: skip
        for arm, colour in arm_colours(arms).items():
            mark_shifts(axis, select(shifts, task, arm), colour)
    return figure


def _curves(
    table: pd.DataFrame,
    column: str,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    further: Sequence[Line2D] = (),
) -> tuple[Figure, np.ndarray]:
    """The panels with every seed and the mean of `column`; axes (1, tasks)."""
    figure, axes = task_grid(tasks)
    looks = arm_looks(arms)
    for axis, task in zip(axes[0], tasks, strict=True):
        absent = [arm for arm in arms if select(table, task, arm).empty]
        for arm, (colour, marker) in looks.items():
            if arm not in absent:
                seed_lines(axis, select(table, task, arm), column, colour, marker=marker)
        if len(absent) == len(arms):
            say_no_runs(axis)
        else:
            say_absent(axis, absent)
    legend(figure, [*arm_entries(arms), *thin_and_thick(), *further, *stop_entries(table)])
    step_axis(axes)
    return figure, axes
