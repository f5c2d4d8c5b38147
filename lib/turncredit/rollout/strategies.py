"""How the trajectories of a step come about, by name: what an arm says under `rollout`."""

import functools
from collections.abc import Callable
from typing import Any

from turncredit.methods import Methods
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.cleaner import CleanerSettings, roll_out_purified

Strategy = Callable[..., tuple[list[Trajectory], dict[str, float]]]
"""Called as `roll_out` is; the trajectories, and counts for metrics.csv of what they cost."""

STRATEGIES = Methods("rollout")
"""Options to a `Strategy`, by name."""


@STRATEGIES.add
def independent() -> Strategy:
    """Each trajectory by itself, as the policy plays it; nothing to count."""

    def strategy(*parts: Any, **asked: Any) -> tuple[list[Trajectory], dict[str, float]]:
        return roll_out(*parts, **asked), {}

    return strategy


@STRATEGIES.add
def cleaner(
    *,
    similarity: float = 0.5,
    max_retries: int = 3,
    probability: float = 1.0,
    max_calls: int = 30,
    hint: str = "",
) -> Strategy:
    """Failed tool calls are tried again and replaced (CLEANER); see `CleanerSettings`.

    The defaults are the public code's, which gives no text for its hint.
    """
    settings = CleanerSettings(similarity, max_retries, probability, max_calls, hint)
    return functools.partial(roll_out_purified, settings)
