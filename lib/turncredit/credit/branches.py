"""Bases of the branching rollouts: what shared turns get (ARPO), and uncertain tokens (AEPO)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats
from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.gates import refuse_unknown
from turncredit.credit.groups import (
    group_numbers,
    group_sums,
    known_rewards,
    numbers_of_pairs,
    standardised,
    whitened,
)
from turncredit.credit.returns import require
from turncredit.credit.tokens import sampled_tokens
from turncredit.option_ranges import check_choice, check_range

SHARING = ("hard", "soft")


@BASES.add
def arpo(
    batch: TurnBatch,
    *,
    sharing: str = "soft",
    std: str = "sample",
    eps: float = 1e-6,
    allow_singleton: bool = False,
) -> Tensor:
    """The advantage of `grpo`, in "hard" sharing averaged over who shares a turn (ARPO).

    [B, L] (arXiv 2507.19849).  "soft", the published default: `grpo`, bit for bit.  "hard": a turn
    that several trajectories of a group have in common gets the mean of their advantages, every
    other turn its trajectory's own.  Turns with equal `anchor_ids` are in common; for this base
    they number the state *after* the policy's message: everything up to the turn's last token,
    whether a fork or chance made it equal.

    The two have one gradient while the ratios are 1, since equal tokens after equal contexts have
    equal gradients; they part where the clip looks at the sign of a single advantage.  A missing
    reward stays out of the means, and its trajectory gets 0.

    Biased as `grpo`, and with branches further: trajectories that share a beginning are not drawn
    independently, so the group mean is no mean over fresh ones.
    Raises ValueError for "hard" on a batch without `anchor_ids`.
    """
    check_choice("arpo", "sharing", sharing, SHARING)
    if sharing == "soft":
        return BASES["grpo"](batch, std=std, eps=eps, allow_singleton=allow_singleton)
    require(batch, "arpo", "anchor_ids")
    check_choice("arpo", "std", std, ("population", "sample"))
    check_range("arpo", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    known = known_rewards(batch)
    own = standardised(batch.rewards, groups, known, std=std, eps=eps)
    own = own.to(batch.rewards.dtype).double()  # as `grpo` rounds it
    return batch.gather_turns(_means_of_turns(batch, own, groups, known))


def _means_of_turns(batch: TurnBatch, own: Tensor, groups: Tensor, known: Tensor) -> Tensor:
    """[B] float64 to [B, T]: the mean over the group's known trajectories that share the turn."""
    counted = (batch.turn_lengths() > 0) & known[:, None]
    turns = numbers_of_pairs(groups[:, None].expand_as(counted), batch.anchor_ids).flatten()
    values = torch.where(counted, own[:, None], 0.0).flatten()
    sums = group_sums(values, turns, values.argsort())
    counts = torch.zeros_like(values).index_add_(0, turns, counted.flatten().double())
    means = (sums / counts.clamp(min=1))[turns].view_as(counted)
    return torch.where(counted, means, 0.0).to(batch.rewards.dtype)


@BASES.add
def aepo(
    batch: TurnBatch,
    *,
    base: str = "grpo",
    base_options: Mapping[str, Any] | None = None,
    a: float = 0.2,
) -> Tensor:
    """A base advantage times 1 + a z, z the z-score of the token's entropy in the batch (AEPO).

    [B, L], free per token (arXiv 2510.14545).  Mean and standard deviation (n - 1) run over all
    sampled tokens of the batch; equal entropies give z = 0.  A factor below 0, from z < -1 / a on,
    would turn the sign of the credit and is 0 instead.  `base` is any other base; a = 0.2 is that
    of a public code, the paper's is not known to this project.

    Biased as its base, and towards uncertain tokens: blame and credit grow where entropy is high.
    A group to which the base gives 0 gets 0.  A trajectory with a missing reward gets 0 and is left
    out of mean and deviation.
    Raises ValueError for an entropy that was not computed, and for an `a` below 0.

    >>> from turncredit.batching import two_turns_and_one
    >>> aepo(two_turns_and_one(), base="rloo", a=1.0)
    tensor([[-2.1619, -0.6127,  0.0000, -0.0000],
            [ 1.3873,  0.0000,  0.0000,  0.0000]])
    """
    check_range("aepo", "scale", a=a)
    advantages = BASES[base](batch, **(base_options or {}))
    check_floats(f"base {base!r} returned", advantages, "[B, L]", tuple(batch.token_ids.shape))
    known, read = known_rewards(batch), batch.turn_lengths() > 0
    refuse_unknown(batch.turn_sums(batch.entropies), read & known[:, None])
    tokens = sampled_tokens(batch)
    counted = known.index_select(0, tokens.rows)
    scores = whitened(tokens.gather(batch.entropies), counted, eps=0.0)
    factors = (1.0 + a * scores).clamp(min=0.0)
    return tokens.scatter(batch, tokens.gather(advantages).double() * factors)
