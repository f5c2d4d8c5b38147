"""Turn weights: one multiplier per turn on top of any base advantage.

Each function takes a batch and the base advantages [B, L] and returns [B, T], 1 where the method
is silent.  Empty turns never count and keep weight 1; no gradient passes through a weight.  A new
one needs `@TURN_WEIGHTS.add` above it and nothing else.  Here: suffix masking, and what weights
did as metrics.  Which turns to train on: `turn_selection`; AEM: `aem`; controls: `controls`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.gates import decision_turns, last_true
from turncredit.methods import Methods, options_of
from turncredit.option_ranges import check_choice, check_range

TURN_WEIGHTS = Methods("turn weight")
FAILED = ("outcome", "reward", "advantage")


@TURN_WEIGHTS.add
def none(batch: TurnBatch, base: Tensor) -> Tensor:
    """[B, T]: every turn keeps its base advantage."""
    return base.new_ones(len(base), batch.num_turns)


@TURN_WEIGHTS.add
@options_of(decision_turns)
def suffix_mask(
    batch: TurnBatch,
    base: Tensor,
    *,
    failed: str = "outcome",
    before: str = "keep",
    after: float = 0.0,
    **gate_options: Any,
) -> Tensor:
    """Entropy-gated suffix masking: after the decision turn of a failed trajectory, no penalty.

    [B, T], of 0 and 1 by default.  The decision turn is the turn that stands out by the entropy
    h_t of its first k tokens (`decision_turns`, which documents `k, rule, c, floor, reference`).
    Turns after it keep `after` times their penalty where the trajectory failed (`failed`: see
    `failed_trajectories`) and the turn's base advantage, summed over its tokens, is below 0.  The
    decision turn keeps its full penalty; the turns before keep theirs (`before` "keep") or lose
    it ("drop").  Successes, failures without a decision turn and turns with credit are untouched.
    Source: the slides; they state neither threshold nor rule, nor what happens before the gate:
    the defaults are this project's reading.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> suffix_mask(batch, torch.full((2, 4), -1.0), rule="leave_one_out")
    tensor([[1., 0.],
            [1., 1.]])
    """
    gate = decision_turns(batch, **gate_options)
    blamed = penalised_turns(batch, base, failed)
    return around_gate(base, blamed, gate, before=before, after=after)


def failed_trajectories(batch: TurnBatch, base: Tensor, failed: str) -> Tensor:
    """[B] bool: who failed, by the definition `failed`; ValueError for an unknown one.

    `outcome`    not `batch.success`, whatever the (shaped) reward.
    `reward`     the reward is below the best known one of its group; a missing reward is not a
                 failure.  (In a group without contrast nobody fails, and nobody has an advantage.)
    `advantage`  the base advantages of the trajectory sum to less than 0.
    """
    check_choice("turn weight", "failed", failed, FAILED)
    if failed == "outcome":
        return ~batch.success
    if failed == "advantage":
        return batch.turn_sums(base).sum(dim=1) < 0
    _, groups = batch.group_ids.unique(return_inverse=True)
    known = torch.where(batch.rewards.isnan(), -torch.inf, batch.rewards)
    best = known.new_full(known.shape, -torch.inf).scatter_reduce(0, groups, known, "amax")
    return batch.rewards < best[groups]  # a comparison with NaN is False


def penalised_turns(batch: TurnBatch, base: Tensor, failed: str) -> Tensor:
    """[B, T] bool: turns of failed trajectories whose base advantages sum to less than 0."""
    return failed_trajectories(batch, base, failed)[:, None] & (batch.turn_sums(base) < 0)


def around_gate(base: Tensor, blamed: Tensor, gate: Tensor, *, before: str, after: float) -> Tensor:
    """[B, T]: `after` at the blamed turns after the gate turn, 0 before it if `before` is "drop".

    blamed: [B, T] bool; gate: [B] int64, -1 for none: its row is all 1.
    """
    check_choice("turn weight", "before", before, ("keep", "drop"))
    check_range("turn weight", "share", after=after)
    turns = torch.arange(blamed.shape[1], device=gate.device)
    gated = blamed & (gate >= 0)[:, None]
    weights = base.new_ones(blamed.shape)
    weights = weights.masked_fill(gated & (turns > gate[:, None]), after)
    if before == "drop":
        weights = weights.masked_fill(gated & (turns < gate[:, None]), 0.0)
    return weights


def weight_statistics(batch: TurnBatch, base: Tensor, weights: Tensor) -> dict[str, float]:
    """What a turn weight [B, T] did, over non-empty turns; NaN where a denominator is empty.

    `weight_min`, `weight_max`; `reweighted_share` tokens of turns with a weight other than 1 /
    all tokens; `damped_positive` and `damped_negative` turns with a weight below 1 / turns, of
    those whose base advantages sum to more and to less than 0; `silent_groups` groups whose
    weights are all 1 / groups (for `aem` those whose spread is too small); and everything
    `suffix_mask_statistics` returns.
    """
    lengths = batch.turn_lengths()
    real = lengths > 0
    changed = real & (weights != 1)
    groups, touched = (batch.group_ids[t.any(dim=1)].unique().numel() for t in (real, changed))
    extremes = weights[real].aminmax() if real.any() else (math.nan, math.nan)
    blame = batch.turn_sums(base)
    signed = {"positive": real & (blame > 0), "negative": real & (blame < 0)}
    return {
        "weight_min": float(extremes[0]),
        "weight_max": float(extremes[1]),
        **_shares(
            {"reweighted_share": ((lengths * changed).sum(), lengths.sum())}
            | {
                f"damped_{sign}": ((turns & (weights < 1)).sum(), turns.sum())
                for sign, turns in signed.items()
            }
        ),
        "silent_groups": (groups - touched) / groups if groups else math.nan,
        **suffix_mask_statistics(batch, base, weights),
    }


def suffix_mask_statistics(batch: TurnBatch, base: Tensor, weights: Tensor) -> dict[str, float]:
    """What a 0/1 turn weight [B, T] did; every value is NaN where its denominator is empty.

    Failed: `~batch.success`; gated: failed with a masked non-empty turn; penalised: failed with
    base advantages that sum to less than 0.  (A decision turn at the very end masks nothing and
    is not counted here; `decision_turns` shows it.)

    `gate_rate` gated / failed; `gate_rate_penalised` gated / penalised; `gate_turn` mean over the
    gated of their last turn before the masked ones, `gate_at_0` ... `gate_at_3`, `gate_at_later`
    the shares of the gated with that turn; `masked_share_failed` and `masked_share` masked tokens
    / tokens of failed trajectories and / all tokens; `failed` their number.
    """
    lengths, failed = batch.turn_lengths(), ~batch.success
    masked = failed[:, None] & (weights == 0) & (lengths > 0)
    gated = masked.any(dim=1)
    gate = last_true((lengths > 0) & ~masked & (masked.cumsum(dim=1) == 0))[gated]
    masked_tokens, gates = (lengths * masked).sum(), gated.sum()
    penalised = failed & (batch.turn_sums(base).sum(dim=1) < 0)
    ratios = {
        "gate_rate": (gates, failed.sum()),
        "gate_rate_penalised": (gates, penalised.sum()),
        "gate_turn": (gate.sum(), gates),
        **{f"gate_at_{turn}": ((gate == turn).sum(), gates) for turn in range(_APART)},
        "gate_at_later": ((gate >= _APART).sum(), gates),
        "masked_share_failed": (masked_tokens, lengths[failed].sum()),
        "masked_share": (masked_tokens, lengths.sum()),
    }
    return _shares(ratios) | {"failed": float(failed.sum())}


_APART = 4
"""Turns with a column of their own in the histogram of the gate turn."""


def _shares(ratios: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Parts over wholes, all numbers; 0 / 0 is NaN: missing, not zero."""
    parts, wholes = (torch.stack(side).double() for side in zip(*ratios.values(), strict=True))
    return dict(zip(ratios, (parts / wholes).tolist(), strict=True))
