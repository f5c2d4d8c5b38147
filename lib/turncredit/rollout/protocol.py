"""What every rollout of groups is asked for, and what it answers."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.forks import Fork
from turncredit.worlds.base import Question


class Asked(NamedTuple):
    """What a group rollout is asked for; `group_size` trajectories of each question."""

    policy: Policy
    vocabulary: Tokens
    environment: Environment
    questions: Sequence[Question]
    group_size: int
    seed: int
    step: int
    max_turn_tokens: int
    temperature: float = 1.0

    @property
    def rows(self) -> list[Question]:
        """The question of each trajectory, group by group."""
        return [question for question in self.questions for _ in range(self.group_size)]

    @property
    def setting(self) -> dict[str, float]:
        """The keywords of `roll_out`."""
        names = ("seed", "step", "max_turn_tokens", "temperature")
        return {name: getattr(self, name) for name in names}

    def groups(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """The trajectories of `rows`, one list for each question."""
        size = self.group_size
        return [list(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]


class Drawn(NamedTuple):
    """The groups of a step and what they cost."""

    groups: list[list[Trajectory]]
    """`group_size` trajectories for each question."""
    counts: dict[str, float]
    """Sums over the step, for metrics.csv; {} for independent rollouts."""
    forks: list[Fork]
    """Every branch, in the order in which they were made."""


class Strategy(Protocol):
    """How the trajectories of groups come about."""

    def draw(self, asked: Asked) -> Drawn:
        """Play `asked.group_size` trajectories of each question."""
