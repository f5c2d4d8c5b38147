"""Run directories: tables that survive a kill, manifests that notice changes, a hash of code."""

import gzip
import json
import math
import os
import signal
import sys

import pandas as pd
import pytest
import torch
from torch import nn

from turncredit import results
from turncredit.checkpoints import previous_checkpoint, save_checkpoint
from turncredit.results import (
    RunDirectory,
    check_comparable,
    comparable,
    read_manifests,
    read_table,
    stored,
    write_table,
)
from turncredit.storage import write_json

IDENTITY = {"params_hash": "p", "code_hash": "c"}


def filled(path, steps: int = 4) -> RunDirectory:
    """A run of `steps` steps, two turns each, evaluated before and after each pair of steps."""
    run = RunDirectory(path)
    run.start()
    run.append("eval.csv", [{"step": 0, "exact_match": 0.0}])
    for step in range(steps):
        turns = [{"step": step, "turn": turn, "tokens": 9 - turn} for turn in (0, 1)]
        run.append("turns.csv", turns)
        run.append("timings.csv", [{"step": step, "rollout": 0.5}])
        run.append("metrics.csv", [{"step": step, "tokens": 17, "gate": math.nan}])
        if step % 2:
            run.append("eval.csv", [{"step": step + 1, "exact_match": 0.5}])
    (path / "trajectories.jsonl.gz").write_bytes(b"t")
    write_table(path / "questions.csv", [{"question_id": "a, b", "success": True, "reward": None}])
    write_table(path / "difficulty.csv", [{"factor": "hops", "bin": "1 hop", "success": 1.0}])
    run.checkpoint.write_bytes(b"c")
    return run


def texts(run: RunDirectory) -> dict[str, str]:
    return {table: (run.path / table).read_text() for table in results.TABLES}


# --- tables


def test_a_missing_number_is_an_empty_cell_and_zero_is_zero(tmp_path):
    run = RunDirectory(tmp_path)
    row = {"a": math.nan, "b": 0.0, "c": 0, "d": True, "e": "x", "f": None, "g": 1.0}
    run.append("metrics.csv", [row])
    assert (tmp_path / "metrics.csv").read_text() == "a,b,c,d,e,f,g\n,0,0,1,x,,1\n"
    frame = pd.read_csv(tmp_path / "metrics.csv")
    assert frame.a.isna().all()
    assert (frame.b == 0).all()


def test_numbers_have_seven_significant_digits(tmp_path):
    write_table(tmp_path / "t.csv", [{"a": 1 / 3, "b": 123456789.0, "c": 1e-9, "d": 7}])
    assert (tmp_path / "t.csv").read_text() == "a,b,c,d\n0.3333333,1.234568e+08,1e-09,7\n"


def test_a_row_with_other_columns_is_refused_with_the_file(tmp_path):
    run = filled(tmp_path)
    before = texts(run)
    with pytest.raises(ValueError, match=r"metrics\.csv: columns"):
        run.append("metrics.csv", [{"step": 9, "loss": 1.0}])
    assert texts(run) == before


@pytest.mark.parametrize("step", range(5))
def test_rewinding_leaves_what_a_run_of_that_many_steps_wrote(tmp_path, step):
    long = filled(tmp_path / "long")
    long.rewind(step)
    short = filled(tmp_path / "short", step)
    for table in results.TABLES:
        kept = (long.path / table).read_text()
        target = short.path / table
        assert kept == (target.read_text() if target.exists() else kept.split("\n")[0] + "\n"), (
            table
        )


@pytest.mark.parametrize("half", ["4", "4,", "4,0.33", "4,0.5,", "1", "0,1", ""])
def test_rewinding_drops_a_half_written_line(tmp_path, half):
    run = filled(tmp_path)
    before = texts(run)
    for table in results.TABLES:
        with (run.path / table).open("a") as file:
            file.write(half)
    run.rewind(4)
    assert texts(run) == before


def test_rewinding_twice_changes_nothing_more(tmp_path):
    run = filled(tmp_path)
    run.rewind(3)
    once = texts(run)
    run.rewind(3)
    assert texts(run) == once


def altered(run: RunDirectory, table: str, change) -> None:
    lines = (run.path / table).read_text().splitlines(keepends=True)
    (run.path / table).write_text("".join(change(lines)))


ROWS = {"metrics.csv": 4, "timings.csv": 4, "turns.csv": 8, "eval.csv": 3}
LOST_OR_DOUBLED = [
    (table, row, change)
    for table, count in ROWS.items()
    for row in range(1, count + 1)
    for change in ("lost", "doubled", "moved")
    if (change, row) != ("moved", count)  # the last one is last already
]


@pytest.mark.parametrize(("table", "row", "change"), LOST_OR_DOUBLED)
def test_a_lost_doubled_or_moved_row_is_refused_by_table_before_the_run_goes_on(
    tmp_path, table, row, change
):
    run = filled(tmp_path)
    evaluations = [(str(step),) for step in (0, 2, 4)]
    run.rewind(4)
    run.require_rows("eval.csv", evaluations)
    changes = {
        "lost": lambda lines: [line for n, line in enumerate(lines) if n != row],
        "doubled": lambda lines: lines[: row + 1] + lines[row:],
        "moved": lambda lines: [*lines[:row], *lines[row + 1 :], lines[row]],
    }
    altered(run, table, changes[change])
    with pytest.raises(ValueError, match=rf"{table}: damaged .*delete .* anew") as refused:
        run.rewind(4)
        run.require_rows("eval.csv", evaluations)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("table", results.TABLES)
def test_a_table_that_is_gone_is_refused_by_name(tmp_path, table):
    run = filled(tmp_path)
    (run.path / table).unlink()
    with pytest.raises(ValueError, match=rf"{table}: damaged \(missing\); delete"):
        run.rewind(4)


def test_a_row_that_is_not_the_expected_one_is_quoted(tmp_path):
    run = RunDirectory(tmp_path)
    run.append("eval.csv", [{"step": 0, "hops": hops, "exact_match": 0.5} for hops in ("all", "2")])
    run.require_rows("eval.csv", [("0", "all"), ("0", "2")])
    with pytest.raises(ValueError, match=r"row 2 is '0,2', not '0,1'"):
        run.require_rows("eval.csv", [("0", "all"), ("0", "1"), ("0", "2")])
    with pytest.raises(ValueError, match=r"row 3 is 'missing', not '3,all'"):
        run.require_rows("eval.csv", [("0", "all"), ("0", "2"), ("3", "all")])
    with pytest.raises(ValueError, match=r"row 2 is '0,2', not 'missing'"):
        run.require_rows("eval.csv", [("0", "all")])


def test_the_packages_that_decide_numbers_are_recorded_present_or_not():
    found = results.versions()
    assert {"transformers", "peft", "safetensors", "faiss-cpu", "vllm"} <= found.keys()
    for package in ("numpy", "torch", "safetensors"):
        assert found[package]


def test_a_table_is_read_back_as_it_was_stored(tmp_path):
    run, rows = RunDirectory(tmp_path), [{"a": 1 / 3, "b": None}, {"a": math.inf, "b": 2}]
    assert run.read("metrics.csv") == []
    run.append("metrics.csv", rows)
    for read, row in zip(run.read("metrics.csv"), rows, strict=True):
        assert read == pytest.approx(stored(row), nan_ok=True)
        assert stored(read) == pytest.approx(read, rel=0, abs=0, nan_ok=True), "7 digits stay 7"
    assert run.read("metrics.csv")[0]["a"] == 0.3333333


def test_sweeping_removes_what_was_half_made_and_nothing_else(tmp_path):
    run = filled(tmp_path)
    before = {path.name for path in tmp_path.iterdir()} | {".lock", ".metrics.csv.swp"}
    for name in (".lock", ".metrics.csv.swp"):
        (tmp_path / name).write_text("mine")
    for name in (
        ".checkpoint.safetensors.a_1b.safetensors",
        ".checkpoint.previous.safetensors.c3.safetensors",
        ".turns.csv.gz.x.gz",
        ".metrics.csv.y.csv",
        ".begun.json.z.json",
    ):
        (tmp_path / name).write_text("half")
    run.sweep()
    assert {path.name for path in tmp_path.iterdir()} == before


def kill_before_change(count: int) -> None:
    """SIGKILL this process before its count-th opening, renaming, linking or removal of a file."""
    left = [count]

    def hook(event: str, arguments: tuple) -> None:
        if event in ("open", "os.rename", "os.link", "os.remove"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.mark.parametrize("writer", ["checkpoint", "table", "manifest"])
def test_sweeping_removes_what_any_writer_leaves_wherever_it_is_killed(tmp_path, writer):
    run, policy = filled(tmp_path), nn.Linear(2, 2)
    optimiser = torch.optim.SGD(policy.parameters())
    write = {
        "checkpoint": lambda: save_checkpoint(run.checkpoint, policy, optimiser, 1),
        "table": lambda: write_table(tmp_path / "questions.csv", [{"a": 1}]),
        "manifest": lambda: write_json(run.manifest, {}),
    }[writer]
    write()
    write()
    whole, killed = {path.name for path in tmp_path.iterdir()}, 0
    while True:
        child = os.fork()
        if child == 0:
            kill_before_change(killed + 1)
            write()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        killed += 1
        run.sweep()
        assert {path.name for path in tmp_path.iterdir()} == whole
    assert killed >= 3


def test_a_run_may_have_ended_early_if_its_manifest_says_so(tmp_path):
    run = filled(tmp_path)
    with pytest.raises(ValueError, match="4 rows, 9 steps"):
        run.finish(IDENTITY | {"steps": 9})
    with pytest.raises(ValueError, match="4 rows, 3 steps"):
        run.finish(IDENTITY | {"steps": 9, "steps_done": 3})
    run.finish(IDENTITY | {"steps": 9, "steps_done": 4})
    assert run.is_finished(IDENTITY)


def test_a_run_over_before_its_first_checkpoint_has_none_in_its_manifest(tmp_path):
    run = filled(tmp_path)
    run.checkpoint.unlink()
    run.finish(IDENTITY)
    assert "checkpoint.safetensors" not in run.read_manifest()["files"]
    assert run.is_finished(IDENTITY)


def test_finishing_drops_the_previous_checkpoint_and_either_one_allows_to_resume(tmp_path):
    run = filled(tmp_path)
    previous = previous_checkpoint(run.checkpoint)
    previous.write_bytes(run.checkpoint.read_bytes())
    run.checkpoint.unlink()
    assert run.can_resume()
    previous.replace(run.checkpoint)
    assert run.can_resume()
    previous.write_bytes(b"p")
    run.finish(IDENTITY)
    assert not previous.exists()
    run.manifest.unlink()
    assert not run.can_resume()


def test_starting_anew_removes_everything_a_run_writes(tmp_path):
    run = filled(tmp_path)
    previous_checkpoint(run.checkpoint).write_bytes(b"p")
    run.finish(IDENTITY)
    previous_checkpoint(run.checkpoint).write_bytes(b"p")
    run.start()
    assert [path.name for path in tmp_path.iterdir()] == []


# --- manifests


def test_a_finished_run_knows_its_hashes_and_its_files(tmp_path):
    run = filled(tmp_path)
    assert not run.is_finished(IDENTITY)
    run.finish(IDENTITY | {"seed": 1})
    assert run.is_finished(IDENTITY)
    assert not run.is_finished(IDENTITY | {"params_hash": "other"})
    assert not run.is_finished(IDENTITY | {"code_hash": "other"})
    assert "turns.csv" not in [path.name for path in tmp_path.iterdir()]
    assert gzip.decompress((tmp_path / "turns.csv.gz").read_bytes()).startswith(b"step,turn,")
    assert set(run.read_manifest()["versions"]) >= {"python", "torch", "numpy"}


NAMES = [
    "metrics.csv",
    "eval.csv",
    "turns.csv.gz",
    "trajectories.jsonl.gz",
    "questions.csv",
    "difficulty.csv",
    "checkpoint.safetensors",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["edit", "remove"])
def test_a_changed_or_missing_file_makes_a_run_unfinished(tmp_path, name, change):
    run = filled(tmp_path)
    run.finish(IDENTITY)
    target = tmp_path / name
    target.write_bytes(target.read_bytes() + b"x") if change == "edit" else target.unlink()
    assert not run.is_finished(IDENTITY)


@pytest.mark.parametrize("last_words", ["versions", "write_json", "sha256_file"])
def test_finishing_again_after_a_kill_before_the_manifest_gives_the_same_files(
    tmp_path, monkeypatch, last_words
):
    whole = filled(tmp_path / "whole")
    whole.finish(IDENTITY)
    run = filled(tmp_path / "killed")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(results, last_words, _killed)
        run.finish(IDENTITY)
    run.rewind(4)
    run.finish(IDENTITY)
    for name in NAMES:
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert run.is_finished(IDENTITY)


def _killed(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["", "{", "not json"])
def test_a_broken_manifest_is_named(tmp_path, text):
    run = filled(tmp_path)
    run.manifest.write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json: .*delete it"):
        run.is_finished(IDENTITY)


@pytest.mark.parametrize("value", [[], 3, None, {}, IDENTITY, IDENTITY | {"files": 3}])
def test_a_manifest_of_another_shape_is_unfinished_or_named(tmp_path, value):
    run = filled(tmp_path)
    run.manifest.write_text(json.dumps(value))
    try:
        assert not run.is_finished(IDENTITY)
    except ValueError as error:
        assert "manifest.json" in str(error)


# --- reading back


def test_tables_come_in_order_of_task_arm_and_seed_as_a_number(tmp_path):
    for label in ("b/x/seed_0", "a/y/seed_10", "a/y/seed_9", "a/x/seed_2"):
        filled(tmp_path / label, 1)
    frame = read_table(tmp_path, "metrics.csv")
    keys = list(zip(frame.task, frame.arm, frame.seed, strict=True))
    assert keys == [("a", "x", 2), ("a", "y", 9), ("a", "y", 10), ("b", "x", 0)]
    assert list(frame.columns[:4]) == ["task", "arm", "seed", "step"]
    assert frame.gate.isna().all()
    with pytest.raises(ValueError, match=r"no run has other\.csv"):
        read_table(tmp_path, "other.csv")


def test_manifests_become_rows_of_their_plain_values(tmp_path):
    filled(tmp_path / "a/x/seed_3", 1).finish(IDENTITY | {"seed": 3, "params": {"deep": 1}})
    (row,) = read_manifests(tmp_path).to_dict("records")
    assert (row["task"], row["arm"], row["run_seed"], row["params_hash"]) == ("a", "x", 3, "p")
    assert "params" not in row


# --- what may be compared


def manifest_of(root, arm, *, code="c", task="same"):
    path = root / "tiny" / arm / "seed_0" / "manifest.json"
    path.parent.mkdir(parents=True)
    params = {"task": task, "method": arm}
    path.write_text(json.dumps({"code_hash": code, "params": params}))


def test_runs_that_differ_in_method_alone_may_be_compared(tmp_path):
    manifest_of(tmp_path / "a", "x")
    manifest_of(tmp_path / "b", "y")
    check_comparable([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("changes", "what"), [({"code": "d"}, "code"), ({"task": "other"}, "task parameters")]
)
def test_runs_of_other_code_or_another_task_are_refused_by_name(tmp_path, changes, what):
    manifest_of(tmp_path / "a", "x")
    manifest_of(tmp_path / "b", "y", **changes)
    with pytest.raises(ValueError, match=f"y/seed_0/manifest.json and .* different {what}"):
        check_comparable([tmp_path / "a", tmp_path / "b"])


def test_runs_of_other_tasks_may_come_from_other_code(tmp_path):
    manifest_of(tmp_path / "a", "x")
    manifest_of(tmp_path / "b", "y", code="d")
    (tmp_path / "b" / "tiny").rename(tmp_path / "b" / "another")
    check_comparable([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("older", [{"code": "d"}, {"task": "other"}])
def test_what_older_code_or_tasks_made_is_left_out_beside_newer_runs(tmp_path, older):
    new, old, same, elsewhere = (tmp_path / name for name in ("new", "old", "same", "elsewhere"))
    manifest_of(new, "x")
    manifest_of(old, "y", **older)
    manifest_of(same, "z")
    manifest_of(elsewhere, "x", **older)
    (elsewhere / "tiny").rename(elsewhere / "another")
    assert comparable([new, old, same, elsewhere]) == [new, same, elsewhere]
    assert comparable([old, new]) == [old]
    assert comparable([tmp_path / "nothing", new]) == [tmp_path / "nothing", new]


@pytest.mark.parametrize("contents", [{}, {"params": {}}, {"code_hash": "x"}])
def test_a_manifest_without_what_is_compared_is_refused_by_name(tmp_path, contents):
    path = tmp_path / "task" / "arm" / "seed_0" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(contents), encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest\.json: not the manifest of a run"):
        check_comparable([tmp_path])


def test_a_whole_table_replaces_the_one_before(tmp_path):
    path = tmp_path / "questions.csv"
    for reward in (None, 0.0):
        write_table(path, [{"question_id": "a, b", "success": True, "reward": reward}])
    assert path.read_text() == 'question_id,success,reward\n"a, b",1,0\n'


@pytest.mark.parametrize("text", ["", 'a,b\n1,"2\n3,4,5\n'])
def test_a_table_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "trap" / "grpo" / "seed_0" / "eval.csv"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ValueError, match=r"seed_0.eval\.csv: .* to rerun it"):
        results.read_table(tmp_path, "eval.csv")


def test_a_table_is_parsed_once_and_anew_when_a_file_changes(tmp_path, monkeypatch):
    paths = [tmp_path / "task" / "arm" / f"seed_{seed}" / "eval.csv" for seed in (0, 1)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("step\n7\n")
    parsed, read_csv = [], pd.read_csv
    monkeypatch.setattr(results.pd, "read_csv", lambda path: parsed.append(path) or read_csv(path))
    first = read_table(tmp_path, "eval.csv")
    first["step"] = 0  # a reader's own copy
    assert list(read_table(tmp_path, "eval.csv")["step"]) == [7, 7] and len(parsed) == 2
    paths[1].write_text("step\n89\n")
    assert list(read_table(tmp_path, "eval.csv")["step"]) == [7, 89]
    paths[0].unlink()
    assert list(read_table(tmp_path, "eval.csv")["seed"]) == [1]
