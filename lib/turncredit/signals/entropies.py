"""Entropies and surprisals of turns, and whether they differ enough to tell turns apart."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batching import TurnBatch
from turncredit.option_ranges import check_range
from turncredit.signals.turns import (
    by_outcome,
    checked,
    sampled_mean,
    turn_index_means,
    turn_means,
)


def turn_entropies(batch: TurnBatch) -> Tensor:
    """[B, T], nats: response entropy, the mean token entropy of each whole turn."""
    return turn_means(batch, batch.entropies)


def first_k_entropies(batch: TurnBatch, ks: Sequence[int]) -> Tensor:
    """[B, T, K], nats: mean entropy of each turn's first min(k, length) tokens, for k in `ks`.

    Only the first max(ks) tokens of each turn are read.  NaN where the turn is empty or has an
    entropy not computed among them.  Raises ValueError for a k below 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> first_k_entropies(two_turns_and_one(), [1, 2])[0]
    tensor([[0.4000, 0.3000],
            [0.1000, 0.1000]])
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"first_k_entropies: ks are {list(ks)}; need at least one k, each >= 1")
    lengths = batch.turn_lengths()
    sums = _opening_sums(batch, lengths.flatten(), max(ks))
    counts = torch.minimum(lengths.view(-1, 1), torch.tensor(list(ks), device=lengths.device))
    means = sums.gather(1, counts) / counts  # 0 / 0, an empty turn, is NaN
    return means.view(*lengths.shape, len(ks)).to(batch.entropies.dtype)


def _opening_sums(batch: TurnBatch, lengths: Tensor, k: int) -> Tensor:
    """[B * T, w + 1] float64: sums of the first 0, 1, ... w entropies of each turn, w <= k."""
    width = min(k, int(lengths.max())) if lengths.numel() else 0
    ranks = torch.arange(width, device=lengths.device)
    firsts = (lengths.cumsum(0) - lengths)[:, None]
    places = batch.spans.places
    chosen = places[(firsts + ranks).clamp(max=len(places) - 1)]
    entropies = torch.where(ranks < lengths[:, None], batch.entropies.flatten()[chosen], 0.0)
    return pad(entropies.double().cumsum(1), (1, 0))


def entropy_columns(batch: TurnBatch, ks: Sequence[int], *, split_k: int = 16) -> dict[str, Tensor]:
    """[T] each, nats: entropies by turn index, means over the trajectories that have the turn.

    `entropy_k<k>` of the first k tokens for each k in `ks`; `entropy` of the whole turn;
    `entropy_failed` and `entropy_succeeded`: of the first `split_k` tokens, of the trajectories
    with that outcome.  NaN where no trajectory counts.  Raises ValueError for a k below 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> found = entropy_columns(two_turns_and_one(), [1])
    >>> found["entropy_k1"], found["entropy"], found["entropy_succeeded"]
    (tensor([0.3500, 0.1000]), tensor([0.3000, 0.1000]), tensor([0.3000,    nan]))
    """
    openings = first_k_entropies(batch, [*ks, split_k])
    whole = turn_entropies(batch)
    means = turn_index_means(torch.cat([openings[:, :, :-1], whole[:, :, None]], dim=2))
    names = [*(f"entropy_k{k}" for k in ks), "entropy"]
    split = by_outcome(batch, openings[:, :, -1])
    return dict(zip(names, means.unbind(dim=1), strict=True)) | {
        f"entropy_{outcome}": values for outcome, values in split.items()
    }


def total_entropy(batch: TurnBatch) -> float:
    """Nats: mean entropy over all sampled tokens of the batch (token mean); NaN without any."""
    return sampled_mean(batch, batch.entropies)


def small_spread_groups(batch: TurnBatch, *, min_spread: float = 0.1) -> float:
    """Share of groups in which AEM (2605.00425, algorithm 1) leaves every coefficient at 1.

    Those whose response entropies, over all turns of all trajectories, have max - min below
    `min_spread` (nats) or 0; of the groups with a sampled token, NaN without any or when an
    entropy was not computed.  Measured whether or not AEM is in use.  Raises ValueError for a
    negative `min_spread`.

    >>> from turncredit.batching import two_turns_and_one
    >>> small_spread_groups(two_turns_and_one()), small_spread_groups(
    ...     two_turns_and_one(), min_spread=0.3)
    (0.0, 1.0)
    """
    check_range("small_spread_groups", "threshold", min_spread=min_spread)
    lengths = batch.turn_lengths()
    real = lengths > 0
    rows = real.any(dim=1)
    entropies, real = (batch.turn_sums(batch.entropies) / lengths)[rows], real[rows]
    ids, groups = batch.group_ids[rows].unique(return_inverse=True)
    if not len(ids) or entropies[real].isnan().any():
        return math.nan
    highest = entropies.masked_fill(~real, -math.inf).amax(dim=1)
    lowest = entropies.masked_fill(~real, math.inf).amin(dim=1)
    high, low = (
        entropies.new_zeros(len(ids)).scatter_reduce(0, groups, of_rows, how, include_self=False)
        for of_rows, how in ((highest, "amax"), (lowest, "amin"))
    )
    small = ((high - low) < min_spread) | (high == low)
    return small.double().mean().item()


def turn_surprisals(
    batch: TurnBatch, logprobs: Tensor | None = None, *, per_token: bool = False
) -> Tensor:
    """[B, T], nats: minus the log-prob of each turn's sampled tokens, NaN where empty.

    AEM's response surprisal, the sum over the tokens; with `per_token` their mean.  logprobs:
    [B, L], `batch.old_logprobs` unless given; differentiable in them.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_surprisals(two_turns_and_one())
    tensor([[2., 1.],
            [1., nan]])
    """
    chosen = batch.old_logprobs if logprobs is None else checked("logprobs", logprobs, batch)
    if per_token:
        return turn_means(batch, -chosen)
    sums = batch.turn_sums(-chosen)
    return torch.where(batch.turn_lengths() > 0, sums, torch.nan).to(chosen.dtype)
