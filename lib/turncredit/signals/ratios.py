"""Importance ratios of the current policy to the old one, and where a clip range cuts them."""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, row_sums
from turncredit.option_ranges import check_choice, check_range
from turncredit.signals.turns import (
    checked,
    turn_index_means,
    turn_index_token_means,
    turn_means,
)

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clipped to +-20 before exp, as verl does; no gradient passes beyond."""
LEVELS = ("token", "turn", "sequence")
"""Whose ratio a token is judged by: its own, its turn's or its trajectory's."""


def turn_ratios(batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """[B, T]: exp of the mean token log-ratio of each turn, NaN where empty.

    logprobs: [B, L] under the current policy; differentiable in it.  The mean log-ratio is
    clipped to +-20.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_ratios(two_turns_and_one(), torch.full((2, 4), -0.5))
    tensor([[1.6487, 1.6487],
            [1.6487,    nan]])
    """
    means = turn_means(batch, checked("logprobs", logprobs, batch) - batch.old_logprobs)
    return means.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def turn_outside_shares(
    batch: TurnBatch, logprobs: Tensor, *, eps: float = 0.2, level: str = "token"
) -> Tensor:
    """[B, T]: share of each turn's tokens whose ratio lies outside 1 +- eps, NaN where empty.

    At level "turn" it is the turn's own ratio that lies outside (1) or not (0), so that
    `turn_index_means` gives the share of trajectories.  logprobs: [B, L] under the current policy.
    Raises ValueError for another level or a negative eps.

    >>> from turncredit.batching import two_turns_and_one
    >>> logprobs = torch.tensor([[-0.5, -1.0, 0.0, -1.1], [-1.3, 0.0, 0.0, 0.0]])
    >>> turn_outside_shares(two_turns_and_one(), logprobs)
    tensor([[0.5000, 0.0000],
            [1.0000,    nan]])
    """
    check_choice("turn_outside_shares", "level", level, LEVELS[:2])
    check_range("turn_outside_shares", "threshold", eps=eps)
    of_turns = level == "turn"
    ratios = turn_ratios(batch, logprobs) if of_turns else _ratios(batch, logprobs, "token")
    outside = _outside(ratios, eps)
    return outside if of_turns else turn_means(batch, outside)


def _outside(ratios: Tensor, eps: float) -> Tensor:
    """Any shape: 1 outside 1 +- eps, 0 inside, NaN where the ratio is."""
    outside = ((ratios < 1 - eps) | (ratios > 1 + eps)).to(ratios.dtype)
    return outside.masked_fill(ratios.isnan(), torch.nan)


def turn_clip_fractions(
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
) -> Tensor:
    """[B, T]: share of each turn's tokens whose loss the clip of PPO raises, NaN where empty.

    Only the pessimistic side counts, as in verl: a ratio above 1 + clip_high with a positive
    advantage, or below 1 - clip_low with a negative one.  The ratio is that of the `level`:
    the token's, or exp of the mean log-ratio of its turn or trajectory.  logprobs, advantages:
    [B, L].  Raises ValueError for a negative clip range and another level.

    >>> from turncredit.batching import two_turns_and_one
    >>> logprobs = torch.tensor([[-0.5, -1.5, 0.0, -1.1], [-1.3, 0.0, 0.0, 0.0]])
    >>> turn_clip_fractions(two_turns_and_one(), logprobs, torch.ones(2, 4))
    tensor([[0.5000, 0.0000],
            [0.0000,    nan]])
    """
    return turn_means(batch, _clipped(batch, logprobs, advantages, clip_low, clip_high, level))


def clip_fractions_by_sign(
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
) -> dict[str, float]:
    """Clipped tokens of one sign of the advantage over all sampled tokens of that sign.

    `clip_fraction_positive`: A > 0 and a ratio above the range; `clip_fraction_negative`: A < 0
    and a ratio below it.  NaN without a token of the sign, and with a NaN among its ratios.
    Arguments and errors are those of `turn_clip_fractions`.

    >>> from turncredit.batching import two_turns_and_one
    >>> logprobs = torch.tensor([[-0.5, -1.5, 0.0, -1.1], [-1.3, 0.0, 0.0, 0.0]])
    >>> clip_fractions_by_sign(two_turns_and_one(), logprobs, torch.ones(2, 4))
    {'clip_fraction_positive': 0.25, 'clip_fraction_negative': nan}
    """
    places = batch.spans.places
    clipped = _clipped(batch, logprobs, advantages, clip_low, clip_high, level).flatten()[places]
    signs = advantages.detach().flatten()[places].sign()
    return {
        "clip_fraction_positive": clipped[signs > 0].double().mean().item(),
        "clip_fraction_negative": clipped[signs < 0].double().mean().item(),
    }


def ratio_columns(
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    *,
    eps: float = 0.02,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
) -> dict[str, Tensor]:
    """[T] each: what an update did at each turn index; NaN where no trajectory has the turn.

    Over the trajectories, of the turn's own ratio (`turn_ratios`): `turn_ratio_mean`,
    `turn_ratio_max`, and `turn_ratio_outside`, the share outside 1 +- eps (by default the limit
    of the turn weight `high_is_turns`).  Over the tokens: `clip_fraction` (`turn_clip_fractions`,
    whose options, arguments and errors these are).  logprobs: [B, L], each trajectory's under the
    policy that its own update started from.
    """
    check_range("ratio_columns", "threshold", eps=eps)
    ratios = turn_ratios(batch, logprobs.detach())
    largest = torch.where(ratios.isnan(), -torch.inf, ratios).amax(dim=0)
    clipped = turn_clip_fractions(
        batch, logprobs, advantages, clip_low=clip_low, clip_high=clip_high, level=level
    )
    return {
        "turn_ratio_mean": turn_index_means(ratios),
        "turn_ratio_max": largest.masked_fill(largest.isneginf(), torch.nan),
        "turn_ratio_outside": turn_index_means(_outside(ratios, eps)),
        "clip_fraction": turn_index_token_means(batch, clipped),
    }


def _clipped(
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    level: str,
) -> Tensor:
    """[B, L]: 1 where the clip raises a token's loss, 0 where not, NaN where that is unknown."""
    check_range("turn_clip_fractions", "threshold", clip_low=clip_low, clip_high=clip_high)
    check_choice("turn_clip_fractions", "level", level, LEVELS)
    credit = checked("advantages", advantages, batch).detach()
    ratios = _ratios(batch, logprobs, level)
    above, below = (ratios > 1 + clip_high) & (credit > 0), (ratios < 1 - clip_low) & (credit < 0)
    return (above | below).to(ratios.dtype).masked_fill((ratios * credit).isnan(), torch.nan)


def _ratios(batch: TurnBatch, logprobs: Tensor, level: str) -> Tensor:
    """[B, L], without gradient: what is measured from it is counted."""
    log_ratio = checked("logprobs", logprobs, batch).detach() - batch.old_logprobs
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if level == "turn":
        log_ratio = batch.gather_turns(turn_means(batch, log_ratio))
    elif level == "sequence":
        mask = batch.response_mask
        means = row_sums(log_ratio, mask) / mask.sum(dim=1)
        log_ratio = means[:, None].expand_as(mask).to(log_ratio.dtype)
    return log_ratio.exp()
