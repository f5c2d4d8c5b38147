"""Tripwires: a run that has broken down ends by itself, and says of what.

Collapse after 60 to 300 steps is often reported for this kind of training (Search-R1's GRPO runs
end near step 230), seldom explained and never undone by going on.  A tripwire prevents nothing; it
ends the run while the cause can still be looked at, and the run is shown, not dropped.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turncredit.params import require_positive, require_shares
from turncredit.records import Trajectory

FINISHED = "finished"
"""Stop reason of a run that made all its steps."""

NON_FINITE = "non_finite"
"""Stop reason of a run whose policy is lost: the update wrote NaN or infinity into it."""


@dataclass(frozen=True)
class TripwireSettings:
    """When a run counts as broken down; null leaves a wire out.

    A value is compared as its mean over the last `window` steps, once there are so many.
    """

    window: int
    entropy_low: float | None
    """Least token entropy (nats)."""
    entropy_high: float | None
    """Greatest token entropy (nats)."""
    repetition: float | None
    """Greatest share of turns that repeat the turn before; see `repeated_turns`."""
    truncated: float | None
    """Greatest share of trajectories cut off by the cap on turns or tokens."""
    zero_variance: float | None
    """Greatest share of groups without contrast in their rewards."""
    reward_collapse: float | None
    """Share of the best mean reward so far below which the mean reward must not stay."""
    patience: int
    """Steps in a row with the mean reward below that share that end the run."""

    def __post_init__(self) -> None:
        require_positive(self, "window", "patience")
        shares = ("repetition", "truncated", "zero_variance", "reward_collapse")
        require_shares(self, *(name for name in shares if getattr(self, name) is not None))
        low, high = self.entropy_low, self.entropy_high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"entropy_low = {low} must be below entropy_high = {high}")

    @property
    def limits(self) -> tuple[tuple[str, str, float, float], ...]:
        """The wires that are a band: stop reason, metric, least and greatest value."""
        bands = (
            ("entropy", "entropy", self.entropy_low, self.entropy_high),
            ("repetition", "repeated_turns", None, self.repetition),
            ("truncated", "truncated", None, self.truncated),
            ("zero_variance", "zero_variance_groups", None, self.zero_variance),
        )
        return tuple(
            (reason, metric, -math.inf if low is None else low, math.inf if high is None else high)
            for reason, metric, low, high in bands
            if (low, high) != (None, None)
        )


@dataclass(frozen=True)
class Stop:
    """Why a run ended before its last step."""

    reason: str
    """non_finite, entropy, repetition, truncated, zero_variance or reward_collapse."""
    detail: str
    """The numbers, in words."""


class Tripwires:
    """Sees the metrics of a run step by step.

    Without settings only `non_finite` is watched, which always is.  What is decided depends on the
    metrics seen alone, so a resumed run shows those of its earlier steps again.
    """

    def __init__(self, settings: TripwireSettings | None) -> None:
        self.settings = settings
        self.limits = settings.limits if settings else ()
        self.metrics = frozenset(metric for _, metric, _, _ in self.limits)
        self._recent = {metric: deque(maxlen=settings.window) for _, metric, _, _ in self.limits}
        self._rewards = deque(maxlen=settings.window if settings else 0)
        self._best = -math.inf
        self._below = 0

    def see(self, metrics: Mapping[str, float]) -> Stop | None:
        """Take in one step; the reason to stop after it, None to go on.

        Raises ValueError naming a metric that a wire needs and the run does not record.

        >>> Tripwires(None).see({"loss": math.nan, "gradient_norm": 1.0})
        Stop(reason='non_finite', detail='loss is nan')
        """
        found = [self._non_finite(metrics), self._collapse(metrics)]
        found += [self._outside(limit, metrics) for limit in self.limits]
        return next((stop for stop in found if stop), None)

    def _non_finite(self, metrics: Mapping[str, float]) -> Stop | None:
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(_value(metrics, name, NON_FINITE)):
                return Stop(NON_FINITE, f"{name} is {metrics[name]}")
        return None

    def _outside(
        self, limit: tuple[str, str, float, float], metrics: Mapping[str, float]
    ) -> Stop | None:
        reason, metric, low, high = limit
        recent = self._recent[metric]
        recent.append(_value(metrics, metric, reason))
        mean = _mean(recent)
        if len(recent) < recent.maxlen or math.isnan(mean) or low <= mean <= high:
            return None
        side = f"below {low:g}" if mean < low else f"above {high:g}"
        return Stop(reason, f"{metric}: mean {mean:.4g} over {len(recent)} steps is {side}")

    def _collapse(self, metrics: Mapping[str, float]) -> Stop | None:
        """The mean reward has been below a share of its best for `patience` steps in a row.

        A share of a best that is not above 0 says nothing: until then this wire is silent.
        """
        settings = self.settings
        if settings is None or settings.reward_collapse is None:
            return None
        self._rewards.append(_value(metrics, "reward", "reward_collapse"))
        mean = _mean(self._rewards)
        if len(self._rewards) < settings.window or math.isnan(mean):
            return None
        self._best = max(self._best, mean)
        low = self._best > 0 and mean < settings.reward_collapse * self._best
        self._below = self._below + 1 if low else 0
        if self._below < settings.patience:
            return None
        share = f"{settings.reward_collapse:g} of its best, {self._best:.4g}"
        steps = f"for {settings.patience} steps, now {mean:.4g}"
        return Stop("reward_collapse", f"mean reward below {share}, {steps}")


def repeated_turns(trajectories: Sequence[Trajectory]) -> float:
    """Share of the turns after a first one whose sampled ids equal those of the turn before.

    Over all trajectories together; turns without sampled ids do not count.  NaN if no trajectory
    has two turns.
    """
    pairs = [
        (before.sampled_ids, turn.sampled_ids)
        for trajectory in trajectories
        for before, turn in zip(trajectory.turns, trajectory.turns[1:], strict=False)
        if turn.sampled_ids
    ]
    return sum(before == now for before, now in pairs) / len(pairs) if pairs else math.nan


def _value(metrics: Mapping[str, float], name: str, wire: str) -> float:
    if name not in metrics:
        raise ValueError(
            f"tripwire {wire} needs the metric {name!r}, which this run does not record"
        )
    return metrics[name]


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that are not missing, NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
