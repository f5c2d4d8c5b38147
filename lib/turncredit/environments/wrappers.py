"""Environments made worse on purpose: failing tools, garbled observations, a noisy outcome.

Each wraps any environment and draws from a stream of its own, derived from the state of the one it
is given without advancing it.  So the wrapped environment draws what it would have drawn alone:
at rate 0 a trajectory is the same byte for byte, and runs of different rates share their searches.
What a wrapper does not change, it hands on.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from turncredit.answers import words
from turncredit.environments.actions import parse_action
from turncredit.environments.oracle import forget_action, note_action
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.environments.snapshots import Snapshot, put_back, saved, twin_stream
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question

_BETWEEN_WORDS = re.compile(r"(\s+|</?[a-z_]+>)")


@dataclass(frozen=True)
class Disturbances:
    """Probabilities of everything that goes wrong; 0 leaves it alone."""

    tool_failure: float = 0.0
    """Of each tool call."""
    tool_error: str = "tool error"
    """What the policy sees of a failed call, inside the frame of a tool's result."""
    word_drop: float = 0.0
    """Of each word of an observation: left out."""
    word_swap: float = 0.0
    """Of each word of an observation: changes places with the next one."""
    outcome_flip: float = 0.0
    """Of each episode: the reward is that of the opposite outcome."""

    def __post_init__(self) -> None:
        require_shares(self, "tool_failure", "word_drop", "word_swap", "outcome_flip")
        if not words(self.tool_error):
            raise ValueError(f"tool_error = {self.tool_error!r} holds no word")


def disturbed(environment: Environment, disturbances: Disturbances) -> Environment:
    """The environment with those of the disturbances that can happen."""
    if disturbances.tool_failure > 0:
        environment = FailingTools(environment, disturbances.tool_failure, disturbances.tool_error)
    if disturbances.word_drop > 0 or disturbances.word_swap > 0:
        environment = GarbledObservations(
            environment, disturbances.word_drop, disturbances.word_swap
        )
    if disturbances.outcome_flip > 0:
        environment = FlippedOutcomes(environment, disturbances.outcome_flip)
    return environment


@dataclass(frozen=True)
class _Wrapper:
    environment: Environment
    purpose: ClassVar[str]
    """What its own stream is for; part of what that is derived from."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "environment":  # asked for before it is set, by copy
            raise AttributeError(name)
        return getattr(self.environment, name)

    def _own(self, stream: random.Random) -> random.Random:
        """A stream that depends on what the other will draw next, and leaves that as it is."""
        return python_stream(0, self.purpose, twin_stream(stream).getrandbits(128))


class _WrappedEpisode:
    """Hands everything on; subclasses override what they change."""

    def __init__(self, wrapper: _Wrapper, episode: Episode, stream: random.Random) -> None:
        self._wrapper, self.episode = wrapper, episode
        self._draw_from(stream)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "episode":
            raise AttributeError(name)
        return getattr(self.episode, name)

    def snapshot(self) -> Snapshot:
        """This and the wrapped episode as they stand, each with its stream; see `Episode`."""
        return saved(self, "_wrapper", "episode") | {"episode": self.episode.snapshot()}

    def restore(self, snapshot: Snapshot, stream: random.Random | None = None) -> None:
        """Go back to a snapshot, and the wrapped episode too."""
        own = {name: value for name, value in snapshot.items() if name != "episode"}
        put_back(self, own)
        if stream is not None:
            self._draw_from(self._wrapper._own(stream))
        self.episode.restore(snapshot["episode"], stream)

    def _draw_from(self, stream: random.Random) -> None:
        """Let `stream` decide all that has not shown yet."""
        self._stream = stream


# --- tools that fail


@dataclass(frozen=True)
class FailingTools(_Wrapper):
    """Tool calls fail with probability `rate`: the tool does nothing and `error` is all one sees.

    A failed call costs its turn.  The last turn that `max_turns` allows ends the episode whether
    or not its tool fails, and an answer cannot fail.  Needs what question-answering environments
    offer beyond the protocol: `wording`, `words` and `settings.max_turns`.
    """

    purpose: ClassVar[str] = "failing tools"

    rate: float
    error: str = "tool error"
    counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    """Failed calls so far by tool, over all episodes."""

    def __post_init__(self) -> None:
        require_shares(self, "rate")

    @property
    def failures(self) -> dict[str, int]:
        """Those of the environment, and the calls that were made to fail by tool."""
        made = {f"injected_{tool}": count for tool, count in sorted(self.counts.items())}
        return {**self.environment.failures, **made}

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that the environment itself says, those of the error among them."""
        return tuple(dict.fromkeys([*self.environment.words, *words(self.error)]))

    def reset(self, question: Question, stream: random.Random) -> Episode:
        """Start an episode."""
        if self.rate == 0:
            return self.environment.reset(question, stream)
        own = self._own(stream)
        return _FailingEpisode(self, self.environment.reset(question, stream), own)


class _FailingEpisode(_WrappedEpisode):
    def __init__(self, wrapper: FailingTools, episode: Episode, stream: random.Random) -> None:
        super().__init__(wrapper, episode, stream)
        self._turns = 0
        self._grounded: bool | None = None
        self._over = False
        self._missed = False
        self._injected = False

    @property
    def grounded(self) -> bool | None:
        """Whether the evidence ever reached the context; what the last turn finds does not."""
        return self._grounded if self._over else self.episode.grounded

    @property
    def oracle_turn(self) -> int | None:
        """The episode's own; None once a call failed that it could not be told of."""
        return None if self._missed else getattr(self.episode, "oracle_turn", None)

    @property
    def turn_labels(self) -> tuple[str, ...] | None:
        """The episode's own; None as for `oracle_turn`."""
        return None if self._missed else getattr(self.episode, "turn_labels", None)

    def step(self, message: str) -> Step:
        """Act on one message, unless its tool fails."""
        wrapper, settings = self._wrapper, self._wrapper.settings
        self._turns += 1
        fails = self._stream.random() < wrapper.rate  # one draw a turn, whatever it is used for
        self._injected = False
        if self._turns >= settings.max_turns:
            return self._last(message)
        protocol = wrapper.wording.protocol
        action, argument = parse_action(message, wrapper.actions, protocol=protocol)
        if not fails or action in ("answer", "invalid"):
            return self.episode.step(message)
        wrapper.counts[action] += 1
        self._missed |= not note_action(self.episode, action, argument)
        self._injected = True
        observation = wrapper.wording.observation.replace("{text}", wrapper.error)
        return Step(action, observation, error="injected")

    def take_back(self) -> None:
        """Undo the last step, whose tool failed by itself or was made to; draws stay used up."""
        self._turns -= 1
        if self._injected:
            forget_action(self.episode)
        else:
            self.episode.take_back()

    def _last(self, message: str) -> Step:
        """The wrapped episode has seen fewer turns and may want to go on."""
        grounded = self.episode.grounded
        result = self.episode.step(message)
        if result.stop_reason is not None:
            return result
        self._grounded, self._over = grounded, True
        return replace(result, observation="", stop_reason="max_turns")


# --- garbled observations


@dataclass(frozen=True)
class GarbledObservations(_Wrapper):
    """Words of observations are left out, or change places with the next, at random.

    Tags and white space stay.  The environment's state is untouched: `grounded` and the judge know
    what was found, not what was left of it.
    """

    purpose: ClassVar[str] = "garbled observations"

    drop: float = 0.0
    swap: float = 0.0

    def __post_init__(self) -> None:
        require_shares(self, "drop", "swap")

    def reset(self, question: Question, stream: random.Random) -> Episode:
        """Start an episode."""
        if self.drop == 0 and self.swap == 0:
            return self.environment.reset(question, stream)
        own = self._own(stream)
        return _GarbledEpisode(self, self.environment.reset(question, stream), own)


class _GarbledEpisode(_WrappedEpisode):
    def step(self, message: str) -> Step:
        """Act on one message."""
        result = self.episode.step(message)
        garbled = garble(result.observation, self._wrapper.drop, self._wrapper.swap, self._stream)
        return replace(result, observation=garbled)


def garble(text: str, drop: float, swap: float, stream: random.Random) -> str:
    """Text whose words are left out with probability `drop`, after swaps of neighbours.

    Two numbers are drawn for each word.  A word is swapped once at most; tags stay in place, and
    nothing is swapped across them.

    >>> garble("<doc> a b c </doc>", 0.0, 1.0, random.Random(0))
    '<doc> b a c </doc>'
    """
    pieces = _BETWEEN_WORDS.split(text)  # words at even places, some of them ''
    free = [place for place in range(0, len(pieces), 2) if pieces[place]]
    swapped = [stream.random() < swap for _ in free]
    dropped = [stream.random() < drop for _ in free]
    position = 0
    while position < len(free) - 1:
        here, following = free[position], free[position + 1]
        if swapped[position] and following == here + 2 and pieces[here + 1].isspace():
            pieces[here], pieces[following] = pieces[following], pieces[here]
            position += 1
        position += 1
    for index, gone in zip(free, dropped, strict=True):
        if gone:
            pieces[index] = ""
    return "".join(pieces)


# --- a noisy outcome


@dataclass(frozen=True)
class FlippedOutcomes(_Wrapper):
    """The reward of an episode is that of the opposite outcome with probability `rate`.

    Right and wrong change places; penalties stay, a missing reward stays missing, and `success` is
    the true outcome.  Meant for outcome rewards of 0 and 1.
    """

    purpose: ClassVar[str] = "flipped outcomes"

    rate: float

    def __post_init__(self) -> None:
        require_shares(self, "rate")

    def reset(self, question: Question, stream: random.Random) -> Episode:
        """Start an episode."""
        if self.rate == 0:
            return self.environment.reset(question, stream)
        own = self._own(stream)
        return _FlippedEpisode(self, self.environment.reset(question, stream), own)


class _FlippedEpisode(_WrappedEpisode):
    @property
    def reward(self) -> float | None:
        """The reward, with right and wrong exchanged if this episode is one of those."""
        reward = self.episode.reward
        return (
            reward
            if reward is None or not self._flipped
            else reward + (-1.0 if self.episode.success else 1.0)
        )

    def _draw_from(self, stream: random.Random) -> None:
        self._flipped = stream.random() < self._wrapper.rate
