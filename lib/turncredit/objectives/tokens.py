"""What an objective looks at: the sampled tokens of a batch, packed into one row."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turncredit.batch_contract import check_floats, check_logprobs
from turncredit.batching import TurnBatch
from turncredit.signals import LOG_RATIO_LIMIT


@dataclass(frozen=True, eq=False)
class SampledTokens:
    """The N sampled tokens, row by row in token order.  Nothing else can reach a loss."""

    batch: TurnBatch
    sampled_logprobs: Tensor
    """[N]: under the current policy; the only one with a gradient."""
    old_logprobs: Tensor
    """[N]"""
    advantages: Tensor
    """[N]"""
    log_ratio: Tensor
    """[N]: to the old policy, clipped to +-20."""
    guarded: Tensor
    """[N] bool: it was beyond +-20, so that no gradient passes."""

    @property
    def logprobs(self) -> Tensor:
        """[N]: of the current policy, at most 20 from the old one; no gradient."""
        return self.old_logprobs + self.log_ratio

    def lengths(self, level: str) -> Tensor:
        """[S] int64: how many tokens each trajectory ("sequence") or "turn" has, in order."""
        if level == "turn":
            return self.batch.turn_lengths().flatten()
        return self.batch.response_mask.sum(dim=1)

    def with_slopes(self, values: Tensor, slopes: Tensor) -> Tensor:
        """[N]: `values`, whose derivative with respect to each log-prob is `slopes`, [N] each.

        >>> from turncredit.batching import two_turns_and_one
        >>> batch, logprobs = two_turns_and_one(), torch.full((2, 4), -1.0, requires_grad=True)
        >>> tokens = sampled_tokens(logprobs, batch, torch.ones(2, 4))
        >>> losses = tokens.with_slopes(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
        >>> losses.sum().backward()
        >>> losses.detach(), logprobs.grad
        (tensor([0., 0., 0., 0.]), tensor([[1., 2., 0., 3.],
                [4., 0., 0., 0.]]))
        """
        slopes = slopes.masked_fill(self.guarded, 0.0)
        return _WithSlopes.apply(self.sampled_logprobs, values, slopes)


class _WithSlopes(torch.autograd.Function):
    """A value with a stated derivative; `x - x.detach()` would be NaN for a log-prob of -inf."""

    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * ctx.saved_tensors[0], None, None


def sampled_tokens(
    logprobs: Tensor, batch: TurnBatch, advantages: Tensor, *, owner: str = "sampled_tokens"
) -> SampledTokens:
    """Pack what `batch.response_mask` selects of logprobs and advantages, [B, L] each.

    Raises ValueError naming `owner` and the argument for another shape, which would broadcast in
    silence, another type than float32 and float64, and for log-probs above 0 at a sampled token:
    the two may have been given the other way round.
    """
    check_logprobs(f"{owner}: logprobs are", logprobs, batch.response_mask)
    check_floats(f"{owner}: advantages are", advantages, "[B, L]", tuple(batch.response_mask.shape))
    current, old, credit = (
        tensor.flatten().index_select(0, batch.spans.places)
        for tensor in (logprobs, batch.old_logprobs, advantages.detach())
    )
    log_ratio = current.detach() - old
    return SampledTokens(
        batch=batch,
        sampled_logprobs=current,
        old_logprobs=old,
        advantages=credit,
        log_ratio=log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
        guarded=log_ratio.abs() > LOG_RATIO_LIMIT,
    )


def segment_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """[N] and [S] int64 to [S], float64: the sum over each run of tokens, 0 for an empty one.

    Runs lie one after the other: the first covers the first lengths[0] values, and so on.
    """
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, unsafe=True)


def segment_means(values: Tensor, lengths: Tensor) -> Tensor:
    """[N] and [S] to [N]: at each token the mean of `values` over its run.

    >>> segment_means(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([2, 0, 1]))
    tensor([2., 2., 7.])
    """
    means = segment_sums(values, lengths) / lengths.clamp(min=1)
    return means.to(values.dtype).repeat_interleave(lengths, output_size=len(values))
