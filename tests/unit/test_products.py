"""Products are those of torch, by whichever library, and so are their gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turncredit.policies import products
from turncredit.policies.products import Linear, addmm, feed_forward, linear, mm

LARGE = (300, 96, 128)
"""[m, k] by [k, n], more multiplications than WORTH_A_CALL."""
SMALL = (5, 96, 128)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-4}


def matrices(rows, read, made, seed=0):
    """States [rows, read], weight [made, read] and something [rows, made] to add."""
    stream = torch.Generator().manual_seed(seed)
    shapes = (rows, read), (made, read), (rows, made)
    return [torch.randn(shape, generator=stream) for shape in shapes]


@pytest.fixture(params=["oneDNN", "torch"])
def library(request, monkeypatch):
    """Every product goes to one of the two, whatever its size."""
    if request.param == "oneDNN" and not products.HAS_ONEDNN:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(products, "HAS_ONEDNN", request.param == "oneDNN")
    monkeypatch.setattr(products, "WORTH_A_CALL", 0)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.integers(0, 9))
def test_products_are_those_of_float64(rows, read, made, seed):
    states, weight, added = matrices(rows, read, made, seed)
    expected = states.double() @ weight.double().t()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "WORTH_A_CALL", 0)
        torch.testing.assert_close(linear(states, weight).double(), expected, **TOLERANCE)
        torch.testing.assert_close(mm(states, weight.t()).double(), expected, **TOLERANCE)
        summed = addmm(added, states, weight.t())
        torch.testing.assert_close(summed.double(), added + expected, **TOLERANCE)


@pytest.mark.parametrize("shape", [LARGE, SMALL, (1, 1, 1), (3, 64, 9), (9, 9, 64)])
def test_gradients_are_those_of_torch(library, shape):
    states, weight, upstream = matrices(*shape)
    ours, theirs = ([part.clone().requires_grad_() for part in (states, weight)] for _ in "12")
    linear(*ours).backward(upstream)
    torch.nn.functional.linear(*theirs).backward(upstream)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, **TOLERANCE)


@pytest.mark.parametrize("shape", [LARGE, SMALL, (1, 1, 1), (9, 9, 64)])
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_two_products_with_a_relu_between_them_are_those_of_torch(library, shape, wanted):
    rows, read, inner = shape
    states, up, _ = matrices(rows, read, inner)
    _, down, upstream = matrices(rows, inner, read, seed=1)
    given = [(part, asked) for part, asked in zip((states, up, down), wanted, strict=True)]
    ours, theirs = ([part.clone().requires_grad_(asked) for part, asked in given] for _ in range(2))
    found = feed_forward(*ours)
    expected = (theirs[0] @ theirs[1].t()).relu() @ theirs[2].t()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    found.backward(upstream)
    expected.backward(upstream)
    for mine, other, asked in zip(ours, theirs, wanted, strict=True):
        assert (mine.grad is not None) == asked
        if asked:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-3)


def test_states_may_have_any_leading_dimensions_and_strides(library):
    states, weight, _ = matrices(24, 8, 12)
    strided = torch.randn(8, 24).t()
    assert linear(states.view(2, 3, 4, 8), weight).shape == (2, 3, 4, 12)
    torch.testing.assert_close(linear(strided, weight), strided @ weight.t(), **TOLERANCE)
    torch.testing.assert_close(linear(states, weight[::2]), states @ weight[::2].t(), **TOLERANCE)


def test_only_what_is_asked_for_gets_a_gradient(library):
    states, weight, upstream = matrices(*LARGE)
    weight.requires_grad_()
    linear(states, weight).backward(upstream)
    assert states.grad is None
    assert weight.grad is not None


def test_small_products_other_dtypes_and_builds_without_onednn_go_to_torch(monkeypatch):
    def refuse(*given):
        raise AssertionError("oneDNN was asked")

    monkeypatch.setattr(products, "_product", refuse)
    states, weight, _ = matrices(*LARGE)
    for left, right in (
        matrices(*SMALL)[:2],
        matrices(0, *LARGE[1:])[:2],
        (states.double(), weight.double()),
        (states.bfloat16(), weight.bfloat16()),
    ):
        assert torch.equal(linear(left, right), torch.nn.functional.linear(left, right))
        assert torch.equal(mm(left, right.t()), left @ right.t())
    monkeypatch.setattr(products, "HAS_ONEDNN", False)
    assert torch.equal(linear(states, weight), torch.nn.functional.linear(states, weight))


@pytest.mark.skipif(not products.HAS_ONEDNN, reason="this build of torch has no oneDNN")
def test_large_products_go_to_onednn(monkeypatch):
    asked = []
    product = products._product
    monkeypatch.setattr(products, "_product", lambda *given: asked.append(1) or product(*given))
    states, weight, upstream = matrices(*LARGE)
    layer = Linear(LARGE[1], LARGE[2])
    layer(states.requires_grad_()).backward(upstream)
    assert len(asked) == 3
    assert layer.bias is None
    mm(states.detach(), weight.t())
    assert len(asked) == 4
