"""Runs of a credit audit: trained, remembered whole, and audited at chosen moments on the way."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd

from turncredit import paths
from turncredit.audit.blame import audited
from turncredit.audit.estimates import AuditSettings
from turncredit.audit.recordings import Recording
from turncredit.audit.settings import LabelAuditSettings
from turncredit.audit.worth import (
    Moment,
    audited_moment,
    between_steps,
    cost_rows,
    ledger_of_one,
    worth_rows,
)
from turncredit.code_version import code_hash
from turncredit.parallel import Report, in_parallel
from turncredit.plans import named_methods
from turncredit.policies.protocol import Policy
from turncredit.results import write_table
from turncredit.seeding import derive, python_stream
from turncredit.storage import exclusive, read_mapping, sha256_file, write_json
from turncredit.tasks import Task, open_task
from turncredit.training import Method, StepLog, new_optimiser, train
from turncredit.warm_starts import warm_started_policy

METHOD = Method("grpo", {}, "none", {}, "ppo_clip", {})
"""What all these runs are trained with."""
TABLES = ("worth.csv", "audit_cost.csv", "ledger.csv")
"""What an audit leaves beside the trajectories of its run."""
_NOTE = "audited.json"
"""Written last: which of TABLES there are, and their hashes."""
_PATIENCE = 1.0
"""Seconds to wait for a run in other hands: those of a process that is just being stopped."""


def recordings(settings: LabelAuditSettings) -> list[Recording]:
    """Where the run of each seed is remembered, whether it has been played or not.

    Raises ValueError for more steps than the task trains, and for a gate rule that is no method.
    """
    named_methods(settings.rules)
    task = open_task(settings.tier, settings.task_name)
    training = task.settings.training
    if settings.stages[-1] > training.steps:
        raise ValueError(f"stages: {settings.stages[-1]} steps, and the task has {training.steps}")
    identity = {"task": asdict(task.settings) | task.settings.kinds, "method": asdict(METHOD)}
    identity |= {"steps": settings.stages[-1], "contents": task.contents}
    identity |= {"audit": [settings.audit_questions, settings.audit_continuations]}
    identity |= {"at": list(settings.audit_at), "code": code_hash("turncredit.credit_audits")}
    folder = paths.results(settings.tier) / settings.notebook / settings.task_name
    return [
        Recording(
            folder / f"seed_{seed}", seed, settings.block(seed), training.group_size, identity
        )
        for seed in settings.seeds
    ]


def record_missing(settings: LabelAuditSettings, workers: int) -> list[Recording]:
    """Play what is not recorded with these settings and this code; `workers` runs at a time.

    Returns all recordings; an interrupted run begins anew.
    """
    runs = recordings(settings)
    missing = [run for run in runs if not is_whole(run)]
    starts = {run.block: run for run in missing}
    in_parallel(_prepare, [(settings, block) for block in starts], workers, "warm starts")
    in_parallel(record, [(settings, run) for run in missing], workers, "runs")
    return runs


def is_whole(run: Recording) -> bool:
    """Whether trajectories and tables of a run are there, every file as it was written."""
    noted = read_mapping(run.folder / _NOTE, "delete it to audit the run anew") or {}
    if noted.get("hash") != run.hash or not isinstance(noted.get("files"), dict):
        return False
    return run.is_finished() and _hashes(run) == noted["files"]


def record(settings: LabelAuditSettings, run: Recording, report: Report) -> None:
    """Play one run from its warm start, and keep its trajectories and TABLES.

    A run in which no trajectory failed has no ledger.  Raises RuntimeError naming the process that
    has this run in hand, if another one has.
    """
    with exclusive(run.folder / ".lock", patience=_PATIENCE):
        if not is_whole(run):
            _record(settings, run, report)


def _record(settings: LabelAuditSettings, run: Recording, report: Report) -> None:
    steps = settings.stages[-1]
    for name in (_NOTE, *TABLES):
        (run.folder / name).unlink(missing_ok=True)

    def told(log: StepLog) -> tuple[int, Any]:
        report(f"seed {run.seed}", log.step + 1, steps, log.metrics)
        return log.step, log.trajectories

    moments: list[Moment] = []
    run.write(told(log) for log in _played(settings, run, moments))
    place = {"seed": run.seed, "block": run.block}
    tables = (worth_rows(moments, place), cost_rows(moments, place), ledger_of_one(moments))
    for name, rows in zip(TABLES, tables, strict=True):
        if rows:
            write_table(run.folder / name, rows)
    write_json(run.folder / _NOTE, {"hash": run.hash, "files": _hashes(run)})


def _hashes(run: Recording) -> dict[str, str]:
    """Of those of TABLES that lie there."""
    found = [run.folder / name for name in TABLES]
    return {path.name: sha256_file(path) for path in found if path.exists()}


def table(runs: list[Recording], name: str) -> pd.DataFrame:
    """One of TABLES over the runs that have it."""
    texts = {"by": str, "bin": str, "stage": str}
    files = [run.folder / name for run in runs if (run.folder / name).exists()]
    parts = [
        pd.read_csv(file, dtype=texts, keep_default_na=False, na_values=[""]) for file in files
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _played(
    settings: LabelAuditSettings, run: Recording, moments: list[Moment]
) -> Iterator[StepLog]:
    """The logs of the training, while `moments` fills with what is audited between its steps."""
    task = open_task(settings.tier, settings.task_name)
    policy = warm_started_policy(task, run.block, code_hash(), lambda step, loss: None)
    learner = (policy, new_optimiser(policy, task.settings.training))
    world = (task.vocabulary, task.environment, task.world)
    reference = policy.frozen_copy() if task.settings.training.kl else None
    settled = {"seed": run.seed, "reference": reference}
    logs = train(*learner, *world, METHOD, task.settings.training, **settled)
    look = partial(_look, settings, run, task, policy, moments)
    return between_steps(islice(logs, settings.stages[-1]), settings.audit_at, look)


def _look(
    settings: LabelAuditSettings,
    run: Recording,
    task: Task,
    policy: Policy,
    moments: list[Moment],
    step: int,
) -> None:
    """Audit the policy as it is after `step` steps, on fresh questions of training."""
    seed, training = derive(run.seed, "worth"), task.settings.training
    stream = python_stream(seed, "questions", step)
    moments.append(
        audited_moment(
            policy,
            task.vocabulary,
            task.environment,
            task.world.train_questions(settings.audit_questions, stream),
            audited(),
            AuditSettings(settings.audit_continuations, derive(seed, "audit", step)),
            group_size=training.group_size,
            max_turn_tokens=training.max_turn_tokens,
            seed=seed,
            step=step,
        )
    )


def _prepare(settings: LabelAuditSettings, block: int, report: Report) -> None:
    """Make sure that a warm start exists."""
    task = open_task(settings.tier, settings.task_name)
    total = task.settings.warm_start.steps
    warm_started_policy(
        task,
        block,
        code_hash(),
        lambda step, loss: report(f"warm start {block}", step + 1, total, {"loss": loss}),
    )
