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
from turncredit.claims import (
    DIRECTION_ONLY,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    Claim,
    Measurement,
)
from turncredit.claims.judge import FEWEST_SEEDS, FEWEST_STATES
from turncredit.claims.measure import Measured, columns, measure, value_range
from turncredit.claims.records import quantity_range
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
    known = {
        "untrained",
        *TURN_WEIGHTS,
        *BASES,
        *OBJECTIVES,
        *STRATEGIES,
        *params.read_yaml(methods_path()),
    }
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
        for task in c.test.tasks if c.test.rule != "probe" else ():
            assert set(claims.arms_of(c.test, task)) <= run, c.id


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
        ({"reference_task": "trap"}, "reference_task"),
        ({"own_below": 0.5}, "own_below"),
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


QUANTITIES = [*claims.QUANTITIES, "probe_states", *(f"{name}_{end}"
              for name in claims.PROBED for end in ("low", "high"))]  # fmt: skip


def bounds(column):
    """What a run can have, and where that has no end, what it may well have."""
    least, greatest = quantity_range(column)
    usual = 60.0 if column == "shift_length" else 12.0 if column.startswith("turns") else 1.0
    return max(least, -1.0), min(greatest, usual)


def ends_of(test):
    """Least and greatest value of the quantity from such columns."""
    both = [sorted(factor * end for end in bounds(name)) for name, factor in test.quantity.items()]
    return tuple(map(sum, zip(*both, strict=True)))


def fabricated(test, arm_values, reference_values):
    """Runs of both arms, 16 seeds of four warm starts, whose quantity is as given, 0 .. 1: from
    the least to the greatest that its columns allow."""
    rows = []
    asked = claims.arms_of(test, test.tasks[0])
    for (task, arm), shares in zip(asked, (arm_values, reference_values), strict=False):
        for seed, share in enumerate(shares):
            row = {"task": task, "arm": arm, "seed": seed, "block": seed % 4, "run": "r"}
            row |= {"shifted": 1.0}
            for column, factor in test.quantity.items():
                low, high = bounds(column)
                row[column] = low + (high - low) * (share if factor > 0 else 1 - share)
            if test.rule == "probe":
                (name,) = test.quantity
                row |= {f"{name}_low": row[name] - 0.1, f"{name}_high": row[name] + 0.1}
                row |= {"probe_states": FEWEST_STATES}
            rows.append(row)
    return pd.DataFrame(rows)


FLAGS = {"shifted", "collapsed", "unstable", "reward_lost"}
LOW, HIGH = np.linspace(0.0, 0.002, SEEDS), np.linspace(0.998, 1.0, SEEDS)
MIXED = np.array([0.0, 1.0, 1.0, 0.0] * 2 + [1.0, 0.0, 0.0, 1.0] * 2)
"""In every warm start two of four."""
JITTER = 0.0005 * np.array([1, -1, 2, -2, -1, 1, -2, 2] * 2)
"""Nothing in the mean over the first four, eight or all seeds."""


def extreme_tables(test):
    """Runs as far as can be on the side of the claim, and on the other."""
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


def clear_tables(test):
    """Runs that speak for the claim, at the published size where there is one, and against it."""
    support, oppose = extreme_tables(test)
    if test.effect is None or test.rule == "share":
        return support, oppose
    least, greatest = ends_of(test)
    if test.rule == "difference":
        start = 0.25 if test.effect > 0 else 0.75
        arm = start + test.effect / (greatest - least) + JITTER
        return fabricated(test, arm, np.full(SEEDS, start)), oppose
    arm = (test.effect - least) / (greatest - least) + JITTER
    return fabricated(test, arm[:1] if test.rule == "probe" else arm, ()), oppose


def vague_table(test):
    """Runs that are as often on this side of a bound as on that one, in every warm start."""
    bound = next(end for end in test.inside if end is not None)
    if test.rule == "sd_ratio":
        return fabricated(test, *np.random.default_rng(0).uniform(size=(2, SEEDS)))
    if test.rule == "probe":
        (name,) = test.quantity
        ends = {f"{name}_low": bound - 0.7, f"{name}_high": bound + 0.7}
        return fabricated(test, [0.5], ()).assign(**{name: bound}, **ends)
    if test.rule == "share" and test.effect is not None:
        return fabricated(test, np.full(4, test.effect), ())  # as published, of few runs
    if test.rule != "mean":
        seeds = slice(None if test.effect is None else 4)
        return fabricated(test, MIXED[seeds], 1 - MIXED[seeds])
    low, high = ends_of(test)
    middle = (bound - low) / (high - low)
    values = middle + (2 * MIXED - 1) * min(middle, 1 - middle)
    return fabricated(test, values if test.effect is None else values[:4], ())


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


def test_a_direction_without_the_published_size_is_called_that():
    """Every claim with a size: what lies wholly on its side and excludes the size is no success."""
    sized = [c for c in MEASURED if c.test.effect is not None and None in c.test.inside]
    assert len(sized) >= 15
    for one in sized:
        test = dataclasses.replace(one.test, tasks=one.test.tasks[:1])
        support, _ = extreme_tables(test)
        if test.rule == "share":
            continue  # as published is as far as can be
        row = only(claims.judge([dataclasses.replace(one, test=test)], support))
        assert row["verdict"] == DIRECTION_ONLY, row
        assert "excludes the published" in row["reason"]


@given(
    st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1),
    st.sampled_from(["difference", "probe"]), st.integers(FEWEST_SEEDS, 40),
)  # fmt: skip
def test_what_is_reproduced_never_excludes_the_published_size(value, a, b, effect, rule, seeds):
    probed = {"rule": "probe", "quantity": {"probe_pearson": 1.0}, "reference": None}
    test = measurement(effect=effect, **(probed if rule == "probe" else {}))
    found = Measured(value, value - a, value + b, seeds, 0, "", states=FEWEST_STATES)
    verdict, _ = claims.decide(found, test)
    holds = found.low <= effect <= found.high
    assert (verdict == REPRODUCED) == (found.low > 0 and holds)
    assert (verdict == DIRECTION_ONLY) == (found.low > 0 and not holds)


def test_trained_policies_are_judged_over_seeds_and_only_an_untrained_one_over_states():
    over_states = [c for c in MEASURED if c.test.rule == "probe"]
    assert {c.test.arm for c in over_states} == {"untrained"}
    probed = [c for c in MEASURED if set(claims.PROBED) & set(c.test.quantity)]
    assert len(probed) == 4
    for one in [c for c in probed if c not in over_states]:
        row = claims.judge([one], fabricated(one.test, np.full(3, 0.9), ()))[0]
        assert (row["verdict"], row["seeds"]) == (NOT_TESTABLE, 3)


def test_a_probe_is_judged_by_as_many_states_as_the_published_one_has():
    (pearson,) = [c for c in ALL if c.id == "language-model-aem-knows-the-surprisal"]
    assert pearson.published["states"] == FEWEST_STATES
    table = fabricated(pearson.test, [0.8], ())
    row = only(claims.judge([pearson], table))
    assert (row["ours"], row["low"], row["high"]) == pytest.approx((0.6, 0.5, 0.7))
    assert (row["seeds"], row["missing"], row["verdict"]) == (1, 0, REPRODUCED)
    assert f"; over {FEWEST_STATES} states; " in row["reason"]
    fewer = only(claims.judge([pearson], table.assign(probe_states=FEWEST_STATES - 1)))
    assert (fewer["verdict"], fewer["reason"][:26]) == (NOT_TESTABLE, "states with this number: 6")
    twice = only(claims.judge([pearson], pd.concat([table, table.assign(seed=1)])))
    assert (twice["seeds"], twice["verdict"]) == (2, NOT_TESTABLE)


def test_every_claim_of_prevention_asks_for_the_share_of_its_own_runs():
    about = [c for c in MEASURED if "prevent" in c.id or "does not shift" in c.sentence]
    assert len(about) >= 3
    assert all(c.test.own_below is not None for c in about)


PREVENTS = {
    "rule": "share_difference", "quantity": {"shifted": 1.0}, "inside": (None, 0.0),
    "effect": None, "own_below": 0.5,
}  # fmt: skip


def test_a_method_under_which_it_happens_in_every_run_does_not_prevent_it():
    always, never = [1] * 8, [0] * 8
    row = verdict(outcomes(always, always, column="shifted"), **PREVENTS)
    assert (row["verdict"], row["ours"]) == (NOT_REPRODUCED, 0.0)
    assert "suffix_mask's own runs, 1 [0.676, 1], is not below 0.5" in row["reason"]
    assert verdict(outcomes(never, always, column="shifted"), **PREVENTS)["verdict"] == REPRODUCED
    # Rarer than under the baseline, and as often as not: half prevented is not prevented.
    seldom = verdict(outcomes([1, 0, 0, 1] * 8, [1] * 32, column="shifted"), **PREVENTS)
    assert (seldom["verdict"], seldom["high"] < 0) == (NOT_TESTABLE, True)
    assert "is not clearly below 0.5" in seldom["reason"]
    # Nothing to prevent is no success.
    assert verdict(outcomes(never, never, column="shifted"), **PREVENTS)["verdict"] == NOT_TESTABLE


def test_an_arm_can_be_compared_with_runs_on_another_task():
    arm = outcomes(around(9.0), column="turns")
    other = outcomes(around(4.0), column="turns").assign(task="short", arm="grpo")
    row = verdict(
        pd.concat([arm, other]), quantity={"turns": 1.0}, effect=5.0, reference_task="short"
    )
    assert (row["verdict"], row["ours"]) == (REPRODUCED, pytest.approx(5.0))
    assert verdict(arm, quantity={"turns": 1.0}, reference_task="short")["seeds"] == 0


def test_the_rule_is_told_in_one_place_and_names_every_verdict():
    for word in claims.VERDICTS:
        assert word in claims.RULE.lower()
    assert f"{FEWEST_SEEDS} seeds" in claims.RULE and f"{FEWEST_STATES} of them" in claims.RULE
    text = (paths.repository() / "docs" / "how-to.md").read_text(encoding="utf-8")
    assert " ".join(claims.RULE.split()) in " ".join(text.split())


@pytest.mark.parametrize("one", MEASURED, ids=lambda c: c.id)
def test_no_interval_goes_beyond_what_the_number_can_be(one):
    """Few runs at the ends of what they can have, whose Student's interval is far wider."""
    test = dataclasses.replace(one.test, tasks=one.test.tasks[:1])
    for seeds in (2, 3, 4):
        values = np.array([0.0, 1.0, 1.0, 0.9])[:seeds]
        values = values.round() if FLAGS & set(test.quantity) else values
        table = fabricated(test, values, 1 - values)
        if test.rule == "probe":
            continue  # made and bounded by the probe
        found = measure(test, test.tasks[0], table, level=0.95, seed=0)
        least, greatest = value_range(test)
        assert not found.low < least and not found.high > greatest
        if seeds < 3 and test.rule in ("mean", "difference"):
            assert math.isnan(found.low) and math.isnan(found.high)


def test_a_cut_interval_says_so():
    table = outcomes([0.0, 1.0, 1.0, 0.9], column="search_first")
    row = verdict(table, rule="mean", quantity={"search_first": 1.0}, reference=None, effect=None)
    assert (row["low"], row["high"]) == (0.0, 1.0)
    assert row["reason"].endswith("; the interval is cut to what the number can be, 0 to 1")


def test_shares_are_known_for_what_they_are():
    """A column that the tests' runs, the rates of the loop and the evaluation bound by 0 and 1."""
    for name in ("grounded", "search_first", "pass_8", "high_in_rows", "match_share"):
        assert quantity_range(name) == (0.0, 1.0)
    for c in MEASURED:
        if c.unit.startswith("share of") and len(c.test.quantity) == 1:
            assert quantity_range(next(iter(c.test.quantity))) == (0.0, 1.0), c.id


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
    slightly = verdict(outcomes(around(0.71), around(0.7)[::-1]), **region)
    assert (slightly["verdict"], slightly["low"] > 0) == (REPRODUCED, True)
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
