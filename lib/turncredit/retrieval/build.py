"""From a corpus file to an index folder, in shards: killed at any moment, it goes on at the next.

While it is being built a folder holds `plan.json`, which says what the shards are shards of, and
`shards/00000.npy`, ..., each of them whole or absent.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from turncredit.retrieval.ann import bytes_per_vector, faiss_reason, new_index, training_rows
from turncredit.retrieval.corpus import Encoder
from turncredit.retrieval.memory import require_memory
from turncredit.retrieval.passages import BadRow, PassageFile, check_passages, contents_of
from turncredit.retrieval.stored import INDEX, MANIFEST, describe, read_manifest, write_index
from turncredit.storage import atomic_path, exclusive, write_json

PLAN, SHARDS = "plan.json", "shards"


def build_index(
    corpus: Path,
    encoder: Encoder,
    factory: str,
    folder: Path,
    *,
    shard_size: int = 8192,
    keep_vectors: bool = False,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Build the index of a corpus file in `folder`, or finish it; the manifest is returned.

    factory: FAISS's index factory string.  shard_size: passages encoded between two writes, which
    is what a kill can lose.  keep_vectors: leave the shards there, so that another factory string
    needs no encoding.  A finished index with the same identity is left as it is.

    Raises BadRow naming file and line of a malformed row, both lines of an id that comes twice, or
    a file of no rows; ValueError naming a factory string that FAISS does not know, and both sides
    when the folder was begun for something else; MemoryError naming both numbers when the index
    will not fit.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size must be at least 1, got {shard_size}")
    index = new_index(encoder.dimension, factory)  # a typing mistake must not cost a night
    passages = PassageFile(corpus)
    identity = describe(passages, encoder, factory)
    if not len(passages):
        raise BadRow(f"{corpus} has no rows")
    needed = len(passages) * bytes_per_vector(index)
    require_memory(needed, f"building {factory!r} over {len(passages)} passages")
    with exclusive(folder / "build.lock"):
        if _finished(folder, identity):
            return read_manifest(folder)
        with _progress(len(passages), "check", show_progress) as bar:
            check_passages(passages, bar.update)  # every row, before the first is encoded
        _begin(folder, identity, shard_size)
        shards = _encode(folder / SHARDS, passages, encoder, shard_size, show_progress)
        _fill(index, shards, len(passages), factory)
        manifest = write_index(folder, index, identity, corpus)
        if not keep_vectors:
            _tidy(folder)
    return manifest


def _finished(folder: Path, identity: dict[str, Any]) -> bool:
    try:
        manifest = read_manifest(folder)
    except (FileNotFoundError, ValueError):
        return False
    same = all(manifest.get(key) == value for key, value in identity.items())
    path = folder / INDEX
    return same and path.is_file() and path.stat().st_size == manifest["index_bytes"]


def _begin(folder: Path, identity: dict[str, Any], shard_size: int) -> None:
    """Write the plan, or check that the folder's plan is this one."""
    plan = {key: value for key, value in identity.items() if key != "factory"}
    plan["shard_size"] = shard_size
    path = folder / PLAN
    if not path.exists():
        if (folder / MANIFEST).exists():
            raise ValueError(f"{folder / MANIFEST}: another index is in this folder; remove it")
        write_json(path, plan)
        return
    try:
        begun = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}; remove {folder} and begin anew") from error
    for key, value in plan.items():
        if begun.get(key) != value:
            there = f"{path}: the folder was begun with {key} {begun.get(key)!r}"
            raise ValueError(f"{there}, this call has {value!r}")


def _encode(
    folder: Path, passages: PassageFile, encoder: Encoder, shard_size: int, show_progress: bool
) -> list[Path]:
    """Write the shards that are missing; all of them, in order."""
    starts = range(0, len(passages), shard_size)
    shards = [folder / f"{number:05d}.npy" for number in range(len(starts))]
    sizes = [min(shard_size, len(passages) - start) for start in starts]
    missing = [
        number
        for number, (path, size) in enumerate(zip(shards, sizes, strict=True))
        if not _whole(path, (size, encoder.dimension))
    ]
    done = len(passages) - sum(sizes[number] for number in missing)
    with _progress(len(passages), "encode", show_progress, done) as bar:
        for number in missing:
            start = starts[number]
            rows = passages[start : start + sizes[number]]
            vectors = encoder.encode_passages([contents_of(passage) for passage in rows])
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad):
                where = f"{passages.path}, line {start + int(bad[0]) + 1}"
                raise BadRow(f"{where}: {encoder.id} gives a vector that is not finite")
            with atomic_path(shards[number]) as temporary:
                np.save(temporary, vectors)
            bar.update(sizes[number])
    return shards


def _whole(path: Path, shape: tuple[int, int]) -> bool:
    try:
        return np.load(path, mmap_mode="r").shape == shape
    except (FileNotFoundError, ValueError, EOFError):
        return False


def _fill(index: Any, shards: list[Path], count: int, factory: str) -> None:
    """Train the index on evenly spread vectors if it learns from them; add all, in order."""
    wanted = min(training_rows(index), count)
    if wanted:
        rows = np.linspace(0, count - 1, wanted).astype(np.int64)
        sample = np.concatenate(list(_rows(shards, rows)))
        try:
            index.train(sample)
        except RuntimeError as error:
            where = f"index {factory!r} over {count} passages"
            raise ValueError(f"{where}: {faiss_reason(error)}") from error
    for path in shards:
        index.add(np.load(path))


def _rows(shards: list[Path], rows: np.ndarray) -> Iterator[np.ndarray]:
    """Vectors of ascending rows, a shard at a time."""
    start = 0
    for path in shards:
        vectors = np.load(path, mmap_mode="r")
        inside = rows[(rows >= start) & (rows < start + len(vectors))] - start
        yield np.array(vectors[inside])
        start += len(vectors)


def _tidy(folder: Path) -> None:
    """Shards first: without a plan nothing would say what those left by a kill are shards of."""
    shutil.rmtree(folder / SHARDS)
    (folder / PLAN).unlink()


def _progress(total: int, title: str, show: bool, done: int = 0) -> tqdm:
    pause = 0.5 if sys.stderr.isatty() else 10
    return tqdm(
        total=total,
        initial=done,
        desc=title,
        unit="passage",
        mininterval=pause,
        file=sys.stderr,
        disable=not show,
    )
