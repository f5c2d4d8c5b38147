"""The Factbook as a world: real countries, one short document each, real chains of relations."""

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from turncredit.answers import words
from turncredit.retrieval import Retriever, lexical_retriever
from turncredit.seeding import python_stream
from turncredit.worlds.base import Document, Question
from turncredit.worlds.factbook.facts import ATTRIBUTES, load_facts
from turncredit.worlds.factbook.questions import MOST_HOPS, build_documents, build_questions

_CACHED_QUERIES = 4096


class FactbookWorld:
    """Questions about countries and territories, as of the corpus and not as of today.

    hops: numbers of hops asked for, from 1 to 3.  max_per_final: of each number of hops, questions
    that end in one document, at most.  miss_rate: probability that a wanted document that a search
    finds is left out of its result.  make_retriever: from documents to their retriever.

    Raises ValueError naming the value for options out of range, for an attribute that does not
    exist, and for a vocabulary of more than `max_words` words.
    """

    def __init__(
        self,
        *,
        hops: Sequence[int] = (1, 2, 3),
        max_per_final: int = 60,
        miss_rate: float = 0.0,
        attributes: Sequence[str] = tuple(ATTRIBUTES),
        max_words: int = 4000,
        make_retriever: Callable[[Sequence[Document]], Retriever] = lexical_retriever,
    ) -> None:
        _check(hops, max_per_final, miss_rate)
        self.hops = tuple(sorted(set(hops)))
        self.max_per_final = max_per_final
        self.miss_rate = miss_rate
        self.attributes = tuple(attributes)
        facts = load_facts(self.attributes)
        self.documents = tuple(build_documents(facts))
        train, test = build_questions(facts, self.hops, max_per_final)
        self.train, self.test = tuple(train), tuple(test)
        self.words = _vocabulary(self.documents, train + test, max_words)
        fixed = {"of", *words(" ".join(self.attributes))}
        self.names = tuple(word for word in self.words if word not in fixed)
        self._retriever = make_retriever(self.documents)
        self._positions = lru_cache(maxsize=_CACHED_QUERIES)(self._search_positions)

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` training questions, as many of each number of hops as there are.

        None comes twice before all of them have come once.
        """
        passes, rest = divmod(count, len(self.train))
        return list(self.train) * passes + _mixed(self.train, rest, stream)

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """`count` fixed test questions, as many of each number of hops as there are, none twice.

        Raises ValueError naming both numbers when fewer than `count` test questions exist.
        """
        if count > len(self.test):
            raise ValueError(f"{count} evaluation questions wanted, there are {len(self.test)}")
        return _mixed(self.test, count, python_stream(seed, "factbook evaluation questions"))

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """At most `k` documents for `query`, best first; [] when nothing matches.

        Documents of the question's hops are missed with probability `miss_rate`, each on its own;
        the next best takes the place.  Raises ValueError when k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        wanted = {hop.title for hop in question.hops} if self.miss_rate > 0 else set()
        found = [self.documents[position] for position in self._positions(query, k + len(wanted))]
        kept = [d for d in found if d.title not in wanted or stream.random() >= self.miss_rate]
        return kept[:k]

    def _search_positions(self, query: str, k: int) -> tuple[int, ...]:
        return tuple(hit.position for hit in self._retriever.search([query], k)[0])


def _check(hops: Sequence[int], max_per_final: int, miss_rate: float) -> None:
    if not hops or not all(1 <= count <= MOST_HOPS for count in hops):
        raise ValueError(f"hops: {tuple(hops)!r} must be some of 1 to {MOST_HOPS}")
    if max_per_final < 1:
        raise ValueError(f"max_per_final: {max_per_final} is below 1")
    if not 0.0 <= miss_rate <= 1.0:
        raise ValueError(f"miss_rate: {miss_rate} is not a probability")


def _vocabulary(
    documents: Sequence[Document], questions: Sequence[Question], max_words: int
) -> tuple[str, ...]:
    """Sorted words of titles, texts, questions and canonical answers (aliases only score)."""
    texts = [text for document in documents for text in (document.title, document.text)]
    texts += [text for question in questions for text in (question.text, question.answers[0])]
    found = sorted({word for text in texts for word in words(text)})
    if len(found) > max_words:
        raise ValueError(f"the Factbook world has {len(found)} words, max_words is {max_words}")
    return tuple(found)


def _mixed(questions: Sequence[Question], count: int, stream: random.Random) -> list[Question]:
    """`count` distinct questions in random order, each number of hops in turn while it lasts."""
    pools: dict[int, list[Question]] = {}
    for question in questions:
        pools.setdefault(len(question.hops), []).append(question)
    draws = [stream.sample(pool, min(count, len(pool))) for pool in pools.values()]
    taken: list[Question] = []
    while len(taken) < count:
        draws = [draw for draw in draws if draw]
        taken += [draw.pop() for draw in stream.sample(draws, len(draws))]
    return taken[:count]
