"""Streams that depend on their arguments alone, and files that are whole or absent."""

import ast
import multiprocessing
import os
import signal
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from play import global_streams

from turncredit import paths, storage
from turncredit.seeding import derive, python_stream, torch_stream
from turncredit.storage import (
    atomic_path,
    content_sha256,
    exclusive,
    sha256_file,
    sha256_json,
    sha256_text,
    write_json,
    write_text,
)

PART = st.one_of(st.integers(-5, 50), st.text("ab/1", min_size=1, max_size=3))
KEY = st.tuples(st.integers(0, 20), st.text("ab/1", min_size=1, max_size=3), PART)


@given(st.lists(KEY, min_size=2, max_size=2, unique_by=repr))
def test_different_arguments_give_different_seeds(keys):
    left, right = (derive(*key) for key in keys)
    assert left != right
    assert 0 <= left < 2**63


def test_where_one_argument_ends_and_the_next_begins_counts():
    assert derive(0, "a/1", 2) != derive(0, "a", "1/2")
    assert derive(0, "a", 1, 2) != derive(0, "a", "1/2")


def test_a_stream_is_its_own_and_repeats():
    before = global_streams()
    first = [python_stream(1, "x", 2).random(), torch_stream(1, "x", 2).initial_seed()]
    assert first == [python_stream(1, "x", 2).random(), torch_stream(1, "x", 2).initial_seed()]
    assert first != [python_stream(1, "x", 3).random(), torch_stream(1, "x", 3).initial_seed()]
    assert global_streams() == before


def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(KeyError), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise KeyError("stop")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_without_a_number_is_one_sentence_that_names_the_file(tmp_path):
    with (
        pytest.raises(OSError, match=r"^cannot write .*/table: 9 requested and 4 written$"),
        atomic_path(tmp_path / "table"),
    ):
        raise OSError("9 requested and 4 written")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match=r"cannot write .*target"):
        write_text(tmp_path / "file" / "target", "x")


def test_json_is_independent_of_key_order(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
    write_json(tmp_path / "b.json", {"a": "é", "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sha256_json({"b": 1, "a": 2}) == sha256_json({"a": 2, "b": 1}) != sha256_json({"a": 2})
    write_text(tmp_path / "c.txt", "é")
    assert sha256_file(tmp_path / "c.txt") == sha256_text("é")


def test_a_large_file_is_hashed_once_until_it_is_edited(tmp_path, monkeypatch):
    path, read = tmp_path / "corpus.jsonl", []
    monkeypatch.setattr(storage, "sha256_file", lambda p: read.append(p) or sha256_file(p))
    path.write_text("one")
    assert [content_sha256(path) for _ in range(3)] == [sha256_text("one")] * 3
    assert read == [path]
    status = path.stat()
    path.write_text("two")  # as long, and a nanosecond later
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert content_sha256(path) == sha256_text("two")
    assert read == [path, path]


def _hold(lock, ready):
    with exclusive(lock):
        ready.set()
        time.sleep(60)


def test_a_lock_keeps_others_out_and_kill_9_releases_it(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, lock = context.Event(), tmp_path / "x.lock"
    holder = context.Process(target=_hold, args=(lock, ready))
    holder.start()
    assert ready.wait(10)
    waiter = context.Process(target=_take, args=(lock,))
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive(), "two processes hold one lock"
    os.kill(holder.pid, signal.SIGKILL)
    waiter.join(10)
    assert waiter.exitcode == 0
    holder.join()


def _take(lock):
    with exclusive(lock):
        pass


def test_a_lock_in_other_hands_is_refused_in_time_and_names_its_owner(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, lock = context.Event(), tmp_path / "run" / ".lock"
    holder = context.Process(target=_hold, args=(lock, ready))
    holder.start()
    assert ready.wait(10)
    begun = time.monotonic()
    named = rf"/run is in use by process {holder.pid} on {socket.gethostname()} since 20\d\d-"
    with pytest.raises(RuntimeError, match=named), exclusive(lock, patience=0.3):
        raise AssertionError("two processes hold one lock")
    assert 0.3 <= time.monotonic() - begun < 5
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert str(holder.pid) in lock.read_text(), "a killed owner cannot clear its name"
    with exclusive(lock, patience=0.0):
        assert f'"pid": {os.getpid()}' in lock.read_text()
    assert lock.read_text() == ""


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "17"])
def test_a_lock_file_that_says_nothing_usable_is_refused_all_the_same(tmp_path, text):
    lock = tmp_path / ".lock"
    with exclusive(lock):
        lock.write_text(text)
        with (
            pytest.raises(RuntimeError, match="in use by another process"),
            exclusive(lock, patience=0.0),
        ):
            raise AssertionError("the lock was held twice")


def test_a_lock_is_released_when_its_block_fails(tmp_path):
    with pytest.raises(KeyError), exclusive(tmp_path / ".lock"):
        raise KeyError("stop")
    with exclusive(tmp_path / ".lock", patience=0.0):
        pass


# --- no pickle: reading a file must never run what it holds


PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE = {("torch", "load"), ("torch", "save"), ("pd", "read_pickle"), ("pandas", "read_pickle")}


def unsafe(source: str) -> list[str]:
    """Everything in Python code that reads or writes pickles."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in PICKLING]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", alias.name) for alias in node.names]
            found += [f"{m}.{n}" for m, n in names if m.split(".")[0] in PICKLING]
            found += [f"{m}.{n}" for m, n in names if (m, n) in UNSAFE]
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", "")
            found += [f"{owner}.{node.attr}"] if (owner, node.attr) in UNSAFE else []
            found += [node.attr] if node.attr == "to_pickle" else []
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            allowed = not (isinstance(node.value, ast.Constant) and node.value.value is False)
            found += ["allow_pickle"] if allowed else []
    return found


@pytest.mark.parametrize("path", sorted(paths.PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_file_of_the_library_is_a_pickle(path):
    assert unsafe(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, dill",
        "from pickle import loads",
        "from torch import load",
        "import torch\ntorch.load('x')",
        "def f(x):\n    torch.save(x, 'x')",
        "frame.to_pickle('x')",
        "pd.read_pickle('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
    ],
)
def test_the_search_for_pickles_sees_every_form(source):
    assert len(unsafe(source)) == 1
    assert unsafe("import json, torch\ntorch.tensor(1)\nnp.load('x', allow_pickle=False)") == []
