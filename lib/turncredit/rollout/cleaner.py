"""Rollback of failed tool calls (CLEANER, arXiv 2601.15141, and its public code).

A call that fails is tried again in sight of its error, and what the policy writes then takes the
place of the failed attempt.  Error and attempt leave the context and the record, so that the
trajectory that is trained on shows the work without its accidents.  The tokens that were put in
were sampled in a context that the record no longer holds: `Turn.grafted_from` marks them.  Their
sampled log-probs are those of that context; `old_logprobs` are computed anew by the training
engine, where they stand, so that ratios begin at 1 and correct for nothing.
"""

import difflib
import functools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turncredit.environments.actions import closing_tags, parse_action
from turncredit.environments.protocol import Environment
from turncredit.option_ranges import check_range
from turncredit.policies.protocol import Tokens
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.protocol import Asked, Drawn
from turncredit.rollout.rows import REWOUND, OpenTurn, Row, close_turn
from turncredit.seeding import python_stream

NO_CALL = ("answer", "invalid")
"""Actions that ask no tool."""
COUNTS = (
    "tool_calls", "tool_errors", "retries", "shallow_grafts", "deep_grafts", "rollbacks_given_up",
    "discarded_tokens", "reread_tokens",
)  # fmt: skip
"""What rollback counts, over all trajectories of a rollout; docs/diagnostics.md defines each."""


@dataclass(frozen=True)
class Cleaner:
    """When and how often a failed call is rolled back."""

    similarity: float
    """Of the old and the new call, from which on the old thought is kept (gamma there)."""
    max_retries: int
    """At one turn."""
    probability: float
    """That a failed turn is rolled back at all; 0.7 for the public code's larger model."""
    max_calls: int
    """Tool calls of a trajectory, failed ones included, after which nothing is rolled back."""
    hint: str
    """Said after the error that stays when two retries or more have failed."""

    def __post_init__(self) -> None:
        check_range("cleaner", "share", similarity=self.similarity, probability=self.probability)
        if not isinstance(self.hint, str):
            raise ValueError(f"cleaner: hint is {self.hint!r}; it must be a text")
        check_range("cleaner", "count", max_retries=self.max_retries, max_calls=self.max_calls)

    def draw(self, asked: Asked) -> Drawn:
        """See `Strategy`: `roll_out` with rollback, by whatever engine; counts are `COUNTS`.

        With them goes `grafted_tokens`.
        """
        purifier = Purifier(asked.environment, self, seed=asked.seed, step=asked.step)
        trajectories = roll_out(*asked[:3], asked.rows, close=purifier.close, **asked.setting)
        grafted = {"grafted_tokens": grafted_tokens(trajectories)}
        return Drawn(asked.groups(trajectories), {**purifier.counts, **grafted}, [])


@dataclass
class _Memory:
    """What is known of one row."""

    stream: random.Random
    enabled: bool = True
    calls: int = 0
    """Of the whole trajectory."""
    retries: int = 0
    """At the turn being written."""
    retrying: bool = False
    """Whether the turn before failed and the one being written may take its place."""


class Purifier:
    """Closes turns as `rows.close_turn` does, and rolls back failed ones; one for each rollout.

    Needs what question-answering environments offer beyond the protocol: `wording`.
    """

    def __init__(
        self, environment: Environment, settings: Cleaner, *, seed: int, step: int
    ) -> None:
        self.environment = environment
        self.settings = settings
        self.counts = Counter(dict.fromkeys(COUNTS, 0))
        self._stream = functools.partial(python_stream, seed, "rollback", step)
        self._memories: dict[int, _Memory] = {}

    def close(self, row: Row, vocabulary: Tokens) -> None:
        """Hand the finished message to the environment, in the place of the failed one if any."""
        if row.index not in self._memories:
            self._memories[row.index] = _Memory(self._stream(row.index))
        memory = self._memories[row.index]
        retry = self._call(row.turns[-1], vocabulary) if memory.retrying else None
        grafts = retry is not None and retry.action not in NO_CALL
        if grafts:
            self._graft(row, retry, vocabulary)
            memory.retries += 1
        elif memory.retrying:  # no call came of it: the failure stays
            self._give_up(memory)
        close_turn(row, vocabulary)
        memory.retrying = self._rolls_back(row, memory, vocabulary)
        if grafts and row.stop_reason is None:
            row.stop_reason = REWOUND
            row.rewinds += 1
            self.counts["reread_tokens"] += len(row.context_ids())

    def _call(self, turn: OpenTurn, vocabulary: Tokens) -> "Call":
        """The action of a message, as the environment reads it, and where it begins."""
        environment, protocol = self.environment, self.environment.wording.protocol
        message = vocabulary.decode(turn.sampled_ids)
        action, argument = parse_action(message, environment.actions, protocol=protocol)
        closing = closing_tags(environment.actions, protocol=protocol)
        openings = tuple(tag.replace("</", "<") for tag in closing)
        return Call(action, argument, call_start(turn.sampled_ids, vocabulary, openings))

    def _graft(self, row: Row, new: "Call", vocabulary: Tokens) -> None:
        """Undo the failed turn, and put what the retry makes of it in the place of both."""
        failed, retry = row.turns[-2:]
        old = self._call(failed, vocabulary)
        shallow = is_shallow(old, new, similarity=self.settings.similarity)
        row.turns[-2:] = [graft(failed, retry, old, new) if shallow else replacement(retry)]
        row.episode.take_back()
        written = len(failed.sampled_ids) + len(retry.sampled_ids)
        self.counts["retries"] += 1
        self.counts["shallow_grafts" if shallow else "deep_grafts"] += 1
        self.counts["discarded_tokens"] += written - len(row.turns[-1].sampled_ids)

    def _rolls_back(self, row: Row, memory: _Memory, vocabulary: Tokens) -> bool:
        """Whether the turn just closed failed and is to be tried again; counts its call."""
        if row.stop_reason is not None or row.turns[-2].action in NO_CALL:
            memory.retries = 0
            return False
        turn = row.turns[-2]
        memory.calls += 1
        self.counts["tool_calls"] += 1
        self.counts["tool_errors"] += turn.error is not None
        if turn.error is None or not memory.enabled:
            memory.retries = 0
            return False
        settings = self.settings
        if memory.retries == 0 and memory.stream.random() >= settings.probability:
            return False
        if memory.retries < settings.max_retries and memory.calls < settings.max_calls:
            return True
        if settings.hint and memory.retries >= 2:
            turn.observation_ids += vocabulary.encode(settings.hint)
        self._give_up(memory)
        return False

    def _give_up(self, memory: _Memory) -> None:
        """Roll nothing back in the rest of the trajectory."""
        memory.enabled = False
        memory.retries = 0
        self.counts["rollbacks_given_up"] += 1


class Call(NamedTuple):
    """What a message asks for."""

    action: str
    argument: str
    start: int | None
    """Place of its first token among the sampled ones; None if its thought ends inside a token."""


def is_shallow(old: Call, new: Call, *, similarity: float) -> bool:
    """Whether a failed call's thought still fits the new call, which is at least so similar."""
    split = old.start is not None and new.start is not None
    return split and call_similarity(old.argument, new.argument) >= similarity


def graft(failed: OpenTurn, retry: OpenTurn, old: Call, new: Call) -> OpenTurn:
    """The shallow graft: the failed turn up to its call, then the retry's call."""
    marked = [old.start] if failed.grafted_from is None else [old.start, failed.grafted_from]
    return OpenTurn(
        failed.sampled_ids[: old.start] + retry.sampled_ids[new.start :],
        failed.marks[: old.start] + retry.marks[new.start :],
        grafted_from=min(marked),
    )


def replacement(retry: OpenTurn) -> OpenTurn:
    """The deep replacement: the retry as it is, which has seen the error all along."""
    return OpenTurn(retry.sampled_ids, retry.marks, grafted_from=0)


def call_similarity(old: str, new: str) -> float:
    """How alike the arguments of two calls are: twice the matching characters over all (difflib).

    >>> round(call_similarity("print(sum(xs)", "print(sum(xs))"), 4)
    0.963
    """
    return difflib.SequenceMatcher(None, old, new).ratio()


def call_start(ids: Sequence[int], vocabulary: Tokens, openings: tuple[str, ...]) -> int | None:
    """Place of the token that begins a message's action; None if no token does."""
    for start in reversed(range(len(ids))):
        if vocabulary.decode(ids[start:]).lstrip().startswith(openings):
            return start
    return None


def grafted_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Tokens of the records that were sampled in another context than the one they stand in."""
    return sum(
        len(turn.sampled_ids) - turn.grafted_from
        for trajectory in trajectories
        for turn in trajectory.turns
        if turn.grafted_from is not None
    )
