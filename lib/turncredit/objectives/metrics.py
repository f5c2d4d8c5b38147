"""Counted metrics of an objective, and how those of several batches become one row."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from turncredit.objectives.tokens import SampledTokens, segment_sums

COUNTS = ("response_tokens", "response_sequences", "response_turns")
WEIGHTS = {
    "clip_fraction": "response_tokens",
    "dual_clip_fraction": "response_tokens",
    "weight_clip_fraction": "response_tokens",
    "ppo_kl": "response_tokens",
    "ratio_guarded": "response_tokens",
    "kl": "response_tokens",
    "sequence_clip_fraction": "response_sequences",
    "turn_clip_fraction": "response_turns",
}
"""The count over which each mean was taken."""


def share(event: Tensor) -> Tensor:
    """Scalar: how many of the tokens the bool [N] holds for, NaN when there is none.

    >>> share(torch.tensor([True, False, False, False]))
    tensor(0.2500, dtype=torch.float64)
    """
    return event.count_nonzero().double() / len(event)


def level_measures(
    level: str, lengths: Tensor, log_ratio: Tensor, clipped: Tensor
) -> dict[str, Tensor]:
    """Scalars of a ratio that all tokens of a `level` ("sequence" or "turn") share.

    lengths [S]: tokens of each, empty ones do not count; log_ratio [N]: the shared one;
    clipped [N] bool.
    """
    count = lengths.count_nonzero().double()
    smallest, largest = _extremes(log_ratio)
    return {
        f"{level}_clip_fraction": segment_sums(clipped, lengths).count_nonzero() / count,
        f"{level}_ratio_min": smallest.exp(),
        f"{level}_ratio_max": largest.exp(),
        f"response_{level}s": count,
    }


@torch.no_grad()
def ratio_metrics(tokens: SampledTokens, measures: Mapping[str, Tensor]) -> dict[str, float]:
    """Statistics of the token ratios beside an objective's own scalars; one transfer.

    NaN without sampled tokens, and where one of them is NaN.
    """
    smallest, largest = _extremes(tokens.log_ratio)
    # exp grows with its argument, so that the extremes of the ratio need two exps, not N
    measured = dict(measures) | {
        "ppo_kl": -tokens.log_ratio.mean(dtype=torch.float64),
        "ratio_min": smallest.exp(),
        "ratio_max": largest.exp(),
        "ratio_guarded": share(tokens.guarded),
    }
    values = torch.stack([value.double() for value in measured.values()]).tolist()
    return dict(zip(measured, values, strict=True)) | {
        "response_tokens": float(len(tokens.log_ratio))
    }


def _extremes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of [N], in float64; NaN when empty or when one is NaN."""
    if not len(values):
        return values.new_full((2,), math.nan, dtype=torch.float64).unbind()
    smallest, largest = values.aminmax()
    return smallest.double(), largest.double()


def merge_metrics(collected: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of several updates or micro-batches, with the same names, as one row.

    Extremes of extremes (`_min`, `_max`); shares and means over tokens, trajectories or turns
    weighted by their number (`WEIGHTS`); sums of numbers; the plain mean of anything else.  A part
    without tokens has NaN there and is left out; any other NaN stays visible.

    >>> merge_metrics([{"ppo_kl": 0.0, "ratio_max": 1.5, "response_tokens": 3.0},
    ...                {"ppo_kl": 0.4, "ratio_max": 1.2, "response_tokens": 1.0}])
    {'ppo_kl': 0.1, 'ratio_max': 1.5, 'response_tokens': 4.0}
    """
    return {name: _merged(name, collected) for name in (collected[0] if collected else ())}


def _merged(name: str, collected: Sequence[Mapping[str, float]]) -> float:
    values = [part[name] for part in collected]
    if name in COUNTS:
        return sum(values)
    count = WEIGHTS.get(name)
    if count is None and name.endswith(("_min", "_max")):
        count = "response_tokens"
    if count is None:
        return sum(values) / len(values)
    weights = [part[count] for part in collected]
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    if not pairs or any(math.isnan(value) for value, _ in pairs):
        return math.nan
    if name in WEIGHTS:
        return sum(value * weight for value, weight in pairs) / sum(weights)
    return (max if name.endswith("_max") else min)(value for value, _ in pairs)
