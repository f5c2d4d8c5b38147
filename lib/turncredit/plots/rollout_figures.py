"""Figures of rollouts: chances with several tries, and what an equal budget comes to."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from turncredit.plots import curves
from turncredit.plots.arm_figures import arm_differences, arm_outcomes
from turncredit.plots.outcomes import outcome_intervals, rate_rows
from turncredit.plots.panels import (
    MEAN_LINE,
    SEED_LINE,
    arm_entries,
    legend,
    say_absent,
    say_no_runs,
    seed_lines,
    select,
    task_grid,
    thin_and_thick,
)
from turncredit.plots.rollout_rows import (
    BRANCHING,
    GUIDANCE,
    ROLLBACK,
    compared_at_budget,
    measure_rows,
    panel_rows,
    pass_rows,
    reach_rows,
)
from turncredit.plots.study import Study
from turncredit.plots.style import arm_looks, styled


@styled
def pass_at_k(table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str]) -> Figure:
    """Chance that one of k tries succeeds, along k.  table: as of `pass_rows`."""
    figure, axes = task_grid(tasks)
    lines = table.rename(columns={"k": "step"})
    for axis, task in zip(axes[0], tasks, strict=True):
        absent = [arm for arm in arms if select(lines, task, arm)["pass_at"].isna().all()]
        for arm, (colour, marker) in arm_looks(arms).items():
            if arm not in absent:
                seed_lines(axis, select(lines, task, arm), "pass_at", colour, marker=marker)
        if len(absent) == len(arms):
            say_no_runs(axis)
        else:
            say_absent(axis, absent)
        axis.set_xlabel("tries of a question, k")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel("pass@k (share of questions)")
    legend(figure, [*arm_entries(arms), *thin_and_thick()])
    return figure


def at_budget(study: Study) -> Figure:
    """Differences in exact match at an equal budget of environment steps; collapses beside it."""
    settings, names = study.settings, {"difference_low": "low", "difference_high": "high"}
    columns = ["task", "arm", "difference", *names, "seeds"]
    measures = measure_rows(study)
    rows = compared_at_budget(study, measures) if len(measures) else []
    return arm_differences(
        pd.DataFrame(rows).reindex(columns=columns).rename(columns=names | {"seeds": "n"}),
        rate_rows(study.outcomes, level=settings.confidence_level),
        *study.grid,
        reference_arm=settings.reference_arm,
        level=settings.confidence_level,
        label="exact match at equal\nenvironment steps",
    )


def passes(study: Study) -> Figure:
    """`pass_at_k` of a study."""
    return pass_at_k(pass_rows(measure_rows(study)), *study.grid)


def branching(study: Study) -> Figure:
    """How trajectories branch, how they differ and what they cost: dots are seeds."""
    return _panels(study, BRANCHING)


def rollback(study: Study) -> Figure:
    """What rollback in training leaves without it, and what it costs: dots are seeds."""
    return _panels(study, ROLLBACK)


def guidance(study: Study) -> Figure:
    """On the first task: groups that failed, what rescued them, at what price: dots are seeds.

    Arms that guide alone: another one looks for no failed groups.
    """
    own = study.only(study.settings.tasks[:1], study.settings.arms)
    found = measure_rows(own).dropna(subset=["hard_share"])["arm"]
    guiding = tuple(arm for arm in own.settings.arms if arm in set(found))
    arms = guiding or own.settings.arms
    reference = arms[0]
    settings = replace(own.settings, arms=arms, reference_arm=reference)
    return _panels(replace(own, settings=settings), GUIDANCE)


def _panels(study: Study, named: dict[str, str]) -> Figure:
    rows, panels = panel_rows(study, measure_rows(study), named)
    level = study.settings.confidence_level
    intervals = outcome_intervals(rows, "value", level=level)
    return arm_outcomes(
        rows, intervals, panels, study.settings.arms, column="value", label="value of a run"
    )


def evaluation(study: Study) -> Figure:
    """Held-out exact match along training."""
    return curves.evaluation(study.runs.evaluations, *study.grid)


def reached(study: Study) -> Figure:
    """Held-out exact match along the environment steps that training had spent."""
    return reach_curves(reach_rows(study), *study.grid)


@styled
def reach_curves(table: pd.DataFrame, tasks: Sequence[str], arms: Sequence[str]) -> Figure:
    """Lines of each seed, and of the mean at equal training steps.  table: as of `reach_rows`."""
    figure, axes = task_grid(tasks)
    for axis, task in zip(axes[0], tasks, strict=True):
        for arm, (colour, marker) in arm_looks(arms).items():
            runs = select(table, task, arm)
            for _, run in runs.groupby("seed", sort=True):
                axis.plot(run["spent"] / 1000, run["exact_match"], color=colour, **SEED_LINE)
            mean = runs.groupby("step")[["spent", "exact_match"]].mean()
            look = {"color": colour, "marker": marker, **MEAN_LINE}
            axis.plot(mean["spent"] / 1000, mean["exact_match"], **look)
        if table.empty:
            say_no_runs(axis)
        axis.set_xlabel("environment steps (thousands)")
    axes[0, 0].set_ylabel("held-out exact match (share)")
    legend(figure, [*arm_entries(arms), *thin_and_thick()])
    return figure


FIGURES: dict[str, Callable[[Study], Figure]] = {
    "at_budget": at_budget,
    "branching": branching,
    "evaluation": evaluation,
    "guidance": guidance,
    "pass_at_k": passes,
    "reached": reached,
    "rollback": rollback,
}
"""By name, for the gallery."""
