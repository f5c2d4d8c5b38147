"""Drawing the groups of a step: questions, rollouts, and again where a group teaches nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from turncredit.dynamic_sampling import NoUsableGroups, resample_groups
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.strategies import Strategy
from turncredit.seeding import derive, python_stream
from turncredit.training.settings import TrainingSettings
from turncredit.worlds.base import Question, World


class Collected(NamedTuple):
    """The trajectories of a step, group by group."""

    trajectories: list[Trajectory]
    group_ids: list[int]
    counts: dict[str, float]
    """Those of `resample_groups` where there was resampling, and those of the strategy."""
    questions: dict[str, Question]
    """All that were asked, by id."""


def collect(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    world: World,
    settings: TrainingSettings,
    *,
    seed: int,
    step: int,
    strategy: Strategy,
) -> Collected:
    """One group for each of `questions_per_step` questions, resampled if the settings say so.

    If no group of any round teaches anything, the first round is what there is.  strategy: how the
    trajectories of a round come about; what it counts is summed over the rounds.
    """
    rounds: list[list[list[Trajectory]]] = []
    asked: dict[str, Question] = {}
    spent: Counter[str] = Counter()

    def draw(number: int) -> list[list[Trajectory]]:
        stream = seed if number == 0 else derive(seed, "resampling", number)
        questions = world.train_questions(
            settings.questions_per_step, python_stream(stream, "questions", step)
        )
        asked.update({question.id: question for question in questions})
        parts = (policy, vocabulary, environment, questions, settings)
        groups, counts = _groups(*parts, seed=stream, step=step, strategy=strategy)
        rounds.append(groups)
        spent.update(counts)
        return groups

    if settings.resampling is None:
        return _together(draw(0), spent, asked)
    wanted = settings.questions_per_step
    try:
        groups, counts = resample_groups(
            draw, _teaches, enough=wanted, max_rounds=settings.resampling.max_rounds
        )
    except NoUsableGroups as error:
        groups, counts = rounds[0], error.counts
    return _together(groups, {**counts, **spent}, asked)


def _groups(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    settings: TrainingSettings,
    *,
    seed: int,
    step: int,
    strategy: Strategy,
) -> tuple[list[list[Trajectory]], dict[str, float]]:
    """`group_size` trajectories of each question, and what they cost."""
    size = settings.group_size
    trajectories, counts = strategy(
        policy,
        vocabulary,
        environment,
        [question for question in questions for _ in range(size)],
        seed=seed,
        step=step,
        max_turn_tokens=settings.max_turn_tokens,
    )
    return [trajectories[i : i + size] for i in range(0, len(trajectories), size)], counts


def _teaches(group: list[Trajectory]) -> bool:
    """Whether two trajectories of a group have different known rewards."""
    return len({trajectory.reward for trajectory in group} - {None}) > 1


def _together(
    groups: list[list[Trajectory]], counts: Mapping[str, float], asked: dict[str, Question]
) -> Collected:
    trajectories = [trajectory for group in groups for trajectory in group]
    group_ids = [number for number, group in enumerate(groups) for _ in group]
    return Collected(trajectories, group_ids, dict(counts), asked)
