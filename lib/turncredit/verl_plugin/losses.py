"""Our objectives as verl's policy losses, and the turn weights that follow the policy.

verl gives a loss the response alone, [rows, tokens], and its mask.  A turn is a run of sampled
tokens: the agent loop sees to it that an observation stands between any two.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import PolicyLossConfig

from turncredit.batching import TurnBatch
from turncredit.credit import TURN_WEIGHTS, weigh
from turncredit.methods import option_names
from turncredit.objectives import OBJECTIVES
from turncredit.verl_plugin.settings import AGGREGATIONS, PREFIX

COUNTS = frozenset({"response_tokens", "response_sequences", "response_turns"})
"""Metrics that add up; verl averages what a loss returns over micro-batches."""


@dataclass
class TurnLossConfig(PolicyLossConfig):
    """verl's `actor.policy_loss` with what our objectives and weights have to be told."""

    objective_options: dict = field(default_factory=dict)
    """Of the objective behind `loss_mode`; the aggregation is `actor.loss_agg_mode`."""
    weight: str = "none"
    """The name and options of `algorithm.turncredit`, of which only a weight that follows the
    policy is applied here."""
    weight_options: dict = field(default_factory=dict)


def register_losses() -> None:
    """Enter every objective with verl under its name behind `PREFIX`."""
    for name in OBJECTIVES:
        register_policy_loss(f"{PREFIX}{name}")(policy_loss(name))


def policy_loss(name: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """The objective `name` as a verl policy loss."""
    objective = OBJECTIVES[name]

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        if rollout_is_weights is not None:
            raise ValueError(f"{PREFIX}{name}: rollout_is_weights have no place in this objective")
        settings, mask = config.policy_loss, response_mask.bool()
        logprobs, batch = log_prob.float(), masked_batch(mask, old_log_prob.float())
        credit = _weighed(batch, advantages.float(), logprobs, settings)
        how = _aggregation(loss_agg_mode, config.global_batch_info)
        options = dict(settings.objective_options)
        value, metrics = objective(logprobs, batch, credit, **how, **options)
        value = value + logprobs[mask & False].sum()  # a graph, also without a sampled token
        return value, _named(metrics)

    return loss


def masked_batch(mask: Tensor, old_logprobs: Tensor) -> TurnBatch:
    """A batch of what a loss is given, [B, L] each; all else in it is empty.

    >>> masked_batch(torch.tensor([[True, True, False, True]]), torch.zeros(1, 4)).turn_ids
    tensor([[ 0,  0, -1,  1]])
    """
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    turns = (mask & ~before).cumsum(dim=1) - 1
    rows = torch.zeros(len(mask), dtype=torch.int64, device=mask.device)
    return TurnBatch(
        token_ids=torch.zeros_like(turns),
        response_mask=mask,
        turn_ids=torch.where(mask, turns, -1),
        old_logprobs=old_logprobs,
        entropies=torch.full_like(old_logprobs, torch.nan),
        rewards=torch.full(mask.shape[:1], torch.nan, device=mask.device),
        success=torch.zeros_like(rows, dtype=torch.bool),
        group_ids=rows,
    )


def _weighed(batch: TurnBatch, advantages: Tensor, logprobs: Tensor, settings: Any) -> Tensor:
    """The advantages, times a weight that follows the policy; any other is in them already."""
    if "logprobs" not in option_names(TURN_WEIGHTS[settings.weight]):
        return advantages
    options = dict(settings.weight_options) | {"logprobs": logprobs.detach()}
    return weigh(batch, advantages, settings.weight, options).advantages


def _aggregation(mode: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """verl's way to add up token losses, for `aggregate`: of the whole batch and one of its ranks.

    Ranks average their gradients, so that each divides by its part of the batch's total.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"loss_agg_mode {mode!r} is not one of {', '.join(AGGREGATIONS)}")
    ranks = info.get("dp_size") or 1
    tokens, rows = info.get("batch_num_tokens"), info.get("global_batch_size")
    return {
        "aggregation": AGGREGATIONS[mode],
        "total_tokens": None if tokens is None else float(tokens) / ranks,
        "total_sequences": None if rows is None else float(rows) / ranks,
        "max_length": info.get("loss_scale_factor"),
    }


def _named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Our metrics under verl's prefix, and its own names for two of them; 0 for an empty batch."""
    empty = not metrics["response_tokens"]
    kept = {key: 0.0 if empty else value for key, value in metrics.items() if key not in COUNTS}
    own = {"pg_clipfrac": kept["clip_fraction"]} if "clip_fraction" in kept else {}
    return {f"actor/{key}": float(value) for key, value in (kept | own).items()}
