"""Tables of finished probes: hand-made responses, bins that divide, and k chosen elsewhere."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from turncredit.credit.aem import relative_surprisals
from turncredit.environments.toy_tree import exact, search_or_guess
from turncredit.probe import (
    PROXIES,
    Probed,
    agreement_table,
    best_proxy,
    choice_rows,
    disagreement_rows,
    exact_proxy_table,
    held_out,
    measure,
    over_seeds,
    proxy_table,
    random_tree_turns,
    response_table,
    sample_states,
    trained_logits,
)
from turncredit.probe.decomposition import STEPS, disagreement
from turncredit.probe.exact import all_tree_turns
from turncredit.probe.tables import LENGTH_BINS
from turncredit.probe.trained_trees import MOMENTS
from turncredit.records import Trajectory, Turn
from turncredit.stats import t_interval

TREE = search_or_guess()
BINS = {"a": "plain", "b": "hard", "c": "plain", "d": "hard"}


def said(surprisal: float, entropy: float, tokens: int = 1) -> Turn:
    each = (-surprisal / tokens,) * tokens
    return Turn((7,) * tokens, each, (entropy,) * tokens, (), "search")


def probed(step: int = 0, seed: int = 0, questions: str = "abcd") -> Probed:
    """Groups of two trajectories of two turns, four fresh responses in each of twelve states."""
    stream = np.random.default_rng(seed)

    def turn() -> Turn:
        return said(*stream.uniform(0.1, 3.0, 2).tolist(), tokens=int(stream.integers(1, 7)))

    played = [
        Trajectory(name, (1, number), (turn(), turn()), 0.0, False, "answer")
        for number, name in enumerate(questions)
        for _ in range(2)
    ]
    states = sample_states(played, 3 * len(questions), seed=seed, step=step)
    fresh = [[turn() for _ in range(4)] for _ in states]
    return Probed(step, played, states, measure(fresh), 2)


def test_rows_of_one_state_by_hand():
    """A group of entropies .2 and 1: alpha(.2) = 2 / (1 + 1/e).  Fresh S 1 and 3, recorded 2.5."""
    played = [
        Trajectory("a", (1,), (said(2.5, 0.2),), 0.0, False, "answer"),
        Trajectory("a", (1,), (said(1.0, 1.0),), 0.0, False, "answer"),
    ]
    (state,) = sample_states(played[:1], 1, seed=0, step=9)
    fresh = measure([[said(1.0, 0.2), said(3.0, 1.0)]])
    rows = response_table([Probed(9, played, [state], fresh, 2)], min_spread=0.1)
    low, high = (2 * w / (1 + math.exp(-1)) - 1 for w in (1.0, math.exp(-1)))
    assert [row["response"] for row in rows] == [-1, 0, 1]
    assert [row["target"] for row in rows] == pytest.approx([-0.5, 1.0, -1.0])
    # the second fresh response has the entropy of the other member: no spread, silent
    assert [row["signal"] for row in rows] == pytest.approx([low, low, 0.0], abs=1e-6)
    assert low > 0 > high
    assert {(row["step"], row["turn"], row["prefix_tokens"]) for row in rows} == {(9, 0, 1)}


def test_every_division_divides_the_responses():
    rows = response_table([probed(0), probed(5, seed=1)], min_spread=0.1)
    table = pd.DataFrame(agreement_table(rows, BINS, turns_apart=1))
    one = table[(table["measure"] == "sign_agreement") & (table["silent"] == "half")]
    assert set(one["by"]) == {"all", "step", "turn", "difficulty", "tokens"}
    for kind, pairs in (("recorded", 24), ("fresh", 96)):
        sums = one[one["responses"] == kind].groupby("by")["pairs"].sum()
        assert (sums == pairs).all()
    assert list(one[one["by"] == "turn"]["bin"].unique()) == ["0", "1 or later"]
    assert list(one[one["by"] == "step"]["bin"].unique()) == ["0", "5"]
    for _, part in table.groupby(["responses", "by", "bin"], sort=False):
        assert list(part["measure"]) == ["sign_agreement", "pearson", "spearman", "sign_agreement"]


def test_the_numbers_of_a_bin_are_those_of_its_rows():
    rows = response_table([probed(0), probed(5, seed=1)], min_spread=0.1)
    table = pd.DataFrame(agreement_table(rows, BINS))
    plain = pd.DataFrame(rows)
    fresh = plain[plain["response"] >= 0]
    low, high = LENGTH_BINS[1]
    chosen = {
        ("step", "5"): fresh[fresh["step"] == 5],
        ("difficulty", "hard"): fresh[fresh["question_id"].isin(["b", "d"])],
        ("tokens", f"{low} to {high}"): fresh[fresh["tokens"].between(low, high)],
    }
    for (by, name), part in chosen.items():
        found = table[
            (table["responses"] == "fresh") & (table["by"] == by) & (table["bin"] == name)
        ].set_index(["measure", "silent"])["value"]
        acting = part[part["signal"] != 0]
        right = (np.sign(acting["signal"]) == np.sign(acting["target"])).mean()
        assert found["sign_agreement", "exclude"] == pytest.approx(right)
        silent = (part["signal"] == 0).mean()
        assert found["sign_agreement", "half"] == pytest.approx(right * (1 - silent) + silent / 2)
        assert found["pearson", ""] == pytest.approx(part["signal"].corr(part["target"]))


def test_a_silent_coefficient_shows_in_both_treatments():
    rows = response_table([probed(0)], min_spread=99.0)
    table = pd.DataFrame(agreement_table(rows, BINS))
    own = table[(table["responses"] == "recorded") & (table["by"] == "all")]
    half, left_out = (own[own["silent"] == silent].iloc[0] for silent in ("half", "exclude"))
    assert half["value"] == 0.5
    assert math.isnan(left_out["value"])
    assert half["silent_pairs"] == left_out["silent_pairs"] == 12


def test_proxies_are_judged_on_questions_that_did_not_choose_k():
    """The fitted half would choose k = 1 or 4 as it likes; the judged half is the same for all."""
    probes = [probed(0), probed(5, seed=1)]
    table = pd.DataFrame(proxy_table(probes, ks=(1, 4), seed=3))
    assert list(table["proxy"].unique()) == list(PROXIES)
    half = table[table["silent"] == "half"].set_index("proxy")
    assert half["pairs"].nunique() == 1
    assert half.loc["first_k", "options"] in ("k=1", "k=4")
    assert set(half.drop("first_k")["options"]) == {""}
    # which questions: twice the states of two of the four
    assert 0 < half["pairs"].iloc[0] < 24


def test_exact_proxies_on_listed_trees():
    fitting, judging = (
        random_tree_turns(TREE, seeds, groups=2, group_size=4)
        for seeds in (range(50, 53), range(6))
    )
    table = pd.DataFrame(exact_proxy_table(fitting, judging))
    half = table[table["silent"] == "half"].set_index("proxy")
    sizes = [int((turns.batch.turn_lengths() > 0).sum()) for turns in judging]
    assert set(half["pairs"]) == {sum(sizes)}
    for winner in ("corrected", "control_variate", "martingale"):
        assert half.loc[winner, "value"] > half.loc["published", "value"] + 0.2


def test_the_correction_loses_nothing_of_its_estimate_of_the_sign():
    """`aem_corrected` agrees wherever it acts as its own D does: sign-exact calibration."""
    for turns in random_tree_turns(TREE, range(4), groups=2, group_size=4):
        values = PROXIES["corrected"](turns.batch)
        relative, real = relative_surprisals(turns.batch)
        acting = real & (values.nan_to_num(0.0) != 0)
        assert acting.any()
        assert torch.equal(values[acting].sign(), relative[acting].sign())


# --- trees along exact training


def test_training_climbs_the_exact_value():
    stages = trained_logits(TREE, [0, 5, 50], seed=1, rate=1.0)
    start = TREE.names.index(TREE.start)
    values = [float(exact.values(TREE, logits).states[start]) for logits in stages]
    assert values == sorted(values) and values[-1] > values[0] + 0.05
    first = trained_logits(TREE, [0], seed=1, rate=9.0)[0]
    assert torch.equal(stages[0], first)
    assert not torch.equal(first, trained_logits(TREE, [0], seed=2, rate=9.0)[0])


def test_disagreement_rows_are_the_decomposition_of_each_stage():
    rows = disagreement_rows(TREE, [0, 4], seeds=[3], rate=1.0, group_size=2)
    assert [(row["seed"], row["step"]) for row in rows] == [(3, 0), (3, 4)]
    stages = trained_logits(TREE, [0, 4], seed=3, rate=1.0)
    for row, logits in zip(rows, stages, strict=True):
        expected = disagreement(all_tree_turns(TREE, logits, group_size=2))
        assert {name: row[name] for name in STEPS} == expected
        assert set(MOMENTS) < set(row)
        # the mean surprisal of the visited states is their exact entropy
        visits = exact.visitation(TREE, logits).sum(0)
        entropies = exact.response_entropies(TREE, logits)
        assert row["entropy"] == pytest.approx(float(visits @ entropies / visits.sum()))


# --- a proxy is chosen on some states and judged on others


def judged(**shares: float) -> list[dict]:
    """Rows of a table of proxies; every other measure, and silences left out, would mislead."""
    found = []
    for proxy, share in shares.items():
        place = {"proxy": proxy, "options": "", "low": share - 0.1, "high": share + 0.1, "pairs": 9}
        found += [
            place | {"measure": "sign_agreement", "silent": "half", "value": share},
            place | {"measure": "sign_agreement", "silent": "exclude", "value": 1 - share},
            place | {"measure": "pearson", "silent": "", "value": 1 - share},
        ]
    return found


def test_the_highest_share_with_silences_counted_half_wins_and_the_first_of_a_tie():
    assert best_proxy(judged(published=0.5, corrected=0.8, martingale=0.9)) == "martingale"
    assert best_proxy(judged(published=0.5, martingale=0.9, corrected=0.9)) == "martingale"
    assert best_proxy(judged(published=math.nan, corrected=0.2)) == "corrected"


@pytest.mark.parametrize("rows", [[], judged(published=math.nan)])
def test_nothing_is_chosen_from_nothing(rows):
    with pytest.raises(ValueError, match=rf"none of {len(rows)} rows"):
        best_proxy(rows)


def test_the_winner_is_judged_where_it_was_not_chosen():
    """`corrected` wins on the fitting states and loses on the others: the loss is what is said."""
    fitting = {"trees": judged(published=0.5, corrected=0.9)}
    others = {"trees": judged(published=0.7, corrected=0.6)}
    (row,) = choice_rows(fitting, others)
    assert row == {
        "world": "trees", "proxy": "corrected", "fitted": 0.9, "options": "", "pairs": 9,
        "value": 0.6, "low": pytest.approx(0.5), "high": pytest.approx(0.7),
        "published": 0.7, "published_low": pytest.approx(0.6), "published_high": pytest.approx(0.8),
    }  # fmt: skip


def test_both_parts_of_the_states_are_judged_by_one_k_and_share_none():
    probes = [probed(step=0, seed=1), probed(step=5, seed=2)]
    parts = {name: proxy_table(probes, judged_on=name) for name in ("fitting", "held_out")}
    assert parts["held_out"] == proxy_table(probes)
    states = [state for probe in probes for state in probe.states]
    for (name, rows), chosen in zip(parts.items(), held_out(states, seed=0), strict=True):
        assert {row["pairs"] for row in rows} == {len(chosen)}, name
        assert {row["proxy"] for row in rows} == set(PROXIES)
    ks = [{r["options"] for r in rows if r["proxy"] == "first_k"} for rows in parts.values()]
    assert ks[0] == ks[1]
    assert parts["fitting"] != parts["held_out"]
    with pytest.raises(ValueError, match="judged_on is 'all'"):
        proxy_table(probes, judged_on="all")


# --- over seeds


def run_rows(world: str, seed: int, steps: tuple[int, ...] = (0, 5)) -> list[dict]:
    probes = [probed(step=step, seed=10 * seed + step) for step in steps]
    rows = response_table(probes, min_spread=0.1)
    return [{"world": world, "seed": seed} | row for row in agreement_table(rows, BINS)]


def test_a_number_is_the_mean_of_its_runs_with_their_interval():
    runs = [run_rows("one", seed) for seed in range(3)]
    table = over_seeds([row for rows in runs for row in rows])
    place = {"responses": "fresh", "by": "difficulty", "bin": "hard", "measure": "pearson"}

    def pick(rows):
        (found,) = [r for r in rows if all(r[name] == value for name, value in place.items())]
        return found

    row, members = pick(table), [pick(rows) for rows in runs]
    mean = t_interval([member["value"] for member in members])
    assert (row["value"], row["low"], row["high"]) == (mean.value, mean.low, mean.high)
    assert row["seeds"] == 3
    assert row["pairs"] == sum(member["pairs"] for member in members)


def test_a_bin_that_a_run_never_met_leaves_it_out_and_says_so():
    rows = [*run_rows("one", 0), *run_rows("one", 1, steps=(0,))]
    found = {row["bin"]: row for row in over_seeds(rows) if row["by"] == "step"}
    assert (found["0"]["seeds"], found["5"]["seeds"]) == (2, 1)
    assert math.isnan(found["5"]["low"])
    first = next(row for row in rows if row["by"] == "all")
    lost = [row | {"value": math.nan} if row == first else row for row in rows]
    key = ("by", "measure", "silent", "responses")
    (row,) = [r for r in over_seeds(lost) if all(r[name] == first[name] for name in key)]
    assert (row["seeds"], row["missing"]) == (1, 1)


def test_worlds_stay_apart_and_bins_are_in_the_order_of_their_numbers():
    rows = [*run_rows("second", 0), *run_rows("first", 0, steps=(5, 10))]
    table = over_seeds(rows)
    assert list(dict.fromkeys(row["world"] for row in table)) == ["second", "first"]
    steps = [r["bin"] for r in table if r["by"] == "step" and r["world"] == "first"]
    assert list(dict.fromkeys(steps)) == ["5", "10"]
    assert all(row["seeds"] + row["missing"] == 1 for row in table)
