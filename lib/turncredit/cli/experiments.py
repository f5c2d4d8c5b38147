"""The runs of an experiment's parameter file, for the commands that train, judge and show them."""

from pathlib import Path
from typing import Any

from turncredit.experiment import Job, experiment_from, jobs_of
from turncredit.params import read_yaml
from turncredit.plans import Experiment
from turncredit.results import read_table

OF_THE_NOTEBOOK = ("after", "audit", "following", "engine")
"""Keys of an experiment notebook's file that no run reads: what it measures when all are over."""


def open_experiment(params_file: Path) -> Experiment:
    """The experiment of a file, without the keys that are its notebook's alone.

    Raises ValueError naming the file and what is wrong with it.
    """
    values = read_yaml(params_file)
    try:
        return experiment_from({k: v for k, v in values.items() if k not in OF_THE_NOTEBOOK})
    except ValueError as error:
        raise ValueError(f"{params_file}: {error}") from error


def chosen_jobs(experiment: Experiment, label: str | None) -> list[Job]:
    """The run of this label, or all; ValueError listing some if there is no such run."""
    jobs = jobs_of(experiment)
    found = [job for job in jobs if label in (None, job.label)]
    if not found:
        some = ", ".join(job.label for job in jobs[:4])
        raise ValueError(f"{experiment.notebook} has no run {label!r}; it has {some}, ...")
    return found


def run_rows(experiment: Experiment, jobs: list[Job]) -> list[dict[str, Any]]:
    """One row per finished run: how it ended, and the exact match of its final evaluation.

    exact_match is None where no policy was left to evaluate.
    """
    evaluations = read_table(experiment.folder, "eval.csv")
    whole = evaluations[evaluations["hops"].astype(str) == "all"]
    scores = whole.set_index(["task", "arm", "seed", "step"])["exact_match"]
    rows = []
    for job in jobs:
        manifest = job.directory.read_manifest() or {}
        key = (job.varied_task, job.arm, job.seed, manifest.get("evaluated_at"))
        facts = {name: manifest.get(name) for name in ("stop_reason", "steps_done", "seconds")}
        rows.append({"run": job.label} | facts | {"exact_match": scores.get(key)})
    return rows
