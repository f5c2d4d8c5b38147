"""What the figures of regimes are made of: one row per cell of a grid of variants."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from turncredit import stats
from turncredit.comparisons import by_seed
from turncredit.plans import cell_name, grid_cells

MEASURES = ("shifted", "collapsed", "exact_match")
GAINS = {"gain": "exact_match", "gain_collapsed": "collapsed"}
"""What a method gains over the baseline, and in which outcome."""


def regime_rows(
    outcomes: pd.DataFrame,
    axes: Mapping[str, Sequence[float]],
    task: str,
    arm: str,
    column: str,
    *,
    reference_arm: str | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """One row per cell: its factors by the keys' last words, then value, low, high and n.

    outcomes: rows of `outcome_rows` on the variants that `grid_variants(axes)` makes of `task`.
    value: mean of `column` over the seeds of `arm`, or with a reference its mean difference to
    that arm, paired by seed; low, high: its t interval.  Missing outcomes are not in n.
    """
    rows = []
    for cell in grid_cells(axes):
        runs = outcomes[outcomes["task"] == f"{task}-{cell_name(cell)}"]
        values = {
            name: by_seed(runs[runs["arm"] == name], column)
            for name in (arm, reference_arm)
            if name is not None
        }
        if reference_arm is None:
            found = stats.t_interval(list(values[arm].values()), level=level)
        else:
            found = stats.paired_difference(values[arm], values[reference_arm], level=level)
        factors = {axis.rpartition(".")[2]: value for axis, value in cell.items()}
        value = found.mean if found.n else math.nan
        rows.append(factors | {"value": value, "low": found.low, "high": found.high, "n": found.n})
    return pd.DataFrame(rows)


def map_rows(
    outcomes: pd.DataFrame, axes: Mapping[str, Sequence[float]], task: str, arms: Sequence[str]
) -> pd.DataFrame:
    """`regime_rows` of every arm under columns arm and measure.

    Of each `shifted` (whether its opening moved away from searching, by the rule that dates
    `shift_step`), `collapsed` and `exact_match`; of all but the first what they gain over it:
    `gain` in exact match and `gain_collapsed`, which is good below 0.
    """
    shifted = outcomes["shift_step"].notna().where(outcomes["finished"].astype(bool))
    given, parts = (outcomes.assign(shifted=shifted.astype(float)), axes, task), []
    for arm in arms:
        found = {name: regime_rows(*given, arm, name) for name in MEASURES}
        if arm != arms[0]:
            for name, column in GAINS.items():
                found[name] = regime_rows(*given, arm, column, reference_arm=arms[0])
        parts += [rows.assign(arm=arm, measure=name) for name, rows in found.items()]
    return pd.concat(parts, ignore_index=True)
