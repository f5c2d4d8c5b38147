"""Multi-turn environments of the `verifiers` library, as environments of ours.

The other direction is `ChatEnvironment`.  Used of the library's object are `env_response` and,
where there are any, `setup_state` and `is_completed`, all asynchronous.  The library itself is not
imported.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turncredit.coroutines import complete
from turncredit.environments.actions import Protocol, parse_action
from turncredit.environments.adapters.chat import Message, message_text
from turncredit.environments.adapters.text_gym import ENDED
from turncredit.environments.protocol import Step
from turncredit.worlds.base import Question

State = dict[str, Any]
Score = Callable[[Sequence[Message], State], float | None]
"""The outcome reward of a chat that is over; None = missing."""


@dataclass(frozen=True)
class VerifiersEnvironment:
    """Episodes of a multi-turn environment over the rows of its data set.

    rows: by question id, each with `prompt` messages and what else its `setup_state` reads.
    score: what the rubric says of a chat.  Messages are handed over whole, whatever they hold;
    `actions` name what may stand in them, for records and for the engine's stop texts.  An
    exception of the environment or of the score ends the episode with stop reason `error` and
    without a reward, and is counted.
    """

    inner: Any
    rows: Mapping[str, Mapping[str, Any]]
    score: Score
    won_at: float = 1.0
    """The least reward that counts as success."""
    max_turns: int = 50
    actions: tuple[str, ...] = ("answer",)
    protocol: Protocol = "tags"
    stop_reasons: tuple[str, ...] = (ENDED,)
    counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    @property
    def failures(self) -> dict[str, int]:
        """Exceptions by hook and name."""
        return dict(sorted(self.counts.items()))

    def reset(self, question: Question, stream: random.Random) -> "VerifiersEpisode":
        """Start an episode.  Chance inside the other environment is its own.

        Raises KeyError for a question without a row.
        """
        return VerifiersEpisode(self, question)


class VerifiersEpisode:
    """One chat with a multi-turn environment; it cannot be saved, as its state is not ours."""

    grounded = None

    def __init__(self, environment: VerifiersEnvironment, question: Question) -> None:
        self.environment, self.question = environment, question
        row = environment.rows[question.id]
        self.messages: list[Message] = [dict(message) for message in row["prompt"]]
        self.state: State = {**row, "prompt": list(self.messages), "turn": 0}
        self.prompt = "\n\n".join(map(message_text, self.messages))
        self.reward: float | None = 0.0
        self.success = False
        self._turns = 0
        self._error = ""
        if hasattr(environment.inner, "setup_state"):
            self.state = self._asked("setup_state", self.state) or self.state

    def step(self, message: str) -> Step:
        """Add a message to the chat and see what comes back."""
        environment = self.environment
        action, _ = parse_action(message, environment.actions, protocol=environment.protocol)
        self._turns += 1
        self.messages.append({"role": "assistant", "content": message})
        replies = [] if self._is_over() else self._replies()
        over = self._error or self.state.get("final_env_response") is not None or not replies
        if not over and self._turns < environment.max_turns:
            self.messages += replies
            shown = "\n\n".join(map(message_text, replies))
            return Step(action, shown or "(nothing)")
        self._settle()
        reason = "goal" if self.success else ENDED if over else "max_turns"
        return Step(action, "", stop_reason="error" if self._error else reason)

    def _is_over(self) -> bool:
        if not hasattr(self.environment.inner, "is_completed"):
            return False
        return bool(self._asked("is_completed", self.messages, self.state))

    def _replies(self) -> list[Message]:
        """The messages that come back; earlier versions return the state beside them."""
        result = self._asked("env_response", self.messages, self.state)
        if type(result) is tuple:
            result, self.state = result
        self.state["turn"] = self._turns
        if type(result) is str:
            return [{"role": "user", "content": result}]
        return list(result or [])

    def _settle(self) -> None:
        """The outcome, once."""
        if not self._error:
            try:
                self.reward = self.environment.score(self.messages, self.state)
            except Exception as error:
                self._break("score", error)
        if self._error:
            self.reward = None
        self.success = self.reward is not None and self.reward >= self.environment.won_at

    def _asked(self, hook: str, *arguments: Any) -> Any:
        """What a hook returns; None, and `error`, if it raises."""
        try:
            return complete(getattr(self.environment.inner, hook)(*arguments))
        except Exception as error:
            self._break(hook, error)
            return None

    def _break(self, hook: str, error: Exception) -> None:
        self._error = f"{hook}: {error!r}"
        self.environment.counts[f"{hook}_{type(error).__name__}"] += 1
