"""Turn weights other than the gate's rules: hand-made tables, laws, and what is refused."""

import math
from itertools import pairwise

import pytest
import torch
from batches import current_logprobs, make_batch, ragged_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.credit.aem import self_calibrated
from turncredit.credit.gates import decision_turns, update_reference
from turncredit.credit.turn_selection import quantiles
from turncredit.credit.weights import failed_trajectories, weight_statistics
from turncredit.methods import option_names
from turncredit.signals import turn_entropies, turn_ratios

NAN = math.nan
PROFILE = [0.01, 0.5, 0.01, 0.01]
AEM_FAMILY = ("aem", "aem_shuffle", "aem_reverse", "aem_traj_norm", "aem_batch_norm")
KEEP = ("keep_entropy_up", "keep_entropy_down")
SUFFIX_FAMILY = ("suffix_mask", "random_suffix", "oracle_suffix")


def blame(batch: TurnBatch, value: float = -1.0) -> Tensor:
    return torch.where(batch.response_mask, value, 0.0)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weigh(name: str, batch: TurnBatch, base: Tensor, **options) -> Tensor:
    """The weight with the options it knows; current log-probs where it needs them."""
    options = {"logprobs": current_logprobs(batch)} | options
    known = option_names(TURN_WEIGHTS[name])
    return TURN_WEIGHTS[name](batch, base, **{k: v for k, v in options.items() if k in known})


def groups_of_four(seed: int = 0, count: int = 16) -> TurnBatch:
    """Trajectories of 2 to 6 turns of 1 to 9 tokens, success at random, in groups of four."""
    stream = seeded(seed)
    sizes = torch.randint(2, 7, (count,), generator=stream).tolist()
    lengths = [torch.randint(1, 10, (size,), generator=stream).tolist() for size in sizes]
    rewards = torch.randint(0, 2, (count,), generator=stream).tolist()
    groups = [row // 4 for row in range(count)]
    return make_batch(lengths, rewards=rewards, groups=groups, seed=seed)


# laws of every weight


@pytest.mark.parametrize("name", TURN_WEIGHTS)
@settings(max_examples=30)
@given(batch=ragged_batches(), base=st.sampled_from(["grpo", "ones", "mixed"]))
def test_empty_turns_keep_one_and_the_rest_is_finite_and_never_negative(name, batch, base):
    signs = torch.where(batch.turn_ids % 2 == 0, -1.0, 1.0)
    base = {"grpo": BASES["grpo"](batch), "ones": blame(batch, 1.0), "mixed": signs}[base]
    weights = weigh(name, batch, base)
    assert weights.shape == (len(batch.rewards), batch.num_turns)
    assert weights.dtype == base.dtype
    assert (weights[batch.turn_lengths() == 0] == 1).all()
    assert weights.isfinite().all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("name", TURN_WEIGHTS)
def test_no_gradient_passes_through_a_weight(name):
    batch = groups_of_four()
    logprobs = current_logprobs(batch).requires_grad_()
    entropies = batch.entropies.clone().requires_grad_()
    batch = batch.replace(entropies=entropies)
    base = (BASES["grpo"](batch) + 0.0).requires_grad_()
    assert not weigh(name, batch, base, logprobs=logprobs).requires_grad


@pytest.mark.parametrize("name", ["none", *SUFFIX_FAMILY, "aem_traj_norm"])
def test_a_trajectory_of_one_turn_keeps_its_base_advantage(name):
    batch = make_batch([[3], [0, 2], [4, 0, 0], [1]], rewards=[0.0, 0.0, 1.0, 0.0])
    for base in (BASES["grpo"](batch), blame(batch)):
        assert (weigh(name, batch, base) == 1).all()


@pytest.mark.parametrize("name", sorted(set(TURN_WEIGHTS) - {"high_is_turns"}))
def test_weights_leave_the_global_generator_alone_and_repeat_themselves(name):
    batch = groups_of_four()
    state = torch.get_rng_state()
    first, again = (weigh(name, batch, BASES["grpo"](batch)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)


# suffix masking: definitions of failure, before and after the gate


def test_three_definitions_of_failure():
    """Partial rewards, an exact match with a penalty, a missing reward, an all-equal group."""
    batch = make_batch(
        [[1]] * 6,
        rewards=[0.6, 1.0, 0.9, NAN, 0.0, 0.0],
        success=[False, True, True, False, False, False],
        groups=[0, 0, 0, 0, 1, 1],
    )
    base = BASES["grpo"](batch)
    assert failed_trajectories(batch, base, "outcome").tolist() == [1, 0, 0, 1, 1, 1]
    assert failed_trajectories(batch, base, "reward").tolist() == [1, 0, 1, 0, 0, 0]
    assert failed_trajectories(batch, base, "advantage").tolist() == [1, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="unknown failed 'loss'; there are: outcome, reward, adv"):
        failed_trajectories(batch, base, "loss")


@pytest.mark.parametrize(
    ("failed", "expected"), [("outcome", [0, 1]), ("reward", [0, 0]), ("advantage", [0, 1])]
)
def test_suffix_mask_follows_the_definition_of_failure(failed, expected):
    batch = make_batch(
        [[2] * 4] * 3,
        rewards=[0.0, 0.9, 1.0],
        success=[False, True, True],
        entropies=[PROFILE] * 3,
    )
    base = blame(batch).where(
        torch.tensor([[True], [failed == "reward"], [False]]), blame(batch, 1)
    )
    weights = TURN_WEIGHTS["suffix_mask"](batch, base, failed=failed)
    assert weights[:2, 3].tolist() == expected
    assert (weights[2] == 1).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 0, 0]),
        ({"before": "drop"}, [0, 1, 0, 0]),
        ({"after": 0.25}, [1, 1, 0.25, 0.25]),
        ({"before": "drop", "after": 1.0}, [0, 1, 1, 1]),
    ],
)
def test_what_happens_before_and_after_the_gate(options, expected):
    batch = make_batch([[2] * 4], success=[False], entropies=[PROFILE])
    batch = batch.replace(oracle_turn=torch.tensor([1]))
    for name in ("suffix_mask", "oracle_suffix"):
        assert TURN_WEIGHTS[name](batch, blame(batch), **options)[0].tolist() == expected


def test_credit_before_the_gate_is_not_dropped():
    batch = make_batch([[2] * 4], success=[False], entropies=[[0.01, 0.01, 0.5, 0.01]])
    base = batch.gather_turns(torch.tensor([[1.0, -1.0, -1.0, -1.0]]))
    weights = TURN_WEIGHTS["suffix_mask"](batch, base, before="drop")
    assert weights[0].tolist() == [1, 0, 1, 0]


# running reference


def test_the_running_reference_by_hand():
    """Means over the trajectories that have the turn: 0.2 and 0.5, then 0.4, - and 0.1."""
    one = make_batch([[2, 1], [3, 0]], entropies=[[0.1, 0.5], [0.3, 0.0]])
    two = make_batch([[2, 0, 1]], entropies=[[0.4, 0.0, 0.1]])
    reference = update_reference(torch.empty(0), one)
    assert reference.tolist() == pytest.approx([0.2, 0.5])
    reference = update_reference(reference, two, momentum=0.75)
    assert reference.tolist() == pytest.approx([0.25, 0.5, 0.1])
    assert update_reference(reference, one, momentum=0.0).tolist() == pytest.approx([0.2, 0.5, 0.1])


def test_a_turn_never_seen_stays_unknown():
    batch = make_batch([[2, 0, 1]], entropies=[[0.4, 0.0, 0.1]])
    reference = update_reference(torch.empty(0), batch)
    assert math.isnan(reference[1])
    assert len(update_reference(torch.tensor([0.1, 0.2, 0.3, 0.4]), batch)) == 4


def test_the_reference_depends_on_neither_the_order_nor_the_number_of_rows():
    batch = groups_of_four(seed=3)
    straight = update_reference(torch.empty(0), batch, k=3)
    for order in (torch.arange(16).flip(0), torch.randperm(16, generator=seeded(1))):
        assert torch.equal(straight, update_reference(torch.empty(0), batch.select(order), k=3))
    padded = make_batch([[0]] * 5).replace(turn_rewards=None, anchor_ids=None)
    assert update_reference(straight, padded).equal(straight)


def test_a_run_of_steps_uses_the_reference():
    """Turn 0 jumps from 0.05 to 0.3: no rule within a trajectory sees it, `running` does."""
    options = {"rule": "running", "c": 2.0}
    reference = torch.empty(0)
    for step in range(5):
        opening = 0.05 if step < 4 else 0.3
        batch = make_batch([[2, 2]] * 2, entropies=[[opening, 0.4]] * 2)
        found = decision_turns(batch, reference=reference, **options).tolist()
        assert found == ([-1, -1] if step < 4 else [0, 0])
        reference = update_reference(reference, batch)
    assert decision_turns(batch, rule="ratio", c=1.5).tolist() == [-1, -1]


# controls


@pytest.mark.parametrize("before", ["keep", "drop"])
@pytest.mark.parametrize("c", [1.0, 1.3, 2.0])
def test_random_suffix_masks_as_many_tokens_as_the_gate(c, before):
    """To within half of the longest trajectory, the coarseness of choosing whole suffixes."""
    seen = set()
    for seed in range(20):
        batch = groups_of_four(seed, count=32)
        base, lengths = BASES["grpo"](batch), batch.turn_lengths()
        options = {"c": c, "before": before}
        gated = TURN_WEIGHTS["suffix_mask"](batch, base, **options)
        drawn = TURN_WEIGHTS["random_suffix"](batch, base, generator=seeded(seed), **options)
        target, found = (int((lengths * (w == 0)).sum()) for w in (gated, drawn))
        whole = before == "drop" and (drawn[~batch.success] == 0).any(dim=1).all()
        assert abs(target - found) <= lengths.sum(dim=1).max() / 2 or (whole and found < target)
        assert (drawn[batch.success] == 1).all()
        seen.add((target > 0, torch.equal(gated, drawn)))
    assert (True, False) in seen


def test_random_suffix_keeps_the_gate_turn_and_what_comes_before():
    for seed in range(30):
        batch = groups_of_four(seed)
        weights = TURN_WEIGHTS["random_suffix"](
            batch, blame(batch), c=1.0, floor=0.0, generator=seeded(seed)
        )
        assert (weights[:, 0] == 1).all()
        for row, lengths in zip(weights, batch.turn_lengths(), strict=True):
            real = row[lengths > 0].tolist()
            assert real == sorted(real, reverse=True)


def test_random_gates_are_uniform_over_the_turns():
    """One failed row of four turns must mask 6 of 8 tokens in the end; its first gate is uniform.

    Two such rows and a target of one row's share: 3000 draws of the last kept turn, each of the
    four expected 1/4 of the time when the gate row is drawn at all.
    """
    batch = make_batch([[1] * 5] * 40, rewards=[0.0] * 40, entropies=[[0.01, 0.5] + [0.01] * 3] * 2)
    base = blame(batch)
    counts = torch.zeros(4)
    for seed in range(300):
        weights = TURN_WEIGHTS["random_suffix"](batch, base, generator=seeded(seed))
        masked = (weights == 0).sum(dim=1)
        counts += torch.bincount(masked[masked > 0], minlength=5)[1:]
    shares = counts / counts.sum()
    # Gates at turns 0 to 3 mask 4 to 1 tokens; three standard errors around 1/4.
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=3 * math.sqrt(0.1875 / counts.sum()))


def test_more_is_masked_than_one_gate_each_could_when_the_target_asks_for_it():
    """Every decision turn is the first, so that all but it is masked: random gates must follow."""
    batch = make_batch([[2] * 5] * 3, rewards=[0.0] * 3, entropies=[[0.9] + [0.01] * 4] * 3)
    for seed in range(20):
        weights = TURN_WEIGHTS["random_suffix"](batch, blame(batch), generator=seeded(seed))
        assert weights.tolist() == [[1, 0, 0, 0, 0]] * 3


def test_random_suffix_is_silent_where_the_gate_is():
    batch = make_batch([[2] * 4] * 4, rewards=[0.0] * 4, entropies=[[0.02] * 4] * 4)
    assert (TURN_WEIGHTS["random_suffix"](batch, blame(batch)) == 1).all()


def test_random_suffix_changes_with_its_generator_only():
    batch = groups_of_four(5, count=32)
    base = BASES["grpo"](batch)
    draws = [
        TURN_WEIGHTS["random_suffix"](batch, base, c=1.3, generator=seeded(seed))
        for seed in (1, 1, 2, 3)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not (torch.equal(draws[1], draws[2]) and torch.equal(draws[2], draws[3]))


def test_oracle_suffix_by_hand():
    batch = make_batch(
        [[2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 0, 2]], rewards=[0.0, 0.0, 1.0, 0.0]
    ).replace(oracle_turn=torch.tensor([0, -1, 0, 1]))
    assert TURN_WEIGHTS["oracle_suffix"](batch, blame(batch)).tolist() == [
        [1, 0, 0],
        [1, 1, 1],
        [1, 1, 1],
        [1, 1, 1],  # the oracle names a turn without tokens
    ]


def test_drop_and_scale_failed_by_hand():
    batch = make_batch([[2, 0, 1], [1, 2, 0]], rewards=[0.0, 1.0])
    base = BASES["grpo"](batch)
    assert TURN_WEIGHTS["drop_failed"](batch, base).tolist() == [[0, 1, 0], [1, 1, 1]]
    for factor, expected in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        found = TURN_WEIGHTS["scale_failed"](batch, base, factor=factor)
        assert found.tolist() == [[expected, 1, expected], [1, 1, 1]]


@pytest.mark.parametrize("options", [{"c": 1.2}, {"after": 0.5}, {"before": "drop"}])
def test_scale_failed_takes_away_the_same_blame_as_the_gate(options):
    """Sum of base advantage times weight over the failed tokens, under equal advantages."""
    taken = []
    for seed in range(10):
        batch = groups_of_four(seed)
        base, lengths = blame(batch), batch.turn_lengths()
        masses = [
            ((1 - TURN_WEIGHTS[name](batch, base, floor=0.0, **options)) * lengths).sum().item()
            for name in ("suffix_mask", "scale_failed")
        ]
        assert masses[0] == pytest.approx(masses[1], abs=1e-3)
        taken.append(masses[0])
    assert max(taken) > 0


def test_scale_failed_by_hand():
    """Three of eight penalised tokens would be masked: 5/8 of the blame is left on each."""
    batch = make_batch(
        [[1, 1, 2, 1], [3], [2]],
        rewards=[0.0, 0.0, 1.0],
        entropies=[PROFILE, [0.01], [0.01]],
    )
    found = TURN_WEIGHTS["scale_failed"](batch, BASES["grpo"](batch))
    assert found[:2, 0].tolist() == [0.625, 0.625]
    assert found[2, 0] == 1
    no_blame = TURN_WEIGHTS["scale_failed"](batch, blame(batch, 0.0))
    assert (no_blame == 1).all()


def test_scale_ungrounded_touches_the_credit_of_lucky_wins_only():
    batch = make_batch([[2, 2]] * 4, rewards=[1.0, 1.0, 0.0, 0.0])
    batch = batch.replace(grounded=torch.tensor([False, True, False, True]))
    base = batch.gather_turns(torch.tensor([[1.0, -1.0]] * 4))
    found = TURN_WEIGHTS["scale_ungrounded"](batch, base, factor=0.25)
    assert found.tolist() == [[0.25, 1], [1, 1], [1, 1], [1, 1]]
    assert TURN_WEIGHTS["scale_ungrounded"](batch, base)[0, 0] == 0


# choosing turns


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # 0.5 quantiles: batch 0.35; groups 0.35 and 0.35; trajectories 0.2, 0.45, 0.7, 0.1.
        ("batch", [[0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 0]]),
        ("trajectory", [[0, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1]]),
    ],
)
def test_high_entropy_turns_by_scope(scope, expected):
    batch = make_batch(
        [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 1]],
        groups=[0, 0, 1, 1],
        entropies=[[0.1, 0.2, 0.3], [0.4, 0.5, 0.0], [0.6, 0.7, 0.8], [0.1, 0.0, 0.1]],
    )
    found = TURN_WEIGHTS["high_entropy_turns"](batch, blame(batch), fraction=0.5, scope=scope)
    assert found.tolist() == expected


def test_high_entropy_turns_within_groups():
    """Group 0: 0.1, 0.2, 0.3 and 0.4, median 0.25; group 1: 5 and 6, its own median 5.5."""
    batch = make_batch(
        [[1, 1], [1, 1], [1, 1]], groups=[0, 0, 1], entropies=[[0.1, 0.4], [0.2, 0.3], [5, 6]]
    )
    found = TURN_WEIGHTS["high_entropy_turns"](batch, blame(batch), fraction=0.5, scope="group")
    assert found.tolist() == [[0, 1], [0, 1], [0, 1]]


@given(ragged_batches(), st.sampled_from(["batch", "group", "trajectory"]), st.floats(0.01, 1))
def test_high_entropy_turns_keep_the_highest_and_about_the_fraction(batch, scope, fraction):
    weights = TURN_WEIGHTS["high_entropy_turns"](
        batch, blame(batch), fraction=fraction, scope=scope, k=1
    )
    real = batch.turn_lengths() > 0
    if not real.any():
        return
    if scope == "batch":  # distinct entropies: ranks at or above (1 - fraction) * (n - 1)
        number = int(real.sum())
        assert weights[real].sum() == number - math.ceil(round((1 - fraction) * (number - 1), 9))
    if scope == "trajectory":
        assert ((weights * real).sum(dim=1) >= 1)[real.any(dim=1)].all()
    everything = TURN_WEIGHTS["high_entropy_turns"](batch, blame(batch), fraction=1.0, scope=scope)
    assert (everything == 1).all()


def test_ties_are_kept_together():
    batch = make_batch([[2] * 5], entropies=[[0.0] * 5])
    assert (TURN_WEIGHTS["high_entropy_turns"](batch, blame(batch)) == 1).all()


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2)), min_size=1, max_size=30),
    st.floats(0, 1),
)
def test_quantiles_agree_with_torch(pairs, share):
    values = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    scopes = torch.tensor([scope for _, scope in pairs]).unique(return_inverse=True)[1]
    found = quantiles(values, scopes, share)
    for scope in scopes.unique():
        expected = values[scopes == scope].quantile(share)
        assert found[scope].item() == pytest.approx(expected.item(), abs=1e-8)


def test_high_is_turns_by_hand_on_both_sides():
    batch = make_batch([[1, 1, 1, 0, 2]])
    batch = batch.replace(old_logprobs=batch.old_logprobs - 0.3)
    shift = torch.tensor([0.3, -0.3, 0.1, 0.3, -0.1])
    logprobs = batch.old_logprobs.masked_scatter(
        batch.response_mask, batch.old_logprobs[batch.response_mask] + shift
    )
    function = TURN_WEIGHTS["high_is_turns"]
    both = function(batch, blame(batch), limit=0.2, logprobs=logprobs)
    assert both[0].tolist() == [0, 0, 1, 1, 1]  # ratios 1.35, 0.74, 1.11, -, 1.11
    above = function(batch, blame(batch), limit=0.2, side="above", logprobs=logprobs)
    assert above[0].tolist() == [0, 1, 1, 1, 1]
    unmoved = function(batch, blame(batch), limit=0.0, logprobs=batch.old_logprobs)
    assert (unmoved == 1).all()


@given(ragged_batches(), st.floats(0.001, 1.0))
def test_high_is_turns_agree_with_the_ratios(batch, limit):
    logprobs = current_logprobs(batch)
    weights = TURN_WEIGHTS["high_is_turns"](batch, blame(batch), limit=limit, logprobs=logprobs)
    ratios = turn_ratios(batch, logprobs)
    assert torch.equal(weights == 0, (ratios - 1).abs() > limit)


# adaptive entropy modulation


@pytest.mark.parametrize("name", AEM_FAMILY)
@settings(max_examples=30)
@given(batch=ragged_batches(), temperature=st.floats(0, 5), min_spread=st.sampled_from([0.0, 0.1]))
def test_the_mean_coefficient_of_a_scope_is_one(name, batch, temperature, min_spread):
    """The self-calibration: over the responses, unweighted by length, to float32 rounding."""
    weights = TURN_WEIGHTS[name](
        batch, blame(batch), temperature=temperature, min_spread=min_spread
    )
    real = batch.turn_lengths() > 0
    scopes = {"aem_traj_norm": torch.arange(len(real)), "aem_batch_norm": torch.zeros(len(real))}
    scopes = scopes.get(name, batch.group_ids)
    for scope in scopes.unique():
        chosen = weights[scopes == scope][real[scopes == scope]].double()
        if len(chosen):
            assert chosen.mean().item() == pytest.approx(1, abs=2e-6 * math.exp(5) / 100)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3)), min_size=1, max_size=40),
    st.floats(-4, 4),
)
def test_the_mean_is_one_to_float64_rounding(pairs, slope):
    entropies = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    scopes = torch.tensor([scope for _, scope in pairs]).unique(return_inverse=True)[1]
    alpha = self_calibrated(entropies, scopes, torch.ones(len(pairs), dtype=torch.bool), slope)
    for scope in scopes.unique():
        assert alpha[scopes == scope].mean().item() == pytest.approx(1, abs=1e-13)
    for value, other in pairwise(sorted(zip(entropies.tolist(), alpha.tolist(), strict=True))):
        if scopes.max() == 0:  # one scope: alpha is monotone in entropy
            assert (other[1] - value[1]) * math.copysign(1, slope) >= -1e-12


def test_groups_of_small_spread_are_silent_and_the_others_do_not_notice():
    entropies = [[0.2, 0.6], [1.0, 0.4], [0.05, 0.1], [0.08, 0.02]]
    batch = make_batch([[1, 1]] * 4, groups=[0, 0, 1, 1], entropies=entropies)
    base = blame(batch)
    weights = TURN_WEIGHTS["aem"](batch, base)
    assert (weights[2:] == 1).all()
    assert torch.equal(weights[:2], TURN_WEIGHTS["aem"](batch.select([0, 1]), base[:2]))
    assert (TURN_WEIGHTS["aem"](batch, base, min_spread=0.0)[2:] != 1).any()
    assert (TURN_WEIGHTS["aem"](batch, base, min_spread=0.9) == 1).all()
    assert (TURN_WEIGHTS["aem_traj_norm"](batch, base)[2:] == 1).all()
    assert (TURN_WEIGHTS["aem_batch_norm"](batch, base)[2:] != 1).all()


def test_the_relative_guard_goes_by_the_spread_as_a_share_of_the_groups_mean():
    """Spread over mean is 1.25 in the first group, 0.8 in the second, whatever their scale."""
    for scale in (1.0, 1e-3):
        entropies = [[scale * h for h in row] for row in ([0.2, 0.8, 1.0], [0.3, 0.7, 0.5])]
        batch = make_batch([[1] * 3] * 2, groups=[0, 1], entropies=entropies)
        base, free = blame(batch), {"min_spread": 0.0}
        without = TURN_WEIGHTS["aem"](batch, base, **free)
        for share, silent in ((0.7, []), (1.0, [1]), (1.5, [0, 1])):
            weights = TURN_WEIGHTS["aem"](batch, base, relative_spread=share, **free)
            for group in (0, 1):
                expected = torch.ones(3) if group in silent else without[group]
                assert torch.equal(weights[group], expected), (scale, share, group)


def test_a_spread_of_zero_is_silent_even_without_a_guard():
    batch = make_batch([[2, 1], [1]], entropies=[[0.3, 0.3], [0.3]])
    for name in AEM_FAMILY:
        assert (TURN_WEIGHTS[name](batch, blame(batch), min_spread=0.0) == 1).all()


def test_lengths_do_not_weigh_and_all_tokens_of_a_response_count():
    """Mean token entropies 0.1 and 0.7, whatever the number of tokens."""
    short = make_batch([[1, 1]], entropies=[[0.1, 0.7]])
    long = make_batch([[40, 1]], entropies=[[0.1, 0.7]])
    weights = [TURN_WEIGHTS["aem"](batch, blame(batch)) for batch in (short, long)]
    torch.testing.assert_close(*weights)
    late = torch.where(long.turn_ids == 0, (torch.arange(long.turn_ids.shape[1]) > 30) * 2.0, 0.2)
    late = long.replace(entropies=late)
    assert turn_entropies(late)[0, 0] > turn_entropies(late)[0, 1]
    assert TURN_WEIGHTS["aem"](late, blame(late))[0, 0] < 1


def test_reverse_turns_the_order_round_and_temperature_zero_does_nothing():
    batch = groups_of_four()
    base = blame(batch)
    forward, backward = (TURN_WEIGHTS[name](batch, base) for name in ("aem", "aem_reverse"))
    real = batch.turn_lengths() > 0
    moved = real & (forward != 1)
    assert moved.any()
    for rows in batch.group_ids.unique():
        chosen = moved & (batch.group_ids == rows)[:, None]
        assert torch.equal(forward[chosen].argsort(), (-backward[chosen]).argsort())
    assert (TURN_WEIGHTS["aem"](batch, base, temperature=0.0) == 1).all()


def test_shuffle_deals_the_same_coefficients_within_each_group():
    batch = groups_of_four(7)
    base, real = blame(batch), batch.turn_lengths() > 0
    straight = TURN_WEIGHTS["aem"](batch, base, min_spread=0.0)
    shuffled = [
        TURN_WEIGHTS["aem_shuffle"](batch, base, min_spread=0.0, generator=seeded(seed))
        for seed in range(3)
    ]
    assert not torch.equal(shuffled[0], shuffled[1])
    for weights in shuffled:
        assert not torch.equal(weights, straight)
        for group in batch.group_ids.unique():
            chosen = real & (batch.group_ids == group)[:, None]
            assert torch.equal(weights[chosen].sort().values, straight[chosen].sort().values)


def test_shuffles_are_uniform():
    """Three responses, one group: six permutations, each 1/6 of 600 draws within 4 std."""
    batch = make_batch([[1, 1, 1]], entropies=[[0.1, 0.5, 0.9]])
    base = blame(batch)
    found: dict[tuple, int] = {}
    for seed in range(600):
        weights = TURN_WEIGHTS["aem_shuffle"](batch, base, generator=seeded(seed))
        key = tuple(weights[0].tolist())
        found[key] = found.get(key, 0) + 1
    assert len(found) == 6
    assert min(found.values()) > 100 - 4 * math.sqrt(600 * 5 / 36)


@given(ragged_batches(), st.booleans())
def test_keep_up_and_down_share_the_driving_responses(batch, all_blame):
    base = blame(batch) if all_blame else BASES["grpo"](batch)
    up, down = (TURN_WEIGHTS[name](batch, base, min_spread=0.0) for name in KEEP)
    alpha = TURN_WEIGHTS["aem"](batch, base, min_spread=0.0)
    real = batch.turn_lengths() > 0
    driving = real & (alpha != 1) & (batch.turn_sums(base) != 0)
    assert torch.equal((up + down)[real], driving[real].float())
    product = batch.turn_sums(base) * (alpha - 1)
    assert (product[real & (up == 1)] < 0).all()
    assert (product[real & (down == 1)] > 0).all()


# what is refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("suffix_mask", {"k": 0}, "k is 0"),
        ("suffix_mask", {"c": NAN}, "c is nan"),
        ("suffix_mask", {"floor": -0.1}, "floor is -0.1"),
        ("suffix_mask", {"after": 1.5}, "after is 1.5"),
        ("suffix_mask", {"before": "mask"}, "unknown before 'mask'; there are: keep, drop"),
        ("suffix_mask", {"failed": "loss"}, "unknown failed 'loss'"),
        ("random_suffix", {"after": -1.0}, "after is -1.0"),
        ("random_suffix", {"k": -3}, "k is -3"),
        ("oracle_suffix", {"before": ""}, "unknown before ''"),
        ("drop_failed", {"failed": "all"}, "unknown failed 'all'"),
        ("scale_failed", {"factor": 2.0}, "factor is 2.0"),
        ("scale_failed", {"factor": NAN}, "factor is nan"),
        ("scale_ungrounded", {"factor": -0.5}, "factor is -0.5"),
        ("high_entropy_turns", {"fraction": 0.0}, "fraction is 0.0"),
        ("high_entropy_turns", {"fraction": 1.1}, "fraction is 1.1"),
        ("high_entropy_turns", {"k": 0}, "k is 0"),
        ("high_entropy_turns", {"scope": "turn"}, "unknown scope 'turn'; there are: batch, group"),
        ("high_is_turns", {"limit": -1.0}, "limit is -1.0"),
        ("high_is_turns", {"side": "below"}, "unknown side 'below'"),
        ("high_is_turns", {"logprobs": None}, "logprobs is None"),
        ("high_is_turns", {"logprobs": torch.zeros(2, 3)}, r"logprobs are .* of shape \(2, 3\)"),
        *[(name, {"temperature": -0.1}, "temperature is -0.1") for name in (*AEM_FAMILY, *KEEP)],
        ("aem", {"relative_spread": -1.0}, "relative_spread is -1.0"),
        *[(name, {"min_spread": NAN}, "min_spread is nan") for name in (*AEM_FAMILY, *KEEP)],
    ],
)
def test_options_out_of_range_are_named(name, options, message):
    batch = make_batch([[2, 2], [1, 1]])
    with pytest.raises(ValueError, match=message):
        weigh(name, batch, BASES["grpo"](batch), **options)


def test_a_momentum_out_of_range_is_named():
    for momentum in (1.0, -0.1, NAN, "0.9", None):
        with pytest.raises(ValueError, match="momentum is"):
            update_reference(torch.empty(0), make_batch([[1]]), momentum=momentum)


READS_ENTROPIES = [
    "suffix_mask", "random_suffix", "scale_failed", "high_entropy_turns", *AEM_FAMILY, *KEEP,
    "aem_corrected",
]  # fmt: skip


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("name", READS_ENTROPIES)
def test_unknown_entropies_name_row_and_turn(name, value):
    batch = make_batch([[2, 2], [2, 0, 2]])
    entropies = batch.entropies.clone()
    entropies[1, batch.turn_ids[1] == 2] = value
    with pytest.raises(ValueError, match="entropies: row 1, turn 2 has entropies not computed"):
        weigh(name, batch.replace(entropies=entropies), blame(batch))


@pytest.mark.parametrize("name", sorted(set(TURN_WEIGHTS) - set(READS_ENTROPIES)))
def test_the_others_do_not_need_entropies(name):
    batch = groups_of_four()
    unknown = batch.replace(entropies=torch.full_like(batch.entropies, NAN))
    assert torch.equal(*(weigh(name, b, BASES["grpo"](b)) for b in (batch, unknown)))


def test_unknown_logprobs_name_row_and_turn():
    batch = make_batch([[2, 2], [2, 0, 2]])
    logprobs = batch.old_logprobs.clone()
    logprobs[1, batch.turn_ids[1] == 2] = NAN
    with pytest.raises(ValueError, match="logprobs of row 1, turn 2 hold NaN"):
        weigh("high_is_turns", batch, blame(batch), logprobs=logprobs)


@pytest.mark.parametrize(
    ("name", "field"), [("oracle_suffix", "oracle_turn"), ("scale_ungrounded", "grounded")]
)
def test_missing_fields_are_named_with_a_remedy(name, field):
    batch = make_batch([[2], [1]]).replace(**{field: None})
    with pytest.raises(ValueError, match=f"{name} needs TurnBatch.{field}.*use a world"):
        TURN_WEIGHTS[name](batch, blame(batch))


# statistics


def test_weight_statistics_by_hand():
    batch = make_batch(
        [[2, 0, 1], [3], [1], [1]], groups=[0, 0, 1, 1], rewards=[0.0, 1.0, 0.0, 1.0]
    )
    weights = torch.tensor([[0.5, 1.0, 1.5], [1.0, 1, 1], [1, 1, 1], [1, 1, 1]])
    found = weight_statistics(batch, BASES["grpo"](batch), weights)
    assert found["weight_min"] == 0.5
    assert found["weight_max"] == 1.5
    assert found["reweighted_share"] == pytest.approx(3 / 8)
    assert found["silent_groups"] == 0.5
    assert found["gate_rate"] == 0.0
    assert (found["damped_positive"], found["damped_negative"]) == (0.0, pytest.approx(1 / 3))


def test_an_empty_turn_and_one_without_advantage_are_not_among_the_damped():
    batch = make_batch([[2, 0, 1, 1]])
    signs = torch.tensor([-1.0, -1.0, 1.0, 0.0])
    base = torch.where(batch.response_mask, signs[batch.turn_ids], 0.0)
    found = weight_statistics(batch, base, torch.tensor([[0.5, 0.5, 0.5, 0.5]]))
    assert (found["damped_positive"], found["damped_negative"]) == (1.0, 1.0)
    found = weight_statistics(batch, base, torch.tensor([[1.5, 0.5, 1.0, 0.5]]))
    assert (found["damped_positive"], found["damped_negative"]) == (0.0, 0.0)


def test_weight_statistics_of_nothing_are_missing():
    batch = make_batch([[0], [0]])
    found = weight_statistics(batch, blame(batch), torch.ones(2, 1))
    damped = ("damped_positive", "damped_negative")
    for name in ("weight_min", "weight_max", "reweighted_share", "silent_groups", *damped):
        assert math.isnan(found[name])


def test_the_histogram_of_the_gate_turn():
    rows = [[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1] * 6]
    batch = make_batch([[1] * 6] * 4, rewards=[0.0] * 4)
    found = weight_statistics(batch, blame(batch), torch.tensor(rows, dtype=torch.float32))
    shares = [found[f"gate_at_{turn}"] for turn in (0, 1, 2, 3, "later")]
    assert shares == pytest.approx([1 / 3, 0, 0, 1 / 3, 1 / 3])
    assert found["gate_turn"] == pytest.approx(7 / 3)
    assert found["gate_rate"] == 0.75
