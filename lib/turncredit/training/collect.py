"""Drawing the groups of a step: questions, rollouts, and again where a group teaches nothing."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from turncredit.dynamic_sampling import NoUsableGroups, resample_groups
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.protocol import Asked, Drawn, Strategy
from turncredit.rollout.strategies import STRATEGIES
from turncredit.seeding import derive, python_stream
from turncredit.training.settings import TrainingSettings
from turncredit.worlds.base import Question, World


class Origin(NamedTuple):
    """What the environment of an independent trajectory draws its random numbers from."""

    seed: int
    step: int
    row: int


class Collected(NamedTuple):
    """The trajectories of a step, group by group."""

    trajectories: list[Trajectory]
    group_ids: list[int]
    counts: dict[str, float]
    """Those of `resample_groups` and of the strategy, over all rounds; {} if neither counts."""
    questions: dict[str, Question]
    """All that were asked, by id."""
    actions: tuple[str, ...] = ()
    """Those of the environment."""
    environment: Environment | None = None
    """In which they were played."""
    max_turn_tokens: int = 0
    origins: tuple[Origin, ...] = ()
    """Of each trajectory, as `roll_out` would have played it."""


def collect(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    world: World,
    settings: TrainingSettings,
    *,
    seed: int,
    step: int,
    strategy: Strategy | None = None,
) -> Collected:
    """One group for each of `questions_per_step` questions, resampled if the settings say so.

    strategy: how the trajectories of a group come about; None: each on its own (`independent`).
    If no group of any round teaches anything, the first round is what there is.
    """
    strategy = strategy or STRATEGIES["independent"]()
    rounds: list[list[list[Trajectory]]] = []
    spent: Counter[str] = Counter()
    asked: dict[str, Question] = {}
    actions = tuple(environment.actions)
    origins: dict[int, list[Origin]] = {}  # by the id of a group that `rounds` keeps alive

    def draw(number: int) -> list[list[Trajectory]]:
        stream = seed if number == 0 else derive(seed, "resampling", number)
        questions = world.train_questions(
            settings.questions_per_step, python_stream(stream, "questions", step)
        )
        asked.update({question.id: question for question in questions})
        drawn = _draw(strategy, policy, vocabulary, environment, questions, settings, stream, step)
        spent.update(drawn.counts)
        rounds.append(drawn.groups)
        rows = itertools.count()
        for group in drawn.groups:
            origins[id(group)] = [Origin(stream, step, next(rows)) for _ in group]
        return drawn.groups

    def together(groups: list[list[Trajectory]], counts: Mapping[str, float]) -> Collected:
        trajectories = [trajectory for group in groups for trajectory in group]
        group_ids = [number for number, group in enumerate(groups) for _ in group]
        places = tuple(origin for group in groups for origin in origins[id(group)])
        played = (environment, settings.max_turn_tokens, places)
        return Collected(trajectories, group_ids, dict(counts), asked, actions, *played)

    if settings.resampling is None:
        return together(draw(0), spent)
    wanted = settings.questions_per_step
    try:
        groups, counts = resample_groups(
            draw, _teaches, enough=wanted, max_rounds=settings.resampling.max_rounds
        )
    except NoUsableGroups as error:
        groups, counts = rounds[0], error.counts
    return together(groups, {**counts, **spent})


def _draw(
    strategy: Strategy,
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    settings: TrainingSettings,
    seed: int,
    step: int,
) -> Drawn:
    """`group_size` trajectories of each question."""
    size, room = settings.group_size, settings.max_turn_tokens
    return strategy.draw(Asked(policy, vocabulary, environment, questions, size, seed, step, room))


def _teaches(group: list[Trajectory]) -> bool:
    """Whether two trajectories of a group have different known rewards."""
    return len({trajectory.reward for trajectory in group} - {None}) > 1
