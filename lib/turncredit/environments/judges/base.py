"""What every judge offers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from turncredit.worlds.base import Question

VERDICTS = ("UNCERTAIN", "CORRECT", "WRONG")
"""All a judge may say; a tie goes to the first."""


class Judge(Protocol):
    """Says CORRECT, UNCERTAIN or WRONG."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many verdicts so far were `answered`, `cached`, or UNCERTAIN for a named failure.

        Empty for a judge that cannot fail.  A training loop logs the difference between steps.
        """

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """One of the three words; never raises, UNCERTAIN when it cannot tell."""


@dataclass(frozen=True)
class JudgeRequest:
    """One verdict that is wanted: is `answer` right, by the sections in `context`?"""

    question: Question
    answer: str
    context: tuple[str, ...]
