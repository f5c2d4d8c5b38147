"""Experiments: every arm on every task with every seed, in parallel, resumable, never run twice."""

import contextlib
import json
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from turncredit import params, paths
from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.evaluation import evaluate, evaluation_rows, evaluation_set_hash
from turncredit.policies.tiny import TinyPolicy
from turncredit.records import write_trajectories
from turncredit.results import RunDirectory, code_hash, read_table
from turncredit.storage import exclusive, sha256_json, write_json
from turncredit.tasks import Task, open_task, warm_started_policy
from turncredit.training import Method, StepLog, TrainingSettings, new_optimiser, train


@dataclass(frozen=True)
class Experiment:
    """The parameters of an experiment notebook."""

    tier: str
    notebook: str
    """Name of the notebook, which is also its folder under results/<tier>."""
    tasks: tuple[str, ...]
    arms: dict[str, Method]
    seeds: tuple[int, ...]
    warm_start_seeds: tuple[int, ...]
    """Seed s starts from warm start s modulo their number."""

    def __post_init__(self) -> None:
        for name in ("tasks", "arms", "seeds", "warm_start_seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {list(self.seeds)} repeats one")

    @property
    def folder(self) -> Path:
        """Where the runs lie."""
        return paths.results(self.tier) / self.notebook


@dataclass(frozen=True)
class Job:
    """One run of an experiment, picklable."""

    experiment: Experiment
    task: str
    arm: str
    seed: int

    @property
    def label(self) -> str:
        """task/arm/seed_<s>, also the run's folder below the experiment's."""
        return f"{self.task}/{self.arm}/seed_{self.seed}"

    @property
    def warm_start_seed(self) -> int:
        """Which warm start this run begins from."""
        seeds = self.experiment.warm_start_seeds
        return seeds[self.seed % len(seeds)]


Report = Callable[[str, int, int, dict[str, float]], None]
"""(label, steps done, steps in all, what to show)."""


def experiment_from(parameters: dict[str, Any]) -> Experiment:
    """The experiment of a notebook's parameters, type-checked, its task files read."""
    experiment = params.build(
        Experiment, parameters, f"parameters of {parameters.get('notebook', 'the notebook')}"
    )
    for task in experiment.tasks:
        open_task(experiment.tier, task)
    return experiment


def run_experiment(experiment: Experiment, *, workers: int | None = None) -> list[str]:
    """Run what is missing or stale; returns the labels of the runs that had to be done.

    Warm starts come first, then the runs, `workers` at a time (default: TURNCREDIT_JOBS, else one a
    core), each in a process of its own with one thread.  A bar shows the share of steps done, and
    reward, entropy and search-first rate of the run that reported last.
    """
    code = code_hash()
    jobs = [
        Job(experiment, task, arm, seed)
        for task in experiment.tasks
        for seed in experiment.seeds
        for arm in experiment.arms
    ]
    jobs = [job for job in jobs if not _finished(job, code)]
    starts = {
        (open_task(experiment.tier, j.task).settings.warm_start_task, j.warm_start_seed): j
        for j in jobs
    }
    workers = workers or int(os.environ.get("TURNCREDIT_JOBS", os.cpu_count() or 1))
    _in_parallel(prepare, list(starts.values()), code, workers, "warm starts")
    _in_parallel(run, jobs, code, workers, "runs")
    return [job.label for job in jobs]


def prepare(job: Job, code: str, report: Report) -> None:
    """Make sure that the warm start of a job exists."""
    task = open_task(job.experiment.tier, job.task)
    total = task.settings.warm_start.steps
    label = f"{task.settings.warm_start_task}/{job.warm_start_seed}"
    warm_started_policy(
        task,
        job.warm_start_seed,
        code,
        lambda step, loss: report(label, step + 1, total, {"loss": loss}),
    )


def run(job: Job, code: str, report: Report) -> None:
    """One run from its warm start or last checkpoint to its manifest."""
    task = open_task(job.experiment.tier, job.task)
    directory = RunDirectory(job.experiment.folder / job.label)
    directory.path.mkdir(parents=True, exist_ok=True)
    with exclusive(directory.path / ".lock"):
        if not _finished(job, code):
            _train(job, task, directory, code, report)


def _train(job: Job, task: Task, directory: RunDirectory, code: str, report: Report) -> None:
    started, settings = time.time(), task.settings.training
    policy = warm_started_policy(task, job.warm_start_seed, code, lambda step, loss: None)
    optimiser = new_optimiser(policy, settings)
    start = _resume(directory, policy, optimiser, identity(job, code))
    if start == 0:
        _evaluate(task, policy, directory, 0)
    steps = train(
        policy,
        optimiser,
        task.vocabulary,
        task.environment,
        task.world,
        job.experiment.arms[job.arm],
        settings,
        seed=job.seed,
        start=start,
    )
    for log in steps:
        done = log.step + 1
        last = done == settings.steps
        _write(directory, log)
        report(job.label, done, settings.steps, log.metrics)
        if last or done % task.settings.evaluation.every == 0:
            _evaluate(task, policy, directory, done)
        if last or done % settings.checkpoint_every == 0:
            save_checkpoint(directory.checkpoint, policy, optimiser, done)
    directory.finish(
        identity(job, code)
        | {
            "params": _identity_values(job),
            "seed": job.seed,
            "evaluation_set_hash": evaluation_set_hash(_questions(task)),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - started, 1),
            "steps": settings.steps,
            "resumed_at": start,
            "stop_reason": "finished",
        }
    )


def identity(job: Job, code: str) -> dict[str, str]:
    """The hashes that make a run what it is."""
    return {"params_hash": sha256_json(_identity_values(job)), "code_hash": code}


def _identity_values(job: Job) -> dict[str, Any]:
    task = open_task(job.experiment.tier, job.task)
    source = open_task(job.experiment.tier, task.settings.warm_start_task)
    return {
        "task": asdict(task.settings) | {"world_kind": task.settings.world.KIND},
        "warm_start_task": asdict(source.settings),
        "warm_start_seed": job.warm_start_seed,
        "method": asdict(job.experiment.arms[job.arm]),
        "seed": job.seed,
    }


def _finished(job: Job, code: str) -> bool:
    return RunDirectory(job.experiment.folder / job.label).is_finished(identity(job, code))


def _resume(
    directory: RunDirectory,
    policy: TinyPolicy,
    optimiser: torch.optim.Optimizer,
    hashes: dict[str, str],
) -> int:
    """Steps already done by an interrupted run with the same hashes; 0 after clearing any other."""
    begun = directory.path / "begun.json"
    if directory.checkpoint.exists() and begun.exists() and json.loads(begun.read_text()) == hashes:
        step = load_checkpoint(directory.checkpoint, policy, optimiser)
        directory.rewind(step)
        return step
    directory.start()
    write_json(begun, hashes)
    return 0


def _evaluate(task: Task, policy: TinyPolicy, directory: RunDirectory, step: int) -> None:
    """Append the rows of one evaluation; the trajectories of the latest one are kept."""
    questions, settings = _questions(task), task.settings
    trajectories = evaluate(
        policy,
        task.vocabulary,
        task.environment,
        questions,
        max_turn_tokens=settings.training.max_turn_tokens,
        temperature=settings.evaluation.temperature,
    )
    facts = {
        "temperature": settings.evaluation.temperature,
        "evaluation_set": evaluation_set_hash(questions)[:16],
    }
    rows = evaluation_rows(questions, trajectories)
    directory.append("eval.csv", [{"step": step} | row | facts for row in rows])
    write_trajectories(directory.path / "trajectories.jsonl.gz", trajectories)


def _write(directory: RunDirectory, log: StepLog) -> None:
    step = {"step": log.step}
    directory.append("turns.csv", [step | row for row in log.turns])
    directory.append("timings.csv", [step | log.seconds])
    directory.append("metrics.csv", [step | log.metrics])


def _questions(task: Task) -> list:
    return task.world.evaluation_questions(task.settings.evaluation.questions)


def _in_parallel(
    work: Callable[[Job, str, Report], None],
    jobs: Sequence[Job],
    code: str,
    workers: int,
    title: str,
) -> None:
    """`work` on every job, `workers` processes at a time; the first error stops the rest."""
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_start_worker, initargs=(reports,)
    )
    try:
        futures = [pool.submit(_work, work, job, code) for job in jobs]
        with _bar(len(jobs), title) as advance:
            while not all(future.done() for future in futures):
                _drain(reports, advance)
                for future in futures:
                    if future.done():
                        future.result()
            _drain(reports, advance)
        for future in futures:
            future.result()
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_reports: Any = None
"""In a worker process: the queue to the parent."""


def _start_worker(reports: Any) -> None:
    """One thread a process: two processes side by side beat one with two threads at these sizes."""
    global _reports
    _reports = reports
    torch.set_num_threads(1)


def _work(work: Callable[[Job, str, Report], None], job: Job, code: str) -> None:
    parent = multiprocessing.parent_process()

    def report(label: str, done: int, total: int, shown: dict[str, float]) -> None:
        if parent is not None and not parent.is_alive():
            raise SystemExit("the experiment's own process is gone")
        _reports.put((label, done, total, {key: shown[key] for key in _SHOWN if key in shown}))

    work(job, code, report)


_SHOWN = ("reward", "entropy", "search_first", "loss")


def _drain(reports: Any, advance: Callable[..., None]) -> None:
    """Hand over the reports that have come in, waiting half a second for the first."""
    with contextlib.suppress(queue.Empty):
        advance(*reports.get(timeout=0.5))
        while True:
            advance(*reports.get_nowait())


@contextlib.contextmanager
def _bar(jobs: int, title: str) -> Iterator[Callable[..., None]]:
    """A progress bar over all jobs, in jobs; calls of the yielded function move it."""
    shares: dict[str, float] = {}
    interactive = sys.stderr.isatty()
    with tqdm(
        total=jobs, desc=title, unit="run", mininterval=0.5 if interactive else 10, file=sys.stderr
    ) as bar:

        def advance(label: str, done: int, total: int, shown: dict[str, float]) -> None:
            shares[label] = done / total
            bar.set_postfix_str(
                f"{label} {done}/{total} " + " ".join(f"{k} {v:.2f}" for k, v in shown.items()),
                False,
            )
            bar.update(round(sum(shares.values()), 2) - bar.n)

        yield advance


def check_runs(experiment: Experiment) -> None:
    """Raise ValueError naming the first run that cannot be trusted.

    Every run must be finished, with all its steps, no missing reward, ratios that could move,
    sampling and training engine in agreement (1e-4), and a task's runs the same evaluation set.
    """
    metrics = read_table(experiment.folder, "metrics.csv")
    evaluations = read_table(experiment.folder, "eval.csv")
    for task in experiment.tasks:
        settings = open_task(experiment.tier, task).settings.training
        sets = evaluations.loc[evaluations["task"] == task, "evaluation_set"].unique()
        if len(sets) != 1:
            raise ValueError(f"{task}: runs were evaluated on {len(sets)} different question sets")
        for arm in experiment.arms:
            for seed in experiment.seeds:
                rows = metrics.query("task == @task and arm == @arm and seed == @seed")
                _check_run(rows, settings, f"{experiment.folder.name}/{task}/{arm}/seed_{seed}")


def _check_run(rows: pd.DataFrame, settings: TrainingSettings, label: str) -> None:
    complaints = {
        f"has {len(rows)} of {settings.steps} steps": len(rows) != settings.steps,
        "has missing rewards": rows["missing_rewards"].sum() > 0,
        "has a loss or gradient that is not a number": rows[["loss", "gradient_norm"]]
        .isna()
        .any(axis=None),
        "samples from another distribution than it trains": rows["mean_abs_logprob_diff"].max()
        > 1e-4,
        "never moved a ratio": settings.updates_per_batch > 1 and rows["ratio_max"].max() < 1.001,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise ValueError(f"run {label} {complaint}")
