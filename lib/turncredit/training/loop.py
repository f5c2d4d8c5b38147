"""The training loop: rollout, score, credit, clipped updates, log; straight down the page."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, from_trajectories
from turncredit.environments.protocol import Environment
from turncredit.objectives import kl_in_rewards
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.reward_shaping import soft_overlong_penalty
from turncredit.seeding import torch_stream
from turncredit.signals import clip_fractions_by_sign, ratio_columns
from turncredit.training.collect import collect
from turncredit.training.contexts import as_sampled, prompt_ratio_columns
from turncredit.training.log import StepLog, Stopwatch, step_metrics, turn_rows
from turncredit.training.method import Method
from turncredit.training.settings import TrainingSettings
from turncredit.training.updates import rescore, set_learning_rate, split_updates, update
from turncredit.worlds.base import World


def train(
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    vocabulary: Tokens,
    environment: Environment,
    world: World,
    method: Method,
    settings: TrainingSettings,
    *,
    seed: int,
    start: int = 0,
    reference: Policy | None = None,
    memory: dict[str, Tensor] | None = None,
) -> Iterator[StepLog]:
    """Train `policy` in place from step `start`, yielding after each step.

    Every random choice is a function of (seed, purpose, step), so a run continued from a
    checkpoint of policy, optimiser and `memory` at `start` equals the unbroken one, bit for bit.
    `memory`, updated in place, is what a method keeps of earlier steps (`Method.remember`).
    `reference` is the policy that the divergence is measured from and `settings.kl` pulls towards;
    ValueError if there is a pull and no reference.
    """
    if settings.kl is not None and settings.kl.coefficient > 0 and reference is None:
        raise ValueError("kl: there is no reference policy to pull towards")
    memory = {} if memory is None else memory
    strategy = method.strategy
    for step in range(start, settings.steps):
        clock = Stopwatch()
        failed_before = sum(environment.failures.values())
        world_parts = (policy, vocabulary, environment, world, settings)
        drawn = collect(*world_parts, seed=seed, step=step, strategy=strategy)
        clock.lap("rollout")
        batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
        batch, filled = method.fill(batch, policy, vocabulary, drawn)
        shuffle = torch_stream(seed, "updates", step)
        parts = split_updates(batch, settings.updates_per_batch, shuffle)
        first = parts[0] if settings.micro_batch is None else None
        batch, live = rescore(policy, batch, reference, first=first)
        heads, plain = [t.behaviour_prompt_ids for t in drawn.trajectories], batch
        batch = as_sampled(policy, plain, heads)
        clock.lap("logprobs")
        shaped = shape_rewards(batch, settings)
        draws = torch_stream(seed, "credit", step)
        credit = method.credit(shaped, generator=draws, logprobs=shaped.old_logprobs, **memory)
        method.remember(memory, batch)
        clock.lap("credit")
        set_learning_rate(optimiser, settings, step)
        updates, current, advantages = update(
            policy, optimiser, shaped, credit, method, settings, parts, live
        )
        del live  # its graph would lie beside the next rollout
        clock.lap("update")
        metrics = {"tool_failures": sum(environment.failures.values()) - failed_before}
        metrics |= step_metrics(drawn.trajectories, batch, credit) | updates | drawn.counts | filled
        if "guided_trajectories" in drawn.counts:
            metrics |= prompt_ratio_columns(plain, batch, heads)
        clipped, rows = _clip_columns(method, drawn.trajectories, batch, current, advantages)
        clock.lap("metrics")
        yield StepLog(step, metrics | clipped, rows, clock.laps, drawn.trajectories)


def _clip_columns(
    method: Method,
    trajectories: Sequence[Trajectory],
    batch: TurnBatch,
    current: Tensor,
    advantages: Tensor,
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The clip fractions of metrics.csv and the rows of turns.csv, which have theirs.

    current, advantages: [B, L], what each trajectory's own update began with.
    """
    advantages = method.as_clipped(batch, advantages)
    ratios = ratio_columns(batch, current, advantages, **method.clip)
    fractions = clip_fractions_by_sign(batch, current, advantages, **method.clip)
    return fractions, turn_rows(trajectories, batch, **ratios)


def shape_rewards(batch: TurnBatch, settings: TrainingSettings) -> TurnBatch:
    """The batch as credit sees it: penalties off its rewards, while `success` stays as it was."""
    if settings.overlong is not None:
        penalty = soft_overlong_penalty(
            batch.response_mask.sum(1),
            max_length=settings.overlong.max_length,
            cache_length=settings.overlong.cache_length,
        )
        batch = batch.replace(rewards=batch.rewards + penalty)
    if settings.kl is not None and settings.kl.pulls("reward"):
        rewards = kl_in_rewards(
            batch, coefficient=settings.kl.coefficient, estimator=settings.kl.estimator
        )
        batch = batch.replace(rewards=rewards)
    return batch
