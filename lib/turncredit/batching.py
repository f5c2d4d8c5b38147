"""`TurnBatch`: padded tensors of a batch of trajectories, and how to make one from trajectories.

Sums run over the sampled tokens alone, in their order, one accumulator per turn or trajectory.
A result therefore depends neither on where observations and padding lie nor on the other rows
(on CPU bit for bit; on a GPU the order of additions in float64 is the only freedom left).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turncredit.batch_contract import (
    LAYOUT,
    REQUIRED,
    ROUNDING,  # noqa: F401 (part of what this module offers)
    check_layout,
    check_values,
)
from turncredit.option_ranges import check_choice
from turncredit.spans import TurnSpans

if TYPE_CHECKING:  # credit code must be importable with torch alone
    from turncredit.records import Trajectory

STATES = ("history", "observation")
"""What `anchor_ids` can take for the state before a turn."""


@dataclass(frozen=True, eq=False)
class TurnBatch:
    """B trajectories of at most L tokens and T turns; all tensors on one device.

    Shapes and types are checked when a batch is made (they cost nothing); `validate` reads the
    values too.  What stands outside `response_mask` never influences anything, NaN included.
    Numbers may be float64 for exact checks, and the advantages then are; half precision is refused.
    """

    token_ids: Tensor
    """[B, L] int64: prompt, sampled and observation ids, in order, padded on the right."""
    response_mask: Tensor
    """[B, L] bool: True exactly where the policy sampled the token."""
    turn_ids: Tensor
    """[B, L] int64: 0-based turn of each sampled token, -1 elsewhere; a turn may be empty."""
    old_logprobs: Tensor
    """[B, L] float32, nats: under the policy before the update, by the training engine.  Column t
    is the log-prob of token t, made from the logits at t - 1; so are all other [B, L] fields."""
    entropies: Tensor
    """[B, L] float32, nats: full-vocabulary entropy, same pass; NaN = not computed."""
    rewards: Tensor
    """[B] float32: outcome reward; NaN = missing."""
    success: Tensor
    """[B] bool: outcome by exact match, independent of reward shaping."""
    group_ids: Tensor
    """[B] int64: one id per (step, question row)."""
    rollout_logprobs: Tensor | None = None
    """[B, L]: under the sampling engine."""
    ref_logprobs: Tensor | None = None
    """[B, L]: under the reference policy."""
    teacher_logprobs: Tensor | None = None
    """[B, L]: under a privileged teacher."""
    values: Tensor | None = None
    """[B, L]: a critic's values."""
    turn_rewards: Tensor | None = None
    """[B, T]: step rewards."""
    anchor_ids: Tensor | None = None
    """[B, T] int64: state identity for anchor-state grouping."""
    grounded: Tensor | None = None
    """[B] bool: did the evidence ever reach the context."""
    oracle_turn: Tensor | None = None
    """[B] int64: first wrong turn by the world's oracle, -1 for none."""

    def __post_init__(self) -> None:
        check_layout(self._given())

    @classmethod
    def checked(cls, *, group_size: int | None = None, **tensors: Any) -> "TurnBatch":
        """A batch whose values have been validated; raises what `validate` raises."""
        batch = cls(**tensors)
        batch.validate(group_size=group_size)
        return batch

    @property
    def num_turns(self) -> int:
        """T: the width of the [B, T] fields if there is one, otherwise the largest turn id + 1."""
        by_turn = self.turn_rewards if self.turn_rewards is not None else self.anchor_ids
        return self.spans.turn_shape[1] if by_turn is None else by_turn.shape[1]

    @cached_property
    def spans(self) -> TurnSpans:
        """Where the turns lie in the rows."""
        by_turn = self.turn_rewards if self.turn_rewards is not None else self.anchor_ids
        width = None if by_turn is None else by_turn.shape[1]
        return TurnSpans(self.response_mask, self.turn_ids, width)

    @cached_property
    def turn_slots(self) -> Tensor:
        """[N] int64: row * T + turn of each sampled token, row by row in token order."""
        return self.spans.token_slots()

    def turn_lengths(self) -> Tensor:
        """[B, T] int64: sampled tokens of each turn; 0 for an empty turn.

        >>> two_turns_and_one().turn_lengths()
        tensor([[2, 1],
                [1, 0]])
        """
        return self.spans.turn_lengths

    def turn_sums(self, values: Tensor) -> Tensor:
        """[B, L] to [B, T], float64: sum over the sampled tokens of each turn; 0 when empty."""
        return self.spans.sums(values)

    def gather_turns(self, values: Tensor) -> Tensor:
        """[B, T] to [B, L]: each sampled token gets its turn's value; 0 outside the mask.

        >>> two_turns_and_one().gather_turns(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[1., 1., 0., 2.],
                [3., 0., 0., 0.]])
        """
        return self.spans.spread(values)

    def select(self, rows: Tensor | Sequence[int] | slice) -> "TurnBatch":
        """The batch of the given rows (indices, a bool mask [B] or a slice); L stays as it is."""
        if not isinstance(rows, (Tensor, slice)):
            rows = torch.tensor(list(rows)) if len(rows) else torch.empty(0, dtype=torch.int64)
        return TurnBatch(**{name: value[rows] for name, value in self._given().items()})

    def replace(self, **tensors: Tensor | None) -> "TurnBatch":
        """A copy with some fields replaced, e.g. recomputed `old_logprobs` and `entropies`."""
        return replace(self, **tensors)

    def to(self, device: torch.device | str) -> "TurnBatch":
        """The batch with every tensor on `device`; the same batch if they are there already."""
        given = self._given()
        moved = {name: value.to(device=device) for name, value in given.items()}
        return self if all(moved[name] is given[name] for name in given) else replace(self, **moved)

    def validate(self, *, group_size: int | None = None) -> None:
        """Raise ValueError naming the field and first row whose values break the contract.

        With a `group_size`, also a row of a group that is incomplete, or drawn twice, is refused.
        """
        check_values(self, group_size=group_size)

    def _given(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in LAYOUT}
        return {n: value for n, value in tensors.items() if value is not None or n in REQUIRED}


def row_sums(values: Tensor, mask: Tensor) -> Tensor:
    """[B, L] and bool [B, L] to [B], float64: each row's sum over the mask, 0 for an empty row.

    >>> row_sums(torch.tensor([[1.0, float("nan"), 2.0]]), torch.tensor([[True, False, True]]))
    tensor([3.], dtype=torch.float64)
    """
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(mask)
    chosen = values.masked_select(mask).double()
    return chosen.new_zeros(len(values)).index_add(0, rows.masked_select(mask), chosen)


def from_trajectories(
    trajectories: Sequence["Trajectory"], *, group_ids: Sequence[int]
) -> TurnBatch:
    """Collate trajectories, padded on the right with id 0, into a validated batch on the CPU.

    `old_logprobs` and `rollout_logprobs` both start as the sampled log-probs, and `entropies` as
    the sampled ones: replace them once the training engine has rescored the tokens.  A reward of
    None becomes NaN.  `grounded` and `oracle_turn` are None unless every trajectory has them.
    Raises ValueError for no trajectories, for another number of group_ids, and what `validate`
    raises.
    """
    _require_pairs("from_trajectories", trajectories, group_ids)
    flat = _Flat()
    for trajectory in trajectories:
        flat.append(trajectory)
    turn_ids = flat.padded(flat.turns, fill=-1)
    sampled = turn_ids >= 0
    logprobs = _at(sampled, flat.logprobs)
    rewards = [math.nan if t.reward is None else t.reward for t in trajectories]
    grounded = [t.grounded for t in trajectories]
    oracle_turns = [t.oracle_turn for t in trajectories]
    return TurnBatch.checked(
        token_ids=flat.padded(flat.ids, fill=0),
        response_mask=sampled,
        turn_ids=turn_ids,
        old_logprobs=logprobs,
        entropies=_at(sampled, flat.entropies),
        rewards=torch.tensor(rewards, dtype=torch.float32),
        success=torch.tensor([t.success for t in trajectories], dtype=torch.bool),
        group_ids=torch.tensor(list(group_ids), dtype=torch.int64),
        rollout_logprobs=logprobs.clone(),
        grounded=None if None in grounded else torch.tensor(grounded, dtype=torch.bool),
        oracle_turn=None if None in oracle_turns else torch.tensor(oracle_turns),
    )


def anchor_ids(
    trajectories: Sequence["Trajectory"], *, group_ids: Sequence[int], state: str = "observation"
) -> Tensor:
    """[B, T] int64: turns of a group that were taken in the same state share an id, 0, 1, ...

    -1 where a trajectory has no such turn.  `state` "observation" is what the environment said
    last before the turn, token by token, and before turn 0 the prompt.  "history", all tokens
    before the turn, is the whole state, but one that hardly ever recurs: own words are in it.  The
    price of the former is that turns with different knowledge are compared if they were told the
    same last, such as that a search found nothing (GiGPO, arXiv 2505.10978, also groups by
    observation).  Raises ValueError for no trajectories and for another number of group_ids.
    """
    _require_pairs("anchor_ids", trajectories, group_ids)
    check_choice("anchor_ids", "state", state, STATES)
    before = contexts if state == "history" else _observations
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    rows = [
        [numbers.setdefault((group, ids), len(numbers)) for ids in before(trajectory)]
        for group, trajectory in zip(group_ids, trajectories, strict=True)
    ]
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.int64)


def contexts(trajectory: "Trajectory") -> Iterator[tuple[int, ...]]:
    """For each turn all ids before it, in order: what the policy read before it spoke."""
    ids = trajectory.prompt_ids
    for turn in trajectory.turns:
        yield ids
        ids = ids + turn.sampled_ids + turn.observation_ids


def _observations(trajectory: "Trajectory") -> Iterator[tuple[int, ...]]:
    """For each turn the ids of the observation before it, or of the prompt."""
    ids = trajectory.prompt_ids
    for turn in trajectory.turns:
        yield ids
        ids = turn.observation_ids


def _require_pairs(
    name: str, trajectories: Sequence["Trajectory"], group_ids: Sequence[int]
) -> None:
    if not trajectories or len(trajectories) != len(group_ids):
        counts = f"{len(trajectories)} trajectories, {len(group_ids)} group_ids"
        raise ValueError(f"{name}: {counts}; need at least one, and as many of each")


class _Flat:
    """The tokens of all trajectories in plain lists, so that each field is converted once."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.ids: list[int] = []
        self.turns: list[int] = []
        self.logprobs: list[float] = []
        self.entropies: list[float] = []

    def append(self, trajectory: "Trajectory") -> None:
        start = len(self.ids)
        self._extend(trajectory.prompt_ids, -1)
        for number, turn in enumerate(trajectory.turns):
            self._extend(turn.sampled_ids, number)
            self._extend(turn.observation_ids, -1)
            self.logprobs.extend(turn.sampled_logprobs)
            self.entropies.extend(turn.sampled_entropies)
        self.lengths.append(len(self.ids) - start)

    def _extend(self, ids: Sequence[int], turn: int) -> None:
        self.ids.extend(ids)
        self.turns.extend([turn] * len(ids))

    def padded(self, values: list[int], *, fill: int) -> Tensor:
        lengths = torch.tensor(self.lengths)
        inside = torch.arange(int(lengths.max())) < lengths[:, None]
        target = torch.full(inside.shape, fill, dtype=torch.int64)
        return target.masked_scatter_(inside, torch.tensor(values, dtype=torch.int64))


def _at(places: Tensor, values: list[float]) -> Tensor:
    """Float32 of the shape of `places`: the values, in order, where it is True, 0 elsewhere."""
    return torch.zeros(places.shape).masked_scatter_(places, torch.tensor(values))


def two_turns_and_one() -> TurnBatch:
    """The smallest ragged batch, for examples: turns of 2 and 1 tokens; one turn of 1 token."""
    turn_ids = torch.tensor([[0, 0, -1, 1], [0, -1, -1, -1]])
    return TurnBatch(
        token_ids=torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0]]),
        response_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        old_logprobs=torch.full((2, 4), -1.0),
        entropies=torch.tensor([[0.4, 0.2, 9.0, 0.1], [0.3, 9.0, 9.0, 9.0]]),
        rewards=torch.tensor([0.0, 1.0]),
        success=torch.tensor([False, True]),
        group_ids=torch.tensor([0, 0]),
    )
