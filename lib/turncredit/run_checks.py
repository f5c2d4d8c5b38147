"""Whether the runs of an experiment can be trusted; apart, so that a new check makes none stale."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from turncredit.code_version import code_hash
from turncredit.experiment import Experiment, is_finished, jobs_of
from turncredit.results import RunDirectory, read_table
from turncredit.tasks import open_task
from turncredit.training import TrainingSettings
from turncredit.tripwires import FINISHED, NON_FINITE


def check_runs(experiment: Experiment) -> None:
    """Raise ValueError naming the first run that cannot be trusted.

    Every run must be finished with today's parameters and code and have all its steps, no missing
    reward, ratios that could move, and sampling and training engine in agreement (1e-4).  One that
    a tripwire ended has the steps up to there, the last of them not finite if that was the reason.
    A task's runs must share their evaluation set, and no run of other parameters may lie among
    them.
    """
    code, jobs = code_hash(), jobs_of(experiment)
    labels = {job.label for job in jobs}
    for path in sorted(experiment.folder.glob("*/*/seed_*")):
        label = path.relative_to(experiment.folder).as_posix()
        if label not in labels:
            raise ValueError(f"{path}: this run is not among the parameters; move it away")
    metrics = read_table(experiment.folder, "metrics.csv")
    evaluations = read_table(experiment.folder, "eval.csv")
    for job in jobs:
        if not is_finished(job, code):
            raise ValueError(f"run {job.label} is not finished with these parameters and this code")
        rows = metrics.query("task == @job.task and arm == @job.arm and seed == @job.seed")
        manifest = RunDirectory(experiment.folder / job.label).read_manifest() or {}
        settings = open_task(experiment.tier, job.task).settings.training
        _check_run(rows, settings, job.label, manifest)
    sets = evaluations.groupby("task")["evaluation_set"].nunique()
    for task in sets[sets != 1].index:
        raise ValueError(f"{task}: runs were evaluated on {sets[task]} different question sets")


def _check_run(
    rows: pd.DataFrame, settings: TrainingSettings, label: str, manifest: Mapping[str, Any]
) -> None:
    moving = settings.updates_per_batch > 1 and rows["zero_variance_groups"].min() < 1
    reason = manifest.get("stop_reason", FINISHED)
    steps = settings.steps if reason == FINISHED else manifest["steps_done"]
    finite = rows.sort_values("step").head(steps - (reason == NON_FINITE))
    complaints = {
        f"has {len(rows)} of {steps} steps": len(rows) != steps,
        "has missing rewards": rows["missing_rewards"].sum() > 0,
        "has a loss or gradient that is not a number": not np.isfinite(
            finite[["loss", "gradient_norm"]]
        ).all(axis=None),
        "samples from another distribution than it trains": rows["mean_abs_logprob_diff"].max()
        > 1e-4,
        "never moved a ratio": moving and rows["ratio_max"].max() < 1.001,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise ValueError(f"run {label} {complaint}")
