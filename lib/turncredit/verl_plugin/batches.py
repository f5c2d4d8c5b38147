"""From the rows of a verl step to a `TurnBatch` with its credit, and back to rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, from_trajectories
from turncredit.credit import BASES, Credit
from turncredit.records import Trajectory
from turncredit.seeding import torch_stream
from turncredit.training import Method, step_metrics, turn_rows
from turncredit.training.collect import Collected
from turncredit.verl_plugin.outputs import FAILURES, NOTE, trajectory_of

TOKEN_FIELDS = {
    "old_log_probs": "old_logprobs",
    "entropy": "entropies",
    "ref_log_prob": "ref_logprobs",
    "values": "values",
}
"""verl's per-token fields to ours; the last two only where verl computed them."""


@dataclass(frozen=True)
class Rows:
    """The N trajectories of a step as verl has them, padding rows left out."""

    prompts: Sequence[Tensor]
    responses: Sequence[Tensor]
    masks: Sequence[Tensor]
    uids: Sequence[str]
    """Equal for the trajectories of one question."""
    scores: Sequence[float]
    extras: Sequence[dict[str, Any]]
    """verl's `extra_fields`, with our note where our agent loop made the row."""
    tokens: dict[str, Sequence[Tensor]]
    """Per-token fields by verl's names, each as long as the response."""
    rollout: Sequence[Tensor]
    """Log-probs by the sampling engine, as long as the response."""


def turn_batch(rows: Rows) -> tuple[list[Trajectory], TurnBatch]:
    """The trajectories and their validated batch, with the engine's old log-probs and entropies.

    Raises ValueError naming the row whose turns and mask disagree or whose field is too short.
    """
    trajectories = [_trajectory(rows, number) for number in range(len(rows.uids))]
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(rows.uids))}
    batch = from_trajectories(trajectories, group_ids=[numbers[uid] for uid in rows.uids])
    fields = {
        TOKEN_FIELDS[name]: _placed(name, values, rows, batch)
        for name, values in rows.tokens.items()
    }
    batch = batch.replace(**fields)
    batch.validate()
    return trajectories, batch


def credit_rows(
    method: Method, rows: Rows, *, seed: int, step: int
) -> tuple[list[Tensor], list[Tensor] | None, dict[str, float]]:
    """Advantages of each row's response, the critic's returns if there are values, and metrics.

    The advantages carry the turn weights, unless these follow the policy: then they are the base's
    alone, and the loss weighs them at every update.  Metrics have the names of metrics.csv.
    """
    trajectories, batch = turn_batch(rows)
    drawn = Collected(trajectories, batch.group_ids.tolist(), {}, {})
    batch, counts = method.fill(batch, None, None, drawn)
    stream = torch_stream(seed, "weights", step)
    credit = method.credit(batch, generator=stream, logprobs=batch.old_logprobs)
    advantages = credit.base if method.follows_the_policy else credit.advantages
    returns = None if batch.values is None else _responses(_returns(method, batch), rows, batch)
    metrics = _metrics(trajectories, batch, credit) | counts | tool_failures(rows.extras)
    return _responses(advantages, rows, batch), returns, metrics


def tool_failures(extras: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`tool_failures` of a step, and `tool_failures_<cause>` of each cause that came up.

    >>> tool_failures([{"turncredit": {"tool_failures": {"search_timeout": 2}}}, {}])
    {'tool_failures': 2.0, 'tool_failures_search_timeout': 2.0}
    """
    causes: Counter[str] = Counter()
    for extra in extras:
        causes.update((extra.get(NOTE) or {}).get(FAILURES) or {})
    named = {
        f"{FAILURES}_{cause}": float(count) for cause, count in sorted(causes.items()) if count
    }
    return {FAILURES: float(causes.total())} | named


def _trajectory(rows: Rows, number: int) -> Trajectory:
    try:
        return trajectory_of(
            rows.prompts[number].tolist(),
            rows.responses[number].tolist(),
            rows.masks[number].tolist(),
            rows.rollout[number].tolist(),
            rows.extras[number].get(NOTE),
            float(rows.scores[number]),
        )
    except ValueError as error:
        raise ValueError(f"row {number} (uid {rows.uids[number]}): {error}") from error


def _placed(name: str, values: Sequence[Tensor], rows: Rows, batch: TurnBatch) -> Tensor:
    """[B, L] float32: what verl has for the responses, at the sampled tokens; 0 elsewhere."""
    for number, (value, mask) in enumerate(zip(values, rows.masks, strict=True)):
        if value.shape != mask.shape:
            raise ValueError(
                f"{name}: row {number} has {len(value)} values for {len(mask)} response tokens"
            )
    sampled = [value[mask.bool()] for value, mask in zip(values, rows.masks, strict=True)]
    target = torch.zeros(batch.response_mask.shape)
    return target.masked_scatter_(batch.response_mask, torch.cat(sampled).float())


def _responses(values: Tensor, rows: Rows, batch: TurnBatch) -> list[Tensor]:
    """[B, L] to a tensor for each response, 0 at its observations."""
    taken = values[batch.response_mask].split([int(mask.sum()) for mask in rows.masks])
    return [
        torch.zeros(len(mask)).masked_scatter_(mask.bool(), part.float())
        for mask, part in zip(rows.masks, taken, strict=True)
    ]


def _returns(method: Method, batch: TurnBatch) -> Tensor:
    """[B, L]: what the critic learns, the unwhitened advantage plus the value."""
    options = method.base_options if method.base == "gae" else {}
    return BASES["gae"](batch, **(options | {"whiten": False})) + batch.values


def _metrics(trajectories: list[Trajectory], batch: TurnBatch, credit: Credit) -> dict[str, float]:
    """The columns of metrics.csv, and by turn those of turns.csv, without what is not known."""
    named = dict(step_metrics(trajectories, batch, credit))
    for row in turn_rows(trajectories, batch):
        turn = int(row["turn"])
        named |= {f"turn_{turn}/{key}": value for key, value in row.items() if key != "turn"}
    return {name: float(value) for name, value in named.items() if value == value}
