"""Search over documents: lexical in microseconds, dense with MiniLM and FAISS.

One index unit is one document.  Cut long texts into documents of a few paragraphs before indexing
them densely: `MiniLM` reads 256 word pieces and no more.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turncredit import paths
from turncredit.retrieval.corpus import (
    Encoder,
    corpus_sha256,
    load_vectors,
    passage,
    save_vectors,
)
from turncredit.retrieval.encoders import MiniLM, fit_lexical
from turncredit.retrieval.index import FlatIndex, Hit
from turncredit.storage import exclusive

if TYPE_CHECKING:
    from turncredit.worlds.base import Document

__all__ = [
    "Encoder",
    "Hit",
    "MiniLM",
    "Retriever",
    "corpus_sha256",
    "dense_retriever",
    "lexical_retriever",
    "load_retriever",
    "save_retriever",
]

_LOGGER = logging.getLogger(__name__)


class Retriever:
    """Documents, the encoder of queries, and the index that the encoded queries search."""

    def __init__(self, documents: Sequence["Document"], encoder: Any, index: Any) -> None:
        self.documents = tuple(documents)
        self.encoder = encoder
        self.index = index

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, ties by position; [] when nothing matches.

        Raises ValueError when k < 1.
        """
        return self.index.search(self.encoder.encode(queries), k)


def lexical_retriever(documents: Sequence["Document"], *, title_weight: float = 4.0) -> Retriever:
    """Retriever by shared words: exact TF-IDF, see `fit_lexical`.

    A document that shares no word with the query is no hit.  It is fitted again from its documents
    wherever it is needed, so there is nothing to save.
    """
    return Retriever(documents, *fit_lexical(documents, title_weight))


def dense_retriever(
    documents: Sequence["Document"], *, encoder: Encoder | None = None, cache: Path | None = None
) -> Retriever:
    """Retriever by meaning: unit vectors of `encoder` (default `MiniLM()`), inner product.

    Vectors are kept in a folder of `cache` (default `<turncredit cache>/vectors`) named after
    corpus and encoder, and reused; a damaged one is rebuilt with a warning in the log.
    """
    encoder = encoder or MiniLM()
    name = f"{corpus_sha256(documents)[:16]}-{encoder.id}"
    folder = (cache or paths.cache() / "vectors") / name
    with exclusive(folder.parent / f"{name}.lock"):  # notebooks run side by side under make -j
        vectors = _cached(folder, documents, encoder)
        if vectors is None:
            vectors = encoder.encode([passage(document) for document in documents])
            save_vectors(folder, vectors, documents, encoder)
    return Retriever(documents, encoder, FlatIndex(vectors))


def save_retriever(retriever: Retriever, folder: Path) -> None:
    """Write a dense retriever's vectors and manifest to `folder`."""
    save_vectors(folder, retriever.index.vectors, retriever.documents, retriever.encoder)


def load_retriever(folder: Path, documents: Sequence["Document"], encoder: Encoder) -> Retriever:
    """A dense retriever from `folder`.

    Raises ValueError naming the file and both sides when it was saved for another corpus or
    encoder, or is damaged; FileNotFoundError when absent.
    """
    return Retriever(documents, encoder, FlatIndex(load_vectors(folder, documents, encoder)))


def _cached(folder: Path, documents: Sequence["Document"], encoder: Encoder) -> np.ndarray | None:
    try:
        return load_vectors(folder, documents, encoder)
    except FileNotFoundError:
        return None
    except ValueError as error:
        _LOGGER.warning("vectors are built again: %s", error)
        return None
