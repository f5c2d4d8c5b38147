"""Runs at an equal budget of environment steps, and how soon one matches another."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

RUN = ["task", "arm", "seed"]


def environment_steps(metrics: pd.DataFrame, trajectories: int) -> pd.Series:
    """Messages that each training step handed to the environment, one for each row of metrics.csv.

    trajectories: of a step's batch.  Turns that branches share count once, and messages that a
    rollback took back count too.  Where a rollout counts its own tool calls (`rollout_tool_calls`,
    over `rollout_trajectories`), every trajectory has one message more, the one that ended it.
    """
    known = metrics.reindex(
        columns=["rollout_tool_calls", "rollout_trajectories", "turns", "retries"]
    ).astype(float)
    counted = known["rollout_tool_calls"] + known["rollout_trajectories"]
    return counted.fillna(known["turns"] * trajectories + known["retries"].fillna(0.0))


def at_budget(
    steps: Sequence[int], values: Sequence[float], spent: Sequence[float], budget: float
) -> float:
    """What a run had come to when it had spent `budget`, between evaluations along a line.

    steps, values: of its evaluations, in order; spent: of each training step.  NaN for a budget
    that it never spent, or next to an evaluation without a value.

    >>> at_budget([0, 2, 4], [0.0, 0.4, 0.5], spent=[10.0, 10.0, 20.0, 20.0], budget=40.0)
    0.45
    """
    total = np.concatenate([[0.0], np.cumsum(spent)])
    if budget > total[-1] * (1 + 1e-9):
        return math.nan
    return float(np.interp(budget, total[list(steps)], values))


def steps_to_match(steps: Sequence[int], values: Sequence[float], level: float) -> float:
    """First evaluated step at which a run has reached `level`; infinity if it never has.

    >>> steps_to_match([0, 20, 40], [0.1, 0.5, 0.4], 0.45)
    20.0
    """
    return next((float(s) for s, v in zip(steps, values, strict=True) if v >= level), math.inf)


def budget_rows(
    metrics: pd.DataFrame,
    evaluations: pd.DataFrame,
    trajectories: dict[tuple[str, str, int], int],
    *,
    reference_arm: str,
    column: str = "exact_match",
) -> pd.DataFrame:
    """One row per run: what it spent, and its `column` at the budget that all arms have spent.

    metrics, evaluations: rows of metrics.csv and eval.csv (hops "all") with task, arm and seed;
    trajectories: of a step of each run that is over; others are left out.
    environment_steps: in all; spent_calls: tool calls of a trajectory of training, those that
    were taken back too; budget: the least that an arm spent with this seed on this task;
    <column>_at_budget: see `at_budget`; match_share: `steps_to_match` the mean final `column` of
    the reference arm, as a share of the run's steps, 1 for a run that never does; entropy_sd:
    standard deviation of the entropy over the steps.
    """
    evaluated = dict(list(evaluations.sort_values("step").groupby(RUN)))
    spent = {
        key: environment_steps(run.sort_values("step"), trajectories[key])
        for key, run in metrics.groupby(RUN)
        if key in trajectories and key in evaluated
    }
    levels = _levels({key: evaluated[key] for key in spent}, reference_arm, column)
    budgets: dict[tuple[str, int], float] = {}
    for (task, _, seed), steps in spent.items():
        budgets[task, seed] = min(budgets.get((task, seed), math.inf), float(steps.sum()))
    rows = []
    for (task, arm, seed), run in metrics.groupby(RUN):
        key = (task, arm, seed)
        if key in spent:
            own, steps = evaluated[key], len(spent[key])
            points = own["step"].tolist(), own[column].tolist()
            reached = steps_to_match(*points, levels.get(task, math.nan)) / steps
            rows.append(
                dict(zip(RUN, key, strict=True))
                | {
                    "environment_steps": float(spent[key].sum()),
                    "spent_calls": float(spent[key].mean()) / trajectories[key] - 1,
                    "budget": budgets[task, seed],
                    f"{column}_at_budget": at_budget(*points, spent[key], budgets[task, seed]),
                    "match_share": min(reached, 1.0) if task in levels else math.nan,
                    "entropy_sd": run["entropy"].std(),
                }
            )
    return pd.DataFrame(rows)


def _levels(
    evaluated: dict[tuple[str, str, int], pd.DataFrame], reference_arm: str, column: str
) -> dict[str, float]:
    """By task the mean over seeds of the reference arm's last evaluation."""
    finals: dict[str, list[float]] = {}
    for (task, arm, _), rows in evaluated.items():
        if arm == reference_arm:
            finals.setdefault(task, []).append(float(rows[column].iloc[-1]))
    return {task: float(np.nanmean(values)) for task, values in finals.items()}
