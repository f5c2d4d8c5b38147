"""What a training step leaves for the tables."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import Credit
from turncredit.credit.weights import weight_statistics
from turncredit.decisions import decision_shares
from turncredit.dynamic_sampling import usable_groups
from turncredit.records import Trajectory
from turncredit.rollout import without_lost
from turncredit.signals import (
    action_columns,
    divergence_columns,
    entropy_columns,
    group_diversity,
    mean_divergences,
    mismatch,
    outcome_shares,
    repeated_share,
    small_spread_groups,
    total_entropy,
)

FIRST_K = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class StepLog:
    """One step's row of metrics, its turns, the seconds of its parts and its trajectories."""

    step: int
    metrics: dict[str, float]
    turns: list[dict[str, float]]
    seconds: dict[str, float]
    trajectories: list[Trajectory] = field(repr=False)


def step_metrics(
    trajectories: Sequence[Trajectory], batch: TurnBatch, credit: Credit
) -> dict[str, float]:
    """The columns of metrics.csv that do not depend on the update; see docs/diagnostics.md."""
    known, whole = ~batch.rewards.isnan(), without_lost(trajectories)
    return {
        "reward": batch.rewards[known].mean().item(),
        "success": batch.success[known].float().mean().item(),
        "missing_rewards": int((~known).sum()),
        "lost": len(trajectories) - len(whole),
        "entropy": total_entropy(batch),
        "tokens": int(batch.response_mask.sum()),
        "zero_variance_groups": zero_variance_share(batch),
        "small_spread_groups": small_spread_groups(batch),
        "repeated_tokens": repeated_share(batch),
        **outcome_shares(whole),
        **group_diversity(whole),
        **decision_shares(whole),
        **mismatch(batch),
        **mean_divergences(batch),
        **weight_statistics(batch, credit.base, credit.weights),
    }


def zero_variance_share(batch: TurnBatch) -> float:
    """Share of groups whose known outcome rewards are all equal, or all missing.

    A base that compares rewards within a group learns nothing from their outcome.  Such a group may
    move the policy all the same: by penalties on length or divergence, which shape the rewards
    after they are counted here, by a term of the loss, or by a base that compares otherwise.
    """
    usable = usable_groups(batch.rewards, batch.group_ids)
    groups, teaching = (ids.unique().numel() for ids in (batch.group_ids, batch.group_ids[usable]))
    return (groups - teaching) / groups


def turn_rows(
    trajectories: Sequence[Trajectory], batch: TurnBatch, **measured: Tensor
) -> list[dict[str, float]]:
    """One row per turn index: who has it, its actions, entropies and divergences, and `measured`.

    measured: further columns, [T] each, such as `signals.ratio_columns` gives them.
    """
    tensors = entropy_columns(batch, FIRST_K) | divergence_columns(batch) | measured
    columns = {
        "turn": list(range(batch.num_turns)),
        "tokens": batch.turn_lengths().sum(dim=0).tolist(),
        **action_columns(trajectories, batch.num_turns),
        **{name: values.tolist() for name, values in tensors.items()},
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class Stopwatch:
    """Seconds of the named parts of a step, by `clock`: wall time unless a benchmark sets it."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = self.clock()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = self.clock()
        self.laps[name] = now - self._last
        self._last = now
