"""Arms against a reference arm: differences within warm starts, collapse, chance of improvement."""

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
    runs; iqm, reference_iqm: interquartile means (`stats.interquartile_mean`); collapse_difference:
    rates of collapse, arm minus reference within blocks (`stats.block_rate_difference`);
    collapse_p: exact Cochran-Mantel-Haenszel test within blocks, mid-p; collapse_p_holm: the same
    allowing for the number of arms compared on the task; collapse_fisher_p: Fisher's exact test,
    blind to the blocks.  `seed` draws the bootstraps.
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
    arms, draw = (runs, reference), {"level": level, "seed": seed}
    blocks = {r.seed: r.block for r in pd.concat(arms).itertuples()}
    mean = stats.block_paired_difference(*(by_seed(arm, column) for arm in arms), blocks, **draw)
    values = [stats.by_block(arm[column], arm["block"]) for arm in arms]
    middles = [stats.interquartile_mean(own, **draw) for own in values]
    return {
        "seeds": mean.n,
        "missing": mean.missing,
        "blocks": mean.blocks,
        **_columns("difference", mean),
        **_columns("improvement", stats.probability_of_improvement(*values, **draw)),
        **_columns("effect", stats.effect_size(runs[column], reference[column], level=level)),
        **_columns("iqm", middles[0]),
        **_columns("reference_iqm", middles[1]),
        **_collapses(arms, level),
        "level": level,
    }


def _collapses(arms: tuple[pd.DataFrame, pd.DataFrame], level: float) -> dict[str, Any]:
    """How often the runs of arm and reference collapsed, and whether that differs."""
    blocks = [stats.count_blocks(stats.by_block(a["collapsed"], a["block"])) for a in arms]
    own, reference = (stats.count_events(arm["collapsed"]) for arm in arms)
    return {
        "collapsed": own.events,
        "collapsed_of": own.total,
        "reference_collapsed": reference.events,
        "reference_of": reference.total,
        **_columns("collapse_difference", stats.block_rate_difference(*blocks, level=level)),
        "collapse_p": stats.cmh_test(*blocks, level=level).mid,
        "collapse_fisher_p": stats.fisher_test(own, reference),
    }


def _columns(name: str, found: stats.Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def by_seed(runs: pd.DataFrame, column: str) -> dict[int, float]:
    """Seed to `column` of runs of one task and arm."""
    return dict(zip(runs["seed"], runs[column], strict=True))
