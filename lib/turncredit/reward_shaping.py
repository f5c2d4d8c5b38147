"""Reward terms that do not look at the answer."""

import torch
from torch import Tensor


def soft_overlong_penalty(
    lengths: Tensor, *, max_length: int = 20480, cache_length: int = 4096
) -> Tensor:
    """Float32, shape of `lengths`: 0 for short trajectories, falling to -1 at `max_length`.

    0 up to max_length - cache_length tokens, then linear, -1 from max_length on.  DAPO, 2025,
    eq. 13, with its lengths.  `lengths` counts what the caller wants to be short: with several
    turns, sampled tokens (`batch.response_mask.sum(dim=1)`) leave out what the tools wrote.  Add it
    to a copy of the rewards: `batch.replace(rewards=batch.rewards + penalty)`.
    Raises ValueError unless 1 <= cache_length <= max_length.

    >>> soft_overlong_penalty(torch.tensor([70, 80, 90, 110]), max_length=100, cache_length=20)
    tensor([ 0.0000,  0.0000, -0.5000, -1.0000])
    """
    if not 1 <= cache_length <= max_length:
        raise ValueError(
            f"soft_overlong_penalty: cache_length is {cache_length}; "
            f"it must lie in 1 .. max_length = {max_length}"
        )
    allowed = max_length - cache_length
    return 0.0 - ((lengths - allowed) / cache_length).clamp(0.0, 1.0).to(torch.float32)
