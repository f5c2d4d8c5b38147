"""From tokens to turns, from turns to turn indices, and the checks that all measurements share."""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch


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


def turn_index_means(values: Tensor) -> Tensor:
    """[B, T] to [T]: mean over the trajectories that have a value at a turn, NaN without any.

    >>> turn_index_means(torch.tensor([[0.3, 0.1, torch.nan], [0.5, torch.nan, torch.nan]]))
    tensor([0.4000, 0.1000,    nan])
    """
    return values.nanmean(dim=0)


def turn_index_token_means(batch: TurnBatch, values: Tensor) -> Tensor:
    """[B, T] to [T]: mean over the sampled tokens at a turn index, NaN without any.

    values: means over the tokens of each turn; a long turn counts for more than a short one, so
    that shares of tokens stay shares of tokens.  A turn whose value is missing is left out.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_index_token_means(two_turns_and_one(), torch.tensor([[0.5, 1.0], [0.2, torch.nan]]))
    tensor([0.4000, 1.0000])
    """
    counts = batch.turn_lengths() * ~values.isnan()
    sums = (values.nan_to_num(0.0).double() * counts).sum(dim=0)
    return (sums / counts.sum(dim=0)).to(values.dtype)  # 0 / 0 is NaN: no token, no value


def by_outcome(batch: TurnBatch, values: Tensor) -> dict[str, Tensor]:
    """[B, T] to [T] twice: `turn_index_means` of the `failed` and the `succeeded` trajectories.

    Success is `batch.success`, whatever the reward.

    >>> from turncredit.batching import two_turns_and_one
    >>> by_outcome(two_turns_and_one(), torch.tensor([[0.3, 0.1], [0.5, torch.nan]]))
    {'failed': tensor([0.3000, 0.1000]), 'succeeded': tensor([0.5000,    nan])}
    """
    return {
        "failed": turn_index_means(values[~batch.success]),
        "succeeded": turn_index_means(values[batch.success]),
    }


def sampled_mean(batch: TurnBatch, values: Tensor) -> float:
    """[B, L]: mean over all sampled tokens of the batch, NaN without any."""
    return values.masked_select(batch.response_mask).double().mean().item()


def checked(name: str, values: Tensor, batch: TurnBatch) -> Tensor:
    """`values` if they are [B, L]; a [B] or [B, 1] tensor would broadcast in silence."""
    wanted = tuple(batch.response_mask.shape)
    if values.shape != wanted:
        raise ValueError(f"{name} have shape {tuple(values.shape)}, not [B, L] = {wanted}")
    return values
