"""Trajectories under way, by whatever engine: how they begin, close a turn and become records."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from turncredit.environments.oracle import oracle_turn, turn_labels
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.policies.protocol import Tokens
from turncredit.records import Trajectory, Turn
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question

LOST = "error"
"""Stop reason of a trajectory that an error of the engine or environment ended."""
REWOUND = "rewound"
"""Stop reason, for the moment, of a row whose context is no longer what the engine has read."""


def without_lost(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Those that no error ended: what a lost one would have done, nobody knows."""
    return [trajectory for trajectory in trajectories if trajectory.stop_reason != LOST]


@dataclass
class OpenTurn:
    """A turn whose log-probs still lie in the engine's record."""

    sampled_ids: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    """Where in the record each sampled token's log-prob and entropy lie."""
    observation_ids: tuple[int, ...] = ()
    action: str = "unfinished"
    correct: bool | None = None
    error: str | None = None
    """What kept its tool from working, as the environment says."""
    grafted_from: int | None = None
    """As in `Turn`."""


@dataclass
class Row:
    """One trajectory under way."""

    index: int
    question: Question
    episode: Episode
    prompt_ids: tuple[int, ...]
    next_id: int = 0
    """The token this row consumes in the coming step."""
    forced: list[int] = field(default_factory=list)
    """Ids still to be fed, last one first; when none is left, the policy speaks."""
    turns: list[OpenTurn] = field(default_factory=lambda: [OpenTurn()])
    """The last one is being written."""
    stop_reason: str | None = None
    grounded: bool | None = None
    """Before the latest observation, which may not fit any more."""
    rewinds: int = 0
    """How often its context was changed; what is sampled then has random numbers of its own."""

    def speaks(self) -> bool:
        """Whether the policy has to give the token after the next; if not, that one is queued."""
        if self.forced:
            self.next_id = self.forced.pop()
            return False
        return self.stop_reason is None

    def context_ids(self) -> tuple[int, ...]:
        """All ids so far: what the policy reads before it goes on."""
        parts = (ids for turn in self.turns for ids in (turn.sampled_ids, turn.observation_ids))
        return (*self.prompt_ids, *itertools.chain.from_iterable(parts))


def begin(
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    seed: int,
    step: int,
    max_tokens: int,
) -> list[Row]:
    """A row for each question, before its first turn.

    Raises ValueError for a prompt that leaves no room among `max_tokens`.
    """
    if hasattr(environment, "prepare"):
        environment.prepare(questions)
    rows = []
    for index, question in enumerate(questions):
        episode = environment.reset(question, python_stream(seed, "environment", step, index))
        prompt_ids = vocabulary.encode_prompt(episode.prompt)
        if len(prompt_ids) >= max_tokens:
            raise ValueError(
                f"max_tokens = {max_tokens} leaves no room after the {len(prompt_ids)} tokens of "
                f"the prompt of question {question.id}"
            )
        rows.append(Row(index, question, episode, prompt_ids))
    return rows


Close = Callable[[Row, Tokens], None]
"""What an engine calls for a row whose message is over; `close_turn`, or more than that."""


def announce_turn(row: Row, vocabulary: Tokens) -> None:
    """Let an environment that can begin with the finished message, before others are awaited."""
    if hasattr(row.episode, "announce"):
        row.episode.announce(vocabulary.decode(row.turns[-1].sampled_ids))


def close_turn(row: Row, vocabulary: Tokens) -> None:
    """Hand the finished message to the environment and queue what it returns.

    What the environment or the vocabulary raises is raised with a note of where that was.
    """
    row.grounded = row.episode.grounded
    try:
        message = vocabulary.decode(row.turns[-1].sampled_ids)
        settle_turn(row, vocabulary, row.episode.step(message))
    except Exception as error:
        error.add_note(f"at turn {len(row.turns) - 1} of a trajectory of {row.question.id}")
        raise


def settle_turn(row: Row, vocabulary: Tokens, result: Step) -> None:
    """Note what the finished message came to and queue its observation."""
    turn = row.turns[-1]
    turn.action, turn.correct, row.stop_reason = result.action, result.correct, result.stop_reason
    turn.error = result.error
    if result.stop_reason is None:
        turn.observation_ids = vocabulary.encode(result.observation)
        row.forced = list(reversed(turn.observation_ids))
        row.turns.append(OpenTurn())


def trajectory_of(row: Row, logprobs: list[float], entropies: list[float]) -> Trajectory:
    """The record of a row; an observation that did not fit any more is dropped."""
    turns = [turn for turn in row.turns if turn.sampled_ids]
    cut = row.stop_reason is None and turns[-1].observation_ids != ()
    if cut:
        turns[-1].observation_ids = ()
    return Trajectory(
        question_id=row.question.id,
        prompt_ids=row.prompt_ids,
        turns=tuple(turn_of(turn, logprobs, entropies) for turn in turns),
        reward=row.episode.reward,
        success=row.episode.success,
        stop_reason=row.stop_reason or "max_tokens",
        grounded=row.grounded if cut else row.episode.grounded,
        oracle_turn=oracle_turn(row.episode, len(turns)),
        turn_labels=turn_labels(row.episode, len(turns)),
    )


def lost_trajectory(row: Row, logprobs: list[float], entropies: list[float]) -> Trajectory:
    """What there is of a row that met an error; nobody has read its last observation."""
    turns = [turn for turn in row.turns if turn.sampled_ids]
    if turns:
        turns[-1].observation_ids = ()
    return Trajectory(
        question_id=row.question.id,
        prompt_ids=row.prompt_ids,
        turns=tuple(turn_of(turn, logprobs, entropies) for turn in turns),
        reward=None,
        success=False,
        stop_reason=LOST,
        grounded=row.grounded,
        oracle_turn=oracle_turn(row.episode, len(turns)),
        turn_labels=turn_labels(row.episode, len(turns)),
    )


def turn_of(turn: OpenTurn, logprobs: list[float], entropies: list[float]) -> Turn:
    """The record of a turn, whose marks point into `logprobs` and `entropies`."""
    return Turn(
        sampled_ids=tuple(turn.sampled_ids),
        sampled_logprobs=tuple([logprobs[mark] for mark in turn.marks]),
        sampled_entropies=tuple([entropies[mark] for mark in turn.marks]),
        observation_ids=turn.observation_ids,
        action=turn.action,
        correct=turn.correct,
        grafted_from=turn.grafted_from,
    )
