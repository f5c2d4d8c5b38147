"""What a world offers: questions whose answers must be looked up, and documents that hold them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Document:
    """A titled text; paragraphs are separated by blank lines."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Hop:
    """One step to the answer: the paragraph of document `title` on `relation` says `value`."""

    title: str
    relation: str
    value: str
    paragraph: str
    """The paragraph's text as the document holds it; '' when the world has lost it (unsolvable)."""


@dataclass(frozen=True)
class Question:
    """One dataset row.  `answers[0]` is the canonical answer, the rest are accepted aliases."""

    id: str
    text: str
    answers: tuple[str, ...]
    hops: tuple[Hop, ...]
    """() where the paragraphs are not known, as for questions from files."""
    kind: str
    """Template or relation chain the question was made from."""
    guess: str
    """What somebody would say without looking anything up."""
    hard: bool = False


class World(Protocol):
    """A source of questions and documents.

    All words that questions, documents and answers can contain are in `words` (lower case), so
    that a word-level vocabulary can be built before any question is drawn.
    """

    words: Sequence[str]
    names: Sequence[str]
    """Those of `words` that only name things: any of them could stand in another's place."""

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` training questions."""

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """A fixed list of held-out questions: the same for every call with the same arguments."""

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """At most `k` documents for `query`, best first; [] when nothing matches."""
