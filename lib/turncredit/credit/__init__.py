"""Credit assignment in three composable stages: base advantage, turn weight, their product.

Depends on torch alone (and on `turncredit.batching` and `turncredit.signals`), so that any
training loop can import it.  A method of one's own enters with `@BASES.add` or `@TURN_WEIGHTS.add`
above it; in a notebook `@BASES.add(replace=True)`, so that the cell can be run again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from turncredit.batch_contract import check_floats, first_place
from turncredit.batching import TurnBatch
from turncredit.credit import (  # noqa: F401 (they enter their methods in the tables)
    adrs,
    aem,
    audited,
    branches,
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
    advantages = BASES[base](batch, **(base_options or {}))
    return _weighed(batch, advantages, f"base {base!r} returned", weight, weight_options)


def weigh(
    batch: TurnBatch, base: Tensor, weight: str, weight_options: Mapping[str, Any] | None = None
) -> Credit:
    """The second and third stage on base advantages [B, L]; for weights that follow the policy.

    What `base` holds outside `response_mask` is set to 0 before anything reads it.  Raises
    ValueError naming the base or the weight for another shape, which could broadcast in silence,
    another type than float32 and float64, and a number that is not finite where a token was
    sampled.
    """
    return _weighed(batch, base, "weigh: base is", weight, weight_options)


def _weighed(
    batch: TurnBatch,
    base: Tensor,
    source: str,
    weight: str,
    weight_options: Mapping[str, Any] | None,
) -> Credit:
    """`weigh`; `source` starts what is said about base advantages that cannot be."""
    check_floats(source, base, "[B, L]", tuple(batch.response_mask.shape))
    base = sampled_only(batch, base)
    returned = f"turn weight {weight!r} returned"
    weights = TURN_WEIGHTS[weight](batch, base, **(weight_options or {}))
    check_floats(returned, weights, "[B, T]", batch.spans.turn_shape)
    weights = weights.detach().to(base.dtype)
    advantages = base * batch.gather_turns(weights)  # 0 times 0 outside the mask
    if not advantages.sum().isfinite():  # one pass; where it came from is found out here
        _refuse_unfinite(source, base, "token")
        _refuse_unfinite(returned, weights.where(batch.turn_lengths() > 0, 1.0), "turn")
        _refuse_unfinite(f"base times turn weight {weight!r} is", advantages, "token")
    return Credit(base, weights, advantages)


def _refuse_unfinite(subject: str, values: Tensor, axis: str) -> None:
    wrong = ~values.isfinite()
    if wrong.any():
        place, value = first_place(wrong, values, axis)
        raise ValueError(f"{subject} {value} at {place}; it must be finite at sampled tokens")
