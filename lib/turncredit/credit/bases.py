"""Base advantages: what a trajectory, turn or token is worth before any turn weight.

Each function takes a batch and returns [B, L], 0 outside `response_mask`.  A new one needs
`@BASES.add` above it and nothing else.
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.methods import Methods

BASES = Methods("base")


@BASES.add
def grpo(
    batch: TurnBatch, *, std: str = "sample", eps: float = 1e-6, allow_singleton: bool = False
) -> Tensor:
    """Reward minus group mean, over the group's standard deviation + eps (GRPO, as in verl).

    [B, L], constant over each trajectory, zero-sum in each group.  `std`: "sample" (n - 1, verl
    and TRL) or "population" (n, the paper).  A group of equal rewards gets exactly 0.  A missing
    reward (NaN) stays out of its group's statistics and gets 0; so does whoever is left alone.
    A group of one trajectory is a ValueError unless `allow_singleton`, then it gets 0.

    >>> from turncredit.batching import two_turns_and_one
    >>> grpo(two_turns_and_one(), std="population")
    tensor([[-1.0000, -1.0000,  0.0000, -1.0000],
            [ 1.0000,  0.0000,  0.0000,  0.0000]])
    """
    if std not in ("sample", "population"):
        raise ValueError(f"grpo: unknown std {std!r}; there are: population, sample")
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    centred, counts, equal = centred_rewards(batch.rewards, groups)
    squares = _group_sums(centred.square(), groups, batch.rewards.argsort())
    degrees = (counts - 1 if std == "sample" else counts).clamp(min=1)
    scale = (squares / degrees).sqrt()[groups] + eps
    return over_tokens(batch, torch.where(equal, 0.0, centred / scale))


def group_numbers(batch: TurnBatch, *, allow_singleton: bool) -> Tensor:
    """[B] int64: group_ids renumbered 0, 1, ...; ValueError for a group of one (complaints B1)."""
    _, groups, sizes = batch.group_ids.unique(return_inverse=True, return_counts=True)
    alone = sizes[groups] == 1
    if not allow_singleton and alone.any():
        row = int(alone.nonzero()[0])
        raise ValueError(
            f"group {int(batch.group_ids[row])} has a single trajectory (row {row}): no baseline;"
            " sample more of them or pass allow_singleton=True to give it advantage 0"
        )
    return groups


def centred_rewards(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards minus group mean [B] float64, known rewards per group [G], who lacks contrast [B].

    Sums run in order of reward, so neither the order of rows nor other groups change a bit.
    No contrast: the group's rewards are all equal, or the own one is missing; the centred reward
    is then exactly 0.  Max is compared with min because a mean of equal float rewards can be off
    in the last place, which no epsilon cures (complaints B2).
    """
    missing = rewards.isnan()
    order = rewards.argsort()
    known = torch.where(missing, 0.0, rewards).double()
    counts = _group_sums((~missing).double(), groups, order)
    means = _group_sums(known, groups, order) / counts.clamp(min=1)
    highest = _group_extremes(known, groups, ~missing, "amax")
    lowest = _group_extremes(known, groups, ~missing, "amin")
    equal = missing | (highest == lowest)[groups]
    return torch.where(equal, 0.0, known - means[groups]), counts, equal


def over_tokens(batch: TurnBatch, advantages: Tensor) -> Tensor:
    """[B] to [B, L]: the trajectory's advantage at its sampled tokens, 0 elsewhere."""
    return torch.where(batch.response_mask, advantages.to(batch.rewards.dtype)[:, None], 0.0)


def _group_extremes(values: Tensor, groups: Tensor, known: Tensor, reduce: str) -> Tensor:
    """[B] to [G]: "amax" or "amin" over the known values of each group; 0 where none is known."""
    start = values.new_zeros(int(groups.max()) + 1 if groups.numel() else 0)
    return start.scatter_reduce(0, groups[known], values[known], reduce, include_self=False)


def _group_sums(values: Tensor, groups: Tensor, order: Tensor) -> Tensor:
    """[B] float64 to [G], adding in the given order of rows."""
    total = values.new_zeros(int(groups.max()) + 1 if groups.numel() else 0)
    return total.index_add(0, groups[order], values[order])
