"""Where the time of a training step goes."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from turncredit import paths, results
from turncredit.plots.dots import arm_grid, say_count
from turncredit.plots.panels import legend, say_no_runs, select
from turncredit.plots.sources import RUN, FigureParams
from turncredit.plots.style import styled, task_label

PARTS = {
    "rollout": "#0072B2",
    "logprobs": "#56B4E9",
    "credit": "#D55E00",
    "update": "#009E73",
    "metrics": "#BBBBBB",
}
"""Part of a step, by the name of its column in timings.csv and in manifests, to colour."""


def time_rows(settings: FigureParams) -> pd.DataFrame:
    """Mean seconds of a step's parts, by run: task, arm, seed, steps, then one column per part.

    Reads the manifests of the experiments; a wall clock, so what else the machine did counts too.
    Runs that are not over are not in it.
    """
    rows = []
    for experiment in settings.experiments:
        root = paths.results(settings.tier) / experiment
        for path in results.table_paths(root, "manifest.json"):
            manifest = results.RunDirectory(path.parent).read_manifest() or {}
            seconds = manifest.get("seconds_of_a_step")
            if seconds:
                task, arm = path.parts[-4:-2]
                run = {"task": task, "arm": arm, "seed": manifest["seed"]}
                rows.append(run | {"steps": manifest["steps_done"]} | seconds)
    return pd.DataFrame(rows, columns=[*RUN, "steps", *PARTS])


@styled
def time_breakdown(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    parts: Mapping[str, str] = PARTS,
) -> Figure:
    """Share of a step's seconds in each part, one bar per seed; the mean step at the right.

    table: task, arm, seed and mean seconds of each of `parts` (name to colour).
    """
    figure, axes = arm_grid([task_label(task) for task in tasks], arms)
    for axis, task in zip(axes[0], tasks, strict=True):
        if not (table["task"] == task).any():
            say_no_runs(axis)
            continue
        axis.set_xlim(0, 1)
        axis.grid(False)
        axis.annotate(
            "s per step\n(seeds)", (1.01, 1.0), xycoords="axes fraction", va="bottom", fontsize=7,
            fontstyle="italic", color="#444444",
        )  # fmt: skip
        for row, arm in enumerate(arms):
            _bars(axis, row, select(table, task, arm), parts)
        axis.set_xlabel("share of a training step")
    legend(figure, [Patch(color=colour, label=name) for name, colour in parts.items()])
    return figure


def _bars(axis: Axes, row: int, runs: pd.DataFrame, parts: Mapping[str, str]) -> None:
    """The seeds of one arm, under one another in its row."""
    if runs.empty:
        say_count(axis, row, "no runs")
        return
    seconds = runs.sort_values("seed")[list(parts)].fillna(0.0).reset_index(drop=True)
    totals = seconds.sum(axis=1)
    shares = seconds.div(totals, axis=0)
    height = 0.8 / len(shares)
    places = [row - 0.4 + (i + 0.5) * height for i in range(len(shares))]
    left = shares[shares.columns[0]] * 0.0
    for name, colour in parts.items():
        axis.barh(places, shares[name], height=0.92 * height, left=left, color=colour, linewidth=0)
        left = left + shares[name]
    say_count(axis, row, f"{totals.mean():.2f} ({len(runs)})")
