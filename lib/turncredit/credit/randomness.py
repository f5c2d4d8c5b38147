"""Random numbers for controls and ablations, reproducible without touching the global generator."""

from collections.abc import Sequence

import torch
from torch import Tensor


def uniforms(
    shape: Sequence[int], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Float64 of the given shape in [0, 1), on `device`; None: the same numbers at every call."""
    source = torch.Generator().manual_seed(0) if generator is None else generator
    drawn = torch.rand(tuple(shape), generator=source, device=source.device, dtype=torch.float64)
    return drawn.to(device)
