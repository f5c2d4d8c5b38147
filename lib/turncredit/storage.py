"""Files that are either whole or absent: atomic writes, hashes, locks."""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` only if the block succeeds.

    A killed or failing writer leaves the old `target`, or none, never half of one.
    Raises OSError naming `target` when its folder cannot be created or written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent
        )
    except OSError as error:
        raise OSError(error.errno, f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        if error.errno is None:  # numpy and others raise it with a sentence of their own
            raise OSError(f"cannot write {target}: {error}") from error
        raise OSError(error.errno, f"cannot write {target}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target` atomically, as UTF-8."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, value: Any) -> None:
    """Write `value` as sorted, indented JSON, atomically."""
    write_text(target, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_text(text: str) -> str:
    """Hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a JSON-able value, independent of key order."""
    return sha256_text(json.dumps(value, sort_keys=True, ensure_ascii=False))


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of the bytes of a file, which may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold `lock` for the block; wait while another process holds it.  Released also by kill -9."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
