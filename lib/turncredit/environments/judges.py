"""Judges behind `external_verify`: a verdict on an answer, given the gathered context."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turncredit.answers import exact_match
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question


class Judge(Protocol):
    """Says CORRECT, UNCERTAIN or WRONG."""

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """One of the three words; never raises, UNCERTAIN when it cannot tell."""


@dataclass(frozen=True)
class RuleJudge:
    """A simulated stronger model: reads the context, and otherwise may know the answer by itself.

    If the context holds the paragraph that states the answer, the judge compares with what that
    paragraph says, and is UNCERTAIN with probability `noise`.  Without it the judge answers from
    memory: for a share `knowledge` of all questions, always the same ones, it knows.  That share is
    what a stronger model's own knowledge leaks into training, and so a parameter to vary, not to
    hide.
    """

    knowledge: float
    noise: float

    def __post_init__(self) -> None:
        require_shares(self, "knowledge", "noise")

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """Verdict on `answer`; `context` holds the sections read so far."""
        last = question.hops[-1]
        read = bool(last.paragraph) and last.paragraph in context
        if read and stream.random() < self.noise:
            return "UNCERTAIN"
        if not read and python_stream(0, "judge", question.id).random() >= self.knowledge:
            return "UNCERTAIN"
        return "CORRECT" if exact_match(answer, question.answers) else "WRONG"
