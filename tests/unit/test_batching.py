"""`TurnBatch` refuses what contradicts its contract; collation puts every token in its place."""

import math

import pytest
import torch
from batches import make_batch
from hypothesis import given
from hypothesis import strategies as st

from turncredit.batch_contract import FLOATS
from turncredit.batching import LAYOUT, REQUIRED, TurnBatch, from_trajectories, row_sums
from turncredit.credit import BASES, token_advantages
from turncredit.records import Trajectory, Turn


def changed(name: str, place: tuple[int, ...], value: float) -> TurnBatch:
    """Rows [2, 1] and [0, 3] with one entry of one field overwritten."""
    batch = make_batch([[2, 1], [0, 3]])
    tensor = getattr(batch, name).clone()
    tensor[place] = value
    return batch.replace(**{name: tensor})


# Row 1 of that batch: columns 0 to 3 are observations, 4 to 6 the tokens of turn 1.
@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("turn_ids", (1, 5), 0, "turn_ids: row 1, token 5 decreases"),
        ("turn_ids", (1, 5), -1, "turn_ids: row 1, token 5 has a sampled token without a turn"),
        ("turn_ids", (1, 0), 0, "turn_ids: row 1, token 0 has a turn outside response_mask"),
        ("turn_ids", (1, 6), 5, "turn_ids: row 1, token 6 has a turn beyond T = 2"),
        ("response_mask", (1, 6), False, "turn_ids: row 1, token 6 has a turn outside"),
        ("token_ids", (1, 2), -1, "token_ids: row 1, token 2 has a negative id"),
        ("rewards", (1,), math.inf, "rewards: row 1 is infinite"),
        ("rewards", (0,), -math.inf, "rewards: row 0 is infinite"),
        ("entropies", (1, 4), math.inf, "entropies: row 1, token 4 is infinite or negative"),
        ("entropies", (1, 4), -0.5, "entropies: row 1, token 4 is infinite or negative"),
        ("old_logprobs", (1, 4), math.nan, "old_logprobs: row 1, token 4 is not a log-prob"),
        ("old_logprobs", (1, 4), 0.5, "old_logprobs: row 1, token 4 is not a log-prob"),
        ("rollout_logprobs", (1, 4), -math.inf, "rollout_logprobs: row 1, token 4"),
        ("ref_logprobs", (1, 4), math.nan, "ref_logprobs: row 1, token 4"),
        ("teacher_logprobs", (1, 4), math.nan, "teacher_logprobs: row 1, token 4"),
        ("values", (1, 4), math.inf, "values: row 1, token 4 is not finite"),
        ("oracle_turn", (1,), 2, "oracle_turn: row 1 is not in -1 .. 1"),
        ("turn_rewards", (1, 1), -math.inf, "turn_rewards: row 1, turn 1 is infinite"),
    ],
)
def test_validate_names_the_field_and_the_row(name, place, value, message):
    with pytest.raises(ValueError, match=rf"TurnBatch\.{message}"):
        changed(name, place, value).validate()


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("rewards", (1,), math.nan),  # missing
        ("entropies", (1, 4), math.nan),  # not computed
        ("old_logprobs", (1, 0), math.nan),  # outside the mask
        ("entropies", (1, 0), math.inf),
        ("turn_rewards", (1, 1), math.nan),  # missing
        ("turn_rewards", (1, 0), math.inf),  # of an empty turn
    ],
)
def test_validate_accepts_what_may_be_missing(name, place, value):
    changed(name, place, value).validate()


def test_shapes_and_types_are_checked_when_a_batch_is_made():
    batch = make_batch([[2, 1], [0, 3]])
    length = batch.token_ids.shape[1]
    for name, value, message in [
        ("old_logprobs", torch.zeros(2, length - 1), rf"old_logprobs: shape \(2, {length - 1}\)"),
        ("rewards", torch.zeros(3), r"rewards: shape \(3,\), not \[B = 2\]"),
        ("rewards", torch.zeros(2, 1), r"rewards: shape \(2, 1\)"),
        ("anchor_ids", torch.zeros(2, 5, dtype=torch.int64), r"anchor_ids: shape \(2, 5\)"),
        ("token_ids", torch.zeros(2, dtype=torch.int64), r"token_ids: shape \(2,\)"),
        ("response_mask", torch.ones(2, length), "response_mask: type torch.float32, not bool"),
        ("group_ids", torch.zeros(2), "group_ids: type torch.float32, not int64"),
        ("entropies", torch.zeros(2, length, dtype=torch.int64), "int64, not float32 or float64"),
        ("success", torch.zeros(2), "success: type torch.float32, not bool"),
    ]:
        with pytest.raises(ValueError, match=message):
            batch.replace(**{name: value})


FLOAT_FIELDS = [name for name, (_, kind) in LAYOUT.items() if kind == FLOATS]


@pytest.mark.parametrize("name", FLOAT_FIELDS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.float8_e5m2]
)
def test_half_precision_is_refused_in_every_field(name, dtype):
    """Rewards of bfloat16 would make advantages of bfloat16, log-probs ratios off by 1 %."""
    batch = make_batch([[2, 1], [0, 3]])
    with pytest.raises(ValueError, match=rf"TurnBatch\.{name}: type {dtype}, not float32 or fl"):
        batch.replace(**{name: getattr(batch, name).to(dtype)})


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_have_the_type_of_the_rewards_alone(base, dtype):
    batch = make_batch([[2, 1], [1, 3]], rewards=[0.0, 1.0])
    batch = batch.replace(rewards=batch.rewards.to(dtype))
    assert token_advantages(batch, base, "aem").dtype == dtype
    for name in FLOAT_FIELDS:
        if name != "rewards":
            other = batch.replace(**{name: getattr(batch, name).double()})
            assert token_advantages(other, base, "aem").dtype == dtype


def test_collation_makes_float32():
    batch = from_trajectories([trajectory([1], [turn([2], [])])] * 2, group_ids=[0, 0])
    made = {name: getattr(batch, name) for name in FLOAT_FIELDS}
    given = {name for name, value in made.items() if value is not None}
    assert given == {"old_logprobs", "entropies", "rewards", "rollout_logprobs"}
    assert {made[name].dtype for name in given} == {torch.float32}


def test_a_batch_moves_to_a_device_with_every_field():
    batch = make_batch([[2, 1], [0, 3]])
    assert batch.turn_lengths().device.type == "cpu"  # kept, and not to be taken along
    for device in ("meta", torch.device("meta")):
        moved = batch.to(device)
        for name in LAYOUT:
            before, after = getattr(batch, name), getattr(moved, name)
            assert (after.device.type, after.dtype, after.shape) == (
                "meta", before.dtype, before.shape,
            )  # fmt: skip
        assert moved.num_turns == batch.num_turns
        assert "spans" not in vars(moved)
    assert batch.to("cpu") is batch
    with pytest.raises(ValueError, match=r"TurnBatch\.rewards: on cpu, token_ids on meta"):
        moved.replace(rewards=batch.rewards)
    with pytest.raises((TypeError, RuntimeError)):
        batch.to(torch.float64)


def test_a_batch_moves_without_the_fields_it_lacks():
    optional = [name for name in LAYOUT if name not in REQUIRED]
    batch = make_batch([[2, 1], [0, 3]]).replace(**dict.fromkeys(optional))
    moved = batch.to("meta")
    assert all(getattr(moved, name) is None for name in optional)
    assert all(getattr(moved, name).is_meta for name in REQUIRED)


def test_turn_lengths_sums_and_gather_agree_with_the_layout():
    batch = make_batch([[2, 0, 1], [0, 3]])
    assert batch.num_turns == 3
    assert batch.turn_lengths().tolist() == [[2, 0, 1], [0, 3, 0]]
    numbers = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gathered = batch.gather_turns(numbers)
    assert gathered[0][batch.response_mask[0]].tolist() == [1.0, 1.0, 3.0]
    assert gathered[1][batch.response_mask[1]].tolist() == [5.0, 5.0, 5.0]
    assert (gathered[~batch.response_mask] == 0).all()
    assert batch.turn_sums(gathered).tolist() == [[2.0, 0.0, 3.0], [0.0, 15.0, 0.0]]
    assert row_sums(gathered, batch.response_mask).tolist() == [5.0, 15.0]
    with pytest.raises(ValueError, match=r"shape \(2, 2\), not \(2, 3\)"):
        batch.gather_turns(numbers[:, :2])


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3), (9, 2), (1, 9), (2, 9, 1)])
def test_sums_refuse_another_shape(shape):
    """The transposed rows have as many numbers: they would be summed in silence."""
    batch = make_batch([[2, 0, 1], [0, 2]])
    assert batch.token_ids.shape == (2, 10)
    for wrong in (shape, (10, 2)):
        with pytest.raises(ValueError, match=r"turn_sums: values have shape .*, not \(2, 10\)"):
            batch.turn_sums(torch.zeros(wrong))


@pytest.mark.parametrize("name", LAYOUT)
def test_what_is_no_tensor_is_named(name):
    batch = make_batch([[2, 1], [0, 3]])
    for value in (3, [1.0], "x", *([None] if name in REQUIRED else [])):
        with pytest.raises(TypeError, match=rf"TurnBatch\.{name}: \w+, not a tensor"):
            batch.replace(**{name: value})


@pytest.mark.parametrize(
    ("groups", "row"), [([0, 0, 1, 1, 1], 0), ([5, 5, 5, 2, 2], 3), ([0, 1, 2, 3, 4], 0)]
)
def test_incomplete_and_duplicate_groups_name_the_first_row(groups, row):
    batch = make_batch([[1]] * 5, groups=groups)
    batch.validate()
    with pytest.raises(ValueError, match=f"TurnBatch.group_ids: row {row} is in no group of 3"):
        batch.validate(group_size=3)
    make_batch([[1]] * 4, groups=[-7, 9, 9, -7]).validate(group_size=2)


def test_sums_accumulate_in_float64():
    """A float32 accumulator would lose the ones between 1e9 and -1e9."""
    batch = make_batch([[5]])
    values = torch.zeros(batch.token_ids.shape)
    values[batch.response_mask] = torch.tensor([1e9, 1.0, 1.0, 1.0, -1e9])
    assert batch.turn_sums(values).tolist() == [[3.0]]
    assert row_sums(values, batch.response_mask).tolist() == [3.0]


def test_select_takes_rows_of_every_field_and_keeps_the_width():
    batch = make_batch([[2, 0, 1], [0, 3], [1]], rewards=[0.0, 1.0, 2.0])
    for rows in ([2, 0], torch.tensor([2, 0])):
        chosen = batch.select(rows)
        assert chosen.rewards.tolist() == [2.0, 0.0]
        assert torch.equal(chosen.token_ids, batch.token_ids[[2, 0]])
        assert chosen.turn_lengths().tolist() == [[1, 0, 0], [2, 0, 1]]
    assert batch.select(torch.tensor([False, True, False])).rewards.tolist() == [1.0]
    assert batch.select(slice(0, 2)).rewards.tolist() == [0.0, 1.0]
    assert len(batch.select([]).rewards) == 0
    assert batch.replace(values=None).select([1]).values is None


def test_a_list_of_flags_selects_as_a_mask_does():
    """As numbers, True would be row 1 and False row 0."""
    batch = make_batch([[1], [2], [3]], rewards=[0.0, 0.5, 1.0])
    flags = [True, False, True]
    for rows in (flags, torch.tensor(flags), [0, 2], (0, 2)):
        assert batch.select(rows).rewards.tolist() == [0.0, 1.0]
    assert batch.select([]).token_ids.shape == (0, batch.token_ids.shape[1])
    with pytest.raises(IndexError):
        batch.select([0.0, 2.0])


def test_a_replaced_batch_forgets_what_was_derived_from_the_old_fields():
    batch = make_batch([[2, 1]]).replace(turn_rewards=None, anchor_ids=None)
    assert batch.num_turns == 2
    merged = batch.replace(turn_ids=batch.turn_ids.clamp(max=0))
    assert merged.num_turns == 1
    assert merged.turn_lengths().tolist() == [[3]]


def turn(sampled: list[int], observation: list[int], logprob: float = -0.5) -> Turn:
    return Turn(
        sampled_ids=tuple(sampled),
        sampled_logprobs=(logprob,) * len(sampled),
        sampled_entropies=(0.25,) * len(sampled),
        observation_ids=tuple(observation),
        action="search",
    )


def trajectory(prompt: list[int], turns: list[Turn], **fields) -> Trajectory:
    defaults = {"question_id": "q", "reward": 1.0, "success": True, "stop_reason": "answer"}
    return Trajectory(prompt_ids=tuple(prompt), turns=tuple(turns), **{**defaults, **fields})


def test_collation_puts_every_token_in_its_place():
    batch = from_trajectories(
        [
            trajectory([1, 2], [turn([3], [4, 5]), turn([6, 7], [], -0.7)], grounded=True),
            trajectory(
                [1], [turn([], [8]), turn([9], [])], reward=None, success=False, grounded=False
            ),
        ],
        group_ids=[4, 4],
    )
    assert batch.token_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [1, 8, 9, 0, 0, 0, 0]]
    assert batch.turn_ids.tolist() == [[-1, -1, 0, -1, -1, 1, 1], [-1, -1, 1, -1, -1, -1, -1]]
    assert torch.equal(batch.response_mask, batch.turn_ids >= 0)
    expected = torch.tensor([[0, 0, -0.5, 0, 0, -0.7, -0.7], [0, 0, -0.5, 0, 0, 0, 0]])
    assert torch.equal(batch.old_logprobs, expected)
    assert torch.equal(batch.rollout_logprobs, expected)
    assert torch.equal(batch.entropies, 0.25 * batch.response_mask)
    assert batch.rewards[0] == 1.0
    assert batch.rewards[1].isnan()  # None: missing is not zero
    assert batch.success.tolist() == [True, False]
    assert batch.group_ids.tolist() == [4, 4]
    assert batch.grounded.tolist() == [True, False]


def test_collation_counts_its_group_ids_and_unknown_grounding_stays_unknown():
    good = trajectory([1], [turn([2], [])])
    with pytest.raises(ValueError, match="1 trajectories, 2 group_ids"):
        from_trajectories([good], group_ids=[0, 1])
    with pytest.raises(ValueError, match="0 trajectories, 0 group_ids"):
        from_trajectories([], group_ids=[])
    mixed = [good, trajectory([1], [turn([2], [])], grounded=True)]
    assert from_trajectories(mixed, group_ids=[0, 0]).grounded is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_collation_keeps_the_token_order_of_every_trajectory(shapes):
    trajectories = [
        trajectory(
            [1] * (len(row) % 3), [turn([2] * sampled, [3] * observed) for sampled, observed in row]
        )
        for row in shapes
    ]
    batch = from_trajectories(trajectories, group_ids=range(len(shapes)))
    for row, one in enumerate(trajectories):
        ids = one.token_ids
        assert tuple(batch.token_ids[row, : len(ids)].tolist()) == ids
        assert not batch.response_mask[row, len(ids) :].any()
        lengths = batch.turn_lengths()[row].tolist()
        expected = [len(turn.sampled_ids) for turn in one.turns]
        assert lengths[: len(expected)] == expected[: batch.num_turns]
        assert sum(lengths) == sum(expected)
