"""ADRS: a base advantage plus what a privileged teacher says of each token (arXiv 2608.03223)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats
from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.groups import centred, group_sums
from turncredit.credit.teacher import (
    CENTRES,
    LEVELS,
    SCALES,
    SMALL,
    UNITS,
    Heard,
    deviations_of,
    gates,
    heard,
    numbered,
    teacher_scores,
)
from turncredit.option_ranges import check_choice, check_range


@BASES.add
def adrs(
    batch: TurnBatch,
    *,
    base: str = "grpo",
    base_options: Mapping[str, Any] | None = None,
    eta: float = 0.02,
    level: str = "completion",
    temperature: float = 1.0,
    tau: float = 2.0,
    gamma: float = 0.95,
    normalise_gate: bool = False,
    completion: str = "turn",
    centre: str = "turn",
    scale: str = "completion",
    restandardise: bool = True,
    clip: float = 0.2,
    adaptive_clip: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """A base advantage plus a small term for each token that a privileged teacher likes.

    [B, L] (ADRS, arXiv 2608.03223, as its public code has it; the defaults are those of the
    published scripts).  The teacher is the policy with a skill text before its prompt; its scores
    are centred and scaled (`teacher.teacher_scores`) and gated by how useful it was
    (`teacher.gates`): shaped = eta * gate * score.  That is added to the rewards that `base` sees,
    and standardised over the tokens of each group and times eta, within +-clip, to its advantages.

    `level` of the gate: "completion" (L2: outcomes within the group), "turn" (L3: discounted
    returns among turns with the same `anchor_ids`), "token" (L1: the teacher's log-ratio to
    `ref_logprobs`), "none", or "auto" (L3 if there are anchors, else L2).  A `completion` is a row
    of the published code, where that is a "turn"; or the "trajectory".  `adaptive_clip`: the clip
    of a group shrinks with its reward's std, below the median of the batch.

    Two things do nothing as published.  With `centre` "turn" what is added to the rewards sums to
    0; "batch" (what the code falls back to without turns) lets it act.  And at level "completion"
    the gate is one number per group, which standardising divides out again, as it does the inner
    eta; `restandardise` False adds the shaped scores as they are, gate and all.

    A group of equal rewards is left as it is, in the rewards too: `base` could blow any difference
    up to a whole standard deviation.  So is a trajectory without scores of the teacher (NaN).
    Raises ValueError for a batch without what `level` reads.
    """
    _check(eta, tau, temperature, clip, eps, gamma)
    for name, value, choices in (
        ("level", level, LEVELS), ("centre", centre, CENTRES),
        ("scale", scale, SCALES), ("completion", completion, UNITS),
    ):  # fmt: skip
        check_choice("adrs", name, value, choices)
    flags = {"normalise_gate": normalise_gate, "restandardise": restandardise}
    check_range("adrs", "flag", adaptive_clip=adaptive_clip, **flags)
    said = heard(batch)
    scores = teacher_scores(batch, said, centre=centre, scale=scale, completion=completion)
    useful = gates(
        batch, said, level=level, temperature=temperature, tau=tau,
        completion=completion, gamma=gamma, normalise=normalise_gate,
    )  # fmt: skip
    spreads = _reward_spreads(batch, said, eps)
    teaching = said.known & (spreads > 0).index_select(0, said.tokens.rows)
    shaped = torch.where(teaching, eta * useful * scores, 0.0)
    seen = batch if centre == "turn" else _rewarded(batch, said, shaped)
    advantages = BASES[base](seen, **(base_options or {}))
    check_floats(f"base {base!r} returned", advantages, "[B, L]", tuple(batch.token_ids.shape))
    terms = eta * _standardised(batch, said, shaped, teaching) if restandardise else shaped
    limits = clip * (_strengths(batch, spreads, eps) if adaptive_clip else torch.ones_like(spreads))
    limits = limits.index_select(0, said.tokens.rows)
    terms = torch.maximum(torch.minimum(terms, limits), -limits)
    return advantages + said.tokens.scatter(batch, terms).to(advantages.dtype)


def _check(
    eta: float, tau: float, temperature: float, clip: float, eps: float, gamma: float
) -> None:
    check_range("adrs", "scale", eta=eta, tau=tau, eps=eps)
    check_range("adrs", "strength", temperature=temperature, clip=clip)
    check_range("adrs", "share", gamma=gamma)


def _reward_spreads(batch: TurnBatch, said: Heard, eps: float) -> Tensor:
    """[B] float64: the sample std of each group's rewards; 0 below eps and for who is not heard."""
    groups = numbered(batch.group_ids)
    spreads = deviations_of(batch.rewards, groups, said.rows, degrees_lost=1)
    return torch.where(said.rows & (spreads >= eps), spreads, 0.0)


def _strengths(batch: TurnBatch, spreads: Tensor, eps: float) -> Tensor:
    """[B]: how far each group's rewards differ, compared with the median group; at most 1."""
    groups = numbered(batch.group_ids)
    by_group = torch.zeros_like(spreads).scatter_reduce_(0, groups, spreads, "amax")
    teaching = by_group[by_group > 0]
    if not len(teaching):
        return torch.ones_like(spreads)
    return (spreads / (teaching.median() + eps)).clamp(max=1.0)


def _rewarded(batch: TurnBatch, said: Heard, shaped: Tensor) -> TurnBatch:
    """The batch whose rewards have each trajectory's shaped scores [N] added."""
    sums = torch.zeros(len(batch.rewards), dtype=shaped.dtype, device=shaped.device)
    sums = sums.index_add(0, said.tokens.rows, shaped)
    return batch.replace(rewards=batch.rewards + sums.to(batch.rewards.dtype))


def _standardised(batch: TurnBatch, said: Heard, shaped: Tensor, teaching: Tensor) -> Tensor:
    """[N]: minus the mean of the group's tokens, over sqrt(variance + 1e-8)."""
    groups = numbered(batch.group_ids.index_select(0, said.tokens.rows))
    deviations, counts, order = centred(shaped, groups, teaching)
    squares = group_sums(deviations.square(), groups, order)
    variances = (squares / (counts - 1).clamp(min=1)).index_select(0, groups)
    return deviations * (variances + SMALL).rsqrt()
