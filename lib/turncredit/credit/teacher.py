"""What a privileged teacher says of the sampled tokens: centred scores, and gates on them (ADRS).

The teacher is the policy itself with a skill text before its prompt, and `teacher_logprobs` are its
log-probs of the tokens that were sampled without.  Statistics leave out what `heard` does: whoever
has no reward, no sampled token, or no teacher scores (NaN).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.groups import centred, group_sums, known_rewards
from turncredit.credit.returns import discounted_sums, real_turns, require
from turncredit.credit.tokens import SampledTokens, sampled_tokens

UNITS = ("trajectory", "turn")
CENTRES = ("batch", "turn")
SCALES = ("batch", "completion")
LEVELS = ("auto", "completion", "none", "token", "turn")
SMALL = 1e-8
"""The published code's epsilon in standard deviations, variances and sums of weights."""


class Heard(NamedTuple):
    """The sampled tokens of a batch and which of them the teacher may speak about."""

    tokens: SampledTokens
    logprobs: Tensor
    """[N] float64: the teacher's; 0 where it is not heard."""
    known: Tensor
    """[N] bool"""
    rows: Tensor
    """[B] bool: trajectories with a reward, a sampled token and scores of the teacher."""


def heard(batch: TurnBatch) -> Heard:
    """The teacher's log-probs at the sampled tokens.

    A trajectory with a NaN among them, as one that left no room for the skill text, is not heard;
    ValueError for an infinite one, and for a batch without `teacher_logprobs`.
    """
    require(batch, "adrs", "teacher_logprobs")
    tokens = sampled_tokens(batch)
    logprobs = tokens.gather(batch.teacher_logprobs).double()
    if logprobs.isinf().any():
        row = int(tokens.rows[logprobs.isinf()][0])
        raise ValueError(f"TurnBatch.teacher_logprobs: row {row} is infinite at a sampled token")
    silent = torch.zeros_like(tokens.counts).index_add(0, tokens.rows, logprobs.isnan().long())
    rows = known_rewards(batch) & (tokens.counts > 0) & (silent == 0)
    known = rows.index_select(0, tokens.rows)
    return Heard(tokens, torch.where(known, logprobs, 0.0), known, rows)


def teacher_scores(
    batch: TurnBatch, said: Heard, *, centre: str, scale: str, completion: str
) -> Tensor:
    """[N] float64: the teacher's log-probs minus a mean, over a standard deviation.

    `centre` "turn": minus the mean of the token's turn, so that each turn sums to 0; "batch": minus
    that of all tokens.  `scale` "completion": over the population std of the token's `completion`
    ("turn" or "trajectory"); "batch": over the sample std of all tokens.  0 where a scale is 0.
    """
    turns, everything = numbered(batch.turn_slots), torch.zeros_like(said.tokens.rows)
    around = turns if centre == "turn" else everything
    scores, _, _ = centred(said.logprobs, around, said.known)
    if scale == "batch":
        spreads = deviations_of(scores, everything, said.known, degrees_lost=1)
    else:
        owners = turns if completion == "turn" else numbered(said.tokens.rows)
        spreads = deviations_of(scores, owners, said.known)
    return torch.where(spreads > 0, scores / (spreads + SMALL), 0.0)


def deviations_of(values: Tensor, groups: Tensor, known: Tensor, degrees_lost: int = 0) -> Tensor:
    """[N] to [N] float64: the standard deviation of each value's group; 0 for equal values."""
    deviations, counts, order = centred(values, groups, known)
    squares = group_sums(deviations.square(), groups, order)
    return (squares / (counts - degrees_lost).clamp(min=1)).sqrt().index_select(0, groups)


def numbered(ids: Tensor) -> Tensor:
    """[N] int64: equal ids get equal numbers 0, 1, ..., below N."""
    return ids.unique(return_inverse=True)[1]


def gates(
    batch: TurnBatch,
    said: Heard,
    *,
    level: str,
    temperature: float,
    tau: float,
    completion: str,
    gamma: float,
    normalise: bool,
) -> Tensor:
    """[N] float64 in 0 .. 1: sigmoid(tau TVA) of each token, 1 at level "none".

    TVA (teacher value advantage) is the mean return of what the teacher agrees with minus that of
    what it does not, `usefulness`; at level "token" the scaled log-ratio of teacher and reference.
    """
    if level == "none":
        return torch.ones_like(said.logprobs)
    if level == "auto":
        level = "completion" if batch.anchor_ids is None else "turn"
    if level == "token":
        return torch.sigmoid(tau * _privilege(batch, said))
    if level == "turn":
        values = _turn_values(batch, said, temperature, gamma, normalise)
    else:
        values = _completion_values(batch, said, temperature, completion, normalise)
    spread = torch.sigmoid(tau * values).expand(batch.spans.turn_shape)
    return spread.flatten().index_select(0, batch.turn_slots)


def usefulness(alignments: Tensor, returns: Tensor, groups: Tensor, known: Tensor) -> Tensor:
    """TVA of each completion's group: [N] four times (float64, float64, int64, bool) to [N].

    sum(a R) / sum(a) - sum((1 - a) R) / sum(1 - a) over the known ones; 0 for fewer than two.

    >>> alignments, returns = torch.tensor([[0.75, 0.25], [1.0, 0.0]]).double()
    >>> usefulness(alignments, returns, torch.zeros(2).long(), torch.ones(2).bool())
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def total(values: Tensor) -> Tensor:
        values = torch.where(known, values, 0.0)
        return torch.zeros_like(values).index_add_(0, groups, values)

    with_it, against = (
        total(weights * returns) / (total(weights) + SMALL)
        for weights in (alignments, 1 - alignments)
    )
    enough = total(torch.ones_like(returns)) >= 2
    return torch.where(enough, with_it - against, 0.0).index_select(0, groups)


def _completion_values(
    batch: TurnBatch, said: Heard, temperature: float, completion: str, normalise: bool
) -> Tensor:
    """[B, T], or [B, 1] for whole trajectories: outcomes compared within the group."""
    means, lengths = _means(batch, completion)
    known = (lengths > 0) & said.rows[:, None]
    centre = means[known].mean()
    alignments = torch.sigmoid((means - centre) / temperature)
    returns = torch.where(said.rows, batch.rewards, 0.0).double()[:, None].expand_as(means)
    groups = numbered(batch.group_ids)[:, None].expand_as(means)
    return _compared(alignments, returns, groups, known, normalise)


def _turn_values(
    batch: TurnBatch, said: Heard, temperature: float, gamma: float, normalise: bool
) -> Tensor:
    """[B, T]: discounted returns compared among turns that were taken in the same state."""
    require(batch, "adrs at level 'turn'", "anchor_ids")
    means, lengths = _means(batch, "turn")
    turns = real_turns(batch)
    known = (lengths > 0) & (said.rows & ~turns.missing)[:, None]
    centre = (means * lengths)[known].sum() / lengths[known].sum()
    alignments = torch.sigmoid((means - centre) / temperature)
    returns = discounted_sums(turns.rewards, gamma)
    returns = torch.zeros_like(returns).scatter(1, turns.order, returns)
    anchors = batch.anchor_ids.unique(return_inverse=True)[1]
    states = numbered(numbered(batch.group_ids)[:, None] * anchors.numel() + anchors)
    return _compared(alignments, returns, states, known, normalise)


def _compared(
    alignments: Tensor, returns: Tensor, groups: Tensor, known: Tensor, normalise: bool
) -> Tensor:
    """`usefulness` for [B, N]; with `normalise` over its sample std, which keeps the sign."""
    flat = (tensor.flatten() for tensor in (alignments, returns, groups, known))
    values = usefulness(*flat)
    if normalise:
        known, everything = known.flatten(), torch.zeros_like(groups.flatten())
        spread = deviations_of(values, everything, known, degrees_lost=1)
        values = torch.where(spread > SMALL, values / (spread + SMALL), values)
    return values.view_as(alignments)


def _means(batch: TurnBatch, unit: str) -> tuple[Tensor, Tensor]:
    """[B, T] or [B, 1] float64: the teacher's mean log-prob of each unit; and its length."""
    sums, lengths = batch.turn_sums(batch.teacher_logprobs), batch.turn_lengths()
    if unit == "trajectory":
        sums, lengths = sums.sum(dim=1, keepdim=True), lengths.sum(dim=1, keepdim=True)
    return (sums / lengths.clamp(min=1)).nan_to_num(nan=0.0), lengths


def _privilege(batch: TurnBatch, said: Heard) -> Tensor:
    """[N]: log-prob of the teacher minus that of the reference, over the sample std of all."""
    require(batch, "adrs at level 'token'", "ref_logprobs")
    gaps = said.logprobs - said.tokens.gather(batch.ref_logprobs).double()
    everything = torch.zeros_like(said.tokens.rows)
    spreads = deviations_of(gaps, everything, said.known, degrees_lost=1)
    return torch.where(said.known & (spreads > 0), gaps / (spreads + SMALL), 0.0)
