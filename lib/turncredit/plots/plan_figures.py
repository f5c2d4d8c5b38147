"""Figures of plans in prompts, from the rows that `plan_following` leaves."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from turncredit import paths
from turncredit.plots.panels import (
    MEAN_LINE,
    SEED_LINE,
    legend,
    say_no_runs,
    task_grid,
    thin_and_thick,
)
from turncredit.plots.study import Study
from turncredit.plots.style import styled, task_label

TABLE = "plans.csv"
"""In the folder of a notebook: rows of `plan_following.following_rows`."""
COLUMNS = ["task", "shown", "seed", "actions", "success", "failed_groups", "planned_calls"]
LOOKS = {
    "success": ("success", "#0072B2", "o"),
    "failed_groups": ("groups that fail", "#D55E00", "s"),
    "planned_calls": ("planned calls made", "#009E73", "^"),
}
"""Columns, what the legend calls them, and how they are drawn."""


def plan_following(study: Study) -> Figure:
    """`following_curves` of every TABLE that the study's notebooks have."""
    folders = [paths.results(study.settings.tier) / name for name in study.settings.experiments]
    tables = [pd.read_csv(folder / TABLE) for folder in folders if (folder / TABLE).exists()]
    table = pd.concat(tables) if tables else pd.DataFrame(columns=COLUMNS)
    return following_curves(table, list(dict.fromkeys(table["task"])) or study.settings.tasks)


@styled
def following_curves(table: pd.DataFrame, tasks: Sequence[str]) -> Figure:
    """What warm starts come to along the number of actions in the prompt.  table: COLUMNS."""
    figure, axes = task_grid(tasks)
    for axis, task in zip(axes[0], tasks, strict=True):
        rows = table[table["task"] == task]
        if rows.empty:
            say_no_runs(axis)
            continue
        unshown = "" if rows["shown"].all() else "\n(plans never seen)"
        axis.set_title(f"{task_label(task)}{unshown}", loc="left")
        for column, (_, colour, marker) in LOOKS.items():
            for _, run in rows.groupby("seed"):
                axis.plot(run["actions"], run[column], color=colour, **SEED_LINE)
            mean = rows.groupby("actions")[column].mean()
            axis.plot(mean.index, mean, color=colour, marker=marker, **MEAN_LINE)
        axis.set_ylim(-0.03, 1.03)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("actions in the prompt")
    axes[0, 0].set_ylabel("share")
    entries = [
        Line2D([], [], color=colour, marker=marker, label=label, **MEAN_LINE)
        for label, colour, marker in LOOKS.values()
    ]
    legend(figure, [*entries, *(_of_starts(entry) for entry in thin_and_thick())])
    return figure


def _of_starts(entry: Line2D) -> Line2D:
    entry.set_label(entry.get_label().replace("seed", "warm start"))
    return entry
