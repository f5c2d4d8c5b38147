"""One run: from its warm start or last checkpoint to its manifest.

Killed at any moment, also by SIGTERM, it ends at once and leaves no manifest; whatever it was
writing is whole or absent, and the next call goes on to the same bytes.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from turncredit.checkpoints import load_newest, previous_checkpoint, save_checkpoint
from turncredit.evaluation import (
    difficulty_rows,
    evaluate,
    evaluation_rows,
    evaluation_set_hash,
    hops_rows,
    question_rows,
)
from turncredit.first_evaluations import played_once
from turncredit.loggers import log_writers
from turncredit.parallel import Report
from turncredit.policies.protocol import Policy
from turncredit.records import Trajectory, write_trajectories
from turncredit.results import RunDirectory, stored, write_table
from turncredit.run_ledger import Ledger
from turncredit.signals import token_rates
from turncredit.tasks import Task
from turncredit.training import Method, StepLog, new_optimiser, train
from turncredit.tripwires import FINISHED, NON_FINITE, Stop, Tripwires, repeated_turns
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class Run:
    """One method on one task with one seed."""

    label: str
    task: Task
    method: Method
    seed: int
    directory: RunDirectory
    hashes: dict[str, str]
    """What makes it this run: files of another run are not continued."""
    params: dict[str, Any]
    """The values behind the hashes, for the manifest."""


@dataclass(frozen=True)
class Learner:
    """What a run trains, and what its checkpoints hold of it."""

    policy: Policy
    optimiser: torch.optim.Optimizer
    memory: dict[str, Tensor]
    """What the method keeps of earlier steps; {} before the first."""
    ledger: Ledger
    """Whose checkpoints they are, and what the run had spent at each."""

    def save(self, path: Path, step: int) -> None:
        """Write a checkpoint after `step` steps."""
        self.ledger.note(step)
        state = {"extra": self.memory, "identity": self.ledger.hashes}
        save_checkpoint(path, self.policy, self.optimiser, step, **state)

    def load(self, path: Path) -> tuple[int, list[str]]:
        """See `load_newest`."""
        state = {"extra": self.memory, "identity": self.ledger.hashes}
        return load_newest(path, self.policy, self.optimiser, **state)


def complete(run: Run, policy: Policy, report: Report) -> None:
    """Train `policy`, which is its warm start, to the end of the run or until a tripwire ends it.

    A run that a tripwire ended is over, and is evaluated where it stopped.  Not so after an update
    that was not finite: no policy is left to evaluate or to save, so the final evaluation is
    missing (`evaluated_at` is null in the manifest) and the last good checkpoint stays.
    """
    ledger = Ledger(
        run.directory.path / "begun.json", run.hashes, lambda: run.task.environment.failures
    )
    settings = run.task.settings.training
    reference = policy.frozen_copy() if settings.kl else None  # the policy as training found it
    learner = Learner(policy, new_optimiser(policy, settings), {}, ledger)
    start = _resume(run, learner)
    if start == 0:
        _evaluate(run, policy, 0)
    with _live_logs(run, report) as tell:
        done, stop = _train(run, learner, reference, start, tell)
    facts = {
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": ledger.seconds,
        "seconds_of_a_step": _seconds_of_a_step(run.directory),
        "resumed_at": start,
        "damaged_checkpoints": ledger.damages,
        "failures": ledger.failures,
    }
    run.directory.finish(_description(run) | _ending(done, stop) | facts)


def _seconds_of_a_step(directory: RunDirectory) -> dict[str, float]:
    """Mean seconds of each part of a training step; {} if none was made."""
    rows = directory.read("timings.csv")
    columns = rows[0] if rows else {}
    parts = [name for name in columns if name != "step" and not name.endswith("_per_second")]
    return {part: fmean(row[part] for row in rows) for part in parts}


@contextlib.contextmanager
def _live_logs(run: Run, report: Report) -> Iterator[Report]:
    """`report`, which also tells the writers that TURNCREDIT_LOG names, such as `tensorboard`."""
    names = os.environ.get("TURNCREDIT_LOG", "").split()
    writers = log_writers(names, run.directory.path, run.hashes)

    def tell(label: str, done: int, total: int, shown: Mapping[str, float]) -> None:
        report(label, done, total, shown)
        for writer in writers:
            writer.write(done, shown)

    try:
        yield tell
    finally:
        for writer in writers:
            writer.close()


def _train(
    run: Run, learner: Learner, reference: Policy | None, start: int, report: Report
) -> tuple[int, Stop | None]:
    """The steps from `start` on; returns the number of steps done in all and what ended them."""
    task, done = run.task, start
    wires, stop = _replayed(run)
    if stop:  # the run was killed between its last step and its manifest
        return start, stop
    for log in train(
        learner.policy,
        learner.optimiser,
        task.vocabulary,
        task.environment,
        task.world,
        run.method,
        task.settings.training,
        seed=run.seed,
        start=start,
        reference=reference,
        memory=learner.memory,
    ):
        done, metrics = log.step + 1, log.metrics | _watched(wires, log)
        stop = wires.see(stored(metrics)) or _lost(learner.policy)
        _write(run.directory, log, metrics)
        report(run.label, done, task.settings.training.steps, metrics | _beside(log))
        if stop is None or stop.reason != NON_FINITE:
            _evaluate_and_save(run, learner, done, last=stop is not None)
        if stop:
            warnings.warn(_announcement(run, log.step, stop), stacklevel=1)
            break
    return done, stop


def _replayed(run: Run) -> tuple[Tripwires, Stop | None]:
    """The tripwires after the steps that are done, and what they say of the last one."""
    wires, stop = Tripwires(run.task.tripwires), None
    for row in run.directory.read("metrics.csv"):
        stop = wires.see(row)
    return wires, stop


def _evaluate_and_save(run: Run, learner: Learner, done: int, *, last: bool) -> None:
    """Whichever of the two is due after `done` steps; after the last one both are."""
    settings = run.task.settings
    last = last or done == settings.training.steps
    if last or done % settings.evaluation.every == 0:
        _evaluate(run, learner.policy, done)
    if last or done % settings.training.checkpoint_every == 0:
        learner.save(run.directory.checkpoint, done)


def _watched(wires: Tripwires, log: StepLog) -> dict[str, float]:
    """Metrics that only a tripwire reads, where one does and the training loop has them not."""
    if "repeated_turns" in wires.metrics and "repeated_turns" not in log.metrics:
        return {"repeated_turns": repeated_turns(log.trajectories)}
    return {}


def _beside(log: StepLog) -> dict[str, float]:
    """What turns.csv and timings.csv get of a step, under names of their own, for live logs."""
    rates = token_rates(log.metrics["tokens"], log.seconds)
    turns = {
        f"turn_{row['turn']}/{name}": value
        for row in log.turns
        for name, value in row.items()
        if name != "turn"
    }
    return {f"time/{name}": value for name, value in (log.seconds | rates).items()} | turns


def _lost(policy: Policy) -> Stop | None:
    """The end of a run whose last update wrote NaN or infinity, which no metric shows yet."""
    for name, weight in policy.state_dict().items():
        if weight.is_floating_point() and not weight.isfinite().all():
            return Stop(NON_FINITE, f"the weight {name} is not finite")
    return None


def _announcement(run: Run, step: int, stop: Stop) -> str:
    lost = "; no policy is left, so its final evaluation is missing"
    return (
        f"run {run.label} stopped after step {step} by the tripwire {stop.reason} "
        f"({stop.detail}){lost if stop.reason == NON_FINITE else ''}"
    )


def _ending(done: int, stop: Stop | None) -> dict[str, Any]:
    """What the manifest says of how the run ended; stop_step is the step of its last row."""
    if stop is None:
        return {"stop_reason": FINISHED, "steps_done": done, "evaluated_at": done}
    return {
        "stop_reason": stop.reason,
        "stop_step": done - 1,
        "stop_detail": stop.detail,
        "steps_done": done,
        "evaluated_at": None if stop.reason == NON_FINITE else done,
    }


def _description(run: Run) -> dict[str, Any]:
    """What the manifest says of a run whenever it is made."""
    return run.hashes | {
        "params": run.params,
        "seed": run.seed,
        "evaluation_set_hash": evaluation_set_hash(_questions(run.task)),
        "steps": run.task.settings.training.steps,
    }


def _resume(run: Run, learner: Learner) -> int:
    """Steps already done by an interrupted run with the same hashes; 0 after clearing any other."""
    directory, ledger = run.directory, learner.ledger
    directory.sweep()
    if not ledger.continues() or not directory.can_resume():
        directory.start()
        ledger.begin()
        return 0
    step, complaints = learner.load(directory.checkpoint)
    if complaints:
        text = f"run {run.label} goes on from its previous checkpoint, at step {step}"
        warnings.warn(f"{text}: {complaints[0]}", stacklevel=1)
        ledger.damaged(step)
        previous_checkpoint(directory.checkpoint).replace(directory.checkpoint)
    directory.rewind(step)
    directory.require_rows("eval.csv", _evaluation_keys(run, step))
    ledger.go_on(step)
    return step


def _evaluation_keys(run: Run, done: int) -> list[tuple[str, str]]:
    """Step and hops of every row that eval.csv has after `done` steps, in order."""
    settings = run.task.settings
    ended = done == settings.training.steps or _replayed(run)[1] is not None
    due = range(0, done + 1, settings.evaluation.every)
    steps = [*due, *([done] if ended and done not in due else [])]
    return [(str(step), hops) for step in steps for hops in hops_rows(_questions(run.task))]


def _evaluate(run: Run, policy: Policy, step: int) -> None:
    """Append the rows of one evaluation; of the latest, trajectories and questions are kept."""
    task, path = run.task, run.directory.path
    questions = _questions(task)
    play = partial(_play, task, policy, questions)
    trajectories = play() if step else played_once(task, policy, play)
    facts = {
        "temperature": task.settings.evaluation.temperature,
        "evaluation_set": evaluation_set_hash(questions)[:16],
    }
    rows = evaluation_rows(questions, trajectories)
    run.directory.append("eval.csv", [{"step": step} | row | facts for row in rows])
    write_trajectories(path / "trajectories.jsonl.gz", trajectories)
    write_table(path / "questions.csv", question_rows(questions, trajectories))
    write_table(path / "difficulty.csv", difficulty_rows(questions, trajectories))


def _play(task: Task, policy: Policy, questions: Sequence[Question]) -> list[Trajectory]:
    return evaluate(
        policy,
        task.vocabulary,
        task.environment,
        questions,
        max_turn_tokens=task.settings.training.max_turn_tokens,
        temperature=task.settings.evaluation.temperature,
    )


def _write(directory: RunDirectory, log: StepLog, metrics: dict[str, float]) -> None:
    step = {"step": log.step}
    directory.append("turns.csv", [step | row for row in log.turns])
    rates = token_rates(log.metrics["tokens"], log.seconds)
    directory.append("timings.csv", [step | log.seconds | rates])
    directory.append("metrics.csv", [step | metrics])


def _questions(task: Task) -> list[Question]:
    return task.world.evaluation_questions(task.settings.evaluation.questions)
