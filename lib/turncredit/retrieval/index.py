"""Two exact indexes with one search: `FlatIndex` over unit vectors, `PostingsIndex` over words.

Both give hits best first, equal scores by lower position, and never a position that is not there.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

TIE = 1e-6
"""Scores this close may be swapped by the rounding of one matrix product or another."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found: its position in the corpus and its score, higher is better."""

    position: int
    score: float


class FlatIndex:
    """Inner product over unit vectors (documents, dimension) float32: FAISS, or numpy without it.

    FAISS only proposes candidates; their scores are computed again in one fixed order.  So a query
    gets the same hits alone and in a batch, with FAISS and without; equal documents tie exactly.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._faiss = _faiss_index(self.vectors)

    def search(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        """The `k` best documents for each row of `queries` (queries, dimension), or all if fewer.

        Raises ValueError for k < 1, another dimension, or a query that is not finite.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        _check_k(k)
        self._check_queries(queries)
        keep = min(k, len(self.vectors))
        if keep == 0 or len(queries) == 0:
            return [[] for _ in queries]
        # one more than asked for shows whether the last place is contested
        positions = self._candidates(queries, min(keep + 1, len(self.vectors)))
        scores = np.einsum("nkd,nd->nk", self.vectors[positions], queries)
        scores[positions < 0] = -np.inf  # complaints E1: FAISS pads with -1
        order = np.lexsort((positions, -scores), axis=-1)
        rows = np.arange(len(queries))[:, None]
        positions, scores = positions[rows, order], scores[rows, order]
        contested = scores[:, keep - 1] - scores[:, -1] <= TIE if keep < scores.shape[1] else []
        for row in np.flatnonzero(contested):
            found = self._settle(queries[row], keep, scores[row, keep - 1])
            positions[row, :keep], scores[row, :keep] = found
        return [_hits(*row) for row in zip(positions[:, :keep], scores[:, :keep], strict=True)]

    def _candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Positions (queries, count) of the best rows, in any order; -1 where FAISS found none."""
        if self._faiss is not None:
            # FAISS shares out whole queries; a second thread has nothing to do for one and spins
            with _threads(1) if len(queries) == 1 else nullcontext():
                return self._faiss.search(queries, count)[1]
        scores = queries @ self.vectors.T
        return np.argpartition(-scores, count - 1, axis=-1)[:, :count]

    def _settle(self, query: np.ndarray, keep: int, last: float) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores of the `keep` best, from all documents that may tie with `last`."""
        positions = np.flatnonzero(self.vectors @ query >= last - TIE)
        scores = np.einsum("kd,d->k", self.vectors[positions], query)
        order = np.lexsort((positions, -scores))[:keep]
        return positions[order], scores[order]

    def _check_queries(self, queries: np.ndarray) -> None:
        if queries.ndim != 2 or queries.shape[1] != self.vectors.shape[1]:
            found, expected = queries.shape, self.vectors.shape[1]
            raise ValueError(f"queries have shape {found}, the index has dimension {expected}")
        if not np.isfinite(queries).all():
            row = int(np.flatnonzero(~np.isfinite(queries).all(axis=1))[0])
            raise ValueError(f"query {row} has a vector that is not finite")


class PostingsIndex:
    """For each word, the documents that hold it and with what weight; a score is a sum of weights.

    Word w owns `positions[starts[w]:starts[w + 1]]`, no position twice, and `weights` likewise.
    """

    def __init__(
        self, positions: np.ndarray, weights: np.ndarray, starts: np.ndarray, count: int
    ) -> None:
        bounds = starts.tolist()
        self._rows = [(positions[start:end], weights[start:end]) for start, end in pairwise(bounds)]
        self._count = count

    def search(self, queries: Sequence[Sequence[int]], k: int) -> list[list[Hit]]:
        """The `k` best documents for each query (ascending word ids); only those that share a word.

        Raises ValueError for k < 1.
        """
        _check_k(k)
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, word_ids: Sequence[int], k: int) -> list[Hit]:
        scores = np.zeros(self._count)
        for word_id in word_ids:
            positions, weights = self._rows[word_id]
            scores[positions] += weights
        best = np.argsort(-scores, kind="stable")[:k]
        return [hit for hit in _hits(best, scores[best]) if hit.score > 0]


def _check_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def _hits(positions: np.ndarray, scores: np.ndarray) -> list[Hit]:
    pairs = zip(positions.tolist(), scores.tolist(), strict=True)
    return [Hit(position, score) for position, score in pairs if position >= 0]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    faiss = importlib.import_module("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss_index(vectors: np.ndarray) -> Any | None:
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:  # complaints E3: faiss is optional, numpy gives the same hits
        return None
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index
