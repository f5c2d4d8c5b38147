"""Where turns lie in padded rows: a few thousand spans stand for half a million tokens."""

from functools import cached_property

import torch
from torch import Tensor


class TurnSpans:
    """Spans are runs of tokens of one turn; sums over turns and copies to their tokens use them.

    A turn is one span, or several with observations between them.  What was not sampled forms
    spans too.  Slot: row * T + turn of a sampled span, -1 of the others.
    """

    def __init__(self, mask: Tensor, turn_ids: Tensor, num_turns: int | None = None) -> None:
        """mask, turn_ids: [B, L] bool and int64; num_turns: T, or None for largest id + 1.

        Raises ValueError naming the first row whose turn ids, at sampled tokens, decrease or are
        not in 0 .. T - 1.  (Only the ends of spans are looked at, for speed; what is wrong between
        two equal ends is found by `TurnBatch.validate`.)
        """
        self.token_shape = mask.shape
        # Positions of half the size: the memory they move takes most of the time.
        self.position_type = torch.int32 if mask.numel() < 2**31 else torch.int64
        starts, self.lengths, sampled, turns = find_spans(mask, turn_ids)
        chosen = sampled.nonzero()[:, 0]
        self.chosen_starts, self.chosen_lengths, turns = (
            values.index_select(0, chosen) for values in (starts, self.lengths, turns)
        )
        if num_turns is None:
            num_turns = int(turns.max()) + 1 if len(turns) else 0
        self.turn_shape = (len(mask), num_turns)
        rows = self.chosen_starts.div(max(mask.shape[1], 1), rounding_mode="floor")
        self.chosen_slots = rows * num_turns + turns
        decreases = self.chosen_slots.diff(prepend=self.chosen_slots[:1]) < 0
        wrong = (turns < 0) | (turns >= num_turns) | decreases
        if wrong.any():
            raise ValueError(
                f"TurnBatch.turn_ids: row {int(rows[wrong][0])} has turn ids at sampled tokens that"
                f" decrease or are not in 0 .. {num_turns - 1}"
            )
        self.slots = torch.full_like(starts, -1).index_copy_(0, chosen, self.chosen_slots)

    @cached_property
    def turn_lengths(self) -> Tensor:
        """[B, T] int64: sampled tokens of each turn."""
        lengths = self.lengths.new_zeros(self.turn_shape[0] * self.turn_shape[1])
        return lengths.index_add_(0, self.chosen_slots, self.chosen_lengths).view(self.turn_shape)

    @cached_property
    def places(self) -> Tensor:
        """[N] int64: where the sampled tokens stand in the flattened rows, in order."""
        return self._narrow_places.long()

    @cached_property
    def _narrow_places(self) -> Tensor:
        starts, lengths = self.chosen_starts, self.chosen_lengths
        return positions(starts.to(self.position_type), lengths.to(self.position_type))

    def token_slots(self) -> Tensor:
        """[N] int64: the slot of each sampled token."""
        return self.chosen_slots.repeat_interleave(self.chosen_lengths)

    def sums(self, values: Tensor) -> Tensor:
        """[B, L] to [B, T], float64: over the sampled tokens of each turn, one after the other.

        Raises ValueError for values of another shape.
        """
        _check_shape("turn_sums", values, self.token_shape)
        sampled = values.flatten().index_select(0, self._narrow_places).double()
        lengths = self.turn_lengths.flatten()
        sums = torch.segment_reduce(sampled, "sum", lengths=lengths, unsafe=True)
        return sums.view(self.turn_shape)

    def spread(self, values: Tensor) -> Tensor:
        """[B, T] to [B, L]: each sampled token gets its turn's value, the others 0.

        Raises ValueError for values of another shape.
        """
        _check_shape("gather_turns", values, self.turn_shape)
        padded = torch.cat([values.flatten(), values.new_zeros(1)])  # slot -1 is this zero
        size, lengths = self.token_shape.numel(), self.lengths.to(self.position_type)
        flat = padded[self.slots].repeat_interleave(lengths, output_size=size)
        return flat.view(self.token_shape)


def find_spans(mask: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Start of each span in the flattened rows, its length, was it sampled, its turn: [S] each.

    Spans cover every position and none crosses rows.  The turn of what was not sampled means
    nothing.

    >>> turn_ids = torch.tensor([[-1, 0, 0, 1], [1, -1, -1, -1]])
    >>> starts, lengths, sampled, turns = find_spans(turn_ids >= 0, turn_ids)
    >>> starts, lengths
    (tensor([0, 1, 3, 4, 5]), tensor([1, 2, 1, 1, 3]))
    >>> turns[sampled]
    tensor([0, 1, 1])
    """
    begins = _changes(mask)
    starts, lengths, sampled = _between(begins, mask)
    flat = turn_ids.flatten()
    turns = flat.index_select(0, starts)
    touching = turns != flat.index_select(0, starts + lengths - 1)  # turns without a gap
    if (touching & sampled).any():
        starts, lengths, sampled = _between(begins | _changes(turn_ids), mask)
        turns = flat.index_select(0, starts)
    return starts, lengths, sampled, turns


def _check_shape(method: str, values: Tensor, expected: tuple[int, ...]) -> None:
    if values.shape != expected:
        raise ValueError(
            f"{method}: values have shape {tuple(values.shape)}, not {tuple(expected)}"
        )


def _changes(rows: Tensor) -> Tensor:
    """[8 * ceil(B * L / 8)] bool: where a row starts, or differs from the position before."""
    flat = rows.flatten()
    begins = torch.zeros(-(-len(flat) // 8) * 8, dtype=torch.bool, device=rows.device)
    torch.ne(flat[1:], flat[:-1], out=begins[1 : len(flat)])
    begins[: len(flat)].view(rows.shape)[:, :1] = True
    return begins


def _between(begins: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    words = begins.view(torch.int64).nonzero()[:, 0]  # eight flags at once: few are set
    near = begins.view(-1, 8).index_select(0, words).flatten().nonzero()[:, 0]
    starts = 8 * words.index_select(0, near >> 3) + (near & 7)
    lengths = starts.diff(append=starts.new_tensor([mask.numel()]))
    return starts, lengths, mask.flatten().index_select(0, starts)


def positions(starts: Tensor, lengths: Tensor) -> Tensor:
    """[S] twice to [N]: every position inside the spans, in order, in the type of `starts`.

    Each length is at least 1.  As `nonzero` of a mask, in a fraction of its time.

    >>> positions(torch.tensor([1, 7]), torch.tensor([3, 2]))
    tensor([1, 2, 3, 7, 8])
    """
    steps = starts.new_ones(int(lengths.sum()))
    if len(starts):
        steps[0] = starts[0]
        steps[lengths.cumsum(0)[:-1]] += starts[1:] - starts[:-1] - lengths[:-1]
    return steps.cumsum(0, dtype=starts.dtype)
