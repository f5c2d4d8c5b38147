"""Chores as episodes: one command a message, 10 for a task that is done, 0 otherwise."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turncredit.answers import words
from turncredit.environments.actions import parse_action
from turncredit.environments.household.rules import COMMANDS, NOTHING, Play
from turncredit.environments.household.wording import full, terse
from turncredit.environments.protocol import Step
from turncredit.environments.snapshots import Snapshot, put_back, saved
from turncredit.environments.wording import WORDINGS, Wording
from turncredit.params import require_positive
from turncredit.worlds.base import Question
from turncredit.worlds.household.games import WORDS, game_of

ENGINES = ("rules", "alfworld")
SAID = "nothing closed not anything this normal cold clean sliced slice turn off pick"
"""Words of observations beside those of tasks and commands."""


@dataclass(frozen=True)
class HouseholdSettings:
    """Constants of the environment; rewards and cap as AEM has them on ALFWorld (section 5.1)."""

    KIND: ClassVar[str] = "household"

    max_turns: int = 50
    """Messages, malformed ones included."""
    won_reward: float = 10.0
    invalid_penalty: float = 0.1
    """Subtracted for each message that is malformed or whose command is not admissible."""
    history: int = 2
    """Earlier steps that an observation in full repeats."""
    terse: bool = False
    """Observations in the words that matter, without history and admissible actions."""
    engine: str = "rules"
    """Who plays in a task: `rules`, in Python, or `alfworld`, the engine in its processes."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turns", "won_reward")
        if self.engine not in ENGINES:
            raise ValueError(f"engine = {self.engine!r} is not one of {', '.join(ENGINES)}")
        for name in ("invalid_penalty", "history"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must not be below 0")


@dataclass(frozen=True)
class Household:
    """A factory of episodes; a question's id is its game.

    play: starts a game by these rules, or `environments.alfworld.EngineGames` by ALFWorld's engine.
    game: finds the game of a question's id; that of `OfficialGames` finds ALFWorld's own.
    """

    settings: HouseholdSettings = field(default_factory=HouseholdSettings)
    wording: Wording = WORDINGS["household"]
    actions: tuple[str, ...] = ("action",)
    play: Callable[[Any], Any] = Play
    game: Callable[[str], Any] = game_of

    @property
    def failures(self) -> dict[str, int]:
        """None by these rules; what kept the engine from answering, by cause."""
        return dict(sorted(getattr(self.play, "failures", {}).items()))

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that a terse observation, prompt or thought may hold."""
        said = " ".join((terse(" ".join(COMMANDS)), terse(NOTHING), SAID, *WORDS))
        return tuple(dict.fromkeys([*self.wording.words(), *words(said), "<think>", "</think>"]))

    def prepare(self, questions: Sequence[Question]) -> None:
        """Let an engine in processes of its own begin with the games of these questions."""
        if hasattr(self.play, "prepare"):
            self.play.prepare([self.game(question.id) for question in questions])

    def reset(self, question: Question, stream: random.Random) -> "HouseholdEpisode":
        """Start an episode; nothing in it is by chance.  ValueError for an id without a game."""
        return HouseholdEpisode(self, question, stream)


class HouseholdEpisode:
    """One chore being done.  It cannot tell what is evidence, so `grounded` is None."""

    grounded = None

    def __init__(self, environment: Household, question: Question, stream: random.Random) -> None:
        self.environment = environment
        self.question = question
        self.stream = stream
        self.success = False
        self.play = environment.play(environment.game(question.id))
        self._turns = 0
        self._invalid = 0
        self._seen = self.play.first_look()
        self._history: tuple[tuple[str, str], ...] = ()
        first = f"{question.text} {terse(self._seen)}" if self._is_terse else self._in_full()
        self.prompt = environment.wording.prompt.replace("{question}", first)

    @property
    def _is_terse(self) -> bool:
        return self.environment.settings.terse

    @property
    def reward(self) -> float | None:
        """`won_reward` or 0, minus the penalties; None (missing) if the engine lost the game."""
        if self.play.lost:
            return None
        settings = self.environment.settings
        return settings.won_reward * self.success - settings.invalid_penalty * self._invalid

    def announce(self, message: str) -> None:
        """Let an engine in a process of its own begin with what `step` is given next."""
        if hasattr(self.play, "announce"):
            action, command = self._parsed(message)
            if action != "invalid":
                self.play.announce(command)

    def _parsed(self, message: str) -> tuple[str, str]:
        """Action and command of a message."""
        environment = self.environment
        return parse_action(message, environment.actions, protocol=environment.wording.protocol)

    def step(self, message: str) -> Step:
        """Act on one message."""
        environment, settings = self.environment, self.environment.settings
        action, command = self._parsed(message)
        self._turns += 1
        if action != "invalid":
            action = self._act(action, command)
        if action == "invalid":
            self._invalid += 1
        self.success = self.play.won and not self.play.lost
        reason = "max_turns" if self._turns >= settings.max_turns else None
        reason = "error" if self.play.lost else "goal" if self.success else reason
        if reason is not None:
            self.play.leave()
            return Step(action, "", stop_reason=reason)
        if action == "invalid" and not command:
            return Step(action, environment.wording.invalid)
        shown = terse(self._seen) if self._is_terse else self._in_full()
        return Step(action, environment.wording.observation.replace("{text}", shown))

    def _act(self, action: str, command: str) -> str:
        """Carry out a command and keep what is seen; `invalid` if it is not admissible."""
        kept = self.environment.settings.history
        before, self._seen = self._seen, self.play.do(command)
        self._history = (*self._history, (before, command))[-kept:] if kept else ()
        return "invalid" if self._seen == NOTHING else action

    def _in_full(self) -> str:
        task, admissible = self.question.text, self.play.admissible()
        return full(task, self._turns, self._history, self._seen, admissible)

    def snapshot(self) -> Snapshot:
        """The episode as it stands; see `Episode`."""
        return saved(self, "environment")

    def restore(self, snapshot: Snapshot, stream: random.Random | None = None) -> None:
        """Go back to a snapshot of this or another episode of the same environment."""
        put_back(self, snapshot)
        if stream is not None:
            self.stream = stream
