"""The training loop: rollout, score, credit, clipped updates, log; straight down the page."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, from_trajectories
from turncredit.credit import BASES, TURN_WEIGHTS, Credit, assign_credit, weigh
from turncredit.credit.weights import weight_statistics
from turncredit.dynamic_sampling import usable_groups
from turncredit.environments.protocol import Environment
from turncredit.methods import option_names
from turncredit.objectives import OBJECTIVES, batch_totals, merge_metrics
from turncredit.params import require_positive
from turncredit.policies.tiny import TinyPolicy
from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.seeding import python_stream, torch_stream
from turncredit.signals import (
    first_k_entropies,
    mismatch,
    outcome_shares,
    total_entropy,
    turn_ratios,
)
from turncredit.worlds.base import World

FIRST_K = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class TrainingSettings:
    """One optimiser for all arms of a task."""

    steps: int
    questions_per_step: int
    group_size: int
    updates_per_batch: int
    """Optimiser steps per rollout batch, each on its part of the groups; 1: all ratios are 1."""
    learning_rate: float
    warmup_steps: int
    max_gradient_norm: float
    max_turn_tokens: int
    checkpoint_every: int

    def __post_init__(self) -> None:
        require_positive(self, "steps", "questions_per_step", "learning_rate", "max_gradient_norm")
        require_positive(self, "max_turn_tokens", "checkpoint_every")
        if self.group_size < 2:
            raise ValueError(f"group_size = {self.group_size}: a group of one has no baseline")
        if not 1 <= self.updates_per_batch <= self.questions_per_step:
            raise ValueError(
                f"updates_per_batch = {self.updates_per_batch} must be in 1..questions_per_step "
                f"= {self.questions_per_step}"
            )


@dataclass(frozen=True)
class Method:
    """An arm: names in the registries and their options."""

    base: str
    base_options: dict[str, Any]
    weight: str
    weight_options: dict[str, Any]
    objective: str
    objective_options: dict[str, Any]

    def __post_init__(self) -> None:
        for kind, table in (("base", BASES), ("weight", TURN_WEIGHTS), ("objective", OBJECTIVES)):
            known = set(option_names(table[getattr(self, kind)])) - _SET_BY_THE_LOOP
            unknown = sorted(set(getattr(self, f"{kind}_options")) - known)
            if unknown:
                raise ValueError(
                    f"{kind}_options: {getattr(self, kind)!r} has no option {unknown[0]!r}; "
                    f"it has: {', '.join(sorted(known)) or 'none'}"
                )

    def credit(self, batch: TurnBatch, **given: Any) -> Credit:
        """The credit of a batch; of `given`, its functions get the options that they know."""
        base, weight = BASES[self.base], TURN_WEIGHTS[self.weight]
        return assign_credit(
            batch,
            self.base,
            self.weight,
            self.base_options | _known(base, given),
            self.weight_options | _known(weight, given),
        )

    def reweigh(self, batch: TurnBatch, base: Tensor, logprobs: Tensor) -> Credit:
        """The credit of base advantages [B, L] under the current policy's logprobs [B, L]."""
        return weigh(batch, base, self.weight, self.weight_options | {"logprobs": logprobs})

    @property
    def follows_the_policy(self) -> bool:
        """Whether the turn weight depends on the current policy: then each update computes it."""
        return "logprobs" in option_names(TURN_WEIGHTS[self.weight])


def _known(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in option_names(function) if name in given}


_SET_BY_THE_LOOP = frozenset(
    {"total_tokens", "total_sequences", "reference", "logprobs", "generator"}
)
"""Options that are tensors, streams or totals of a batch and cannot come from a params file."""


@dataclass
class StepLog:
    """What one step leaves for the tables."""

    step: int
    metrics: dict[str, float]
    turns: list[dict[str, float]]
    seconds: dict[str, float]
    trajectories: list[Trajectory] = field(repr=False)


def new_optimiser(policy: TinyPolicy, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW without weight decay."""
    rate = settings.learning_rate
    return torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0, fused=True)


def train(
    policy: TinyPolicy,
    optimiser: torch.optim.Optimizer,
    vocabulary: Vocabulary,
    environment: Environment,
    world: World,
    method: Method,
    settings: TrainingSettings,
    *,
    seed: int,
    start: int = 0,
) -> Iterator[StepLog]:
    """Train `policy` in place from step `start`, yielding after each step.

    Every random choice is a function of (seed, purpose, step), so a run continued from a
    checkpoint of policy and optimiser at `start` equals the unbroken one, bit for bit.
    """
    for step in range(start, settings.steps):
        clock = Stopwatch()
        questions = world.train_questions(
            settings.questions_per_step, python_stream(seed, "questions", step)
        )
        group_ids = [group for group in range(len(questions)) for _ in range(settings.group_size)]
        failed_before = sum(environment.failures.values())
        trajectories = roll_out(
            policy,
            vocabulary,
            environment,
            [questions[group] for group in group_ids],
            seed=seed,
            step=step,
            max_turn_tokens=settings.max_turn_tokens,
        )
        clock.lap("rollout")
        batch = rescore(policy, from_trajectories(trajectories, group_ids=group_ids))
        clock.lap("logprobs")
        draws = torch_stream(seed, "credit", step)
        credit = method.credit(batch, generator=draws, logprobs=batch.old_logprobs)
        clock.lap("credit")
        set_learning_rate(optimiser, settings, step)
        order = torch.randperm(len(questions), generator=torch_stream(seed, "updates", step))
        updates = update(policy, optimiser, batch, credit, method, settings, order)
        clock.lap("update")
        failed = sum(environment.failures.values()) - failed_before
        metrics = {"tool_failures": failed} | step_metrics(trajectories, batch, credit) | updates
        clock.lap("metrics")
        yield StepLog(step, metrics, turn_rows(trajectories, batch), clock.laps, trajectories)


def set_learning_rate(
    optimiser: torch.optim.Optimizer, settings: TrainingSettings, step: int
) -> None:
    """Linear over the first `warmup_steps` steps, constant from then on."""
    share = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    for group in optimiser.param_groups:
        group["lr"] = settings.learning_rate * share


@torch.no_grad()
def rescore(policy: TinyPolicy, batch: TurnBatch) -> TurnBatch:
    """The batch with log-probs and entropies by the training engine, before any update."""
    logprobs, entropies = policy.score(batch.token_ids, batch.response_mask)
    return batch.replace(old_logprobs=logprobs, entropies=entropies)


def update(
    policy: TinyPolicy,
    optimiser: torch.optim.Optimizer,
    batch: TurnBatch,
    credit: Credit,
    method: Method,
    settings: TrainingSettings,
    order: Tensor,
) -> dict[str, float]:
    """`updates_per_batch` clipped steps, each on one part of the groups, in the given order.

    Returns the objective's metrics over all updates (see `merge_metrics`), with the mean loss and
    gradient norm and the extreme turn ratios.  A turn weight that follows the policy is computed
    anew before each step, and its statistics are means over the steps.
    """
    collected: list[dict[str, float]] = []
    for part in order.tensor_split(settings.updates_per_batch):
        rows = torch.isin(batch.group_ids, part)
        chosen, now = batch.select(rows), Credit(*(part[rows] for part in credit))
        logprobs, _ = policy.score(chosen.token_ids, chosen.response_mask)
        if method.follows_the_policy:
            now = method.reweigh(chosen, now.base, logprobs.detach())
        objective = OBJECTIVES[method.objective]
        loss, metrics = objective(
            logprobs, chosen, now.advantages, **batch_totals(chosen), **method.objective_options
        )
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_gradient_norm)
        optimiser.step()
        ratios = turn_ratios(chosen, logprobs.detach())[chosen.turn_lengths() > 0]
        metrics |= {"turn_ratio_max": ratios.max().item(), "turn_ratio_min": ratios.min().item()}
        if method.follows_the_policy:
            metrics |= weight_statistics(chosen, now.base, now.weights)
        collected.append(metrics | {"loss": loss.item(), "gradient_norm": norm.item()})
    return merge_metrics(collected)


def step_metrics(
    trajectories: Sequence[Trajectory], batch: TurnBatch, credit: Credit
) -> dict[str, float]:
    """The fixed columns of metrics.csv that do not depend on the update."""
    rewards = batch.rewards[~batch.rewards.isnan()]
    tokens = int(batch.response_mask.sum())
    return {
        "reward": rewards.mean().item(),
        "success": batch.success.float().mean().item(),
        "missing_rewards": len(batch.rewards) - len(rewards),
        "entropy": total_entropy(batch),
        "tokens": tokens,
        "zero_variance_groups": zero_variance_share(batch),
        **outcome_shares(trajectories),
        **mismatch(batch),
        **weight_statistics(batch, credit.base, credit.weights),
    }


def zero_variance_share(batch: TurnBatch) -> float:
    """Share of groups whose known rewards are all equal, or all missing: they give no gradient."""
    usable = usable_groups(batch.rewards, batch.group_ids)
    groups, teaching = (ids.unique().numel() for ids in (batch.group_ids, batch.group_ids[usable]))
    return (groups - teaching) / groups


def turn_rows(trajectories: Sequence[Trajectory], batch: TurnBatch) -> list[dict[str, float]]:
    """One row per turn index: how many trajectories have it, its first-k entropies, its actions.

    `answered` counts submitted answers and verified guesses, `answered_correct` the right ones.
    """
    entropies = first_k_entropies(batch, FIRST_K).nanmean(0).tolist()
    rows = []
    for index in range(batch.num_turns):
        turns = [t.turns[index] for t in trajectories if index < len(t.turns)]
        actions = [turn.action for turn in turns]
        judged = [turn.correct for turn in turns if turn.correct is not None]
        rows.append(
            {"turn": index, "trajectories": len(turns)}
            | {f"entropy_k{k}": value for k, value in zip(FIRST_K, entropies[index], strict=True)}
            | {name: actions.count(name) for name in _TURN_ACTIONS}
            | {"answered": len(judged), "answered_correct": sum(judged)}
        )
    return rows


_TURN_ACTIONS = ("search", "read_chunk", "external_verify", "answer", "invalid")


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
