"""How the trajectories of a step come about, by name: what an arm says under `rollout`."""

from collections.abc import Callable, Sequence
from typing import Any

from turncredit.environments.protocol import Environment
from turncredit.methods import Methods
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.cleaner import CleanerSettings, Purifier, grafted_tokens
from turncredit.worlds.base import Question

Strategy = Callable[..., tuple[list[Trajectory], dict[str, float]]]
"""Called as `roll_out` is; the trajectories, and counts for metrics.csv of what they cost."""

ROLLOUTS = Methods("rollout")
"""Options to a `Strategy`, by name."""


@ROLLOUTS.add
def independent() -> Strategy:
    """Each trajectory by itself, as the policy plays it; nothing to count."""

    def strategy(*parts: Any, **asked: Any) -> tuple[list[Trajectory], dict[str, float]]:
        return roll_out(*parts, **asked), {}

    return strategy


@ROLLOUTS.add
def cleaner(
    *,
    similarity: float = 0.5,
    max_retries: int = 3,
    probability: float = 1.0,
    max_calls: int = 30,
    hint: str = "",
) -> Strategy:
    """Failed tool calls are tried again and replaced (CLEANER); see `CleanerSettings`."""
    settings = CleanerSettings(similarity, max_retries, probability, max_calls, hint)

    def strategy(
        policy: Policy,
        vocabulary: Tokens,
        environment: Environment,
        questions: Sequence[Question],
        *,
        seed: int,
        step: int,
        **asked: Any,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        purifier = Purifier(environment, settings, seed=seed, step=step)
        parts = (policy, vocabulary, environment, questions)
        trajectories = roll_out(*parts, seed=seed, step=step, close=purifier.close, **asked)
        return trajectories, {**purifier.counts, "grafted_tokens": grafted_tokens(trajectories)}

    return strategy
