"""ADRS against plain loops, its two published no-ops, what repairs them, and silent teachers."""

import math
import statistics

import pytest
import torch
from batches import make_batch, ragged_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.batching import TurnBatch, row_sums
from turncredit.credit import BASES
from turncredit.credit.teacher import gates, heard, teacher_scores

ADRS, GRPO = BASES["adrs"], BASES["grpo"]
OPEN = {"level": "none"}
"""The gate forced to 1."""
REPAIRED = {"centre": "batch", "restandardise": False}

few = settings(max_examples=20)


def two_groups(**changes: object) -> TurnBatch:
    """Two groups of three with contrast of another size, turns of 1 to 4 tokens."""
    batch = make_batch(
        [[3, 2], [4, 1, 2], [2, 2], [1, 3], [2, 4], [3]],
        rewards=[1.0, 0.0, 0.0, 0.5, 0.25, 0.25],
        groups=[0, 0, 0, 1, 1, 1],
        seed=8,
    )
    return batch.replace(**changes)


def shaped(batch: TurnBatch, centre: str = "turn", **options: object) -> torch.Tensor:
    """[N]: gate times score, as the base computes them."""
    said = heard(batch)
    given = {"level": "completion", "temperature": 1.0, "tau": 2.0, "completion": "turn"}
    given |= {"gamma": 0.95, "normalise": False} | options
    scores = teacher_scores(
        batch, said, centre=centre, scale="completion", completion=given["completion"]
    )
    return gates(batch, said, **given) * scores


# --- the definition, by plain loops


def tokens_of(batch: TurnBatch, row: int) -> list[tuple[int, float]]:
    """(turn, teacher's log-prob) of each sampled token."""
    mask = batch.response_mask[row]
    turns, scores = batch.turn_ids[row][mask].tolist(), batch.teacher_logprobs[row][mask].tolist()
    return list(zip(turns, scores, strict=True))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(batch: TurnBatch, level: str, gamma: float = 0.95) -> list[list[float]]:
    """What is added to the advantages at each sampled token, with the published defaults."""
    rows = range(len(batch.rewards))
    known = [r for r in rows if not batch.rewards[r].isnan() and tokens_of(batch, r)]
    turns = {(r, t): [s for u, s in tokens_of(batch, r) if u == t]
             for r in known for t, _ in tokens_of(batch, r)}  # fmt: skip
    means = {key: statistics.fmean(values) for key, values in turns.items()}
    gate = gate_by_hand(batch, level, turns, means, gamma)
    scores = {}
    for key, values in turns.items():
        deviations = [value - means[key] for value in values]
        spread = math.sqrt(statistics.fmean(d * d for d in deviations))
        equal = max(values) == min(values)
        scores[key] = [0.0 if equal else gate[key] * d / spread for d in deviations]
    added = {r: [] for r in rows}
    for group in batch.group_ids.unique().tolist():
        members = [r for r in known if batch.group_ids[r] == group]
        rewards = [batch.rewards[r].item() for r in members]
        pool = [v for key, values in scores.items() if key[0] in members for v in values]
        if len(set(rewards)) > 1 and max(pool) > min(pool):
            mean, spread = statistics.fmean(pool), statistics.stdev(pool)
            strength = strength_by_hand(batch, known, rewards)
            for r in members:
                for t in sorted(t for row, t in scores if row == r):
                    terms = (0.02 * (v - mean) / spread for v in scores[r, t])
                    limit = 0.2 * strength
                    added[r] += [max(-limit, min(limit, term)) for term in terms]
    return [added[r] or [0.0] * len(tokens_of(batch, r)) for r in rows]


def strength_by_hand(batch: TurnBatch, known: list[int], rewards: list[float]) -> float:
    groups = {}
    for r in known:
        groups.setdefault(int(batch.group_ids[r]), []).append(batch.rewards[r].item())
    spreads = [statistics.stdev(g) for g in groups.values() if len(set(g)) > 1]
    return min(1.0, statistics.stdev(rewards) / (statistics.median_low(spreads) + 1e-6))


def gate_by_hand(batch, level, turns, means, gamma) -> dict:
    """sigmoid(2 TVA) of each turn."""
    tokens = [value for values in turns.values() for value in values]
    if level == "completion":
        centre = statistics.fmean(means.values()) if means else 0.0
        returns = {key: batch.rewards[key[0]].item() for key in means}
        places = {key: int(batch.group_ids[key[0]]) for key in means}
    else:
        centre = statistics.fmean(tokens) if tokens else 0.0
        returns = returns_by_hand(batch, means, gamma)
        places = {(r, t): (int(batch.group_ids[r]), int(batch.anchor_ids[r, t])) for r, t in means}
    gate = {}
    for key in means:
        peers = [k for k in means if places[k] == places[key]]
        value = 0.0
        if len(peers) > 1:
            a = [sigmoid(means[k] - centre) for k in peers]
            r = [returns[k] for k in peers]
            value = sum(map(math.prod, zip(a, r, strict=True))) / sum(a)
            value -= sum((1 - x) * y for x, y in zip(a, r, strict=True)) / sum(1 - x for x in a)
        gate[key] = sigmoid(2 * value)
    return gate


def returns_by_hand(batch: TurnBatch, means: dict, gamma: float) -> dict:
    found = {}
    for row in {r for r, _ in means}:
        later, turns = 0.0, sorted((t for r, t in means if r == row), reverse=True)
        for number, t in enumerate(turns):
            reward = batch.turn_rewards[row, t].item()
            reward += batch.rewards[row].item() if number == 0 else 0.0
            later = reward + gamma * later
            found[row, t] = later
    return found


@few
@given(ragged_batches(), st.sampled_from(["completion", "turn"]))
def test_what_is_added_is_the_definition(batch, level):
    found = (ADRS(batch, level=level) - GRPO(batch))[batch.response_mask]
    expected = [value for row in by_hand(batch, level) for value in row]
    assert found.tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("level", ["completion", "turn", "token", "none"])
def test_every_level_adds_something_and_some_levels_differ(level):
    batch = two_groups()
    added = ADRS(batch, level=level) - GRPO(batch)
    assert (added[batch.response_mask] != 0).any()
    differs = not torch.allclose(added, ADRS(batch, **OPEN) - GRPO(batch), atol=1e-5)
    assert differs == (level in ("turn", "token"))


def test_the_gate_at_token_level_is_the_scaled_log_ratio_to_the_reference():
    batch = two_groups()
    said = heard(batch)
    gaps = said.logprobs - batch.ref_logprobs[batch.response_mask].double()
    options = {"temperature": 1.0, "completion": "turn", "gamma": 1.0, "normalise": False}
    found = gates(batch, said, level="token", tau=2.0, **options)
    torch.testing.assert_close(found, torch.sigmoid(2 * gaps / gaps.std()), rtol=1e-6, atol=1e-9)


def test_auto_takes_states_if_there_are_any():
    batch = two_groups()
    assert torch.equal(ADRS(batch, level="auto"), ADRS(batch, level="turn"))
    without = batch.replace(anchor_ids=None)
    assert torch.equal(ADRS(without, level="auto"), ADRS(without, level="completion"))


def test_a_trajectory_as_completion_is_scaled_and_compared_as_a_whole():
    """Two turns of two tokens: means -1 and -3, deviations +-1 and +-2, one std sqrt(2.5)."""
    teacher = torch.tensor([[0.0, -2.0, -1.0, -5.0], [-4.0, -4.0, -2.0, -2.0]])
    batch = make_batch([[2, 2], [2, 2]], rewards=[1.0, 0.0])
    wide = batch.teacher_logprobs.masked_scatter(batch.response_mask, teacher)
    batch = batch.replace(teacher_logprobs=wide)
    said = heard(batch)
    scores = teacher_scores(batch, said, centre="turn", scale="completion", completion="trajectory")
    expected = [x / math.sqrt(2.5) for x in (1, -1, 2, -2)] + [0.0] * 4
    assert scores.tolist() == pytest.approx(expected)
    options = {"level": "completion", "temperature": 1.0, "tau": 1.0, "gamma": 1.0}
    gate = gates(batch, said, completion="trajectory", normalise=False, **options)
    a = [sigmoid(-2 + 2.5), sigmoid(-3 + 2.5)]  # means -2 and -3 around -2.5
    value = a[0] / sum(a) - (1 - a[0]) / (2 - sum(a))
    assert gate.tolist() == pytest.approx([sigmoid(value)] * 8)


# --- what does nothing as published, and what repairs it


@few
@given(ragged_batches())
def test_scores_centred_by_turn_sum_to_0_so_no_reward_changes(batch):
    """The first consequence: added to token rewards, they are lost in the sum of a trajectory."""
    said = heard(batch)
    wide = said.tokens.scatter(batch, shaped(batch))
    sums = row_sums(wide, batch.response_mask)
    assert sums.abs().max() < 1e-5
    moved = batch.replace(rewards=batch.rewards + (0.02 * sums).float())
    contrast = GRPO(batch) != 0
    torch.testing.assert_close(GRPO(moved)[contrast], GRPO(batch)[contrast], atol=1e-4, rtol=0)


def test_centred_over_the_batch_the_rewards_do_change():
    """A base without a scale of its own gets what the scores of a trajectory sum to."""
    batch = two_groups()
    options = {"base": "dr_grpo", "eta": 0.1, "clip": 1e-9}
    found = ADRS(batch, centre="batch", **options) - BASES["dr_grpo"](batch)
    sums = torch.zeros(6, dtype=torch.float64).index_add(
        0, heard(batch).tokens.rows, 0.1 * shaped(batch, centre="batch")
    )
    for rows in ([0, 1, 2], [3, 4, 5]):
        expected = (sums[rows] - sums[rows].mean()).float()
        assert expected.abs().max() > 0.01
        for row, value in zip(rows, expected.tolist(), strict=True):
            assert found[row][batch.response_mask[row]].tolist() == pytest.approx(
                [value] * int(batch.response_mask[row].sum()), abs=1e-6
            )
    still = ADRS(batch, **options) - BASES["dr_grpo"](batch)
    assert still.abs().max() < 1e-8


@few
@given(ragged_batches(), st.floats(0.0, 10.0), st.floats(0.1, 2.0))
def test_the_gate_cancels_at_completion_level(batch, tau, temperature):
    """The second consequence: one gate a group, and the group's standard deviation divides it out.

    As long as 1e-8 is small beside the variance.
    """
    gated = ADRS(batch, tau=tau, temperature=temperature, eta=0.1)
    torch.testing.assert_close(gated, ADRS(batch, eta=0.1, **OPEN), rtol=0, atol=1e-5)


def test_without_standardising_the_gate_acts_and_is_the_groups_own():
    batch = two_groups()
    gated, ungated = (
        ADRS(batch, restandardise=False, clip=9.0, adaptive_clip=False, **options) - GRPO(batch)
        for options in ({"temperature": 0.2}, OPEN)
    )
    places = batch.response_mask & (ungated.abs() > 1e-4)
    ratios = (gated / ungated)[places]
    groups = batch.group_ids[:, None].expand_as(places)[places]
    gate = gates(batch, heard(batch), level="completion", temperature=0.2, tau=2.0,
                 completion="turn", gamma=0.95, normalise=False)  # fmt: skip
    of_group = {g: gate[heard(batch).tokens.rows == 3 * g][0].item() for g in (0, 1)}
    assert abs(of_group[0] - of_group[1]) > 0.01
    for group, value in of_group.items():
        assert ratios[groups == group].tolist() == pytest.approx(
            [value] * int((groups == group).sum()), rel=1e-3
        )


def test_published_it_moves_credit_within_turns_and_repaired_between_them():
    """Of a turn's credit as a whole, scores that sum to 0 over it change nothing."""
    batch = two_groups()
    free = {"clip": 9.0, "adaptive_clip": False}
    published, repaired = (
        batch.turn_sums(ADRS(batch, **free, **options) - GRPO(batch))
        for options in ({}, {"restandardise": False, "centre": "batch", "base": "grpo"})
    )
    assert published.abs().max() < 1e-6 < 1e-3 < repaired.abs().max()
    said = heard(batch)
    scores = teacher_scores(batch, said, centre="batch", scale="completion", completion="turn")
    liked = batch.turn_sums(said.tokens.scatter(batch, scores)) / batch.turn_lengths()
    gained = repaired / batch.turn_lengths()
    for row in (0, 1, 2, 3, 4):
        turns = batch.turn_lengths()[row] > 1  # one token has no scale
        assert gained[row][turns].argsort().tolist() == liked[row][turns].argsort().tolist()


# --- edges


def test_a_group_of_equal_rewards_is_left_alone_under_every_option():
    """Anything added to equal rewards would be blown up to a whole standard deviation by `grpo`."""
    batch = two_groups(rewards=torch.full((6,), 0.3))
    for options in ({}, REPAIRED, {"level": "turn"}, {"level": "token", "centre": "batch"}):
        assert (ADRS(batch, **options) == 0).all()


def test_constant_scores_of_the_teacher_add_nothing():
    batch = two_groups()
    batch = batch.replace(teacher_logprobs=torch.full_like(batch.teacher_logprobs, -0.7))
    for options in ({}, REPAIRED, {"level": "turn"}, {"scale": "batch"}):
        assert torch.equal(ADRS(batch, **options), GRPO(batch))


def test_one_token_has_no_deviation_and_no_scale():
    batch = make_batch([[1, 1], [1]], rewards=[1.0, 0.0])
    for options in ({}, {"centre": "batch"}, {"restandardise": False}):
        assert torch.equal(ADRS(batch, **options), GRPO(batch))


def test_eta_0_is_the_base_bit_for_bit():
    for options in ({}, REPAIRED):
        assert torch.equal(ADRS(two_groups(), eta=0.0, **options), GRPO(two_groups()))


def test_a_trajectory_that_the_teacher_did_not_score_keeps_its_base():
    batch = two_groups()
    silent = batch.teacher_logprobs.clone()
    silent[1, batch.response_mask[1].nonzero()[0, 0]] = math.nan
    found = ADRS(batch.replace(teacher_logprobs=silent))
    assert torch.equal(found[1], GRPO(batch)[1])
    assert not torch.equal(found[0], GRPO(batch)[0])
    everybody = torch.full_like(silent, math.nan)
    assert torch.equal(ADRS(batch.replace(teacher_logprobs=everybody)), GRPO(batch))


def test_the_clip_shrinks_with_the_contrast_of_a_group():
    """Stds 0.577 and 0.144; the lower median is 0.144, so that only wider groups keep the clip."""
    batch = two_groups()
    options = {"eta": 5.0, "clip": 0.2}
    wide, narrow = (ADRS(batch, **options) - GRPO(batch))[[0, 3]].abs().amax(1).tolist()
    assert (wide, narrow) == pytest.approx((0.2, 0.2), abs=1e-4)
    third = make_batch([[3], [2], [2], [3], [4], [2]], rewards=[1.0, 0, 0.5, 0.4, 1.0, 0.0],
                       groups=[0, 0, 1, 1, 2, 2], seed=2)  # fmt: skip
    terms = (ADRS(third, **options) - GRPO(third)).abs().amax(1)
    assert terms[:2].max() == pytest.approx(0.2, abs=1e-4)
    assert terms[2:4].max() == pytest.approx(0.2 * 0.1, abs=1e-4)
    unadapted = ADRS(third, adaptive_clip=False, **options) - GRPO(third)
    assert unadapted.abs().amax(1)[2:4].max() == pytest.approx(0.2, abs=1e-4)


def test_it_stands_on_other_bases_and_hands_them_their_options():
    batch = two_groups()
    for base, options in (("rloo", {}), ("gigpo", {"omega": 0.5}), ("grpo", {"std": "population"})):
        found = ADRS(batch, base=base, base_options=options)
        added = ADRS(batch) - GRPO(batch)
        torch.testing.assert_close(found, BASES[base](batch, **options) + added, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="has no option 'sdt'"):
        ADRS(batch, base_options={"sdt": "sample"})


def test_a_gate_scaled_by_its_spread_keeps_its_sign():
    batch = two_groups()
    said = heard(batch)
    options = {"temperature": 1.0, "tau": 2.0, "completion": "turn", "gamma": 0.95}
    plain, scaled = (
        gates(batch, said, level="turn", normalise=normalise, **options) - 0.5
        for normalise in (False, True)
    )
    assert torch.equal(plain.sign(), scaled.sign()) and not torch.allclose(plain, scaled)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"teacher_logprobs": None}, {}, "adrs needs TurnBatch.teacher_logprobs"),
        ({"anchor_ids": None}, {"level": "turn"}, "adrs at level 'turn' needs TurnBatch.anchor_id"),
        ({"ref_logprobs": None}, {"level": "token"}, "level 'token' needs TurnBatch.ref_logprobs"),
        ({}, {"level": "L2"}, "adrs: unknown level 'L2'; there are: auto, completion, none, token"),
        ({}, {"base": "grop"}, "unknown base 'grop'"),
    ],
)
def test_wrong_use_is_named(changes, options, words):
    with pytest.raises(ValueError, match=words):
        ADRS(two_groups(**changes), **options)


def test_an_infinite_score_is_named_by_its_row():
    batch = two_groups()
    wrong = batch.teacher_logprobs.clone()
    wrong[2, batch.response_mask[2].nonzero()[0, 0]] = -math.inf
    with pytest.raises(ValueError, match=r"TurnBatch\.teacher_logprobs: row 2 is infinite"):
        ADRS(batch.replace(teacher_logprobs=wrong))
