"""Two exact indexes with one search: `FlatIndex` over unit vectors, `PostingsIndex` over words.

Both give hits best first, equal scores by lower position, and never a position that is not there.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
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
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._module = _faiss_or_none()
        self._faiss = None if self._module is None else self._module.IndexFlatIP(vectors.shape[1])
        if self._faiss is not None:
            self._faiss.add(vectors)
        self.vectors = vectors if self._faiss is None else _rows_of(self._faiss)

    @classmethod
    def over(cls, index: Any) -> "FlatIndex":
        """The same search over a FAISS `IndexFlat` of inner products; its vectors are not copied.

        Raises ValueError for an index of another metric.
        """
        faiss = importlib.import_module("faiss")
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"a flat index of inner products is needed, got {index!r}")
        flat = cls.__new__(cls)
        flat._module, flat._faiss, flat.vectors = faiss, index, _rows_of(index)
        return flat

    def search(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        """The `k` best documents for each row of `queries` (queries, dimension), or all if fewer.

        Raises ValueError for k < 1, another dimension, or a query that is not finite.
        """
        check_k(k)
        queries = rows_of_dimension(queries, self.vectors.shape[1])
        keep = min(k, len(self.vectors))
        if keep == 0 or len(queries) == 0:
            check_finite(queries)
            return [[] for _ in queries]
        # one more than asked for shows whether the last place is contested
        positions = self._candidates(queries, min(keep + 1, len(self.vectors)))
        scores = np.einsum("nkd,nd->nk", self.vectors[positions], queries)
        if not np.isfinite(scores).all():  # as it is when a query is not: a smaller check first
            check_finite(queries)
        rows = zip(queries, scores.tolist(), positions.tolist(), strict=True)
        return [self._best(query, keep, zip(*row, strict=True)) for query, *row in rows]

    def _best(self, query: np.ndarray, keep: int, found: Iterable[tuple[float, int]]) -> list[Hit]:
        """The `keep` best of the candidates, (score, position) each.

        Plain Python: after FAISS has swept the caches, five small numpy calls cost a tenth of it.
        """
        # FAISS pads with -1
        ranked = sorted((-score, position) for score, position in found if position >= 0)
        if len(ranked) > keep and ranked[keep][0] - ranked[keep - 1][0] <= TIE:
            ranked = self._settle(query, keep, -ranked[keep - 1][0])
        return [Hit(position, -score) for score, position in ranked[:keep]]

    def _candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Positions (queries, count) of the best rows, in any order; -1 where FAISS found none."""
        if self._faiss is not None:
            # FAISS shares out whole queries; a second thread has nothing to do for one and spins
            many = len(queries) > 1 or self._module.omp_get_max_threads() == 1
            with nullcontext() if many else _one_thread(self._module):
                return self._faiss.search(queries, count)[1]
        scores = queries @ self.vectors.T
        return np.argpartition(-scores, count - 1, axis=-1)[:, :count]

    def _settle(self, query: np.ndarray, keep: int, last: float) -> list[tuple[float, int]]:
        """(-score, position) of the `keep` best, of all documents that may tie with `last`."""
        positions = np.flatnonzero(self.vectors @ query >= last - TIE)
        scores = np.einsum("kd,d->k", self.vectors[positions], query)
        return sorted(zip((-scores).tolist(), positions.tolist(), strict=True))[:keep]


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
        check_k(k)
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, word_ids: Sequence[int], k: int) -> list[Hit]:
        scores = np.zeros(self._count)
        for word_id in word_ids:
            positions, weights = self._rows[word_id]
            scores[positions] += weights
        best = np.argsort(-scores, kind="stable")[:k]
        return [hit for hit in _hits(best, scores[best]) if hit.score > 0]


def check_k(k: int) -> None:
    """Raises ValueError for k < 1."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def rows_of_dimension(queries: np.ndarray, dimension: int) -> np.ndarray:
    """(queries, dimension) float32, in one block; ValueError naming both sides otherwise."""
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise ValueError(f"queries have shape {queries.shape}, the index has dimension {dimension}")
    return queries


def check_finite(queries: np.ndarray) -> None:
    """Raises ValueError naming the first row that is not finite."""
    finite = np.isfinite(queries).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(f"query {row} has a vector that is not finite")


def _hits(positions: np.ndarray, scores: np.ndarray) -> list[Hit]:
    pairs = zip(positions.tolist(), scores.tolist(), strict=True)
    return [Hit(position, score) for position, score in pairs if position >= 0]


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss_or_none() -> Any | None:
    try:
        return importlib.import_module("faiss")
    except ImportError:  # faiss is optional, numpy gives the same hits
        return None


class _Owned:
    """Memory of a FAISS index as numpy sees it; whoever holds the array holds the index."""

    def __init__(self, index: Any, interface: dict[str, Any]) -> None:
        self.index, self.__array_interface__ = index, interface


def _rows_of(index: Any) -> np.ndarray:
    """The vectors (documents, dimension) float32 of a flat index, where FAISS keeps them."""
    if index.ntotal == 0:
        return np.zeros((0, index.d), dtype=np.float32)
    faiss = importlib.import_module("faiss")
    seen = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
    return np.asarray(_Owned(index, seen.__array_interface__)).reshape(index.ntotal, index.d)
