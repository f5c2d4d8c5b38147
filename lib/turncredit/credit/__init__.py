"""Credit assignment in three composable stages: base advantage, turn weight, their product.

Depends on torch alone (and on `turncredit.batching` and `turncredit.signals`), so that any
training loop can import it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.weights import TURN_WEIGHTS

__all__ = ["BASES", "TURN_WEIGHTS", "token_advantages"]


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
    advantages = BASES[base](batch, **(base_options or {}))
    weights = TURN_WEIGHTS[weight](batch, advantages, **(weight_options or {}))
    weighted = advantages * batch.gather_turns(weights)
    return torch.where(batch.response_mask, weighted, 0.0)
