"""Files that are either whole or absent: atomic writes, hashes, locks."""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` only if the block succeeds.

    A killed or failing writer leaves the old `target`, or none, never half of one.
    Raises OSError naming `target` when its folder cannot be created or written.
    """
    name = target.name.lstrip(".")  # two dots would hide it from who sweeps up half-made files
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary_name = tempfile.mkstemp(
            prefix=f".{name}.", suffix=target.suffix, dir=target.parent
        )
    except OSError as error:
        raise OSError(error.errno, f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(temporary_name)
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


def read_mapping(path: Path, advice: str) -> dict[str, Any] | None:
    """The JSON mapping of a file, None if there is no file; ValueError naming one that is broken.

    advice: what to do about it.
    """
    if not path.exists():
        return None
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(mapping, dict):
            raise ValueError(f"a {type(mapping).__name__}")
        return mapping
    except ValueError as error:
        raise ValueError(f"{path}: no JSON mapping ({error}); {advice}") from error


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


def file_stamp(path: Path) -> tuple[str, int, int]:
    """Path, size in bytes and time of change in nanoseconds: equal while nobody edits the file."""
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def content_sha256(path: Path) -> str:
    """`sha256_file`, which this process computes once while `file_stamp` stays the same."""
    return _stamped_sha256(*file_stamp(path))


@lru_cache(maxsize=1024)
def _stamped_sha256(path: str, size: int, changed: int) -> str:
    return sha256_file(Path(path))


@contextlib.contextmanager
def exclusive(lock: Path, *, patience: float | None = None) -> Iterator[None]:
    """Hold `lock` for the block; released by the system when its process ends, also by kill -9.

    While another process holds it: wait, at most `patience` seconds (None: for ever), then raise
    RuntimeError with that process's id, host and the time since when, which the file tells.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+b", buffering=0) as handle:
        _acquire(handle, lock, patience)
        _write_owner(handle, _this_process())
        try:
            yield
        finally:
            _write_owner(handle, "")


def _acquire(handle: BinaryIO, lock: Path, patience: float | None) -> None:
    if patience is None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise RuntimeError(f"{lock.parent} is in use by {_owner(handle)}") from None
        time.sleep(0.05)


def _this_process() -> str:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})


def _write_owner(handle: BinaryIO, text: str) -> None:
    """Put `text` into an open lock file: who holds it, or nothing.  A full disk unlocks nothing."""
    with contextlib.suppress(OSError):
        handle.seek(0)
        handle.truncate()
        handle.write(text.encode())


def _owner(handle: BinaryIO) -> str:
    """What an open lock file says about its owner, in words."""
    handle.seek(0)
    try:
        return "process {pid} on {host} since {since}".format(**json.loads(handle.read()))
    except (ValueError, LookupError, TypeError):  # not yet written, or the disk was full
        return "another process"
