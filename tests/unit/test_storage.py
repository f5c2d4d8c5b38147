"""Streams that depend on their arguments alone, and files that are whole or absent."""

import multiprocessing
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from play import global_streams

from turncredit.seeding import derive, python_stream, torch_stream
from turncredit.storage import (
    atomic_path,
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
