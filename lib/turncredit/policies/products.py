"""Matrix products of fp32 on a CPU, by the faster of the two libraries that torch brings.

torch gives products of fp32 to MKL, which uses AVX-512 on Intel's processors alone; oneDNN, which
torch ships for other layers, uses it wherever it exists.  benchmarks/products.py compares the two.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
WORTH_A_CALL = 2**21
"""Multiplications from which oneDNN is asked: a call costs some microseconds more."""


class Linear(nn.Linear):
    """A layer without bias."""

    def __init__(self, read: int, made: int) -> None:
        super().__init__(read, made, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """States [..., read] to [..., made]."""
        return linear(states, self.weight)


def linear(states: Tensor, weight: Tensor) -> Tensor:
    """`states @ weight.T` with its gradients: [..., k] and [n, k] to [..., n]."""
    if not _by_onednn(states, weight, weight.shape[0]):
        return F.linear(states, weight)
    return _Linear.apply(states.flatten(0, -2), weight).unflatten(0, states.shape[:-1])


def feed_forward(states: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """`relu(states @ up.T) @ down.T` with gradients: [..., k], [h, k] and [k, h] to [..., k]."""
    if not _by_onednn(states, up, up.shape[0]):
        return F.linear(F.linear(states, up).relu_(), down)
    found = _FeedForward.apply(states.flatten(0, -2), up, down)
    return found.unflatten(0, states.shape[:-1])


def mm(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of [m, k] and [k, n], whose gradients nobody asks for."""
    if not _by_onednn(left, right, right.shape[1]):
        return torch.mm(left, right)
    return _product(left, right.t())


def addmm(added: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`added + left @ right` of [m, n], [m, k] and [k, n], without gradients."""
    if not _by_onednn(left, right, right.shape[1]):
        return torch.addmm(added, left, right)
    return torch.ops.mkldnn._linear_pointwise.binary(left, added, right.t(), None, "add")


class _Linear(torch.autograd.Function):
    """`states @ weight.T` by oneDNN, forward and backward."""

    @staticmethod
    def forward(context: Any, states: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(states, weight)
        return _product(states, weight)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        states, weight = context.saved_tensors
        of_states, of_weight = context.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_states else None,
            _outer(gradient, states) if of_weight else None,
        )


class _FeedForward(torch.autograd.Function):
    """Two products with a ReLU between them.

    Between the products stand the largest tensors of a step, and a pass over them takes as long as
    a product: forward the ReLU is part of the first one, backward it works in place.
    """

    @staticmethod
    def forward(context: Any, states: Tensor, up: Tensor, down: Tensor) -> Tensor:
        inner = _product(states, up, "relu")
        context.save_for_backward(states, up, down, inner)
        return _product(inner, down)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, up, down, inner = context.saved_tensors
        of_states, of_up, of_down = context.needs_input_grad
        of_inner = _product(gradient, down.t()) if of_states or of_up else None
        if of_inner is not None:  # in place
            torch.ops.aten.threshold_backward.grad_input(of_inner, inner, 0, grad_input=of_inner)
        return (
            _product(of_inner, up.t()) if of_states else None,
            _outer(of_inner, states) if of_up else None,
            _outer(gradient, inner) if of_down else None,
        )


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """`left.T @ right` of [m, n] and [m, k]; oneDNN copies what it gets first, so the smaller."""
    if left.shape[1] <= right.shape[1]:
        return _product(left.t(), right.t())
    return _product(right.t(), left.t()).t()


def _product(left: Tensor, right: Tensor, then: str = "none") -> Tensor:
    """`left @ right.T` by oneDNN: [m, k] and [n, k] to [m, n]; and then "relu"."""
    return torch.ops.mkldnn._linear_pointwise(left, right, None, then, [], "")


def _by_onednn(states: Tensor, weight: Tensor, made: int) -> bool:
    """Whether a product with `made` outputs is worth the call, and oneDNN there and able to."""
    return (
        states.numel() * made >= WORTH_A_CALL
        and HAS_ONEDNN
        and states.device.type == "cpu"
        and states.dtype == weight.dtype == torch.float32
    )
