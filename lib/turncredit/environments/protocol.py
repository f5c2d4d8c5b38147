"""What every environment offers: text in, text out, one named reason to stop."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from turncredit.worlds.base import Question


@dataclass(frozen=True)
class Step:
    """What one policy message caused."""

    action: str
    """Tool or decision the message asked for, or `invalid`."""
    observation: str
    """Text the environment returns; '' when the episode is over."""
    stop_reason: str | None = None
    """Why the episode is over (answer, invalid, max_turns), or None while it goes on."""
    correct: bool | None = None
    """For an answer or a verified guess: exact match with the gold answer; else None."""
    error: str | None = None
    """What kept the tool from working, in a word; None if it worked or none was asked."""


class Episode(Protocol):
    """One question being worked on.

    It may also have `oracle_turn`: the first turn that was wrong by what the world knows, -1: none,
    None where it cannot tell, and `turn_labels`: what each turn so far was.  With them go
    `note_action(action, argument)`, called for a turn whose message a wrapper kept from the
    episode, and `forget_action()`, which undoes the last.

    One that can be branched has `snapshot()`, the episode as it stands, and `restore(snapshot)`,
    which takes an episode of the same environment there, any number of times: from then on it
    answers every message as the original would, its random stream included.  With
    `restore(snapshot, stream)` whatever has not shown yet is drawn from `stream` instead; a
    snapshot taken before the first message and restored so is `reset(question, stream)`.

    An episode whose environment acts in other processes may have `announce(message)`: begin with
    the message that `step` is given next, and do not wait for it.

    An episode whose steps may have an `error` has `take_back()`: called after such a step, it makes
    the step undone, so that another message can be given in its place.
    """

    prompt: str

    def step(self, message: str) -> Step:
        """Act on one policy-written message.  Never raises on any text."""

    @property
    def reward(self) -> float | None:
        """Outcome reward so far; None = missing."""

    @property
    def success(self) -> bool:
        """Whether the submitted answer matched exactly."""

    @property
    def grounded(self) -> bool | None:
        """Whether the evidence ever reached the context; None where a world cannot tell."""


class Environment(Protocol):
    """A factory of episodes."""

    actions: tuple[str, ...]
    """Names of the valid actions; each is also the name of its tag, or of its tool."""

    @property
    def failures(self) -> Mapping[str, int]:
        """How often each named cause has kept a tool from working, over all episodes so far."""

    def reset(self, question: Question, stream: random.Random) -> Episode:
        """Start an episode; all its randomness comes from `stream`."""
