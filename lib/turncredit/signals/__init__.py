"""Per-turn and per-batch measurements: entropies, ratios, divergences, behaviour.

[B, T] is by trajectory and turn; `turn_index_means` makes of it one number per turn index, as the
slides plot.  Functions whose names end in `_columns` give columns of a table with a row per turn
index.  What has no value is NaN, never 0: a turn without sampled tokens, one with a NaN at a
sampled token, a share of nothing.  The slides give no formulas; the definitions are this project's
reading, and docs/diagnostics.md says which column of a run's tables holds what.  Natural
logarithms.
"""

from turncredit.signals.behaviour import (
    TURN_ACTIONS,
    action_columns,
    group_diversity,
    outcome_shares,
    repeated_share,
    token_rates,
    turn_histogram,
)
from turncredit.signals.divergences import (
    DIVERGENCES,
    divergence_columns,
    mean_divergences,
    mismatch,
    turn_divergences,
)
from turncredit.signals.entropies import (
    entropy_columns,
    first_k_entropies,
    small_spread_groups,
    total_entropy,
    turn_entropies,
    turn_surprisals,
)
from turncredit.signals.ratios import (
    LEVELS,
    LOG_RATIO_LIMIT,
    clip_fractions_by_sign,
    ratio_columns,
    turn_clip_fractions,
    turn_outside_shares,
    turn_ratios,
)
from turncredit.signals.turns import (
    by_outcome,
    turn_index_means,
    turn_index_token_means,
    turn_means,
)

__all__ = [
    "DIVERGENCES",
    "LEVELS",
    "LOG_RATIO_LIMIT",
    "TURN_ACTIONS",
    "action_columns",
    "by_outcome",
    "clip_fractions_by_sign",
    "divergence_columns",
    "entropy_columns",
    "first_k_entropies",
    "group_diversity",
    "mean_divergences",
    "mismatch",
    "outcome_shares",
    "ratio_columns",
    "repeated_share",
    "small_spread_groups",
    "token_rates",
    "total_entropy",
    "turn_clip_fractions",
    "turn_divergences",
    "turn_entropies",
    "turn_histogram",
    "turn_index_means",
    "turn_index_token_means",
    "turn_means",
    "turn_outside_shares",
    "turn_ratios",
    "turn_surprisals",
]
