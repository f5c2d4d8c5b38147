"""An index in a folder: `index.faiss` and `manifest.json`, which pins all that position relies on.

The manifest holds the hash of the corpus file's bytes, the count, the encoder, the dimension, the
metric, the factory string, and the size and hash of the index file.
"""

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from turncredit.retrieval.ann import (
    bytes_per_vector,
    check_parameters,
    faiss_reason,
    new_index,
    on_device,
)
from turncredit.retrieval.corpus import Encoder
from turncredit.retrieval.memory import require_memory
from turncredit.retrieval.passages import PassageFile
from turncredit.storage import atomic_path, sha256_file, write_json

FORMAT = 1
"""Raise it when the meaning of a manifest's entry or the file layout changes."""

INDEX, MANIFEST = "index.faiss", "manifest.json"


class StoredIndex(NamedTuple):
    """What `load_index` gives: the parts of a retriever, and the manifest."""

    passages: PassageFile
    index: Any
    manifest: dict[str, Any]


def describe(passages: PassageFile, encoder: Encoder, factory: str) -> dict[str, Any]:
    """What an index must agree on with the corpus and the encoder it is used with."""
    return {
        "format": FORMAT,
        "corpus_sha256": passages.sha256,
        "count": len(passages),
        "encoder": encoder.id,
        "dimension": encoder.dimension,
        "metric": "inner_product",
        "factory": factory,
    }


def write_index(folder: Path, index: Any, identity: dict[str, Any], corpus: Path) -> dict[str, Any]:
    """Write the index, then the manifest, which is returned: killed between, none is found.

    Half an index that an earlier kill left, perhaps of many gigabytes, is removed first.
    """
    faiss = importlib.import_module("faiss")
    target = folder / INDEX
    (folder / MANIFEST).unlink(missing_ok=True)
    for half in folder.glob(f".{INDEX}.*"):
        half.unlink()
    with atomic_path(target) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:  # a full disk
            raise OSError(faiss_reason(error)) from error
    manifest = identity | {
        "corpus": str(corpus.resolve()),
        "faiss_version": faiss.__version__,
        "index_bytes": target.stat().st_size,
        "index_sha256": sha256_file(target),
        "bytes_per_vector": bytes_per_vector(index),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index folder.

    Raises FileNotFoundError naming the file when absent, ValueError when it is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = dict(json.loads(path.read_text(encoding="utf-8")))
        for name, kind in (("index_bytes", int), ("corpus", str), ("factory", str)):
            if type(manifest[name]) is not kind:
                raise ValueError(f"{name} is {manifest[name]!r}")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is missing: no index was built here to its end") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    return manifest


def load_index(
    folder: Path,
    encoder: Encoder,
    *,
    corpus: Path | None = None,
    device: str = "cpu",
    parameters: str = "",
    available: int | None = None,
) -> StoredIndex:
    """The index of a folder with its corpus, checked against each other and against memory.

    corpus: the corpus file, by default where it lay at building.  device: `cpu`, or `cuda` for all
    GPUs.  parameters: FAISS's search parameters, "nprobe=32" of an IVF index or "efSearch=64" of
    HNSW.  available: bytes of memory, asked of the system by default.

    Raises MemoryError naming both numbers; ValueError naming the file and both sides when corpus,
    encoder or index file are not those of the manifest, and when the index has no such parameter;
    FileNotFoundError.
    """
    manifest = read_manifest(folder)
    require_memory(manifest["index_bytes"], f"{folder / INDEX}", available)
    corpus = corpus or Path(manifest["corpus"])
    if not corpus.exists():
        raise FileNotFoundError(f"{corpus}: the corpus of {folder} is not there; say where it is")
    passages = PassageFile(corpus)
    expected = describe(passages, encoder, manifest["factory"])
    for key, value in expected.items():
        if manifest.get(key) != value:
            there = f"{folder / MANIFEST}: the index has {key} {manifest.get(key)!r}"
            raise ValueError(f"{there}, {passages.path} with {encoder.id} has {value!r}")
    if parameters:  # a typing mistake must not cost the reading of a large file
        empty = new_index(encoder.dimension, manifest["factory"])
        check_parameters(empty, parameters, manifest["factory"])
    index = _read(folder / INDEX, manifest)
    if parameters:
        _set(index, parameters)
    return StoredIndex(passages, on_device(index, device), manifest)


def _read(path: Path, manifest: dict[str, Any]) -> Any:
    found, expected = path.stat().st_size, manifest["index_bytes"]
    if found == expected:  # hashing a file of another size would be a waste
        found, expected = sha256_file(path), manifest.get("index_sha256")
    if found != expected:
        raise ValueError(f"{path} is damaged: size or SHA-256 {found}, {MANIFEST} says {expected}")
    try:
        index = importlib.import_module("faiss").read_index(str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is no index of this FAISS: {faiss_reason(error)}") from error
    count = manifest["count"]
    if index.ntotal != count:
        raise ValueError(f"{path} holds {index.ntotal} vectors, {MANIFEST} says {count}")
    return index


def _set(index: Any, parameters: str) -> None:
    space = importlib.import_module("faiss").ParameterSpace()
    try:
        space.set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise ValueError(f"search parameters {parameters!r}: {faiss_reason(error)}") from error
