"""Which groups can teach anything, and a bounded, counted way to draw more of them."""

import math

import pytest
import torch
from batches import ragged_batches
from hypothesis import given
from hypothesis import strategies as st

from turncredit.dynamic_sampling import NoUsableGroups, resample_groups, usable_groups

NAN = math.nan


@pytest.mark.parametrize(
    ("rewards", "usable"),
    [
        ([0.0, 0.0], False),
        ([1.0, 1.0], False),
        ([0.0, 1.0], True),
        ([0.1] * 7, False),  # a float32 standard deviation of these is not 0
        ([0.7] * 7, False),
        ([0.1, 0.1, 0.1000001], True),
        ([NAN, 1.0], False),  # one known reward compares with nothing
        ([NAN, 1.0, 0.0], True),
        ([NAN, NAN], False),
        ([1.0], False),
        ([-1.0, 1.0], True),
    ],
)
def test_table_of_groups(rewards, usable):
    found = usable_groups(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.int64))
    assert found.tolist() == [usable] * len(rewards)


@given(ragged_batches())
def test_groups_are_judged_alone_and_wherever_their_rows_stand(batch):
    found = usable_groups(batch.rewards, batch.group_ids)
    for group in batch.group_ids.unique():
        rows = batch.group_ids == group
        known = {reward for reward in batch.rewards[rows].tolist() if not math.isnan(reward)}
        assert set(found[rows].tolist()) == {len(known) > 1}
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    assert torch.equal(usable_groups(batch.rewards[order], batch.group_ids[order]), found[order])


def test_no_rows_are_no_groups():
    assert usable_groups(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).tolist() == []


def positive(group: int) -> bool:
    return group > 0


def test_sampling_stops_as_soon_as_there_are_enough():
    rounds = [[1, -1, 2], [3, -2, 4, 5], [6]]
    asked = []

    def draw(number: int) -> list[int]:
        asked.append(number)
        return rounds[number]

    kept, counts = resample_groups(draw, positive, enough=3)
    assert kept == [1, 2, 3]
    assert asked == [0, 1]
    assert counts == {
        "sampling_rounds": 2,
        "groups_drawn": 7,
        "groups_kept": 3,
        "groups_unusable": 2,
        "groups_surplus": 2,
        "groups_short": 0,
    }


def test_too_few_groups_are_kept_and_counted_as_short():
    kept, counts = resample_groups(lambda number: [number, -1], positive, enough=5, max_rounds=3)
    assert kept == [1, 2]
    assert (counts["sampling_rounds"], counts["groups_short"]) == (3, 3)


def test_an_impossible_question_set_ends_with_one_clear_sentence():
    calls = []

    def draw(number: int) -> list[int]:
        calls.append(number)
        return [-1, -1]

    message = "none of the 8 groups drawn in 4 rounds is usable: within each, all rewards are equal"
    with pytest.raises(NoUsableGroups, match=message):
        resample_groups(draw, positive, enough=1, max_rounds=4)
    assert calls == [0, 1, 2, 3]


def test_empty_rounds_count_against_the_bound():
    with pytest.raises(NoUsableGroups, match="none of the 0 groups drawn in 2 rounds"):
        resample_groups(lambda number: [], positive, enough=1, max_rounds=2)


@given(
    st.lists(st.lists(st.integers(-1, 1), max_size=4), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_every_group_drawn_is_counted_once(rounds, enough):
    try:
        kept, counts = resample_groups(
            rounds.__getitem__, positive, enough=enough, max_rounds=len(rounds)
        )
    except NoUsableGroups:
        assert not any(positive(group) for groups in rounds for group in groups)
        return
    parts = ("groups_kept", "groups_unusable", "groups_surplus")
    assert sum(counts[part] for part in parts) == counts["groups_drawn"]
    assert counts["groups_kept"] == len(kept) == enough - counts["groups_short"]
    assert all(map(positive, kept))


@pytest.mark.parametrize("bound", ["enough", "max_rounds"])
def test_bounds_below_one_are_named(bound):
    options = {"enough": 1, "max_rounds": 1, bound: 0}
    with pytest.raises(ValueError, match=f"resample_groups: {bound} is 0; it must be at least 1"):
        resample_groups(lambda number: [1], positive, **options)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float16, torch.float64])
def test_flags_and_whole_numbers_are_rewards_too(kind):
    rewards = torch.tensor([1, 0, 0, 0, 1, 1]).to(kind)
    found = usable_groups(rewards, torch.tensor([7, 7, 3, 3, 9, 9]))
    assert found.tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize(("first", "second"), [((4,), (3,)), ((4, 1), (4,)), ((4, 1), (4, 1))])
def test_rewards_and_groups_of_other_shapes_are_refused(first, second):
    with pytest.raises(ValueError, match="usable_groups: rewards"):
        usable_groups(torch.zeros(first), torch.zeros(second, dtype=torch.int64))


@pytest.mark.parametrize("bound", ["enough", "max_rounds"])
@pytest.mark.parametrize("value", [1.5, math.nan, math.inf, "2", None])
def test_bounds_are_whole_numbers(bound, value):
    """Found before anything is drawn."""
    with pytest.raises(ValueError, match=f"resample_groups: {bound} is {value}; it must be"):
        resample_groups(pytest.fail, bool, **({"enough": 1} | {bound: value}))
