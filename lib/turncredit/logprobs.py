"""Log-probs and entropies of tokens in one pass over the logits, in blocks that fit the cache.

For one token with logits x, temperature t and z = (x - max x) / t, and sums over the vocabulary:

    log p_j = z_j - log sum exp z        H = log sum exp z - (sum z exp z) / (sum exp z)

    d log p_y / d x_j = ([j = y] - p_j) / t        d H / d x_j = -p_j (log p_j + H) / t

Every block of logits is brought to float32 (float64 stays), so that half precision costs nothing
beyond the rounding of the logits themselves.  Backward goes over the logits, or over the hidden
states and the head, once more: a softmax over the vocabulary is never stored.  Each token is
computed by itself, whatever stands beside it.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from turncredit.option_ranges import check_range

BLOCK_COLUMNS = 16_384
BLOCK_SIZE = 262_144
"""Elements of a block per CPU thread, 16 rows: two float32 buffers of 1 MiB."""
DEVICE_BLOCK_SIZE = 2**25
"""Elements of a block on other devices, where a block has whole rows: two buffers of 128 MiB."""
LOWEST = -1000.0
"""exp is exactly 0 from here down, also in float64; stands for -inf, for which 0 * z is NaN."""


def logprobs_and_entropies(
    logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Natural log-prob of each token and entropy of its distribution, both of token_ids' shape.

    logits: [..., V], float32, bfloat16, float16 or float64; token_ids: [...] int64, in 0 .. V - 1.
    For next-token logits pass `logits[:, :-1], token_ids[:, 1:]`, and pad the results on the left.
    The results are float32 (float64 for float64 logits), in nats, of softmax(logits / temperature),
    and differentiable once in the logits.  Beyond logits, results and, backward, the gradient,
    memory is two blocks: 2 MiB per CPU thread, 256 MiB on a GPU.

    A logit of -inf has probability 0, adds nothing to the entropy and gets gradient 0.  A row
    without a finite logit, or with NaN or inf, has NaN for both.  Tokens whose upstream gradients
    are 0 get gradient 0 whatever their logits hold: junk at a token that no loss uses is harmless.
    Raises ValueError for other shapes or types, an id outside the vocabulary, or a temperature
    that is not a positive number.

    >>> logits = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])
    >>> logprobs_and_entropies(logits, torch.tensor([1, 2]))
    (tensor([-0.6931, -1.0986]), tensor([0.6931, 1.0986]))
    """
    check_range("logprobs_and_entropies", "strength", temperature=temperature)
    _check(logits, token_ids, logits.shape[-1])
    return _FromLogits.apply(logits, token_ids, float(temperature))


def from_hidden(
    hidden: Tensor,
    weight: Tensor,
    token_ids: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 256,
) -> tuple[Tensor, Tensor]:
    """`logprobs_and_entropies(hidden @ weight.T, token_ids)` without the full logits.

    hidden: [..., D]; weight: [V, D] of a head without bias, of the same type; token_ids: [...].
    The logits are rounded to that type as the head itself would round them.  Differentiable once
    in both; backward computes the logits again, of the tokens with an upstream gradient only.
    Beyond results and gradients, memory is the logits of `chunk` tokens and the two blocks; the
    gradient of a half-precision weight is summed in float32, which takes 4 V D bytes.  Autocast
    does not reach inside.
    Raises what `logprobs_and_entropies` raises, and ValueError for a chunk that is no count.
    """
    if hidden.dtype != weight.dtype or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        given = f"{tuple(weight.shape)} {weight.dtype}"
        raise ValueError(
            f"weight: {given}, not [V, D] as hidden, {tuple(hidden.shape)} {hidden.dtype}"
        )
    check_range("from_hidden", "count", chunk=chunk)
    check_range("from_hidden", "strength", temperature=temperature)
    _check(hidden, token_ids, len(weight))
    return _FromHidden.apply(hidden, weight, token_ids, float(temperature), int(chunk))


def _check(states: Tensor, token_ids: Tensor, vocabulary: int) -> None:
    if not states.is_floating_point() or token_ids.dtype != torch.int64:
        raise ValueError(f"token_ids: {token_ids.dtype} for {states.dtype}; need int64 for floats")
    if token_ids.shape != states.shape[:-1]:
        raise ValueError(
            f"token_ids: shape {tuple(token_ids.shape)}, not {tuple(states.shape[:-1])}"
        )
    outside = (token_ids < 0) | (token_ids >= vocabulary)
    if outside.any():
        place = tuple(outside.nonzero()[0].tolist())
        value = token_ids[place].item()
        raise ValueError(f"token_ids: {value} at {place} is not in 0 .. {vocabulary - 1}")


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, token_ids: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        blocks = _Blocks(logits, logits.shape[-1], temperature)
        views = _row_views(logits)
        ids = token_ids.flatten().split([len(view) for view in views])
        measured = [blocks.measure(view, part) for view, part in zip(views, ids, strict=True)]
        logprobs, entropies, shifts = (
            torch.cat(parts).view(token_ids.shape) for parts in zip(*measured, strict=True)
        )
        ctx.save_for_backward(logits, token_ids, logprobs, entropies, shifts)
        ctx.temperature = temperature
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logprob_gradients: Tensor, entropy_gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        logits, *saved = ctx.saved_tensors
        gradients = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        blocks = _Blocks(logits, logits.shape[-1], ctx.temperature)
        views = _row_views(logits)
        counts = [len(view) for view in views]
        by_token = (*saved, logprob_gradients, entropy_gradients)
        parts = zip(*(values.flatten().split(counts) for values in by_token), strict=True)
        targets = gradients.view(-1, logits.shape[-1]).split(counts)
        for view, target, tokens in zip(views, targets, parts, strict=True):
            blocks.differentiate(view, *tokens, target)
        return gradients, None, None


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        blocks = _Blocks(hidden, len(weight), temperature)
        states, ids = hidden.reshape(-1, hidden.shape[-1]), token_ids.flatten()
        measured = [
            blocks.measure(logits, ids[rows])
            for rows, logits in _head_chunks(states, weight, chunk)
        ]
        logprobs, entropies, shifts = (
            torch.cat(parts).view(token_ids.shape) for parts in zip(*measured, strict=True)
        )
        ctx.save_for_backward(hidden, weight, token_ids, logprobs, entropies, shifts)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logprob_gradients: Tensor, entropy_gradients: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, *saved = ctx.saved_tensors
        by_token = [values.flatten() for values in (*saved, logprob_gradients, entropy_gradients)]
        used = ((by_token[-2] != 0) | (by_token[-1] != 0)).nonzero()[:, 0]
        states, *by_token = (
            values.index_select(0, used)
            for values in (hidden.reshape(-1, hidden.shape[-1]), *by_token)
        )
        blocks = _Blocks(hidden, len(weight), ctx.temperature)
        of_states, of_weight = torch.empty_like(states), None
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight, dtype=blocks.dtype)
        for rows, logits in _head_chunks(states, weight, ctx.chunk):
            blocks.differentiate(logits, *(values[rows] for values in by_token), logits)
            torch.mm(logits, weight, out=of_states[rows])
            if of_weight is not None:
                _add_outer(of_weight, logits, states[rows])
        of_hidden = torch.zeros_like(hidden, memory_format=torch.contiguous_format)
        of_hidden.view(-1, hidden.shape[-1]).index_copy_(0, used, of_states)
        if of_weight is not None:
            of_weight = of_weight.to(weight.dtype)
        return of_hidden, of_weight, None, None, None


def _head_chunks(states: Tensor, weight: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their logits; the next chunk overwrites the logits of the last one."""
    buffer = states.new_empty(min(chunk, len(states)), len(weight))
    for start in range(0, max(len(states), 1), chunk):
        rows = slice(start, start + chunk)
        part = states[rows]
        yield rows, torch.mm(part, weight.t(), out=buffer[: len(part)])


def _add_outer(total: Tensor, gradients: Tensor, states: Tensor) -> None:
    """Add gradients.T @ states, [V, D], to `total` in the type of `total`, by rows of it."""
    if total.dtype == states.dtype:
        total.addmm_(gradients.t(), states)
        return
    for target, part in zip(
        total.split(BLOCK_COLUMNS), gradients.split(BLOCK_COLUMNS, dim=1), strict=True
    ):
        target.add_(part.t() @ states)


def _row_views(logits: Tensor) -> list[Tensor]:
    """[..., V] as [N, V] views, in order; a slice such as logits[:, :-1] is not copied."""
    if logits.dim() == 2:
        return [logits]
    if logits.dim() == 1 or logits.is_contiguous():
        return [logits.view(math.prod(logits.shape[:-1]), logits.shape[-1])]
    return [view for part in logits for view in _row_views(part)]


class _Blocks:
    """Two buffers, and how [N, V] logits are gone through in blocks that fit them."""

    def __init__(self, states: Tensor, vocabulary: int, temperature: float) -> None:
        """For logits of the type and device of `states`."""
        on_cpu = states.device.type == "cpu"
        size = BLOCK_SIZE * torch.get_num_threads() if on_cpu else DEVICE_BLOCK_SIZE
        self.columns = min(vocabulary, BLOCK_COLUMNS) if on_cpu else vocabulary
        self.rows = max(1, size // self.columns)
        self.dtype = torch.float64 if states.dtype == torch.float64 else torch.float32
        self.temperature = temperature
        self.buffers = torch.empty(
            2, self.rows * self.columns, dtype=self.dtype, device=states.device
        )
        self.shape = None

    def measure(self, logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N] each: log-prob, entropy, and what added to a logit / temperature is its log p."""
        maxima = logits.new_empty(len(logits), dtype=self.dtype)
        mass, weighted = maxima.new_zeros(2, len(logits), dtype=torch.float64)
        for part, *sums in self._by_rows(logits, maxima, mass, weighted):
            self._add_sums(part, *sums)
        log_mass = mass.log()
        chosen = logits.gather(1, token_ids[:, None])[:, 0].double() - maxima
        logprobs = chosen / self.temperature - log_mass
        entropies = (log_mass - weighted / mass).clamp(min=0)
        shifts = -maxima / self.temperature - log_mass
        return logprobs.to(self.dtype), entropies.to(self.dtype), shifts.to(self.dtype)

    def _add_sums(self, logits: Tensor, maxima: Tensor, mass: Tensor, weighted: Tensor) -> None:
        """[n, V] and [n] thrice: fill in the maxima, sum exp z and sum z exp z, block by block."""
        maxima.copy_(logits.amax(dim=1))
        shifts = (-maxima / self.temperature)[:, None]
        for block in logits.split(self.columns, dim=1):
            values, exps = self._exponentials(block, shifts)
            mass += exps.sum(dim=1)
            weighted += values.mul_(exps).sum(dim=1)

    def differentiate(
        self,
        logits: Tensor,
        token_ids: Tensor,
        logprobs: Tensor,
        entropies: Tensor,
        shifts: Tensor,
        logprob_gradients: Tensor,
        entropy_gradients: Tensor,
        target: Tensor,
    ) -> None:
        """Write the gradient of the [N, V] logits into `target`, which may be the logits."""
        used = (logprob_gradients != 0) | (entropy_gradients != 0)
        slopes = -entropy_gradients / self.temperature
        offsets = slopes * entropies - logprob_gradients / self.temperature
        factors = (values[:, None] for values in (shifts, slopes, offsets))
        for some, *parts in self._by_rows(used, logits, target, *factors):
            if some.any():
                self._write_products(*parts)
        # 1 - p by expm1: in half precision, 1 minus a rounded p would lose the sampled token's own
        logs = logprobs.clamp(min=LOWEST)
        own = -torch.expm1(logs) * logprob_gradients / self.temperature
        own += slopes * logs.exp() * (logs + entropies)
        target.scatter_(1, token_ids[:, None], own[:, None].to(target.dtype))
        target[~used] = 0

    def _write_products(
        self, logits: Tensor, target: Tensor, shifts: Tensor, slopes: Tensor, offsets: Tensor
    ) -> None:
        """p (slope log p + offset) of [n, V] logits into `target`; the factors are [n, 1]."""
        for block, into in zip(
            logits.split(self.columns, dim=1), target.split(self.columns, dim=1), strict=True
        ):
            values, exps = self._exponentials(block, shifts)
            torch.addcmul(offsets, values, slopes, out=values)
            into.copy_(values.mul_(exps))

    def _by_rows(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(tensor.split(self.rows) for tensor in tensors), strict=True)

    def _exponentials(self, block: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """z = block / temperature + shifts, at least LOWEST, and exp z, in the two buffers."""
        if block.shape != self.shape:
            self.shape = block.shape
            self.values, self.exps = self.buffers[:, : block.numel()].view(2, *block.shape)
        source = block if block.dtype == self.dtype else self.values.copy_(block)
        torch.add(shifts, source, alpha=1 / self.temperature, out=self.values)
        self.values.clamp_(min=LOWEST)
        return self.values, torch.exp(self.values, out=self.exps)
