"""A cluster run small enough for two cores: model, questions, retrieval server, params, process.

The tokenizer has all bytes and, beyond its merges, whole words that only sampling can bring: who
encoded a message anew would get other ids.  The model is random but for a push towards those words.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import yaml
from answering import json_server

from turncredit import paths
from turncredit.worlds.question_files.files import write_rows
from turncredit.worlds.question_files.rows import QuestionRow, with_prompts

WORDS = (
    "<search> court </search>", "<answer> The Hague </answer>", "<answer> Paris </answer>",
    "<think> well </think>", "<think> hm </think>", "<search> seat </search>",
    "<read_chunk> court </read_chunk>", "<external_verify> The Hague </external_verify>",
)  # fmt: skip
SPECIALS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}<|im_start|>"
WIDTH = 32
TIMEOUT = int(os.environ.get("TURNCREDIT_VERL_TIMEOUT", "400"))
"""Seconds after which a run counts as hung; it takes about 60 on two quiet cores."""


def write_model(folder, push=7.0):
    """A two-layer Qwen3 with random weights and its tokenizer, as a Hugging Face folder.

    push: towards whole words; with 7 they are 60 % of what is sampled, with 10 nearly 90 %.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = ["".join(piece for piece, _ in level.pre_tokenize_str(word)) for word in WORDS]
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words, *SPECIALS]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = level, decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIALS[1], pad_token=SPECIALS[1],
        additional_special_tokens=[SPECIALS[0]], chat_template=TEMPLATE,
    )  # fmt: skip
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(entries), hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=4096,
        tie_word_embeddings=False, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.4)
        model.model.embed_tokens.weight.normal_(0, 2.0)  # entropies are to differ between contexts
        model.model.embed_tokens.weight[:, 0] = 6.0  # a direction that every token has and keeps
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = torch.tensor([push * (entry in words) for entry in entries])
    model.save_pretrained(folder)
    return folder


def write_questions(folder, count):
    """Training and test files of `count` questions each, in Search-R1's schema; none is in both."""
    files = {}
    for split in ("train", "test"):
        rows = [
            QuestionRow(
                "nq", split, n, f"{split}_{n}", f"seat of {split} court {n}?", ("The Hague",)
            )
            for n in range(count)
        ]
        files[split] = str(folder / f"{split}.parquet")
        write_rows(Path(files[split]), with_prompts(rows, str))
    return files


def tool_server():
    """The address of a server with Search-R1's `/retrieve` that knows one passage.

    It judges as well: whatever an OpenAI-compatible chat asks it is CORRECT.
    """
    item = {"document": {"id": "0", "contents": '"Court"\nIn The Hague.'}, "score": 1.0}
    verdict = {"choices": [{"message": {"role": "assistant", "content": "CORRECT"}}]}

    def answer(asked):
        return verdict if "messages" in asked else {"result": [[item] for _ in asked["queries"]]}

    return json_server(answer)


def write_params(folder, url, *, ranks=1, steps=2, questions=4, push=7.0):
    """Files of a run like those in params/cluster, of which it takes engine and methods.

    url: of the retrieval server, and of the judge; push: see `write_model`.
    """
    committed = paths.params("cluster")
    for kind in ("engine", "methods", "agents", "models", "machines"):
        (folder / kind).mkdir(parents=True)
    engine = yaml.safe_load((committed / "engine" / "verl.yaml").read_text())
    (folder / "engine" / "verl.yaml").write_text(yaml.safe_dump(engine))
    for file in (committed / "methods").glob("*.yaml"):
        dump(folder / "methods" / file.name, changed_method(yaml.safe_load(file.read_text())))
    files, model = write_questions(folder, 2 * questions), write_model(folder / "model", push)
    for file in (committed / "agents").glob("*.yaml"):
        agent = changed_agent(yaml.safe_load(file.read_text()), files, url, steps, questions)
        dump(folder / "agents" / file.name, agent)
    shape = {"layers": 2, "width": WIDTH, "queries": 32, "keys": 32, "inner": WIDTH}
    shape |= {"vocabulary": 256 + len(WORDS) + len(SPECIALS), "positions": 4096}
    dump(
        folder / "models" / "tiny.yaml",
        {"shape": shape, "verl": {"actor_rollout_ref": {"model": {"path": str(model)}}}},
    )
    dump(folder / "machines" / "cpu.yaml", cpu_machine(ranks))
    return folder


def changed_method(method):
    """A method as it is, but for a gate that finds decision turns in a random model too."""
    credit = method["verl"]["algorithm"]["turncredit"]
    if credit["weight"] == "suffix_mask":
        credit["weight_options"] |= {"rule": "margin", "c": 0.05}
    return method


def changed_agent(agent, files, url, steps, questions):
    """An agent on small questions: short messages, few turns, groups of four."""
    verl = agent["verl"]
    verl["data"] |= {"train_files": files["train"], "val_files": files["test"]}
    verl["data"] |= {"train_batch_size": questions, "max_prompt_length": 1600}
    verl["data"] |= {"max_response_length": 700, "dataloader_num_workers": 0, "val_batch_size": 4}
    verl["data"] |= {"val_max_samples": 4}
    # all rows at once, twice: verl's order of rows, and so a smaller mini-batch, is left to chance
    verl["actor_rollout_ref"]["actor"] |= {"ppo_mini_batch_size": questions, "ppo_epochs": 2}
    verl["actor_rollout_ref"]["actor"]["optim"] = {"lr": 1.0e-3, "lr_warmup_steps_ratio": 0.0}
    verl["actor_rollout_ref"]["rollout"] |= {"n": 4, "max_model_len": 2300, "max_num_seqs": 16}
    custom = verl["actor_rollout_ref"]["rollout"]["custom"]["turncredit"]
    custom["environment"] |= {"max_turns": 3, "invalid_ends": False, "invalid_penalty": 0.25}
    custom["retriever"]["url"] = url
    if custom["environment"]["kind"] == "deep_research":
        verl["data"]["max_response_length"] = 1400
        verl["actor_rollout_ref"]["rollout"]["max_model_len"] = 3000
        custom["environment"] |= {"max_turns": 5, "minimum_paragraph": 5}
        custom["judge"]["base_url"] = f"{url}/v1"
    custom["max_turn_tokens"] = 6
    verl["trainer"] = {"total_training_steps": steps, "total_epochs": 9}
    verl["trainer"] |= {"save_freq": 1, "test_freq": 2}
    return agent


def cpu_machine(ranks):
    """What the test-only platform needs instead of GPUs, vLLM and bfloat16."""
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    plain = {"fsdp_config": {"use_torch_compile": False, "mixed_precision": precision}}
    return {
        "machine": {
            "nodes": 1, "gpus_per_node": ranks, "gpu_gib": 16.0, "retrieval_gib_per_gpu": 0.0,
            "judge_gib_per_gpu": 0.1, "context_gib": 0.0,
        },
        "verl": {
            "ray_kwargs": {"ray_init": {"num_cpus": 16, "num_gpus": ranks}},
            "trainer": {
                "device": "cpu", "nnodes": 1, "n_gpus_per_node": ranks, "logger": ["console"],
            },
            "reward": {"num_workers": 1},
            "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
            "actor_rollout_ref": {
                "model": {"use_fused_kernels": False, "enable_gradient_checkpointing": False},
                "actor": plain | {
                    "use_torch_compile": False,
                    "ppo_micro_batch_size_per_gpu": 4,
                    "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
                },
                "ref": plain | {"use_torch_compile": False, "log_prob_micro_batch_size_per_gpu": 4},
                "rollout": {
                    "name": "hf_cpu", "free_cache_engine": False, "agent": {"num_workers": 1},
                    "log_prob_micro_batch_size_per_gpu": 4, "tensor_model_parallel_size": 1,
                    "gpu_memory_utilization": 0.5,
                    "val_kwargs": {"temperature": 1.0, "do_sample": True},
                },
            },
        },
    }  # fmt: skip


def dump(path, values):
    path.write_text(yaml.safe_dump(values))


def environment(dumps=None, modules=("cpu_engine",)):
    """Variables for a process that runs verl without an accelerator, and without a network.

    dumps: the folder for what each step trains on; modules: what verl is to load on import.
    """
    here = Path(__file__).resolve().parent
    own = {
        "PYTHONPATH": os.pathsep.join([str(paths.PACKAGE.parent), str(here)]),
        "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_DASHBOARD": "1", "RAY_ADDRESS": "local",
    }  # fmt: skip
    return os.environ | own | ({"TURNCREDIT_TEST_DUMP": str(dumps)} if dumps else {})


def start(folder, method, *, agent="search_r1", runs="runs"):
    """Start `turncredit.verl_plugin.train`, which dumps what it trains on to <runs>-dumps.

    Returns, when its Ray is up, what `start_module` returns.
    """
    kept = folder / f"{runs}-dumps"
    kept.mkdir(exist_ok=True)
    command = ["turncredit.verl_plugin.train", "tiny", agent, "cpu", method]
    command += ["--params", folder, "--runs", folder / runs]
    started = start_module(command, folder, environment(kept))
    _wait_for_ray(*started)
    return started


def _wait_for_ray(process, output):
    """Return once its Ray is up, or it has failed.

    Ray's node gives its agent 15 seconds to start, which two at once on a busy machine would miss.
    """
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        if b"Started a local Ray instance" in output.read_bytes():
            return
        time.sleep(0.2)


def start_module(command, folder, variables):
    """Start a module of Python as a process group of its own; it and the file of its output."""
    command = [sys.executable, "-m", *map(str, command)]
    output = folder / f"output-{time.monotonic_ns()}.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, process_group=0,
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    atexit.register(_kill_if_alive, process)  # if nobody comes to wait for it
    return process, output


def finish(*started):
    """Wait for the ends of what was started; fails the test if one fails.

    A rollout that dies leaves verl waiting for ever, and so does a rank whose peer died: after
    TIMEOUT, or once one has failed, the whole group of each is killed.
    """
    deadline = time.monotonic() + TIMEOUT
    ends = [None]
    try:
        while None in ends and not any(ends) and time.monotonic() < deadline:
            time.sleep(0.1)
            ends = [process.poll() for process, _ in started]
    finally:  # the test's own limit may come first
        for process, _ in started:
            _kill_group(process)
    said = "\n".join(output.read_text(errors="replace")[-6000:] for _, output in started)
    assert not any(ends), said
    assert None not in ends, f"no end within {TIMEOUT} s:\n{said}"


def _kill_if_alive(process):
    """Its number is its own until it has been waited for."""
    if process.poll() is None:
        _kill_group(process)


def _kill_group(process):
    """End whatever the process has left running, Ray's processes among them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
