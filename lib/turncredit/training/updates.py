"""The optimiser and the clipped updates on one batch."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import Credit
from turncredit.credit.weights import weight_statistics
from turncredit.objectives import OBJECTIVES, aggregate, batch_totals, kl_penalty, merge_metrics
from turncredit.policies.protocol import Policy
from turncredit.signals import turn_ratios
from turncredit.training.method import Method
from turncredit.training.settings import TrainingSettings


def new_optimiser(policy: Policy, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW without weight decay."""
    rate = settings.learning_rate
    return torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0, fused=True)


def set_learning_rate(
    optimiser: torch.optim.Optimizer, settings: TrainingSettings, step: int
) -> None:
    """Linear over the first `warmup_steps` steps, constant from then on."""
    share = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    for group in optimiser.param_groups:
        group["lr"] = settings.learning_rate * share


Scores = tuple[Tensor, Tensor]
"""Log-probs and entropies [B, L], as `Policy.score` gives them."""


def split_updates(batch: TurnBatch, updates: int, stream: torch.Generator) -> list[Tensor]:
    """Rows of each optimiser step: whole groups in random order; no more steps than groups."""
    groups = batch.group_ids.unique()
    order = groups[torch.randperm(len(groups), generator=stream)]
    parts = order.tensor_split(min(updates, len(groups)))
    return [torch.isin(batch.group_ids, part).nonzero()[:, 0] for part in parts]


def rescore(
    policy: Policy,
    batch: TurnBatch,
    reference: Policy | None = None,
    *,
    first: Tensor | None = None,
) -> tuple[TurnBatch, Scores | None]:
    """The batch with log-probs and entropies by the training engine, before any update.

    With a `reference` policy also `ref_logprobs`.  The rows of the `first` update meet the policy
    that scores them here, so their scores are also returned with their graph: computed once, they
    serve both.
    """
    everyone = torch.arange(len(batch.group_ids))
    later = everyone if first is None else everyone[~torch.isin(everyone, first)]
    parts = [rows for rows in (later, first) if rows is not None and len(rows)]
    order = torch.cat(parts).argsort()

    def whole(scores: Sequence[Scores]) -> Scores:
        return tuple(torch.cat(part)[order] for part in zip(*scores, strict=True))

    if reference is not None:  # on the same rows at once, so that equal policies score alike
        given = whole([_scores(reference, batch, rows) for rows in parts])
        batch = batch.replace(ref_logprobs=given[0])
    scores = [_scores(policy, batch, rows) for rows in parts if rows is not first]
    live = None
    if first is not None:  # last, so that its graph does not lie beside the other passes
        live = policy.score(batch.token_ids[first], batch.response_mask[first])
        scores.append(tuple(part.detach() for part in live))
    logprobs, entropies = whole(scores)
    return batch.replace(old_logprobs=logprobs, entropies=entropies), live


@torch.no_grad()
def _scores(policy: Policy, batch: TurnBatch, rows: Tensor) -> Scores:
    return policy.score(batch.token_ids[rows], batch.response_mask[rows])


def update(
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    batch: TurnBatch,
    credit: Credit,
    method: Method,
    settings: TrainingSettings,
    parts: Sequence[Tensor],
    live: Scores | None = None,
) -> tuple[dict[str, float], Tensor, Tensor]:
    """One clipped step for each part of the batch's rows, in the given order.

    live: scores of the first part under this policy, with their graph, if there are any.
    Returns the objective's metrics over all updates (see `merge_metrics`), with the mean loss and
    gradient norm and the extreme turn ratios; and, [B, L] each, the log-probs and advantages that
    each trajectory's own step began with.  A turn weight that follows the policy is computed anew
    before each step; if the step before lost the policy, loss and gradient norm are NaN and no
    further step is made.
    """
    collected: list[dict[str, float]] = []
    current, advantages = batch.old_logprobs.clone(), credit.advantages.clone()
    weights = credit.weights.clone()
    for rows in parts:
        chosen, now = batch.select(rows), Credit(*(part[rows] for part in credit))
        if method.follows_the_policy:
            logprobs, _ = live or _scores(policy, chosen, torch.arange(len(rows)))
            if not logprobs.isfinite().all():  # the step before lost the policy
                collected[-1] |= {"loss": math.nan, "gradient_norm": math.nan}
                break
            now = method.reweigh(chosen, now.base, logprobs.detach())
        optimiser.zero_grad()
        seen = torch.empty_like(chosen.old_logprobs)
        metrics = accumulate_gradient(
            policy, chosen, now.advantages, method, settings, live=live, seen=seen
        )
        live = None  # the policy moves on
        current[rows], advantages[rows] = seen, now.advantages
        weights[rows, : now.weights.shape[1]] = now.weights
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_gradient_norm)
        optimiser.step()
        collected.append(metrics | {"gradient_norm": norm.item()})
    merged = merge_metrics(collected)
    if method.follows_the_policy:
        merged |= weight_statistics(batch, credit.base, weights)
    return merged, current, advantages


def accumulate_gradient(
    policy: Policy,
    batch: TurnBatch,
    advantages: Tensor,
    method: Method,
    settings: TrainingSettings,
    *,
    live: Scores | None = None,
    seen: Tensor | None = None,
) -> dict[str, float]:
    """Add the gradient of one update's loss, `micro_batch` trajectories at a time.

    Every mean is taken over the whole batch, so that the parts add up to its loss and gradient.
    Returns the objective's metrics, the extreme turn ratios and the loss.  `live`: the batch's
    scores under this policy, if they are known already; `seen` [B, L] takes its log-probs.
    """
    totals = batch_totals(batch)
    rows = torch.arange(len(batch.group_ids))
    pieces = []
    for piece in rows.split(settings.micro_batch or len(rows)):
        part = batch.select(piece)
        scores = live or policy.score(part.token_ids, part.response_mask)
        logprobs, metrics = _add_gradient(scores, part, advantages[piece], method, settings, totals)
        pieces.append(metrics)
        if seen is not None:
            seen[piece] = logprobs
    return merge_metrics(pieces) | {"loss": sum(piece["loss"] for piece in pieces)}


def _add_gradient(
    scores: Scores,
    batch: TurnBatch,
    advantages: Tensor,
    method: Method,
    settings: TrainingSettings,
    totals: dict[str, int],
) -> tuple[Tensor, dict[str, float]]:
    logprobs, entropies = scores
    objective = OBJECTIVES[method.objective]
    loss, metrics = objective(logprobs, batch, advantages, **totals, **method.objective_options)
    if settings.entropy_bonus:
        entropy = aggregate(entropies, batch.response_mask, mode="token_mean", **totals)
        loss = loss - settings.entropy_bonus * entropy
    if settings.kl is not None and settings.kl.pulls("loss"):
        divergence, _ = kl_penalty(logprobs, batch, estimator=settings.kl.estimator, **totals)
        loss = loss + settings.kl.coefficient * divergence
    loss.backward()
    ratios = turn_ratios(batch, logprobs.detach())[batch.turn_lengths() > 0]
    extremes = {"turn_ratio_max": ratios.max().item(), "turn_ratio_min": ratios.min().item()}
    return logprobs.detach(), metrics | extremes | {"loss": loss.item()}
