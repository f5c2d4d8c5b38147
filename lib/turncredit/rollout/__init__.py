"""Rollout: an environment and a policy give trajectories, token in, token out."""

from collections.abc import Sequence

from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import asynchronous, lockstep
from turncredit.rollout.rows import Close, close_turn, without_lost
from turncredit.worlds.base import Question

__all__ = ["roll_out", "without_lost"]


def roll_out(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    *,
    seed: int,
    step: int,
    max_turn_tokens: int,
    temperature: float = 1.0,
    close: Close = close_turn,
) -> list[Trajectory]:
    """One trajectory per entry of `questions` (repeat a question to form a group).

    In lock-step by the policy's decoder, or each trajectory on its own if the policy brings an
    engine; see `lockstep.roll_out` and `asynchronous.roll_out`, whose rules are the same.
    """
    asked = {"seed": seed, "step": step, "max_turn_tokens": max_turn_tokens}
    asked |= {"temperature": temperature, "close": close}
    if not hasattr(policy, "engine"):
        return lockstep.roll_out(policy, vocabulary, environment, questions, **asked)
    limit = policy.settings.max_tokens
    return asynchronous.roll_out(
        policy.engine(), vocabulary, environment, questions, max_tokens=limit, **asked
    )
