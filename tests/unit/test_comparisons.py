"""Rows that compare arms: hand-computed differences, counts and p values; missing is not zero."""

import math

import pandas as pd
import pytest

from turncredit import stats
from turncredit.comparisons import comparison_rows


def table(arms: dict[str, list[float]], collapsed: dict[str, list[float]] | None = None):
    """Runs of one task; seed s starts from warm start s modulo 2."""
    rows = [
        {
            "task": "trap",
            "arm": arm,
            "seed": seed,
            "block": float(seed % 2),
            "exact_match": value,
            "collapsed": (collapsed or {}).get(arm, [0.0] * len(values))[seed],
        }
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_differences_are_paired_by_seed_and_blocks_weigh_equally():
    arms = {"grpo": [0.5, 0.6, 0.5, 0.7, 0.6], "aem": [0.6, 0.6, 0.7, 0.6, 0.6]}
    (row,) = comparison_rows(table(arms), "grpo")
    first, second = (0.1 + 0.2 + 0.0) / 3, (0.0 - 0.1) / 2
    assert row["difference"] == pytest.approx((first + second) / 2)
    assert (row["seeds"], row["missing"], row["blocks"]) == (5, 0, 2)
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    # Pairs won within the blocks: 6 1/2 of 9 and 1 of 4.
    wins = [(0.5, 0.5, 0.6), (0.6, 0.7, 0.6)], [(0.6, 0.7), (0.6, 0.6)]
    shares = [
        sum((x > y) + 0.5 * (x == y) for x in a for y in r) / (len(a) * len(r)) for r, a in wins
    ]
    assert row["improvement"] == pytest.approx(sum(shares) / 2)
    assert row["effect"] == stats.effect_size(arms["aem"], arms["grpo"]).value
    # Of five values the lowest and the highest are left out.
    assert row["iqm"] == pytest.approx((0.6 + 0.6 + 0.6) / 3)
    assert row["reference_iqm"] == pytest.approx((0.5 + 0.6 + 0.6) / 3)
    for name in ("improvement", "effect", "iqm", "reference_iqm"):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"], name


def test_collapses_are_counted_and_tested_within_blocks_allowing_for_the_family():
    ends = [0.6] * 8
    collapsed = {"grpo": [1.0] * 8, "drop_failed": [0.0] * 8, "aem": [1.0] * 7 + [math.nan]}
    rows = comparison_rows(table(dict.fromkeys(collapsed, ends), collapsed), "grpo")
    by_arm = {row["arm"]: row for row in rows}
    dropped = by_arm["drop_failed"]
    assert (dropped["collapsed"], dropped["collapsed_of"]) == (0, 8)
    assert (dropped["reference_collapsed"], dropped["reference_of"]) == (8, 8)
    # Two blocks of 4 against 4: the extreme tables, each of chance (1 / 70)^2, halved for mid-p.
    assert dropped["collapse_p"] == pytest.approx(2 * (1 / 70) ** 2 / 2)
    assert dropped["collapse_p_holm"] == pytest.approx(2 * dropped["collapse_p"])
    assert (by_arm["aem"]["collapsed"], by_arm["aem"]["collapsed_of"]) == (7, 7)
    assert by_arm["aem"]["collapse_p"] == 1.0
    # All seeds together: of 16 places the eight events fill one side in 2 of C(16, 8) ways.
    assert dropped["collapse_fisher_p"] == pytest.approx(2 / 12870)
    assert dropped["collapse_difference"] == -1.0
    assert dropped["collapse_difference_low"] == -1.0 < dropped["collapse_difference_high"] < 0.0
    assert by_arm["aem"]["collapse_difference"] == 0.0


def test_runs_of_unknown_warm_starts_are_one_block():
    arms = {"grpo": [0.5, 0.6, 0.4, 0.7], "aem": [0.6, 0.5, 0.6, 0.9]}
    unknown = comparison_rows(table(arms).assign(block=math.nan), "grpo")
    assert unknown == comparison_rows(table(arms).assign(block=3.0), "grpo")
    assert unknown[0]["blocks"] == 1


def test_a_missing_outcome_is_neither_zero_nor_dropped_unseen():
    arms = {"grpo": [0.5, 0.6, math.nan, 0.7], "aem": [0.6, 0.7, 0.9, 0.8]}
    (row,) = comparison_rows(table(arms), "grpo")
    assert row["difference"] == pytest.approx(0.1)
    assert (row["seeds"], row["missing"]) == (3, 1)


def test_an_arm_with_fewer_seeds_is_compared_on_those_it_has():
    outcomes = table({"grpo": [0.5, 0.6, 0.5, 0.7], "aem": [0.6, 0.7, 0.6, 0.8]})
    (row,) = comparison_rows(outcomes[(outcomes["arm"] == "grpo") | (outcomes["seed"] < 2)], "grpo")
    assert (row["seeds"], row["missing"]) == (2, 2)
    assert row["difference"] == pytest.approx(0.1)


def test_without_the_reference_there_is_nothing_to_compare():
    assert comparison_rows(table({"aem": [0.5, 0.6]}), "grpo") == []


def test_the_same_seed_draws_the_same_interval():
    outcomes = table({"grpo": [0.5, 0.6, 0.4, 0.7], "aem": [0.6, 0.5, 0.6, 0.9]})
    assert comparison_rows(outcomes, "grpo") == comparison_rows(outcomes, "grpo")
