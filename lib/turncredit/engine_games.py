"""Policies as their training left them, played by ALFWorld's engine beside the rules in Python.

They were trained in rooms whose rules are this package's; the same games by the engine say whether
the numbers hold there.  Apart from `experiment`, so that what is played afterwards makes no run
stale.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from turncredit.checkpoints import load_checkpoint
from turncredit.code_version import code_hash
from turncredit.environments.alfworld import LABEL, EngineGames
from turncredit.environments.alfworld.package import missing_packages
from turncredit.environments.protocol import Environment
from turncredit.evaluation import evaluate
from turncredit.experiment import Job, is_finished, jobs_at_once, jobs_of
from turncredit.parallel import Report, in_parallel
from turncredit.params import require_positive
from turncredit.plans import Experiment
from turncredit.policies.protocol import Policy
from turncredit.records import Trajectory
from turncredit.results import read_table, table_paths, write_table
from turncredit.storage import sha256_json
from turncredit.tasks import Task
from turncredit.training import new_optimiser
from turncredit.tripwires import NON_FINITE
from turncredit.worlds.base import Question

TABLE = "engine.csv"
"""In the folder of each run: its games by family."""
COLUMNS = (
    *"task arm seed family games success success_by_rules equal lost played_by made_of".split(),
)


@dataclass(frozen=True)
class EngineSettings:
    """How many games the engine plays of each run, and how."""

    games: int
    """The first ones of the run's evaluation, so that families come in turn."""
    at_once: int
    """Games that go on side by side, which bounds the memory of a worker."""
    workers: int
    """Processes of the engine for each run that is played."""

    def __post_init__(self) -> None:
        require_positive(self, "games", "at_once", "workers")


def play_with_engine(
    experiment: Experiment, settings: EngineSettings, *, workers: int | None = None
) -> pd.DataFrame:
    """The rows of TABLE of every run, played where they are missing or stale.

    Columns: COLUMNS.  success: share of the family's games that are won by the engine, and
    by the rules; equal: share that went the same way by both, token by token; lost: games
    that the engine did not finish, which are in no share.  Without the engine's packages nothing is
    played, and what an earlier call has left is returned: no row if there is nothing.
    Raises ValueError naming a run that is not finished.
    """
    code = code_hash()
    for job in jobs_of(experiment):
        if not is_finished(job, code):
            raise ValueError(f"run {job.label} is not finished with these parameters and this code")
    if not missing_packages():
        wanted = [job for job in jobs_of(experiment) if not _is_fresh(job, settings)]
        calls = [(job, settings) for job in wanted if _has_policy(job)]
        in_parallel(_play, calls, workers or jobs_at_once(experiment), "games by ALFWorld's engine")
    if not table_paths(experiment.folder, TABLE):
        return pd.DataFrame(columns=list(COLUMNS))
    return read_table(experiment.folder, TABLE)


def engine_rows(
    task: Task, policy: Policy, settings: EngineSettings, engine: EngineGames
) -> list[dict[str, Any]]:
    """A row for each family: what the policy comes to by the engine and by the rules."""
    questions = task.world.evaluation_questions(settings.games)
    by_engine = replace(task.environment, play=engine)
    played: dict[str, list[tuple[Trajectory, Trajectory]]] = {}
    for start in range(0, len(questions), settings.at_once):
        chunk = questions[start : start + settings.at_once]
        both = [_played(task, policy, each, chunk) for each in (by_engine, task.environment)]
        for question, pair in zip(chunk, zip(*both, strict=True), strict=True):
            played.setdefault(question.kind, []).append(pair)
    return [{"family": family, **_shares(pairs)} for family, pairs in played.items()]


def _played(
    task: Task, policy: Policy, environment: Environment, questions: Sequence[Question]
) -> list[Trajectory]:
    settings = task.settings
    return evaluate(
        policy,
        task.vocabulary,
        environment,
        questions,
        max_turn_tokens=settings.training.max_turn_tokens,
        temperature=settings.evaluation.temperature,
    )


def _shares(pairs: Sequence[tuple[Trajectory, Trajectory]]) -> dict[str, float]:
    """Of (by the engine, by the rules), without the games that the engine has lost."""
    whole = [(engine, rules) for engine, rules in pairs if engine.reward is not None]
    known = max(len(whole), 1)
    return {
        "games": len(whole),
        "success": sum(engine.success for engine, _ in whole) / known if whole else float("nan"),
        "success_by_rules": (
            sum(rules.success for _, rules in whole) / known if whole else float("nan")
        ),
        "equal": sum(_told(a) == _told(b) for a, b in whole) / known if whole else float("nan"),
        "lost": len(pairs) - len(whole),
    }


def _told(trajectory: Trajectory) -> tuple[Any, ...]:
    """What was said and shown and how it ended; the last bits of log-probs depend on the batch."""
    turns = [(turn.sampled_ids, turn.observation_ids, turn.action) for turn in trajectory.turns]
    return trajectory.prompt_ids, turns, trajectory.stop_reason, trajectory.success


def _play(job: Job, settings: EngineSettings, report: Report) -> None:
    """Write TABLE of a run."""
    task, directory = job.open_task(), job.directory
    policy = task.new_policy(job.warm_start_seed)
    optimiser = new_optimiser(policy, task.settings.training)
    load_checkpoint(directory.checkpoint, policy, optimiser, extra={})
    engine = EngineGames(settings.workers)
    try:
        rows = engine_rows(task, policy, settings, engine)
    finally:
        engine.close()
    named = {"played_by": LABEL, "made_of": _made_of(job, settings)}
    write_table(directory.path / TABLE, [row | named for row in rows])
    report(job.label, 1, 1, {"equal": sum(row["equal"] for row in rows) / len(rows)})


def _is_fresh(job: Job, settings: EngineSettings) -> bool:
    """Whether the rows of this policy lie there; what is no table is none."""
    try:
        rows = pd.read_csv(job.directory.path / TABLE)
    except (FileNotFoundError, ValueError):
        return False
    return set(rows.get("made_of", [])) == {_made_of(job, settings)}


def _has_policy(job: Job) -> bool:
    return (job.directory.read_manifest() or {}).get("stop_reason") != NON_FINITE


def _made_of(job: Job, settings: EngineSettings) -> str:
    """Of the run's policy, the settings, and the code that plays."""
    manifest = job.directory.read_manifest() or {}
    policy = manifest.get("files", {}).get(job.directory.checkpoint.name)
    return sha256_json([policy, asdict(settings), code_hash("turncredit.engine_games")])
