"""A tree as an environment: text in, text out; an episode can be saved and taken up again."""

import random
from dataclasses import dataclass
from typing import Any

from turncredit.environments.protocol import Step
from turncredit.environments.toy_tree.tree import Outcome, Response, Tree
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class Snapshot:
    """All that an episode may change, its random stream included; nothing in it is shared."""

    state: str | None
    turn_rewards: tuple[float, ...]
    reward: float
    success: bool
    grounded: bool | None
    stream_state: tuple[Any, ...]


@dataclass(frozen=True)
class ToyTree:
    """A factory of episodes on one tree; every question is played on the same tree."""

    tree: Tree

    @property
    def failures(self) -> dict[str, int]:
        """None: a tree has no tool that could fail."""
        return {}

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the closing tags, in order of appearance."""
        return tuple(dict.fromkeys(response.action for response in self.tree.responses))

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that prompts, observations and messages hold, for a vocabulary."""
        texts = [self.tree.prompt.split()]
        for response in self.tree.responses:
            texts.append(list(response.words))
            texts += [outcome.observation.split() for outcome in response.outcomes]
        return tuple(dict.fromkeys(word for text in texts for word in text))

    def reset(self, question: Question, stream: random.Random) -> "ToyTreeEpisode":
        """Start an episode; the environment's draws come from `stream`."""
        return ToyTreeEpisode(self, stream)


class ToyTreeEpisode:
    """One walk from the tree's start to an end."""

    def __init__(self, environment: ToyTree, stream: random.Random) -> None:
        self.environment = environment
        self.stream = stream
        self.prompt = environment.tree.prompt
        self.state: str | None = environment.tree.start
        """The current state; None once the episode is over."""
        self.turn_rewards: tuple[float, ...] = ()
        """Step reward of each turn so far."""
        self.reward = 0.0
        self.success = False
        self.grounded = (
            self.state in environment.tree.evidence if environment.tree.evidence else None
        )

    def step(self, message: str) -> Step:
        """Act on one message: one that the state allows, word for word, or the episode is over.

        A message that is not allowed, or comes after the end, is `invalid` and changes no reward.
        """
        response = self._allowed(tuple(message.split()))
        if response is None:
            self.state = None
            self.turn_rewards += (0.0,)
            return Step("invalid", "", stop_reason="invalid")
        outcome = self._draw(response.outcomes)
        self.state = outcome.next_state
        self.turn_rewards += (outcome.turn_reward,)
        if outcome.next_state is None:
            self.reward, self.success = outcome.reward, outcome.success
            return Step(response.action, "", stop_reason="answer", correct=outcome.success)
        if self.grounded is not None:
            self.grounded |= outcome.next_state in self.environment.tree.evidence
        return Step(response.action, outcome.observation)

    def snapshot(self) -> Snapshot:
        """The episode as it stands, to come back to with `restore`, any number of times."""
        return Snapshot(
            self.state,
            self.turn_rewards,
            self.reward,
            self.success,
            self.grounded,
            self.stream.getstate(),
        )

    def restore(self, snapshot: Snapshot, stream: random.Random | None = None) -> None:
        """Go back to a snapshot of this or another episode on the same tree.

        The stream goes back too, so the same messages meet the same draws; for other draws, give
        another `stream`, here or afterwards.
        """
        self.state = snapshot.state
        self.turn_rewards = snapshot.turn_rewards
        self.reward, self.success = snapshot.reward, snapshot.success
        self.grounded = snapshot.grounded
        if stream is None:  # one of its own: the old one may be somebody else's too
            stream = random.Random(0)
            stream.setstate(snapshot.stream_state)
        self.stream = stream

    def _allowed(self, words: tuple[str, ...]) -> Response | None:
        for response in self.environment.tree.responses:
            if response.state == self.state and response.words == words:
                return response
        return None

    def _draw(self, outcomes: tuple[Outcome, ...]) -> Outcome:
        weights = [outcome.probability for outcome in outcomes]
        return self.stream.choices(outcomes, weights)[0]
