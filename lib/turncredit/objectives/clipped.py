"""Clipped surrogates: beyond the clip range a token keeps its loss and loses its gradient.

The four differ in whose importance ratio is clipped: the token's, the trajectory's, the turn's.

>>> import torch
>>> from turncredit.batching import two_turns_and_one
>>> batch, advantages = two_turns_and_one(), torch.ones(2, 4)
>>> logprobs = torch.tensor([[-0.5, -1.5, 0.0, -1.0], [-0.9, 0.0, 0.0, 0.0]])  # old: -1
>>> for formula in (ppo_clip, gspo, turn_gspo):
...     loss, metrics = formula(logprobs, batch, advantages, clip_low=0.2, clip_high=0.2)
...     print(f"{loss:.4f} {metrics['ratio_max']:.4f} {metrics['clip_fraction']:.2f}")
-0.9779 1.6487 0.25
-1.0526 1.6487 0.00
-1.0526 1.6487 0.00
"""

from torch import Tensor

from turncredit.objectives.metrics import level_measures, share
from turncredit.objectives.surrogate import bounded, clipped_losses
from turncredit.objectives.table import TokenLosses, objective
from turncredit.objectives.tokens import SampledTokens, segment_means


@objective(aggregation="token_mean")
def ppo_clip(
    tokens: SampledTokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLosses:
    """PPO's clipped surrogate at token level (GRPO; with clip_high 0.28 that of DAPO).

    Loss per token: max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(logprobs - old).
    `dual_clip` c > 1 (verl: 3) bounds it by -c A where A < 0; `dual_clip_fraction` is the share
    it bounds.  Schulman et al. 2017, eq. 7; dual clip: Ye et al. 2020.
    """
    ratio, advantages = tokens.log_ratio.exp(), tokens.advantages
    losses, below, above = clipped_losses(ratio, advantages, clip_low, clip_high)
    clipped = below | above
    return bounded(losses, losses.masked_fill(clipped, 0.0), clipped, advantages, dual_clip)


@objective(aggregation="seq_mean_token_mean")
def gspo(
    tokens: SampledTokens, *, clip_low: float = 3.0e-4, clip_high: float = 4.0e-4
) -> TokenLosses:
    """Group Sequence Policy Optimization: one ratio and one advantage per trajectory.

    Loss of trajectory i: max(-s A, -clip(s, 1 - clip_low, 1 + clip_high) A) with s = exp of the
    mean log-ratio of its sampled tokens, and A the mean of their advantages: what turn weights
    say about single turns is averaged away, so take `gspo_token` or `turn_gspo` with those.
    Zheng et al. 2025 (GSPO); clip range of its section 5.1.

    As all tokens of a trajectory weigh the same in every aggregation, this is `gspo_token` of the
    mean advantages, in value and gradient.
    """
    advantages = segment_means(tokens.advantages, tokens.lengths("sequence"))
    return _shared_ratio(tokens, advantages, "sequence", clip_low, clip_high)


@objective(aggregation="seq_mean_token_mean")
def gspo_token(
    tokens: SampledTokens, *, clip_low: float = 3.0e-4, clip_high: float = 4.0e-4
) -> TokenLosses:
    """GSPO-token: the trajectory's ratio, each token's own advantage and gradient.

    Loss per token as in `ppo_clip`, with s sg(p) / p in place of r: its value is s, its
    derivative with respect to the token's log-prob too.  With advantages that are constant over
    a trajectory it equals `gspo`.  Zheng et al. 2025 (GSPO).
    """
    return _shared_ratio(tokens, tokens.advantages, "sequence", clip_low, clip_high)


@objective(aggregation="seq_mean_token_mean")
def turn_gspo(
    tokens: SampledTokens, *, clip_low: float = 3.0e-3, clip_high: float = 4.0e-3
) -> TokenLosses:
    """GSPO with one ratio per turn: exp of the mean log-ratio of the turn's sampled tokens.

    Loss and gradient per token as in `gspo_token`, to which it reduces for single-turn
    trajectories.  This project's reading of turn-level importance sampling in the slides; the
    clip range is that of a public AEPO code, which finds turns where the advantage changes and so
    merges turns of equal advantage: here `turn_ids` say what a turn is.
    """
    return _shared_ratio(tokens, tokens.advantages, "turn", clip_low, clip_high)


def _shared_ratio(
    tokens: SampledTokens, advantages: Tensor, level: str, clip_low: float, clip_high: float
) -> TokenLosses:
    """The clipped surrogate with the mean log-ratio of each token's trajectory or turn."""
    lengths = tokens.lengths(level)
    log_ratio = segment_means(tokens.log_ratio, lengths)
    losses, below, above = clipped_losses(log_ratio.exp(), advantages, clip_low, clip_high)
    clipped = below | above
    measures = level_measures(level, lengths, log_ratio, clipped)
    measures["clip_fraction"] = share(clipped)
    return TokenLosses(losses, losses.masked_fill(clipped, 0.0), measures)
