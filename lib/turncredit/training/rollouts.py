"""Rollout strategies by name: how the groups of a step come about."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from turncredit.environments.protocol import Environment
from turncredit.expert_actions import expert_log, read_log
from turncredit.methods import Methods
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.actguide import Rollouts, roll_out_guided
from turncredit.training.settings import TrainingSettings
from turncredit.worlds.base import Question

ROLLOUTS = Methods("rollout")
SCRIPTED = "scripted"
"""The log of an expert that plays each question when it is asked for."""
Rolled = tuple[list[list[Trajectory]], dict[str, float]]
"""The groups of a step, question by question, and sums for metrics.csv."""

Strategy = Callable[["Session", Sequence[Question]], Rolled]


class Session(NamedTuple):
    """What a rollout plays with."""

    policy: Policy
    vocabulary: Tokens
    environment: Environment
    settings: TrainingSettings
    seed: int
    step: int

    def asked(self) -> dict[str, int]:
        """seed, step and max_turn_tokens, as `roll_out` takes them."""
        return {
            "seed": self.seed,
            "step": self.step,
            "max_turn_tokens": self.settings.max_turn_tokens,
        }


@ROLLOUTS.add
def independent(session: Session, questions: Sequence[Question]) -> Rolled:
    """`group_size` trajectories of each question, each by itself."""
    if not questions:
        return [], {}
    size = session.settings.group_size
    rows = [question for question in questions for _ in range(size)]
    trajectories = roll_out(*session[:3], rows, **session.asked())
    return [trajectories[i : i + size] for i in range(0, len(trajectories), size)], {}


@ROLLOUTS.add
def actguide(
    session: Session,
    questions: Sequence[Question],
    *,
    log: str = SCRIPTED,
    threshold: float = 0.0,
    max_probe_steps: int = 5,
    probe_rollouts: int = 2,
    adaptive: bool = True,
    frame: str = "{actions}",
) -> Rolled:
    """Groups that fail are rolled out again with the start of an expert's plan in the prompt.

    ActGuide-RL, `rollout.actguide.roll_out_guided`.  `log`: the name of an action log, whose
    questions alone are guided, or "scripted".  `frame`: what stands around {actions} in the prompt;
    a tiny policy knows the words of its environment alone.
    """
    rollouts = Rollouts(*session[:3], session.asked(), frame)
    return roll_out_guided(
        rollouts,
        questions,
        _actions_of(session, log),
        group_size=session.settings.group_size,
        threshold=threshold,
        max_probe_steps=max_probe_steps,
        probe_rollouts=probe_rollouts,
        adaptive=adaptive,
    )


def rehearse(strategy: Strategy) -> None:
    """Raise ValueError for options that a strategy would refuse; nothing is played."""
    settings = SimpleNamespace(group_size=2, max_turn_tokens=1)
    strategy(Session(None, None, None, settings, 0, 0), [])


def _actions_of(session: Session, log: str) -> Callable[[Question], Sequence[str]]:
    if log == SCRIPTED:
        return lambda q: expert_log(session.environment, q, session.seed).actions
    logs = read_log(log)
    return lambda question: logs[question.id].actions if question.id in logs else ()
