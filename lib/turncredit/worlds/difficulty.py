"""How hard a question is, as labels that analyses group by, and a world that withholds evidence."""

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turncredit.answers import exact_match, normalise_answer
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Document, Question, World

_BLANK_LINE = "\n\n"


# --- bins


def by_hops(question: Question) -> str:
    """Number of documents to be read one after the other; "unknown" where nobody wrote them down.

    >>> from turncredit.worlds import Hop
    >>> by_hops(Question("q", "?", ("a",), (Hop("t", "r", "a", "p"),) * 2, "k", "g"))
    '2 hops'
    """
    count = len(question.hops)
    return f"{count} hop{'s' * (count > 1)}" if count else "unknown"


def by_search(question: Question) -> str:
    """Whether the world calls its searches for this question unreliable."""
    return "hard" if question.hard else "plain"


def by_guess(question: Question) -> str:
    """Whether the popular answer, given without looking anything up, is right."""
    right = exact_match(question.guess, question.answers)
    if right is None or not question.guess:
        return "unknown"
    return "popular" if right else "unpopular"


def by_evidence(question: Question) -> str:
    """Whether the world still states the answer; "unknown" where nobody wrote down where it stood.

    Questions from files have hops without paragraphs, so tell these bins apart within one world.
    """
    if not question.hops:
        return "unknown"
    return "stated" if question.hops[-1].paragraph else "not stated"


DIFFICULTIES: dict[str, Callable[[Question], str]] = {
    "hops": by_hops,
    "search": by_search,
    "guess": by_guess,
    "evidence": by_evidence,
}
"""Ways to put a question into a bin that need the question alone."""


def difficulty_bins(question: Question) -> dict[str, str]:
    """The question's bin by every one of `DIFFICULTIES`, a row of a table keyed by its id."""
    return {name: bin_of(question) for name, bin_of in DIFFICULTIES.items()}


def rank_bin(world: World, question: Question, *, depth: int = 20) -> str:
    """Where the document that states the answer stands among `depth` hits for the question itself.

    "rank 1", "rank 2 to 5", "rank 6 or later" or "not found"; "unknown" for a question without
    hops.  A world's search misses are drawn from a stream of the question's own, so that the bin
    is the same for every call and no run's stream is touched.
    """
    if not question.hops:
        return "unknown"
    stream = python_stream(0, "rank", question.id)
    titles = [hit.title for hit in world.search(question, question.text, depth, stream)]
    if question.hops[-1].title not in titles:
        return "not found"
    rank = titles.index(question.hops[-1].title) + 1
    return "rank 1" if rank == 1 else "rank 2 to 5" if rank <= 5 else "rank 6 or later"


# --- withheld evidence


@dataclass(frozen=True)
class WithheldEvidence:
    """A world in which a share of the questions cannot be answered by looking anything up.

    Which ones depends on their ids alone: the same at every draw, and those of a smaller share are
    among those of a larger.  Their searches find the same documents without the paragraphs that
    mention an accepted answer; their last hop has no paragraph.  A question whose last paragraph
    does not spell out an accepted answer (yes or no, something counted) stays as it is, since its
    evidence cannot be recognised.
    """

    world: World
    share: float

    def __post_init__(self) -> None:
        require_shares(self, "share")

    @property
    def words(self) -> Sequence[str]:
        """Those of the world."""
        return self.world.words

    @property
    def names(self) -> Sequence[str]:
        """Those of the world."""
        return self.world.names

    @property
    def outcomes(self) -> Mapping[str, int]:
        """What searches came to, where the world counts it."""
        return getattr(self.world, "outcomes", {})

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` training questions of the world."""
        return [self._marked(q) for q in self.world.train_questions(count, stream)]

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """The world's fixed list, in its order."""
        return [self._marked(q) for q in self.world.evaluation_questions(count, seed)]

    def __getattr__(self, name: str) -> Any:
        if name != "expect":  # announces searches to a world that can make several at once
            raise AttributeError(name)
        return self.world.expect

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """What the world finds, without the evidence of a question that may not have any."""
        found = self.world.search(question, query, k, stream)
        if not self.withholds(question):
            return found
        return [_without(document, question.answers) for document in found]

    def withholds(self, question: Question) -> bool:
        """Whether this is one of the questions without evidence."""
        if self.share == 0:
            return False
        if python_stream(0, "withheld evidence", question.id).random() >= self.share:
            return False
        paragraph = question.hops[-1].paragraph if question.hops else ""
        return not paragraph or _mentions(paragraph, question.answers)

    def _marked(self, question: Question) -> Question:
        if not question.hops or not self.withholds(question):
            return question
        last = replace(question.hops[-1], paragraph="")
        return replace(question, hops=(*question.hops[:-1], last))


def _without(document: Document, answers: Sequence[str]) -> Document:
    kept = [part for part in document.text.split(_BLANK_LINE) if not _mentions(part, answers)]
    return replace(document, text=_BLANK_LINE.join(kept))


def _mentions(text: str, answers: Sequence[str]) -> bool:
    """Whether whole words of the text match an answer exactly, as `exact_match` compares."""
    joined, bounds = _words_joined(text)
    for answer in answers:
        wanted = normalise_answer(answer).replace(" ", "")
        start = joined.find(wanted) if wanted else -1
        while start >= 0:
            if start in bounds and start + len(wanted) in bounds:
                return True
            start = joined.find(wanted, start + 1)
    return False


@functools.lru_cache(maxsize=16384)
def _words_joined(text: str) -> tuple[str, frozenset[int]]:
    """The normalised words without spaces, and the positions at which words start or end."""
    parts = normalise_answer(text).split()
    return "".join(parts), frozenset(itertools.accumulate(map(len, parts), initial=0))
