"""Small multiples: one column per task, lines per seed and their mean, panels without runs."""

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.plots.style import WIDTH, arm_label, arm_looks, task_label

SEED_LINE = {"linewidth": 0.7, "alpha": 0.4}
LETTERS = 11
"""Of a panel's title in an inch, on average."""
MEAN_LINE = {"linewidth": 1.7, "markersize": 4.5}
STOP_MARK = {"marker": "X", "markersize": 7, "markeredgecolor": "white", "linestyle": ""}


def task_grid(
    tasks: Sequence[str], rows: int = 1, *, height: float = 2.4, sharey: str = "row"
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, tasks), the tasks' names above the first row.

    A name that is wider than its column is broken between words.
    """
    figure = Figure(figsize=(WIDTH, 0.75 + height * rows), layout="constrained")
    axes = figure.subplots(rows, len(tasks), squeeze=False, sharex="col", sharey=sharey)
    longest = int(LETTERS * (WIDTH - 1) / len(tasks))
    for axis, task in zip(axes[0], tasks, strict=True):
        axis.set_title(textwrap.fill(task_label(task), longest), loc="left")
    return figure, axes


def row_labels(axes: np.ndarray, arms: Sequence[str]) -> None:
    """Name the arm of each row at its right edge."""
    for axis, arm in zip(axes[:, -1], arms, strict=True):
        axis.annotate(
            arm_label(arm),
            (1.02, 0.5),
            xycoords="axes fraction",
            rotation=-90,
            va="center",
            weight="bold",
        )


def say_no_runs(axis: Axes, text: str = "no runs") -> None:
    """Mark a panel in which nothing is drawn, and say why."""
    axis.grid(False)
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", fontsize=11, **_REMARK)


def say_absent(axis: Axes, absent: Sequence[str]) -> None:
    """Name the arms without runs at the right of the panel's title."""
    if absent:
        text = "no runs: " + ", ".join(map(arm_label, absent))
        axis.text(1, 1.03, text, transform=axis.transAxes, ha="right", fontsize=7.5, **_REMARK)


def tidy_axes(figure: Figure) -> None:
    """No numbers on an axis along which no panel that shares it draws anything."""
    for axis in figure.axes:
        if not _drawn(axis.get_shared_x_axes().get_siblings(axis)):
            axis.set_xticks([])
        if not _drawn(axis.get_shared_y_axes().get_siblings(axis)):
            axis.set_yticks([], minor=True)
            axis.set_yticks([])


def _drawn(axes: Sequence[Axes]) -> bool:
    return any(axis.has_data() for axis in axes)


_REMARK = {"color": "#777777", "fontstyle": "italic"}


def seed_lines(
    axis: Axes,
    runs: pd.DataFrame,
    column: str,
    colour: str,
    *,
    linestyle: str = "-",
    marker: str = "",
) -> None:
    """A thin line for each seed, to where its run ends, and a thick one for the mean over seeds.

    runs: columns seed, step and `column`; a seed whose `stopped`, if there, is true gets a cross
    where it ends.  The mean is drawn at the steps that all seeds have, with a few of its marker.
    """
    for _, run in runs.groupby("seed", sort=True):
        axis.plot(run["step"], run[column], color=colour, linestyle=linestyle, **SEED_LINE)
        if any_stopped(run):
            end = run.dropna(subset=[column]).tail(1)
            axis.plot(end["step"], end[column], color=colour, zorder=5, **STOP_MARK)
    mean = seed_mean(runs, column)
    look = {"linestyle": linestyle, "marker": marker, "markevery": max(1, len(mean) // 8)}
    axis.plot(mean.index, mean, color=colour, **look, **MEAN_LINE)


def any_stopped(table: pd.DataFrame) -> bool:
    """Whether a run of the table was ended by a tripwire; false where nothing says so."""
    return "stopped" in table and bool(table["stopped"].any())


def seed_mean(runs: pd.DataFrame, column: str) -> pd.Series:
    """Mean over seeds at each step of any of them, NaN where a seed has no value.

    runs: columns seed, step and `column`.  A mean over changing sets of seeds would jump where a
    run ends, and look like an effect.
    """
    wide = runs.pivot(index="step", columns="seed", values=column)
    return wide.mean(axis=1, skipna=False)


def mark_shifts(axis: Axes, shifts: pd.DataFrame, colour: str) -> None:
    """A triangle at the foot of the panel, with a hair line, for the shift step of each seed.

    shifts: columns seed and shift_step, NaN where a run never shifted.
    """
    for step in shifts["shift_step"].dropna():
        axis.axvline(step, color=colour, linewidth=0.7, linestyle=(0, (4, 3)), alpha=0.7, zorder=1)
        axis.plot(
            [step], [0.0], marker="^", markersize=6, color=colour, clip_on=False, zorder=5,
            markeredgecolor="white", markeredgewidth=0.6, transform=axis.get_xaxis_transform(),
        )  # fmt: skip


def select(table: pd.DataFrame, task: str, arm: str) -> pd.DataFrame:
    """The rows of one arm on one task."""
    return table[(table["task"] == task) & (table["arm"] == arm)]


def arm_entries(arms: Sequence[str]) -> list[Line2D]:
    """Legend entries for the means of the arms."""
    return [
        Line2D([], [], color=colour, marker=marker, label=arm_label(arm), **MEAN_LINE)
        for arm, (colour, marker) in arm_looks(arms).items()
    ]


def thin_and_thick() -> list[Line2D]:
    """Legend entries for the two widths."""
    return [
        Line2D([], [], color="#555555", label="one seed", linewidth=0.8),
        Line2D([], [], color="#555555", label="mean over seeds", **MEAN_LINE),
    ]


def shift_entry() -> Line2D:
    """Legend entry for the mark of a shift step."""
    return Line2D(
        [], [], color="#555555", marker="^", markersize=6, linewidth=0.7, linestyle=(0, (4, 3)),
        label="shift step of a seed",
    )  # fmt: skip


def stop_entries(table: pd.DataFrame) -> list[Line2D]:
    """Legend entry for the mark of a stopped seed, if the table has one."""
    if not any_stopped(table):
        return []
    return [Line2D([], [], color="#555555", label="stopped by a tripwire", **STOP_MARK)]


def legend(figure: Figure, entries: Sequence[Artist]) -> None:
    """One legend for the whole figure, above its panels, in as many rows as it needs."""
    tidy_axes(figure)
    columns = _legend_columns([str(entry.get_label()) for entry in entries], figure.get_figwidth())
    figure.legend(handles=list(entries), loc="outside upper center", ncols=columns)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """How many entries fit side by side in `width` inches, if they fill column by column."""

    def needed(columns: int) -> float:
        longest = [max(map(len, column)) for column in np.array_split(labels, columns)]
        return sum(0.57 + 0.073 * letters for letters in longest)

    return next((n for n in range(len(labels), 1, -1) if needed(n) <= width), 1)


def step_axis(axes: np.ndarray) -> None:
    """Label the steps under the last row."""
    for axis in axes[-1]:
        axis.set_xlabel("training step")
