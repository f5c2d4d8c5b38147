"""Search over documents: by shared words, by BM25, by meaning with FAISS, or by a server.

One index unit is one document.  Cut long texts into documents of a few paragraphs before indexing
them densely: the encoders read 256 word pieces and no more.

Large corpora live in files: `python -m turncredit.retrieval build` indexes one, and
`... serve` answers Search-R1's `/retrieve` over it, which `RetrievalClient` asks.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from turncredit import paths
from turncredit.answers import words
from turncredit.retrieval.client import RemoteRetriever, RetrievalClient
from turncredit.retrieval.corpus import (
    Encoder,
    corpus_sha256,
    load_vectors,
    passage,
    save_vectors,
)
from turncredit.retrieval.encoders import MiniLM, TransformerEncoder, encoder_from_name
from turncredit.retrieval.fusion import Bm25Index, FusedRetriever, Words
from turncredit.retrieval.index import FlatIndex, Hit
from turncredit.retrieval.lexical import fit_lexical
from turncredit.retrieval.passages import Passage, PassageFile
from turncredit.storage import exclusive

if TYPE_CHECKING:
    from turncredit.worlds.base import Document

__all__ = [
    "Encoder",
    "FusedRetriever",
    "Hit",
    "MiniLM",
    "Passage",
    "PassageFile",
    "RemoteRetriever",
    "RetrievalClient",
    "Retriever",
    "TransformerEncoder",
    "bm25_retriever",
    "corpus_sha256",
    "dense_retriever",
    "encoder_from_name",
    "lexical_retriever",
    "load_retriever",
    "save_retriever",
]

_LOGGER = logging.getLogger(__name__)


class Retriever:
    """Documents, the encoder of queries, and the index that the encoded queries search."""

    def __init__(self, documents: Sequence["Document"], encoder: Any, index: Any) -> None:
        self.documents = documents
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
    return Retriever(tuple(documents), *fit_lexical(documents, title_weight))


def bm25_retriever(documents: Sequence["Document"]) -> Retriever:
    """Retriever by BM25 over title and text, each word as often as it stands there.

    Raises ModuleNotFoundError without the package `bm25s`.
    """
    index = Bm25Index([words(passage(document)) for document in documents])
    return Retriever(tuple(documents), Words(), index)


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
            vectors = encoder.encode_passages([passage(document) for document in documents])
            save_vectors(folder, vectors, documents, encoder)
    return Retriever(tuple(documents), encoder, FlatIndex(vectors))


def save_retriever(retriever: Retriever, folder: Path) -> None:
    """Write a dense retriever's vectors and manifest to `folder`."""
    save_vectors(folder, retriever.index.vectors, retriever.documents, retriever.encoder)


def load_retriever(folder: Path, documents: Sequence["Document"], encoder: Encoder) -> Retriever:
    """A dense retriever from `folder`.

    Raises ValueError naming the file and both sides when it was saved for another corpus or
    encoder, or is damaged; FileNotFoundError when absent.
    """
    vectors = load_vectors(folder, documents, encoder)
    return Retriever(tuple(documents), encoder, FlatIndex(vectors))


def _cached(folder: Path, documents: Sequence["Document"], encoder: Encoder) -> np.ndarray | None:
    try:
        return load_vectors(folder, documents, encoder)
    except FileNotFoundError:
        return None
    except ValueError as error:
        _LOGGER.warning("vectors are built again: %s", error)
        return None
