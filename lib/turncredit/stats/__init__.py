"""Statistics across seeds and along steps: pure functions of numbers, no files, no figures.

Seeds are the unit: a run is one value, and neither interval nor test sees the uncertainty of the
fixed evaluation questions.  Warm starts are blocks, since runs that begin with the same weights
tend to end alike.  Functions that take `{block: values}` (`by_block`) resample, compare or pool
within the blocks and weigh these equally, so what they say holds for the warm starts at hand and
not for ones that were never drawn.  A value that is NaN is missing: left out, counted, never 0.

`curves` smooths and dates, `intervals` and `blocks` bound means, `proportions` and `strata` treat
outcomes that happen or not, such as a collapse, `comparison` and `spread` tell one arm from
another, `power` says how many seeds that takes, `families` corrects for having asked several times.
"""

from turncredit.stats.blocks import (
    BlockInterval,
    block_mean,
    block_paired_difference,
    by_block,
)
from turncredit.stats.comparison import (
    effect_size,
    interquartile_mean,
    probability_of_improvement,
)
from turncredit.stats.curves import (
    Windows,
    ema,
    level_step,
    shift_step,
    transition,
    windows,
)
from turncredit.stats.families import holm
from turncredit.stats.intervals import (
    Estimate,
    Interval,
    paired_difference,
    t_interval,
)
from turncredit.stats.power import (
    detectable_mean_difference,
    detectable_rate,
    fisher_power,
    mean_power,
    seeds_for_rates,
)
from turncredit.stats.proportions import (
    Rate,
    count_events,
    fisher_test,
    rate_interval,
)
from turncredit.stats.spread import sd_ratio
from turncredit.stats.strata import (
    BlockTest,
    block_rate,
    block_rate_difference,
    cmh_test,
    count_blocks,
)

__all__ = [
    "BlockInterval",
    "BlockTest",
    "Estimate",
    "Interval",
    "Rate",
    "Windows",
    "block_mean",
    "block_paired_difference",
    "block_rate",
    "block_rate_difference",
    "by_block",
    "cmh_test",
    "count_blocks",
    "count_events",
    "detectable_mean_difference",
    "detectable_rate",
    "effect_size",
    "ema",
    "fisher_power",
    "fisher_test",
    "holm",
    "interquartile_mean",
    "level_step",
    "mean_power",
    "paired_difference",
    "probability_of_improvement",
    "rate_interval",
    "sd_ratio",
    "seeds_for_rates",
    "shift_step",
    "t_interval",
    "transition",
    "windows",
]
