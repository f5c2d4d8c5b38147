"""Panels whose rows are arms: every seed a dot, intervals below, counts of seeds at the right."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.plots.panels import say_no_runs
from turncredit.plots.style import WIDTH, arm_label

BLOCK_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", "*", "h")
"""One for each warm start, in the order of their seeds; they repeat after ten."""

INK = "#444444"
COLUMNS = 6
TITLE_PAD = 12
"""Points: below a title stands, at the right, what the numbers beside the panel are."""
_DOT = {"s": 20, "linewidths": 0.9, "zorder": 3}


def arm_grid(
    titles: Sequence[str],
    arms: Sequence[str],
    *,
    widths: Sequence[float] | None = None,
    row: float = 0.27,
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (1, titles): one row of `row` inches for each arm, the first on top.

    COLUMNS panels stand side by side; more go below them.  Titles are broken to fit.
    """
    columns = min(len(titles), COLUMNS)
    levels = -(-len(titles) // columns)
    height = 0.45 + levels * (0.7 + row * max(len(arms), 3))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.add_gridspec(levels, columns, width_ratios=(widths or [1.0] * columns)[:columns])
    axes = np.empty((1, len(titles)), dtype=object)
    longest = {5: 17, 6: 13}.get(columns, 20)
    for number, title in enumerate(titles):
        axis = figure.add_subplot(grid[divmod(number, columns)], sharey=axes[0, 0])
        axes[0, number] = axis
        axis.set_title(textwrap.fill(title, longest), loc="left", pad=TITLE_PAD)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0, labelleft=number % columns == 0)
    axes[0, 0].set_yticks(range(len(arms)), [arm_label(arm) for arm in arms])
    axes[0, 0].set_ylim(len(arms) - 0.5, -0.5)
    return figure, axes


def stripes(axis: Axes, rows: int) -> None:
    """A faint band behind every other row."""
    for number in range(0, rows, 2):
        axis.axhspan(number - 0.5, number + 0.5, color="#f5f5f5", zorder=0, linewidth=0)


def block_markers(blocks: pd.Series) -> dict[float, str]:
    """The marker of each warm start that is known."""
    known = sorted(blocks.dropna().unique())
    return {b: BLOCK_MARKERS[i % len(BLOCK_MARKERS)] for i, b in enumerate(known)}


def seed_dots(
    axis: Axes, row: int, runs: pd.DataFrame, column: str, colour: str, markers: Mapping[float, str]
) -> None:
    """A dot for each seed, spread over the upper part of the row in the order of the seeds.

    runs: seed, block, collapsed (1: hollow) and `column`, of one arm.
    """
    runs = runs.sort_values("seed")
    spread = np.linspace(-0.32, 0.12, len(runs)) if len(runs) > 1 else -0.1
    looks = runs["block"].map(markers).fillna(BLOCK_MARKERS[0]), runs["collapsed"] == 1
    placed = runs.assign(height=row + spread).groupby(list(looks), sort=True)
    for (marker, hollow), dots in placed:
        axis.scatter(
            dots[column], dots["height"], marker=marker, edgecolors=colour,
            facecolors="white" if hollow else colour, **_DOT,
        )  # fmt: skip


def interval(axis: Axes, row: float, found: Mapping[str, Any], value: str, colour: str) -> None:
    """A diamond at `found[value]` on a bar from low to high, if there is one.

    An end at infinity is drawn as an arrow at the edge of the panel, whose limits must be set.
    """
    if math.isnan(found[value]):
        return
    left, right = axis.get_xlim()
    if not (math.isnan(found["low"]) or math.isnan(found["high"])):
        low, high = max(found["low"], left), min(found["high"], right)
        axis.plot([low, high], [row, row], color=colour, linewidth=1.6, zorder=4)
        for end, marker in ((low, "<"), (high, ">")):
            if end != found["low" if marker == "<" else "high"]:
                axis.plot([end], [row], marker=marker, color=colour, markersize=5, zorder=4)
    axis.plot(
        [found[value]], [row], marker="D", markersize=4.5, color=colour, zorder=5,
        markeredgecolor="white", markeredgewidth=0.6,
    )  # fmt: skip


def limits(
    values: Sequence[float], *, keep: Sequence[float] = (), room_for: Sequence[float] = ()
) -> tuple[float, float]:
    """Axis limits around the finite values and those to `keep`, with a margin.

    room_for: ends of intervals, shown as far as they reach no further out than the values spread.
    """
    finite = [v for v in (*values, *keep) if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    spread = high - low
    ends = [min(max(v, low - spread), high + spread) for v in room_for if math.isfinite(v)]
    low, high = min([low, *ends]), max([high, *ends])
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def say_count(axis: Axes, row: float, text: str) -> None:
    """A number of seeds at the right edge of a row."""
    axis.annotate(
        text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=7, color=INK,
        annotation_clip=False,
    )  # fmt: skip


def plain(value: float, _: Any = None) -> str:
    """A tick's label without zeros that say nothing.

    >>> plain(0.5), plain(0.0), plain(-0.0025)
    ('0.5', '0', '−0.0025')
    """
    return f"{value:.6g}".replace("-", "−")


def count_text(known: int, begun: int) -> str:
    """How many seeds have a value, of how many that began.

    >>> count_text(4, 4), count_text(3, 4), count_text(0, 0)
    ('4', '3 of 4', 'no runs')
    """
    if not begun:
        return "no runs"
    return str(known) if known == begun else f"{known} of {begun}"


def say_counts(
    axis: Axes, table: pd.DataFrame, column: str, arms: Sequence[str], task: str
) -> None:
    """At each row how many seeds of the arm have `column`; over them all, what the numbers are."""
    runs = table[table["task"] == task]
    if runs.empty:
        say_no_runs(axis)
        return
    axis.annotate(
        "seeds", (1.01, 1.0), xycoords="axes fraction", va="bottom", fontsize=7, color=INK,
        fontstyle="italic",
    )  # fmt: skip
    for row, arm in enumerate(arms):
        values = runs.loc[runs["arm"] == arm, column]
        say_count(axis, row, count_text(int(values.notna().sum()), len(values)))


def block_entries(markers: Mapping[float, str]) -> list[Artist]:
    """Legend entries for the warm starts."""
    look = {"color": INK, "linestyle": "", "markersize": 4.5}
    return [
        Line2D([], [], marker=marker, label=f"warm start {block:g}", **look)
        for block, marker in markers.items()
    ]


def collapse_entry() -> Line2D:
    """Legend entry for a hollow dot."""
    return Line2D(
        [], [], color=INK, linestyle="", marker="o", markersize=4.5, markerfacecolor="white",
        label="collapsed seed",
    )  # fmt: skip


def interval_entry(text: str) -> Line2D:
    """Legend entry for a diamond on a bar."""
    return Line2D([], [], color=INK, marker="D", markersize=4.5, linewidth=1.6, label=text)
