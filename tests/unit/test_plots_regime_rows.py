"""The map of regimes counts what the runs of each cell came to, and what a method gains there."""

import math

import pandas as pd
import pytest

from turncredit import plots
from turncredit.plans import cell_name, grid_cells

AXES = {"world.prior": [0.5, 0.6]}


def runs(cell, arm, shifts, collapsed, scores, finished=True):
    task = f"task-{cell_name(cell)}"
    return [
        {
            "task": task, "arm": arm, "seed": seed, "block": 0, "finished": finished,
            "shift_step": shift, "collapsed": fallen, "exact_match": score,
        }
        for seed, (shift, fallen, score) in enumerate(zip(shifts, collapsed, scores, strict=True))
    ]  # fmt: skip


@pytest.fixture
def table():
    first, second = grid_cells(AXES)
    nan = math.nan
    outcomes = [
        *runs(first, "grpo", [3, nan], [1.0, 1.0], [0.4, 0.6]),
        *runs(first, "aem", [nan, nan], [0.0, 1.0], [0.5, 0.9]),
        *runs(second, "grpo", [nan, nan], [nan, nan], [nan, nan], finished=False),
    ]
    return plots.map_rows(pd.DataFrame(outcomes), AXES, "task", ["grpo", "aem"])


def value(table, prior, arm, measure):
    (row,) = table.query(f"prior == {prior} and arm == '{arm}' and measure == '{measure}'").to_dict(
        "records"
    )
    return row["value"], row["n"]


def test_shares_of_shifted_and_collapsed_runs_are_counted(table):
    assert value(table, 0.5, "grpo", "shifted") == (0.5, 2)
    assert value(table, 0.5, "aem", "shifted") == (0.0, 2)
    assert value(table, 0.5, "grpo", "collapsed") == (1.0, 2)


def test_gains_are_paired_by_seed_in_score_and_in_collapse(table):
    assert value(table, 0.5, "aem", "gain") == (pytest.approx(0.2), 2)
    assert value(table, 0.5, "aem", "gain_collapsed") == (-0.5, 2)
    assert not (table.query("arm == 'grpo'")["measure"].str.startswith("gain")).any()


@pytest.mark.parametrize("measure", ["shifted", "collapsed", "exact_match"])
def test_a_run_that_is_not_over_counts_as_neither(table, measure):
    assert value(table, 0.6, "grpo", measure)[1] == 0
