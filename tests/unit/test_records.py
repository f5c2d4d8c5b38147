"""Records hold tokens, refuse what does not fit, and survive a file bit for bit."""

import gzip
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.records import Group, Trajectory, Turn, read_trajectories, write_trajectories

IDS = st.lists(st.integers(0, 99), max_size=4).map(tuple)
FLOATS = st.floats(-50, 0, allow_nan=False)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    sampled = draw(IDS)
    values = st.lists(FLOATS, min_size=len(sampled), max_size=len(sampled)).map(tuple)
    correct = st.sampled_from([None, True, False])
    return Turn(sampled, draw(values), draw(values), draw(IDS), "search", draw(correct))


TRAJECTORIES = st.builds(
    Trajectory,
    question_id=st.text(max_size=8),
    prompt_ids=IDS,
    turns=st.lists(turns(), max_size=3).map(tuple),
    reward=st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    success=st.booleans(),
    stop_reason=st.sampled_from(["answer", "invalid", "max_turns", "max_tokens"]),
    grounded=st.sampled_from([None, True, False]),
)


def trajectory(**changes) -> Trajectory:
    turn = Turn((3, 4), (-0.5, -1.0), (0.1, 0.2), (5,), "search")
    last = Turn((6,), (-0.25,), (0.3,), (), "answer", correct=True)
    given_ = {"question_id": "q", "prompt_ids": (1, 2), "turns": (turn, last), "reward": 1.0}
    return Trajectory(**given_ | {"success": True, "stop_reason": "answer"} | changes)


def test_token_ids_are_prompt_sampled_and_observation_ids_in_order():
    assert trajectory().token_ids == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("name", ["sampled_logprobs", "sampled_entropies"])
def test_a_list_of_another_length_than_the_sampled_ids_is_refused(name):
    fields = {"sampled_logprobs": (0.0, 0.0), "sampled_entropies": (0.0, 0.0)} | {name: (0.0,)}
    with pytest.raises(ValueError, match=f"{name}: 1 values for 2"):
        Turn((1, 2), observation_ids=(), action="search", **fields)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_and_none_is_missing(reward):
    with pytest.raises(ValueError, match="question q"):
        trajectory(reward=reward)
    assert trajectory(reward=None).reward is None


def test_a_group_holds_one_question():
    with pytest.raises(ValueError, match="holds other"):
        Group("q", (trajectory(), trajectory(question_id="other")))


@given(st.lists(TRAJECTORIES, max_size=3))
def test_writing_and_reading_is_exact(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "t.jsonl.gz"
    write_trajectories(path, records)
    assert read_trajectories(path) == records


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_a_line_separator_inside_a_text_is_not_the_end_of_the_record(tmp_path, separator):
    record = trajectory(question_id=f"a{separator}b")
    write_trajectories(tmp_path / "t.jsonl.gz", [record, record])
    assert read_trajectories(tmp_path / "t.jsonl.gz") == [record, record]


def test_equal_records_give_equal_bytes_whatever_the_file_is_called(tmp_path):
    write_trajectories(tmp_path / "a.gz", [trajectory()])
    write_trajectories(tmp_path / "b.gz", [trajectory()])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", "7", '{"turns": []}', '{"turns": [1], "prompt_ids": []}', '{"turns": 3}'],
)
def test_a_broken_line_is_named_with_its_file(tmp_path, line):
    path = tmp_path / "broken.jsonl.gz"
    write_trajectories(path, [trajectory()])
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole + line.encode() + b"\n"))
    with pytest.raises(ValueError, match=r"broken\.jsonl\.gz, line 2"):
        read_trajectories(path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-12], lambda b: b"x" + b[1:], lambda b: b[:15] + b"\xff\xff" + b[17:]]
)
def test_a_damaged_file_is_a_value_error_that_names_it(tmp_path, damage):
    path = tmp_path / "damaged.jsonl.gz"
    write_trajectories(path, [trajectory()])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged\.jsonl\.gz"):
        read_trajectories(path)
