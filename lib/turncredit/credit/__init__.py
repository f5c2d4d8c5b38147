"""Credit assignment in three composable stages: base advantage, turn weight, their product.

Depends on torch alone (and on `turncredit.batching` and `turncredit.signals`), so that any
training loop can import it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import (  # noqa: F401 (they enter their methods in the tables)
    aem,
    controls,
    returns,
    steps,
    turn_selection,
)
from turncredit.credit.bases import BASES
from turncredit.credit.tokens import sampled_only
from turncredit.credit.weights import TURN_WEIGHTS

__all__ = ["BASES", "TURN_WEIGHTS", "Credit", "assign_credit", "token_advantages", "weigh"]


def token_advantages(
    batch: TurnBatch,
    base: str = "grpo",
    weight: str = "suffix_mask",
    base_options: Mapping[str, Any] | None = None,
    weight_options: Mapping[str, Any] | None = None,
) -> Tensor:
    """[B, L]: the base advantage of each sampled token times the weight of its turn; 0 elsewhere.

    Compute it on the whole batch, before any split into micro-batches: groups, and the scope of
    some weights, must not be cut.  Raises ValueError naming an unknown method or option.

    >>> from turncredit.batching import two_turns_and_one
    >>> token_advantages(two_turns_and_one(), weight="none")
    tensor([[-0.7071, -0.7071,  0.0000, -0.7071],
            [ 0.7071,  0.0000,  0.0000,  0.0000]])
    >>> token_advantages(two_turns_and_one(), "grpo", "suffix_mask", {"sdt": "population"})
    Traceback (most recent call last):
    ValueError: base 'grpo' has no option 'sdt'; it has: std, eps, allow_singleton
    """
    return assign_credit(batch, base, weight, base_options, weight_options).advantages


class Credit(NamedTuple):
    """The three stages of a batch's credit."""

    base: Tensor
    """[B, L]: base advantages, 0 outside `response_mask`."""
    weights: Tensor
    """[B, T]: multiplier of each turn."""
    advantages: Tensor
    """[B, L]: their product, what an objective gets; 0 outside `response_mask`."""


def assign_credit(
    batch: TurnBatch,
    base: str = "grpo",
    weight: str = "suffix_mask",
    base_options: Mapping[str, Any] | None = None,
    weight_options: Mapping[str, Any] | None = None,
) -> Credit:
    """`token_advantages` with what it is made of, for a loop that logs the stages."""
    return weigh(batch, BASES[base](batch, **(base_options or {})), weight, weight_options)


def weigh(
    batch: TurnBatch, base: Tensor, weight: str, weight_options: Mapping[str, Any] | None = None
) -> Credit:
    """The second and third stage on base advantages [B, L]; for weights that follow the policy.

    Raises ValueError for advantages of another shape, which could broadcast in silence.
    """
    expected = tuple(batch.response_mask.shape)
    if base.shape != expected or not base.is_floating_point():
        given = f"shape {tuple(base.shape)} and type {base.dtype}"
        raise ValueError(f"weigh: base has {given}, not floating point [B, L] = {expected}")
    weights = TURN_WEIGHTS[weight](batch, base, **(weight_options or {}))
    return Credit(base, weights, sampled_only(batch, base * batch.gather_turns(weights)))
