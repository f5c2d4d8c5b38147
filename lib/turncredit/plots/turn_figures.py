"""Figures of quantities per turn: entropies of decisions and executions, accuracy by turn."""

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

from turncredit.plots.panels import (
    MEAN_LINE,
    legend,
    mark_shifts,
    row_labels,
    say_absent,
    say_no_runs,
    seed_lines,
    seed_mean,
    select,
    shift_entry,
    step_axis,
    stop_entries,
    task_grid,
    thin_and_thick,
)
from turncredit.plots.style import arm_colours, arm_label, styled

DECISION, EXECUTION = "#882255", "#2A9D8F"


@styled
def turn_entropy(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    turns: Sequence[int],
    k: int,
    weight: float,
) -> Figure:
    """Entropy of the first `k` tokens of each turn, log scale, one row per arm.

    table: task, arm, seed, step, turn, entropy (nats), already smoothed with `weight`.
    """
    colours = _sequence(len(turns))

    def draw(axis: Axes, runs: pd.DataFrame, task: str, arm: str) -> None:
        for turn, colour in zip(turns, colours, strict=True):
            seed_lines(axis, runs[runs["turn"] == turn], "entropy", colour)

    figure, axes = _arm_rows(table, tasks, arms, draw)
    _label_entropy(axes, f"first-{k}-token entropy (nats)\n(EMA, weight {weight:g})")
    entries = [
        Line2D([], [], color=colour, label=f"turn {turn}", **MEAN_LINE)
        for turn, colour in zip(turns, colours, strict=True)
    ]
    legend(figure, [*entries, *thin_and_thick(), *stop_entries(table)])
    return figure


@styled
def decision_vs_execution(
    table: pd.DataFrame,
    shifts: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    k: int,
    weight: float,
) -> Figure:
    """First-`k`-token entropy of turn 0, which decides, and turn 1, which executes; log scale.

    table: as for `turn_entropy`; shifts: task, arm, seed, shift_step (NaN: never).
    """
    looks = {0: (DECISION, "-", "turn 0: decision"), 1: (EXECUTION, "--", "turn 1: execution")}

    def draw(axis: Axes, runs: pd.DataFrame, task: str, arm: str) -> None:
        for turn, (colour, linestyle, _) in looks.items():
            seed_lines(axis, runs[runs["turn"] == turn], "entropy", colour, linestyle=linestyle)
        mark_shifts(axis, select(shifts, task, arm), "#333333")

    figure, axes = _arm_rows(table, tasks, arms, draw)
    _label_entropy(axes, f"first-{k}-token entropy (nats)\n(EMA, weight {weight:g})")
    entries = [
        Line2D([], [], color=colour, linestyle=linestyle, label=label, **MEAN_LINE)
        for colour, linestyle, label in looks.values()
    ]
    legend(figure, [*entries, *thin_and_thick(), shift_entry(), *stop_entries(table)])
    return figure


@styled
def entropy_k(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    ks: Sequence[int],
    weight: float,
) -> Figure:
    """Mean over seeds of the turn-0 entropy, for different numbers k of first tokens; log scale.

    table: task, arm, seed, step, k, entropy (nats), already smoothed with `weight`; of the `ks`
    it lacks the last ones if their entropies equal those of the largest k it has.
    """
    drawn = [k for k in ks if (table["k"] == k).any()] or list(ks)
    widths = np.linspace(1.2, 3.6, len(drawn))  # curves that nearly agree show side by side
    looks = list(zip(drawn, _sequence(len(drawn)), widths, strict=True))

    def draw(axis: Axes, runs: pd.DataFrame, task: str, arm: str) -> None:
        for k, colour, width in reversed(looks):
            mean = seed_mean(runs[runs["k"] == k], "entropy")
            axis.plot(mean.index, mean, color=colour, linewidth=width)

    figure, axes = _arm_rows(table, tasks, arms, draw)
    _label_entropy(axes, f"turn-0 entropy (nats), mean over seeds\n(EMA, weight {weight:g})")
    entries = [
        Line2D([], [], color=colour, label=f"k = {k}", linewidth=width)
        for k, colour, width in looks
    ]
    if drawn[-1] != ks[-1]:
        entries[-1].set_label(f"k = {drawn[-1]} to {ks[-1]} (equal)")
    legend(figure, entries)
    return figure


@styled
def turn_accuracy(
    table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, turns: Sequence[int]
) -> Figure:
    """Accuracy among answering turns and their share, before and after the shift.

    table: task, arm, seed, period (before | after), shifted (bool), turn, accuracy, share; NaN
    where no turn answered.  Dots are seeds, lines their mean over the seeds that have a value.
    """
    figure, axes = task_grid(tasks, rows=2, height=2.2)
    colours = arm_colours(arms)
    for column, task in enumerate(tasks):
        absent = [arm for arm in arms if select(table, task, arm).empty]
        for axis, quantity in zip(axes[:, column], ("accuracy", "share"), strict=True):
            _periods(axis, table[table["task"] == task], quantity, colours, turns)
            if len(absent) == len(arms):
                say_no_runs(axis)
            axis.set_ylim(-0.04, 1.04)
            axis.set_xlim(min(turns) - 0.5, max(turns) + 0.5)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(absent) < len(arms):
            say_absent(axes[0, column], absent)
        axes[1, column].set_xlabel("turn")
    axes[0, 0].set_ylabel("accuracy among\nanswering turns (share)")
    axes[1, 0].set_ylabel("turns that answer or\nverify a guess (share)")
    legend(figure, _accuracy_entries(colours))
    return figure


def _periods(
    axis: Axes, table: pd.DataFrame, quantity: str, colours: dict[str, str], turns: Sequence[int]
) -> None:
    """Dots per seed and the mean over seeds, moved aside so that arms and periods stay apart."""
    cases = [(arm, period) for arm in colours for period in ("before", "after")]
    offsets = np.linspace(-0.27, 0.27, len(cases))
    for (arm, period), offset in zip(cases, offsets, strict=True):
        rows = table[(table["arm"] == arm) & (table["period"] == period)]
        rows = rows[rows["turn"].isin(turns)]
        if rows.empty:
            continue
        face = colours[arm] if period == "after" else "white"
        for shifted, marker in ((True, "o"), (False, "^")):
            dots = rows[rows["shifted"] == shifted]
            axis.scatter(
                dots["turn"] + offset, dots[quantity], s=16, marker=marker, facecolors=face,
                edgecolors=colours[arm], linewidths=0.8, alpha=0.85, zorder=3,
            )  # fmt: skip
        mean = rows.groupby("turn")[quantity].mean()
        axis.plot(
            mean.index + offset, mean, color=colours[arm], linewidth=1.2,
            linestyle="-" if period == "after" else ":", zorder=2,
        )  # fmt: skip


def _accuracy_entries(colours: dict[str, str]) -> list[Line2D]:
    grey = {"color": "#555555", "markersize": 4.5}
    return [
        *(Line2D([], [], color=c, label=arm_label(arm), **MEAN_LINE) for arm, c in colours.items()),
        Line2D(
            [],
            [],
            linestyle=":",
            marker="o",
            markerfacecolor="white",
            label="before the shift",
            **grey,
        ),
        Line2D([], [], linestyle="-", marker="o", label="after the shift", **grey),
        Line2D([], [], linestyle="", marker="^", label="no shift: first / last steps", **grey),
    ]


def _arm_rows(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    draw: Callable[[Axes, pd.DataFrame, str, str], None],
) -> tuple[Figure, np.ndarray]:
    """Panels (arms, tasks) on one scale, each drawn by `draw(axis, its rows, task, arm)`."""
    figure, axes = task_grid(tasks, rows=len(arms), height=2.1, sharey="all")
    for row, arm in enumerate(arms):
        for column, task in enumerate(tasks):
            runs = select(table, task, arm)
            if runs.empty:
                say_no_runs(axes[row, column])
            else:
                draw(axes[row, column], runs, task, arm)
    row_labels(axes, arms)
    step_axis(axes)
    return figure, axes


def _label_entropy(axes: np.ndarray, text: str) -> None:
    """Logarithmic entropies; one label for all rows."""
    for axis in axes.flat:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.yaxis.set_minor_locator(NullLocator())
    axes[0, 0].figure.supylabel(text, fontsize=8.5, multialignment="center")


def _sequence(count: int) -> list[tuple[float, ...]]:
    """Colours from dark to light that print well on white: viridis without its yellow end."""
    return [tuple(c) for c in matplotlib.colormaps["viridis"](np.linspace(0.0, 0.88, count))]
