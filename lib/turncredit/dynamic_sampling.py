"""Dynamic sampling: groups whose rewards are all equal teach nothing; draw others instead.

DAPO, 2025, section 3.2.  The number of draws is bounded, and everything drawn is counted.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Group = TypeVar("Group")


class NoUsableGroups(RuntimeError):
    """Every group of every round had equal rewards; `counts` are those of `resample_groups`."""

    def __init__(self, message: str, counts: dict[str, int]) -> None:
        super().__init__(message)
        self.counts = counts


def usable_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """[B] bool: the trajectory's group has two known rewards that differ.

    rewards: [B], NaN = missing (`success` for DAPO's 0 < correct < size); group_ids: [B].
    Smallest and largest are compared, because a standard deviation of equal rewards may not be 0
    in floating point.  Raises ValueError for other shapes.

    >>> rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, float("nan")])
    >>> usable_groups(rewards, torch.tensor([7, 7, 3, 3, 9, 9]))
    tensor([ True,  True, False, False, False, False])
    """
    if rewards.dim() != 1 or rewards.shape != group_ids.shape:
        shapes = f"rewards {tuple(rewards.shape)}, group_ids {tuple(group_ids.shape)}"
        raise ValueError(f"usable_groups: {shapes}; need [B] twice")
    rewards = rewards.double()  # a flag or a whole number cannot be infinite
    ids, members = group_ids.unique(return_inverse=True)
    known = ~rewards.isnan()

    def extreme(reduce: str, start: float) -> Tensor:
        found = rewards.new_full(ids.shape, start)
        return found.scatter_reduce(0, members[known], rewards[known], reduce)

    return (extreme("amin", torch.inf) < extreme("amax", -torch.inf))[members]


def resample_groups(
    draw: Callable[[int], Sequence[Group]],
    usable: Callable[[Group], bool],
    *,
    enough: int,
    max_rounds: int = 10,
) -> tuple[list[Group], dict[str, int]]:
    """Draw rounds of groups until `enough` usable ones are there, `max_rounds` at the most.

    `draw(round)` returns the groups of round 0, 1, ...: let its random choices depend on the round
    (and the step), and a resumed run draws the same.  `usable(group)` says which to keep.

    Returns the first `enough` usable groups in the order drawn, and counts: `sampling_rounds`,
    `groups_drawn` = `groups_kept` + `groups_unusable` + `groups_surplus`, and `groups_short`,
    how many are missing when the rounds ran out.  Raises NoUsableGroups when not one is usable, and
    ValueError for bounds below 1 or not whole.

    >>> rewards = {0: [(0, 0), (0, 1)], 1: [(1, 1), (1, 0)], 2: [(0, 1)]}
    >>> resample_groups(rewards.get, lambda group: len(set(group)) > 1, enough=2)[0]
    [(0, 1), (1, 0)]
    """
    for name, value in (("enough", enough), ("max_rounds", max_rounds)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"resample_groups: {name} is {value}; it must be at least 1 and whole")
    kept: list[Group] = []
    drawn = rounds = 0
    while len(kept) < enough and rounds < max_rounds:
        groups = draw(rounds)
        kept += [group for group in groups if usable(group)]
        drawn += len(groups)
        rounds += 1
    counts = {
        "sampling_rounds": rounds,
        "groups_drawn": drawn,
        "groups_kept": min(len(kept), enough),
        "groups_unusable": drawn - len(kept),
        "groups_surplus": max(len(kept) - enough, 0),
        "groups_short": max(enough - len(kept), 0),
    }
    if not kept:
        text = f"none of the {drawn} groups drawn in {rounds} rounds is usable: "
        raise NoUsableGroups(text + "within each, all rewards are equal or missing", counts)
    return kept[:enough], counts
