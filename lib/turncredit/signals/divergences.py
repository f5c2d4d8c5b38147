"""How far the policy is from a reference, and the sampling engine from the training engine."""

import math

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.option_ranges import check_choice
from turncredit.signals.ratios import LOG_RATIO_LIMIT
from turncredit.signals.turns import (
    checked,
    sampled_mean,
    turn_index_means,
    turn_means,
)

DIVERGENCES = ("k1", "k3")


def turn_divergences(
    batch: TurnBatch, logprobs: Tensor | None = None, *, estimator: str = "k1"
) -> Tensor:
    """[B, T], nats: divergence of the policy from the reference, mean over each turn's tokens.

    With d = log ref - log p of a token, clipped to +-20: "k1" is -d, "k3" is exp(d) - d - 1
    (Schulman, "Approximating KL divergence"); no limit on k3, unlike in a loss.  logprobs:
    [B, L], `batch.old_logprobs` unless given; differentiable in them.  NaN where empty.
    Raises ValueError for another estimator, or when the batch has no `ref_logprobs`.
    """
    return turn_means(batch, _divergences(batch, logprobs, estimator, "turn_divergences"))


def divergence_columns(batch: TurnBatch) -> dict[str, Tensor]:
    """[T] each, nats: `divergence_k1` and `divergence_k3` of the old policy from the reference.

    By turn index, over tokens, then over trajectories (`turn_divergences`); the slides plot turn
    2.  NaN where no trajectory has the turn, and everywhere in a batch without `ref_logprobs`.
    """
    if batch.ref_logprobs is None:
        missing = batch.entropies.new_full((batch.num_turns,), math.nan)
        return {f"divergence_{name}": missing for name in DIVERGENCES}
    return {
        f"divergence_{name}": turn_index_means(turn_divergences(batch, estimator=name))
        for name in DIVERGENCES
    }


def mean_divergences(batch: TurnBatch) -> dict[str, float]:
    """Nats: `divergence_k1` and `divergence_k3` of the old policy, means over sampled tokens.

    NaN without sampled tokens, and in a batch without `ref_logprobs`.
    """
    if batch.ref_logprobs is None:
        return {f"divergence_{name}": math.nan for name in DIVERGENCES}
    owner = "mean_divergences"
    return {
        f"divergence_{name}": sampled_mean(batch, _divergences(batch, None, name, owner))
        for name in DIVERGENCES
    }


def _divergences(batch: TurnBatch, logprobs: Tensor | None, estimator: str, owner: str) -> Tensor:
    """[B, L]; where not sampled it means nothing."""
    check_choice(owner, "estimator", estimator, DIVERGENCES)
    reference = _field(batch, "ref_logprobs", owner)
    chosen = batch.old_logprobs if logprobs is None else checked("logprobs", logprobs, batch)
    gap = (reference - chosen).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return -gap if estimator == "k1" else torch.expm1(gap) - gap


def mismatch(batch: TurnBatch) -> dict[str, float]:
    """How far the sampling engine is from the training engine, over all sampled tokens.

    `mean_abs_prob_diff`: mean of abs(exp(rollout) - exp(old)), verl's rollout_probs_diff_mean.
    `mean_abs_logprob_diff`: mean of abs(rollout - old).  `k3_kl`: mean of exp(d) - d - 1 with
    d = old - rollout, estimating KL(rollout, old).  All NaN without sampled tokens.
    Raises ValueError when the batch has no `rollout_logprobs`.
    """
    sampling, mask = _field(batch, "rollout_logprobs", "mismatch"), batch.response_mask
    old = torch.where(mask, batch.old_logprobs, 0.0).double()
    rollout = torch.where(mask, sampling, 0.0).double()
    gap = old - rollout
    return {
        "mean_abs_prob_diff": sampled_mean(batch, (rollout.exp() - old.exp()).abs()),
        "mean_abs_logprob_diff": sampled_mean(batch, gap.abs()),
        "k3_kl": sampled_mean(batch, torch.expm1(gap.clamp(max=LOG_RATIO_LIMIT)) - gap),
    }


def _field(batch: TurnBatch, name: str, owner: str) -> Tensor:
    value = getattr(batch, name)
    if value is None:
        raise ValueError(f"{owner} needs {name}, and this batch has none")
    return value
