"""What the turns of a step were worth, found by playing on from them with the current policy.

The trajectories are played again to stand at their turns once more, which takes the environment
and no policy; those replays are not counted, since an engine may keep snapshots instead.  Every
random choice is a function of (seed, step) and of the state, so a resumed run measures the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from turncredit.audit import (
    AuditSettings,
    TurnStart,
    audit_turns,
    replay_one,
    state_values,
)
from turncredit.batching import TurnBatch
from turncredit.policies.protocol import Policy, Tokens
from turncredit.seeding import derive, python_stream
from turncredit.training.collect import Collected

COUNTED = ("continuations", "turns", "tokens")


def audited_advantages(
    policy: Policy,
    tokens: Tokens,
    drawn: Collected,
    batch: TurnBatch,
    *,
    continuations: int = 256,
) -> tuple[Tensor, dict[str, float]]:
    """[B, T]: Q(s, a) - V(s) of every turn under `policy`, by `audit.audit_turns`; and its cost.

    `audit_error` is the root mean square of their standard errors.  NaN where the environment knows
    no reward of a continuation, which to the base is missing.
    """
    shape = tuple(batch.turn_lengths().shape)
    starts = turn_starts(tokens, drawn)
    if not starts:
        return torch.full(shape, torch.nan), _counts({}) | {"audit_error": torch.nan}
    settings = AuditSettings(continuations, _seed(drawn))
    options = {"max_turn_tokens": drawn.max_turn_tokens, "shape": shape}
    audit = audit_turns(policy, tokens, drawn.environment, starts, settings, **options)
    error = audit.errors[~audit.errors.isnan()].square().mean().sqrt().item()
    found = audit.advantages.to(batch.rewards.dtype)
    return found, _counts(audit.cost) | {"audit_error": error}


def continued_values(
    policy: Policy,
    tokens: Tokens,
    drawn: Collected,
    batch: TurnBatch,
    *,
    continuations: int = 9,
) -> tuple[Tensor, dict[str, float]]:
    """[B, L]: V of the state before each turn, at all its sampled tokens; and what it cost.

    By `audit.state_values`, with VinePPO's number of continuations (arXiv 2410.01679, K = 9).
    """
    starts = turn_starts(tokens, drawn)
    table, cost = state_values(
        policy, tokens, drawn.environment, starts,
        continuations=continuations, seed=_seed(drawn),
        max_turn_tokens=drawn.max_turn_tokens, shape=tuple(batch.turn_lengths().shape),
    )  # fmt: skip
    return batch.gather_turns(table.to(batch.rewards.dtype)), _counts(cost)


def turn_starts(tokens: Tokens, drawn: Collected) -> list[TurnStart]:
    """Every turn of the step by row and turn; none of a trajectory that an error ended.

    Raises ValueError naming row and turn for trajectories that were not each played on its own.
    """
    starts: list[TurnStart] = []
    for row, (trajectory, origin) in enumerate(zip(drawn.trajectories, drawn.origins, strict=True)):
        question = drawn.questions[trajectory.question_id]
        stream = python_stream(origin.seed, "environment", origin.step, origin.row)
        starts += replay_one(drawn.environment, tokens, question, trajectory, stream, row=row)
    return starts


def _seed(drawn: Collected) -> int:
    """Of all that the audit of this step draws."""
    first = drawn.origins[0]
    return derive(first.seed, "audit", first.step)


def _counts(cost: Mapping[str, float]) -> dict[str, float]:
    return {f"audit_{name}": int(cost.get(name, 0)) for name in COUNTED}
