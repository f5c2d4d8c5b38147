"""When runs collapse and what showed it: grounded rates, and curves aligned at the event."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit.plots.panels import (
    arm_entries,
    legend,
    mark_shifts,
    row_labels,
    say_no_runs,
    seed_lines,
    select,
    shift_entry,
    stop_entries,
    thin_and_thick,
)
from turncredit.plots.sources import RUN, Runs
from turncredit.plots.style import (
    WIDTH,
    arm_colours,
    arm_label,
    arm_looks,
    styled,
    task_label,
)

ACROSS = 4
"""Panels side by side where one task has one panel per arm."""

WARNINGS = {
    "entropy_turn_0": "turn 0, entropy\n(nats)",
    "entropy_turn_1": "turn 1, entropy\n(nats)",
    "clip_fraction": "clipped tokens\n(share)",
    "mean_abs_prob_diff": "train–inference\nmismatch",
    "turn_ratio_max": "largest turn\nIS ratio",
    "divergence_k3": "divergence from\nreference (nats)",
}
"""Column of `warning_rows` to the label of its axis."""


@styled
def collapse_curves(
    metrics: pd.DataFrame,
    outcomes: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    threshold: float,
    column: str = "grounded",
    event: str = "collapse_step",
    label: str = "grounded trajectories (share)",
) -> Figure:
    """`column` of every seed over the steps, one panel per arm and task, collapses dated.

    metrics: task, arm, seed, step, `column`, not smoothed; outcomes: task, arm, seed, `event`
    (NaN: never).  A title counts the seeds that fell below `threshold`, and of how many.
    """
    figure, panels = arm_panels(tasks, arms)
    colours = arm_colours(arms)
    for (task, arm), axis in panels.items():
        runs = select(metrics, task, arm)
        if runs.empty:
            say_no_runs(axis)
            continue
        events = select(outcomes, task, arm)[event]
        seed_lines(axis, runs, column, colours[arm])
        axis.axhline(threshold, color="#444444", linewidth=0.9, linestyle=":")
        dated = pd.DataFrame({"shift_step": events})
        mark_shifts(axis, dated, colours[arm])
        axis.set_title(
            f"{events.notna().sum()} of {runs['seed'].nunique()} seeds", loc="right", fontsize=7.5,
            fontweight="normal",
        )  # fmt: skip
        axis.set_ylim(-0.03, 1.03)
    where = f"{task_label(tasks[0])}: " if len(tasks) == 1 else ""
    figure.supylabel(f"{where}{label}", fontsize=8.5)
    crossing = shift_entry()
    crossing.set_label(f"a seed's step below {threshold:g}; counted at the right")
    legend(figure, [*thin_and_thick(), crossing, *stop_entries(metrics)])
    return figure


def arm_panels(
    tasks: Sequence[str], arms: Sequence[str], *, height: float = 1.35
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A panel for each task and arm: arms wrap into a block if there is one task, else are rows."""
    cells = [(task, arm) for arm in arms for task in tasks]
    across = min(len(arms), ACROSS) if len(tasks) == 1 else len(tasks)
    down = math.ceil(len(cells) / across)
    figure = Figure(figsize=(WIDTH, 0.9 + height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    panels = dict(zip(cells, grid.flat, strict=False))
    for axis in list(grid.flat)[len(cells) :]:
        axis.set_axis_off()
    for number, ((task, arm), axis) in enumerate(panels.items()):
        single = len(tasks) == 1
        name = arm_label(arm) if single else task_label(task) if arm == arms[0] else ""
        lifted = {"y": 1.14} if name and not single else {}  # above the counts at the right
        axis.set_title(name, loc="left", fontsize=8 if single else 9.5, **lifted)
        axis.set_xlabel("training step" if number >= len(cells) - across else "")
    if len(tasks) > 1:
        row_labels(grid, arms)
    return figure, panels


def warning_rows(
    runs: Runs,
    outcomes: pd.DataFrame,
    *,
    event: str = "collapse_step",
    first_k: int = 16,
    before: int = 40,
    after: int = 40,
) -> pd.DataFrame:
    """The WARNINGS of each run that has the event, by steps from it.

    Result: task, arm, seed, step (0: the event, -`before` to `after`), one column per warning; NaN
    where a run has no value, as without a reference policy.
    """
    entropy = runs.turns.assign(entropy=runs.turns[f"entropy_k{first_k}"])  # not of whole turns
    by_turn = [
        entropy.loc[entropy["turn"] == turn, [*RUN, "step", "entropy"]].rename(
            columns={"entropy": f"entropy_turn_{turn}"}
        )
        for turn in (0, 1)
    ]
    table = runs.metrics.reindex(columns=[*RUN, "step", *list(WARNINGS)[2:]])
    for more in by_turn:
        table = table.merge(more, on=[*RUN, "step"], how="left")
    dated = outcomes.loc[outcomes[event].notna(), [*RUN, event]]
    table = table.merge(dated, on=RUN)
    table["step"] = (table["step"] - table[event]).astype(int)
    near = table["step"].between(-before, after)
    return table.loc[near, [*RUN, "step", *WARNINGS]].reset_index(drop=True)


@styled
def early_warnings(
    table: pd.DataFrame,
    outcomes: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    event: str = "collapse_step",
    name: str = "collapse",
    warnings: Mapping[str, str] = WARNINGS,
) -> Figure:
    """Candidate warnings around the event, which is step 0; a row for each, a column per task.

    table: rows of `warning_rows`; outcomes: task, arm, seed, `event` (NaN: never), which say how
    many seeds of each arm have the event.  Tasks without any are left out, unless none has one, and
    so are warnings that no run measured.
    """
    tasks = [task for task in tasks if (table["task"] == task).any()] or list(tasks)
    warnings = {w: label for w, label in warnings.items() if table[w].notna().any()} or warnings
    size = (WIDTH, 1.15 + 1.15 * len(warnings) + 0.13 * len(arms))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(warnings), len(tasks), squeeze=False, sharex="col", sharey="row")
    looks = arm_looks(arms)
    for column, task in enumerate(tasks):
        counts = _events(outcomes, task, arms, event)
        axes[0, column].set_title(counts, loc="right", fontsize=7, weight="normal")
        axes[0, column].set_title(task_label(task), loc="left", y=1 + 0.12 * len(arms))
        for axis, warning in zip(axes[:, column], warnings, strict=True):
            drawn = _aligned(axis, table[table["task"] == task], warning, looks)
            if not drawn:
                begun = (outcomes["task"] == task).any()
                missing = "not measured" if (table["task"] == task).any() else f"no {name}"
                say_no_runs(axis, missing if begun else "no runs")
    figure.supxlabel(f"steps from the {name}", fontsize=9)
    for axis, label in zip(axes[:, 0], warnings.values(), strict=True):
        axis.set_ylabel(label, fontsize=7.5)
    legend(figure, [*arm_entries(arms), *thin_and_thick()])
    return figure


def _events(outcomes: pd.DataFrame, task: str, arms: Sequence[str], event: str) -> str:
    """One line per arm: how many of its seeds have the event."""

    def line(arm: str) -> str:
        steps = select(outcomes, task, arm)[event]
        known = f"{steps.notna().sum()} of {len(steps)} seeds"
        count = known if len(steps) else "no runs"
        return f"{arm_label(arm)}: {count}"

    return "\n".join(map(line, arms))


def _aligned(
    axis: Axes, table: pd.DataFrame, warning: str, looks: Mapping[str, tuple[str, str]]
) -> bool:
    """Draw one warning of every arm; False if none has a value."""
    drawn = False
    for arm, (colour, marker) in looks.items():
        runs = table[table["arm"] == arm]
        if runs[warning].notna().any():
            seed_lines(axis, runs, warning, colour, marker=marker)
            drawn = True
    if drawn:
        axis.axvline(0, color="black", linewidth=0.9, zorder=1)
    return drawn
