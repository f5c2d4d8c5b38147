"""Objectives that bound a token's weight beyond the clip range, and keep its gradient.

With gradient F A grad(log p) per token and a clip range 0.8 to 1.28:

>>> import torch
>>> from turncredit.batching import two_turns_and_one
>>> batch = two_turns_and_one()
>>> advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0], [-1.0, 1.0, 1.0, 1.0]])
>>> for formula in (cispo, gppo, aepo):
...     shift = torch.tensor([[1.5, 0.5, 1.0, 1.5], [0.5, 1.0, 1.0, 1.0]]).log()
...     logprobs = (batch.old_logprobs + shift).requires_grad_()
...     loss, _ = formula(logprobs, batch, advantages, total_tokens=1)
...     loss.backward()
...     print((-logprobs.grad / advantages)[batch.response_mask])
tensor([1.2800, 0.8000, 1.2800, 0.8000])
tensor([1.2800, 0.5000, 1.5000, 0.8000])
tensor([1.2800, 0.5000, 1.5000, 0.0000])
"""

from turncredit.objectives.metrics import share
from turncredit.objectives.surrogate import bounded, clipped_losses
from turncredit.objectives.table import TokenLosses, objective
from turncredit.objectives.tokens import SampledTokens


@objective(aggregation="token_mean")
def cispo(
    tokens: SampledTokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    upper_cap: float | None = None,
) -> TokenLosses:
    """CISPO: -sg(w) A log p, where w is the clipped ratio and never stops the gradient.

    w = clip(r, 1 - clip_low, 1 + clip_high), relative and two-sided (verl); with `upper_cap`
    w = min(r, upper_cap), absolute and above only (TRL, which advises 5), and the range is not
    used.  The value depends on log p and is no surrogate: compare gradients, not losses.
    `weight_clip_fraction`: share of tokens with w != r, whatever the sign of A; `clip_fraction`
    counts the pessimistic side of the same bounds.  MiniMax-M1, 2025; it tunes the upper side
    only and its value is not known to this project, so the range here is DAPO's.
    """
    low, high = (1 - clip_low, 1 + clip_high) if upper_cap is None else (0.0, upper_cap)
    ratio = tokens.log_ratio.exp()
    weight = ratio.clamp(low, high)
    slopes = -weight * tokens.advantages
    measures = {
        "clip_fraction": share(slopes > -ratio * tokens.advantages),
        "weight_clip_fraction": share(weight != ratio),
    }
    return TokenLosses(slopes * tokens.logprobs, slopes, measures)


@objective(aggregation="token_mean")
def gppo(
    tokens: SampledTokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    beta_low: float = 1.0,
    beta_high: float = 1.0,
    dual_clip: float | None = None,
) -> TokenLosses:
    """GPPO: the value of clip-higher, and clipped tokens push with the bound instead of not at all.

    Loss per token -F A, gradient coefficient F: beta_low (1 - clip_low) where the ratio is below
    the range and A < 0, beta_high (1 + clip_high) where it is above and A > 0, else r.
    Klear-Reasoner, 2025, eq. 11, 12, 17, 18.  Its text has both betas 1; its shipped recipe
    has beta_low 0.25 and dual_clip 10 (as in `ppo_clip`: bounds the loss, ends the gradient).
    """
    ratio, advantages = tokens.log_ratio.exp(), tokens.advantages
    losses, below, above = clipped_losses(
        ratio, advantages, clip_low, clip_high, beta_low=beta_low, beta_high=beta_high
    )
    return bounded(losses, losses, below | above, advantages, dual_clip)


@objective(aggregation="token_mean")
def aepo(
    tokens: SampledTokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
) -> TokenLosses:
    """AEPO's clip: above the range the gradient is kept (as in `gppo`), below it ends (as in PPO).

    Agentic Entropy-Balanced Policy Optimization, arXiv 2510.14545 (not the AEPO of QwenLong-L1.5).
    Its clip range is not known to this project: this is DAPO's.  A public code keeps `dual_clip` 3.
    """
    ratio, advantages = tokens.log_ratio.exp(), tokens.advantages
    losses, below, above = clipped_losses(ratio, advantages, clip_low, clip_high)
    return bounded(losses, losses.masked_fill(below, 0.0), below | above, advantages, dual_clip)
