"""Log-probs and entropies in blocks against float64 autograd, with -inf, half precision, junk."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turncredit import logprobs
from turncredit.logprobs import from_hidden, logprobs_and_entropies

SEVERAL_BLOCKS = 2 * logprobs.BLOCK_COLUMNS + 77


def plain(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The textbook formulas in float64, for finite logits."""
    logs = torch.log_softmax(logits.double() / temperature, dim=-1)
    return logs.gather(-1, token_ids[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def example(*shape: int, dtype=torch.float32, scale: float = 3.0, seed: int = 0):
    stream = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(*shape, generator=stream)).to(dtype)
    return logits, torch.randint(0, shape[-1], shape[:-1], generator=stream)


def gradient(function, logits: Tensor, *arguments, seed: int = 1, **options) -> Tensor:
    """Of a random combination of both results."""
    logits = logits.detach().requires_grad_()
    results = function(logits, *arguments, **options)
    stream = torch.Generator().manual_seed(seed)
    total = sum((r * torch.randn(r.shape, generator=stream).to(r)).sum() for r in results)
    return torch.autograd.grad(total, logits)[0]


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of 2 x 3, so that small examples have several, the last ones partly filled."""
    monkeypatch.setattr(logprobs, "BLOCK_COLUMNS", 3)
    monkeypatch.setattr(logprobs, "BLOCK_SIZE", 6)


def test_by_hand():
    """Two equal logits of which one is sampled; probabilities 1/2, 1/4, 1/4."""
    logprob, entropy = logprobs_and_entropies(torch.tensor([5.0, 5.0]), torch.tensor(1))
    assert [logprob.item(), entropy.item()] == pytest.approx([-math.log(2), math.log(2)])
    logits = torch.tensor([math.log(2), 0.0, 0.0])
    logprob, entropy = logprobs_and_entropies(logits, torch.tensor(2))
    assert logprob.item() == pytest.approx(-math.log(4))
    assert entropy.item() == pytest.approx(1.5 * math.log(2))
    logprob, entropy = logprobs_and_entropies(logits, torch.tensor(0), temperature=0.5)
    assert logprob.item() == pytest.approx(math.log(4 / 6))
    assert entropy.item() == pytest.approx(math.log(6) - math.log(4) * 4 / 6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_values_and_gradients_over_several_blocks(dtype, temperature):
    logits, ids = example(2, 3, SEVERAL_BLOCKS, dtype=dtype)
    found = logprobs_and_entropies(logits, ids, temperature=temperature)
    wanted = plain(logits, ids, temperature)
    assert all(values.shape == ids.shape for values in found)
    assert found[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for values, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(values.double(), expected, atol=3e-6, rtol=0)
    exact = gradient(plain, logits.double(), ids, temperature)
    computed = gradient(logprobs_and_entropies, logits, ids, temperature=temperature)
    assert computed.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(computed.double(), exact, atol=1e-6, rtol=max(rounding, 1e-5))


def test_gradcheck(tiny_blocks):
    logits, ids = example(2, 3, 7, dtype=torch.float64)
    logits[0, 1, ids[0, 1]] += 30  # a token that is all but certain
    assert torch.autograd.gradcheck(
        lambda x: logprobs_and_entropies(x, ids, temperature=0.7), logits.requires_grad_()
    )
    hidden, weight = (t.requires_grad_() for t in (example(2, 3, 4)[0], example(7, 4, seed=2)[0]))
    assert torch.autograd.gradcheck(
        lambda *states: from_hidden(*states, ids, temperature=1.3, chunk=4),
        (hidden.double(), weight.double()),
    )


@pytest.mark.parametrize("used", [0, 1])
def test_one_result_alone_has_its_own_gradient(used, tiny_blocks):
    logits, ids = example(5, 8)
    logits.requires_grad_()
    (found,) = torch.autograd.grad(logprobs_and_entropies(logits, ids)[used].sum(), logits)
    (wanted,) = torch.autograd.grad(plain(logits, ids)[used].sum(), logits)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_minus_infinity_is_as_if_the_word_did_not_exist(dtype, tiny_blocks):
    logits, ids = example(6, 11, dtype=dtype)
    absent = torch.tensor([0, 3, 4, 5, 10])  # the whole second block among them
    words = torch.tensor([w for w in range(11) if w not in absent])
    ids = words[ids % len(words)]
    masked = logits.index_fill(1, absent, -math.inf)
    fewer, place = logits[:, words], torch.searchsorted(words, ids)
    for found, wanted in zip(
        logprobs_and_entropies(masked, ids), logprobs_and_entropies(fewer, place), strict=True
    ):
        torch.testing.assert_close(found, wanted)
    found = gradient(logprobs_and_entropies, masked, ids)
    assert (found[:, absent] == 0).all()
    torch.testing.assert_close(found[:, words], gradient(logprobs_and_entropies, fewer, place))


def test_a_sampled_word_of_probability_zero():
    """Its log-prob is -inf, as the softmax has it; its gradient is still [j = y] - p_j."""
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    logprob, entropy = logprobs_and_entropies(logits, torch.tensor([2]))
    assert logprob.item() == -math.inf
    assert entropy.item() == pytest.approx(math.log(2))
    assert torch.autograd.grad(logprob.sum(), logits)[0].tolist() == [
        pytest.approx([-0.5, -0.5, 1.0])
    ]


@pytest.mark.parametrize("junk", [-math.inf, math.nan, math.inf])
def test_a_row_of_junk_is_nan_and_harmless_where_no_loss_uses_it(junk, tiny_blocks):
    logits, ids = example(5, 8)
    spoilt = logits.clone()
    spoilt[3] = junk
    kept = torch.tensor([0, 1, 2, 4])
    found, clean = logprobs_and_entropies(spoilt, ids), logprobs_and_entropies(logits, ids)
    for values, expected in zip(found, clean, strict=True):
        assert values[3].isnan()
        assert torch.equal(values[kept], expected[kept])

    def of_kept(states: Tensor) -> Tensor:
        states = states.detach().requires_grad_()
        logprob, entropy = logprobs_and_entropies(states, ids)
        return torch.autograd.grad((logprob + 2 * entropy)[kept].sum(), states)[0]

    assert (of_kept(spoilt)[3] == 0).all()
    assert torch.equal(of_kept(spoilt), of_kept(logits))


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    st.sampled_from([0.0, -1e3, 1e3]),
    st.floats(0.3, 3.0),
    st.integers(1, 40),
)
def test_any_scale_offset_and_temperature(seed, scale, offset, temperature, words):
    logits, ids = example(4, words, scale=scale, seed=seed)
    logits += offset
    found = logprobs_and_entropies(logits, ids, temperature=temperature)
    for values, expected in zip(found, plain(logits, ids, temperature), strict=True):
        size = logits.abs().max().item() / temperature
        torch.testing.assert_close(values.double(), expected, atol=1e-6 + 4e-7 * size, rtol=1e-6)
    assert (found[1] >= 0).all()
    assert gradient(logprobs_and_entropies, logits, ids, temperature=temperature).isfinite().all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("words", [1, 5, 100, SEVERAL_BLOCKS])
def test_a_token_is_computed_by_itself(words, threads):
    """Alone, permuted, in another split, with other threads: the same bits."""
    logits, ids = example(9, words)
    whole = logprobs_and_entropies(logits, ids)
    slopes = gradient(lambda *given: logprobs_and_entropies(*given)[:1], logits, ids)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in ([8], [3, 1], [7, 6, 5, 4, 3, 2, 1, 0], list(range(8))):
            for found, wanted in zip(
                logprobs_and_entropies(logits[rows], ids[rows]), whole, strict=True
            ):
                assert torch.equal(found, wanted[rows])
        again = gradient(lambda *given: logprobs_and_entropies(*given)[:1], logits, ids)
        assert torch.equal(again, slopes)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_and_other_strides(dtype, tiny_blocks):
    logits, ids = example(3, 5, 8, dtype=dtype)
    for view in (logits[:, :-1], logits[..., 1:], logits.transpose(0, 1), logits[0, 0], logits[:0]):
        view_ids = ids.new_zeros(view.shape[:-1])
        found, wanted = (logprobs_and_entropies(x, view_ids) for x in (view, view.contiguous()))
        assert all(map(torch.equal, found, wanted))
        slopes = gradient(logprobs_and_entropies, view, view_ids)
        assert torch.equal(slopes, gradient(logprobs_and_entropies, view.contiguous(), view_ids))


def entropy_errors(logits: Tensor) -> tuple[float, float]:
    """Nats: of ours, and of PyTorch's own arithmetic in the type of the logits."""
    ids = torch.zeros(len(logits), dtype=torch.int64)
    _, exact = plain(logits, ids)
    _, ours = logprobs_and_entropies(logits, ids)
    logs = torch.log_softmax(logits, dim=-1)
    native = -(logs.exp() * logs).sum(-1)
    return tuple((found - exact).abs().max().item() for found in (ours, native))


def test_half_precision_logits_cost_nothing_beyond_their_rounding():
    """PyTorch's bfloat16 softmax is off by more than 0.1 nat over a language model's vocabulary."""
    logits, ids = example(4, 151_936, scale=2.0)
    rounded = logits.bfloat16()
    ours, native = entropy_errors(rounded)
    assert ours < 1e-5
    assert native > 0.1
    for found, exact in zip(logprobs_and_entropies(rounded, ids), plain(rounded, ids), strict=True):
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    _, of_rounded = plain(rounded, ids)
    _, of_unrounded = plain(logits, ids)
    assert (of_rounded - of_unrounded).abs().max() < 1e-3  # the rounding itself


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor that an operation made anew, and of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if is_tensor(t)
        }
        result = function(*args, **(kwargs or {}))
        for made in filter(is_tensor, tree_leaves(result)):
            storage = made.untyped_storage()
            if storage.data_ptr() not in given:
                self.largest = max(self.largest, storage.nbytes())
        return result


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def test_the_gradient_of_an_all_but_certain_token_survives_half_precision():
    """1 - p is 0.0013 and 0.00064: bfloat16 knows nothing between 0.996 and 1."""
    logits = torch.tensor([[10.0, 3.375], [10.0, 2.65625]], dtype=torch.bfloat16)
    ids = torch.zeros(2, dtype=torch.int64)
    for pick in (slice(0, 1), slice(1, 2), slice(0, 2)):

        def picked(function, pick=pick):
            return lambda *given: function(*given)[pick]

        found = gradient(picked(logprobs_and_entropies), logits, ids)
        exact = gradient(picked(plain), logits.double(), ids)
        torch.testing.assert_close(found.double(), exact, atol=0, rtol=0.004)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_larger_than_a_block(dtype, monkeypatch):
    monkeypatch.setattr(logprobs, "BLOCK_COLUMNS", 500)
    monkeypatch.setattr(logprobs, "BLOCK_SIZE", 1000)
    blocks = 2 * 4 * 1000 * torch.get_num_threads()
    logits, ids = example(2, 36, 4000, dtype=dtype)
    with Allocations() as forward:
        logprobs_and_entropies(logits[:, :-1], ids[:, :-1])
    assert forward.largest <= blocks
    hidden, weight = (x.requires_grad_() for x in (example(70, 2)[0], example(4000, 2)[0]))
    ids, chunk = ids.flatten()[:70], 10 * 4000 * 4
    with Allocations() as forward:
        results = from_hidden(hidden, weight, ids, chunk=10)
    assert forward.largest == chunk
    with Allocations() as backward:
        sum(results).sum().backward()
    assert backward.largest == chunk


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_hidden_is_the_head_and_then_the_logits(dtype, tiny_blocks):
    hidden, weight = example(2, 5, 6, dtype=dtype)[0], example(9, 6, dtype=dtype, seed=3)[0]
    ids = example(2, 5, 9)[1]

    def by_logits(states: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_and_entropies(states @ head.T, ids, temperature=0.8)

    for chunk in (1, 4, 10, 256):

        def in_chunks(states: Tensor, head: Tensor, size: int = chunk) -> tuple[Tensor, Tensor]:
            return from_hidden(states, head, ids, temperature=0.8, chunk=size)

        close = (
            {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
        )
        for found, wanted in zip(in_chunks(hidden, weight), by_logits(hidden, weight), strict=True):
            torch.testing.assert_close(found, wanted, **close)
        torch.testing.assert_close(
            gradient(in_chunks, hidden, weight), gradient(by_logits, hidden, weight), **close
        )
        torch.testing.assert_close(
            gradient(lambda head: in_chunks(hidden, head), weight),
            gradient(lambda head: by_logits(hidden, head), weight),
            **close,
        )


def test_the_gradient_of_a_half_precision_head_is_summed_in_float32():
    """2,000 equal chunks: summed in bfloat16, the total would stop growing at 256 times one."""
    hidden = torch.ones(2000, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprob, _ = from_hidden(hidden, weight, torch.zeros(2000, dtype=torch.int64), chunk=1)
    logprob.sum().backward()
    assert weight.grad.flatten().tolist() == [1000.0, -1000.0]


def test_from_hidden_leaves_unused_tokens_and_frozen_heads_alone():
    hidden, weight = example(6, 4)[0], example(9, 4, seed=3)[0]
    hidden[2] = math.nan
    hidden.requires_grad_()
    logprob, entropy = from_hidden(hidden, weight, torch.zeros(6, dtype=torch.int64), chunk=2)
    assert logprob[2].isnan()
    (logprob[:2] + entropy[:2]).sum().backward()
    assert (hidden.grad[2:] == 0).all()
    assert (hidden.grad[:2] != 0).all()
    assert weight.grad is None


def test_autocast_does_not_reach_inside():
    hidden, weight = (x.requires_grad_() for x in (example(6, 40)[0], example(90, 40, seed=3)[0]))
    ids = example(6, 90)[1]

    def run() -> tuple[Tensor, ...]:
        logprob, entropy = from_hidden(hidden, weight, ids)
        return logprob, *torch.autograd.grad((logprob + entropy).sum(), (hidden, weight))

    outside = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, run(), outside))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": -1}, "temperature is -1; it must be a finite number above 0"),
        ({"temperature": "1"}, "temperature is '1'; it must be a finite number above 0"),
        ({"temperature": None}, "temperature is None; it must"),
        ({"temperature": True}, "temperature is True; it must"),
        ({"temperature": torch.tensor(1.0)}, r"temperature is tensor\(1.\); it must"),
        ({"temperature": [1.0]}, r"temperature is \[1.0\]; it must"),
        ({"token_ids": torch.tensor([0, 1])}, r"shape \(2,\), not \(3,\)"),
        ({"token_ids": torch.tensor([0, 1, 5])}, r"5 at \(2,\) is not in 0 .. 4"),
        ({"token_ids": torch.tensor([0, -100, 5])}, r"-100 at \(1,\)"),
        ({"token_ids": torch.tensor([0.0, 1.0, 2.0])}, "need int64"),
        ({"logits": torch.zeros(3, 5, dtype=torch.int64)}, "need int64 for floats"),
    ],
)
def test_bad_input_is_named(change, complaint):
    given = {"logits": torch.zeros(3, 5), "token_ids": torch.tensor([0, 1, 4])} | change
    with pytest.raises(ValueError, match=complaint):
        logprobs_and_entropies(**given)
    hidden = {"hidden": given.pop("logits"), "weight": torch.zeros(5, 5)} | given
    if hidden["hidden"].is_floating_point():
        with pytest.raises(ValueError, match=complaint):
            from_hidden(**hidden)


def test_a_head_that_does_not_fit_is_named():
    hidden, ids = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    for weight in (torch.zeros(4, 9), torch.zeros(4), torch.zeros(9, 4, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match=r"weight: .* not \[V, D\]"):
            from_hidden(hidden, weight, ids)
    for chunk in (0, -1, 1.5, "2", True, None):
        said = re.escape(
            f"from_hidden: chunk is {chunk!r}; it must be a whole number of at least 1"
        )
        with pytest.raises(ValueError, match=said):
            from_hidden(hidden, torch.zeros(9, 4), ids, chunk=chunk)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    logits, ids = example(300, 151_936, dtype=dtype)
    found = logprobs_and_entropies(logits.cuda(), ids.cuda())
    for values, expected in zip(found, plain(logits, ids), strict=True):
        torch.testing.assert_close(values.cpu().double(), expected, atol=1e-4, rtol=0)
    slopes = gradient(logprobs_and_entropies, logits.cuda(), ids.cuda())
    torch.testing.assert_close(
        slopes.cpu(), gradient(logprobs_and_entropies, logits, ids), atol=1e-5, rtol=0.01
    )
