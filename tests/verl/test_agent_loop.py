"""Our agent loop in verl's own worker, with a scripted server and with one that has a model.

Both environments are played: Search-R1's, and deep research with a judge behind a server.

Runs only where verl is installed: `make test-verl`.
"""

import asyncio
import json
from functools import lru_cache
from itertools import pairwise

import cpu_server
import numpy as np
import pytest
import tiny_run
import torch
from answering import json_server
from play import ListWorld, document

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from turncredit.environments import DeepResearch, SearchR1
from turncredit.environments.judges import open_judge
from turncredit.environments.wording import WORDINGS
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.verl_plugin import agent_loop, cluster, plugin  # noqa: F401 (it registers)
from turncredit.verl_plugin.batches import tool_failures
from turncredit.verl_plugin.outputs import NOTE, spans_of

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}<|im_start|>"
ROW = {
    "data_source": "nq", "id": "train_0", "question": "seat of the court?",
    "golden_answers": ["The Hague"], "extra_info": {"split": "train", "index": 0},
    "reward_model": {"style": "rule", "ground_truth": {"target": ["The Hague"]}},
    "raw_prompt": [{"role": "user", "content": "not read"}], "index": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tokenizer of 256 bytes and the configuration of a tiny Qwen3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    folder = tmp_path_factory.mktemp("model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|im_start|>", "<|im_end|>"]
    words = {word: index for index, word in enumerate([*letters, *specials])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(vocab_size=len(words), **shape, **heads)
    config.architectures = ["Qwen3ForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return folder


class Server:
    """Says its lines one after the other, as ids, with a log-prob of -1/2 each."""

    def __init__(self, tokenizer, *lines):
        self.tokenizer, self.lines, self.asked = tokenizer, list(lines), []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.asked.append((request_id, list(prompt_ids), sampling_params))
        ids = self.tokenizer.encode(self.lines[len(self.asked) - 1], add_special_tokens=False)
        known = {"min_global_steps": 3, "max_global_steps": 3}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields=known)


TEXT = "The court sits in The Hague, where it has its seat in a palace that was built for it."


def environment_of(settings):
    """The environment that settings describe, over a world of one document."""
    world = ListWorld((document("Court", TEXT),))
    if settings.environment.KIND == "search_r1":
        return SearchR1(world, settings.environment)
    judge, wording = open_judge(settings.judge), WORDINGS[settings.wording]
    return DeepResearch(world, judge, settings.environment, wording=wording)


def worker_of(model, monkeypatch, response, agent="search_r1", **custom):
    """verl's worker for a model's folder and responses of so many tokens."""
    run = cluster.read_run("qwen3_8b", agent, "1x8", "baseline")
    config = cluster.compose(run)
    ours = "actor_rollout_ref.rollout.custom.turncredit"
    for key, value in {
        "actor_rollout_ref.model.path": str(model),
        "data.max_prompt_length": 2000,
        "data.max_response_length": response,
        **{f"{ours}.{key}": value for key, value in custom.items()},
    }.items():
        OmegaConf.update(config, key, value)
    OmegaConf.resolve(config)  # as verl's main does
    agent_loop.tokens_of.cache_clear()
    agent_loop.unreported.cache_clear()
    monkeypatch.setattr(agent_loop, "open_environment", lru_cache(environment_of))
    return AgentLoopWorker(config, llm_client=None)


def generated(worker, episodes=1):
    """What the worker makes of so many episodes on the same question."""
    columns = {name: np.array([value] * episodes, dtype=object) for name, value in ROW.items()}
    columns["agent_name"] = np.array(["turncredit"] * episodes, dtype=object)
    batch = DataProto(non_tensor_batch=columns, meta_info={"global_steps": 1, "validate": False})
    return asyncio.run(worker.generate_sequences(batch))


def play(model, monkeypatch, *lines, response=600, **told):
    """One scripted episode: its output, the server, and the tokenizer."""
    worker = worker_of(model, monkeypatch, response, **told)
    worker.llm_client = Server(worker.tokenizer, *lines)
    return generated(worker), worker.llm_client, worker.tokenizer


def test_an_episode_has_exact_spans_and_masks_what_tools_said(model, monkeypatch):
    lines = ["<search> court </search>", "<answer> The Hague </answer>"]
    found, server, tokenizer = play(model, monkeypatch, *lines)
    mask, ids = found.batch["response_mask"][0].tolist(), found.batch["responses"][0].tolist()
    note = found.non_tensor_batch[NOTE][0]
    assert note["turn_spans"] == spans_of(mask)
    assert [tokenizer.decode(ids[start:end]) for start, end in note["turn_spans"]] == lines
    assert (note["actions"], note["stop_reason"], note["success"]) == (
        ["search", "answer"], "answer", True,
    )  # fmt: skip
    assert found.batch["rm_scores"].sum() == 1
    told = found.batch["rollout_log_probs"][0]
    assert set(told[found.batch["response_mask"][0] == 1].tolist()) == {-0.5}
    start, end = note["turn_spans"][0][1], note["turn_spans"][1][0]
    assert TEXT in tokenizer.decode(ids[start:end])
    assert server.asked[1][1][-end:] == ids[:end]  # the context is what was said, id by id
    assert server.asked[0][0] == server.asked[1][0]
    assert "seat of the court?" in tokenizer.decode(server.asked[0][1])
    assert server.asked[0][2]["stop"] == ["</search>", "</answer>"]
    assert server.asked[0][2]["max_tokens"] == 500


@pytest.fixture(scope="module")
def judge():
    """The address of a judge for which all is CORRECT, and what it was asked."""
    asked = []
    said = {"choices": [{"message": {"role": "assistant", "content": "CORRECT"}}]}
    with json_server(lambda body: asked.append(body) or said) as url:
        yield f"{url}/v1", asked


def test_deep_research_uses_every_tool_and_its_judge(model, monkeypatch, judge, tmp_path):
    url, asked = judge
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))
    lines = [
        "<search> court </search>", "<read_chunk> court </read_chunk>",
        "<external_verify> The Hague </external_verify>", "<answer> The Hague </answer>",
    ]  # fmt: skip
    found, server, tokenizer = play(
        model, monkeypatch, *lines, response=2000, agent="deep_research", **{"judge.base_url": url}
    )
    mask, ids = found.batch["response_mask"][0].tolist(), found.batch["responses"][0].tolist()
    note = found.non_tensor_batch[NOTE][0]
    spans = note["turn_spans"]
    assert spans == spans_of(mask)
    assert [tokenizer.decode(ids[start:end]) for start, end in spans] == lines
    assert note["actions"] == ["search", "read_chunk", "external_verify", "answer"]
    assert (note["stop_reason"], note["success"], note["reward"]) == ("answer", True, 1.0)
    after = pairwise(spans)
    said = [tokenizer.decode(ids[end:start]) for (_, end), (start, _) in after]
    assert "Doc 1 (Title: Court)" in said[0]
    assert TEXT not in said[0]  # a search keeps the text aside
    assert TEXT in said[1]
    assert "CORRECT" in said[2]
    assert TEXT in asked[-1]["messages"][-1]["content"]  # the judge knows what was read
    assert server.asked[3][1][-len(ids[: spans[3][0]]) :] == ids[: spans[3][0]]
    tags = ["</search>", "</read_chunk>", "</external_verify>", "</answer>"]
    assert server.asked[0][2]["stop"] == tags
    assert server.asked[0][2]["max_tokens"] == 1024


def test_a_judge_that_is_not_there_is_counted_by_the_episode_that_asked(
    model, monkeypatch, tmp_path
):
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))
    lines = ["<external_verify> The Hague </external_verify>", "<answer> The Hague </answer>"]
    found, _, _ = play(
        model, monkeypatch, *lines, response=2000, agent="deep_research",
        **{"judge.base_url": "http://127.0.0.1:1/v1", "judge.retries": 0},
    )  # fmt: skip
    failures = found.non_tensor_batch[NOTE][0]["tool_failures"]
    assert failures
    assert all(cause.startswith("judge_") for cause in failures)
    assert found.non_tensor_batch["tool_failures"][0] == sum(failures.values())
    extras = [{NOTE: note} for note in found.non_tensor_batch[NOTE]]
    assert tool_failures(extras)["tool_failures"] == sum(failures.values())


def test_episodes_of_files_that_count_alike_have_seeds_of_their_own():
    row = {"global_steps": 1, "index": 0, "session_id": 2}
    seeds = {agent_loop._seed(0, row, question) for question in ("nq-train-0", "hotpotqa-train-0")}
    assert len(seeds) == 2


def test_what_does_not_fit_is_dropped_and_ends_the_episode(model, monkeypatch):
    line = "<search> court </search>"
    found, server, _ = play(model, monkeypatch, line, response=len(line) + 10)
    note = found.non_tensor_batch[NOTE][0]
    assert note["stop_reason"] == "max_tokens"
    assert found.batch["response_mask"].sum() == len(line)
    assert found.batch["attention_mask"][0, -10:].sum() == 0
    assert len(server.asked) == 1
    assert found.batch["rm_scores"].sum() == 0


# a server with a model


@pytest.fixture(scope="module", params=["search_r1", "deep_research"])
def sampled(request, tmp_path_factory, judge):
    """Sixteen episodes by a tiny Qwen3 behind a server, and the model's folder."""
    folder = tiny_run.write_model(tmp_path_factory.mktemp("tiny") / "model")
    told = {"max_turn_tokens": 6}
    if request.param == "deep_research":
        told |= {"judge.base_url": judge[0], "environment.invalid_ends": False}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TURNCREDIT_CACHE", str(folder / "cache"))
        worker = worker_of(folder, monkeypatch, 700, request.param, **told)
        worker.llm_client = cpu_server.Server(folder, 0)
        return generated(worker, episodes=16), worker.tokenizer, folder


def test_the_log_probs_of_a_model_are_those_of_our_policy_on_the_whole_row(sampled):
    found, _, folder = sampled
    settings = HuggingFaceSettings(
        model=str(folder), max_tokens=4096, chat=True, preface="", dtype="float32",
        attention="sdpa", micro_batch_rows=4, gradient_checkpointing=False, device="cpu", lora=None,
    )  # fmt: skip
    policy, width = HuggingFacePolicy(settings, seed=0), found.batch["responses"].shape[1]
    for row in range(len(found)):
        real = found.batch["attention_mask"][row].bool()
        ids, said = found.batch["input_ids"][row][real], found.batch["response_mask"][row].bool()
        mask = torch.zeros_like(real)
        mask[-width:] = said
        with torch.no_grad():
            expected, _ = policy.score(ids[None], mask[real][None])
        told = found.batch["rollout_log_probs"][row]
        torch.testing.assert_close(
            told[said], expected[0][mask[real]], atol=1e-4, rtol=1e-4, check_dtype=False
        )
        assert not told[~said].any()


TOLD = {"search": "Court", "external_verify": "CORRECT"}
"""What every observation after a tool has."""


def test_what_a_model_sampled_is_kept_id_by_id_where_encoding_would_give_others(sampled):
    found, tokenizer, _ = sampled
    notes, searches, differing = found.non_tensor_batch[NOTE], 0, 0
    for row, note in enumerate(notes):
        mask, ids = (found.batch[key][row].tolist() for key in ("response_mask", "responses"))
        assert note["turn_spans"] == spans_of(mask)
        for turn, (start, end) in enumerate(note["turn_spans"]):
            assert 1 <= end - start <= 6
            text = tokenizer.decode(ids[start:end])
            differing += tokenizer.encode(text, add_special_tokens=False) != ids[start:end]
            action = note["actions"][turn]
            if action in TOLD and turn + 1 < len(note["turn_spans"]):
                after = note["turn_spans"][turn + 1][0]
                assert text.endswith(f"</{action}>")
                assert TOLD[action] in tokenizer.decode(ids[end:after])
                searches += action == "search"
    assert searches
    assert differing
    assert len({note["stop_reason"] for note in notes}) > 1
