"""Base advantages: hand-made tables, plain-loop references, exact expectations, bad input.

`grpo` itself is tabulated in `test_credit.py`; laws that hold for every base whatever it computes
(inserted observations, order and company of rows) are in `tests/invariance`.
"""

import math
from itertools import chain

import pytest
import torch
from batches import make_batch, ragged_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES
from turncredit.credit.returns import discounted_sums
from turncredit.credit.steps import information_gains
from turncredit.methods import option_names

NAN = math.nan
BY_BATCH = {"reinforce_pp", "reinforce_pp_baseline", "gae", "empg", "aepo", "adrs"}
"""Statistics over the whole batch, so another rounding."""

few = settings(max_examples=20)

ZERO_WITHOUT_CONTRAST = [name for name in BASES if name not in ("gae", "empg", "vineppo")]
"""Those that see no difference between trajectories whose rewards are all equal."""


def advantages(base: str, batch: TurnBatch, **options) -> Tensor:
    """The base with groups of one allowed where it has groups."""
    if "allow_singleton" in option_names(BASES[base]):
        options.setdefault("allow_singleton", True)
    if base in ("adrs", "aepo", "empg"):
        options.setdefault("base_options", {"allow_singleton": True})
    return BASES[base](batch, **options)


def by_turn(batch: TurnBatch, found: Tensor) -> list[list[float]]:
    """Advantage of each non-empty turn of each row; fails unless constant over the turn."""
    table = []
    for row in range(len(batch.rewards)):
        turns = batch.turn_ids[row][batch.response_mask[row]]
        values = found[row][batch.response_mask[row]]
        parts = [values[turns == turn] for turn in turns.unique()]
        assert all((part == part[0]).all() for part in parts)
        table.append([part[0].item() for part in parts])
    return table


def outcomes_only(batch: TurnBatch) -> TurnBatch:
    """Every turn without a step reward of its own and from a state of its own."""
    slots = torch.arange(batch.anchor_ids.numel()).view_as(batch.anchor_ids)
    return batch.replace(turn_rewards=torch.zeros_like(batch.turn_rewards), anchor_ids=slots)


def streams(batch: TurnBatch) -> list[list[float]]:
    """Rewards of the non-empty turns of each row, the outcome added to the last."""
    found = []
    for row, lengths in enumerate(batch.turn_lengths().tolist()):
        rewards = [batch.turn_rewards[row, t].item() for t, n in enumerate(lengths) if n]
        if rewards:
            rewards[-1] += batch.rewards[row].item()
        found.append(rewards)
    return found


def to_go(rewards: list[float], gamma: float) -> list[float]:
    returns = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def members(batch: TurnBatch, row: int) -> list[int]:
    """Rows of the same group with a known reward."""
    same = (batch.group_ids == batch.group_ids[row]) & ~batch.rewards.isnan()
    return same.nonzero()[:, 0].tolist()


def z(value: float, values: list[float]) -> float:
    """Deviation from the mean over sample std + 1e-6."""
    if max(values) == min(values):
        return 0.0
    sample = torch.tensor(values, dtype=torch.float64)
    return ((value - sample.mean()) / (sample.std() + 1e-6)).item()


# outcome bases


@pytest.mark.parametrize(
    ("base", "rewards", "expected"),
    [
        ("dr_grpo", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("dr_grpo", [3, 1, 2], [1, -1, 0]),
        ("rloo", [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("rloo", [3, 1, 2], [1.5, -1.5, 0]),
        ("rloo", [NAN, 1, 0, 0, 0], [0, 1, -1 / 3, -1 / 3, -1 / 3]),
        ("dapo", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ("reinforce_pp", [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        ("reinforce_pp", [NAN, 3, 1, 2], [0, 1, -1, 0]),
        ("reinforce_pp_baseline", [3, 1, 2, NAN], [1, -1, 0, 0]),
    ],
)
def test_tables(base, rewards, expected):
    batch = make_batch([[1]] * len(rewards), rewards=rewards)
    found = advantages(base, batch)[batch.response_mask].tolist()
    assert found == pytest.approx(expected, abs=1e-5)


@few
@given(ragged_batches())
def test_dapo_is_grpo_bit_for_bit(batch):
    for options in ({}, {"std": "population", "eps": 1e-4}):
        assert torch.equal(BASES["dapo"](batch, **options), BASES["grpo"](batch, **options))
    assert option_names(BASES["dapo"]) == option_names(BASES["grpo"])


def test_reinforce_pp_weighs_tokens_and_discounts_sampled_tokens_only():
    """Returns 0.25, 0.5, 1 and 0; mean 0.4375, variance 0.55729 / 3."""
    batch = make_batch([[2, 1], [1]], rewards=[1.0, 0.0])
    found = BASES["reinforce_pp"](batch, gamma=0.5)[batch.response_mask]
    scale = (0.546875 / 3) ** 0.5
    expected = [(x - 0.4375) / scale for x in (0.25, 0.5, 1.0, 0.0)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


@few
@given(ragged_batches())
def test_whitened_bases_have_mean_zero_and_variance_one(batch):
    for base in ("reinforce_pp", "reinforce_pp_baseline", "gae"):
        known = batch.response_mask & ~batch.rewards.isnan()[:, None]
        found = BASES[base](batch)[known].double()
        if not (found == 0).all():
            assert found.mean().item() == pytest.approx(0, abs=1e-5)
            assert found.var().item() == pytest.approx(1, abs=1e-4)


# generalised advantage estimation


@few
@given(
    ragged_batches(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.sampled_from([0.0, 0.3, 0.95, 1.0])
)
def test_gae_is_the_recursion_over_sampled_tokens(batch, gamma, lam):
    found = BASES["gae"](batch, gamma=gamma, lam=lam, whiten=False)
    for row, lengths in enumerate(batch.turn_lengths().tolist()):
        sampled = batch.response_mask[row]
        if batch.rewards[row].isnan():
            assert (found[row] == 0).all()
            continue
        paid = []
        for turn, length in enumerate(lengths):
            if length:
                paid += [0.0] * (length - 1) + [batch.turn_rewards[row, turn].item()]
        if paid:
            paid[-1] += batch.rewards[row].item()
        values = batch.values[row][sampled].tolist()
        expected, following, advantage = [], 0.0, 0.0
        for reward, value in zip(reversed(paid), reversed(values), strict=True):
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            expected.insert(0, advantage)
        assert found[row][sampled].tolist() == pytest.approx(expected, abs=1e-4)


def test_gae_does_without_step_rewards_and_pays_everything_given():
    """gamma = lam = 1: the advantage of the first token is all reward minus its value."""
    batch = make_batch([[2, 3, 1], [1, 4]])
    first = batch.response_mask & (batch.response_mask.cumsum(dim=1) == 1)
    values = batch.values[first]
    for given_rewards in (batch.turn_rewards, None):
        found = BASES["gae"](batch.replace(turn_rewards=given_rewards), whiten=False)[first]
        paid = batch.rewards.clone()
        if given_rewards is not None:
            paid += torch.where(batch.turn_lengths() > 0, given_rewards, 0.0).sum(dim=1)
        assert found.tolist() == pytest.approx((paid - values).tolist(), abs=1e-5)


def test_gae_without_whitening_does_not_feel_other_trajectories():
    batch = make_batch([[3, 2], [9, 9], [0, 1]], rewards=[1.0, 0.0, 2.0])
    together = BASES["gae"](batch, gamma=0.9, lam=0.8, whiten=False)
    for row in range(3):
        alone = BASES["gae"](batch.select([row]), gamma=0.9, lam=0.8, whiten=False)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 64, 100])
def test_discounted_sums_is_the_backward_loop(length, discount):
    values = torch.rand(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = discounted_sums(values, discount).tolist()
    for row, expected in zip(found, values.tolist(), strict=True):
        assert row == pytest.approx(to_go(expected, discount), rel=1e-12)


# step rewards, against plain loops


@few
@given(ragged_batches(), st.sampled_from([0.5, 1.0]), st.sampled_from(["std", "mean"]))
def test_mt_grpo_compares_turns_of_equal_index(batch, gamma, scale):
    found = by_turn(batch, BASES["mt_grpo"](batch, gamma=gamma, scale=scale))
    returns = [to_go(rewards, gamma) for rewards in streams(batch)]
    for row, values in enumerate(found):
        for t, value in enumerate(values):
            peers = [returns[i][t] for i in members(batch, row) if t < len(returns[i])]
            if batch.rewards[row].isnan():
                expected = 0.0
            elif scale == "std":
                expected = z(returns[row][t], peers)
            else:
                expected = returns[row][t] - sum(peers) / len(peers)
            assert value == pytest.approx(expected, abs=1e-4)


@few
@given(ragged_batches(), st.sampled_from([0.5, 1.0]), st.sampled_from(["last", "zero"]))
def test_turn_returns_compares_with_all_other_trajectories(batch, gamma, stopped):
    found = by_turn(batch, BASES["turn_returns"](batch, gamma=gamma, stopped=stopped))
    returns = [to_go(rewards, gamma) for rewards in streams(batch)]

    def at(row: int, t: int) -> float:
        if not returns[row]:
            return batch.rewards[row].item() if stopped == "last" or t == 0 else 0.0
        if t < len(returns[row]):
            return returns[row][t]
        return returns[row][-1] if stopped == "last" else 0.0

    for row, values in enumerate(found):
        others = [i for i in members(batch, row) if i != row]
        for t, value in enumerate(values):
            if batch.rewards[row].isnan() or not others:
                assert value == 0
                continue
            baseline = sum(at(i, t) for i in others) / len(others)
            assert value == pytest.approx(at(row, t) - baseline, abs=1e-5)


@few
@given(ragged_batches(), st.sampled_from(["steps", "trajectories"]))
def test_gigpo_compares_episodes_and_turns_from_one_state(batch, episode_over):
    options = {"omega": 0.7, "gamma": 0.9, "step_scale": "std", "episode_over": episode_over}
    found = by_turn(batch, BASES["gigpo"](batch, **options))
    rewards = streams(batch)
    totals = [sum(row) if row else batch.rewards[i].item() for i, row in enumerate(rewards)]
    returns = [to_go(row, 0.9) for row in rewards]
    states = [
        [batch.anchor_ids[row, t].item() for t, length in enumerate(lengths) if length]
        for row, lengths in enumerate(batch.turn_lengths().tolist())
    ]
    for row, values in enumerate(found):
        known = members(batch, row)
        for t, value in enumerate(values):
            if batch.rewards[row].isnan():
                assert value == 0
                continue
            copies = [1 if episode_over == "trajectories" else len(returns[i]) for i in known]
            episodes = [totals[i] for i, n in zip(known, copies, strict=True) for _ in range(n)]
            peers = [
                returns[i][s]
                for i in known
                for s, state in enumerate(states[i])
                if state == states[row][t]
            ]
            expected = z(totals[row], episodes) + 0.7 * z(returns[row][t], peers)
            assert value == pytest.approx(expected, abs=2e-4)


@few
@given(ragged_batches(), st.sampled_from([0.5, 1.0]))
def test_igpo_adds_up_standardised_gains_and_outcome(batch, gamma):
    found = by_turn(batch, BASES["igpo"](batch, gamma=gamma))
    gains = []
    for row, lengths in enumerate(batch.turn_lengths().tolist()):
        gains.append([batch.turn_rewards[row, t].item() for t, n in enumerate(lengths) if n][:-1])
    for row, values in enumerate(found):
        known = members(batch, row)
        if batch.rewards[row].isnan():
            assert set(values) <= {0.0}
            continue
        pool = [gain for i in known for gain in gains[i]]
        outcome = z(batch.rewards[row].item(), [batch.rewards[i].item() for i in known])
        expected = to_go([*(z(gain, pool) for gain in gains[row]), outcome], gamma)
        assert values == pytest.approx(expected[: len(values)], abs=2e-4)


def test_information_gains_by_hand():
    """The middle turn of the second row is empty: its number is never read."""
    batch = make_batch([[1, 2, 1], [1, 0, 2]])
    levels = torch.tensor([[0.1, 0.4, 0.2], [0.5, NAN, 0.25]])
    found = information_gains(batch, levels)
    assert found.flatten().tolist() == pytest.approx([0.3, -0.2, 0, -0.25, 0, 0])
    logs = information_gains(batch, levels, gain="log_probability").flatten().tolist()
    assert logs == pytest.approx([math.log(4), -math.log(2), 0, -math.log(2), 0, 0])
    with pytest.raises(ValueError, match=r"row 1, turn 0: 0.0 is not in \(0, 1\]"):
        information_gains(batch, torch.tensor([[0.1, 0.4, 0.2], [0.0, 1.0, 1.0]]))
    with pytest.raises(ValueError, match="unknown gain 'logit'"):
        information_gains(batch, levels, gain="logit")


def test_igpo_does_not_read_the_gain_of_the_last_turn():
    batch = make_batch([[1, 2], [2, 0], [1, 1]], rewards=[1.0, 0.0, 0.0])
    spoilt = batch.turn_rewards.clone()
    spoilt[0, 1] = spoilt[1, 0] = spoilt[1, 1] = spoilt[2, 1] = NAN
    found = BASES["igpo"](batch.replace(turn_rewards=spoilt))
    assert torch.equal(found, BASES["igpo"](batch))
    assert (found != 0).any()


# entropy modulation


def test_empg_damps_gives_a_bonus_and_centres():
    """H scaled: 0, 1 | 1; g = 3 / (1 + 2 / e) * [1, 1/e, 1/e]; bonus 0.1 / e at the first turn."""
    batch = make_batch([[2, 2], [2]], rewards=[1.0, 0.0], entropies=[[0.0, 0.6], [0.6]])
    found = by_turn(batch, BASES["empg"](batch, base="dr_grpo", zeta=0.1))
    low = math.exp(-1)
    g = [3 / (1 + 2 * low) * value for value in (1, low, low)]
    shaped = [0.5 * g[0] + 0.1 * low, 0.5 * g[1], -0.5 * g[2]]
    mean = sum(shaped) / 3
    assert [*chain(*found)] == pytest.approx([value - mean for value in shaped], abs=1e-5)


@pytest.mark.parametrize("centre_over", ["turns", "tokens"])
@few
@given(batch=ragged_batches())
def test_empg_is_centred_over_what_it_says(centre_over, batch):
    found = BASES["empg"](batch, centre_over=centre_over).double()
    known = (batch.turn_lengths() > 0) & ~batch.rewards.isnan()[:, None]
    if centre_over == "tokens":
        assert found.sum().item() == pytest.approx(0, abs=1e-4)
    else:
        means = batch.turn_sums(found) / batch.turn_lengths().clamp(min=1)
        assert means[known].sum().item() == pytest.approx(0, abs=1e-4)


def test_empg_keeps_its_known_faults():
    """All-fail groups move, by the bonus alone; equal entropies favour all turns but the last."""
    batch = make_batch([[1, 1], [1]], rewards=[0.0, 0.0], entropies=[[0.3, 0.3], [0.3]])
    found = by_turn(batch, BASES["empg"](batch, zeta=0.3))
    assert [*chain(*found)] == pytest.approx([0.2, -0.1, -0.1])
    assert (BASES["empg"](batch, zeta=0.0) == 0).all()


@few
@given(ragged_batches())
def test_empg_with_equal_entropies_and_no_bonus_is_its_base_up_to_the_mean(batch):
    batch = batch.replace(entropies=torch.full_like(batch.entropies, 0.4))
    for base in ("grpo", "turn_returns", "gae"):
        plain = advantages(base, batch)
        options = {"base": base, "base_options": {}, "zeta": 0.0, "centre_over": "tokens"}
        found = BASES["empg"](batch, **options)
        known = batch.response_mask & ~batch.rewards.isnan()[:, None]
        if known.any():
            expected = plain[known] - plain[known].mean()
            torch.testing.assert_close(found[known], expected, rtol=1e-4, atol=1e-5)


def test_empg_reports_entropies_that_were_not_computed():
    batch = make_batch([[2, 2], [2, 2]])
    entropies = batch.entropies.clone()
    entropies[1, -2] = NAN
    with pytest.raises(
        ValueError, match=r"TurnBatch.entropies: row 1, turn 1 has entropies not comp"
    ):
        BASES["empg"](batch.replace(entropies=entropies))


def test_empg_hands_options_to_its_base():
    batch = make_batch([[1], [1]])  # +-1 over the population std, +-0.5 without division
    found = BASES["empg"](batch, base="grpo", base_options={"std": "population", "eps": 0.0})
    torch.testing.assert_close(found, 2 * BASES["empg"](batch, base="dr_grpo"))
    with pytest.raises(ValueError, match="base 'grpo' has no option 'sdt'"):
        BASES["empg"](batch, base_options={"sdt": "population"})
    with pytest.raises(ValueError, match="unknown base 'grop'"):
        BASES["empg"](batch, base="grop")


# reductions of one base to another


@few
@given(ragged_batches())
def test_without_step_rewards_turn_returns_is_rloo(batch):
    batch = outcomes_only(batch)
    found = BASES["turn_returns"](batch)
    torch.testing.assert_close(found, BASES["rloo"](batch), rtol=1e-6, atol=1e-7)


@few
@given(ragged_batches())
def test_without_repeated_states_and_step_rewards_gigpo_is_grpo(batch):
    batch = outcomes_only(batch)
    assert torch.equal(BASES["gigpo"](batch), BASES["grpo"](batch))
    without = batch.replace(turn_rewards=None)
    assert torch.equal(BASES["gigpo"](without), BASES["grpo"](batch))
    found = BASES["gigpo"](batch, episode_scale="mean")
    assert torch.equal(found, BASES["dr_grpo"](batch))


@few
@given(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0, NAN]), min_size=2, max_size=6))
def test_single_turn_trajectories_reduce_to_outcome_methods(rewards):
    """Their step reward is part of the outcome, or for igpo not used at all."""
    batch = make_batch([[2]] * len(rewards), rewards=rewards)
    assert torch.equal(BASES["igpo"](batch), BASES["grpo"](batch))
    whole = batch.replace(rewards=(batch.rewards.double() + batch.turn_rewards[:, 0]))
    for base, outcome_base in [("mt_grpo", "grpo"), ("turn_returns", "rloo")]:
        found, expected = BASES[base](batch), BASES[outcome_base](whole)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    centred = BASES["mt_grpo"](batch, scale="mean").double()
    torch.testing.assert_close(centred, BASES["dr_grpo"](whole), rtol=1e-5, atol=1e-6)


# laws of every base


@pytest.mark.parametrize("base", BASES)
@few
@given(batch=ragged_batches())
def test_a_missing_reward_is_as_if_the_trajectory_were_not_there(base, batch):
    found = advantages(base, batch)
    known = ~batch.rewards.isnan()
    assert (found[~known] == 0).all()
    assert found.isfinite().all()
    if known.any():
        without = advantages(base, batch.select(known))
        if base in BY_BATCH:
            torch.testing.assert_close(found[known], without, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(found[known], without)


READ_STEPS = [
    "gae", "mt_grpo", "turn_returns", "gigpo", "igpo", "empg", "true_advantage", "vineppo",
]  # fmt: skip


@pytest.mark.parametrize("base", READ_STEPS)
def test_a_missing_step_reward_takes_its_trajectory_out(base):
    batch = make_batch([[2, 1, 1], [1, 2, 1], [2, 1, 2], [1, 1, 1]], rewards=[0.0, 1.0, 0.5, 1.0])
    holes = batch.turn_rewards.clone()
    holes[2, 1] = NAN
    options = {"base": "mt_grpo"} if base == "empg" else {}  # grpo would not look at the hole
    found = BASES[base](batch.replace(turn_rewards=holes), **options)
    outcome_missing = batch.replace(rewards=torch.tensor([0.0, 1.0, NAN, 1.0]))
    assert torch.equal(found, BASES[base](outcome_missing, **options))
    assert (found[2] == 0).all()
    assert (found[0] != 0).any()


@pytest.mark.parametrize("base", BASES)
@few
@given(batch=ragged_batches())
def test_empty_turns_change_nothing(base, batch):
    """Two empty turns before each turn: shifted ids, shifted fields, junk in the gaps."""
    if base == "gigpo":
        batch = batch.replace(anchor_ids=batch.anchor_ids + 5)
    place = 3 * torch.arange(batch.num_turns) + 2
    wide = (len(batch.rewards), 3 * batch.num_turns + 1)
    rewards = torch.full(wide, 77.0).index_copy(1, place, batch.turn_rewards)
    rewards[:, 0::3] = NAN
    anchors = torch.zeros(wide, dtype=torch.int64).index_copy(1, place, batch.anchor_ids)
    turn_ids = torch.where(batch.response_mask, 3 * batch.turn_ids + 2, -1)
    gappy = batch.replace(turn_ids=turn_ids, turn_rewards=rewards, anchor_ids=anchors)
    found, expected = advantages(base, gappy), advantages(base, batch)
    if base in BY_BATCH:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("base", ZERO_WITHOUT_CONTRAST)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, -0.3])
@pytest.mark.parametrize("size", [2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(base, reward, size, dtype):
    """All-fail and all-success groups of unequal lengths, without step rewards or discount.

    The mean of seven float64 rewards of 0.1 is not 0.1, that of float32 ones in float64 is.
    """
    lengths = [[1 + row % 3] * (1 + row % 4) for row in range(size)]
    batch = make_batch(lengths, rewards=[reward] * size)
    exact = torch.tensor([reward] * size, dtype=dtype)
    batch = batch.replace(rewards=exact, turn_rewards=torch.zeros_like(batch.turn_rewards))
    options = {"gamma": 1.0} if base == "gigpo" else {}
    assert (BASES[base](batch, **options) == 0).all()


def test_stopped_zero_credits_turns_that_others_never_reached():
    """The documented price of counting a stopped trajectory as 0."""
    batch = outcomes_only(make_batch([[1], [1, 1]], rewards=[1.0, 1.0]))
    found = by_turn(batch, BASES["turn_returns"](batch, stopped="zero"))
    assert found == [[0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "base", [name for name in BASES if "allow_singleton" in option_names(BASES[name])]
)
def test_a_group_of_one_is_an_error_unless_allowed(base):
    batch = make_batch([[1], [2], [1]], rewards=[1.0, 1.0, 0.0], groups=[4, 5, 4])
    with pytest.raises(ValueError, match=r"group 5 has a single trajectory \(row 1\)"):
        BASES[base](batch)
    found = BASES[base](batch, allow_singleton=True)
    if base not in BY_BATCH:
        assert (found[1] == 0).all()


# bad input


@pytest.mark.parametrize(
    ("base", "field"),
    [
        ("gae", "values"),
        ("mt_grpo", "turn_rewards"),
        ("turn_returns", "turn_rewards"),
        ("igpo", "turn_rewards"),
        ("true_advantage", "turn_rewards"),
        ("vineppo", "values"),
        ("gigpo", "anchor_ids"),
    ],
)
def test_a_missing_field_is_named(base, field):
    batch = make_batch([[1], [1]]).replace(**{field: None})
    with pytest.raises(
        ValueError, match=f"{base} needs TurnBatch.{field}, and this batch has none"
    ):
        BASES[base](batch)


@pytest.mark.parametrize("base", READ_STEPS)
def test_an_infinite_step_reward_is_named(base):
    batch = make_batch([[1, 1, 1], [1, 1, 1]])
    batch.turn_rewards[1, 1] = math.inf
    with pytest.raises(ValueError, match=r"TurnBatch\.turn_rewards: row 1, turn 1 is infinite"):
        BASES[base](batch)


@pytest.mark.parametrize(
    ("base", "options", "message"),
    [
        ("grpo", {"std": "n"}, "grpo: unknown std 'n'; there are: population, sample"),
        ("mt_grpo", {"scale": "n"}, "mt_grpo: unknown scale 'n'; there are: mean, std"),
        ("mt_grpo", {"std": "n"}, "mt_grpo: unknown std 'n'"),
        ("turn_returns", {"stopped": "n"}, "turn_returns: unknown stopped 'n'; .*: last, zero"),
        ("gigpo", {"episode_scale": "n"}, "gigpo: unknown episode_scale 'n'"),
        ("gigpo", {"step_scale": "n"}, "gigpo: unknown step_scale 'n'"),
        ("gigpo", {"episode_over": "n"}, "gigpo: unknown episode_over 'n'; .*: steps, traject"),
        ("igpo", {"std": "n"}, "igpo: unknown std 'n'"),
        ("empg", {"centre_over": "n"}, "empg: unknown centre_over 'n'; there are: tokens, turns"),
        ("gae", {"lam": 1.01}, r"gae: lam is 1.01; it must be a number in 0 \.\. 1"),
        ("gae", {"gamma": -0.1}, r"gae: gamma is -0.1; it must be a number in 0 \.\. 1"),
        ("reinforce_pp", {"gamma": NAN}, r"reinforce_pp: gamma is nan; it must be a number in"),
    ],
)
def test_bad_options_are_named(base, options, message):
    with pytest.raises(ValueError, match=message):
        BASES[base](make_batch([[1], [1]]), **options)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_reward_is_named_in_a_batch_that_nobody_validated(base, value):
    batch = make_batch([[1], [2], [1]], rewards=[0.0, 1.0, NAN])
    rewards = torch.tensor([0.0, value, NAN])
    with pytest.raises(ValueError, match=r"TurnBatch.rewards: row 1 is infinite"):
        BASES[base](batch.replace(rewards=rewards))


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_gae_names_the_row_of_a_value_that_is_not_finite(value):
    """Where the reward is missing, nobody reads the values."""
    batch = make_batch([[1], [2], [1]], rewards=[0.0, 1.0, NAN])
    values = batch.values.clone()
    values[2] = value
    assert BASES["gae"](batch.replace(values=values)).isfinite().all()
    values[1, -1], values[1, 3] = value, value
    with pytest.raises(ValueError, match=r"TurnBatch.values: row 1 is not finite at a sampled"):
        BASES["gae"](batch.replace(values=values))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_empg_names_row_and_turn_of_an_infinite_entropy(value):
    batch = make_batch([[1, 2], [2, 1]], rewards=[0.0, 1.0])
    entropies = batch.entropies.masked_fill(batch.turn_ids == 1, value)
    with pytest.raises(ValueError, match=r"TurnBatch.entropies: row 0, turn 1 has entropies"):
        BASES["empg"](batch.replace(entropies=entropies))


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2,), (2, 3)])
def test_probabilities_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"information_gains: probabilities are .* of shape"):
        information_gains(make_batch([[1, 2], [2, 1]]), torch.full(shape, 0.5))
