"""Experiments: every arm on every task with every seed, in parallel, resumable, never run twice."""

import json
import math
import os
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from turncredit import params, paths
from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.code_version import code_hash
from turncredit.evaluation import (
    evaluate,
    evaluation_rows,
    evaluation_set_hash,
    question_rows,
)
from turncredit.parallel import Report, in_parallel
from turncredit.policies.tiny import TinyPolicy
from turncredit.records import write_trajectories
from turncredit.results import RunDirectory, write_table
from turncredit.storage import exclusive, sha256_json, write_json
from turncredit.tasks import Task, open_task, warm_started_policy
from turncredit.training import Method, StepLog, new_optimiser, train
from turncredit.worlds.base import Question


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
        for name in ("tasks", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} = {list(values)} repeats one")
        for arm in self.arms:
            if not re.fullmatch(r"[A-Za-z0-9_-]+", arm):
                raise ValueError(f"arms: {arm!r} names a folder; use letters, digits, _ and -")

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
    jobs = [job for job in jobs_of(experiment) if not is_finished(job, code)]
    starts = {
        (open_task(experiment.tier, j.task).settings.warm_start_task, j.warm_start_seed): j
        for j in jobs
    }
    workers = workers or int(os.environ.get("TURNCREDIT_JOBS", os.cpu_count() or 1))
    in_parallel(prepare, [(job, code) for job in starts.values()], workers, "warm starts")
    in_parallel(run, [(job, code) for job in jobs], workers, "runs")
    return [job.label for job in jobs]


def jobs_of(experiment: Experiment) -> list[Job]:
    """Every run of an experiment: task by task, arms of one seed side by side."""
    return [
        Job(experiment, task, arm, seed)
        for task in experiment.tasks
        for seed in experiment.seeds
        for arm in experiment.arms
    ]


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
        if not is_finished(job, code):
            _train(job, task, directory, code, report)


def _train(job: Job, task: Task, directory: RunDirectory, code: str, report: Report) -> None:
    started, settings = time.time(), task.settings.training
    policy = warm_started_policy(task, job.warm_start_seed, code, lambda step, loss: None)
    optimiser = new_optimiser(policy, settings)
    failed_before = Counter(task.environment.failures)
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
        _refuse_non_finite(log, job.label)
        last = done == settings.steps
        _write(directory, log)
        report(job.label, done, settings.steps, log.metrics)
        if last or done % task.settings.evaluation.every == 0:
            _evaluate(task, policy, directory, done)
        if last or done % settings.checkpoint_every == 0:
            save_checkpoint(directory.checkpoint, policy, optimiser, done)
    facts = {
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.time() - started, 1),
        "resumed_at": start,
        "stop_reason": "finished",
        "failures": dict(Counter(task.environment.failures) - failed_before),
    }
    directory.finish(_description(job, task, code) | facts)


def _description(job: Job, task: Task, code: str) -> dict[str, Any]:
    """What the manifest says of a run whenever it is made."""
    return identity(job, code) | {
        "params": _identity_values(job),
        "seed": job.seed,
        "evaluation_set_hash": evaluation_set_hash(_questions(task)),
        "steps": task.settings.training.steps,
    }


def _refuse_non_finite(log: StepLog, label: str) -> None:
    """Stop a run at the first update that was not a number; its checkpoint is still good."""
    for name in ("loss", "gradient_norm"):
        if not math.isfinite(log.metrics[name]):
            raise ValueError(f"run {label}, step {log.step}: {name} is {log.metrics[name]}")


def identity(job: Job, code: str) -> dict[str, str]:
    """The hashes that make a run what it is."""
    return {"params_hash": sha256_json(_identity_values(job)), "code_hash": code}


def _identity_values(job: Job) -> dict[str, Any]:
    task = open_task(job.experiment.tier, job.task)
    source = open_task(job.experiment.tier, task.settings.warm_start_task)
    return {
        "task": asdict(task.settings) | task.settings.kinds,
        "warm_start_task": asdict(source.settings) | source.settings.kinds,
        "warm_start_seed": job.warm_start_seed,
        "method": asdict(job.experiment.arms[job.arm]),
        "seed": job.seed,
    }


def is_finished(job: Job, code: str) -> bool:
    """Whether a whole run of these parameters and this code lies in the job's folder."""
    return RunDirectory(job.experiment.folder / job.label).is_finished(identity(job, code))


def _resume(
    directory: RunDirectory,
    policy: TinyPolicy,
    optimiser: torch.optim.Optimizer,
    hashes: dict[str, str],
) -> int:
    """Steps already done by an interrupted run with the same hashes; 0 after clearing any other."""
    begun = directory.path / "begun.json"
    same = begun.exists() and json.loads(begun.read_text(encoding="utf-8")) == hashes
    if same and directory.can_resume():
        step = load_checkpoint(directory.checkpoint, policy, optimiser)
        directory.rewind(step)
        return step
    directory.start()
    write_json(begun, hashes)
    return 0


def _evaluate(task: Task, policy: TinyPolicy, directory: RunDirectory, step: int) -> None:
    """Append the rows of one evaluation; of the latest, trajectories and questions are kept."""
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
    write_table(directory.path / "questions.csv", question_rows(questions, trajectories))


def _write(directory: RunDirectory, log: StepLog) -> None:
    step = {"step": log.step}
    directory.append("turns.csv", [step | row for row in log.turns])
    directory.append("timings.csv", [step | log.seconds])
    directory.append("metrics.csv", [step | log.metrics])


def _questions(task: Task) -> list[Question]:
    return task.world.evaluation_questions(task.settings.evaluation.questions)
