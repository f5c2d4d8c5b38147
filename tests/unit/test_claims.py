"""Claims: the file is whole, and every verdict follows from the interval, never from nothing."""

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from turncredit import claims, params, paths
from turncredit.claims import NOT_REPRODUCED, NOT_TESTABLE, REPRODUCED, Claim, Measurement
from turncredit.claims.judge import FEWEST_SEEDS
from turncredit.claims.measure import Measured, columns, measure
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.objectives import OBJECTIVES
from turncredit.plans import methods_path
from turncredit.rollout.strategies import STRATEGIES

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
        "note": "",
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


def test_the_claims_are_those_of_the_slides_of_aem_and_of_the_systems():
    systems = {"AEPO", "CLEANER", "ADRS", "ActGuide-RL"}
    assert {c.source for c in ALL} == {"slides", "AEM v1", "AEM later version"} | systems
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
    known = {*TURN_WEIGHTS, *BASES, *OBJECTIVES, *STRATEGIES, *params.read_yaml(methods_path())}
    for c in MEASURED:
        for arm in filter(None, (c.test.arm, c.test.reference)):
            assert arm in known or all(part in known for part in arm.split("_", 1)), (c.id, arm)


def test_claims_are_tested_where_the_experiments_run_their_arms():
    run = set()
    for path in sorted(paths.params("cpu").glob("[12]*.yaml")):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        for plan in [values, *values.get("further", [])] if "tasks" in values else []:
            for task, variant in itertools.product(plan["tasks"], plan["variants"] or [""]):
                run |= {(f"{task}-{variant}".rstrip("-"), arm) for arm in plan["arms"]}
    for c in MEASURED:
        arms = filter(None, (c.test.arm, c.test.reference))
        for asked in itertools.product(c.test.tasks, arms):
            assert asked in run, (c.id, asked)


def test_household_claims_say_that_they_are_none_on_alfworld_s_games():
    told = [c for c in MEASURED if "household" in c.test.tasks]
    assert len(told) >= 4
    for c in told:
        assert "no result on ALFWorld's own games" in c.test.note, c.id


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
        ({"rule": "median"}, "median"),
        ({"rule": "probe", "among": "shifted"}, "probe"),
        ({"rule": "probe", "quantity": {"turns": 1.0, "shifted": 1.0}}, "one quantity"),
        ({"seeds": 16}, "seeds"),
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


def test_a_claim_about_dapo_says_which_part_of_it_is_here():
    keys = pd.DataFrame({name: [] for name in claims.records.KEYS})
    tables = (keys, keys.assign(**{name: [] for name in QUANTITIES}))
    about = [c for c in ALL if "DAPO" in c.sentence]
    assert len(about) >= 5
    for row in claims.judge(about, tables[0]) + claims.judge(about, tables[1]):
        assert "clip-higher alone" in row["reason"], row["claim"]


def test_what_is_read_off_the_reference_arm_is_compared_with_it():
    """match_share is of GRPO's own end, which GRPO itself reaches before its last step."""
    own_level = [c for c in MEASURED if "match_share" in c.test.quantity]
    assert own_level and all(c.test.reference == "grpo" for c in own_level)
    assert all("is not tested" in c.test.note for c in own_level)


def test_what_the_source_only_assumed_is_not_told_as_its_finding():
    about = [c for c in MEASURED if set(claims.records.DECISIONS) & set(c.test.quantity)]
    assert len(about) == 2
    for c in about:
        assert "did not measure" in c.sentence and "follow" in c.sentence, c.id
        assert "back on the path" in c.test.note and "execution_follows" in c.test.note, c.id


# Every claim of the file can come out in each way, from numbers that a run could have


QUANTITIES = [*claims.QUANTITIES, *(f"probe_{name}_{end}"
              for name in ("pearson", "sign_agreement") for end in ("low", "high"))]  # fmt: skip


def bounds(column):
    """What a run can have: shares in 0 .. 1, a correlation in -1 .. 1, others not negative."""
    if column == "probe_pearson":
        return -1.0, 1.0
    return 0.0, 12.0 if column.startswith("turns") else 1.0


def fabricated(test, arm_values, reference_values):
    """Runs of both arms, 16 seeds of four warm starts, whose quantity is as given, 0 .. 1: from
    the least to the greatest that its columns allow."""
    rows = []
    for arm, shares in ((test.arm, arm_values), (test.reference, reference_values)):
        for seed, share in enumerate(shares if arm else ()):
            row = {"task": test.tasks[0], "arm": arm, "seed": seed, "block": seed % 4, "run": "r"}
            row |= {"shifted": 1.0}
            for column, factor in test.quantity.items():
                low, high = bounds(column)
                row[column] = low + (high - low) * (share if factor > 0 else 1 - share)
            if test.rule == "probe":
                (name,) = test.quantity
                row |= {f"{name}_low": row[name] - 0.1, f"{name}_high": row[name] + 0.1}
            rows.append(row)
    return pd.DataFrame(rows)


FLAGS = {"shifted", "collapsed"}
LOW, HIGH = np.linspace(0.0, 0.002, SEEDS), np.linspace(0.998, 1.0, SEEDS)
MIXED = np.array([0.0, 1.0, 1.0, 0.0] * 2 + [1.0, 0.0, 0.0, 1.0] * 2)
"""In every warm start two of four."""


def clear_tables(test):
    """Runs that speak for the claim, and runs that speak against it."""
    least, greatest = test.inside
    low, high = (np.round(values) if FLAGS & set(test.quantity) else values
                 for values in (LOW, HIGH))  # fmt: skip
    if test.rule == "sd_ratio":
        wide, narrow = 0.5 + 0.4 * np.sin(np.arange(16.0)), 0.5 + 0.01 * np.cos(np.arange(16.0))
        pairs = [(wide, narrow), (narrow, wide)]
    elif None not in (least, greatest):
        pairs = [(low, low[::-1]), (high, low)]
    else:
        pairs = [(high, low), (low, high)] if greatest is None else [(low, high), (high, low)]
    if test.rule == "probe":
        pairs = [(pair[0][-1:], ()) for pair in pairs]
    return [fabricated(test, *pair) for pair in pairs]


def vague_table(test):
    """Runs that are as often on this side of a bound as on that one, in every warm start."""
    bound = next(end for end in test.inside if end is not None)
    if test.rule == "sd_ratio":
        return fabricated(test, *np.random.default_rng(0).uniform(size=(2, SEEDS)))
    if test.rule == "probe":
        (name,) = test.quantity
        ends = {f"{name}_low": bound - 0.7, f"{name}_high": bound + 0.7}
        return fabricated(test, [0.5], ()).assign(**{name: bound}, **ends)
    if test.rule != "mean":
        return fabricated(test, MIXED, 1 - MIXED)
    low, high = (sum(factor * bounds(column)[end == (factor > 0)]
                     for column, factor in test.quantity.items()) for end in (0, 1))  # fmt: skip
    middle = (bound - low) / (high - low)
    return fabricated(test, middle + (2 * MIXED - 1) * min(middle, 1 - middle), ())


@pytest.mark.parametrize("one", MEASURED, ids=lambda c: c.id)
def test_every_claim_can_be_reproduced_contradicted_and_left_open(one):
    one = dataclasses.replace(one, test=dataclasses.replace(one.test, tasks=one.test.tasks[:1]))
    support, oppose = clear_tables(one.test)
    assert only(claims.judge([one], support))["verdict"] == REPRODUCED
    assert only(claims.judge([one], oppose))["verdict"] == NOT_REPRODUCED
    for absent in (support.iloc[:0], support.drop(columns=columns(one.test)[0]),
                   support.assign(**dict.fromkeys(one.test.quantity, NAN))):  # fmt: skip
        assert only(claims.judge([one], absent))["verdict"] == NOT_TESTABLE
    row = only(claims.judge([one], vague_table(one.test)))
    assert row["verdict"] == NOT_TESTABLE and "undecided" in row["reason"], row


def test_four_or_eight_seeds_decide_what_is_clear():
    """Four or eight of four warm starts; one of each tells nothing of a ratio of spreads."""
    for one in MEASURED:
        for table, found in zip(clear_tables(one.test), (REPRODUCED, NOT_REPRODUCED), strict=True):
            if one.test.rule != "probe":
                for seeds in (4, 8) if one.test.rule in ("mean", "difference") else (8,):
                    row = claims.judge([one], table[table["seed"] < seeds])[0]
                    assert row["verdict"] == found, row


def test_the_two_arms_of_the_flat_entropy_are_measured_over_the_same_steps():
    (flat,) = [c for c in ALL if c.id == "suffix-mask-keeps-entropy-flat"]
    own_windows = {n for n in claims.QUANTITIES if n.endswith(("_before", "_after"))}
    compared = [c for c in MEASURED if c.test.reference]
    assert flat in compared and flat.test.rule == "difference"
    for one in compared:
        assert not own_windows & set(one.test.quantity), one.id


def test_a_probe_is_judged_by_the_states_of_the_one_run_that_has_it():
    (pearson,) = [c for c in ALL if c.id == "aem-knows-the-surprisal"]
    table = fabricated(pearson.test, [0.9], ())
    others = table.assign(seed=1, probe_pearson=NAN, probe_pearson_low=NAN, probe_pearson_high=NAN)
    row = only(claims.judge([pearson], pd.concat([table, others])))
    assert (row["ours"], row["low"], row["high"]) == pytest.approx((0.8, 0.7, 0.9))
    assert (row["seeds"], row["missing"], row["verdict"]) == (1, 0, REPRODUCED)
    assert "the states of one policy" in row["reason"]
    twice = only(claims.judge([pearson], pd.concat([table, table.assign(seed=1)])))
    assert (twice["seeds"], twice["verdict"]) == (2, NOT_TESTABLE)


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


def test_fewer_seeds_than_any_verdict_needs_are_none_and_the_interval_says_the_rest():
    three, four = (outcomes(around(0.8, seeds=n), around(0.7, seeds=n)[::-1]) for n in (3, 4))
    row = verdict(three)
    assert row["verdict"] == NOT_TESTABLE
    assert row["reason"] == "seeds with this number: 3, needed: 4"
    assert verdict(four)["verdict"] == REPRODUCED  # a seed of each warm start
    assert verdict(four.assign(block=four["seed"] % 2))["verdict"] == REPRODUCED
    one_arm = outcomes(around(0.8), around(0.7)[:3])
    assert (verdict(one_arm)["verdict"], verdict(one_arm)["seeds"]) == (NOT_TESTABLE, 3)


def test_the_seeds_of_an_ablation_suffice_for_a_clear_difference():
    for seeds in (4, 8):  # one of each warm start, or two
        table = outcomes(around(0.8, seeds=seeds), around(0.7, seeds=seeds)[::-1])
        assert verdict(table)["verdict"] == REPRODUCED
        assert verdict(table, inside=(None, 0.0), effect=None)["verdict"] == NOT_REPRODUCED


def test_missing_numbers_are_counted_and_are_not_zeros():
    arm = around(0.8)
    arm[3] = NAN
    row = verdict(outcomes(arm, around(0.7)[::-1]))
    assert (row["verdict"], row["seeds"], row["missing"]) == (REPRODUCED, 15, 1)
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


def test_arms_that_are_equal_in_every_run_contradict_no_difference_but_rule_a_published_one_out():
    table = outcomes([0.0] * SEEDS, [0.0] * SEEDS)
    for inside in ((0.0, None), (None, 0.0)):
        row = verdict(table, inside=inside, effect=None)
        assert (row["low"], row["high"], row["verdict"]) == (0.0, 0.0, NOT_TESTABLE)
        assert row["reason"].startswith("undecided")
    assert "ruled out" in verdict(table)["reason"]


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
    }
    row = verdict(outcomes(never, often, column="collapsed"), **changes)
    assert (row["verdict"], row["ours"], row["seeds"]) == (REPRODUCED, -0.75, 40)
    worse = verdict(outcomes(often, never, column="collapsed"), **changes)
    assert worse["verdict"] == NOT_REPRODUCED
    same = verdict(outcomes(often, often, column="collapsed"), **changes)
    assert same["reason"].startswith("undecided at 40 seeds")


def test_what_hardly_ever_happens_is_not_said_to_happen():
    changes = {
        "rule": "share",
        "quantity": {"shifted": 1.0},
        "reference": None,
        "inside": (0.5, None),
        "effect": None,
    }
    expected = {0: NOT_REPRODUCED, 2: NOT_REPRODUCED, 8: NOT_TESTABLE, 16: REPRODUCED}
    for events, found in expected.items():
        values = np.random.default_rng(0).permutation([1] * events + [0] * (16 - events))
        assert verdict(outcomes(values, column="shifted"), **changes)["verdict"] == found, events


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
    row = verdict(table, rule="mean", reference=None, among="shifted", effect=None)
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
    if seeds < FEWEST_SEEDS or any(map(math.isnan, (value, low, high))):
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
