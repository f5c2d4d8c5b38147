"""Whether an experiment fits the machine, and its runs can be trusted.

Apart from `experiment`, so that a new check makes no run stale.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from turncredit.code_version import code_hash
from turncredit.estimates import estimate, measure_rates
from turncredit.experiment import is_finished, jobs_at_once, jobs_of, one_of_each_task
from turncredit.plans import Experiment
from turncredit.results import read_table
from turncredit.tasks import TaskSettings
from turncredit.training import TrainingSettings
from turncredit.tripwires import FINISHED, NON_FINITE

MAX_MISMATCH = {"float32": 1e-4, "bfloat16": 0.05}
"""Nats between the log-probs of the rollout and of the training pass, on average over the tokens of
a step, by the precision of the layers' products.  float32 leaves the last bits; bfloat16 keeps 8
bits, and a logit near 10 is rounded by up to 0.03."""


def check_memory(experiment: Experiment) -> list[str]:
    """What a step of each task takes at the most, in words; the rates are measured here and now.

    Raises ValueError naming file and keys if as many runs as will go on at a time do not fit.
    """
    jobs, sentences = jobs_of(experiment), {}
    at_once = min(jobs_at_once(experiment), len(jobs))
    for job in one_of_each_task(jobs):
        predicted = estimate(job.open_task())
        predicted.require_fits(processes=at_once)
        if job.task not in sentences:
            sentences[job.task] = f"{job.task}: {predicted.sentence(measure_rates(predicted))}"
    return list(sentences.values())


def check_runs(experiment: Experiment) -> None:
    """Raise ValueError naming the first run that cannot be trusted.

    Every run must be finished with today's parameters and code and pass `check_run`.  A task's runs
    must share their evaluation set, and no run of other parameters may lie among them.
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
        rows = metrics.query("task == @job.varied_task and arm == @job.arm and seed == @job.seed")
        manifest = job.directory.read_manifest() or {}
        check_run(rows, job.open_task().settings, job.label, manifest)
    sets = evaluations.groupby("task")["evaluation_set"].nunique()
    for task in sets[sets != 1].index:
        raise ValueError(f"{task}: runs were evaluated on {sets[task]} different question sets")


def check_run(
    rows: pd.DataFrame, settings: TaskSettings, label: str, manifest: Mapping[str, Any]
) -> None:
    """Raise ValueError naming the run `label` if its metrics, one row per step, cannot be trusted.

    It must have all its steps, no missing reward but those of lost trajectories, ratios that could
    move, and a sampling and a training engine that agree (`MAX_MISMATCH`).  A rollout goes on
    without a trajectory that met an error, which is counted.  A run that a tripwire ended has the
    steps up to there: the last of them need not be finite if that was the reason, and ratios need
    to have moved only if there was a step at the full learning rate.  The engines are not compared
    in steps with tokens that rollback put in, which were sampled in another context on purpose.
    """
    training = settings.training
    reason = manifest.get("stop_reason", FINISHED)
    steps = training.steps if reason == FINISHED else manifest["steps_done"]
    finite = rows.sort_values("step").head(steps - (reason == NON_FINITE))
    sampled = finite[finite.get("grafted_tokens", pd.Series(0, finite.index)).fillna(0) == 0]
    allowed = MAX_MISMATCH[precision(settings)]
    complaints = {
        f"has {len(rows)} of {steps} steps": len(rows) != steps,
        "has a loss or gradient that is not a number": not np.isfinite(
            finite[["loss", "gradient_norm"]]
        ).all(axis=None),
        **{f"has a {name} that is not a number": finite[name].isna().any() for name in _JUDGED},
        **dict.fromkeys(_miscounted(rows), True),
        f"samples from another distribution than it trains (more than {allowed} nats apart)": (
            sampled["mean_abs_logprob_diff"] > allowed
        ).any(),
        "never moved a ratio": _could_move(finite, training, reason)
        and finite["ratio_max"].max() < 1.001,
    }
    for complaint, holds in complaints.items():
        if holds:
            raise ValueError(f"run {label} {complaint}")


_JUDGED = (
    "missing_rewards", "lost", "mean_abs_logprob_diff", "ratio_max", "zero_variance_groups",
)  # fmt: skip


def _miscounted(rows: pd.DataFrame) -> list[str]:
    """A complaint about every step in which a reward is missing that no lost trajectory had."""
    odd = rows[rows["missing_rewards"] != rows["lost"]]
    counts = odd[["missing_rewards", "lost", "step"]].itertuples(index=False)
    return [
        f"has {missing:g} missing rewards for {lost:g} lost trajectories at step {step}"
        for missing, lost, step in counts
    ]


def precision(settings: TaskSettings) -> str:
    """The coarsest in which a task's engines compute; a tiny policy knows float32 alone."""
    names = [getattr(settings.policy, name, "float32") for name in ("dtype", "engine_dtype")]
    return "bfloat16" if "bfloat16" in names else "float32"


def _could_move(rows: pd.DataFrame, training: TrainingSettings, reason: str) -> bool:
    """Whether a second update saw a policy that an earlier one had had time to change."""
    if training.updates_per_batch == 1 or not (rows["zero_variance_groups"] < 1).any():
        return False
    return reason == FINISHED or len(rows) > training.warmup_steps
