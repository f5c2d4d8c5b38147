"""Drawing the groups of a step: questions, rollouts, and again where a group teaches nothing."""

from collections import Counter
from functools import partial
from typing import NamedTuple

from turncredit.dynamic_sampling import NoUsableGroups, resample_groups
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.seeding import derive, python_stream
from turncredit.training.rollouts import ROLLOUTS, Session, Strategy
from turncredit.training.settings import TrainingSettings
from turncredit.worlds.base import Question, World


class Collected(NamedTuple):
    """The trajectories of a step, group by group."""

    trajectories: list[Trajectory]
    group_ids: list[int]
    counts: dict[str, float]
    """Those of the rollout strategy, summed over the rounds, and of `resample_groups`; nothing for
    independent rollouts without resampling."""
    questions: dict[str, Question]
    """All that were asked, by id."""
    actions: tuple[str, ...] = ()
    """Those of the environment."""


def collect(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    world: World,
    settings: TrainingSettings,
    *,
    seed: int,
    step: int,
    strategy: Strategy = ROLLOUTS["independent"],
) -> Collected:
    """One group for each of `questions_per_step` questions, resampled if the settings say so.

    If no group of any round teaches anything, the first round is what there is.
    """
    rounds: list[list[list[Trajectory]]] = []
    asked: dict[str, Question] = {}
    spent: Counter[str] = Counter()
    together = partial(_together, spent=spent, asked=asked, actions=environment.actions)

    def draw(number: int) -> list[list[Trajectory]]:
        stream = seed if number == 0 else derive(seed, "resampling", number)
        questions = world.train_questions(
            settings.questions_per_step, python_stream(stream, "questions", step)
        )
        asked.update({question.id: question for question in questions})
        session = Session(policy, vocabulary, environment, settings, stream, step)
        groups, counts = strategy(session, questions)
        spent.update(counts)
        rounds.append(groups)
        return groups

    if settings.resampling is None:
        return together(draw(0), {})
    wanted = settings.questions_per_step
    try:
        groups, counts = resample_groups(
            draw, _teaches, enough=wanted, max_rounds=settings.resampling.max_rounds
        )
    except NoUsableGroups as error:
        groups, counts = rounds[0], error.counts
    return together(groups, counts)


def _teaches(group: list[Trajectory]) -> bool:
    """Whether two trajectories of a group have different known rewards."""
    return len({trajectory.reward for trajectory in group} - {None}) > 1


def _together(
    groups: list[list[Trajectory]],
    counts: dict[str, float],
    *,
    spent: Counter[str],
    asked: dict[str, Question],
    actions: tuple[str, ...],
) -> Collected:
    trajectories = [trajectory for group in groups for trajectory in group]
    group_ids = [number for number, group in enumerate(groups) for _ in group]
    return Collected(trajectories, group_ids, {**spent, **counts}, asked, tuple(actions))
