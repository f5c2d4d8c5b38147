"""The clipped surrogate and the four ways to turn token losses into one number."""

import math

import pytest
import torch
from batches import current_logprobs, make_batch
from torch import Tensor

from turncredit.objectives import AGGREGATIONS, OBJECTIVES, aggregate, batch_totals

PPO = OBJECTIVES["ppo_clip"]
NAN = math.nan


def one_token(log_ratio: float, advantage: float, **options) -> tuple[float, float, dict]:
    """Loss, gradient with respect to the log-prob, and metrics of a single sampled token."""
    batch = make_batch([[1]])
    logprobs = (batch.old_logprobs + log_ratio).requires_grad_()
    loss, metrics = PPO(logprobs, batch, torch.full_like(logprobs, advantage), **options)
    loss.backward()
    return loss.item(), logprobs.grad[batch.response_mask].item(), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 1.0, -1.0, -1.0, 0),
        (1.5, 1.0, -1.2, 0.0, 1),  # too good already: clipped, no gradient
        (0.5, 1.0, -0.5, -0.5, 0),  # the optimistic side is not clipped
        (1.5, -1.0, 1.5, 1.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
        (1.1, 2.0, -2.2, -2.2, 0),
        (1.5, 0.0, 0.0, 0.0, 0),
    ],
)
def test_clipped_surrogate_table(ratio, advantage, loss, gradient, clipped):
    found = one_token(math.log(ratio), advantage)
    assert found[:2] == pytest.approx((loss, gradient), abs=1e-5)
    assert found[2]["clip_fraction"] == clipped
    assert found[2]["ratio_max"] == pytest.approx(ratio)
    assert found[2]["ppo_kl"] == pytest.approx(-math.log(ratio), abs=1e-6)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert one_token(math.log(5), -2.0, dual_clip=3.0)[:2] == pytest.approx((6.0, 0.0))
    assert one_token(math.log(2), -2.0, dual_clip=3.0)[:2] == pytest.approx((4.0, 4.0))
    assert one_token(math.log(5), 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)
    assert one_token(math.log(5), -2.0, dual_clip=3.0)[2]["dual_clip_fraction"] == 1
    assert one_token(math.log(5), -2.0)[2]["dual_clip_fraction"] == 0
    for bad in (1.0, 0.5):
        with pytest.raises(ValueError, match=f"dual_clip is {bad}; it must exceed 1"):
            one_token(0.0, 1.0, dual_clip=bad)


def test_log_ratio_guard():
    loss, gradient, metrics = one_token(50.0, -1.0)
    assert loss == pytest.approx(math.exp(20), rel=1e-4)
    assert gradient == 0
    assert metrics["ratio_guarded"] == 1
    assert one_token(19.0, -1.0)[2]["ratio_guarded"] == 0


def test_asymmetric_clip_range():
    assert one_token(math.log(1.27), 1.0, clip_high=0.28)[0] == pytest.approx(-1.27, abs=1e-5)
    assert one_token(math.log(1.50), 1.0, clip_high=0.28)[0] == pytest.approx(-1.28, abs=1e-5)
    assert one_token(math.log(0.50), -1.0, clip_low=0.1)[0] == pytest.approx(0.9, abs=1e-5)


LOSSES = torch.tensor([[1.0, 3.0, NAN, NAN], [2.0, 4.0, 6.0, 8.0], [NAN] * 4])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", 24 / 6),
        ("seq_mean_token_mean", (2 + 5) / 2),  # the empty row does not count
        ("seq_mean_token_sum", (4 + 20) / 2),
        ("seq_mean_token_sum_norm", (4 + 20) / 2 / 8),
    ],
)
def test_aggregation_table(mode, expected):
    assert aggregate(LOSSES, MASK, mode=mode, max_length=8).item() == pytest.approx(expected)
    nothing = aggregate(LOSSES, torch.zeros_like(MASK), mode=mode, max_length=8)
    assert nothing.item() == 0.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_losses_are_summed_in_float64(mode):
    """A float32 sum would lose the ones; one row, so every mode divides the same sum of 2."""
    losses = torch.tensor([[1e9, 1.0, 1.0, -1e9]])
    found = aggregate(losses, torch.ones(1, 4).bool(), mode=mode, max_length=2)
    expected = {"token_mean": 0.5, "seq_mean_token_mean": 0.5, "seq_mean_token_sum": 2.0}
    assert found.item() == expected.get(mode, 1.0)


def test_explicit_totals_replace_those_of_the_mask():
    assert aggregate(LOSSES, MASK, total_tokens=12).item() == pytest.approx(2.0)
    found = aggregate(LOSSES, MASK, mode="seq_mean_token_sum", total_sequences=4)
    assert found.item() == pytest.approx(6.0)


def test_unknown_modes_and_a_missing_length_are_errors():
    with pytest.raises(ValueError, match="unknown aggregation 'mean'; there are: token_mean"):
        aggregate(LOSSES, MASK, mode="mean")
    for length in (None, 0):
        with pytest.raises(ValueError, match=f"needs max_length >= 1, and it is {length}"):
            aggregate(LOSSES, MASK, mode="seq_mean_token_sum_norm", max_length=length)
    batch = make_batch([[1]])
    with pytest.raises(
        ValueError, match="objective 'ppo_clip' has no option 'clip'; it has: clip_"
    ):
        PPO(batch.old_logprobs, batch, batch.old_logprobs, clip=0.2)
    with pytest.raises(ValueError, match=r"unknown objective 'ppo'; there are: .*ppo_clip"):
        OBJECTIVES["ppo"]
    length = batch.old_logprobs.shape[1]
    with pytest.raises(ValueError, match=r"logprobs have shape \(1, 1\), not \[B, L\]"):
        PPO(torch.zeros(1, 1), batch, batch.old_logprobs)
    with pytest.raises(ValueError, match=rf"advantages have shape \({length},\), not \[B, L\]"):
        PPO(batch.old_logprobs, batch, torch.zeros(length))


def ragged() -> tuple[Tensor, object, Tensor]:
    batch = make_batch([[2, 1], [5], [0, 0], [1, 3, 2], [4, 4]])
    advantages = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(3))
    return current_logprobs(batch), batch, advantages


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [[5], [2, 3], [1, 1, 1, 1, 1], [4, 1]])
def test_gradients_of_micro_batches_add_up_to_the_full_gradient(mode, sizes):
    """complaints C2, with a parameter shared by all tokens as in a policy."""
    logprobs, batch, advantages = ragged()
    options = {"aggregation": mode, "max_length": 16}

    def gradient(pieces: list[Tensor], **totals) -> float:
        shift = torch.zeros((), requires_grad=True)
        for rows in pieces:
            part = batch.select(rows)
            PPO(logprobs[rows] + shift, part, advantages[rows], **options, **totals)[0].backward()
        return shift.grad.item()

    full = gradient([torch.arange(5)])
    parts = gradient(list(torch.arange(5).split(sizes)), **batch_totals(batch))
    assert parts == pytest.approx(full, rel=1e-5)
    assert full != 0


def test_batch_totals_leave_out_empty_rows():
    assert batch_totals(ragged()[1]) == {"total_tokens": 22, "total_sequences": 4}


def test_metrics_of_a_batch_without_sampled_tokens_are_missing():
    batch = make_batch([[0]])
    loss, metrics = PPO(batch.old_logprobs, batch, torch.ones_like(batch.old_logprobs))
    assert loss.item() == 0
    assert metrics["response_tokens"] == 0
    assert math.isnan(metrics["clip_fraction"])
    assert set(metrics) == set(one_token(0.0, 1.0)[2])
