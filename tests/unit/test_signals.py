"""Per-turn measurements against hand-made tables; an empty turn is missing, never 0."""

import math

import pytest
import torch
from batches import current_logprobs, make_batch, poison, ragged_batches
from hypothesis import given
from hypothesis import strategies as st

from turncredit.signals import (
    first_k_entropies,
    mismatch,
    total_entropy,
    turn_entropies,
    turn_means,
    turn_ratios,
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
    clean = turn_ratios(batch, logprobs).nan_to_num(-9)
    assert torch.equal(turn_ratios(spoilt, spoilt_logprobs).nan_to_num(-9), clean)
