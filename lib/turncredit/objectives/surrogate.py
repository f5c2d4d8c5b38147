"""The clip that every surrogate shares: which tokens it stops, and what their loss then is."""

import torch
from torch import Tensor

from turncredit.objectives.metrics import share
from turncredit.objectives.table import TokenLosses


def clipped_losses(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    *,
    beta_low: float = 1.0,
    beta_high: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """[N] each: max(-r A, -clip(r) A), and where the clip decided, below and above the range.

    The betas scale the two bounds.  A loss is also its own slope in the log-prob where it is
    -r A, and where an objective lets a clipped token push on.

    >>> ratio, advantages = torch.tensor([0.5, 0.5, 2.0, 2.0]), torch.tensor([1.0, -1, 1, -1])
    >>> clipped_losses(ratio, advantages, 0.2, 0.2)[0]
    tensor([-0.5000,  0.8000, -1.2000,  2.0000])
    """
    low, high = 1 - clip_low, 1 + clip_high
    below, above = (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0)
    factor = ratio.masked_fill(below, beta_low * low).masked_fill(above, beta_high * high)
    return -factor * advantages, below, above


def bounded(
    losses: Tensor,
    slopes: Tensor,
    clipped: Tensor,
    advantages: Tensor,
    dual_clip: float | None,
) -> TokenLosses:
    """Token losses of at most -dual_clip A where A < 0, without gradient where that decides."""
    beyond = torch.zeros_like(clipped)
    if dual_clip is not None:
        bound = dual_clip * advantages.abs()  # with A >= 0 the loss is at most 0, below it
        beyond = losses > bound
        losses, slopes = torch.minimum(losses, bound), slopes.masked_fill(beyond, 0.0)
    measures = {"clip_fraction": share(clipped), "dual_clip_fraction": share(beyond)}
    return TokenLosses(losses, slopes, measures)
