"""From token losses to one number, over the sampled tokens in their order."""

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats
from turncredit.batching import TurnBatch
from turncredit.objectives.options import check_options
from turncredit.option_ranges import check_choice

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
    `mask`.  Raises ValueError for an unknown mode, a missing `max_length`, a value out of range,
    shapes that differ, losses that are not float32 or float64 and a mask that is not bool.

    >>> losses = torch.tensor([[1.0, 3.0], [5.0, torch.nan]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> aggregate(losses, mask), aggregate(losses, mask, mode="seq_mean_token_mean")
    (tensor(3.), tensor(3.5000))
    """
    totals = {"total_tokens": total_tokens, "total_sequences": total_sequences}
    check_options("aggregate", max_length=max_length, **totals)
    if mask.dtype != torch.bool:
        raise ValueError(f"aggregate: mask is {mask.dtype}, not bool")
    check_floats("aggregate: losses are", losses, "as the mask", tuple(mask.shape))
    sampled = losses.masked_select(mask)
    return sampled_mean(sampled, mask, "aggregate", mode=mode, max_length=max_length, **totals)


def sampled_mean(
    losses: Tensor,
    mask: Tensor,
    owner: str,
    *,
    mode: str,
    total_tokens: int | None,
    total_sequences: int | None,
    max_length: int | None,
) -> Tensor:
    """`aggregate` of the losses [N] of the N tokens of the mask, already packed row by row.

    Every mode is a weighted sum of tokens, added up in float64.  `owner` starts every refusal.
    """
    check_choice(owner, "aggregation", mode, AGGREGATIONS)
    if mode == "seq_mean_token_sum_norm" and max_length is None:
        raise ValueError(f"{owner}: aggregation {mode!r} needs max_length >= 1, and it is None")
    if mode == "token_mean":
        count = len(losses) if total_tokens is None else total_tokens
        return (losses.sum(dtype=torch.float64) / max(count, 1)).to(losses.dtype)
    lengths = mask.sum(dim=1)
    weighted = losses
    if mode == "seq_mean_token_mean":
        shares = 1 / lengths.clamp(min=1).double()
        weighted = losses * shares.repeat_interleave(lengths, output_size=len(losses))
    total = weighted.sum(dtype=torch.float64)
    if mode == "seq_mean_token_sum_norm":
        total = total / max_length
    if total_sequences is None:
        return (total / (lengths > 0).sum().clamp(min=1)).to(losses.dtype)
    return (total / max(total_sequences, 1)).to(losses.dtype)
