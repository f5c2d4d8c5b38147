"""What question-answering environments share: acting, counting turns, answering, the outcome."""

import random
from typing import Any

from turncredit.answers import exact_match
from turncredit.environments.actions import parse_action
from turncredit.environments.oracle import Oracle, oracle_of
from turncredit.environments.protocol import Step
from turncredit.environments.reading import evidence, holds
from turncredit.environments.snapshots import Snapshot, put_back, saved
from turncredit.worlds.base import Question

NO_RESULTS = "no results"
"""What a search that found nothing says."""


def failures_of(**parts: Any) -> dict[str, int]:
    """What went wrong in the named parts so far, as `part_cause`.

    A part may have `counts` or `outcomes` of what its calls came to; those of `_WORKED` are none.
    """
    counted = {
        f"{name}_{cause}": count
        for name, part in parts.items()
        for attribute in ("counts", "outcomes")
        for cause, count in getattr(part, attribute, {}).items()
        if cause not in _WORKED
    }
    return dict(sorted(counted.items()))


_WORKED = frozenset({"answered", "cached", "ok", "short", "long"})


class QuestionEpisode:
    """One question being worked on.  A kind of environment adds `_use`, what its tools return.

    `environment` offers `actions`, a `wording`, and `settings` with `max_turns`, `invalid_ends` and
    `invalid_penalty`.
    """

    def __init__(self, environment: Any, question: Question, stream: random.Random) -> None:
        self.environment = environment
        self.question = question
        self.stream = stream
        self.prompt = environment.wording.prompt.replace("{question}", question.text)
        self.success = False
        self._evidence = evidence(question.hops[-1]) if question.hops else None
        self._grounded = False
        self._oracle = self._new_oracle()
        self._shown: list[str] = []
        self._first = ""
        self._turns = 0
        self._invalid = 0
        self._error: str | None = None

    def _new_oracle(self) -> Oracle | None:
        return oracle_of(self.question, self.environment.settings)

    @property
    def reward(self) -> float | None:
        """1 for an exact match, 0 otherwise, minus the penalty of malformed messages.

        None (missing, which is not 0) if the question has no usable gold answer.
        """
        if exact_match("", self.question.answers) is None:
            return None
        return float(self.success) - self.environment.settings.invalid_penalty * self._invalid

    @property
    def grounded(self) -> bool | None:
        """Whether the policy was shown what states the answer; None for a question without hops."""
        return None if self._evidence is None else self._grounded

    @property
    def oracle_turn(self) -> int | None:
        """First turn off the path to the answer (`Oracle`), -1: none; None where it is unknown."""
        return None if self._oracle is None else self._oracle.first_wrong

    @property
    def turn_labels(self) -> tuple[str, ...] | None:
        """What each turn so far was, one of the oracle's `LABELS`; None where it is unknown."""
        return None if self._oracle is None else self._oracle.labels

    def note_action(self, action: str, argument: str) -> None:
        """Let the oracle know of a turn; for who keeps a message from the tool it asked for."""
        if self._oracle is not None:
            self._oracle.take_note(action, argument)

    def forget_action(self) -> None:
        """Undo the last `note_action`, of a turn that showed nothing."""
        if self._oracle is not None:
            self._oracle.forget()

    def take_back(self) -> None:
        """Undo the last step, whose tool failed: the message counts as never given."""
        self._turns -= 1
        self.forget_action()

    def announce(self, message: str) -> None:
        """Let tools that answer several calls at once know of the one in `step`'s next message."""
        if self._turns + 1 < self.environment.settings.max_turns:
            self._expect(*self._parsed(message))

    def _expect(self, action: str, argument: str) -> None:
        """Announce a call to its tool; a kind of environment whose tools care overrides this."""

    def _parsed(self, message: str) -> tuple[str, str]:
        environment = self.environment
        return parse_action(message, environment.actions, protocol=environment.wording.protocol)

    def step(self, message: str) -> Step:
        """Act on one message."""
        settings = self.environment.settings
        action, argument = self._parsed(message)
        self._turns += 1
        self.note_action(action, argument)
        if action == "answer":
            correct = exact_match(argument, self.question.answers)
            self.success = bool(correct)
            return Step(action, "", stop_reason="answer", correct=correct)
        if action == "invalid":
            self._invalid += 1
            if settings.invalid_ends:
                return Step(action, "", stop_reason="invalid")
        correct = self._guess_correct(action, argument)
        if self._turns >= settings.max_turns:
            return Step(action, "", stop_reason="max_turns", correct=correct)
        observation = self._observe(action, argument)
        return Step(action, observation, correct=correct, error=self._error)

    def snapshot(self) -> Snapshot:
        """The episode as it stands, its random stream included; see `Episode`."""
        return saved(self, "environment")

    def restore(self, snapshot: Snapshot, stream: random.Random | None = None) -> None:
        """Go back to a snapshot of this or another episode of the same environment."""
        put_back(self, snapshot)
        if stream is not None:
            self.stream = stream

    def _guess_correct(self, action: str, argument: str) -> bool | None:
        return exact_match(argument, self.question.answers) if action == "external_verify" else None

    def _observe(self, action: str, argument: str) -> str:
        wording = self.environment.wording
        self._error = None
        if action == "invalid":
            return wording.invalid
        self._shown.clear()
        self._first = ""
        text = self._use(action, argument)
        if self._oracle is not None:
            listing = text if action == "search" else ""
            verdict = text if action == "external_verify" else ""
            self._oracle.learn(self._shown, listing, self._first, verdict)
        return wording.observation.replace("{text}", text)

    def _use(self, action: str, argument: str) -> str:
        """What a tool returns, as the policy will see it; sets `_error` if the tool failed."""
        raise NotImplementedError

    def _show(self, text: str) -> str:
        """Hand back a text that the policy is about to see, noting whether it is the evidence."""
        self._grounded = self._grounded or holds(text, self._evidence or "")
        self._shown.append(text)
        return text
