"""Experiments: every arm on every task with every seed, in parallel, resumable, never run twice."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turncredit import params, paths
from turncredit.code_version import code_hash
from turncredit.loggers import log_writers
from turncredit.parallel import Report, in_parallel
from turncredit.results import RunDirectory
from turncredit.runs import Run, complete
from turncredit.storage import exclusive, sha256_json
from turncredit.tasks import open_task, warm_started_policy
from turncredit.training import Method


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
        for name, folders in (
            ("arms", self.arms),
            ("tasks", self.tasks),
            ("notebook", [self.notebook]),
        ):
            for folder in folders:
                if not re.fullmatch(r"[A-Za-z0-9_-]+", folder):
                    raise ValueError(
                        f"{name}: {folder!r} names a folder; use letters, digits, _ and -"
                    )
        for arm, method in self.arms.items():
            try:
                method.rehearse()
            except (TypeError, ValueError) as error:
                raise ValueError(f"arms.{arm}: {error}") from error

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
    workers = workers or _jobs_at_once()
    log_writers(os.environ.get("TURNCREDIT_LOG", "").split(), experiment.folder, {})  # or refused
    in_parallel(prepare, [(job, code) for job in starts.values()], workers, "warm starts")
    in_parallel(run, [(job, code) for job in jobs], workers, "runs")
    return [job.label for job in jobs]


def _jobs_at_once() -> int:
    """TURNCREDIT_JOBS, or as many as there are cores; ValueError unless it is a number above 0."""
    asked = os.environ.get("TURNCREDIT_JOBS", str(os.cpu_count() or 1))
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"TURNCREDIT_JOBS = {asked!r} is not a whole number above 0")
    return int(asked)


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
    """One run from its warm start or last checkpoint to its manifest.

    Raises RuntimeError naming the process that has this run in hand, if another one has.
    """
    task = open_task(job.experiment.tier, job.task)
    directory = RunDirectory(job.experiment.folder / job.label)
    with exclusive(directory.path / ".lock", patience=_PATIENCE):
        if not is_finished(job, code):
            policy = warm_started_policy(task, job.warm_start_seed, code, lambda step, loss: None)
            method, values = job.experiment.arms[job.arm], _identity_values(job)
            hashes = identity(job, code)
            complete(
                Run(job.label, task, method, job.seed, directory, hashes, values), policy, report
            )


_PATIENCE = 1.0
"""Seconds to wait for a run in other hands: those of a process that is just being stopped."""


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
        **({"tripwires": asdict(task.tripwires)} if task.tripwires else {}),
    }


def is_finished(job: Job, code: str) -> bool:
    """Whether a whole run of these parameters and this code lies in the job's folder."""
    return RunDirectory(job.experiment.folder / job.label).is_finished(identity(job, code))
