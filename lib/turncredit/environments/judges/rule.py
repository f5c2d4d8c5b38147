"""A judge that needs no model."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from turncredit.answers import exact_match
from turncredit.environments.reading import evidence, holds
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class RuleJudge:
    """A simulated stronger model: reads the context, and otherwise may know the answer by itself.

    If the context holds what states the answer (`reading.evidence`), the judge compares with what
    that says, and is UNCERTAIN with probability `noise`.  Without it the judge answers from
    memory: for a share `knowledge` of all questions, always the same ones, it knows.  That share is
    what a stronger model's own knowledge leaks into training, and so a parameter to vary, not to
    hide.  It is UNCERTAIN about a question without a usable gold answer.
    """

    KIND: ClassVar[str] = "rule"

    knowledge: float
    noise: float

    def __post_init__(self) -> None:
        require_shares(self, "knowledge", "noise")

    @property
    def counts(self) -> Mapping[str, int]:
        """Nothing: it cannot fail."""
        return {}

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """Verdict on `answer`; `context` holds the sections read so far."""
        stated = evidence(question.hops[-1]) if question.hops else ""
        read = any(holds(section, stated) for section in context)
        if read and stream.random() < self.noise:
            return "UNCERTAIN"
        if not read and python_stream(0, "judge", question.id).random() >= self.knowledge:
            return "UNCERTAIN"
        correct = exact_match(answer, question.answers)
        if correct is None:  # no usable gold answer: nothing to compare with
            return "UNCERTAIN"
        return "CORRECT" if correct else "WRONG"
