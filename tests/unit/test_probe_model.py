"""A language model as the probe's responder: one prefix, many responses, a plain pass's numbers."""

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.policies.prefix_cache import PackedRows, copies, read_prefix
from turncredit.probe import PolicyResponder

transformers = pytest.importorskip("transformers", reason="language models need transformers")

WORDS, CLOSING = 24, 3
PREFIX = (*range(4, 22), 5, 6, 7)


def ended(ids) -> bool:
    return ids[-1] == CLOSING


def save_model(folder: Path) -> Path:
    """A random two-layer Qwen3, sharp enough for its distributions to differ."""
    config = transformers.Qwen3Config(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        head_dim=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> HuggingFacePolicy:
    settings = HuggingFaceSettings(
        model=str(save_model(tmp_path_factory.mktemp("model") / "words")),
        max_tokens=64,
        chat=False,
        preface="",
        dtype="float32",
        attention="sdpa",
        micro_batch_rows=3,
        gradient_checkpointing=False,
        device="cpu",
        lora=None,
    )
    return HuggingFacePolicy(settings, seed=0)


@torch.no_grad()
def plain_pass(model: HuggingFacePolicy, ids: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Log-probs and entropies of `ids` after the prefix by one pass over the whole, at T = 1."""
    logits = model.model(input_ids=torch.tensor([[*PREFIX, *ids]])).logits[0].double()
    logs = logits[len(PREFIX) - 1 : -1].log_softmax(-1)
    chosen = logs.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return chosen.tolist(), (-(logs.exp() * logs).sum(-1)).tolist()


def test_log_probs_and_entropies_are_those_of_a_plain_pass_at_temperature_1(model):
    said = PolicyResponder(model, ended, 6, block_rows=4).respond(PREFIX, 10, seed=0)
    assert len({t.sampled_ids for t in said}) > 5
    assert {len(t.sampled_ids) for t in said} > {6}, "some ended by the tag, some by the cap"
    for turn in said:
        logprobs, entropies = plain_pass(model, turn.sampled_ids)
        assert turn.sampled_logprobs == pytest.approx(logprobs, abs=1e-4)
        assert turn.sampled_entropies == pytest.approx(entropies, abs=1e-4)


def test_nothing_is_cut_off_the_distribution(model):
    """4000 first tokens: each as often as its probability, the unlikely ones too."""
    drawn = PolicyResponder(model, ended, 1, block_rows=500).respond(PREFIX, 4000, seed=1)
    counts = Counter(t.sampled_ids[0] for t in drawn)
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([PREFIX])).logits[0, -1].double()
    for token, chance in enumerate(logits.softmax(-1).tolist()):
        assert abs(counts[token] - 4000 * chance) < 5 * math.sqrt(4000 * chance) + 1


def test_neither_blocks_nor_more_responses_change_a_response(model):
    few = PolicyResponder(model, ended, 5).respond(PREFIX, 5, seed=2)
    for rows in (1, 3, 64):
        many = PolicyResponder(model, ended, 5, block_rows=rows).respond(PREFIX, 12, seed=2)
        assert [t.sampled_ids for t in many[:5]] == [t.sampled_ids for t in few]


@torch.no_grad()
def test_copies_leave_the_row_that_read_the_prefix_alone(model):
    _, decoder = read_prefix(model, PREFIX)
    before = decoder.cache.layers[0].keys.clone()
    left, right = copies(decoder, 3), copies(decoder, 2)
    first = left.step(torch.tensor([4, 5, 6]))
    left.keep(torch.tensor([2]))
    second = right.step(torch.tensor([6, 4]))
    near = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(first[[2, 0]], second, **near)
    torch.testing.assert_close(left.step(torch.tensor([9]))[0], plain_hidden(model, (6, 9)), **near)
    assert torch.equal(decoder.cache.layers[0].keys, before)
    assert (decoder.length, left.length, right.length) == (21, 23, 22)
    torch.testing.assert_close(decoder.step(torch.tensor([4])), second[1:], **near)


@torch.no_grad()
def plain_hidden(model: HuggingFacePolicy, ids: tuple[int, ...]) -> torch.Tensor:
    """Hidden state of the last of `ids` after the prefix."""
    return model.hidden(torch.tensor([[*PREFIX, *ids]]), use_cache=False)[0, -1]


def test_models_whose_layers_take_no_mask_get_a_copy_of_the_prefix_for_each_row(model, monkeypatch):
    """Sliding windows, and kernels that know causal masks alone: the same numbers, more memory."""
    packed = PolicyResponder(model, ended, 6, block_rows=4).respond(PREFIX, 10, seed=0)
    monkeypatch.setattr(PackedRows, "can_continue", staticmethod(lambda decoder: False))
    copied = PolicyResponder(model, ended, 6, block_rows=4).respond(PREFIX, 10, seed=0)
    assert [t.sampled_ids for t in packed] == [t.sampled_ids for t in copied]
    for one, other in zip(packed, copied, strict=True):
        assert one.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=1e-4)


@torch.no_grad()
def test_a_sliding_window_is_not_packed(model):
    _, decoder = read_prefix(model, PREFIX)
    assert PackedRows.can_continue(decoder)
    decoder.cache.layers[1].is_sliding = True
    assert not PackedRows.can_continue(decoder)


@dataclass
class Reads:
    """(rows, tokens) of every pass through a model."""

    passes: list[tuple[int, int]] = field(default_factory=list)


@pytest.mark.parametrize("count", [2, 8, 30])
def test_the_prefix_is_read_in_one_pass_and_memory_does_not_grow_with_the_responses(
    model, count, monkeypatch
):
    seen, hidden = Reads(), HuggingFacePolicy.hidden

    def counted(self, token_ids, *given, **options):
        seen.passes.append(tuple(token_ids.shape))
        return hidden(self, token_ids, *given, **options)

    monkeypatch.setattr(HuggingFacePolicy, "hidden", counted)
    PolicyResponder(model, ended, 4, block_rows=8).respond(PREFIX, count, seed=0)
    assert {rows for rows, _ in seen.passes} == {1}, "the prefix is never copied"
    assert seen.passes[0] == (1, len(PREFIX))
    assert 1 < max(tokens for _, tokens in seen.passes[1:]) <= min(count, 8)
    assert len(seen.passes) <= 1 + 3 * math.ceil(count / 8)


@pytest.mark.parametrize("length", [0, 64, 65])
def test_a_prefix_without_a_place_to_speak_is_refused(model, length):
    with pytest.raises(ValueError, match=f"{length} ids"):
        PolicyResponder(model, ended, 3).respond((4,) * length, 2, seed=0)


def test_the_decoder_of_a_model_has_the_cache_that_copies_look_for(model):
    """`copies` knows it by its name: renamed, blocks would share one cache."""
    assert hasattr(model.decoder(1), "cache")
