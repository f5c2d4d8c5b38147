"""Arms against a reference arm: differences within warm starts, collapse, chance of improvement."""

import math
from typing import Any

import pandas as pd

from turncredit import stats


def comparison_rows(
    outcomes: pd.DataFrame,
    reference_arm: str,
    column: str = "exact_match",
    *,
    level: float = 0.95,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One row per task and arm but the reference: how far its `column` and its collapses differ.

    outcomes: one row per run with task, arm, seed, block (its warm start), `column` and collapsed
    (0, 1 or NaN).  A task without runs of the reference has no rows.
    difference: mean over blocks of arm minus reference, paired by seed, with its bootstrap interval
    (`stats.block_paired_difference`); improvement: chance that a run of the arm ends above one of
    the reference (`stats.probability_of_improvement`); effect: Hedges' g in units of the spread of
    runs; collapse_p: exact Cochran-Mantel-Haenszel test within blocks, mid-p; collapse_p_holm: the
    same allowing for the number of arms compared on the task.
    `seed` draws the bootstrap.
    """
    rows: list[dict[str, Any]] = []
    for task, runs in outcomes.groupby("task", sort=False):
        reference = runs[runs["arm"] == reference_arm]
        if reference.empty:
            continue
        others = [arm for arm in runs["arm"].unique() if arm != reference_arm]
        own = [
            {"task": task, "arm": arm, "reference_arm": reference_arm}
            | _compared(runs[runs["arm"] == arm], reference, column, level, seed)
            for arm in others
        ]
        adjusted = stats.holm({row["arm"]: row["collapse_p"] for row in own})
        rows += [row | {"collapse_p_holm": adjusted[row["arm"]]} for row in own]
    return rows


def _compared(
    runs: pd.DataFrame, reference: pd.DataFrame, column: str, level: float, seed: int
) -> dict[str, Any]:
    """The numbers of one row."""
    blocks = {r.seed: r.block for r in pd.concat([runs, reference]).itertuples()}
    mean = stats.block_paired_difference(
        by_seed(runs, column), by_seed(reference, column), blocks, level=level, seed=seed
    )
    values = [_by_block(arm, column) for arm in (runs, reference)]
    better = stats.probability_of_improvement(*values, level=level, seed=seed)
    effect = stats.effect_size(runs[column], reference[column], level=level)
    collapses = [stats.count_blocks(_by_block(arm, "collapsed")) for arm in (runs, reference)]
    rates = [stats.count_events(arm["collapsed"]) for arm in (runs, reference)]
    return {
        "seeds": mean.n,
        "missing": mean.missing,
        "blocks": mean.blocks,
        **_interval("difference", mean.mean, mean),
        **_interval("improvement", better.value, better),
        **_interval("effect", effect.value, effect),
        "collapsed": rates[0].events,
        "collapsed_of": rates[0].total,
        "reference_collapsed": rates[1].events,
        "reference_of": rates[1].total,
        "collapse_p": stats.cmh_test(*collapses, level=level).mid,
        "level": level,
    }


def _interval(name: str, value: float, found: Any) -> dict[str, float]:
    return {name: value, f"{name}_low": found.low, f"{name}_high": found.high}


def by_seed(runs: pd.DataFrame, column: str) -> dict[int, float]:
    """Seed to `column` of runs of one task and arm."""
    return dict(zip(runs["seed"], runs[column], strict=True))


def _by_block(runs: pd.DataFrame, column: str) -> dict[Any, list[float]]:
    """Values by warm start; the runs whose warm start is unknown are one block."""
    known = runs.assign(block=runs["block"].map(lambda block: -1 if math.isnan(block) else block))
    return {block: own[column].tolist() for block, own in known.groupby("block")}
