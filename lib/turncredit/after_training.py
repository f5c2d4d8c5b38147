"""Rollouts of policies as their training left them: several tries alone, and by the arm's rollout.

The fixed evaluation of a run has one try per question, without the rollout that it was trained
with.  Apart from `experiment`, so that what is played afterwards makes no run stale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from turncredit.checkpoints import load_checkpoint
from turncredit.code_version import code_hash
from turncredit.environments.protocol import Environment
from turncredit.experiment import Job, is_finished, jobs_at_once, jobs_of
from turncredit.parallel import Report, in_parallel
from turncredit.params import require_positive
from turncredit.plans import Experiment
from turncredit.policies.protocol import Policy
from turncredit.results import read_table, write_table
from turncredit.rollout.protocol import Asked, Drawn
from turncredit.rollout.strategies import STRATEGIES
from turncredit.rollout_measures import (
    ALONE,
    OWN,
    TABLE,
    diversity,
    high_entropy_turns,
    passes,
)
from turncredit.storage import sha256_json
from turncredit.tasks import Task
from turncredit.training import new_optimiser
from turncredit.tripwires import NON_FINITE


@dataclass(frozen=True)
class AfterSettings:
    """Size of what is played afterwards, and how it is measured."""

    questions: int
    """Held-out ones; each is played as many times as a training group has trajectories."""
    ks: tuple[int, ...]
    """Of pass@k."""
    first_k: int
    """Tokens that open a turn."""
    radius: float
    """Of a cluster, in cosine distance; AEPO's is not known."""
    neighbours: int
    """Trajectories that make a cluster, see `rollout_measures.clusters`."""

    def __post_init__(self) -> None:
        require_positive(self, "questions", "first_k", "radius", "neighbours")
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"ks = {list(self.ks)} must be numbers of tries, each at least 1")


def play_afterwards(
    experiment: Experiment, settings: AfterSettings, *, workers: int | None = None
) -> pd.DataFrame:
    """The rows of TABLE of every run, played where they are missing or stale.

    Columns: task, arm, seed, play (ALONE, and OWN where the arm has a rollout), trajectories,
    those of `passes`, tool_calls (of a trajectory), error_share (of tool calls), those of
    `diversity` and `high_entropy_turns`, and `made_of`, a hash of policy and settings.  A run
    whose last update was not finite has no policy, and no rows.
    Raises ValueError for a k beyond a group, or naming a run that is not finished.
    """
    code = code_hash()
    for job in jobs_of(experiment):
        size = job.open_task().settings.training.group_size
        if max(settings.ks) > size:
            raise ValueError(f"ks: {max(settings.ks)} tries, but a group of {job.task} has {size}")
        if not is_finished(job, code):
            raise ValueError(f"run {job.label} is not finished with these parameters and this code")
    wanted = [job for job in jobs_of(experiment) if not _is_fresh(job, settings)]
    lost = [job for job in wanted if _stop_reason(job) == NON_FINITE]
    for job in lost:  # what an older policy played is not this run's
        (job.directory.path / TABLE).unlink(missing_ok=True)
    calls = [(job, settings) for job in wanted if job not in lost]
    in_parallel(_play, calls, workers or jobs_at_once(experiment), "rollouts afterwards")
    return read_table(experiment.folder, TABLE)


def played_rows(
    task: Task, policy: Policy, rollout: str, options: Mapping[str, Any], settings: AfterSettings
) -> list[dict[str, Any]]:
    """A row for each way of playing: ALONE, and OWN unless `rollout` is the independent one."""
    ways = {ALONE: STRATEGIES["independent"]()}
    if rollout != "independent":
        ways[OWN] = STRATEGIES[rollout](**options)
    rows = []
    for way, strategy in ways.items():
        failed = sum(task.environment.failures.values())
        drawn = strategy.draw(_asked(task, policy, settings.questions))
        errors = sum(task.environment.failures.values()) - failed
        rows.append({"play": way, **measured(drawn, task.environment, errors, settings)})
    return rows


def measured(
    drawn: Drawn, environment: Environment, errors: int, settings: AfterSettings
) -> dict[str, float]:
    """What a rollout came to; errors: how often a tool failed in it."""
    groups, counts = drawn.groups, drawn.counts
    trajectories = [trajectory for group in groups for trajectory in group]
    calls = counts.get("rollout_tool_calls", counts.get("tool_calls"))
    if calls is None:
        calls = tool_calls(groups, environment)
    return {
        "trajectories": len(trajectories),
        **passes(groups, settings.ks),
        "tool_calls": calls / len(trajectories),
        "error_share": errors / calls if calls else float("nan"),
        **diversity(groups, radius=settings.radius, neighbours=settings.neighbours),
        **high_entropy_turns(groups, drawn.forks, k=settings.first_k),
    }


def tool_calls(groups: Sequence[Sequence[Any]], environment: Environment) -> int:
    """Messages that asked a tool and were answered: the last of a trajectory is not."""
    tools = set(environment.actions) - {"answer"}
    turns = [turn for group in groups for t in group for turn in t.turns[:-1]]
    return sum(turn.action in tools for turn in turns)


def _asked(task: Task, policy: Policy, questions: int) -> Asked:
    """Held-out questions with random numbers that neither training nor evaluation has."""
    training, evaluation = task.settings.training, task.settings.evaluation
    return Asked(
        policy,
        task.vocabulary,
        task.environment,
        task.world.evaluation_questions(questions),
        training.group_size,
        seed=0,
        step=-2,
        max_turn_tokens=training.max_turn_tokens,
        temperature=evaluation.temperature,
    )


def _play(job: Job, settings: AfterSettings, report: Report) -> None:
    """Write TABLE of a run."""
    task, directory = job.open_task(), job.directory
    policy = task.new_policy(job.warm_start_seed)
    optimiser = new_optimiser(policy, task.settings.training)
    load_checkpoint(directory.checkpoint, policy, optimiser, extra={})
    method = job.experiment.method(job.arm)
    rows = played_rows(task, policy, method.rollout, method.rollout_options, settings)
    made_of = {"made_of": _made_of(job, settings)}
    write_table(directory.path / TABLE, [row | made_of for row in rows])
    report(job.label, 1, 1, {"pass@1": rows[0][f"pass_{settings.ks[0]}"]})


def _is_fresh(job: Job, settings: AfterSettings) -> bool:
    """Whether a row for each way of playing lies there; what is no table is none."""
    try:
        rows = pd.read_csv(job.directory.path / TABLE)
    except (FileNotFoundError, ValueError):
        return False
    ways = 1 if job.experiment.method(job.arm).rollout == "independent" else 2
    return list(rows.get("made_of", [])) == [_made_of(job, settings)] * ways


def _made_of(job: Job, settings: AfterSettings) -> str:
    """Of the run's policy and rollout, the settings, and the code that plays and measures."""
    manifest = job.directory.read_manifest() or {}
    policy = manifest.get("files", {}).get(job.directory.checkpoint.name)
    method = job.experiment.method(job.arm).values
    return sha256_json([policy, method, asdict(settings), code_hash("turncredit.after_training")])


def _stop_reason(job: Job) -> str | None:
    return (job.directory.read_manifest() or {}).get("stop_reason")
