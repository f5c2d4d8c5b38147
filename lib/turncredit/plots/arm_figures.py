"""Figures that compare arms by what their runs came to: outcomes, differences, spread, speed."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.plots.dots import (
    INK,
    arm_grid,
    block_entries,
    block_markers,
    collapse_entry,
    count_text,
    interval,
    interval_entry,
    limits,
    plain,
    say_count,
    say_counts,
    seed_dots,
    stripes,
)
from turncredit.plots.panels import legend, say_no_runs, select
from turncredit.plots.style import arm_colours, arm_label, styled, task_label


@styled
def arm_outcomes(
    outcomes: pd.DataFrame,
    intervals: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    column: str = "exact_match",
    label: str = "final exact match (share)",
) -> Figure:
    """Every seed's final `column` as a dot, one row per arm, and the mean with its interval.

    outcomes: rows of `outcome_rows`; intervals: task, arm, mean, low, high.  Hollow: collapsed;
    shape: warm start.  An arm whose seeds end in two clusters shows as such.
    """
    figure, axes = arm_grid([task_label(task) for task in tasks], arms, row=0.33)
    colours, markers = arm_colours(arms), block_markers(outcomes["block"])
    for axis, task in zip(axes[0], tasks, strict=True):
        shown = outcomes[(outcomes["task"] == task) & outcomes["arm"].isin(arms)]
        if shown[column].notna().any():
            ends = intervals.loc[intervals["task"] == task, ["low", "high"]].to_numpy().ravel()
            axis.set_xlim(*limits(shown[column], room_for=ends))
            stripes(axis, len(arms))
        for row, arm in enumerate(arms):
            seed_dots(axis, row, select(outcomes, task, arm), column, colours[arm], markers)
            for found in select(intervals, task, arm).to_dict("records"):
                interval(axis, row + 0.32, found, "mean", INK)
        say_counts(axis, outcomes, column, arms, task)
        axis.locator_params(axis="x", nbins=_ticks(tasks))
        axis.xaxis.set_major_formatter(plain)
    figure.supxlabel(label, fontsize=9)
    legend(
        figure,
        [*block_entries(markers), collapse_entry(), interval_entry("mean and interval")],
    )
    return figure


def _ticks(tasks: Sequence[str]) -> int:
    """Steps along an axis, fewer where many panels stand side by side."""
    return 6 if len(tasks) < 4 else 3 if len(tasks) < 6 else 2


@styled
def arm_differences(
    differences: pd.DataFrame,
    rates: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    reference_arm: str,
    level: float,
    label: str = "final exact match",
    rate_label: str = "collapsed\nruns (share)",
) -> Figure:
    """Forest plot of differences to the reference arm; how often each arm collapses beside it.

    differences: task, arm, difference, low, high, n, of any design; rates: task, arm, rate, low,
    high, count, n.  The reference arm has rates alone.  One pair of panels per task.
    """
    titles = [title for task in tasks for title in (task_label(task), "")]
    figure, axes = arm_grid(titles, arms, widths=[1.6, 1.0] * len(tasks))
    colours = arm_colours(arms)
    for number, task in enumerate(tasks):
        left, right = axes[0, 2 * number : 2 * number + 2]
        known = differences[(differences["task"] == task) & differences["arm"].isin(arms)]
        _forest(left, known, arms, colours, reference_arm)
        _rates(right, rates[rates["task"] == task], arms, colours)
        left.locator_params(axis="x", nbins=_ticks(titles))
        left.set_xlabel(f"{label},\ndifference to {arm_label(reference_arm)}")
        right.set_xlabel(rate_label)
    percent = f"{level:.0%}".replace("%", " %")
    legend(figure, [interval_entry(f"estimate and {percent} interval; the row's n at its right")])
    return figure


def _forest(
    axis: Axes,
    known: pd.DataFrame,
    arms: Sequence[str],
    colours: dict[str, str],
    reference_arm: str,
) -> None:
    if known.empty:
        say_no_runs(axis)
        return
    axis.set_xlim(*limits([*known["difference"], *known["low"], *known["high"]], keep=[0.0]))
    axis.axvline(0, color="black", linewidth=0.9, zorder=1)
    stripes(axis, len(arms))
    for row, arm in enumerate(arms):
        found = known[known["arm"] == arm].to_dict("records")
        for entry in found:
            interval(axis, row, entry, "difference", colours[arm])
        text = f"{found[0]['n']:.0f}" if found else "no runs"
        say_count(axis, row, "ref." if arm == reference_arm else text)


def _rates(axis: Axes, rates: pd.DataFrame, arms: Sequence[str], colours: dict[str, str]) -> None:
    if rates.empty:
        say_no_runs(axis)
        return
    if not rates["n"].any():  # in no world of these runs can evidence be lost
        say_no_runs(axis, "not defined")
        return
    axis.set_xlim(-0.08, 1.08)
    axis.set_xticks([0, 0.5, 1])
    stripes(axis, len(arms))
    for row, arm in enumerate(arms):
        found = rates[rates["arm"] == arm].to_dict("records")
        for entry in found:
            interval(axis, row, entry, "rate", colours[arm])
        text = f"{found[0]['count']:.0f} of {found[0]['n']:.0f}" if found else "no runs"
        say_count(axis, row, text)


@styled
def variance_over_seeds(
    outcomes: pd.DataFrame,
    spreads: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    reference_arm: str,
    column: str = "exact_match",
    label: str = "distance of a seed\nfrom its arm's mean",
) -> Figure:
    """How far each seed ends from its arm's mean, and the arm's spread over the reference's.

    outcomes: rows of `outcome_rows`; spreads: task, arm, sd, ratio, low, high, as of `spread_rows`.
    One pair of panels per task.
    """
    means = outcomes.groupby(["task", "arm"])[column].transform("mean")
    distances = outcomes.assign(**{column: (outcomes[column] - means).abs()})
    titles = [title for task in tasks for title in (task_label(task), "")]
    figure, axes = arm_grid(titles, arms, widths=[1.6, 1.0] * len(tasks), row=0.33)
    colours, markers = arm_colours(arms), block_markers(outcomes["block"])
    for number, task in enumerate(tasks):
        left, right = axes[0, 2 * number : 2 * number + 2]
        shown = distances[(distances["task"] == task) & distances["arm"].isin(arms)]
        known = spreads[(spreads["task"] == task) & spreads["arm"].isin(arms)]
        if shown[column].notna().any():
            left.set_xlim(*limits([*shown[column], *known["sd"]], keep=[0.0]))
            stripes(left, len(arms))
        for row, arm in enumerate(arms):
            seed_dots(left, row, select(distances, task, arm), column, colours[arm], markers)
            for sd in known.loc[known["arm"] == arm, "sd"].dropna():
                interval(left, row + 0.32, {"sd": sd, "low": sd, "high": sd}, "sd", INK)
        say_counts(left, outcomes, column, arms, task)
        _ratios(right, known, arms, colours, reference_arm)
        left.set_xlabel(label)
        right.set_xlabel(f"standard deviation\nover {arm_label(reference_arm)}'s")
    diamond = interval_entry("standard deviation")
    legend(figure, [*block_entries(markers), collapse_entry(), diamond])
    return figure


def _ratios(
    axis: Axes,
    known: pd.DataFrame,
    arms: Sequence[str],
    colours: dict[str, str],
    reference_arm: str,
) -> None:
    """Ratios on a logarithmic scale around 1; one of 0 or infinity has no place on it."""
    known = known.assign(ratio=known["ratio"].where(known["ratio"].between(1e-9, 1e9)))
    if known["ratio"].isna().all():
        say_no_runs(axis, "no runs" if known.empty else "no ratio")
        return
    axis.set_xscale("log", base=2)
    logs = [math.log(v) for v in (*known["ratio"], *known["low"], *known["high"]) if v > 0]
    axis.set_xlim(*map(math.exp, limits(logs, keep=[-1.0, 1.0])))
    first, last = (round(end) for end in np.log2(axis.get_xlim()))
    stride = 1 + (last - first) // 4
    axis.set_xticks([2.0**k for k in range(first, last + 1) if k % stride == 0])  # 1 among them
    axis.xaxis.set_major_formatter(lambda v, _: f"{v:g}" if v >= 1 else f"1/{1 / v:g}")
    axis.axvline(1, color="black", linewidth=0.9, zorder=1)
    stripes(axis, len(arms))
    for row, arm in enumerate(arms):
        for found in known[known["arm"] == arm].to_dict("records"):
            interval(axis, row, found, "ratio", colours[arm])
        if arm == reference_arm:
            say_count(axis, row, "ref.")


@styled
def steps_to_reach(
    reached: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str], *, label: str
) -> Figure:
    """Steps until each seed reached a level; seeds that never did stand at the right, counted.

    reached: task, arm, seed, steps (NaN: never), last, as of `reach_rows`; label: what was reached.
    The bar is the median over seeds, a seed that never arrived being later than all others.
    """
    figure, axes = arm_grid([task_label(task) for task in tasks], arms)
    colours = arm_colours(arms)
    for axis, task in zip(axes[0], tasks, strict=True):
        runs = reached[(reached["task"] == task) & reached["arm"].isin(arms)]
        if runs.empty:
            say_no_runs(axis)
            continue
        end = float(runs["last"].max())
        axis.set_xlim(-0.03 * end, 1.16 * end)
        axis.axvspan(1.04 * end, 1.16 * end, color="#eeeeee", zorder=0)
        axis.annotate(
            "never", (1.10 * end, 1.0), xycoords=("data", "axes fraction"), ha="center",
            va="bottom", fontsize=7, color=INK, fontstyle="italic",
        )  # fmt: skip
        for row, arm in enumerate(arms):
            _arrivals(axis, row, runs.loc[runs["arm"] == arm, "steps"], end, colours[arm])
        axis.set_xlabel(f"steps to {label}")
    look = {"color": INK, "linestyle": ""}
    legend(
        figure,
        [
            Line2D([], [], marker="o", markersize=4.5, label="one seed", **look),
            Line2D([], [], marker="|", markersize=11, markeredgewidth=2, label="median", **look),
            Line2D(
                [], [], marker="o", markersize=4.5, markerfacecolor="white", **look,
                label="seeds that never do (number)",
            ),
        ],
    )  # fmt: skip
    return figure


def _arrivals(axis: Axes, row: int, steps: pd.Series, end: float, colour: str) -> None:
    """The dots of one arm, its median, and how many of how many seeds arrived."""
    if steps.empty:
        say_count(axis, row, "no runs")
        return
    never = int(steps.isna().sum())
    known = np.sort(steps.dropna())
    heights = row + np.linspace(-0.25, 0.25, len(known)) if len(known) > 1 else [row] * len(known)
    axis.scatter(known, heights, s=18, color=colour, zorder=3)
    if never:
        axis.scatter(
            [1.10 * end], [row], s=22, facecolors="white", edgecolors=colour, linewidths=0.9
        )
        axis.annotate(f"{never}", (1.12 * end, row), va="center", fontsize=7, color=colour)
    median = steps.fillna(math.inf).median()
    if math.isfinite(median):
        axis.plot([median] * 2, [row - 0.33, row + 0.33], color=colour, linewidth=2, zorder=2)
    say_count(axis, row, count_text(len(steps) - never, len(steps)))
