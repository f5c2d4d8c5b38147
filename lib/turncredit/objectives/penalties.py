"""Divergence from a reference policy: three estimators, in the reward or as a loss.

With d = log ref - log p of a sampled token, in nats (Schulman, "Approximating KL divergence"):

| estimator | value         | its mean         | gradient of its mean, taken as a loss       |
|-----------|---------------|------------------|---------------------------------------------|
| k1        | -d            | KL(p, ref)       | 0: a k1 loss does not pull towards ref      |
| k2        | d^2 / 2       | near KL(p, ref)  | that of KL(p, ref)                          |
| k3        | exp(d) - d - 1| KL(p, ref)       | that of KL(ref, p), the other direction     |

"k1+" and "k3+" have the value of k1 and k3 with the gradient of k2, as in verl: right in both.
"""

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats, check_logprobs
from turncredit.batching import TurnBatch, row_sums
from turncredit.objectives.aggregation import aggregate
from turncredit.option_ranges import check_choice, check_range, plain
from turncredit.signals import LOG_RATIO_LIMIT

KL_ESTIMATORS = ("k1", "k2", "k3", "k1+", "k3+")


def kl_estimates(
    logprobs: Tensor, ref_logprobs: Tensor, *, estimator: str = "k3", limit: float = 10.0
) -> Tensor:
    """Per token, any shape: an estimate of KL(policy, reference), differentiable in `logprobs`.

    Both are log-probs of tokens sampled from the policy.  d is clipped to +-20, and k3 to `limit`
    (verl: 10; it acts from d = 2.6 on and lowers the mean, torch.inf turns it off); no gradient
    passes beyond either, except that of k2 in "k3+".  Raises ValueError for an unknown estimator,
    for shapes that differ, and for other types than float32 and float64.

    >>> logprobs, reference = torch.tensor([-0.1, -0.5]), torch.tensor([-0.2, -0.9])
    >>> kl_estimates(logprobs, reference, estimator="k1")
    tensor([0.1000, 0.4000])
    >>> kl_estimates(logprobs, reference)
    tensor([0.0048, 0.0703])
    """
    check_choice("kl_estimates", "estimator", estimator, KL_ESTIMATORS)
    check_range("kl_estimates", "positive", limit=limit)
    for name, value in (("logprobs", logprobs), ("ref_logprobs", ref_logprobs)):
        check_floats(f"kl_estimates: {name} are", value, "as logprobs", tuple(logprobs.shape))
    gap = (ref_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    square = gap.square() / 2
    if estimator == "k2":
        return square
    limit = plain(limit)
    values = -gap if estimator.startswith("k1") else (torch.expm1(gap) - gap).clamp(max=limit)
    return values.detach() + square - square.detach() if estimator.endswith("+") else values


def kl_penalty(
    logprobs: Tensor,
    batch: TurnBatch,
    *,
    estimator: str = "k3",
    limit: float = 10.0,
    aggregation: str = "token_mean",
    total_tokens: int | None = None,
    total_sequences: int | None = None,
    max_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The mean KL estimate of sampled tokens: times a coefficient, a loss to add to an objective's.

    logprobs: [B, L] of the current policy.  Returns a scalar (see `aggregate`) and `kl`, the token
    mean, NaN without sampled tokens; 0 for the loss.  The mean over tokens that the *old* policy
    sampled estimates the divergence as long as the two policies are close.
    Raises ValueError when the batch has no `ref_logprobs`.
    """
    mask = batch.response_mask
    check_logprobs("kl_penalty: logprobs are", logprobs, mask)
    reference = _reference(batch, "kl_penalty")
    estimates = kl_estimates(logprobs, reference, estimator=estimator, limit=limit)
    loss = aggregate(
        estimates,
        mask,
        mode=aggregation,
        total_tokens=total_tokens,
        total_sequences=total_sequences,
        max_length=max_length,
    )
    return loss, {"kl": estimates.detach().masked_select(mask).double().mean().item()}


def kl_in_rewards(batch: TurnBatch, *, coefficient: float = 0.03, estimator: str = "k1") -> Tensor:
    """[B]: each reward minus `coefficient` times the trajectory's summed KL estimates.

    Over its sampled tokens, old policy against reference.  A missing reward stays missing.
    The default is TRL's for RLOO.  Compute it once on the rollout batch and hand
    `batch.replace(rewards=...)` to a base advantage: `success` stays what it was.
    Raises ValueError when the batch has no `ref_logprobs`, and naming the row of a NaN in either
    at a sampled token: it would make a known reward a missing one.
    """
    check_range("kl_in_rewards", "scale", coefficient=coefficient)
    reference = _reference(batch, "kl_in_rewards")
    estimates = kl_estimates(batch.old_logprobs, reference, estimator=estimator)
    total = row_sums(estimates, batch.response_mask)
    if total.isnan().any():
        row = int(total.isnan().nonzero()[0])
        raise ValueError(f"kl_in_rewards: row {row} has a NaN log-prob at a sampled token")
    return (batch.rewards - plain(coefficient) * total).to(batch.rewards.dtype)


def _reference(batch: TurnBatch, owner: str) -> Tensor:
    if batch.ref_logprobs is None:
        raise ValueError(f"{owner} needs ref_logprobs, and this batch has none")
    return batch.ref_logprobs
