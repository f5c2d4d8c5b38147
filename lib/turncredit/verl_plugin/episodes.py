"""One episode of our environments, played through whatever server samples the messages.

The rules are those of `rollout`: ids stay as they were sampled, an observation that does not fit
any more is dropped, and an error after the first message leaves a trajectory without a reward.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from turncredit.environments import DeepResearch, Environment, SearchR1
from turncredit.environments.actions import closing_tags
from turncredit.environments.judges import open_judge
from turncredit.environments.wording import WORDINGS
from turncredit.policies.protocol import MessageEnd, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.rows import Row, begin, lost_trajectory, settle_turn, trajectory_of
from turncredit.verl_plugin.settings import AgentSettings
from turncredit.worlds.base import Question
from turncredit.worlds.files import FileWorld
from turncredit.worlds.question_files import SOURCES, to_question
from turncredit.worlds.question_files.rows import from_record

_LOGGER = logging.getLogger(__name__)


class Said(NamedTuple):
    """What a server sampled: ids and their log-probs."""

    ids: Sequence[int]
    logprobs: Sequence[float]


Sampler = Callable[[list[int], int], Awaitable[Said]]
"""(context ids, most tokens to sample) -> what was said."""


@lru_cache(maxsize=4)
def open_environment(settings: AgentSettings) -> Environment:
    """The environment that settings describe, once per process; questions come with the rows."""
    world = FileWorld((), (), settings.retriever.open())
    wording = WORDINGS[settings.wording]
    if settings.environment.KIND == "search_r1":
        return SearchR1(world, settings.environment, wording=wording)
    return DeepResearch(world, open_judge(settings.judge), settings.environment, wording=wording)


class Unreported:
    """Failures of tools that no episode of this process has handed on yet.

    An environment counts over all episodes, which share its servers: whose tool failed is not told.
    Each failure is handed on once, by the episode that ends next, so that their sum is right.

    >>> unreported = Unreported()
    >>> [unreported.take(lambda: {"search_timeout": count}) for count in (2, 3)]
    [{'search_timeout': 2}, {'search_timeout': 1}]
    """

    def __init__(self) -> None:
        self._handed_on: Counter[str] = Counter()

    def take(self, failures: Callable[[], Mapping[str, int]]) -> dict[str, int]:
        """By cause, what was counted since the last call.  failures: reads the environment's."""
        fresh = Counter(_read(failures)) - self._handed_on
        self._handed_on += fresh
        return dict(fresh)


def _read(failures: Callable[[], Mapping[str, int]], tries: int = 20) -> Mapping[str, int]:
    """The counts, read anew where a tool's thread has entered a new cause in the meantime."""
    for _ in range(tries - 1):
        try:
            return failures()
        except RuntimeError:  # dictionary changed size during iteration
            continue
    return failures()


@lru_cache(maxsize=4)
def unreported(settings: AgentSettings) -> Unreported:
    """What the environment of these settings has not handed on, one in a process."""
    return Unreported()


def question_of(row: Mapping[str, Any], sources: Sequence[str] = SOURCES) -> Question:
    """The question of a data set's row as verl hands it to an agent loop.

    Raises ValueError naming the columns when the row is none in Search-R1's schema.
    """
    record = {key: _plain(value) for key, value in row.items()}
    record["prompt"] = record.pop("raw_prompt", record.get("prompt"))
    try:
        return to_question(from_record(record, 0, split="train", sources=sources))
    except ValueError as error:
        raise ValueError(
            f"row with columns {', '.join(sorted(record))}: {error}; "
            "`python -m turncredit.worlds.question_files convert` writes such rows"
        ) from error


def message_tags(environment: Environment) -> tuple[str, ...]:
    """The closing tags that end a message in an environment, by its protocol."""
    return closing_tags(environment.actions, protocol=environment.wording.protocol)


async def play(
    sample: Sampler,
    tokens: Tokens,
    environment: Environment,
    question: Question,
    *,
    seed: int,
    prompt_tokens: int,
    response_tokens: int,
    max_turn_tokens: int,
) -> Trajectory:
    """One trajectory: at most `response_tokens` after the prompt, observations among them.

    Log-probs are those of the sampler, entropies are NaN.  What is sampled after the end of a
    message is thrown away.  Raises ValueError for a prompt of more than `prompt_tokens` (nothing is
    ever cut from it), and what the first message raises.
    """
    (row,) = begin(tokens, environment, [question], seed, 0, prompt_tokens + 1)
    row.grounded = row.episode.grounded
    ended = tokens.message_end(message_tags(environment))
    ids, logprobs = list(row.prompt_ids), []
    limit = len(ids) + response_tokens
    try:
        while row.stop_reason is None and len(ids) < limit:
            room = min(max_turn_tokens, limit - len(ids))
            over = _hear(row, await sample(list(ids), room), ended, room, logprobs)
            ids += row.turns[-1].sampled_ids
            if not over and room < max_turn_tokens:
                break  # cut by the end of the row, which nobody may act on
            await _act(row, tokens)
            ids += _observed(row)
    except Exception as error:
        if not row.turns[0].sampled_ids:
            raise
        _LOGGER.warning("question %s is lost: %r", question.id, error)
        return lost_trajectory(row, logprobs, [math.nan] * len(logprobs))
    return trajectory_of(row, logprobs, [math.nan] * len(logprobs))


def _hear(row: Row, said: Said, ended: MessageEnd, room: int, logprobs: list[float]) -> bool:
    """Add a message to the turn being written; whether it ended by itself."""
    ids = [int(index) for index in said.ids[:room]]
    if not ids:
        raise ValueError("the server returned no token")
    told = list(said.logprobs[: len(ids)])
    if len(told) != len(ids):
        raise ValueError(f"the server returned {len(told)} log-probs for {len(ids)} tokens")
    end = next((n for n in range(1, len(ids) + 1) if ended(ids[:n])), None)
    turn, start = row.turns[-1], len(logprobs)
    turn.sampled_ids.extend(ids[:end])
    turn.marks.extend(range(start, start + len(ids[:end])))
    logprobs.extend(told[:end])
    return end is not None or len(ids) < room  # shorter: the server met an end of its own


async def _act(row: Row, tokens: Tokens) -> None:
    """Hand the finished message to the environment, whose tools may wait for servers.

    The tokenizer stays in this thread: Hugging Face's fast ones cannot be used by two at once.
    """
    row.grounded = row.episode.grounded
    message = tokens.decode(row.turns[-1].sampled_ids)
    settle_turn(row, tokens, await asyncio.to_thread(row.episode.step, message))


def _observed(row: Row) -> list[int]:
    """The observation's ids, taken from the row; ValueError for an empty one.

    Without a token between them two turns would look like one to who reads the mask.
    """
    ids = list(reversed(row.forced))
    row.forced.clear()
    if row.stop_reason is None and not ids:
        raise ValueError(f"question {row.question.id}: the environment observed nothing")
    return ids


def _plain(value: Any) -> Any:
    """numpy's arrays and scalars, at any depth, as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
