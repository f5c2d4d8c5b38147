"""A task: world, environment, policy and training settings, everything that arms must share.

An experiment compares methods on a task; what is tuned lives here, so no arm can be tuned alone.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from turncredit import params, paths
from turncredit.demonstrations import DemonstrationSettings, demonstrate
from turncredit.environments.deep_research import DeepResearch, DeepResearchSettings
from turncredit.environments.judges import RuleJudge
from turncredit.evaluation import EvaluationSettings
from turncredit.policies.tiny import TinyPolicy, TinySettings, load_policy, save_policy
from turncredit.policies.vocabulary import Vocabulary, tag_vocabulary
from turncredit.records import Trajectory
from turncredit.seeding import python_stream
from turncredit.storage import exclusive, sha256_json
from turncredit.training import TrainingSettings
from turncredit.warm_start import WarmStartSettings, warm_start
from turncredit.worlds.base import World
from turncredit.worlds.factbook import FactbookWorld
from turncredit.worlds.synthetic import SyntheticWorld


@dataclass(frozen=True)
class FactbookSettings:
    """Which questions of the Factbook world are asked; see `FactbookWorld`."""

    KIND: ClassVar[str] = "factbook"

    hops: tuple[int, ...]
    max_per_final: int
    miss_rate: float
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class TaskSettings:
    """The contents of `params/<tier>/tasks/<task>.yaml`."""

    world: SyntheticWorld | FactbookSettings
    environment: DeepResearchSettings
    judge: RuleJudge
    policy: TinySettings
    demonstrations: DemonstrationSettings
    warm_start: WarmStartSettings
    warm_start_task: str
    """Task whose demonstrations it starts from: this one, or one with the same vocabulary."""
    training: TrainingSettings
    evaluation: EvaluationSettings


@dataclass(frozen=True)
class TeachingParams:
    """The parameters of a teaching notebook that plays one task."""

    tier: str
    task_name: str
    seed: int
    group_size: int
    first_k: int


@dataclass(frozen=True)
class Task:
    """A task ready to run."""

    name: str
    tier: str
    settings: TaskSettings
    world: World
    environment: DeepResearch
    vocabulary: Vocabulary

    def new_policy(self, seed: int) -> TinyPolicy:
        """An untrained policy of this task's size."""
        return TinyPolicy(self.settings.policy, len(self.vocabulary), seed)

    def demonstrations(self, seed: int) -> Callable[[int], list[Trajectory]]:
        """step -> the scripted trajectories of that warm-start step."""

        def at(step: int) -> list[Trajectory]:
            stream = python_stream(seed, "demonstrations", step)
            questions = self.world.train_questions(self.settings.warm_start.batch, stream)
            return [
                demonstrate(
                    self.environment,
                    self.vocabulary,
                    question,
                    self.world.names,
                    self.settings.demonstrations,
                    stream,
                    self.settings.policy.max_tokens,
                )
                for question in questions
            ]

        return at


def task_path(tier: str, name: str) -> Path:
    """The params file of a task."""
    return paths.params(tier) / "tasks" / f"{name}.yaml"


def open_task(tier: str, name: str) -> Task:
    """Read a task's params and build its world, environment and vocabulary.

    An unchanged file gives the same task again; an edited one is read anew.
    """
    return _open(tier, name, params.load(TaskSettings, task_path(tier, name)))


@lru_cache(maxsize=8)
def _open(tier: str, name: str, settings: TaskSettings) -> Task:
    world = settings.world
    if world.KIND == "factbook":
        world = FactbookWorld(**asdict(world))
    environment = DeepResearch(world, settings.judge, settings.environment)
    vocabulary = tag_vocabulary(environment.actions, world.words)
    return Task(name, tier, settings, world, environment, vocabulary)


def warm_started_policy(
    task: Task, seed: int, code: str, report: Callable[[int, float], None]
) -> TinyPolicy:
    """The policy of a task after its warm start, trained once per settings, seed and `code`.

    Kept under the cache folder by hash; a second process asking for the same one waits for it.
    Raises ValueError if `warm_start_task` has another vocabulary or policy size.
    """
    source = open_task(task.tier, task.settings.warm_start_task)
    if (source.vocabulary.entries, source.settings.policy) != (
        task.vocabulary.entries,
        task.settings.policy,
    ):
        raise ValueError(
            f"{task_path(task.tier, task.name)}: warm_start_task = {source.name!r} has another "
            "vocabulary or policy size"
        )
    identity = {
        name: value for name, value in asdict(source.settings).items() if name in _WARM_START_FIELDS
    }
    key = sha256_json([source.settings.world.KIND, identity, seed, code])[:16]
    path = paths.cache() / "warm_starts" / f"{task.tier}-{source.name}-{seed}-{key}.safetensors"
    policy = task.new_policy(seed)
    with exclusive(path.with_suffix(".lock")):
        if not path.exists():
            settings = source.settings.warm_start
            demonstrations = source.demonstrations(seed)
            warm_start(
                policy,
                source.vocabulary,
                source.world.names,
                demonstrations,
                settings,
                seed=seed,
                report=report,
            )
            save_policy(policy, path)
    load_policy(policy, path)
    return policy


_WARM_START_FIELDS = ("world", "environment", "judge", "policy", "demonstrations", "warm_start")
