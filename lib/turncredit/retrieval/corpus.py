"""Identity of a corpus, and vectors on disk that cannot be paired with the wrong one.

A folder holds `vectors.npy` (documents, dimension) float32 and `manifest.json`.  Position is the
only link between vectors and documents, so the manifest pins all that position relies on.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from turncredit.storage import atomic_path, sha256_file, write_json

if TYPE_CHECKING:
    from turncredit.worlds.base import Document

FORMAT = 1
"""Raise it when `passage`, the metric's meaning or the file layout changes."""


class Encoder(Protocol):
    """Texts to unit vectors."""

    id: str
    """Names model and settings; usable in a file name."""
    dimension: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of queries, (texts, dimension) float32, every row of length 1."""

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of passages likewise; models such as E5 tell the two apart by a prefix."""


def passage(document: "Document") -> str:
    """The text that stands for a document in a dense index: title, then body."""
    return f"{document.title}\n{document.text}"


def corpus_sha256(documents: Sequence["Document"]) -> str:
    """Hex SHA-256 over id, title and text of all documents, in order; one in memory at a time."""
    digest = hashlib.sha256(b"[")
    for row, document in enumerate(documents):
        fields = json.dumps([document.id, document.title, document.text], ensure_ascii=False)
        digest.update(f"{', ' if row else ''}{fields}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def save_vectors(
    folder: Path, vectors: np.ndarray, documents: Sequence["Document"], encoder: Encoder
) -> None:
    """Write `vectors.npy`, then `manifest.json`: killed in between, it leaves a refused pair."""
    target = folder / "vectors.npy"
    with atomic_path(target) as temporary:
        np.save(temporary, vectors)
    identity = _identity(documents, encoder) | {"vectors_sha256": sha256_file(target)}
    write_json(folder / "manifest.json", identity)


def load_vectors(folder: Path, documents: Sequence["Document"], encoder: Encoder) -> np.ndarray:
    """Vectors of `documents` by `encoder`, (documents, dimension) float32.

    Raises ValueError naming the file and both sides when the manifest speaks of another corpus,
    encoder, dimension, metric or format, or when a file is damaged; FileNotFoundError when absent.
    """
    path = folder / "manifest.json"
    try:
        manifest = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for key, expected in _identity(documents, encoder).items():
        if manifest.get(key) != expected:
            found = manifest.get(key)
            raise ValueError(f"{path}: the index has {key} {found!r}, this call {expected!r}")
    target = folder / "vectors.npy"
    found, expected = sha256_file(target), manifest.get("vectors_sha256")
    if found != expected:
        raise ValueError(f"{target} is damaged: SHA-256 {found}, {path.name} says {expected}")
    return np.load(target)


def _identity(documents: Sequence["Document"], encoder: Encoder) -> dict[str, str | int]:
    return {
        "format": FORMAT,
        "encoder": encoder.id,
        "dimension": encoder.dimension,
        "metric": "inner_product",
        "count": len(documents),
        "corpus_sha256": corpus_sha256(documents),
    }
