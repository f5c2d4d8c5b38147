"""The table of objectives, and what all of them share.

An objective is a formula on the sampled tokens: for each its loss, and the slope of that loss in
the token's log-prob.  Stating the slope makes visible what tells the methods apart: they agree on
most values, and differ in which tokens still push the policy, and how hard.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.methods import Methods
from turncredit.objectives.aggregation import sampled_mean
from turncredit.objectives.metrics import ratio_metrics
from turncredit.objectives.options import check_ranges
from turncredit.objectives.tokens import sampled_tokens

OBJECTIVES = Methods("objective")


class TokenLosses(NamedTuple):
    """What a formula says about the N sampled tokens."""

    values: Tensor
    """[N]"""
    slopes: Tensor
    """[N]: derivative of each value with respect to the token's log-prob."""
    measures: dict[str, Tensor]
    """Scalars that become metrics."""


_RESULT = tuple[Tensor, dict[str, float]]
Objective = Callable[..., _RESULT]
_TOTALS = ("total_tokens", "total_sequences", "max_length")


def objective(*, aggregation: str) -> Callable[[Callable[..., TokenLosses]], Objective]:
    """Make a formula an objective of a batch, and enter it in `OBJECTIVES`.

    The formula takes `SampledTokens` and keyword-only options, and returns `TokenLosses`.  The
    objective takes `(logprobs, batch, advantages, **options)`: the formula's options, and those of
    `aggregate`, whose mode goes by the name `aggregation` and has the default given here.
    """
    defaults = {"aggregation": aggregation} | dict.fromkeys(_TOTALS)

    def enter(formula: Callable[..., TokenLosses]) -> Objective:
        @functools.wraps(formula)
        def on_batch(
            logprobs: Tensor, batch: TurnBatch, advantages: Tensor, **options: Any
        ) -> _RESULT:
            check_ranges(formula.__name__, **options)
            tokens = sampled_tokens(logprobs, batch, advantages)
            shared = {name: options.pop(name, value) for name, value in defaults.items()}
            with torch.no_grad():
                values, slopes, measures = formula(tokens, **options)
            losses = tokens.with_slopes(values, slopes)
            mode = shared.pop("aggregation")
            loss = sampled_mean(losses, batch.response_mask, mode=mode, **shared)
            return loss, ratio_metrics(tokens, measures)

        on_batch.__signature__ = _signature(formula, defaults)
        return OBJECTIVES.add(on_batch)

    return enter


def _signature(formula: Callable[..., TokenLosses], defaults: dict[str, Any]) -> inspect.Signature:
    """What `help` and the check of option names see: all options by name, with defaults."""
    kinds = inspect.Parameter
    given = {"logprobs": Tensor, "batch": TurnBatch, "advantages": Tensor}
    parameters = [
        *(
            kinds(name, kinds.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in given.items()
        ),
        *list(inspect.signature(formula).parameters.values())[1:],
        *(kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in defaults.items()),
    ]
    return inspect.Signature(parameters, return_annotation=_RESULT)
