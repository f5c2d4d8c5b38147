"""What the policy does at each turn, and what it gets for it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit import stats
from turncredit.plots.panels import (
    MEAN_LINE,
    legend,
    say_no_runs,
    seed_lines,
    select,
    stop_entries,
    thin_and_thick,
)
from turncredit.plots.sources import RUN, Runs
from turncredit.plots.style import WIDTH, arm_label, styled, task_label

ACTIONS = {
    "search": ("#0072B2", "-"),
    "read_chunk": ("#009E73", (0, (6, 1.5))),
    "external_verify": ("#E69F00", (0, (3, 1.2))),
    "answer": ("#D55E00", (0, (5, 1, 1, 1))),
    "invalid": ("#666666", (0, (1, 1))),
}
"""Action, by the name of its column in turns.csv, to colour and line style."""


def action_rows(runs: Runs, turns: Sequence[int], *, weight: float) -> pd.DataFrame:
    """Share of each action at each turn and the mean reward of the trajectories that took it.

    Result: task, arm, seed, step, turn, action, share (of the trajectories that reach the turn),
    reward, both an EMA over the run's steps of sums over trajectories, share of the past `weight`,
    so that a step counts by how many took the action; NaN where none has yet.
    """
    shown = runs.turns[runs.turns["turn"].isin(turns)].sort_values([*RUN, "turn", "step"])
    actions = [action for action in ACTIONS if action in shown]
    kept = [*RUN, "step", "turn", *(name for name in ("stopped",) if name in shown)]
    frames = []
    for action in actions:
        taken = shown[action].fillna(0)
        rewarded = taken.where(shown[f"reward_{action}"].notna(), 0)
        sums = shown.assign(
            taken=taken, rewarded=rewarded, total=(rewarded * shown[f"reward_{action}"]).fillna(0)
        )
        columns = ["taken", "trajectories", "rewarded", "total"]
        groups = sums.groupby([*RUN, "turn"], sort=False)
        taken, reached, rewarded, total = (
            groups[name].transform(lambda values: stats.ema(values, weight)) for name in columns
        )
        frames.append(
            shown[kept].assign(
                action=action, share=taken / reached, reward=total / rewarded.where(rewarded > 0)
            )
        )
    if not frames:
        return pd.DataFrame(columns=[*RUN, "step", "turn", "action", "share", "reward"])
    return pd.concat(frames, ignore_index=True)


@styled
def turn_panel(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    turns: Sequence[int],
    weight: float,
    fewest: float = 0.02,
) -> Figure:
    """P(action at a turn) and E[reward | action at the turn] over the steps, for the first turns.

    table: rows of `action_rows`.  One column for each arm of each task; per turn a row of shares
    and, under it, one of rewards, left out where an action's share is below `fewest`: a mean over a
    handful of trajectories is noise.
    """
    cells = [(task, arm) for task in tasks for arm in arms]
    quantities = [(turn, name) for turn in turns for name in ("share", "reward")]
    size = (max(WIDTH, 1.5 * len(cells)), 1.1 + 1.15 * len(quantities))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(quantities), len(cells), squeeze=False, sharex="col", sharey="row")
    rare = table["share"] < fewest
    table = table.assign(reward=table["reward"].where(~rare).astype(float))
    for column, (task, arm) in enumerate(cells):
        axes[0, column].set_title(f"{task_label(task)}\n{arm_label(arm)}", loc="left", fontsize=8)
        _turns(axes[:, column], select(table, task, arm), quantities)
    figure.supxlabel(f"training step (EMA, weight {weight:g})", fontsize=9)
    for axis, (turn, name) in zip(axes[:, 0], quantities, strict=True):
        text = (
            f"P(action at\nturn {turn})"
            if name == "share"
            else f"E[reward | action\nat turn {turn}]"
        )
        axis.set_ylabel(text, fontsize=8)
    entries = [
        Line2D([], [], color=colour, linestyle=style, label=action.replace("_", " "), **MEAN_LINE)
        for action, (colour, style) in ACTIONS.items()
    ]
    legend(figure, [*entries, *thin_and_thick(), *stop_entries(table)])
    return figure


def _turns(axes: np.ndarray, runs: pd.DataFrame, quantities: Sequence[tuple[int, str]]) -> None:
    """One column of panels."""
    for axis, (turn, name) in zip(axes, quantities, strict=True):
        here = runs[runs["turn"] == turn]
        if here.empty:
            say_no_runs(axis)
            continue
        for action, (colour, style) in ACTIONS.items():
            rows = here[here["action"] == action]
            if rows[name].notna().any() and (name == "reward" or (rows["share"] > 0).any()):
                seed_lines(axis, rows, name, colour, linestyle=style)
        axis.set_ylim(-0.05, 1.05)
