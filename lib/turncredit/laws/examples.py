"""Small batches with every field filled, and changes of them that must not matter."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.batching import TurnBatch

TOKEN_FIELDS = (
    "old_logprobs",
    "entropies",
    "rollout_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
)
FILL = {"token_ids": 7, "response_mask": False, "turn_ids": -1}


def make_batch(
    turn_lengths: Sequence[Sequence[int]],
    *,
    rewards: Sequence[float] | None = None,
    success: Sequence[bool] | None = None,
    groups: Sequence[int] | None = None,
    entropies: Sequence[Sequence[float]] | None = None,
    seed: int = 0,
) -> TurnBatch:
    """Rows of turns with the given numbers of sampled tokens, every optional field filled.

    Each turn follows two observation tokens.  `entropies[row][turn]` is put on all tokens of that
    turn; without it they are random.  One group unless `groups` says otherwise; success is
    reward >= 1 unless given.
    """
    count = len(turn_lengths)
    rewards = [float(row % 2) for row in range(count)] if rewards is None else rewards
    turn_ids = _turn_ids(turn_lengths)
    stream = torch.Generator().manual_seed(seed)
    tokens = {name: -3 * torch.rand(turn_ids.shape, generator=stream) for name in TOKEN_FIELDS}
    tokens["entropies"] = tokens["entropies"].abs() ** 4
    batch = TurnBatch.checked(
        token_ids=torch.randint(0, 50, turn_ids.shape, generator=stream),
        response_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        rewards=torch.tensor(rewards, dtype=torch.float32),
        success=torch.tensor([r >= 1 for r in rewards] if success is None else success),
        group_ids=torch.tensor([0] * count if groups is None else groups),
        turn_rewards=torch.rand(count, max(map(len, turn_lengths)), generator=stream),
        anchor_ids=torch.randint(0, 2, (count, max(map(len, turn_lengths))), generator=stream),
        grounded=torch.rand(count, generator=stream) < 0.5,
        oracle_turn=torch.tensor([-1 if not any(row) else 0 for row in turn_lengths]),
        **tokens,
    )
    if entropies is None:
        return batch
    per_turn = torch.zeros(count, batch.num_turns)
    for row, values in enumerate(entropies):
        per_turn[row, : len(values)] = torch.tensor(values)
    return batch.replace(entropies=batch.gather_turns(per_turn))


def current_logprobs(batch: TurnBatch, scale: float = 0.3, seed: int = 1) -> Tensor:
    """[B, L] log-probs of a policy that has moved away from the old one."""
    stream = torch.Generator().manual_seed(seed)
    moved = batch.old_logprobs + scale * torch.randn(batch.token_ids.shape, generator=stream)
    return moved.clamp(max=0)


def insert_observations(
    batch: TurnBatch, *others: Tensor, extra: int = 5, seed: int = 2, junk: float = math.nan
) -> tuple[TurnBatch, ...]:
    """Spread every row over L + extra columns; new columns hold junk.  Also for `others` [B, L]."""
    rows, length = batch.token_ids.shape
    stream = torch.Generator().manual_seed(seed)
    noise = torch.rand(rows, length + extra, generator=stream)
    columns = noise.argsort(dim=1)[:, :length].sort(dim=1).values

    def spread(values: Tensor, fill: float) -> Tensor:
        wide = values.new_full((rows, length + extra), fill)
        return wide.scatter(1, columns, values)

    changed = {name: spread(getattr(batch, name), FILL[name]) for name in FILL}
    changed |= {name: spread(getattr(batch, name), junk) for name in TOKEN_FIELDS}
    return batch.replace(**changed), *(spread(values, junk) for values in others)


def poison(batch: TurnBatch, *others: Tensor, junk: float = math.nan) -> tuple[TurnBatch, ...]:
    """The same batch, and `others` [B, L], with `junk` at every position not sampled."""

    def poisoned(values: Tensor) -> Tensor:
        return values.masked_fill(~batch.response_mask, junk)

    changed = {name: poisoned(getattr(batch, name)) for name in TOKEN_FIELDS}
    return batch.replace(**changed), *(poisoned(values) for values in others)


def with_masked_rows(batch: TurnBatch, *others: Tensor) -> tuple[TurnBatch, ...]:
    """Two rows without any sampled token, a group of their own, put before the batch."""
    order = [0, 0, *range(len(batch.rewards))]
    wide = batch.select(order)
    mask, turn_ids, groups = (
        getattr(wide, name).clone() for name in ("response_mask", "turn_ids", "group_ids")
    )
    mask[:2], turn_ids[:2], groups[:2] = False, -1, int(groups.max()) + 1
    wide = wide.replace(response_mask=mask, turn_ids=turn_ids, group_ids=groups)
    return poison(wide, *(values[order] for values in others))


def _turn_ids(turn_lengths: Sequence[Sequence[int]]) -> Tensor:
    rows = []
    for lengths in turn_lengths:
        row = []
        for turn, length in enumerate(lengths):
            row += [-1, -1] + [turn] * length
        rows.append(row)
    longest = max(map(len, rows)) + 1
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows])
