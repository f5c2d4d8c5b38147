"""BM25 by `bm25s`, and several retrievers of one corpus as one."""

import importlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from turncredit.answers import words
from turncredit.retrieval.index import Hit, check_k


class Bm25Index:
    """BM25 (Lucene's form, k1 = 1.5, b = 0.75) over lists of words, by the package `bm25s`."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self._bm25 = importlib.import_module("bm25s").BM25()
        self._known = {word for text in texts for word in text}
        if self._known:
            self._bm25.index(list(map(list, texts)), show_progress=False)

    def search(self, queries: Sequence[Sequence[str]], k: int) -> list[list[Hit]]:
        """At most `k` hits for each list of words, best first, ties by position.

        A text that shares no word with the query is no hit.  Raises ValueError for k < 1.
        """
        check_k(k)
        return [self._search_one([w for w in query if w in self._known], k) for query in queries]

    def _search_one(self, query: list[str], k: int) -> list[Hit]:
        if not query:
            return []
        scores = self._bm25.get_scores(query)
        best = np.argsort(-scores, kind="stable")[:k]
        return [Hit(int(row), float(scores[row])) for row in best if scores[row] > 0]


class Words:
    """Texts to their words, as answers are compared: lower case, without punctuation."""

    def encode(self, texts: Sequence[str]) -> list[list[str]]:
        """One list of words for each text."""
        return [words(text) for text in texts]


class FusedRetriever:
    """Reciprocal-rank fusion (Cormack, Clarke and Buettcher, 2009) of retrievers of one corpus.

    A document scores the sum of 1 / (constant + rank) over the retrievers that have it among their
    first `depth`; rank counts from 1.  Raises ValueError when the corpora differ in length.
    """

    def __init__(
        self, retrievers: Sequence[Any], *, depth: int = 100, constant: float = 60.0
    ) -> None:
        lengths = [len(retriever.documents) for retriever in retrievers]
        if len(set(lengths)) != 1:
            raise ValueError(f"retrievers of one corpus are needed, these hold {lengths} documents")
        self.documents = retrievers[0].documents
        self._retrievers, self._depth, self._constant = tuple(retrievers), depth, constant

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, ties by position."""
        check_k(k)
        found = [each.search(queries, max(k, self._depth)) for each in self._retrievers]
        return [self._fuse(rankings)[:k] for rankings in zip(*found, strict=True)]

    def _fuse(self, rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
        scores: dict[int, float] = defaultdict(float)
        for ranking in rankings:
            for rank, hit in enumerate(ranking, start=1):
                scores[hit.position] += 1 / (self._constant + rank)
        ordered = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
        return [Hit(position, score) for position, score in ordered]
