"""The table of objectives, and what all of them share.

An objective is a formula on the sampled tokens: for each its loss, and the slope of that loss in
the token's log-prob.  Stating the slope makes visible what tells the methods apart: they agree on
most values, and differ in which tokens still push the policy, and how hard.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats
from turncredit.batching import TurnBatch
from turncredit.methods import Methods, options_of
from turncredit.objectives.aggregation import sampled_mean
from turncredit.objectives.metrics import ratio_metrics
from turncredit.objectives.options import check_options
from turncredit.objectives.tokens import SampledTokens, sampled_tokens

OBJECTIVES = Methods("objective")


class TokenLosses(NamedTuple):
    """What a formula says about the N sampled tokens."""

    values: Tensor
    """[N]"""
    slopes: Tensor
    """[N]: derivative of each value with respect to the token's log-prob."""
    measures: dict[str, Tensor]
    """Scalars that become metrics."""


Objective = Callable[..., tuple[Tensor, dict[str, float]]]
_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")
"""What an objective has of its formula; not the annotations, for it takes and returns others."""


def objective(
    *, aggregation: str, replace: bool = False
) -> Callable[[Callable[..., TokenLosses]], Objective]:
    """Make a formula an objective of a batch, and enter it in `OBJECTIVES` under its name.

    The formula takes `SampledTokens` and keyword-only options, and returns `TokenLosses`; it runs
    without gradient.  The objective takes `(logprobs, batch, advantages, **options)`: the
    formula's options, and those of `aggregate`, whose mode goes by the name `aggregation` and has
    the default given here.  Options named as in `options.KINDS` have the range given there; any
    other is for the formula to check.

    Raises ValueError for a name that is taken, unless `replace`; and, when it is called, for
    values or slopes that are not one number for each sampled token.
    """

    def enter(formula: Callable[..., TokenLosses]) -> Objective:
        name = formula.__name__

        @options_of(formula)
        @functools.wraps(formula, assigned=_NAMES)
        def on_batch(
            logprobs: Tensor,
            batch: TurnBatch,
            advantages: Tensor,
            *,
            aggregation: str = aggregation,
            total_tokens: int | None = None,
            total_sequences: int | None = None,
            max_length: int | None = None,
            **options: Any,
        ) -> tuple[Tensor, dict[str, float]]:
            totals = {"total_tokens": total_tokens, "total_sequences": total_sequences}
            check_options(name, max_length=max_length, **totals, **options)
            tokens = sampled_tokens(logprobs, batch, advantages, owner=name)
            with torch.no_grad():
                values, slopes, measures = formula(tokens, **options)
            _check_losses(name, tokens, values, slopes)
            losses, mask = tokens.with_slopes(values, slopes), batch.response_mask
            loss = sampled_mean(
                losses, mask, name, mode=aggregation, max_length=max_length, **totals
            )
            return loss, ratio_metrics(tokens, measures)

        OBJECTIVES.add(on_batch, replace=replace)
        return OBJECTIVES[name]

    return enter


def _check_losses(name: str, tokens: SampledTokens, values: Tensor, slopes: Tensor) -> None:
    """One number for each token: others would broadcast, or be read beside the wrong token."""
    shape = tuple(tokens.advantages.shape)
    check_floats(f"objective {name!r} returned values", values, "[N]", shape)
    check_floats(f"objective {name!r} returned slopes", slopes, "[N]", shape)
