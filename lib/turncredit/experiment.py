"""Experiments: every arm on every task with every seed, in parallel, resumable, never run twice."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from turncredit import params
from turncredit.code_version import code_hash
from turncredit.loggers import log_writers
from turncredit.parallel import Report, in_parallel
from turncredit.plans import Experiment, with_methods
from turncredit.results import RunDirectory
from turncredit.runs import Run, complete
from turncredit.storage import exclusive, sha256_json
from turncredit.tasks import Task, open_task
from turncredit.warm_starts import is_trained, warm_start_values, warm_started_policy


@dataclass(frozen=True)
class Job:
    """One run of an experiment, picklable."""

    experiment: Experiment
    task: str
    arm: str
    seed: int
    variant: str | None = None
    """Which of the experiment's; None if it has none."""

    @property
    def varied_task(self) -> str:
        """task[-variant], what tables and figures call the task."""
        return self.task if self.variant is None else f"{self.task}-{self.variant}"

    @property
    def label(self) -> str:
        """task[-variant]/arm/seed_<s>, also the run's folder below the experiment's."""
        return f"{self.varied_task}/{self.arm}/seed_{self.seed}"

    @property
    def directory(self) -> RunDirectory:
        """Where this run lies, or will."""
        return RunDirectory(self.experiment.folder / self.label)

    def open_task(self) -> Task:
        """The task of this run, changed as its variant says."""
        return open_task(self.experiment.tier, self.task, self.experiment.changes(self.variant))

    @property
    def warm_start_seed(self) -> int:
        """Which warm start this run begins from."""
        seeds = self.experiment.warm_start_seeds
        return seeds[self.seed % len(seeds)]


def experiment_from(parameters: dict[str, Any]) -> Experiment:
    """The experiment of a notebook's parameters, type-checked, its task files read.

    Arms are methods by name, or a list of names in params/methods.yaml.
    """
    source = f"parameters of {parameters.get('notebook', 'the notebook')}"
    experiment = params.build(Experiment, with_methods(parameters), source)
    for job in one_of_each_task(jobs_of(experiment)):
        try:
            job.open_task()
        except ValueError as error:
            where = "" if job.variant is None else f"variants.{job.variant}: "
            raise ValueError(f"{where}{error}") from error
    labels = Counter(job.label for job in jobs_of(experiment))
    for label, times in labels.items():
        if times > 1:
            raise ValueError(f"{experiment.notebook}: two plans hold the run {label}")
    return experiment


def run_experiment(experiment: Experiment, *, workers: int | None = None) -> list[str]:
    """Run what is missing or stale; returns the labels of the runs that had to be done.

    Warm starts come first, then the runs, `workers` at a time (default: TURNCREDIT_JOBS, else one a
    core, and one where a policy is on a GPU), in processes of one thread each, which load the
    library once.  A bar shows the share of steps done, and reward, entropy and search-first rate of
    the run that reported last.
    """
    code = code_hash()
    jobs = [job for job in jobs_of(experiment) if not is_finished(job, code)]
    starts = {
        (task.settings.warm_start_task, job.warm_start_seed): job
        for job in jobs
        if not is_trained(task := job.open_task(), job.warm_start_seed, code)
    }
    workers = workers or jobs_at_once(experiment)
    log_writers(os.environ.get("TURNCREDIT_LOG", "").split(), experiment.folder, {})  # or refused
    calls = [(prepare, job, code) for job in starts.values()] + [(run, job, code) for job in jobs]
    in_parallel(_call, calls, workers, "warm starts and runs" if starts else "runs")
    return [job.label for job in jobs]


def _call(work: Callable[..., None], job: Job, code: str, report: Report) -> None:
    work(job, code, report)


def one_of_each_task(jobs: list[Job]) -> list[Job]:
    """The last of the jobs on each task and variant."""
    return list({(job.task, job.variant): job for job in jobs}.values())


def jobs_at_once(experiment: Experiment) -> int:
    """TURNCREDIT_JOBS, or one a core, and one where a policy is on a GPU.

    Raises ValueError unless the variable is a number above 0.
    """
    tasks = [job.open_task() for job in one_of_each_task(jobs_of(experiment))]
    shared = any(getattr(task.settings.policy, "device", "cpu") != "cpu" for task in tasks)
    asked = os.environ.get("TURNCREDIT_JOBS", str(1 if shared else os.cpu_count() or 1))
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"TURNCREDIT_JOBS = {asked!r} is not a whole number above 0")
    return int(asked)


def jobs_of(experiment: Experiment) -> list[Job]:
    """Every run of an experiment: plan by plan, task by task, arms of one seed side by side."""
    return [
        Job(experiment, task, arm, seed, variant)
        for plan in experiment.plans
        for task in plan.tasks
        for variant in plan.variants or [None]
        for seed in plan.seeds
        for arm in plan.arms
    ]


def prepare(job: Job, code: str, report: Report) -> None:
    """Make sure that the warm start of a job exists."""
    task = job.open_task()
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
    task = job.open_task()
    directory = job.directory
    with exclusive(directory.path / ".lock", patience=_PATIENCE):
        if not is_finished(job, code):
            policy = warm_started_policy(task, job.warm_start_seed, code, lambda step, loss: None)
            method, values = job.experiment.method(job.arm), _identity_values(job)
            method.enter()  # in a process of its own the tables hold the library's alone
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
    task = job.open_task()
    source = open_task(job.experiment.tier, task.settings.warm_start_task)
    method = job.experiment.method(job.arm)
    contents = task.contents | method.contents
    return {
        "task": asdict(task.settings) | task.settings.kinds,
        "warm_start_values": warm_start_values(source),
        "warm_start_seed": job.warm_start_seed,
        "method": method.values,
        "seed": job.seed,
        **({"contents": contents} if contents else {}),
        **({"tripwires": asdict(task.tripwires)} if task.tripwires else {}),
    }


def is_finished(job: Job, code: str) -> bool:
    """Whether a whole run of these parameters and this code lies in the job's folder."""
    return job.directory.is_finished(identity(job, code))
