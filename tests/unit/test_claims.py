"""Claims: the file is whole, and every verdict follows from the interval, never from nothing."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from turncredit import claims
from turncredit.claims import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, Claim, Measurement
from turncredit.claims.measure import Measured, measure
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.objectives import OBJECTIVES

NAN = math.nan
SEEDS = 16
ALL = claims.read_claims()
MEASURED = [claim for claim in ALL if claim.test.KIND == "measured"]


def measurement(**changes):
    settings = {
        "rule": "difference",
        "quantity": {"exact_match": 1.0},
        "among": "all",
        "tasks": ("trap",),
        "arm": "suffix_mask",
        "reference": "grpo",
        "inside": (0.0, None),
        "effect": 0.1,
        "seeds": SEEDS,
    }
    return Measurement(**{**settings, **changes})


def claim(**changes):
    return Claim(
        "x", "slides", "results", "It helps.", {"gain": 0.1}, "share", measurement(**changes)
    )


def outcomes(suffix_mask, grpo=None, column="exact_match", **more):
    """A table of runs from four warm starts: one row per seed of each arm."""
    arms = {"suffix_mask": suffix_mask} | ({} if grpo is None else {"grpo": grpo})
    rows = [
        {
            "notebook": "n",
            "task": "trap",
            "arm": arm,
            "seed": seed,
            "block": seed % 4,
            "run": f"results/cpu/n/trap/{arm}/seed_{seed}/eval.csv",
            column: value,
        }
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows).assign(**more)


def around(mean, spread=0.01, seeds=SEEDS):
    """Values evenly spread about their mean, in an order that is not that of the blocks."""
    return mean + spread * np.random.default_rng(0).permutation(np.linspace(-1.0, 1.0, seeds))


def only(rows):
    (row,) = rows
    return row


def verdict(table, **changes):
    return only(claims.judge([claim(**changes)], table))


# The file


def test_the_claims_are_those_of_the_slides_and_of_aem():
    assert {c.source for c in ALL} == {"slides", "AEM v1", "AEM later version"}
    assert len(ALL) >= 40
    by_id = {c.id: c for c in ALL}
    assert by_id["suffix-mask-scores-higher"].published == {
        "grpo": 0.485, "suffix_mask": 0.521, "difference": 0.036
    }  # fmt: skip
    assert by_id["suffix-mask-scores-higher"].test.effect == 0.036
    assert by_id["aem-swe"].published["difference"] == 1.4


def test_a_published_difference_is_the_difference_of_the_published_numbers():
    checked = 0
    for c in ALL:
        if "difference" in c.published:
            low, high, difference = c.published.values()
            assert high - low == pytest.approx(difference), c.id
            checked += 1
    assert checked >= 4


def test_an_effect_is_the_published_difference_of_its_arms():
    checked = 0
    for c in MEASURED:
        test = c.test
        if test.rule == "difference" and {test.arm, test.reference} <= set(c.published):
            expected = c.published[test.arm] - c.published[test.reference]
            assert test.effect == pytest.approx(expected, abs=1e-9), c.id
            checked += 1
    assert checked >= 8


def test_arms_are_named_after_methods_of_the_library():
    known = {*TURN_WEIGHTS, *BASES, *OBJECTIVES}
    for c in MEASURED:
        for arm in filter(None, (c.test.arm, c.test.reference)):
            assert arm in known or all(part in known for part in arm.split("_", 1)), (c.id, arm)


def test_what_cannot_be_tested_has_a_reason():
    for c in ALL:
        if c.test.KIND == "not_testable":
            assert len(c.test.reason.split()) >= 5, c.id


def _first_claim():
    return yaml.safe_load(claims.CLAIMS.read_text(encoding="utf-8"))["claims"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantity": {"exact_mach": 1.0}}, "exact_mach"),
        ({"quantity": {}}, "nothing"),
        ({"reference": "grpo"}, "reference"),
        ({"inside": [None, None]}, "inside"),
        ({"inside": [1.0, 0.0]}, "holds no value"),
        ({"inside": [0.0]}, "inside"),
        ({"effect": -1.0}, "effect"),
        ({"tasks": []}, "tasks"),
        ({"seeds": 1}, "seeds"),
        ({"rule": "median"}, "median"),
        ({"seeds": None}, "seeds"),
        ({"arms": "grpo"}, "arms"),
    ],
)
def test_a_faulty_measurement_is_refused_with_file_and_value(change, message, tmp_path):
    documents = _first_claim()
    document = next(c for c in documents if c["id"] == "shift-happens")
    document["test"] |= change
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": [document]}), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        claims.read_claims(path)
    assert "claims.yaml" in str(error.value)


def test_a_claim_given_twice_or_without_a_reason_is_refused(tmp_path):
    path, documents = tmp_path / "claims.yaml", _first_claim()
    path.write_text(yaml.safe_dump({"claims": documents[:1] * 2}), encoding="utf-8")
    with pytest.raises(ValueError, match="twice"):
        claims.read_claims(path)
    documents[0]["test"] = {"kind": "not_testable", "reason": " "}
    path.write_text(yaml.safe_dump({"claims": documents[:1]}), encoding="utf-8")
    with pytest.raises(ValueError, match="reason is empty"):
        claims.read_claims(path)


# Verdicts


def test_a_clear_gain_is_reproduced():
    row = verdict(outcomes(around(0.8), around(0.7)[::-1]))
    assert row["verdict"] == REPRODUCED
    assert row["ours"] == pytest.approx(0.1, abs=0.01)
    assert 0 < row["low"] < row["ours"] < row["high"]
    assert (row["seeds"], row["missing"], row["level"], row["unit"]) == (16, 0, 0.95, "share")
    assert row["published"] == "gain 0.1"
    assert row["source"] == "slides, results"
    assert row["run"] == (
        "results/cpu/n/trap/grpo/seed_*/eval.csv results/cpu/n/trap/suffix_mask/seed_*/eval.csv"
    )
    assert tuple(row) == claims.ROW


def test_a_clear_loss_contradicts_the_claim():
    row = verdict(outcomes(around(0.6), around(0.7)[::-1]))
    assert row["verdict"] == NOT_REPRODUCED
    assert row["reason"].startswith("contradicted")


def test_a_narrow_interval_about_zero_rules_the_published_effect_out():
    table = outcomes(around(0.7), around(0.7)[::-1])
    row = verdict(table)
    assert row["verdict"] == NOT_REPRODUCED
    assert "0.1 is ruled out" in row["reason"]
    assert row["low"] <= 0 <= row["high"] < 0.1
    unknown = verdict(table, effect=None)
    assert unknown["verdict"] == NOT_TESTABLE
    assert unknown["reason"].startswith("undecided at 16 seeds")


def test_a_wide_interval_is_undecided_and_says_at_how_many_seeds():
    row = verdict(outcomes(around(0.75, 0.3), around(0.7, 0.3)[::-1]))
    assert row["low"] < 0 < 0.1 < row["high"]
    assert (row["verdict"], row["reason"][:21]) == (NOT_TESTABLE, "undecided at 16 seeds")


def test_fewer_seeds_than_stated_are_never_a_verdict():
    clear = outcomes(around(0.8, seeds=15), around(0.7, seeds=15)[::-1])
    row = verdict(clear)
    assert row["verdict"] == NOT_TESTABLE
    assert row["reason"] == "15 seeds have this number, 16 are needed"
    assert verdict(clear, seeds=15)["verdict"] == REPRODUCED
    one_arm = outcomes(around(0.8), around(0.7)[:9])
    assert (verdict(one_arm)["verdict"], verdict(one_arm)["seeds"]) == (NOT_TESTABLE, 9)


def test_missing_numbers_are_counted_and_are_not_zeros():
    arm = around(0.8)
    arm[3] = NAN
    row = verdict(outcomes(arm, around(0.7)[::-1]))
    assert (row["verdict"], row["seeds"], row["missing"]) == (NOT_TESTABLE, 15, 1)
    nothing = verdict(outcomes([NAN] * SEEDS, around(-5.0)))
    assert (nothing["verdict"], nothing["reason"]) == (NOT_TESTABLE, "no run has this number")
    assert math.isnan(nothing["ours"])


@pytest.mark.parametrize(
    ("rule", "column"),
    [("mean", "turns"), ("difference", "turns"), ("sd_ratio", "turns"),
     ("share", "collapsed"), ("share_difference", "collapsed")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["no rows", "all missing"])
def test_no_rule_makes_a_verdict_of_nothing(rule, column, kind):
    alone = rule in ("mean", "share")
    values = [] if kind == "no rows" else [NAN] * SEEDS
    table = outcomes(values, values, column=column)
    if kind == "no rows":
        table = outcomes([1.0], [1.0], column=column).iloc[:0]
    for inside in ((-1e9, None), (None, 1e9)):
        row = verdict(
            table, rule=rule, quantity={column: 1.0}, inside=inside, effect=None,
            reference=None if alone else "grpo",
        )  # fmt: skip
        assert row["verdict"] == NOT_TESTABLE, row


def test_equal_runs_have_a_ratio_of_spreads_without_an_interval():
    row = verdict(
        outcomes([0.5] * SEEDS, [0.5] * SEEDS), rule="sd_ratio", inside=(1.0, None), effect=None
    )
    assert (row["verdict"], row["reason"]) == (NOT_TESTABLE, "no interval at 16 seeds")


def test_a_wider_spread_is_found():
    generator = np.random.default_rng(0)
    wide, narrow = 0.5 + 0.2 * generator.normal(size=40), 0.5 + 0.02 * generator.normal(size=40)
    row = verdict(outcomes(wide, narrow), rule="sd_ratio", inside=(1.0, None), effect=None)
    assert row["verdict"] == REPRODUCED
    assert row["low"] > 1


def test_fewer_collapses_are_found_within_blocks():
    often = [1, 1, 0, 1, 1, 1, 1, 0] * 5
    never = [0] * 40
    changes = {
        "rule": "share_difference",
        "quantity": {"collapsed": 1.0},
        "inside": (None, 0.0),
        "effect": None,
        "seeds": 40,
    }
    row = verdict(outcomes(never, often, column="collapsed"), **changes)
    assert (row["verdict"], row["ours"], row["seeds"]) == (REPRODUCED, -0.75, 40)
    worse = verdict(outcomes(often, never, column="collapsed"), **changes)
    assert worse["verdict"] == NOT_REPRODUCED
    same = verdict(outcomes(often, often, column="collapsed"), **changes)
    assert same["reason"].startswith("undecided at 40 seeds")


def test_what_never_happened_is_not_said_to_happen():
    changes = {
        "rule": "share",
        "quantity": {"shifted": 1.0},
        "reference": None,
        "inside": (0.0, None),
        "effect": None,
    }
    row = verdict(outcomes([0] * SEEDS, column="shifted"), **changes)
    assert row["verdict"] == NOT_TESTABLE
    once = verdict(outcomes([1, *[0] * 15], column="shifted"), **changes)
    assert once["verdict"] == REPRODUCED


def test_equality_is_a_region_and_not_the_absence_of_a_difference():
    near = outcomes(around(0.7), around(0.7)[::-1])
    region = {"inside": (-0.02, 0.02), "effect": 0.0}
    assert verdict(near, **region)["verdict"] == REPRODUCED
    vague = outcomes(around(0.7, 0.3), around(0.7, 0.3)[::-1])
    assert verdict(vague, **region)["verdict"] == NOT_TESTABLE
    apart = outcomes(around(0.8), around(0.7)[::-1])
    assert verdict(apart, **region)["verdict"] == NOT_REPRODUCED


def test_a_quantity_is_a_sum_of_columns_and_missing_where_one_is():
    table = outcomes(around(0.7), column="turns_after")
    table["turns_before"] = table["turns_after"] - 2.0
    settings = {
        "rule": "mean",
        "reference": None,
        "quantity": {"turns_after": 1.0, "turns_before": -1.0},
        "effect": None,
    }
    row = verdict(table, **settings)
    assert (row["verdict"], row["ours"]) == (REPRODUCED, pytest.approx(2.0))
    table.loc[0, "turns_before"] = NAN
    assert verdict(table, **settings)["seeds"] == 15


def test_only_shifted_runs_count_where_the_claim_is_about_them():
    table = outcomes(around(0.7), shifted=[1.0] * 8 + [0.0] * 7 + [NAN])
    row = verdict(table, rule="mean", reference=None, among="shifted", effect=None, seeds=8)
    assert (row["seeds"], row["missing"]) == (8, 0)
    assert row["ours"] == pytest.approx(np.mean(around(0.7)[:8]))


def test_a_column_that_was_not_recorded_is_named():
    row = verdict(outcomes(around(0.8), around(0.7)), quantity={"grounded": 1.0})
    assert (row["verdict"], row["reason"]) == (NOT_TESTABLE, "the outcomes have no column grounded")


def test_a_table_without_keys_or_with_a_run_twice_is_refused():
    table = outcomes(around(0.8), around(0.7))
    with pytest.raises(ValueError, match="no column 'block'"):
        claims.judge([claim()], table.drop(columns="block"))
    with pytest.raises(ValueError, match="trap/suffix_mask/seed_3 is in the table twice"):
        claims.judge([claim()], pd.concat([table, table[table["seed"] == 3]]))


def test_each_task_is_judged_by_itself():
    table = outcomes(around(0.8), around(0.7)[::-1])
    rows = claims.judge([claim(tasks=("trap", "other"))], table)
    assert [(row["task"], row["verdict"]) for row in rows] == [
        ("trap", REPRODUCED), ("other", NOT_TESTABLE)
    ]  # fmt: skip


def test_every_claim_of_the_file_gets_a_row_from_an_empty_table():
    columns = [*claims.records.KEYS, *claims.QUANTITIES]
    rows = claims.judge(ALL, pd.DataFrame({name: [] for name in columns}))
    assert {row["verdict"] for row in rows} == {NOT_TESTABLE}
    assert {row["claim"] for row in rows} == {c.id for c in ALL}
    assert all(row["reason"] for row in rows)


ends = st.floats(-2, 2) | st.just(NAN) | st.sampled_from([-math.inf, math.inf])


@given(ends, ends, ends, st.integers(0, 40), st.sampled_from([(0.0, None), (None, 0.0), (-1, 1)]))
def test_a_verdict_needs_an_interval_and_the_seeds(value, low, high, seeds, inside):
    test = measurement(inside=inside, effect=None)
    found, reason = claims.decide(Measured(value, low, high, seeds, 0, ""), test)
    assert reason
    if seeds < SEEDS or any(map(math.isnan, (value, low, high))):
        assert found == NOT_TESTABLE
    if found == REPRODUCED:
        assert inside[0] is None or low > inside[0]
        assert inside[1] is None or high < inside[1]


def test_the_judgement_depends_on_the_table_alone():
    table = outcomes(around(0.8), around(0.7)[::-1])
    shuffled = table.sample(frac=1, random_state=1)
    assert claims.judge([claim()], table) == claims.judge([claim()], shuffled)


def test_measuring_reports_its_numbers():
    found = measure(
        measurement(), "trap", outcomes(around(0.8), around(0.7)[::-1]), level=0.9, seed=0
    )
    wide = measure(
        measurement(), "trap", outcomes(around(0.8), around(0.7)[::-1]), level=0.99, seed=0
    )
    assert wide.low < found.low < found.value < found.high < wide.high
    assert dataclasses.asdict(found)["seeds"] == SEEDS
