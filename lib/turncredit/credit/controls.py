"""Controls for suffix masking: is it the gate's place, or only that less is blamed?

`random_suffix` masks as much at random places, `oracle_suffix` at the true one, `scale_failed` and
`drop_failed` take the same or all of the penalty evenly, `scale_ungrounded` turns to the other
sign: credit of wins that never saw the evidence.
"""

from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.gates import first_true
from turncredit.credit.randomness import uniforms
from turncredit.credit.weights import (
    TURN_WEIGHTS,
    around_gate,
    failed_trajectories,
    penalised_turns,
    suffix_mask,
)
from turncredit.methods import options_of
from turncredit.option_ranges import check_range


@TURN_WEIGHTS.add
@options_of(suffix_mask)
def random_suffix(
    batch: TurnBatch,
    base: Tensor,
    *,
    failed: str = "outcome",
    before: str = "keep",
    after: float = 0.0,
    generator: torch.Generator | None = None,
    **gate_options: Any,
) -> Tensor:
    """Suffix masking with the gate at a random turn, until as much is masked as by entropy.

    [B, T].  Options as in `suffix_mask`, whose number of masked tokens on this batch is the
    target.  Failed trajectories come in random order, each with a gate drawn uniformly from its
    non-empty turns; when all have had one, each gets another of its turns in the next round, and
    the earlier gate holds.  The draw stops where the masked tokens come closest to the target, so
    they miss it by half a trajectory at most.  With `before` "drop" there is one round only, and
    too little is masked where even that of every row does not reach the target.
    `generator`: source of the draws; None draws the same ones at every call.
    """
    options = {"failed": failed, "before": before, "after": after, **gate_options}
    target = _masked_tokens(batch, suffix_mask(batch, base, **options))
    if not batch.num_turns:
        return base.new_ones(len(base), 0)
    blamed = penalised_turns(batch, base, failed)
    drawn = uniforms((len(base), batch.num_turns + 1), generator, base.device)
    gates = _gate_by_round(drawn[:, 1:], batch.turn_lengths() > 0, rounds_merge=before == "keep")
    masked = _tokens_masked_at(batch.turn_lengths() * blamed, gates, drop=before == "drop")
    rounds = _rounds_to_reach(target, masked, drawn[:, 0])
    chosen = gates.gather(1, (rounds - 1).clamp(min=0)[:, None])[:, 0]
    chosen = torch.where(rounds > 0, chosen, -1)
    return around_gate(base, blamed, chosen, before=before, after=after)


@TURN_WEIGHTS.add
def oracle_suffix(
    batch: TurnBatch,
    base: Tensor,
    *,
    failed: str = "outcome",
    before: str = "keep",
    after: float = 0.0,
) -> Tensor:
    """Suffix masking at the first wrong turn the world knows of: the best any gate could do.

    [B, T].  `batch.oracle_turn` takes the place of the decision turn; -1, or a turn without sampled
    tokens, is none.  Options as in `suffix_mask`.  Raises ValueError for a batch without
    `oracle_turn`.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one().replace(oracle_turn=torch.tensor([0, -1]))
    >>> oracle_suffix(batch, torch.full((2, 4), -1.0))
    tensor([[1., 0.],
            [1., 1.]])
    """
    if batch.oracle_turn is None:
        raise ValueError(
            "oracle_suffix needs TurnBatch.oracle_turn, and this batch has none: use a world that"
            " tells the first wrong turn of a trajectory"
        )
    turns = torch.arange(batch.num_turns, device=base.device)
    found = (turns == batch.oracle_turn[:, None]) & (batch.turn_lengths() > 0)
    blamed = penalised_turns(batch, base, failed)
    return around_gate(base, blamed, first_true(found), before=before, after=after)


@TURN_WEIGHTS.add
def drop_failed(batch: TurnBatch, base: Tensor, *, failed: str = "outcome") -> Tensor:
    """[B, T]: 0 on every turn of a failed trajectory; what is left is learning from wins.

    `failed`: see `failed_trajectories`.
    """
    return scale_failed(batch, base, factor=0.0, failed=failed)


@TURN_WEIGHTS.add
@options_of(suffix_mask)
def scale_failed(
    batch: TurnBatch,
    base: Tensor,
    *,
    factor: float | None = None,
    failed: str = "outcome",
    **mask_options: Any,
) -> Tensor:
    """[B, T]: `factor`, 0 to 1, on every turn of a failed trajectory.

    Without a factor it is matched to `suffix_mask` with the other options on this batch: 1 minus
    the tokens that would lose their penalty (counted by 1 - weight) / all penalised tokens, so
    that the same amount of blame is taken away, evenly.  Penalised: in a turn of a failed
    trajectory whose base advantages sum to less than 0; without any the factor is 1.

    Raises ValueError for a factor outside 0 .. 1, and what `suffix_mask` raises.
    """
    if factor is None:
        weights = suffix_mask(batch, base, failed=failed, **mask_options)
        lengths = batch.turn_lengths()
        penalised = (lengths * penalised_turns(batch, base, failed)).sum().double()
        taken = ((1 - weights.double()) * lengths).sum()
        factor = (1 - taken / penalised.clamp(min=1)).item()
    check_range("scale_failed", "share", factor=factor)
    scaled = failed_trajectories(batch, base, failed)[:, None] & (batch.turn_lengths() > 0)
    return base.new_ones(scaled.shape).masked_fill(scaled, factor)


@TURN_WEIGHTS.add
def scale_ungrounded(batch: TurnBatch, base: Tensor, *, factor: float = 0.0) -> Tensor:
    """[B, T]: `factor`, 0 to 1, on the credit of successes that never saw the evidence.

    Credit: turns whose base advantages sum to more than 0, in rows with `success` and without
    `grounded`.  A guess that happened to be right then teaches nothing (factor 0) or less.
    Raises ValueError for a batch without `grounded` and a factor outside 0 .. 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one().replace(grounded=torch.tensor([False, False]))
    >>> scale_ungrounded(batch, torch.ones(2, 4), factor=0.5)
    tensor([[1.0000, 1.0000],
            [0.5000, 1.0000]])
    """
    check_range("scale_ungrounded", "share", factor=factor)
    if batch.grounded is None:
        raise ValueError(
            "scale_ungrounded needs TurnBatch.grounded, and this batch has none: use a world whose"
            " trajectories say whether the evidence was read"
        )
    lucky = (batch.success & ~batch.grounded)[:, None] & (batch.turn_sums(base) > 0)
    return base.new_ones(lucky.shape).masked_fill(lucky, factor)


def _masked_tokens(batch: TurnBatch, weights: Tensor) -> Tensor:
    return (batch.turn_lengths() * (weights != 1)).sum()


def _gate_by_round(drawn: Tensor, real: Tensor, *, rounds_merge: bool) -> Tensor:
    """[B, T] int64: gate of each row after each round of draws, -1 in a row without turns.

    drawn: [B, T] uniform numbers, whose order is the order of the row's turns in the rounds.
    """
    turns = torch.where(real, drawn, torch.inf).argsort(dim=1, stable=True)
    first = turns[:, :1]
    within = torch.arange(turns.shape[1], device=turns.device) < real.sum(dim=1, keepdim=True)
    turns = torch.where(within, turns, first)  # the row's turns are used up: nothing changes
    gates = turns.cummin(dim=1).values if rounds_merge else first.expand_as(turns)
    return torch.where(real.any(dim=1, keepdim=True), gates, -1)


def _tokens_masked_at(tokens: Tensor, gates: Tensor, *, drop: bool) -> Tensor:
    """[B, T]: of the row's blamed tokens [B, T], those a gate [B, T] masks."""
    upto = tokens.cumsum(dim=1).gather(1, gates.clamp(min=0))
    kept = tokens.gather(1, gates.clamp(min=0)) if drop else upto
    return (tokens.sum(dim=1, keepdim=True) - kept) * (gates >= 0)


def _rounds_to_reach(target: Tensor, masked: Tensor, place: Tensor) -> Tensor:
    """[B] int64: how many rounds each row takes part in, for a total closest to `target`.

    masked: [B, T] tokens of a row masked after each round; place: [B] uniform, order of the rows
    within a round.
    """
    rounds = torch.arange(masked.shape[1], device=masked.device)
    order = (rounds + place[:, None]).flatten().argsort()
    gains = masked.diff(dim=1, prepend=masked.new_zeros(len(masked), 1)).flatten()[order]
    totals = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
    draws = (totals - target).abs().argmin()
    taken = torch.zeros_like(order, dtype=torch.bool)
    taken[order[:draws]] = True
    return taken.view(masked.shape).sum(dim=1)
