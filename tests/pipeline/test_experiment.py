"""Experiments: never run twice, rerun when stale, and equal to the byte after any kill -9."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pipeline.tiny_runs import (
    CODE,
    FILES,
    PLAIN,
    REPOSITORY,
    contents,
    directory,
    drive,
    environment,
    interrupt_after,
    job,
    parameters,
    task_values,
    write_task,
)

from turncredit import experiment, first_evaluations, params, run_checks, runs
from turncredit.experiment import (
    Job,
    experiment_from,
    identity,
    jobs_of,
    run,
    run_experiment,
)
from turncredit.plans import Experiment
from turncredit.results import RunDirectory
from turncredit.run_checks import check_runs
from turncredit.tasks import TaskSettings, open_task
from turncredit.warm_starts import warm_started_policy

# --- never twice, and again when stale


def test_a_finished_run_is_not_repeated_and_a_changed_one_is(home, inline):
    asked = experiment_from(parameters(seeds=[0, 1]))
    labels = ["tiny/grpo/seed_0", "tiny/grpo/seed_1"]
    assert run_experiment(asked) == labels
    manifest = directory(home).manifest
    stamp = manifest.stat().st_mtime_ns
    assert run_experiment(asked) == []
    assert run_experiment(experiment_from(parameters(seeds=[0, 1, 2]))) == ["tiny/grpo/seed_2"]
    assert manifest.stat().st_mtime_ns == stamp

    other = PLAIN | {"objective_options": {"clip_high": 0.28}}
    assert run_experiment(experiment_from(parameters(arms={"grpo": other}))) == labels[:1]
    assert manifest.stat().st_mtime_ns > stamp
    assert json.loads(manifest.read_text())["params"]["method"] == other


def test_an_edited_task_file_is_read_again_in_the_same_kernel(home, inline):
    """Edit, rerun the cell: a notebook's process lives for days."""
    run_experiment(experiment_from(parameters()))
    write_task(home, steps=3)
    assert run_experiment(experiment_from(parameters())) == ["tiny/grpo/seed_0"]
    assert json.loads(directory(home).manifest.read_text())["steps"] == 3


def test_changed_code_makes_a_run_stale(home, inline, monkeypatch):
    run_experiment(experiment_from(parameters()))
    monkeypatch.setattr(experiment, "code_hash", lambda: "another")
    assert run_experiment(experiment_from(parameters())) == ["tiny/grpo/seed_0"]


@pytest.mark.parametrize("name", FILES)
def test_a_tampered_finished_file_is_made_again(home, inline, name):
    run_experiment(experiment_from(parameters()))
    run_path = directory(home).path
    whole = contents(run_path)
    (run_path / name).write_bytes(whole[name][:-3] + b"123")
    assert run_experiment(experiment_from(parameters())) == ["tiny/grpo/seed_0"]
    assert contents(run_path) == whole


def test_deleting_the_manifest_makes_the_run_again(home, inline):
    """As the message about a broken manifest advises."""
    run_experiment(experiment_from(parameters()))
    whole = contents(directory(home).path)
    directory(home).manifest.unlink()
    assert run_experiment(experiment_from(parameters())) == ["tiny/grpo/seed_0"]
    assert contents(directory(home).path) == whole


def test_a_run_leaves_what_the_design_promises(home, inline):
    run_experiment(experiment_from(parameters()))
    run_path = directory(home).path
    manifest = json.loads((run_path / "manifest.json").read_text())
    assert manifest["files"].keys() == set(FILES)
    assert (manifest["steps"], manifest["stop_reason"], manifest["seed"]) == (5, "finished", 0)
    lines = (run_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "0", "1", "2", "3", "4"]
    evaluated = {line.split(",")[0] for line in (run_path / "eval.csv").read_text().splitlines()}
    assert evaluated == {"step", "0", "3", "5"}
    column = lines[0].split(",").index("gradient_norm")
    moved = [float(line.split(",")[column]) for line in lines[1:]]
    assert any(norm > 0 for norm in moved), "a run that learns nothing would prove little below"


# --- interrupted


@pytest.mark.parametrize("done", [1, 2, 3, 5])
def test_an_interrupted_run_goes_on_and_ends_equal(home, done):
    run(job(), CODE, lambda *shown: None)
    run_path = directory(home).path
    whole = contents(run_path)
    for path in run_path.iterdir():
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(done))
    assert not directory(home).manifest.exists()
    run(job(), CODE, lambda *shown: None)
    assert contents(run_path) == whole
    resumed = json.loads((run_path / "manifest.json").read_text())["resumed_at"]
    assert resumed == (done - 1) // 2 * 2, "the last checkpoint before the interruption"


def test_a_begun_run_of_other_params_is_not_continued(home):
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(3))
    other = parameters(arms={"grpo": PLAIN | {"objective_options": {"clip_high": 0.28}}})
    run(Job(experiment_from(other), "tiny", "grpo", 0), CODE, lambda *shown: None)
    assert json.loads(directory(home).manifest.read_text())["resumed_at"] == 0


def test_a_corrupt_checkpoint_is_one_clear_sentence(home):
    with pytest.raises(KeyboardInterrupt):
        run(job(), CODE, interrupt_after(3))
    checkpoint = directory(home).checkpoint
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    with pytest.raises(
        ValueError, match=r"checkpoint\.safetensors: not a usable .*delete it"
    ) as caught:
        run(job(), CODE, lambda *shown: None)
    assert "\n" not in str(caught.value)
    checkpoint.unlink()
    run(job(), CODE, lambda *shown: None)
    assert directory(home).manifest.exists()


DRIVER = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from turncredit.experiment import Job, experiment_from, run
home, mode, parameters, code = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
job = Job(experiment_from(parameters), "tiny", "grpo", 0)
results = Path(os.environ["TURNCREDIT_RESULTS"])

def child(prepare):
    pid = os.fork()
    if pid:
        return pid
    try:
        prepare()
        run(job, code, lambda *shown: None)
        os._exit(0)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(3)

def whole():
    _, status = os.waitpid(child(lambda: None), 0)
    assert status == 0, status
    path = job.experiment.folder / job.label
    return {n: (path / n).read_bytes() for n in sys.argv[5].split(",")}

def kill_before(count):
    '''SIGKILL this process before its count-th change of a file below the results folder.'''
    left = [count]
    def hook(event, arguments):
        if event in ("open", "os.rename", "os.remove") and str(results) in str(arguments[0]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

begun = time.time()
expected = whole()
seconds = time.time() - begun
moments, differ = 0, []
if mode == "random":
    stream = random.Random(int(sys.argv[6]))
    for attempt in range(2):
        shutil.rmtree(results)
        for _ in range(5):
            pid = child(lambda: None)
            time.sleep(seconds * stream.random() * 0.7)
            os.kill(pid, signal.SIGKILL)
            moments += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        if whole() != expected:
            differ.append(attempt)
if mode == "every":
    for count in range(1, 1000, 7):
        shutil.rmtree(results)
        pid = child(lambda: kill_before(count))
        if os.waitpid(pid, 0)[1] == 0:
            break
        moments += 1
        try:
            if whole() != expected:
                differ.append(count)
        except AssertionError:
            differ.append(count)
Path(home / "driver.json").write_text(json.dumps({"moments": moments, "differ": differ}))
"""


def kill_and_compare(home: Path, mode: str) -> dict:
    arguments = [str(home), mode, json.dumps(parameters()), CODE, ",".join(FILES), "7"]
    drive(home, DRIVER, arguments)
    return json.loads((home / "driver.json").read_text())


@pytest.mark.slow
def test_kill_9_at_random_moments_and_another_process_change_no_byte(home):
    """Two runs, each killed up to five times, equal an unbroken one of this process."""
    outcome = kill_and_compare(home, "random")
    assert outcome["moments"] >= 5
    assert outcome["differ"] == []
    run_path = directory(home).path
    killed = contents(run_path)
    for path in run_path.iterdir():
        path.unlink()
    run(job(), CODE, lambda *shown: None)
    assert contents(run_path) == killed


@pytest.mark.slow
def test_kill_9_before_every_seventh_change_of_a_file_changes_no_byte(home):
    write_task(home, steps=2, checkpoint_every=1)
    outcome = kill_and_compare(home, "every")
    assert outcome["moments"] > 5
    assert outcome["differ"] == [], "killed before that change of a file, the run never recovers"


# --- worker processes


def workers_of(parent: int) -> set[int]:
    """Processes that `parent` spawned to work, found in /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (path / "stat").read_text().rsplit(")", 1)[1].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(after_name[1]) == parent and b"spawn_main" in command and after_name[0] != "Z":
            found.add(int(path.name))
    return found


def test_an_error_in_a_worker_reaches_the_caller_and_no_process_stays(home, monkeypatch):
    with pytest.raises(KeyboardInterrupt):  # leaves the warm start, so that one pool is enough
        run(job(), CODE, interrupt_after(3))
    checkpoint = directory(home).checkpoint
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    monkeypatch.setattr(experiment, "prepare", experiment.run)
    begun = time.time()
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors: not a usable"):
        run_experiment(experiment_from(parameters(seeds=[0, 1])), workers=2)
    assert time.time() - begun < 300, "the pool hangs"
    assert workers_of(os.getpid()) == set()
    assert multiprocessing.active_children() == []


ORPHANS = """
import json, sys
from turncredit.experiment import experiment_from, run_experiment
if __name__ == "__main__":
    run_experiment(experiment_from(json.loads(sys.argv[1])), workers=2)
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float) -> bool:
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_busy_or_idle_end_when_their_parent_is_killed(home, tmp_path, how):
    write_task(home, "long", steps=100_000)
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    variables = os.environ | environment(home) | {"OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(REPOSITORY / "lib")
    parent = subprocess.Popen(
        [sys.executable, str(script), json.dumps(parameters(tasks=["tiny", "long"]))],
        env=variables,
        stderr=subprocess.DEVNULL,
    )
    orphans: set[int] = set()
    try:
        long_run = directory(home, "long/grpo/seed_0").path / "metrics.csv"
        begun = wait_for(lambda: long_run.exists() and directory(home).manifest.exists(), 600)
        assert begun, "one worker busy and one idle were wanted"
        orphans = workers_of(parent.pid)
        assert len(orphans) == 2
        parent.send_signal(how)
        assert parent.wait(20) == -how
        assert wait_for(lambda: not any(map(alive, orphans)), 20), "orphaned workers live on"
    finally:
        parent.kill()
        for process in filter(alive, orphans):
            os.kill(process, signal.SIGKILL)


# --- what may be asked


PLAN = {"tasks": ["tiny"], "variants": {}, "arms": {"grpo": PLAIN}, "seeds": [7]}


@pytest.mark.parametrize("name", ["tasks", "arms", "seeds", "warm_start_seeds"])
def test_an_empty_axis_is_refused_by_name(home, name):
    with pytest.raises(ValueError, match=f"10_try: {name} is empty"):
        experiment_from(parameters(**{name: {} if name == "arms" else []}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds": [0, 0]}, "seeds"),
        ({"tasks": ["tiny", "tiny"]}, "tasks"),
        ({"tasks": ["absent"]}, r"absent\.yaml: no such params file"),
        ({"seeds": ["0"]}, "seeds"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"arms": {"grpo": PLAIN | {"weight": "nonsense"}}}, "nonsense"),
        ({"arms": {"grpo": PLAIN | {"base": "nonsense"}}}, "nonsense"),
        ({"arms": {"grpo": PLAIN | {"objective": "nonsense"}}}, "nonsense"),
        ({"arms": {"grpo": PLAIN | {"objective_options": {"clip": 1.0}}}}, "clip"),
        ({"arms": {"a/b": PLAIN}}, "a/b"),
        ({"variants": {"a/b": {}}}, "a/b"),
        ({"variants": {"hard": {"world": {"pryor": 0.5}}}}, r"variants\.hard: .*pryor"),
        ({"variants": {"hard": {"world": {"prior": 1.5}}}}, r"variants\.hard: .*prior = 1\.5"),
        ({"variants": {"hard": 3}}, "hard"),
        (
            {"variants": {"hard": {"warm_start": {"steps": 3}}}},
            r"variants\.hard: warm_start belongs",
        ),
        ({"further": [{"tasks": ["tiny"]}]}, r"further\[0\]: key 'variants' is missing"),
        ({"further": [PLAN | {"seeds": []}]}, r"further\[0\]: seeds is empty"),
        ({"seeds": [0, -1]}, "seeds: -1 must be at least 0"),
        ({"warm_start_seeds": [10**30]}, f"warm_start_seeds: {10**30} must be .* below"),
        ({"variants": {"wide": {"policy": {"width": 8}}}}, "variants.wide: policy belongs to the"),
        ({"further": [PLAN | {"tasks": ["absent"]}]}, r"absent\.yaml: no such params file"),
        ({"further": [PLAN | {"seeds": [0]}]}, "two plans hold the run tiny/grpo/seed_0"),
        ({"further": [PLAN | {"arms": {"grpo": PLAIN | {"base": "rloo"}}}]}, "not the same in all"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(home, changes, named):
    with pytest.raises(ValueError, match=named):
        experiment_from(parameters(**changes))


def test_variants_are_runs_of_their_own_on_a_changed_task_from_the_same_warm_start(home, inline):
    changes = {"short": {"training": {"steps": 1}}, "long": {"training": {"steps": 2}}}
    asked = experiment_from(parameters(variants=changes))
    assert run_experiment(asked) == ["tiny-short/grpo/seed_0", "tiny-long/grpo/seed_0"]
    done = [RunDirectory(asked.folder / job.label).read_manifest() for job in jobs_of(asked)]
    assert [manifest["steps_done"] for manifest in done] == [1, 2]
    assert [manifest["params"]["task"]["training"]["steps"] for manifest in done] == [1, 2]
    assert len(list((home / "cache" / "warm_starts").glob("*.safetensors"))) == 1
    check_runs(asked)  # which finds the rows of each variant
    changes["short"] = {"training": {"steps": 3}}
    again = experiment_from(parameters(variants=changes))
    assert run_experiment(again) == ["tiny-short/grpo/seed_0"], "the other one is as it was"


def test_arms_of_one_warm_start_share_the_evaluation_before_training(home, inline, monkeypatch):
    evaluated, evaluate = [], runs.evaluate

    def count(policy, *others, **options):
        evaluated.append(policy)
        return evaluate(policy, *others, **options)

    monkeypatch.setattr(runs, "evaluate", count)
    monkeypatch.setattr(first_evaluations, "_kept", {})
    arms = {"grpo": PLAIN, "rloo": PLAIN | {"base": "rloo"}}
    asked = experiment_from(parameters(arms=arms, seeds=[0, 1], warm_start_seeds=[0]))
    run_experiment(asked)
    tables = [pd.read_csv(asked.folder / job.label / "eval.csv") for job in jobs_of(asked)]
    later = sum(table.loc[table["step"] > 0, "step"].nunique() for table in tables)
    assert len(tables) == 4 and len(evaluated) == 1 + later, "one before training for all four"
    first = [table[table["step"] == 0] for table in tables]
    assert all(rows.equals(first[0]) for rows in first)


def test_further_plans_are_run_after_the_first(home):
    further = [PLAN | {"arms": {"rloo": PLAIN | {"base": "rloo"}}, "variants": {"a": {}, "b": {}}}]
    asked = experiment_from(parameters(further=further))
    assert [job.label for job in jobs_of(asked)] == [
        "tiny/grpo/seed_0",
        "tiny-a/rloo/seed_7",
        "tiny-b/rloo/seed_7",
    ]
    assert [asked.method(job.arm).base for job in jobs_of(asked)] == ["grpo", "rloo", "rloo"]


def test_seeds_share_warm_starts_by_remainder(home):
    asked = experiment_from(parameters(seeds=[0, 1, 2, 5], warm_start_seeds=[7, 9]))
    assert isinstance(asked, Experiment)
    assert [Job(asked, "tiny", "grpo", seed).warm_start_seed for seed in asked.seeds] == [
        7,
        9,
        7,
        9,
    ]


def test_a_warm_start_task_of_another_size_is_refused_by_name(home):
    values = task_values()
    values["policy"]["width"] = 32
    (home / "params" / "smoke" / "tasks" / "wide.yaml").write_text(yaml.safe_dump(values))
    asked = experiment_from(parameters(tasks=["wide"]))
    with pytest.raises(ValueError, match=r"wide\.yaml: warm_start_task = 'tiny' has another"):
        run(Job(asked, "wide", "grpo", 0), CODE, lambda *shown: None)


WIRES = {"window": 2, "entropy_low": 0.01, "entropy_high": None, "repetition": None}
WIRES |= {"truncated": None, "zero_variance": None, "reward_collapse": None, "patience": 1}
SHAPES_THE_WARM_START = {
    "world": {"prior": 0.41},
    "environment": {"max_turns": 11},
    "wording": "deep_research",
    "judge": {"knowledge": 0.11},
    "disturbances": {"tool_failure": 0.11},
    "withheld_share": 0.11,
    "policy": {"width": 32},
    "demonstrations": {"error": 0.11},
    "warm_start": {"batch": 5},
}
SHAPES_NOTHING = {
    "training": {"steps": 9, "max_turn_tokens": 7, "learning_rate": 0.02},
    "evaluation": {"questions": 7, "every": 4},
    "warm_start_task": "other",
    "tripwires": WIRES,
}


def test_every_part_of_a_task_either_shapes_a_warm_start_or_does_not():
    names = {field.name for field in fields(TaskSettings)}
    assert names == SHAPES_THE_WARM_START.keys() | SHAPES_NOTHING.keys() - {"tripwires"}


@pytest.mark.parametrize("name", [*SHAPES_THE_WARM_START, *SHAPES_NOTHING])
def test_a_run_is_another_one_if_its_warm_start_is_and_not_if_that_task_trains_otherwise(
    home, name
):
    """Else a longer training of the task that lends its warm start made every borrower stale."""
    write_task(home, "other")  # begins from the warm start of tiny
    other = Job(experiment_from(parameters(tasks=["other"])), "other", "grpo", 0)
    tasks_before = [open_task("smoke", "tiny"), other.open_task()]
    own = Job(experiment_from(parameters()), "tiny", "grpo", 0)
    before = [identity(one, CODE) for one in (other, own)]

    change = (SHAPES_THE_WARM_START | SHAPES_NOTHING)[name]
    path = home / "params" / "smoke" / "tasks" / "tiny.yaml"
    path.write_text(yaml.safe_dump(params.changed(task_values(), {name: change})))
    assert open_task("smoke", "tiny") is not tasks_before[0], "or the change is none"
    assert other.open_task() is tasks_before[1]
    after = [identity(one, CODE) for one in (other, own)]
    assert (after[0] != before[0]) == (name in SHAPES_THE_WARM_START)
    assert after[1] != before[1], "of the changed task itself"


@pytest.mark.parametrize("name", SHAPES_NOTHING)
def test_what_shapes_no_warm_start_leaves_every_weight_of_it(home, monkeypatch, name):
    """Trained anew each time: a run that could differ must not have the same identity."""
    write_task(home, "other")

    def trained(cache: str) -> bytes:
        monkeypatch.setenv("TURNCREDIT_CACHE", str(home / cache))
        warm_started_policy(open_task("smoke", "other"), 0, CODE, lambda step, loss: None)
        (kept,) = (home / cache / "warm_starts").glob("*.safetensors")
        return kept.read_bytes()

    before = trained("before")
    changed = params.changed(task_values(), {name: SHAPES_NOTHING[name]})
    (home / "params" / "smoke" / "tasks" / "tiny.yaml").write_text(yaml.safe_dump(changed))
    assert trained("after") == before


def test_a_run_is_another_one_if_it_begins_from_another_warm_start(home):
    write_task(home, "other")
    seeds = [parameters(tasks=["other"], warm_start_seeds=[seed]) for seed in (0, 1)]
    ones = [identity(Job(experiment_from(p), "other", "grpo", 0), CODE) for p in seeds]
    assert ones[0] != ones[1]


def test_a_manifest_counts_the_failures_of_its_run_alone(home, inline, monkeypatch):
    """Runs that follow each other in one process share the task and so its counters."""
    values = task_values(steps=2)
    values["disturbances"] |= {"tool_failure": 1.0}
    (home / "params" / "smoke" / "tasks" / "tiny.yaml").write_text(yaml.safe_dump(values))
    evaluate = runs._evaluate

    def fail_once_and_evaluate(run, *others):
        run.task.environment.counts["search"] += 1
        evaluate(run, *others)

    monkeypatch.setattr(runs, "_evaluate", fail_once_and_evaluate)
    run_experiment(experiment_from(parameters(seeds=[0, 1])))
    for seed in (0, 1):
        manifest = directory(home, f"tiny/grpo/seed_{seed}").manifest
        counted = json.loads(manifest.read_text())["failures"]
        assert counted["injected_search"] == 2, "one before training and one after it"


# --- runs that cannot be trusted


def rewritten(table: Path, change) -> None:
    frame = pd.read_csv(table)
    change(frame)
    frame.to_csv(table, index=False)


def test_runs_that_cannot_be_trusted_are_refused_by_name(home, inline, monkeypatch):
    asked = experiment_from(parameters())
    run_experiment(asked)
    check_runs(asked)
    run = directory(home)
    stray = directory(home, "tiny/grpo/seed_9").path
    stray.mkdir()
    with pytest.raises(ValueError, match=r"seed_9: this run is not among the parameters"):
        check_runs(asked)
    stray.rmdir()
    with pytest.raises(ValueError, match=r"tiny/grpo/seed_0 is not finished with these"):
        check_runs(experiment_from(parameters(arms={"grpo": PLAIN | {"weight": "drop_failed"}})))
    monkeypatch.setattr(run_checks, "is_finished", lambda job, code: True)
    metrics = run.path / "metrics.csv"
    whole = metrics.read_bytes()
    for column, value, complaint in (
        ("missing_rewards", 1, "has 1 missing rewards for 0 lost trajectories at step 0"),
        ("loss", None, "loss or gradient that is not a number"),
        ("mean_abs_logprob_diff", 0.01, "samples from another distribution"),
        ("ratio_max", 1.0, "never moved a ratio"),
    ):
        rewritten(metrics, lambda frame, c=column, v=value: frame.__setitem__(c, v))
        with pytest.raises(ValueError, match=rf"tiny/grpo/seed_0 .*{complaint}"):
            check_runs(asked)
        metrics.write_bytes(whole)
    metrics.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(ValueError, match=r"has 4 of 5 steps"):
        check_runs(asked)
