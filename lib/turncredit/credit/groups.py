"""What group methods share: who is compared with whom, deviations from the mean, and scaling.

Sums run in order of value, in float64, one accumulator per group: neither the order of rows nor
the other groups of a batch change a bit of the result.
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.option_ranges import check_range

SCALES = ("mean", "std")


def group_numbers(batch: TurnBatch, *, allow_singleton: bool) -> Tensor:
    """[B] int64: group_ids renumbered 0, 1, ...; ValueError for a group of one.

    A trajectory that is its own group, through a wrong key, would have no baseline and turn any
    group method into plain REINFORCE without a word.
    """
    check_range("group method", "flag", allow_singleton=allow_singleton)
    _, groups, sizes = batch.group_ids.unique(return_inverse=True, return_counts=True)
    if not allow_singleton and (sizes == 1).any():
        row = int((sizes[groups] == 1).nonzero()[0])
        raise ValueError(
            f"group {int(batch.group_ids[row])} has a single trajectory (row {row}): no baseline;"
            " sample more of them or pass allow_singleton=True to give it advantage 0"
        )
    return groups


def known_rewards(batch: TurnBatch) -> Tensor:
    """[B] bool: the outcome reward is not missing; ValueError for an infinite one.

    Batches made without `validate` come here too, and one infinity turns its whole group to NaN.
    """
    infinite = batch.rewards.isinf()
    if infinite.any():
        row = int(infinite.nonzero()[0])
        raise ValueError(f"TurnBatch.rewards: row {row} is infinite")
    return ~batch.rewards.isnan()


def centred(values: Tensor, groups: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Deviations from the group mean [N], known values per group [N], order of summation [N].

    values [N]; groups [N] int64, in 0 .. N - 1; known [N] bool: the others stay out of the mean
    and get 0.  So do the values of a group that are all equal: max is compared with min, because
    the mean of equal floats can be off in the last place, which no epsilon cures.
    """
    values = torch.where(known, values, 0.0).double()
    order = values.argsort()
    counts = group_sums(known.double(), groups, order)
    means = group_sums(values, groups, order) / counts.clamp(min=1)
    highest = _extremes(torch.where(known, values, -torch.inf), groups, "amax")
    lowest = _extremes(torch.where(known, values, torch.inf), groups, "amin")
    contrast = (highest > lowest).index_select(0, groups) & known
    return torch.where(contrast, values - means.index_select(0, groups), 0.0), counts, order


def standardised(
    values: Tensor,
    groups: Tensor,
    known: Tensor,
    *,
    scale: str = "std",
    std: str = "sample",
    eps: float = 1e-6,
) -> Tensor:
    """[N] float64: deviation from the group mean, over the group's std + eps (`scale` "std").

    `std` "sample" divides squares by n - 1, "population" by n; `scale` "mean" leaves the deviation
    as it is.  Arguments and zeros as in `centred`.
    """
    deviations, counts, order = centred(values, groups, known)
    if scale == "mean":
        return deviations
    squares = group_sums(deviations.square(), groups, order)
    degrees = (counts - 1 if std == "sample" else counts).clamp(min=1)
    scales = (squares / degrees).sqrt().index_select(0, groups) + eps
    return torch.where(deviations == 0, 0.0, deviations / scales)  # eps may be 0


def whitened(values: Tensor, known: Tensor, *, eps: float = 1e-8) -> Tensor:
    """[N] float64: (value - mean) / sqrt(variance + eps) over the known ones, 0 for the others.

    The variance divides by n - 1.  Fewer than two known values, or equal ones, give exactly 0
    (verl's masked_whiten raises for fewer than two).
    """
    chosen = values[known].double()
    if not len(chosen) or chosen.min() == chosen.max():
        return torch.zeros_like(values, dtype=torch.float64)
    white = (chosen - chosen.mean()) * (chosen.var() + eps).rsqrt()
    return torch.zeros_like(values, dtype=torch.float64).masked_scatter(known, white)


def group_sums(values: Tensor, groups: Tensor, order: Tensor) -> Tensor:
    """[N] float64 to [N], one sum per group number, adding in the given order."""
    ordered = values.index_select(0, order)
    return torch.zeros_like(values).index_add_(0, groups.index_select(0, order), ordered)


def numbers_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """[B, T] int64: equal pairs get equal numbers, 0, 1, ..."""
    seconds = second.unique(return_inverse=True)[1]  # below numel, whatever the ids are
    return (first * second.numel() + seconds).unique(return_inverse=True)[1]


def _extremes(values: Tensor, groups: Tensor, reduce: str) -> Tensor:
    return torch.zeros_like(values).scatter_reduce_(0, groups, values, reduce, include_self=False)
