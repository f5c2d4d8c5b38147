"""Per-turn and per-batch measurements: entropies, importance ratios, train-inference mismatch.

A turn without sampled tokens has no value: NaN, never 0.  The slides plot these quantities
without their formulas; the definitions are this project's reading.  Natural logarithms.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turncredit.batching import TurnBatch

if TYPE_CHECKING:  # signals must be importable with torch alone
    from turncredit.records import Trajectory

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clipped to +-20 before exp, as verl does; no gradient passes beyond."""


def turn_means(batch: TurnBatch, values: Tensor) -> Tensor:
    """[B, L] to [B, T]: mean over the sampled tokens of each turn, NaN for an empty turn.

    Differentiable.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> turn_means(batch, batch.entropies)
    tensor([[0.3000, 0.1000],
            [0.3000,    nan]])
    """
    lengths = batch.turn_lengths()
    means = batch.turn_sums(values) / lengths.clamp(min=1)
    return torch.where(lengths > 0, means, torch.nan).to(values.dtype)


def turn_entropies(batch: TurnBatch) -> Tensor:
    """[B, T], nats: response entropy, the mean token entropy of each whole turn."""
    return turn_means(batch, batch.entropies)


def first_k_entropies(batch: TurnBatch, ks: Sequence[int]) -> Tensor:
    """[B, T, K], nats: mean entropy of each turn's first min(k, length) tokens, for k in `ks`.

    One pass over the tokens: each is added to the bucket between two neighbouring ks, and the
    buckets are then summed up.  NaN where the turn is empty or has an entropy not computed.
    Raises ValueError for a k below 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> first_k_entropies(two_turns_and_one(), [1, 2])[0]
    tensor([[0.4000, 0.3000],
            [0.1000, 0.1000]])
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"first_k_entropies: ks are {list(ks)}; need at least one k, each >= 1")
    lengths = batch.turn_lengths()
    limits = sorted(set(ks))
    sums = _bucket_sums(batch, lengths, limits).cumsum(dim=2)
    bounds = torch.tensor(limits, device=lengths.device)
    counts = torch.minimum(lengths[:, :, None], bounds)
    means = torch.where(counts > 0, sums / counts.clamp(min=1), torch.nan)
    chosen = [limits.index(k) for k in ks]
    return means[:, :, chosen].to(batch.entropies.dtype)


def _bucket_sums(batch: TurnBatch, lengths: Tensor, limits: list[int]) -> Tensor:
    """[B, T, K] float64: entropy of tokens ranked limits[i-1] .. limits[i]-1 within their turn."""
    slots = batch.turn_slots
    starts = lengths.flatten().cumsum(0) - lengths.flatten()
    ranks = torch.arange(len(slots), device=slots.device) - starts[slots]
    buckets = torch.bucketize(ranks, torch.tensor(limits, device=slots.device), right=True)
    width = len(limits) + 1  # the last bucket takes the tokens beyond every k
    sampled = batch.entropies.masked_select(batch.response_mask).double()
    sums = sampled.new_zeros(lengths.numel() * width)
    sums = sums.index_add(0, slots * width + buckets, sampled)
    return sums.view(*lengths.shape, width)[:, :, :-1]


def total_entropy(batch: TurnBatch) -> float:
    """Nats: mean entropy over all sampled tokens of the batch (token mean); NaN without any."""
    return _sampled_mean(batch, batch.entropies)


def turn_ratios(batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """[B, T]: exp of the mean token log-ratio of each turn, NaN where empty.

    logprobs: [B, L] under the current policy; differentiable in it.  The mean log-ratio is
    clipped to +-20.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_ratios(two_turns_and_one(), torch.full((2, 4), -0.5))
    tensor([[1.6487, 1.6487],
            [1.6487,    nan]])
    """
    means = turn_means(batch, logprobs - batch.old_logprobs)
    return means.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def mismatch(batch: TurnBatch) -> dict[str, float]:
    """How far the sampling engine is from the training engine, over all sampled tokens.

    `mean_abs_prob_diff`: mean of abs(exp(rollout) - exp(old)), verl's rollout_probs_diff_mean.
    `mean_abs_logprob_diff`: mean of abs(rollout - old).  `k3_kl`: mean of exp(d) - d - 1 with
    d = old - rollout, estimating KL(rollout, old).  All NaN without sampled tokens.
    Raises ValueError when the batch has no `rollout_logprobs`.
    """
    if batch.rollout_logprobs is None:
        raise ValueError("mismatch needs rollout_logprobs, and this batch has none")
    mask = batch.response_mask
    old = torch.where(mask, batch.old_logprobs, 0.0).double()
    rollout = torch.where(mask, batch.rollout_logprobs, 0.0).double()
    gap = old - rollout
    return {
        "mean_abs_prob_diff": _sampled_mean(batch, (rollout.exp() - old.exp()).abs()),
        "mean_abs_logprob_diff": _sampled_mean(batch, gap.abs()),
        "k3_kl": _sampled_mean(batch, torch.expm1(gap.clamp(max=LOG_RATIO_LIMIT)) - gap),
    }


def _sampled_mean(batch: TurnBatch, values: Tensor) -> float:
    return values.masked_select(batch.response_mask).double().mean().item()


def outcome_shares(trajectories: Sequence["Trajectory"]) -> dict[str, float]:
    """Behaviour of a set of trajectories, as means over trajectories.

    turns; first-turn actions (`search_first`, `guess_first`: verifying or answering at turn 0,
    `answer_first`); `grounded`: the evidence was read; `answered`: ended by an answer;
    `malformed`: has a malformed message; `truncated`: ended by the cap on turns or tokens.
    """
    first = [t.turns[0].action if t.turns else "invalid" for t in trajectories]
    return {
        "turns": fmean(len(t.turns) for t in trajectories),
        "search_first": fmean(action == "search" for action in first),
        "guess_first": fmean(action in ("external_verify", "answer") for action in first),
        "answer_first": fmean(action == "answer" for action in first),
        "grounded": fmean(math.nan if t.grounded is None else t.grounded for t in trajectories),
        "answered": fmean(t.stop_reason == "answer" for t in trajectories),
        "malformed": fmean(any(u.action == "invalid" for u in t.turns) for t in trajectories),
        "truncated": fmean(t.stop_reason in ("max_turns", "max_tokens") for t in trajectories),
    }
