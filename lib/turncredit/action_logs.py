"""Writes the action log of a task: what a scripted expert does on the questions of its runs.

    python -m turncredit.action_logs cpu factbook --seeds 0 1 2

An arm with `rollout_options: {log: <name>}` reads it.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from turncredit.expert_actions import ActionLog, expert_log, write_log
from turncredit.seeding import python_stream
from turncredit.tasks import Task, open_task


def task_logs(task: Task, seeds: Iterable[int]) -> Iterator[ActionLog]:
    """One log for each question that training with one of the seeds asks first.

    Questions of later rounds of dynamic sampling are not among them.
    """
    known: set[str] = set()
    training = task.settings.training
    for seed in seeds:
        for step in range(training.steps):
            stream = python_stream(seed, "questions", step)
            for question in task.world.train_questions(training.questions_per_step, stream):
                if question.id not in known:
                    known.add(question.id)
                    yield expert_log(task.environment, question, seed)


def log_task(tier: str, task: str, seeds: Sequence[int], *, name: str | None = None) -> Path:
    """Write `task_logs` under a name, by default `<tier>-<task>`; returns the file."""
    logs = task_logs(open_task(tier, task), seeds)
    return write_log(f"{tier}-{task}" if name is None else name, logs)


def main(arguments: Sequence[str] | None = None) -> Path:
    """The command of this module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.action_logs", description="Write the action log of a task."
    )
    parser.add_argument("tier")
    parser.add_argument("task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--name", help="default: <tier>-<task>")
    given = parser.parse_args(arguments)
    return log_task(given.tier, given.task, given.seeds, name=given.name)


if __name__ == "__main__":
    main()
