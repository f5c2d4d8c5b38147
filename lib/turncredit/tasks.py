"""A task: world, environment, policy and training settings, everything that arms must share.

An experiment compares methods on a task; what is tuned lives here, so no arm can be tuned alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turncredit import params, paths
from turncredit.contents import content_hashes, content_stamps
from turncredit.demonstrations import DemonstrationSettings, demonstrate
from turncredit.environments import (
    DeepResearch,
    DeepResearchSettings,
    Household,
    HouseholdSettings,
    SearchR1,
    SearchR1Settings,
    TableQuery,
    TableQuerySettings,
)
from turncredit.environments.actions import closing_tags
from turncredit.environments.alfworld import player
from turncredit.environments.judges import (
    EndpointSettings,
    LocalSettings,
    RuleJudge,
    open_judge,
)
from turncredit.environments.protocol import Environment
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import Disturbances, disturbed
from turncredit.evaluation import EvaluationSettings
from turncredit.params import require_shares
from turncredit.plans_shown import plans_shown, with_plan
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.policies.protocol import Policy, Tokens
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.vllm import VllmPolicy, VllmSettings
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.records import Trajectory
from turncredit.seeding import python_stream
from turncredit.task_checks import require_fitting
from turncredit.training import TrainingSettings
from turncredit.tripwires import TripwireSettings
from turncredit.warm_start import WarmStartSettings
from turncredit.worlds.base import World
from turncredit.worlds.difficulty import WithheldEvidence
from turncredit.worlds.factbook import FactbookWorld
from turncredit.worlds.files import FileSettings
from turncredit.worlds.household import HouseholdWorld
from turncredit.worlds.synthetic import SyntheticWorld
from turncredit.worlds.tables import TableWorld


@dataclass(frozen=True)
class FactbookSettings:
    """Which questions of the Factbook world are asked; see `FactbookWorld`."""

    KIND: ClassVar[str] = "factbook"

    hops: tuple[int, ...]
    max_per_final: int
    miss_rate: float
    attributes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise ValueError("attributes is empty: there would be nothing to ask about")


@dataclass(frozen=True)
class TaskSettings:
    """The contents of `params/<tier>/tasks/<task>.yaml`, which may extend another task's."""

    world: SyntheticWorld | TableWorld | HouseholdWorld | FactbookSettings | FileSettings
    environment: DeepResearchSettings | SearchR1Settings | TableQuerySettings | HouseholdSettings
    wording: str
    """What the environment says around questions and results, a name in `WORDINGS`: tiny, or the
    environment's own.  A tiny policy writes tags, so the JSON ones are not for it."""
    judge: RuleJudge | LocalSettings | EndpointSettings
    """Behind `external_verify`; an environment without that tool never asks it."""
    disturbances: Disturbances
    withheld_share: float
    """Questions whose evidence the world withholds, beside those it cannot answer anyway."""
    policy: TinySettings | HuggingFaceSettings | VllmSettings
    demonstrations: DemonstrationSettings
    warm_start: WarmStartSettings
    warm_start_task: str
    """Task whose demonstrations it starts from: this one, or one with the same vocabulary."""
    training: TrainingSettings
    evaluation: EvaluationSettings

    def __post_init__(self) -> None:
        fitting = ("tiny", self.environment.KIND)
        if self.wording not in fitting:
            raise ValueError(
                f"wording = {self.wording!r} is not one of {', '.join(fitting)}, which a tiny "
                f"policy can answer in the environment {self.environment.KIND}"
            )
        require_shares(self, "withheld_share")
        require_fitting(self)

    @property
    def kinds(self) -> dict[str, str]:
        """What the settings are settings of: their values alone do not say."""
        parts = ("world", "environment", "judge")
        return {f"{part}_kind": getattr(self, part).KIND for part in parts}


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
    environment: Environment
    vocabulary: Tokens
    tripwires: TripwireSettings | None
    """The section `tripwires` of the file, which may be absent; None: only `non_finite`."""
    contents: dict[str, str]
    """Hashes of the files that the settings name, by key; see `content_hashes`."""

    def new_policy(self, seed: int) -> Policy:
        """The policy of this task before any warm start; the seed draws what is not read.

        Raises ValueError for a world over files: its words are not known beforehand, so that only a
        policy with a tokeniser of its own can read its questions.
        """
        if self.settings.policy.KIND == "huggingface":
            return HuggingFacePolicy(self.settings.policy, seed)
        if self.settings.policy.KIND == "vllm":
            return VllmPolicy(self.settings.policy, seed)
        if not self.world.words:
            raise ValueError(
                f"{task_path(self.tier, self.name)}: world.kind = {self.settings.world.KIND!r} has "
                "no list of words, which a tiny policy needs; take one with a tokeniser of its own"
            )
        return TinyPolicy(self.settings.policy, len(self.vocabulary), seed)

    def demonstrations(self, seed: int) -> Callable[[int], list[Trajectory]]:
        """step -> the scripted trajectories of that warm-start step."""
        share = self.settings.demonstrations.planned

        def at(step: int) -> list[Trajectory]:
            stream = python_stream(seed, "demonstrations", step)
            questions = self.world.train_questions(self.settings.warm_start.batch, stream)
            plans = plans_shown(self.environment, questions, share, seed, step)
            return [
                demonstrate(
                    with_plan(self.environment, question, plan),
                    self.vocabulary,
                    question,
                    self.world.names,
                    self.settings.demonstrations,
                    stream,
                    self.settings.policy.max_tokens,
                    plan=plan,
                )
                for question, plan in zip(questions, plans, strict=True)
            ]

        return at


def task_path(tier: str, name: str) -> Path:
    """The params file of a task."""
    return paths.params(tier) / "tasks" / f"{name}.yaml"


def task_values(tier: str, name: str, *, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a task's params file says, upon what the file says that its key `extends` names.

    Raises ValueError naming the file if tasks extend each other in a circle.
    """
    path = task_path(tier, name)
    values = params.read_yaml(path)
    base = values.pop("extends", None)
    if base is None:
        return values
    above = (*extended_by, name)
    if not isinstance(base, str) or base in above:
        raise ValueError(f"{path}: extends = {base!r} is not the name of another task")
    return params.changed(task_values(tier, base, extended_by=above), values)


def open_task(tier: str, name: str, changes: Mapping[str, Any] | None = None) -> Task:
    """Read a task's params and build its world, environment and vocabulary.

    changes: values by section and key that take the place of the file's.
    Unchanged files give the same task again; edited ones, of the world too, are read anew.
    Raises ValueError naming the file and what no task can be made of.
    """
    path = task_path(tier, name)
    values = params.changed(task_values(tier, name), changes or {})
    wires = values.pop("tripwires", None)
    settings = params.build(TaskSettings, values, str(path))
    tripwires = params.convert(wires, TripwireSettings | None, f"{path}: tripwires")
    if not task_path(tier, settings.warm_start_task).is_file():
        raise ValueError(
            f"{path}: warm_start_task = {settings.warm_start_task!r} is no task of tier {tier}"
        )
    if changes or name != settings.warm_start_task:
        _require_demonstrations(tier, settings.warm_start_task)
    else:
        _require_hops(path, settings)
    try:
        return _open(tier, name, settings, tripwires, content_stamps(settings))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _require_demonstrations(tier: str, name: str) -> None:
    """Refuse a warm start on a task whose questions no script can follow; see `_require_hops`."""
    values = task_values(tier, name)
    values.pop("tripwires", None)
    path = task_path(tier, name)
    _require_hops(path, params.build(TaskSettings, values, str(path)))


def _require_hops(path: Path, settings: TaskSettings) -> None:
    """ValueError for demonstrations of questions that tell no hops, as those of files."""
    if settings.warm_start.steps and settings.world.KIND == "files":
        raise ValueError(
            f"{path}: warm_start.steps = {settings.warm_start.steps} must be 0: questions of "
            "world.kind = 'files' tell no hops, which demonstrations follow"
        )


@lru_cache(maxsize=8)
def _open(
    tier: str,
    name: str,
    settings: TaskSettings,
    tripwires: TripwireSettings | None,
    stamps: tuple[tuple[str, int, int], ...],
) -> Task:
    """Kept by all arguments; `stamps` tell edited files behind the world from unchanged ones."""
    world = settings.world
    if world.KIND == "factbook":
        world = FactbookWorld(**asdict(world))
    elif world.KIND == "files":
        world = world.open()
    try:
        world.evaluation_questions(settings.evaluation.questions)
    except ValueError as error:
        raise ValueError(f"evaluation.questions: {error}") from error
    if settings.withheld_share > 0:
        world = WithheldEvidence(world, settings.withheld_share)
    environment = disturbed(_environment(world, settings), settings.disturbances)
    if settings.policy.KIND == "tiny":
        vocabulary = tag_vocabulary(environment.actions, [*environment.words, *world.words])
    else:
        vocabulary = _model_tokens(settings, world, environment)
    contents = content_hashes(settings)
    return Task(name, tier, settings, world, environment, vocabulary, tripwires, contents)


def _model_tokens(settings: TaskSettings, world: World, environment: Environment) -> Tokens:
    """A language model's tokens, which must spell the tags and leave room after the prompts."""
    tokens = settings.policy.open_tokens()
    tokens.message_end(closing_tags(environment.actions))
    for question in world.evaluation_questions(settings.evaluation.questions):
        prompt = environment.reset(question, python_stream(0, "prompt", question.id)).prompt
        length = len(tokens.encode_prompt(prompt))
        if length >= settings.policy.max_tokens:
            raise ValueError(
                f"policy.max_tokens = {settings.policy.max_tokens} leaves no room after the "
                f"{length} tokens of the prompt of question {question.id}"
            )
    return tokens


def _environment(world: World, settings: TaskSettings) -> Environment:
    wording = WORDINGS[settings.wording]
    if settings.environment.KIND == "search_r1":
        return SearchR1(world, settings.environment, wording=wording)
    if settings.environment.KIND == "table_query":
        return TableQuery(world, settings.environment, wording=wording)
    if settings.environment.KIND == "household":
        return Household(settings.environment, wording, play=player(settings.environment.engine))
    judge = open_judge(settings.judge)
    return DeepResearch(world, judge, settings.environment, wording=wording)
