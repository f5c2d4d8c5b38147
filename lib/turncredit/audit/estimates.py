"""True turn advantages: what a recorded message was worth, and its state before it, by experiment.

V(s_t) is the mean reward of continuing from the state before turn t, Q(s_t, a_t) that of saying
what was said and continuing then; A = Q - V.  The state is the episode's, with everything the world
knows of it and the policy may not; what the environment draws after the message is drawn anew, so
that its luck is not the turn's merit.  Reward is the environment's, without what a loop takes off.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turncredit.audit.continuations import Branch, Continuer
from turncredit.audit.replay import TurnStart
from turncredit.environments.protocol import Environment
from turncredit.params import require_positive
from turncredit.policies.protocol import Policy, Tokens


@dataclass(frozen=True)
class AuditSettings:
    """Size of an audit."""

    continuations: int = 256
    """Of each state, and of each message in it; see `continuations_for`."""
    seed: int = 0
    batch_rows: int = 2048
    """Continuations that are decoded together, which bounds memory."""

    def __post_init__(self) -> None:
        require_positive(self, "continuations", "batch_rows")
        if self.continuations < 2:
            raise ValueError("continuations = 1 has no standard error")


@dataclass(frozen=True, eq=False)
class Audit:
    """What each turn was worth; [B, T] float64 each, NaN where there is no turn or no reward."""

    values: Tensor
    """V(s_t)."""
    action_values: Tensor
    """Q(s_t, a_t)."""
    advantages: Tensor
    """Q - V."""
    errors: Tensor
    """Standard error of the advantage; 0 where it is exact."""
    cost: Mapping[str, float]
    """`continuations` started, and the `turns` made and `tokens` sampled in them."""


def continuations_for(standard_error: float, *, spread: float = 1.0) -> int:
    """Continuations after which no turn advantage has a larger standard error.

    spread: largest minus smallest reward.  A reward varies by spread^2 / 4 at most, so the
    difference of two means of N by spread^2 / (2 N), if they are not correlated negatively; common
    random numbers make the correlation positive as a rule, and `Audit.errors` says what came of it.

    >>> continuations_for(0.05), continuations_for(0.05, spread=0.5)
    (200, 50)
    """
    if not standard_error > 0:
        raise ValueError(f"standard_error = {standard_error} must be above 0")
    return max(2, math.ceil(spread**2 / (2 * standard_error**2) - 1e-9))


def audit_turns(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    starts: Sequence[TurnStart],
    settings: AuditSettings,
    *,
    max_turn_tokens: int,
    shape: tuple[int, int] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Audit:
    """V, Q and A of every turn by `settings.continuations` continuations with `policy`.

    starts: of `replay`; shape: B and T of the tables, None: as few as hold all turns.  A state and
    the message in it share their random numbers, so the standard error is that of paired
    differences.  Results do not depend on which other turns are audited (up to rounding, as in a
    rollout).  `report(done, of)` is called after every branch.  Raises ValueError for no turns,
    and for a policy that samples by an engine of its own.
    """
    if not starts:
        raise ValueError("starts: no turn to audit")
    size, seed, batch_rows = settings.continuations, settings.seed, settings.batch_rows
    parts = (policy, vocabulary, environment, max_turn_tokens)
    continuer = _continuer(*parts, size, seed, batch_rows)
    pairs = [(Branch(start, None), Branch(start, start.message_ids)) for start in starts]
    rewards: dict[tuple, Tensor] = {}
    total = len({branch.key for pair in pairs for branch in pair})
    for key, found in continuer.rewards([branch for pair in pairs for branch in pair]):
        rewards[key] = found
        if report is not None:
            report(len(rewards), total)
    tables = torch.full((4, *(shape or table_shape(starts))), torch.nan, dtype=torch.float64)
    for start, (state, message) in zip(starts, pairs, strict=True):
        tables[:, start.row, start.turn] = _summary(rewards[state.key], rewards[message.key])
    return Audit(*tables, dict(continuer.cost))


def state_values(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    starts: Sequence[TurnStart],
    *,
    continuations: int,
    seed: int,
    max_turn_tokens: int,
    shape: tuple[int, int],
    batch_rows: int = 2048,
) -> tuple[Tensor, dict[str, float]]:
    """V alone of the state before every turn, [B, T] float64, and what it cost as in `Audit.cost`.

    The mean over the continuations whose reward is known; NaN where none is, or there is no turn.
    Arguments are those of `audit_turns` and its settings; one continuation is enough here.
    """
    parts = (policy, vocabulary, environment, max_turn_tokens)
    continuer = _continuer(*parts, continuations, seed, batch_rows)
    states = [Branch(start, None) for start in starts]
    rewards = dict(continuer.rewards(states))
    table = torch.full(shape, torch.nan, dtype=torch.float64)
    for start, state in zip(starts, states, strict=True):
        table[start.row, start.turn] = rewards[state.key].nanmean()
    return table, dict(continuer.cost)


def _continuer(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    max_turn_tokens: int,
    continuations: int,
    seed: int,
    batch_rows: int,
) -> Continuer:
    if hasattr(policy, "engine"):
        raise ValueError("an audit decodes in lock-step, and this policy samples by an engine")
    if continuations < 1:
        raise ValueError(f"continuations = {continuations} must be at least 1")
    size = (continuations, seed, batch_rows)
    return Continuer(policy, vocabulary, environment, max_turn_tokens, *size)


def _summary(before: Tensor, after: Tensor) -> Tensor:
    """V, Q, A and the standard error of A, from rewards [N] each, paired; NaN if one is missing."""
    gains = after - before
    error = gains.std() / math.sqrt(len(gains))
    return torch.stack([before.mean(), after.mean(), gains.mean(), error])


def table_shape(starts: Sequence[TurnStart]) -> tuple[int, int]:
    """B and T of tables that hold all these turns."""
    rows, turns = zip(*((start.row, start.turn) for start in starts), strict=True)
    return max(rows) + 1, max(turns) + 1
