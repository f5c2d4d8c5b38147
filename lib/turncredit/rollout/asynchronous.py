"""Rollouts one by one: each trajectory asks a sampling engine for its messages as it needs them.

None waits for another, and the engine may work on all requests that are open.  Rows begin, turns
close and records are written by `rows`, as for the lock-step engine, so the rules are the same.
Messages that came together are acted on in the order of their rows, one after the other: with an
engine that repeats itself, so do the trajectories.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from turncredit.coroutines import complete
from turncredit.environments.actions import closing_tags
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Engine, Message, MessageEnd, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.rows import (
    REWOUND,
    Close,
    Row,
    begin,
    close_turn,
    lost_trajectory,
    trajectory_of,
)
from turncredit.seeding import derive
from turncredit.worlds.base import Question

_LOGGER = logging.getLogger(__name__)
_ROUNDING = 1e-3
"""How far above 0 a log-prob may lie."""


@dataclass
class _Player:
    """A trajectory under way and what its engine said."""

    row: Row
    token_ids: list[int]
    """Everything so far: the context of the next message."""
    logprobs: list[float] = field(default_factory=list)
    """Of the sampled tokens; the marks of a turn point into it, and into `entropies`."""
    entropies: list[float] = field(default_factory=list)

    def hear(self, message: Message) -> None:
        """Add what was said to the turn being written."""
        turn, start = self.row.turns[-1], len(self.logprobs)
        turn.sampled_ids.extend(message.ids)
        turn.marks.extend(range(start, start + len(message.ids)))
        self.logprobs.extend(message.logprobs)
        self.entropies.extend(message.entropies)
        self.token_ids.extend(message.ids)


def roll_out(
    engine: Engine,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    *,
    seed: int,
    step: int,
    max_turn_tokens: int,
    max_tokens: int,
    temperature: float = 1.0,
    close: Close = close_turn,
) -> list[Trajectory]:
    """One trajectory per entry of `questions`, by the rules of `lockstep.roll_out`.

    A trajectory whose engine or environment raises ends there with stop reason `error` and without
    a reward, which `missing_rewards` and `lost` count; the others go on.  So it does if the engine
    returns less or more than a message.  The first error is logged, and raised if it met all
    trajectories.  The seed of a message is a function of (seed, step, row, turn), and of how often
    `close` has taken the row back.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} must be above 0")
    rows = begin(vocabulary, environment, questions, seed, step, max_tokens)
    ended = vocabulary.message_end(closing_tags(environment.actions))

    async def say(player: _Player) -> bool:
        """Get the message of the present turn; whether it is over, not cut by the row's end."""
        room = min(max_turn_tokens, max_tokens - len(player.token_ids))
        row = player.row
        again = [row.rewinds] if row.rewinds else []
        message = await engine.generate(
            tuple(player.token_ids),
            ended=ended,
            max_tokens=room,
            temperature=temperature,
            seed=derive(seed, "sampling", step, row.index, len(row.turns) - 1, *again),
        )
        over = _require_message(message, ended, room)
        player.hear(message)
        return over or room == max_turn_tokens

    async def play(player: _Player) -> Trajectory:
        row = player.row
        while row.stop_reason is None and len(player.token_ids) < max_tokens:
            if not await say(player):
                break
            if getattr(environment, "waits_for_servers", False):
                await asyncio.to_thread(close, row, vocabulary)  # other rows go on meanwhile
            else:
                close(row, vocabulary)
            if row.stop_reason == REWOUND:
                row.stop_reason = None
            player.token_ids = list(row.context_ids())
            row.forced.clear()
        return trajectory_of(row, player.logprobs, player.entropies)

    return complete(_play_all([_Player(row, list(row.prompt_ids)) for row in rows], play))


async def _play_all(
    players: Sequence[_Player], play: Callable[[_Player], Awaitable[Trajectory]]
) -> list[Trajectory]:
    for player in players:  # what an error before the first observation leaves
        player.row.grounded = player.row.episode.grounded
    played = await asyncio.gather(*map(play, players), return_exceptions=True)
    errors = [result for result in played if isinstance(result, BaseException)]
    if errors:
        if len(errors) == len(players) or not isinstance(errors[0], Exception):
            raise errors[0]
        counts = (len(errors), len(players))
        _LOGGER.warning("%d of %d trajectories failed, first by %r", *counts, errors[0])
    return [
        _lost(player) if isinstance(result, BaseException) else result
        for player, result in zip(players, played, strict=True)
    ]


def _lost(player: _Player) -> Trajectory:
    return lost_trajectory(player.row, player.logprobs, player.entropies)


def _require_message(message: Message, ended: MessageEnd, room: int) -> bool:
    """Whether the message ended by itself; ValueError if it is none of at most `room` tokens."""
    ids, logprobs, entropies = message
    if not len(ids) == len(logprobs) == len(entropies) or not 1 <= len(ids) <= room:
        counts = f"{len(ids)} ids, {len(logprobs)} log-probs and {len(entropies)} entropies"
        raise ValueError(f"the engine returned {counts} for 1 to {room} tokens")
    for place, logprob in enumerate(logprobs):
        if not (math.isfinite(logprob) and logprob <= _ROUNDING) or ids[place] < 0:
            raise ValueError(f"the engine returned id {ids[place]} with log-prob {logprob}")
    over = [count for count in range(1, len(ids) + 1) if ended(ids[:count])]
    if over[:1] not in ([], [len(ids)]) or not (over or len(ids) == room):
        raise ValueError(
            f"the engine returned {len(ids)} tokens of a message that ends after "
            f"{over[0] if over else room}"
        )
    return bool(over)
