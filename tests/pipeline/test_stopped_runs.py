"""Runs that were stopped: by damage, by another owner, by SIGTERM, by a tripwire of their own."""

import json
import math
import signal
import socket
import time
from dataclasses import replace

import pytest
import yaml
from pipeline.tiny_runs import (
    CODE,
    PLAIN,
    contents,
    directory,
    interrupt_after,
    job,
    parameters,
    silent,
    start_python,
    task_values,
    write_task,
)

from turncredit import runs
from turncredit.checkpoints import previous_checkpoint, read_tensors
from turncredit.experiment import experiment_from, run, run_experiment
from turncredit.results import RunDirectory
from turncredit.run_checks import check_runs
from turncredit.tasks import open_task

OFF = {
    "window": 2,
    "entropy_low": None,
    "entropy_high": None,
    "repetition": None,
    "truncated": None,
    "zero_variance": None,
    "reward_collapse": None,
    "patience": 2,
}


def manifest_of(home) -> dict:
    return json.loads(directory(home).manifest.read_text())


def unbroken(home) -> dict[str, bytes]:
    """The files of a run that nobody stopped; its folder is empty afterwards."""
    run(job(), CODE, silent)
    whole = contents(directory(home).path)
    for path in directory(home).path.iterdir():
        path.unlink()
    return whole


def unbroken_manifest(home) -> dict:
    """The manifest of a run that nobody stopped; its folder is empty afterwards."""
    run(job(), CODE, silent)
    manifest = manifest_of(home)
    for path in directory(home).path.iterdir():
        path.unlink()
    return manifest


def stopped_with_two_checkpoints(home) -> RunDirectory:
    """A run interrupted after five steps, with checkpoints of two and of four."""
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(5))
    assert previous_checkpoint(directory(home).checkpoint).exists()
    return directory(home)


# --- damaged checkpoints


def empty(contents: bytes) -> bytes:
    return b""


def cut(contents: bytes) -> bytes:
    return contents[:-5]


def flipped(contents: bytes) -> bytes:
    return contents[:-40] + bytes([contents[-40] ^ 1]) + contents[-39:]


@pytest.mark.parametrize("damage", [empty, cut, flipped])
def test_a_damaged_checkpoint_is_passed_over_aloud_and_changes_no_byte(home, damage):
    whole = unbroken(home)
    stopped = stopped_with_two_checkpoints(home)
    stopped.checkpoint.write_bytes(damage(stopped.checkpoint.read_bytes()))
    with pytest.warns(UserWarning, match=r"previous checkpoint, at step 2: .*checkpoint\.safeten"):
        run(job(), CODE, silent)
    assert contents(stopped.path) == whole
    manifest = manifest_of(home)
    assert (manifest["resumed_at"], manifest["damaged_checkpoints"]) == (2, [2])
    assert not previous_checkpoint(stopped.checkpoint).exists(), "a finished run needs but one"


def test_the_damage_is_still_recorded_after_another_interruption(home):
    whole = unbroken(home)
    stopped = stopped_with_two_checkpoints(home)
    stopped.checkpoint.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="at step 2"):
        run(job(), CODE, interrupt_after(3))
    run(job(), CODE, silent)
    assert contents(stopped.path) == whole
    assert manifest_of(home)["damaged_checkpoints"] == [2]


def test_an_unharmed_run_has_no_damage_to_record(home):
    run(job(), CODE, silent)
    assert manifest_of(home)["damaged_checkpoints"] == []


def test_two_damaged_checkpoints_are_one_clear_sentence(home):
    stopped = stopped_with_two_checkpoints(home)
    for path in (stopped.checkpoint, previous_checkpoint(stopped.checkpoint)):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: not a usable .*delete it") as e:
        run(job(), CODE, silent)
    assert "checkpoint.previous.safetensors: not a usable" in str(e.value)
    assert "\n" not in str(e.value)
    for path in (stopped.checkpoint, previous_checkpoint(stopped.checkpoint)):
        path.unlink()
    run(job(), CODE, silent)
    assert manifest_of(home)["resumed_at"] == 0


def test_what_a_killed_writer_left_half_made_is_swept_away(home):
    stopped = stopped_with_two_checkpoints(home)
    halves = [".checkpoint.safetensors.ab12.safetensors", ".manifest.json.x_y.json"]
    for name in halves:
        (stopped.path / name).write_bytes(b"half")
    (stopped.path / ".metrics.csv.swp").write_bytes(b"an editor's")
    run(job(), CODE, silent)
    left = {path.name for path in stopped.path.iterdir()}
    assert not left & set(halves)
    assert ".metrics.csv.swp" in left


def test_a_checkpoint_of_another_seed_is_refused_and_stays(home):
    """It has the same shapes, so that nothing but its identity tells it from the run's own."""
    other = job(seeds=[0, 1])
    other = replace(other, seed=1)
    with pytest.raises(KeyboardInterrupt):
        run(other, CODE, interrupt_after(5))
    stopped = stopped_with_two_checkpoints(home)
    foreign = directory(home, "tiny/grpo/seed_1").checkpoint.read_bytes()
    stopped.checkpoint.write_bytes(foreign)
    with pytest.raises(ValueError, match=r"seed_0/checkpoint\.safetensors: .* of another run") as e:
        run(job(), CODE, silent)
    assert "\n" not in str(e.value)
    assert stopped.checkpoint.read_bytes() == foreign


def test_a_lost_or_doubled_row_of_an_evaluation_is_refused_before_the_run_goes_on(home):
    stopped = stopped_with_two_checkpoints(home)
    table = stopped.path / "eval.csv"
    header, *rows = table.read_text().splitlines(keepends=True)
    assert {row.split(",")[0] for row in rows} == {"0", "3"}
    before = stopped.checkpoint.read_bytes()
    for number in range(len(rows)):
        for kept in (rows[:number] + rows[number + 1 :], rows[: number + 1] + rows[number:]):
            table.write_text("".join([header, *kept]))
            with pytest.raises(ValueError, match=r"eval\.csv: damaged \(row \d+ is .*delete"):
                run(job(), CODE, silent)
    assert stopped.checkpoint.read_bytes() == before, "nothing was trained"


def test_an_interrupted_run_counts_the_failures_of_an_unbroken_one(home):
    """Those of steps that are done again, behind the last checkpoint, count once."""
    values = task_values()
    values["disturbances"]["tool_failure"] = 0.5
    (home / "params" / "smoke" / "tasks" / "tiny.yaml").write_text(yaml.safe_dump(values))

    def failing_until(last: int):
        def report(label: str, done: int, total: int, shown: dict) -> None:
            job().open_task().environment.counts[f"after {done}"] += done
            if done == last:
                raise KeyboardInterrupt

        return report

    run(job(), CODE, failing_until(-1))
    whole = manifest_of(home)
    assert [whole["failures"][f"injected_after {done}"] for done in range(1, 6)] == [1, 2, 3, 4, 5]
    for path in directory(home).path.iterdir():
        path.unlink()
    for last in (1, 3, 4, 5):
        with pytest.raises(KeyboardInterrupt):
            run(job(), CODE, failing_until(last))
    run(job(), CODE, failing_until(-1))
    manifest = manifest_of(home)
    assert manifest["resumed_at"] == 4
    assert manifest["failures"] == whole["failures"]
    assert manifest["files"] == whole["files"]


def test_seconds_add_up_over_interruptions(home, monkeypatch):
    """By a clock that goes on by one at every look: each saving and the end look once."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(runs.Ledger, "clock", staticmethod(lambda: next(ticks)))
    whole = unbroken_manifest(home)
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(5))
    for _ in range(1000):  # what other processes do meanwhile
        next(ticks)
    run(job(), CODE, silent)
    assert manifest_of(home)["seconds"] == whole["seconds"] > 0


# --- what a training goes on from, beside policy and optimiser


def interrupted_equals_unbroken(home, **changes) -> bool:
    """Whether the run ends in the same bytes after an interruption behind its second checkpoint."""
    asked = job(**changes)
    run(asked, CODE, silent)
    whole = contents(directory(home).path)
    for path in directory(home).path.iterdir():
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        run(asked, CODE, interrupt_after(5))
    run(asked, CODE, silent)
    return contents(directory(home).path) == whole and manifest_of(home)["resumed_at"] == 4


def test_a_running_mean_goes_on_after_an_interruption(home):
    """The gate with rule `running` compares with all earlier steps; forgotten, bytes differ."""
    running = {"weight": "suffix_mask", "weight_options": {"rule": "running"}}
    assert interrupted_equals_unbroken(home, arms={"grpo": PLAIN | running})
    tensors = read_tensors(directory(home).checkpoint)
    assert tensors["extra.reference"].numel() > 0


def test_the_reference_policy_of_a_kl_term_is_the_warm_start_before_and_after(home):
    write_task(home, kl={"place": "loss", "coefficient": 0.5, "estimator": "k3"})
    assert interrupted_equals_unbroken(home)


# --- one owner


OWNER = """
import json, sys, time
from turncredit.experiment import Job, experiment_from, run
job = Job(experiment_from(json.loads(sys.argv[1])), "tiny", "grpo", 0)
run(job, sys.argv[2], lambda *shown: time.sleep(float(sys.argv[3])))
"""


def started(home, pause: float):
    """A process that makes the run, `pause` seconds after each step; two steps are done."""
    owner = start_python(home, OWNER, [json.dumps(parameters()), CODE, str(pause)])
    metrics, end = directory(home).path / "metrics.csv", time.time() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert owner.poll() is None, owner.stderr.read()
        assert time.time() < end, "the owner does not get on"
        time.sleep(0.02)
    return owner


def test_a_second_process_is_told_whose_run_it_is_and_a_dead_owner_blocks_nobody(home):
    whole = unbroken(home)
    owner = started(home, 0.5)
    owner.send_signal(signal.SIGSTOP)  # so that it can neither finish nor look dead
    before, rows = time.time(), (directory(home).path / "metrics.csv").read_bytes()
    named = rf"seed_0 is in use by process {owner.pid} on {socket.gethostname()} since 20\d\d-"
    with pytest.raises(RuntimeError, match=named):
        run(job(), CODE, silent)
    assert time.time() - before < 10
    assert (directory(home).path / "metrics.csv").read_bytes() == rows, "refused, but it wrote"
    owner.kill()
    owner.wait()
    run(job(), CODE, silent)
    assert contents(directory(home).path) == whole


def test_sigterm_ends_a_run_at_once_without_a_target_and_it_goes_on_to_equal_bytes(home):
    whole = unbroken(home)
    owner = started(home, 0.3)
    owner.send_signal(signal.SIGTERM)
    assert owner.wait(10) == -signal.SIGTERM
    assert not directory(home).manifest.exists()
    run(job(), CODE, silent)
    assert contents(directory(home).path) == whole


# --- tripwires


def stopping(home, **wires) -> None:
    write_task(home, tripwires=OFF | wires)


def steps_in(home, table: str) -> list[int]:
    lines = (directory(home).path / table).read_text().splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines]


def test_a_run_that_breaks_down_ends_early_with_its_reason_and_a_final_evaluation(home, inline):
    stopping(home, entropy_high=0.01)
    asked = experiment_from(parameters())
    with pytest.warns(UserWarning, match=r"tiny/grpo/seed_0 stopped after step 1 .* entropy"):
        assert run_experiment(asked) == ["tiny/grpo/seed_0"]
    manifest = manifest_of(home)
    assert (manifest["stop_reason"], manifest["stop_step"]) == ("entropy", 1)
    assert "above 0.01" in manifest["stop_detail"]
    assert (manifest["steps"], manifest["steps_done"], manifest["evaluated_at"]) == (5, 2, 2)
    assert manifest["params"]["tripwires"]["entropy_high"] == 0.01
    assert steps_in(home, "metrics.csv") == [0, 1]
    assert sorted(set(steps_in(home, "eval.csv"))) == [0, 2]
    assert run_experiment(asked) == [], "a stopped run is over"
    check_runs(asked)


def test_a_wire_that_does_not_fire_changes_no_byte(home):
    whole = unbroken(home)
    limits = {"entropy_low": 0.0, "entropy_high": 50.0, "truncated": 1.0, "zero_variance": 1.0}
    stopping(home, **limits, reward_collapse=0.0)
    run(job(), CODE, silent)
    found = contents(directory(home).path)
    checkpoints = [files.pop("checkpoint.safetensors") for files in (whole, found)]
    assert found == whole
    assert checkpoints[0] != checkpoints[1], "each knows its run, and the wires are part of it"
    manifest = manifest_of(home)
    assert (manifest["stop_reason"], manifest["steps_done"]) == ("finished", 5)
    assert "stop_step" not in manifest


@pytest.mark.filterwarnings("ignore:run tiny")
@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_a_run_killed_before_its_tripwire_stops_at_the_same_step_once_resumed(home, done):
    """The rewards of this task are negative, so entropy it is: its mean of four is the first."""
    write_task(home, tripwires=OFF | {"window": 4, "entropy_high": 0.01})
    whole = unbroken(home)
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(done))
    run(job(), CODE, silent)
    assert contents(directory(home).path) == whole
    assert manifest_of(home)["stop_step"] == 3


@pytest.mark.filterwarnings("ignore:run tiny")
def test_a_run_killed_between_its_last_checkpoint_and_its_manifest_does_not_go_on(
    home, monkeypatch
):
    stopping(home, entropy_high=0.01)
    whole = unbroken(home)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunDirectory, "finish", killed)
        run(job(), CODE, silent)
    run(job(), CODE, silent)
    assert contents(directory(home).path) == whole
    assert (manifest_of(home)["resumed_at"], manifest_of(home)["stop_step"]) == (2, 1)


def test_repetition_is_recorded_only_where_it_is_watched(home):
    run(job(), CODE, silent)
    assert "repeated_turns" not in directory(home).read("metrics.csv")[0]
    stopping(home, repetition=1.0)
    run(job(), CODE, silent)
    shares = [row["repeated_turns"] for row in directory(home).read("metrics.csv")]
    assert len(shares) == 5 and all(0 <= share < 1 for share in shares)


def broken_at(step: int, monkeypatch) -> None:
    """From here on, that step's update reports a loss that is no number."""
    train = runs.train

    def breaking(*arguments, **options):
        for log in train(*arguments, **options):
            if log.step == step:
                log = replace(log, metrics=log.metrics | {"loss": math.nan})
            yield log

    monkeypatch.setattr(runs, "train", breaking)


def test_a_non_finite_run_keeps_its_last_good_checkpoint_and_misses_its_evaluation(
    home, inline, monkeypatch
):
    broken_at(4, monkeypatch)
    asked = experiment_from(parameters())
    with pytest.warns(UserWarning, match="non_finite .*its final evaluation is missing"):
        run_experiment(asked)
    manifest = manifest_of(home)
    assert (manifest["stop_reason"], manifest["stop_step"]) == ("non_finite", 4)
    assert (manifest["steps_done"], manifest["evaluated_at"]) == (5, None)
    assert sorted(set(steps_in(home, "eval.csv"))) == [0, 3], "not after the lost update"
    policy = open_task("smoke", "tiny").new_policy(0)
    optimiser = runs.new_optimiser(policy, open_task("smoke", "tiny").settings.training)
    assert runs.load_newest(directory(home).checkpoint, policy, optimiser) == (4, [])
    check_runs(asked)


def test_a_policy_that_blows_up_at_once_is_over_without_a_checkpoint(home, inline):
    """A real overflow, not a reported one: this learning rate leaves no number finite."""
    write_task(home, learning_rate=1.0e38, warmup_steps=0)
    asked = experiment_from(parameters())
    with pytest.warns(UserWarning, match="non_finite"):
        run_experiment(asked)
    manifest = manifest_of(home)
    assert manifest["stop_reason"] == "non_finite"
    assert manifest["steps_done"] == manifest["stop_step"] + 1 <= 2
    assert "checkpoint.safetensors" not in manifest["files"]
    assert run_experiment(asked) == []
    check_runs(asked)


def test_a_bad_section_of_tripwires_is_refused_by_file_and_key(home):
    for wires, named in (
        (OFF | {"window": 0}, "window = 0"),
        (OFF | {"colour": 1}, "unknown key 'colour'"),
        ({"window": 2}, "key 'entropy_low' is missing"),
        (OFF | {"truncated": "often"}, "truncated"),
    ):
        write_task(home, tripwires=wires)
        with pytest.raises(ValueError, match=rf"tiny\.yaml: tripwires.*{named}"):
            open_task("smoke", "tiny")


def test_a_task_without_the_section_watches_for_non_finite_updates_alone(home):
    assert "tripwires" not in task_values()
    assert open_task("smoke", "tiny").tripwires is None
    run(job(), CODE, silent)
    assert "tripwires" not in manifest_of(home)["params"]


@pytest.mark.slow
def test_live_logs_repeat_the_metrics_of_every_step_and_are_closed(home, inline, monkeypatch):
    told: list = []

    class Told:
        def __init__(self, folder, config):
            told.append((folder.name, sorted(config)))

        def write(self, step, values):
            told.append((step, values["reward"]))

        def close(self):
            told.append("closed")

    monkeypatch.setattr("turncredit.loggers.WRITERS", {"told": Told})
    monkeypatch.setattr("turncredit.loggers._require", lambda package: None)
    monkeypatch.setenv("TURNCREDIT_LOG", "told")
    write_task(home)
    run(job(), CODE, silent)
    assert told[0] == ("seed_0", ["code_hash", "params_hash"])
    assert [step for step, _ in told[1:-1]] == [1, 2, 3, 4, 5]
    assert told[-1] == "closed"
    monkeypatch.setenv("TURNCREDIT_LOG", "paper")
    write_task(home, steps=6)
    with pytest.raises(ValueError, match="unknown log writer 'paper'"):
        run(job(), CODE, silent)


def test_what_a_worker_warns_of_is_a_warning_of_the_caller(home):
    stopping(home, entropy_high=0.01)
    with pytest.warns(UserWarning, match="tiny/grpo/seed_0 stopped after step 1"):
        run_experiment(experiment_from(parameters()), workers=1)


# --- refused before or at the start, by name


@pytest.mark.parametrize(
    ("part", "options", "said"),
    [
        ("weight", {"weight": "suffix_mask", "weight_options": {"c": True}}, "c is True"),
        ("weight", {"weight": "suffix_mask", "weight_options": {"c": "2.0"}}, "c is '2.0'"),
        ("weight", {"weight": "suffix_mask", "weight_options": {"rule": "wrong"}}, "wrong"),
        ("base", {"base_options": {"std": "smaple"}}, "smaple"),
        ("base", {"base": "gae"}, "values"),
        ("objective", {"objective_options": {"clip_low": True}}, "clip_low is True"),
        ("objective", {"objective_options": {"aggregation": "mean"}}, "mean"),
    ],
)
def test_a_method_that_cannot_run_is_refused_with_its_arm_before_any_work(
    home, part, options, said
):
    write_task(home)
    with pytest.raises(ValueError, match=r"parameters of 10_try: arms\.grpo: ") as caught:
        experiment_from(parameters(arms={"grpo": PLAIN | options}))
    assert said in str(caught.value)
    assert not (home / "results").exists()


@pytest.mark.parametrize("name", ["../tiny", "./tiny", ""])
def test_a_task_or_notebook_cannot_leave_its_folder(home, name):
    write_task(home)
    for changes in ({"tasks": [name]}, {"notebook": name}):
        with pytest.raises(ValueError, match="use letters, digits"):
            experiment_from(parameters(**changes))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TURNCREDIT_LOG", "tensorbord", "unknown log writer 'tensorbord'"),
        ("TURNCREDIT_JOBS", "abc", "TURNCREDIT_JOBS = 'abc'"),
        ("TURNCREDIT_JOBS", "0", "TURNCREDIT_JOBS = '0'"),
    ],
)
def test_variables_are_checked_before_anything_starts(home, monkeypatch, variable, value, said):
    write_task(home)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=said):
        run_experiment(experiment_from(parameters()))
    assert not (home / "results").exists()


@pytest.mark.parametrize("table", ["metrics.csv", "turns.csv", "timings.csv"])
@pytest.mark.parametrize(
    "harm",
    [
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [],
        lambda lines: [lines[0], "abc,1\n", *lines[1:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]][::-1],
    ],
    ids=["a row lost", "emptied", "junk", "out of order"],
)
def test_a_damaged_table_is_refused_when_the_run_goes_on(home, table, harm):
    write_task(home)
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(3))
    path = job().experiment.folder / job().label / table
    path.write_text("".join(harm(path.read_text().splitlines(keepends=True))))
    with pytest.raises(ValueError, match=rf"{table}: damaged .*delete .*seed_0 to start"):
        run(job(), CODE, silent)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_garbled_note_of_what_was_begun_is_named(home, text):
    write_task(home)
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(3))
    (job().experiment.folder / job().label / "begun.json").write_text(text)
    with pytest.raises(ValueError, match=r"begun\.json: no JSON mapping .*delete it"):
        run(job(), CODE, silent)


def test_a_policy_lost_in_the_last_update_of_a_step_ends_the_run_and_is_not_saved(home, inline):
    write_task(home, learning_rate=1.0e38, warmup_steps=0, updates_per_batch=1, checkpoint_every=1)
    with pytest.warns(UserWarning, match="non_finite"):
        run_experiment(experiment_from(parameters()))
    manifest = manifest_of(home)
    assert (manifest["stop_reason"], manifest["stop_step"]) == ("non_finite", 0)
    assert "checkpoint.safetensors" not in manifest["files"]
