"""Recorded trajectories played again, to stand at every turn boundary as they once did."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from turncredit.environments.protocol import Environment, Step
from turncredit.policies.protocol import Tokens
from turncredit.records import Trajectory, Turn
from turncredit.rollout.rows import LOST
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class TurnStart:
    """The state in which a recorded turn began, and what was said in it."""

    question: Question
    row: int
    """Index of the trajectory among those given, and of its row in their batch."""
    turn: int
    prefix_ids: tuple[int, ...]
    """All ids the policy had read: prompt, earlier turns and their observations."""
    message_ids: tuple[int, ...]
    finished: bool
    """Whether the message reached the environment; one that filled the context did not."""
    snapshot: Any
    """The episode before the message; see `Episode`."""


def replay(
    environment: Environment,
    vocabulary: Tokens,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    *,
    seed: int,
    step: int,
) -> list[TurnStart]:
    """Every turn of what `roll_out` made of these questions, seed and step, by row and turn.

    Trajectories that an error ended have none.  Raises what `replay_one` raises, and ValueError
    for another number of questions than of trajectories.
    """
    starts = []
    for row, (question, trajectory) in enumerate(zip(questions, trajectories, strict=True)):
        stream = python_stream(seed, "environment", step, row)
        starts += replay_one(environment, vocabulary, question, trajectory, stream, row=row)
    return starts


def replay_one(
    environment: Environment,
    vocabulary: Tokens,
    question: Question,
    trajectory: Trajectory,
    stream: Random,
    *,
    row: int,
) -> list[TurnStart]:
    """The turns of one trajectory; `stream` is the one its episode began with.

    Raises ValueError naming row and turn if the environment does not answer as recorded: another
    stream, task or version of the code, or tools that do not repeat themselves.  Also for an
    environment whose episodes have no `snapshot`.
    """
    if trajectory.stop_reason == LOST:
        return []
    episode = environment.reset(question, stream)
    if not hasattr(episode, "snapshot"):
        raise ValueError(f"episodes of {type(environment).__name__} have no snapshot()")
    _require(row, -1, vocabulary.encode_prompt(episode.prompt), trajectory.prompt_ids)
    starts, read = [], trajectory.prompt_ids
    for number, turn in enumerate(trajectory.turns):
        finished = turn.action != "unfinished"
        place = (question, row, number, read, turn.sampled_ids, finished)
        starts.append(TurnStart(*place, episode.snapshot()))
        if finished:
            result = episode.step(vocabulary.decode(turn.sampled_ids))
            cut = trajectory.stop_reason == "max_tokens" and turn is trajectory.turns[-1]
            if not cut:
                _require_turn(row, number, turn, result, vocabulary)
        read = read + turn.sampled_ids + turn.observation_ids
    return starts


def _require_turn(row: int, number: int, turn: Turn, result: Step, vocabulary: Tokens) -> None:
    _require(row, number, result.action, turn.action)
    heard = () if result.stop_reason else vocabulary.encode(result.observation)
    _require(row, number, heard, turn.observation_ids)


def _require(row: int, turn: int, found: Any, recorded: Any) -> None:
    if found != recorded:
        place = "prompt" if turn < 0 else f"turn {turn}"
        raise ValueError(
            f"row {row}, {place}: the environment answers {found} and not {recorded} as recorded; "
            "replay needs the same task, seed, step and row"
        )
