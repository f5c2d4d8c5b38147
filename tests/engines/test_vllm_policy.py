"""vLLM as the sampling engine: it says what the trainer's weights say, before and after an update.

Runs only where vLLM is installed: `make test-vllm` has it for the CPU.
"""

import asyncio
import importlib.util
import json
import os
from collections import Counter
from dataclasses import asdict, replace

import pytest
import torch
import yaml
from play import PLAIN, SMALL, TRAINING, coin_environment, questions, vocabulary

found = importlib.util.find_spec("vllm")
if found is None or found.origin is None:  # this folder is also called vllm
    pytest.skip("vLLM is not installed here; `make test-vllm` has it", allow_module_level=True)

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import transformers  # noqa: E402

from turncredit import params, paths, tasks  # noqa: E402
from turncredit.batching import from_trajectories  # noqa: E402
from turncredit.evaluation import evaluate  # noqa: E402
from turncredit.policies.huggingface import LoraSettings  # noqa: E402
from turncredit.policies.vllm import VllmPolicy, VllmSettings  # noqa: E402
from turncredit.rollout import roll_out  # noqa: E402
from turncredit.signals import mismatch  # noqa: E402
from turncredit.training import new_optimiser, train  # noqa: E402
from turncredit.warm_starts import warm_started_policy  # noqa: E402

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.2}
"""Nats: the largest difference of a log-prob by vLLM and by the trainer, of the same type."""
SETTINGS = VllmSettings(
    model="",
    max_tokens=64,
    chat=False,
    preface="",
    dtype="float32",
    attention="sdpa",
    micro_batch_rows=8,
    gradient_checkpointing=False,
    device="cpu",
    lora=None,
    engine_dtype="float32",
    engine_sequences=32,
    engine_cache_gib=0.125,
    engine_eager=True,
)
ASKED = {"seed": 0, "step": 0, "max_turn_tokens": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random two-layer Qwen3 over the small world's words, whose own settings would cut much."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = tmp_path_factory.mktemp("model")
    entries = {word: index for index, word in enumerate([*vocabulary().entries, "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(made)
    config = transformers.Qwen3Config(
        vocab_size=len(entries), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        head_dim=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.15, tie_word_embeddings=True, eos_token_id=len(entries) - 1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.Qwen3ForCausalLM(config).save_pretrained(made)
    cutting = {"top_k": 1, "top_p": 0.1, "temperature": 0.01, "repetition_penalty": 2.0}
    (made / "generation_config.json").write_text(json.dumps({"do_sample": True} | cutting))
    return made


def settings(folder, **changes):
    return replace(SETTINGS, model=str(folder), **changes)


def started(chosen):
    """A policy that lives as long as the tests: vLLM engines of one process end together."""
    STARTED.append(VllmPolicy(chosen, 0))
    return STARTED[-1]


STARTED = []


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def policy(request, folder):
    return started(settings(folder, dtype=request.param, engine_dtype=request.param))


@pytest.fixture(scope="module")
def exact(folder):
    return started(settings(folder))


def words(model):
    return model.settings.open_tokens()


def played(model, rows=24, environment=None, **options):
    asked = questions(rows // 4) * 4
    environment = environment or coin_environment(0.1)
    return roll_out(model, words(model), environment, asked, **ASKED | options)


def scored(model, trajectories):
    batch = from_trajectories(trajectories, group_ids=range(len(trajectories)))
    with torch.no_grad():
        logprobs, entropies = model.score(batch.token_ids, batch.response_mask)
    return batch.replace(old_logprobs=logprobs, entropies=entropies)


def worst(batch):
    return (batch.old_logprobs - batch.rollout_logprobs)[batch.response_mask].abs().max().item()


def learn(model, rate=0.02):
    """One step of gradient descent on the entropy, which moves every weight."""
    batch = scored(model, played(model))
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    _, entropies = model.score(batch.token_ids, batch.response_mask)
    entropies.sum().div(batch.response_mask.sum()).mul(-10).backward()
    optimiser.step()
    model.zero_grad()


# --- log-probs


def test_log_probs_are_those_that_the_trainer_gives(policy, record_property):
    batch = scored(policy, played(policy, rows=64))
    assert int(batch.response_mask.sum()) > 500 and batch.num_turns > 4
    measured = {"worst_nats": worst(batch), **mismatch(batch)}
    for name, value in measured.items():
        record_property(f"{policy.settings.dtype} {name}", value)
    print(policy.settings.dtype, {name: f"{value:.3g}" for name, value in measured.items()})
    assert worst(batch) < TOLERANCE[policy.settings.dtype]


def test_entropies_are_missing_and_not_made_up(exact):
    trajectories = played(exact, rows=8)
    assert all(
        value != value for t in trajectories for turn in t.turns for value in turn.sampled_entropies
    )


@torch.no_grad()
def test_log_probs_at_another_temperature_are_those_of_what_was_sampled_from(exact):
    trajectories = played(exact, temperature=0.5)
    batch = from_trajectories(trajectories, group_ids=range(24))
    table = torch.log_softmax(exact.logits(exact.hidden(batch.token_ids)) / 0.5, -1)
    rows, columns = batch.response_mask.nonzero(as_tuple=True)
    expected = table[rows, columns - 1, batch.token_ids[rows, columns]]
    gaps = (expected - batch.rollout_logprobs[rows, columns]).abs()
    assert gaps.max() < TOLERANCE["float32"]


@torch.no_grad()
def test_samples_come_from_the_whole_distribution(exact):
    """2,000 first tokens after one prompt, against the trainer's probabilities.

    The model's generation_config.json asks for the likeliest token alone.
    """
    prompt, engine = tuple(range(5, 12)), exact.engine()

    async def draw():
        asked = {"ended": lambda ids: True, "max_tokens": 1, "temperature": 1.0}
        return await asyncio.gather(
            *(engine.generate(prompt, seed=seed, **asked) for seed in range(2000))
        )

    counts = Counter(message.ids[0] for message in asyncio.run(draw()))
    hidden = exact.hidden(torch.tensor([prompt]))[0, -1]
    wanted = torch.softmax(exact.logits(hidden), -1) * 2000
    seen = torch.tensor([float(counts[token]) for token in range(len(wanted))])
    likely = wanted > 5
    assert likely.sum() > 10
    gaps = (seen - wanted)[likely] / wanted[likely].sqrt()
    assert gaps.abs().max() < 4.5  # standard deviations
    rare = wanted[~likely].sum()
    assert (seen[~likely].sum() - rare).abs() < 4.5 * rare.sqrt()


# --- weights


def test_a_push_makes_the_engine_say_what_the_trainer_learnt(policy):
    """The same prompts again: keys and values of the weights before must not be found."""
    before = played(policy)
    learn(policy)
    after = scored(policy, played(policy))
    tolerance = TOLERANCE[policy.settings.dtype]
    assert worst(after) < tolerance
    assert worst(scored(policy, before)) > 3 * tolerance, "the update moved too little to tell"


def test_adapters_are_merged(folder):
    pytest.importorskip("peft", reason="adapters need peft")
    lora = LoraSettings(rank=4, alpha=8.0, targets=())
    model = started(settings(folder, lora=lora))
    before = played(model)
    assert worst(scored(model, before)) < TOLERANCE["float32"]
    for rate in (0.5, 0.5):  # the first step moves only what starts at 0
        learn(model, rate)
    assert worst(scored(model, played(model))) < TOLERANCE["float32"]
    assert worst(scored(model, before)) > 3 * TOLERANCE["float32"]


def test_a_weight_that_is_not_pushed_is_named(exact):
    class Forgetful(VllmPolicy):
        def merged_weights(self):
            return ((n, v) for n, v in super().merged_weights() if "layers.1.mlp.down" not in n)

    exact.engine()
    forgetful = Forgetful(exact.settings, 0)
    forgetful._engine = exact._engine
    try:
        with pytest.raises(ValueError, match=r"given no model\.layers\.1\.mlp\.down_proj"):
            forgetful.engine()
    finally:
        exact.engine()


# --- requests


def test_rolling_out_twice_is_equal_and_rows_differ(exact):
    first = [t.token_ids for t in played(exact)]
    assert first == [t.token_ids for t in played(exact)]
    assert first != [t.token_ids for t in played(exact, seed=1)]
    assert len(set(first)) > 12


def test_a_request_that_vllm_refuses_loses_no_other(exact):
    engine = exact.engine()

    async def ask():
        asked = {"ended": lambda ids: len(ids) == 3, "max_tokens": 9, "temperature": 1.0}
        return await asyncio.gather(
            engine.generate((5, 6), seed=0, **asked),
            engine.generate((5,) * 100, seed=1, **asked),
            engine.generate((7, 8), seed=2, **asked),
            return_exceptions=True,
        )

    first, refused, third = asyncio.run(ask())
    assert len(first.ids) == len(third.ids) == 3
    assert isinstance(refused, Exception) and "64" in str(refused), "longer than max_tokens"


# --- in the loop


def test_the_loop_trains_with_it_and_measures_the_mismatch(folder):
    steps = replace(TRAINING, steps=2, learning_rate=1.0e-3)
    model = started(settings(folder))
    before = model.state_dict()["model.model.norm.weight"].clone()
    optimiser, environment = new_optimiser(model, steps), coin_environment()
    logs = list(train(model, optimiser, words(model), environment, SMALL, PLAIN, steps, seed=0))
    assert model.frozen_copy()._engine._vllm is None
    for log in logs:
        assert log.metrics["gradient_norm"] > 0
        assert 0 < log.metrics["mean_abs_logprob_diff"] < TOLERANCE["float32"]
        assert log.metrics["entropy"] > 0, "scored by the trainer"
    assert not torch.equal(before, model.state_dict()["model.model.norm.weight"])


def test_a_task_may_name_it(folder, tmp_path, monkeypatch):
    files = paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks"
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    target = tmp_path / "params" / "smoke" / "tasks" / "changed.yaml"
    target.parent.mkdir(parents=True)
    values = params.read_yaml(files / "costly_guess.yaml") | {"warm_start_task": "changed"}
    values["policy"] = asdict(settings(folder)) | {"kind": "vllm"}
    values["warm_start"] |= {"steps": 0, "swap_names": 0.0}
    values["training"] |= {"steps": 1, "learning_rate": 1.0e-3}
    target.write_text(yaml.safe_dump(values), encoding="utf-8")
    task = tasks.open_task("smoke", "changed")
    assert task.settings.policy == settings(folder)
    model = warm_started_policy(task, 0, "code", lambda step, loss: None)
    given = (task.vocabulary, task.environment, task.world, PLAIN, task.settings.training)
    STARTED.append(model)
    (log,) = train(model, new_optimiser(model, task.settings.training), *given, seed=0)
    asked, how = task.world.evaluation_questions(4), {"max_turn_tokens": 5, "temperature": 1.0}
    evaluated = evaluate(model, task.vocabulary, task.environment, asked, **how)
    assert 0 < log.metrics["mean_abs_logprob_diff"] < TOLERANCE["float32"]
    assert worst(scored(model, evaluated)) < TOLERANCE["float32"]
