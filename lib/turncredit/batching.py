"""`TurnBatch`: padded tensors of a batch of trajectories, and how to make one from trajectories.

Sums run over the sampled tokens alone, in their order, one accumulator per turn or trajectory.
A result therefore depends neither on where observations and padding lie nor on the other rows
(on CPU bit for bit; on a GPU the order of additions in float64 is the only freedom left).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turncredit.spans import TurnSpans

if TYPE_CHECKING:  # credit code must be importable with torch alone
    from turncredit.records import Trajectory

IDS, FLOATS, FLAGS = "int64", "floating point", "bool"
LAYOUT = {
    "token_ids": ("BL", IDS), "response_mask": ("BL", FLAGS), "turn_ids": ("BL", IDS),
    "old_logprobs": ("BL", FLOATS), "entropies": ("BL", FLOATS),
    "rewards": ("B", FLOATS), "success": ("B", FLAGS), "group_ids": ("B", IDS),
    "rollout_logprobs": ("BL", FLOATS), "ref_logprobs": ("BL", FLOATS),
    "teacher_logprobs": ("BL", FLOATS), "values": ("BL", FLOATS),
    "turn_rewards": ("BT", FLOATS), "anchor_ids": ("BT", IDS),
    "grounded": ("B", FLAGS), "oracle_turn": ("B", IDS),
}  # fmt: skip
REQUIRED = tuple(LAYOUT)[:8]
LOGPROBS = ("old_logprobs", "rollout_logprobs", "ref_logprobs", "teacher_logprobs")
ROUNDING = 1e-3
"""How far above 0 a log-probability, or below 0 an entropy, may lie through rounding."""


@dataclass(frozen=True, eq=False)
class TurnBatch:
    """B trajectories of at most L tokens and T turns; all tensors on one device.

    Shapes and types are checked when a batch is made (they cost nothing); `validate` reads the
    values too.  What stands outside `response_mask` never influences anything, NaN included.
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
        sizes: dict[str, int] = {}
        for name, value in self._given().items():
            axes, kind = LAYOUT[name]
            if not isinstance(value, Tensor):
                raise TypeError(f"TurnBatch.{name}: {type(value).__name__}, not a tensor")
            _check_shape(name, value, axes, sizes)
            _check_kind(name, value, kind, self.token_ids.device)

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

    def validate(self, *, group_size: int | None = None) -> None:
        """Raise ValueError naming the field and first row whose values break the contract.

        With a `group_size`, also a row of a group that is incomplete, or drawn twice, is refused.
        """
        mask, turns = self.response_mask, self.turn_ids
        self._refuse("turn_ids", mask & (turns < 0), "has a sampled token without a turn")
        self._refuse("turn_ids", ~mask & (turns != -1), "has a turn outside response_mask")
        highest_so_far = torch.where(mask, turns, -1).cummax(dim=1).values
        self._refuse("turn_ids", mask & (turns < highest_so_far), "decreases along the row")
        self._refuse("turn_ids", turns >= self.num_turns, f"has a turn beyond T = {self.num_turns}")
        self._refuse("token_ids", self.token_ids < 0, "has a negative id")
        self._refuse("rewards", self.rewards.isinf(), "is infinite")
        if group_size is not None:
            _, group, sizes = self.group_ids.unique(return_inverse=True, return_counts=True)
            self._refuse("group_ids", sizes[group] != group_size, f"is in no group of {group_size}")
        impossible = self.entropies.isinf() | (self.entropies < -ROUNDING)
        self._refuse("entropies", mask & impossible, "is infinite or negative at a sampled token")
        self._validate_optional()

    def _validate_optional(self) -> None:
        for name in LOGPROBS:
            value = getattr(self, name)
            if value is not None:
                wrong = self.response_mask & (~value.isfinite() | (value > ROUNDING))
                self._refuse(name, wrong, "is not a log-probability at a sampled token")
        if self.values is not None:
            wrong = self.response_mask & ~self.values.isfinite()
            self._refuse("values", wrong, "is not finite at a sampled token")
        if self.turn_rewards is not None:
            read = self.turn_lengths() > 0
            self._refuse("turn_rewards", read & self.turn_rewards.isinf(), "is infinite")
        if self.oracle_turn is not None:
            outside = (self.oracle_turn < -1) | (self.oracle_turn >= max(self.num_turns, 1))
            self._refuse("oracle_turn", outside, f"is not in -1 .. {self.num_turns - 1}")

    def _refuse(self, name: str, bad: Tensor, complaint: str) -> None:
        if bad.any():
            row, *column = bad.nonzero()[0].tolist()
            axis = "turn" if LAYOUT[name][0] == "BT" else "token"
            place = f"row {row}, {axis} {column[0]}" if column else f"row {row}"
            value = getattr(self, name)[(row, *column)].item()
            raise ValueError(f"TurnBatch.{name}: {place} {complaint} (value {value})")

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
    None becomes NaN.  `grounded` is None unless every trajectory has it.  Raises ValueError for
    no trajectories, for another number of group_ids, and what `validate` raises.
    """
    if not trajectories or len(trajectories) != len(group_ids):
        counts = f"{len(trajectories)} trajectories, {len(group_ids)} group_ids"
        raise ValueError(f"from_trajectories: {counts}; need at least one, and as many of each")
    flat = _Flat()
    for trajectory in trajectories:
        flat.append(trajectory)
    turn_ids = flat.padded(flat.turns, fill=-1)
    sampled = turn_ids >= 0
    logprobs = _at(sampled, flat.logprobs)
    rewards = [math.nan if t.reward is None else t.reward for t in trajectories]
    grounded = [t.grounded for t in trajectories]
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
    )


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


def _check_shape(name: str, value: Tensor, axes: str, sizes: dict[str, int]) -> None:
    expected = [sizes.setdefault(axis, size) for axis, size in zip(axes, value.shape, strict=False)]
    if value.dim() != len(axes) or list(value.shape) != expected:
        wanted = ", ".join(f"{axis} = {sizes.get(axis, '?')}" for axis in axes)
        raise ValueError(f"TurnBatch.{name}: shape {tuple(value.shape)}, not [{wanted}]")


def _check_kind(name: str, value: Tensor, kind: str, device: torch.device) -> None:
    exact = {IDS: torch.int64, FLAGS: torch.bool}
    if not (value.is_floating_point() if kind == FLOATS else value.dtype == exact[kind]):
        raise ValueError(f"TurnBatch.{name}: type {value.dtype}, not {kind}")
    if value.device != device:
        raise ValueError(f"TurnBatch.{name}: on {value.device}, token_ids on {device}")


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
