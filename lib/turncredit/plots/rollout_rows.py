"""What rollouts cost and what they bring: one row per run, for tables, figures and claims."""

import functools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from turncredit import paths, results
from turncredit.budgets import budget_rows, environment_steps
from turncredit.comparisons import comparison_rows
from turncredit.plots.outcomes import run_params
from turncredit.plots.sources import RUN
from turncredit.plots.study import Study
from turncredit.rollout_measures import ALONE, OWN, TABLE

MEASURES = "measures.csv"
"""In the folder of a notebook."""

BRANCHING = {
    "branch_concentration": "branches on 3 trajectories",
    "high_in_rows": "uncertain turns in rows",
    "own_clusters": "cluster centres",
    "spent_calls": "tool calls in training",
    "entropy_sd": "entropy, sd over steps",
}
"""Columns of MEASURES and what a panel calls them: branching rollouts."""
ROLLBACK = {
    "pass_1": "pass@1 without rollback",
    "own_pass_1": "pass@1 with rollback",
    "error_share": "tool errors without rollback",
    "spent_calls": "tool calls in training",
    "match_share": "share of steps to match",
}
"""The same of rollback."""

GUIDANCE = {
    "hard_share": "groups that failed",
    "rescued_share": "of those, rescued",
    "actions_given": "actions that were told",
    "probe_share": "probes, of all played",
    "log_ratio": "log ratio (nats)",
    "far_tokens": "tokens made likely",
}
"""The same of guidance where groups fail."""

COLUMNS = tuple(dict.fromkeys([*BRANCHING, *ROLLBACK, *GUIDANCE, "exact_match_at_budget"]))
_PLAYED = ("tool_calls", "error_share", "clusters", "clusters_of_a_question")


def measure_rows(study: Study) -> pd.DataFrame:
    """One row per run that is over: task, arm, seed, block, collapsed, then what it came to.

    The columns of `budget_rows`; branch_concentration: share of all branches of training that left
    the three trajectories of their question with most of them, NaN without branches; the columns
    of `guidance_rows`; from TABLE
    pass_<k>, tool_calls, error_share, clusters and clusters_of_a_question of the policy alone, and
    with own_ before those of the arm's rollout.  An arm without one trains on independent
    trajectories, so that the clusters of these are its own, and has no other own_ number.
    high_in_rows: in the rollout that it is trained with.  What was not played is NaN.
    """
    runs = study.runs
    keys = study.outcomes[[*RUN, "block", "collapsed"]]
    groups, sizes = _sizes(study)
    reference = study.settings.reference_arm
    budgets = budget_rows(runs.metrics, runs.evaluations, sizes, reference_arm=reference)
    if budgets.empty:
        return pd.DataFrame(columns=[*keys, *COLUMNS])
    table = keys.merge(budgets, on=RUN).merge(_concentrations(runs.metrics), on=RUN)
    table = table.merge(guidance_rows(runs.metrics, groups), on=RUN)
    played = _played(study)
    return table if played.empty else table.merge(played, on=RUN, how="left")


def reach_rows(study: Study) -> pd.DataFrame:
    """RUN, step, exact_match, spent: every evaluation, and the environment steps before it.

    Of runs that are over; environment steps are those of `budgets.environment_steps`.
    """
    _, sizes = _sizes(study)
    evaluated = dict(list(study.runs.evaluations.groupby(RUN)))
    parts = []
    for key, run in study.runs.metrics.groupby(RUN):
        if key in sizes and key in evaluated:
            spent = environment_steps(run.sort_values("step"), sizes[key]).cumsum()
            before = [0.0, *spent]
            rows = evaluated[key].sort_values("step")[[*RUN, "step", "exact_match"]]
            parts.append(rows.assign(spent=[before[step] for step in rows["step"]]))
    return (
        pd.concat(parts) if parts else pd.DataFrame(columns=[*RUN, "step", "exact_match", "spent"])
    )


def _sizes(study: Study) -> tuple[dict[tuple, int], dict[tuple, int]]:
    """Trajectories of a group, and of a step, of each run that is over."""
    trainings = {
        key: values["task"]["training"] for key, values in run_params(study.settings).items()
    }
    wanted = {"questions_per_step", "group_size"}
    trainings = {key: values for key, values in trainings.items() if wanted <= values.keys()}
    groups = {key: values["group_size"] for key, values in trainings.items()}
    return groups, {k: groups[k] * values["questions_per_step"] for k, values in trainings.items()}


def save_measures(study: Study) -> pd.DataFrame:
    """Write MEASURES and comparisons_at_budget.csv beside the study's outcomes; returns the first.

    The second is as comparisons.csv, of the final exact match at an equal budget of environment
    steps.
    """
    table = measure_rows(study)
    folder = paths.results(study.settings.tier) / study.settings.experiments[0]
    results.write_table(folder / MEASURES, table.to_dict("records"))
    rows = compared_at_budget(study, table)
    if rows:
        results.write_table(folder / "comparisons_at_budget.csv", rows)
    return table


def compared_at_budget(study: Study, measures: pd.DataFrame) -> list[dict]:
    """`comparison_rows` of exact_match_at_budget."""
    settings = study.settings
    return comparison_rows(
        measures, settings.reference_arm, "exact_match_at_budget", level=settings.confidence_level
    )


def panel_rows(
    study: Study, measures: pd.DataFrame, named: Mapping[str, str]
) -> tuple[pd.DataFrame, list[str]]:
    """The columns `named` as panels: task (the panel), arm, seed, block, collapsed, value.

    A column that nothing was played for has no panel; a panel names the task too where there are
    several.
    """
    several = len(study.settings.tasks) > 1
    panels = {
        (task, column): f"{task}: {label}" if several else label
        for task in study.settings.tasks
        for column, label in named.items()
        if column in measures
    }
    parts = [
        measures[measures["task"] == task].assign(task=panel, value=measures[column])
        for (task, column), panel in panels.items()
    ]
    columns = [*RUN, "block", "collapsed", "value"]
    rows = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    return rows, list(panels.values())


def pass_rows(measures: pd.DataFrame) -> pd.DataFrame:
    """task, arm, seed, k, pass_at: the chances with k tries of the policy alone."""
    columns = {name: int(name[5:]) for name in measures if name.startswith("pass_")}
    if not columns:
        return pd.DataFrame(columns=[*RUN, "k", "pass_at"])
    long = measures.rename(columns=columns).melt(RUN, list(columns.values()), "k", "pass_at")
    return long.astype({"k": int, "pass_at": float}).sort_values([*RUN, "k"], ignore_index=True)


def _concentrations(metrics: pd.DataFrame) -> pd.DataFrame:
    """RUN and branch_concentration."""
    names = ["rollout_branches_of_three", "rollout_branches"]
    sums = metrics.reindex(columns=[*RUN, *names]).groupby(RUN, as_index=False)[names].sum()
    made = sums["rollout_branches"].where(sums["rollout_branches"] > 0)
    return sums[RUN].assign(branch_concentration=sums["rollout_branches_of_three"] / made)


def guidance_rows(
    metrics: pd.DataFrame, group_sizes: Mapping[tuple[str, str, int], int]
) -> pd.DataFrame:
    """RUN and what guidance came to over the training of each run; NaN for one without.

    group_sizes: of each run; others are left out.  hard_share: groups whose unguided trajectories
    all failed / groups; rescued_share: of those, the ones in which a guided trajectory succeeded;
    actions_given: to one of them, mean; probe_share: trajectories that the search threw away / all
    that were played; log_ratio and far_tokens: `guided_log_ratio` and `guided_far_tokens` of
    docs/diagnostics.md, means over all guided trajectories.
    """
    rows = [
        dict(zip(RUN, key, strict=True)) | _guidance(run.reindex(columns=_GUIDED), group_sizes[key])
        for key, run in metrics.groupby(RUN)
        if key in group_sizes
    ]
    return pd.DataFrame(rows, columns=[*RUN, *GUIDANCE])


_GUIDED = [
    "hard_groups", "rescued_groups", "guidance_actions", "probe_trajectories",
    "rollout_trajectories", "guided_trajectories", "guided_log_ratio", "guided_far_tokens",
]  # fmt: skip


def _guidance(steps: pd.DataFrame, size: int) -> dict[str, float]:
    """Of the steps of one run; {} if it never looked for groups that failed."""
    steps = steps.astype(float)
    if steps["hard_groups"].isna().all():
        return {}
    total, weights = steps.sum(), steps["guided_trajectories"]
    hard, played, probes = total[["hard_groups", "rollout_trajectories", "probe_trajectories"]]
    ratios = [steps[f"guided_{name}"] * weights for name in ("log_ratio", "far_tokens")]
    parts = {
        "hard_share": (hard, (played - probes) / size - hard),  # a hard one was played twice
        "rescued_share": (total["rescued_groups"], hard),
        "actions_given": (total["guidance_actions"], hard),
        "probe_share": (probes, played),
        "log_ratio": (ratios[0].sum(), weights.sum()),
        "far_tokens": (ratios[1].sum(), weights.sum()),
    }
    return {name: part / whole if whole else math.nan for name, (part, whole) in parts.items()}


def _played(study: Study) -> pd.DataFrame:
    """RUN and what TABLE has of each run; no rows where nothing was played."""
    roots = [paths.results(study.settings.tier) / name for name in study.settings.experiments]
    frames = [results.read_table(r, TABLE) for r in roots if results.table_paths(r, TABLE)]
    if not frames:
        return pd.DataFrame(columns=RUN)
    table = pd.concat(frames, ignore_index=True)
    alone = table[table["play"] == ALONE]
    own = table[table["play"] == OWN]
    usual = pd.concat([own, alone]).drop_duplicates(RUN)  # as the arm is trained
    tries = [name for name in table if name.startswith("pass_")]
    parts = [
        _renamed(alone, [*tries, *_PLAYED], ""),
        _renamed(own, ["pass_1", *_PLAYED[:2]], "own_"),
        _renamed(usual, _PLAYED[2:], "own_"),
        _renamed(usual, ["high_in_rows"], ""),
    ]
    return functools.reduce(lambda one, other: one.merge(other, on=RUN, how="left"), parts)


def _renamed(table: pd.DataFrame, columns: Sequence[str], prefix: str) -> pd.DataFrame:
    found = table.reindex(columns=[*RUN, *columns])
    return found.rename(columns={name: f"{prefix}{name}" for name in columns})
