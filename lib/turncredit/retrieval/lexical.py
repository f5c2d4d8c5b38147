"""Search by shared words: queries to word ids (`Lexical`), documents to a `PostingsIndex`."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from turncredit.answers import words
from turncredit.retrieval.index import PostingsIndex

if TYPE_CHECKING:
    from turncredit.worlds.base import Document


class Lexical:
    """Known words of a query as ascending ids; unknown words and repetitions are dropped."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """One list of word ids for each text."""
        known = self._vocabulary
        return [sorted({known[word] for word in words(text) if word in known}) for text in texts]


def fit_lexical(
    documents: Sequence["Document"], title_weight: float
) -> tuple[Lexical, PostingsIndex]:
    """TF-IDF cosine of the query with the title, `title_weight` times, plus that with the text.

    A word weighs log(1 + count) * idf in its field, idf = log(1 + documents / documents with it).
    Each field has length 1, so a long text cannot drown its title.  The length of the query is
    left out: it is one factor for all documents and changes no ranking, but scores of two queries
    cannot be compared.
    """
    count = max(len(documents), 1)
    titles = [words(document.title) for document in documents]
    texts = [words(document.text) for document in documents]
    vocabulary = {word: row for row, word in enumerate(sorted(set(chain(*titles, *texts))))}
    title_keys, text_keys = (_keys(field, vocabulary) for field in (titles, texts))
    either = np.unique(np.concatenate([title_keys, text_keys]))  # sorted by word, then document
    frequency = np.bincount(either // count, minlength=len(vocabulary))
    idf = np.log(1 + count / np.maximum(frequency, 1))
    weights = np.zeros(len(either))
    for keys, factor in ((title_keys, title_weight), (text_keys, 1.0)):
        held, unit = _unit_field(keys, idf, count)
        weights[np.searchsorted(either, held)] += factor * unit
    weights *= idf[either // count]
    starts = np.searchsorted(either, np.arange(len(vocabulary) + 1) * count)
    return Lexical(vocabulary), PostingsIndex(either % count, weights, starts, len(documents))


def _keys(field: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> np.ndarray:
    """Word id * documents + document, one for each word written."""
    keys = [vocabulary[word] * len(field) + row for row, each in enumerate(field) for word in each]
    return np.array(keys, dtype=np.int64)


def _unit_field(keys: np.ndarray, idf: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys, and their weights with length 1 in every document."""
    held, times = np.unique(keys, return_counts=True)
    weights = np.log1p(times) * idf[held // count]
    lengths = np.sqrt(np.bincount(held % count, weights**2, minlength=count))
    return held, weights / lengths[held % count]
