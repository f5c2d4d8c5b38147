"""Policy objectives, written as losses to minimise, and how token losses become one number.

`OBJECTIVES[name](logprobs, batch, advantages, **options) -> (loss, metrics)`: logprobs [B, L] of
the current policy, advantages [B, L], a scalar loss and floats.  Options besides an objective's
own: `aggregation`, `total_tokens`, `total_sequences`, `max_length` (see `aggregate`, where the
first is `mode`).  A value out of range is a ValueError that names it.  `@objective` makes an
objective of a formula on the sampled tokens.

Every denominator counts the original response tokens or trajectories, never the weighted ones.
For micro-batches pass the full batch's `**batch_totals(batch)`: the sum of the micro-batches'
losses, and of their gradients, is then that of the full batch in every mode.
`merge_metrics` does the same for the metrics.

Log-ratios of tokens are clipped to +-20 before anything else, as in verl, and no gradient passes
beyond, in any objective.  NaN at a sampled token stays NaN in loss, `ppo_kl`, `ratio_min` and
`ratio_max`.

Metrics of every objective, over sampled tokens, NaN without any: `clip_fraction` (the clip lowers
the objective: ratio above the range and advantage > 0, or below and < 0; only this pessimistic
side counts, as in verl), `ppo_kl` (mean of -log r), `ratio_min`, `ratio_max` (of single tokens),
`ratio_guarded` (share of log-ratios beyond +-20), and `response_tokens`, their number.
`ppo_clip`, `gppo` and `aepo` add `dual_clip_fraction`, `cispo` adds `weight_clip_fraction`.  Where
the ratio is one per trajectory (`gspo`, `gspo_token`) or per turn (`turn_gspo`) there are also
`sequence_clip_fraction` or `turn_clip_fraction` (share with a clipped token), the extremes
`sequence_ratio_min`, ... of that ratio, and `response_sequences` or `response_turns`.
"""

from turncredit.objectives.aggregation import AGGREGATIONS, aggregate, batch_totals
from turncredit.objectives.clipped import gspo, gspo_token, ppo_clip, turn_gspo
from turncredit.objectives.gradient_keeping import aepo, cispo, gppo
from turncredit.objectives.metrics import merge_metrics, ratio_metrics
from turncredit.objectives.penalties import (
    KL_ESTIMATORS,
    kl_estimates,
    kl_in_rewards,
    kl_penalty,
)
from turncredit.objectives.table import OBJECTIVES, TokenLosses, objective
from turncredit.objectives.tokens import SampledTokens

__all__ = [
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "OBJECTIVES",
    "SampledTokens",
    "TokenLosses",
    "aepo",
    "aggregate",
    "batch_totals",
    "cispo",
    "gppo",
    "gspo",
    "gspo_token",
    "kl_estimates",
    "kl_in_rewards",
    "kl_penalty",
    "merge_metrics",
    "objective",
    "ppo_clip",
    "ratio_metrics",
    "turn_gspo",
]
