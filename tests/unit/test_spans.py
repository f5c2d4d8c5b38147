"""Spans of turns against a plain loop over tokens, on any layout."""

import pytest
import torch
from batches import insert_observations, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turncredit.spans import TurnSpans, find_spans, positions


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Mask and turn ids [B, L]: gaps anywhere, turns split, touching or empty, junk outside."""
    rows, columns = draw(st.integers(0, 4)), draw(st.integers(0, 19))
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    turn_ids = torch.full((rows, columns), draw(st.sampled_from([-1, 7])))
    for row in range(rows):
        turn = 0
        for column in range(columns):
            turn += draw(st.sampled_from([0, 0, 0, 1, 2]))
            if draw(st.booleans()):
                mask[row, column], turn_ids[row, column] = True, turn
    return mask, turn_ids


def slow_sums(mask: Tensor, turn_ids: Tensor, values: Tensor, num_turns: int) -> Tensor:
    sums = torch.zeros(len(mask), num_turns, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        sums[row, turn_ids[row, column]] += values[row, column].double()
    return sums


@given(layouts(), st.integers(0, 99))
def test_spans_agree_with_a_loop_over_tokens(layout, seed):
    mask, turn_ids = layout
    spans = TurnSpans(mask, turn_ids)
    rows, num_turns = spans.turn_shape
    sampled = turn_ids[mask]
    assert num_turns == (int(sampled.max()) + 1 if len(sampled) else 0)
    assert torch.equal(spans.places, mask.flatten().nonzero()[:, 0])
    assert torch.equal(
        spans.token_slots(), (torch.arange(rows)[:, None] * num_turns + turn_ids)[mask]
    )
    ones = torch.ones(mask.shape)
    assert torch.equal(spans.turn_lengths, slow_sums(mask, turn_ids, ones, num_turns).long())
    values = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
    values[~mask] = torch.nan
    assert torch.equal(spans.sums(values), slow_sums(mask, turn_ids, values, num_turns))
    by_turn = torch.rand(rows, num_turns)
    expected = torch.zeros(mask.shape)
    expected[mask] = by_turn.flatten()[spans.token_slots()]
    assert torch.equal(spans.spread(by_turn), expected)


@given(layouts())
def test_spans_tile_the_rows_and_are_as_long_as_can_be(layout):
    mask, turn_ids = layout
    starts, lengths, sampled, _ = find_spans(mask, turn_ids)
    assert torch.equal(
        starts + lengths, torch.cat([starts[1:], starts.new_full((len(starts[:1]),), mask.numel())])
    )
    turns = torch.where(mask, turn_ids, -1)
    for start, length, flag in zip(*(x.tolist() for x in (starts, lengths, sampled)), strict=True):
        row, column = divmod(start, mask.shape[1])
        assert column + length <= mask.shape[1]  # no span crosses rows
        assert turns[row, column : column + length].unique().numel() == 1
        assert mask[row, column] == flag


@given(ragged_batches(), st.integers(1, 9))
def test_a_turn_split_by_observations_has_the_same_sum_to_the_bit(batch, extra):
    (longer,) = insert_observations(batch, extra=extra)
    assert torch.equal(batch.turn_sums(batch.entropies), longer.turn_sums(longer.entropies))


def test_sums_and_copies_are_differentiable():
    mask = torch.tensor([[True, True, False, True], [False, True, True, False]])
    spans = TurnSpans(mask, torch.tensor([[0, 0, -1, 1], [-1, 0, 2, -1]]))
    tokens = torch.rand(mask.shape, dtype=torch.float64, requires_grad=True)
    turns = torch.rand(spans.turn_shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spans.sums, tokens)
    assert torch.autograd.gradcheck(spans.spread, turns)


@pytest.mark.parametrize("row", [[1, 1, 0, -1], [0, 0, -1, -1], [-1, 5, -1, -1], [1, -1, 0, -1]])
def test_turn_ids_that_contradict_the_contract_name_the_row(row):
    """Decreasing in a span, missing at a sampled token, beyond T, decreasing over a gap."""
    turn_ids = torch.tensor([[0, -1, 1, 1], row])
    mask = turn_ids >= 0
    mask[1, 2] |= row[0] == 0
    with pytest.raises(ValueError, match=r"turn_ids: row 1 has turn ids .* not in 0 .. 1"):
        TurnSpans(mask, turn_ids, 2)


def test_positions_by_hand():
    assert positions(torch.tensor([0, 3, 4]), torch.tensor([2, 1, 2])).tolist() == [0, 1, 3, 4, 5]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert positions(nothing, nothing).tolist() == []
