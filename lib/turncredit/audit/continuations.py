"""Continuations of recorded turns by the current policy, batched in the lock-step engine.

Continuation n of a state has an environment stream and a line of uniforms of its own, derived from
the audit's seed, the question and the ids read so far: the same whether the policy speaks first or
the recorded message is put in its mouth (common random numbers), whatever else is audited.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.audit.replay import TurnStart
from turncredit.environments.protocol import Environment, Episode
from turncredit.policies.protocol import Policy, Tokens
from turncredit.rollout.lockstep import draw_uniforms, play
from turncredit.rollout.rows import Row
from turncredit.seeding import derive, python_stream, torch_stream


class Branch(NamedTuple):
    """What is continued: a state (`said` is None), or a state after its recorded message."""

    start: TurnStart
    said: tuple[int, ...] | None

    @property
    def key(self) -> tuple:
        """Equal for branches with one expectation: episodes of a question begin alike."""
        start = self.start
        first = (start.question.id, start.prefix_ids)
        return (first if start.turn == 0 else (start.row, start.turn), self.said)

    @property
    def length(self) -> int:
        """Tokens that are read before anything else happens."""
        return len(self.start.prefix_ids) + len(self.said or ())


@dataclass
class Continuer:
    """A policy in an environment, and what continuing has cost so far."""

    policy: Policy
    vocabulary: Tokens
    environment: Environment
    max_turn_tokens: int
    continuations: int
    """Of each branch."""
    seed: int
    batch_rows: int
    """Rows that are decoded together: as many whole branches as fit, one at least."""
    cost: Counter[str] = field(default_factory=Counter)

    def rewards(self, branches: Sequence[Branch]) -> Iterator[tuple[tuple, Tensor]]:
        """Key and rewards [continuations] float64 of each distinct branch; NaN: missing.

        Branches of similar length are played together, so prefixes are read once for all.
        """
        distinct = {branch.key: branch for branch in branches}
        ordered = sorted(distinct.values(), key=lambda branch: branch.length)
        size = max(1, self.batch_rows // self.continuations)
        for first in range(0, len(ordered), size):
            yield from self._play(ordered[first : first + size])

    def _play(self, branches: Sequence[Branch]) -> Iterator[tuple[tuple, Tensor]]:
        """A batch of branches: those that are over at once are not decoded."""
        count = self.continuations
        episodes, rows, uniforms = [], [], []
        for number, branch in enumerate(branches):
            state = self._state(branch.start)
            stream = torch_stream(state, "sampling")
            limit = self.policy.settings.max_tokens
            uniforms.append(draw_uniforms(count, limit, len(self.vocabulary), stream))
            for n in range(count):
                episode, read = self._begin(branch, state, n)
                episodes.append(episode)
                if read is not None and len(read) < limit:
                    rows.append(Row(number * count + n, branch.start.question, episode, read))
        self.cost["continuations"] += len(episodes)
        if rows:
            parts = (self.policy, self.vocabulary, self.environment, rows, torch.cat(uniforms))
            said, _ = play(*parts, max_turn_tokens=self.max_turn_tokens)
            self.cost["tokens"] += len(said)
            made = [turn for row in rows for turn in row.turns]
            self.cost["turns"] += sum(turn.action != "unfinished" for turn in made)
        rewards = [math.nan if e.reward is None else e.reward for e in episodes]
        table = torch.tensor(rewards, dtype=torch.float64).view(len(branches), count)
        yield from zip((branch.key for branch in branches), table, strict=True)

    def _state(self, start: TurnStart) -> int:
        """Seed of all that happens from this state on."""
        return derive(self.seed, "audited state", start.question.id, *start.prefix_ids)

    def _begin(
        self, branch: Branch, state: int, number: int
    ) -> tuple[Episode, tuple[int, ...] | None]:
        """An episode of the branch, and what has been read when the policy speaks; None: over."""
        start, said = branch
        stream = python_stream(state, "environment", number)
        episode = self.environment.reset(start.question, Random(0))
        episode.restore(start.snapshot, stream)
        if said is None:
            return episode, start.prefix_ids
        if not start.finished:
            return episode, None
        result = episode.step(self.vocabulary.decode(said))
        self.cost["turns"] += 1
        if result.stop_reason is not None:
            return episode, None
        return episode, start.prefix_ids + said + self.vocabulary.encode(result.observation)
