"""Policy objectives, written as losses to minimise, and how token losses become one number.

Every denominator counts the original response tokens or trajectories, never the weighted ones.
For micro-batches pass the full batch's `**batch_totals(batch)`: the sum of the micro-batches'
losses, and of their gradients, is then that of the full batch in every mode (complaints C2).
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, row_sums
from turncredit.methods import Methods
from turncredit.signals import LOG_RATIO_LIMIT

OBJECTIVES = Methods("objective")
AGGREGATIONS = (
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
)


def batch_totals(batch: TurnBatch) -> dict[str, int]:
    """Sampled tokens, and trajectories that have any: the denominators of the whole batch.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch_totals(two_turns_and_one())
    {'total_tokens': 4, 'total_sequences': 2}
    """
    mask = batch.response_mask
    return {"total_tokens": int(mask.sum()), "total_sequences": int(mask.any(dim=1).sum())}


def aggregate(
    losses: Tensor,
    mask: Tensor,
    *,
    mode: str = "token_mean",
    total_tokens: int | None = None,
    total_sequences: int | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Token losses [B, L] under the bool mask [B, L] to a scalar; 0 when nothing is sampled.

    `token_mean`: sum over tokens / `total_tokens`.  `seq_mean_token_mean`: mean over trajectories
    of their token mean; `seq_mean_token_sum`: of their token sum; `seq_mean_token_sum_norm`: the
    latter / `max_length`, which has no default because a padded length would let padding change
    the loss.  Trajectories without a sampled token do not count.  Totals default to those of
    `mask`.  Raises ValueError for an unknown mode or a missing `max_length`.

    >>> losses = torch.tensor([[1.0, 3.0], [5.0, torch.nan]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> aggregate(losses, mask), aggregate(losses, mask, mode="seq_mean_token_mean")
    (tensor(3.), tensor(3.5000))
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {mode!r}; there are: {', '.join(AGGREGATIONS)}")
    if mode == "seq_mean_token_sum_norm" and not max_length:
        raise ValueError(f"aggregation {mode!r} needs max_length >= 1, and it is {max_length}")
    if mode == "token_mean":
        count = mask.sum() if total_tokens is None else torch.tensor(total_tokens)
        total = losses.masked_select(mask).double().sum()
        return (total / count.clamp(min=1)).to(losses.dtype)
    sequences = mask.any(dim=1).sum() if total_sequences is None else torch.tensor(total_sequences)
    sums = row_sums(losses, mask)
    if mode == "seq_mean_token_mean":
        sums = sums / mask.sum(dim=1).clamp(min=1)
    if mode == "seq_mean_token_sum_norm":
        sums = sums / max_length
    return (sums.sum() / sequences.clamp(min=1)).to(losses.dtype)


@OBJECTIVES.add
def ppo_clip(
    logprobs: Tensor,
    batch: TurnBatch,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    aggregation: str = "token_mean",
    total_tokens: int | None = None,
    total_sequences: int | None = None,
    max_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """PPO's clipped surrogate at token level (GRPO; with clip_high 0.28 that of DAPO).

    Loss per token: max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(logprobs - old).
    `dual_clip` c > 1 (verl: 3) bounds it by -c A where A < 0.  logprobs, advantages: [B, L].
    Returns the scalar loss (see `aggregate`) and metrics over sampled tokens, NaN without any:
    `clip_fraction` (clipped loss above the unclipped one: only the pessimistic side counts, as
    in verl), `dual_clip_fraction`, `ppo_kl` (mean of -log r), `ratio_min`, `ratio_max`,
    `ratio_guarded` (share of log-ratios beyond +-20, where no gradient passes); and
    `response_tokens`, their number: the weight of a micro-batch when metrics are averaged.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"ppo_clip: dual_clip is {dual_clip}; it must exceed 1")
    _check_shapes(batch, logprobs=logprobs, advantages=advantages)
    log_ratio = _log_ratio(logprobs, batch)
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    losses = torch.maximum(unclipped, clipped)
    limit = torch.inf if dual_clip is None else dual_clip
    bound = torch.where(advantages < 0, -limit * advantages, torch.inf)
    loss = aggregate(
        torch.minimum(losses, bound),
        batch.response_mask,
        mode=aggregation,
        total_tokens=total_tokens,
        total_sequences=total_sequences,
        max_length=max_length,
    )
    events = {"clip_fraction": clipped > unclipped, "dual_clip_fraction": losses > bound}
    return loss, ratio_metrics(log_ratio, batch, events)


def _check_shapes(batch: TurnBatch, **tensors: Tensor) -> None:
    """A [B] or [B, 1] tensor would broadcast in silence."""
    wanted = tuple(batch.response_mask.shape)
    for name, tensor in tensors.items():
        if tensor.shape != wanted:
            raise ValueError(f"{name} have shape {tuple(tensor.shape)}, not [B, L] = {wanted}")


def _log_ratio(logprobs: Tensor, batch: TurnBatch) -> Tensor:
    """[B, L]: logprobs - old_logprobs at sampled tokens; elsewhere 0, and no gradient passes."""
    return torch.where(batch.response_mask, logprobs - batch.old_logprobs, 0.0)


@torch.no_grad()
def ratio_metrics(
    log_ratio: Tensor, batch: TurnBatch, events: dict[str, Tensor]
) -> dict[str, float]:
    """Shares of `events` ([B, L] bool) and ratio statistics over sampled tokens; one transfer."""
    mask = batch.response_mask
    sampled = log_ratio.detach().masked_select(mask).double()
    if not sampled.numel():
        names = (*events, "ppo_kl", "ratio_min", "ratio_max", "ratio_guarded")
        return dict.fromkeys(names, float("nan")) | {"response_tokens": 0.0}
    ratio = sampled.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    measured = {name: event.masked_select(mask).double().mean() for name, event in events.items()}
    measured |= {
        "ppo_kl": -sampled.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).mean(),
        "ratio_min": ratio.min(),
        "ratio_max": ratio.max(),
        "ratio_guarded": (sampled.abs() > LOG_RATIO_LIMIT).double().mean(),
    }
    values = torch.stack(list(measured.values())).tolist()
    return dict(zip(measured, values, strict=True)) | {"response_tokens": float(sampled.numel())}
