"""Per-turn measurements against hand-made tables; an empty turn is missing, never 0."""

import math

import pytest
import torch
from batches import current_logprobs, make_batch, poison, ragged_batches
from hypothesis import given
from hypothesis import strategies as st

from turncredit.objectives import OBJECTIVES, kl_estimates
from turncredit.signals import (
    first_k_entropies,
    mismatch,
    total_entropy,
    turn_clip_fractions,
    turn_divergences,
    turn_entropies,
    turn_index_means,
    turn_means,
    turn_outside_shares,
    turn_ratios,
    turn_surprisals,
)


def with_entropies(lengths: list[list[int]], values: list[float]):
    batch = make_batch(lengths)
    entropies = batch.entropies.masked_scatter(batch.response_mask, torch.tensor(values))
    return batch.replace(entropies=entropies)


def test_first_k_entropies_table():
    batch = with_entropies([[3, 0, 1], [2]], [0.3, 0.5, 0.1, 0.8, 0.2, 0.4])
    found = first_k_entropies(batch, [1, 2, 16])
    assert found.shape == (2, 3, 3)
    assert found[0, 0].tolist() == pytest.approx([0.3, 0.4, 0.3])
    assert found[0, 2].tolist() == pytest.approx([0.8, 0.8, 0.8])
    assert found[1, 0].tolist() == pytest.approx([0.2, 0.3, 0.3])
    assert found[0, 1].isnan().all()
    assert found[1, 1:].isnan().all()


def test_ks_in_any_order_and_repeated():
    batch = make_batch([[5, 3], [1, 4]])
    ordered = first_k_entropies(batch, [1, 2, 4])
    mixed = first_k_entropies(batch, [4, 1, 4, 2])
    assert torch.equal(mixed, ordered[:, :, [2, 0, 2, 1]])
    for ks in ([], [0], [3, -1]):
        with pytest.raises(ValueError, match="each >= 1"):
            first_k_entropies(batch, ks)


@given(ragged_batches(), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_first_k_entropies_equal_a_plain_loop(batch, ks):
    found = first_k_entropies(batch, ks)
    for row in range(len(batch.rewards)):
        for turn in range(batch.num_turns):
            tokens = batch.entropies[row][batch.turn_ids[row] == turn]
            for position, k in enumerate(ks):
                expected = tokens[:k].double().mean().item()
                assert found[row, turn, position].item() == pytest.approx(expected, nan_ok=True)


def test_response_and_total_entropy():
    batch = with_entropies([[3, 0, 1], [2]], [0.3, 0.5, 0.1, 0.8, 0.2, 0.4])
    found = turn_entropies(batch)
    assert found[0].tolist() == pytest.approx([0.3, math.nan, 0.8], nan_ok=True)
    assert found[1, 0].item() == pytest.approx(0.3)
    assert total_entropy(batch) == pytest.approx(2.3 / 6)
    assert math.isnan(total_entropy(make_batch([[0]])))


def test_an_entropy_not_computed_makes_only_its_turn_missing():
    batch = with_entropies([[2, 2]], [0.1, math.nan, 0.3, 0.5])
    found = first_k_entropies(batch, [1, 2])[0]
    assert found[0].tolist() == pytest.approx([0.1, math.nan], nan_ok=True)
    assert found[1].tolist() == pytest.approx([0.3, 0.4])


def test_turn_ratios_are_geometric_means_and_differentiable():
    batch = make_batch([[2, 3, 0]])
    logprobs = batch.old_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor([0.1, 0.3, -0.2, -0.2, 0.1])
    logprobs.requires_grad_()
    ratios = turn_ratios(batch, logprobs)
    expected = [math.exp(0.2), math.exp(-0.1), math.nan]
    assert ratios[0].tolist() == pytest.approx(expected, nan_ok=True)
    (gradient,) = torch.autograd.grad(ratios[0, 0], logprobs)
    sampled = gradient[batch.response_mask].tolist()
    assert sampled == pytest.approx([math.exp(0.2) / 2] * 2 + [0.0] * 3)
    assert (gradient[~batch.response_mask] == 0).all()


def test_mismatch_by_hand_and_without_rollout_logprobs():
    batch = make_batch([[2]])
    old = batch.old_logprobs.masked_scatter(batch.response_mask, torch.tensor([-0.1, -0.5]))
    rollout = old.masked_scatter(batch.response_mask, torch.tensor([-0.1, -0.52]))
    found = mismatch(batch.replace(old_logprobs=old, rollout_logprobs=rollout))
    assert found["mean_abs_prob_diff"] == pytest.approx((math.exp(-0.5) - math.exp(-0.52)) / 2)
    assert found["mean_abs_logprob_diff"] == pytest.approx(0.01)
    assert found["k3_kl"] == pytest.approx((math.exp(0.02) - 1.02) / 2, rel=1e-3)
    with pytest.raises(ValueError, match="needs rollout_logprobs"):
        mismatch(batch.replace(rollout_logprobs=None))
    assert all(math.isnan(value) for value in mismatch(make_batch([[0]])).values())


def with_sampled(batch, name: str, values: list[float]):
    """The batch with these values of a [B, L] field at its sampled tokens."""
    field = getattr(batch, name).masked_scatter(batch.response_mask, torch.tensor(values))
    return batch.replace(**{name: field})


def moved(batch, log_ratios: list[float]) -> torch.Tensor:
    """[B, L] log-probs at these distances from the old ones, token by token."""
    logprobs = batch.old_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor(log_ratios)
    return logprobs


def test_all_first_ks_in_one_pass_are_those_of_single_calls():
    batch = make_batch([[130, 3], [64, 0]])
    together = first_k_entropies(batch, range(1, 129))
    assert together.shape == (2, 2, 128)
    for k in (1, 2, 3, 63, 64, 65, 127, 128):
        alone = first_k_entropies(batch, [k])[:, :, 0]
        assert torch.equal(together[:, :, k - 1].nan_to_num(-9), alone.nan_to_num(-9))


def test_surprisals_by_hand():
    batch = with_sampled(make_batch([[2, 0, 1]]), "old_logprobs", [-0.5, -1.5, -0.25])
    assert turn_surprisals(batch)[0].tolist() == pytest.approx([2.0, math.nan, 0.25], nan_ok=True)
    mean = turn_surprisals(batch, per_token=True)[0].tolist()
    assert mean == pytest.approx([1.0, math.nan, 0.25], nan_ok=True)
    current = moved(batch, [0.1, 0.2, 0.0]).requires_grad_()
    found = turn_surprisals(batch, current)
    assert found[0, 0].item() == pytest.approx(1.7)
    (gradient,) = torch.autograd.grad(found[0, 0], current)
    assert gradient[batch.response_mask].tolist() == [-1.0, -1.0, 0.0]
    assert (gradient[~batch.response_mask] == 0).all()


def test_divergences_by_hand_over_tokens_then_trajectories():
    """Turn 0 has d = 0.1, -0.3 and, in the other row, 0.6: not the mean over the three tokens."""
    batch = with_sampled(make_batch([[2, 1], [1]]), "old_logprobs", [-1.0, -2.0, -0.5, -1.0])
    batch = with_sampled(batch, "ref_logprobs", [-0.9, -2.3, -0.5, -0.4])
    k1, k3 = (turn_divergences(batch, estimator=name) for name in ("k1", "k3"))
    assert k1.flatten().tolist() == pytest.approx([0.1, 0.0, -0.6, math.nan], nan_ok=True, abs=1e-6)
    terms = [math.exp(d) - d - 1 for d in (0.1, -0.3, 0.6)]
    expected = [(terms[0] + terms[1]) / 2, 0.0, terms[2], math.nan]
    assert k3.flatten().tolist() == pytest.approx(expected, nan_ok=True, abs=1e-6)
    assert turn_index_means(k1).tolist() == pytest.approx([-0.25, 0.0], abs=1e-6)


def test_mean_divergences_of_sampled_words_are_the_exact_one():
    """Each word of a policy as often as it is sampled: both estimators' means are KL(p, ref)."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = (policy * (policy / reference).log()).sum().item()
    words = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    batch = make_batch([[len(words)]])
    batch = with_sampled(batch, "old_logprobs", policy.log()[words].tolist())
    batch = with_sampled(batch, "ref_logprobs", reference.log()[words].tolist())
    for estimator in ("k1", "k3"):
        found = turn_divergences(batch, estimator=estimator).item()
        assert found == pytest.approx(exact, abs=1e-6)


def test_divergences_are_differentiable_and_the_ends_are_cut():
    batch = make_batch([[2]])
    logprobs = batch.ref_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor([0.2, -30.0])
    logprobs.requires_grad_()
    found = turn_divergences(batch, logprobs)
    assert found.item() == pytest.approx((0.2 - 20) / 2)
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert gradient[batch.response_mask].tolist() == [0.5, 0.0]


def test_clip_fractions_count_the_pessimistic_side_alone():
    """Ratios 1.5, 0.5, 1.1 and 1.5, 0.5 with advantages of both signs, then 0."""
    logs = [math.log(r) for r in (1.5, 0.5, 1.1, 1.5, 0.5)]
    batch = make_batch([[3, 2, 0]])
    logprobs = moved(batch, logs)
    for sign, expected in [(1.0, [1 / 3, 1 / 2]), (-1.0, [1 / 3, 1 / 2]), (0.0, [0.0, 0.0])]:
        found = turn_clip_fractions(batch, logprobs, torch.full_like(logprobs, sign))[0]
        assert found.tolist() == pytest.approx([*expected, math.nan], nan_ok=True)
    per_token = torch.zeros_like(logprobs)
    per_token[batch.response_mask] = torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0])
    assert turn_clip_fractions(batch, logprobs, per_token)[0, :2].tolist() == [0.0, 1.0]
    wide = turn_clip_fractions(batch, logprobs, torch.ones_like(logprobs), clip_high=0.6)
    assert wide[0, :2].tolist() == [0.0, 0.0]
    narrow = turn_clip_fractions(batch, logprobs, torch.ones_like(logprobs), clip_high=0.05)
    assert narrow[0, :2].tolist() == pytest.approx([2 / 3, 1 / 2])
    low = turn_clip_fractions(batch, logprobs, -torch.ones_like(logprobs), clip_low=0.6)
    assert low[0, :2].tolist() == [0.0, 0.0]


@given(ragged_batches())
def test_clip_fractions_and_divergences_add_up_to_what_the_losses_report(batch):
    """Weighted by tokens, turn by turn: the clip fraction of PPO and the mean KL estimate."""
    logprobs, lengths = current_logprobs(batch), batch.turn_lengths()
    advantages = torch.where(batch.values > -1.5, 1.0, -1.0)
    _, metrics = OBJECTIVES["ppo_clip"](logprobs, batch, advantages)
    clipped = turn_clip_fractions(batch, logprobs, advantages).nan_to_num(0) * lengths
    expected = metrics["clip_fraction"] * metrics["response_tokens"]
    assert clipped.sum().item() == pytest.approx(expected if lengths.any() else 0, abs=1e-4)
    for estimator in ("k1", "k3"):
        estimates = kl_estimates(
            logprobs, batch.ref_logprobs, estimator=estimator, limit=math.inf
        ).masked_select(batch.response_mask)
        found = turn_divergences(batch, logprobs, estimator=estimator).nan_to_num(0) * lengths
        assert found.sum().item() == pytest.approx(estimates.sum().item(), rel=1e-4, abs=1e-4)


def test_outside_shares_of_tokens_and_of_turns():
    """A turn of ratios 2 and 1/2 has ratio 1: both tokens are outside, the turn is not."""
    batch = make_batch([[2, 1, 0], [1, 1]])
    logprobs = moved(batch, [math.log(2), -math.log(2), 0.1, -0.3, 0.05])
    by_token = turn_outside_shares(batch, logprobs)
    assert by_token[0].tolist() == pytest.approx([1.0, 0.0, math.nan], nan_ok=True)
    assert by_token[1].tolist() == pytest.approx([1.0, 0.0, math.nan], nan_ok=True)
    by_turn = turn_outside_shares(batch, logprobs, level="turn")
    assert by_turn[:, 0].tolist() == [0.0, 1.0]
    means = turn_index_means(by_turn).tolist()
    assert means == pytest.approx([0.5, 0.0, math.nan], nan_ok=True)
    assert turn_outside_shares(batch, logprobs, eps=0.04)[:, 1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "measure",
    [
        turn_surprisals,
        turn_divergences,
        turn_ratios,
        turn_outside_shares,
        lambda b, p: turn_outside_shares(b, p, level="turn"),
        lambda b, p: turn_clip_fractions(b, p, torch.ones_like(p)),
        lambda b, p: turn_clip_fractions(b, b.old_logprobs, p),
    ],
)
def test_a_nan_at_a_sampled_token_makes_its_turn_missing_and_a_wrong_shape_is_named(measure):
    batch = make_batch([[2, 2]])
    logprobs = moved(batch, [0.0, math.nan, 0.3, -0.1])
    assert measure(batch, logprobs)[0].isnan().tolist() == [True, False]
    for wrong in (torch.zeros(1), torch.zeros(1, 1), logprobs[:, 1:]):
        with pytest.raises(ValueError, match=r"(logprobs|advantages) have shape .* not \[B, L\]"):
            measure(batch, wrong)


def test_options_and_fields_are_named():
    batch = make_batch([[2]])
    logprobs = current_logprobs(batch)
    with pytest.raises(ValueError, match="turn_divergences needs ref_logprobs"):
        turn_divergences(batch.replace(ref_logprobs=None))
    with pytest.raises(ValueError, match="turn_divergences: unknown estimator 'k2'; there are: k1"):
        turn_divergences(batch, estimator="k2")
    with pytest.raises(ValueError, match=r"unknown level 'row'; there are: token, turn$"):
        turn_outside_shares(batch, logprobs, level="row")
    with pytest.raises(ValueError, match=r"eps is -0\.1"):
        turn_outside_shares(batch, logprobs, eps=-0.1)
    for name in ("clip_low", "clip_high"):
        with pytest.raises(ValueError, match=f"{name} is nan"):
            turn_clip_fractions(batch, logprobs, logprobs, **{name: math.nan})


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@given(batch=ragged_batches())
def test_nothing_outside_the_mask_matters(junk, batch):
    logprobs = current_logprobs(batch)
    spoilt, spoilt_logprobs = poison(batch, logprobs, junk=junk)
    for measure in (
        turn_entropies,
        lambda b: first_k_entropies(b, [1, 2, 16]),
        lambda b: turn_means(b, b.values),
        lambda b: torch.tensor(total_entropy(b)),
        lambda b: torch.tensor(list(mismatch(b).values())),
    ):
        assert torch.equal(measure(spoilt).nan_to_num(-9), measure(batch).nan_to_num(-9))
    for measure in (
        turn_ratios,
        turn_surprisals,
        turn_divergences,
        turn_outside_shares,
        lambda b, p: turn_surprisals(b, p, per_token=True),
        lambda b, p: turn_divergences(b, p, estimator="k3"),
        lambda b, p: turn_outside_shares(b, p, level="turn"),
        lambda b, p: turn_clip_fractions(b, p, p),
    ):
        clean = measure(batch, logprobs).nan_to_num(-9)
        assert torch.equal(measure(spoilt, spoilt_logprobs).nan_to_num(-9), clean)
