"""Batches whose numbers other engines can be given, and how close theirs must come to ours.

Rewards are multiples of 1/4: their sums and means are exact in any order and precision, so that a
group of equal rewards has a spread of exactly 0 in every engine.  What happens to other equal
rewards is a deviation with a test of its own.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from batches import TOKEN_FIELDS, make_batch, ragged_batches
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import LAYOUT, TurnBatch

CLOSE = {
    torch.float32: {"rtol": 5e-6, "atol": 1e-6},
    torch.float64: {"rtol": 1e-7, "atol": 1e-9},
}
"""In float32 the other engine rounds; in float64 what is left is the 1e-8 in its denominators."""

LENGTHS = [[[3, 2, 4], [1], [2, 0, 3], [4, 1]], [[0, 2, 2], [1, 1, 1], [2, 5], [6]]]


def example(dtype: torch.dtype = torch.float32) -> TurnBatch:
    """Two groups of four: ragged rows with observations, empty turns, single turns, a tie."""
    batch = make_batch(
        list(chain(*LENGTHS)),
        rewards=[0.0, 1.0, 0.25, 0.25, 1.0, 0.0, 0.0, 0.5],
        groups=[3, 3, 3, 3, 8, 8, 8, 8],
        seed=5,
    )
    return in_type(batch, dtype)


def in_type(batch: TurnBatch, dtype: torch.dtype) -> TurnBatch:
    """The batch with all floating-point fields in `dtype`."""
    given = {name: getattr(batch, name) for name in LAYOUT}
    floats = {n: v.to(dtype) for n, v in given.items() if v is not None and v.is_floating_point()}
    return batch.replace(**floats)


def without_observations(batch: TurnBatch) -> TurnBatch:
    """Zeros at every position not sampled, as an engine that multiplies by its mask has them."""
    fields = {name: at_sampled(batch, getattr(batch, name)) for name in TOKEN_FIELDS}
    return batch.replace(**fields)


def at_sampled(batch: TurnBatch, values: Tensor) -> Tensor:
    """[B, L]: the values at sampled tokens, 0 elsewhere."""
    return torch.where(batch.response_mask, values, 0.0)


def quarters(batch: TurnBatch) -> TurnBatch:
    """Rewards rounded to multiples of 1/4; missing ones become 1/2."""
    return batch.replace(rewards=torch.nan_to_num((batch.rewards * 4).round() / 4, nan=0.5))


def scored_batches() -> st.SearchStrategy[TurnBatch]:
    """Ragged batches of groups of 2 to 4 without a missing reward."""
    return ragged_batches().map(quarters)


@st.composite
def equal_groups(draw: st.DrawFn, size: int, rewards: Sequence[float]) -> TurnBatch:
    """One to three groups of `size` rows each, rewards drawn from `rewards`."""
    count = size * draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    return make_batch(
        [draw(row) for _ in range(count)],
        rewards=[draw(st.sampled_from(list(rewards))) for _ in range(count)],
        groups=[number // size for number in range(count)],
        seed=draw(st.integers(0, 99)),
    )


def outcome_at(batch: TurnBatch, columns: Tensor) -> Tensor:
    """[B, L]: each reward at the given column [B] of its row, 0 elsewhere."""
    empty = torch.zeros(batch.response_mask.shape, dtype=batch.rewards.dtype)
    return empty.scatter(1, columns[:, None], batch.rewards[:, None])


def last_sampled(batch: TurnBatch) -> Tensor:
    """[B] int64: column of the last sampled token, the last column of a row without any."""
    columns = torch.arange(batch.response_mask.shape[1])
    last = torch.where(batch.response_mask, columns, -1).amax(dim=1)
    return torch.where(last < 0, len(columns) - 1, last)
