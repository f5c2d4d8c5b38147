"""Predicted sizes are counted and predicted memory measured, of tiny policies and a small Qwen3."""

import contextlib
import ctypes
import gc
import importlib.util
import multiprocessing
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from turncredit import params, paths
from turncredit.estimates import Estimate, Rates, estimate, machine, measure_rates
from turncredit.estimates.machine import available_memory
from turncredit.estimates.parts import token_bytes
from turncredit.estimates.sizes import model_sizes, tiny_sizes
from turncredit.policies import huggingface
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings, LoraSettings
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.tasks import TaskSettings
from turncredit.training import new_optimiser
from turncredit.training.settings import KlSettings

TASK = params.load(
    TaskSettings, paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks" / "costly_guess.yaml"
)
MODEL = HuggingFaceSettings(
    model="",
    max_tokens=128,
    chat=False,
    preface="",
    dtype="float32",
    attention="sdpa",
    micro_batch_rows=4,
    gradient_checkpointing=False,
    device="cpu",
    lora=None,
)
LORA = LoraSettings(rank=4, alpha=8.0, targets=("q_proj", "down_proj"))
WORDS = 2000


def settings(policy, *, rows: int = 16, steps: int = 0, evaluated: int = 1, **training):
    """A task of `rows` trajectories, all of whose tokens may be sampled, in one update."""
    changes = {"questions_per_step": 2, "group_size": rows // 2, "updates_per_batch": 1}
    changes |= {"max_turn_tokens": 1000}
    return replace(
        TASK,
        policy=policy,
        warm_start=replace(TASK.warm_start, steps=steps),
        training=replace(TASK.training, **changes | training),
        evaluation=replace(TASK.evaluation, questions=evaluated),
    )


def predicted(policy, **changes) -> Estimate:
    changes = {"kl": None} | changes
    task = SimpleNamespace(
        tier="smoke", name="costly_guess", settings=settings(policy, **changes),
        vocabulary=range(WORDS),
    )  # fmt: skip
    return estimate(task)


# --- language models, random and small

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="language models need transformers"
)


def config_of(kind: str, layers: int = 2, words: int = WORDS, **shape):
    import transformers

    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    if kind != "Qwen2":
        sizes["head_dim"] = 32
    return getattr(transformers, f"{kind}Config")(vocab_size=words, **sizes | shape)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory) -> HuggingFaceSettings:
    """Weights of 2.5 MB; embedding and head are one tensor."""
    import transformers

    folder = tmp_path_factory.mktemp("qwen3")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = config_of("Qwen3", tie_word_embeddings=True)
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return replace(MODEL, model=str(folder))


@needs_transformers
def test_sizes_come_from_the_configuration_and_are_those_of_the_model(qwen3, tmp_path):
    for file in Path(qwen3.model).glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    bare = replace(qwen3, model=str(tmp_path))
    assert not list(tmp_path.glob("*.safetensors")), "nothing to read weights from"
    sizes, model = model_sizes(bare), HuggingFacePolicy(qwen3, 0).model
    assert sizes.parameters == sizes.trained == sum(p.numel() for p in model.parameters())
    outside = sum(p.numel() for n, p in model.named_parameters() if "norm" in n or "embed" in n)
    assert sizes.matrices == sizes.parameters - outside
    assert (sizes.layers, sizes.queries, sizes.keys, sizes.inner) == (2, 128, 64, 384)
    assert sizes.normed_heads


@pytest.fixture
def without_peft(monkeypatch):
    """Settings with adapters where peft is missing: counting them needs it not."""
    monkeypatch.setattr(huggingface, "require_packages", lambda **asked: None)


@needs_transformers
def test_adapters_are_counted_by_hand(qwen3, without_peft):
    """Rank times in and out, of two layers' q_proj [128, 128] and down_proj [384, 128]."""
    whole, adapted = model_sizes(qwen3), model_sizes(replace(qwen3, lora=LORA))
    assert adapted.trained == 2 * 4 * ((128 + 128) + (384 + 128))
    assert adapted.parameters == whole.parameters + adapted.trained
    every = model_sizes(replace(qwen3, lora=replace(LORA, targets=())))
    in_and_out = 2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 384)
    assert every.trained == 2 * 4 * in_and_out, "all but the head"


@needs_transformers
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="adapters need peft")
@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_adapters_are_those_that_peft_makes(qwen3, targets):
    adapted = replace(qwen3, lora=replace(LORA, targets=targets))
    made = HuggingFacePolicy(adapted, 0).parameters()
    assert model_sizes(adapted).trained == sum(p.numel() for p in made if p.requires_grad)


@pytest.mark.parametrize("shape", [(16, 1, 2), (64, 2, 4), (96, 3, 2)])
def test_sizes_of_a_tiny_policy_are_its_own(shape):
    width, layers, heads = shape
    small = TinySettings(width=width, layers=layers, heads=heads, max_tokens=32)
    made = TinyPolicy(small, 77, 0)
    sizes = tiny_sizes(small, 77)
    assert sizes.parameters == sum(parameter.numel() for parameter in made.parameters())
    blocks = sum(p.numel() for n, p in made.named_parameters() if p.dim() == 2 and "block" in n)
    assert sizes.matrices == blocks


def kept_by_autograd(model, ids: torch.Tensor, dtype: str) -> int:
    """Bytes that one pass keeps for backward, each storage once, weights left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    halved = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else None
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, halved or contextlib.nullcontext():
        output = model(input_ids=ids, use_cache=False).last_hidden_state
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@needs_transformers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen2", "Llama"])
@pytest.mark.parametrize("inner", [128, 512])
def test_what_a_layer_keeps_for_backward_is_what_autograd_keeps(kind, dtype, inner, tmp_path):
    """The difference of two models that differ by one layer, weights in half precision included."""
    import transformers

    ids = torch.zeros(4, 96, dtype=torch.int64)
    counted = []
    for layers in (1, 2):
        config = config_of(kind, layers, words=64, intermediate_size=inner)
        counted.append(kept_by_autograd(getattr(transformers, f"{kind}Model")(config), ids, dtype))
    config = config_of(kind, 1, words=64, intermediate_size=inner)
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    sizes = model_sizes(replace(MODEL, model=str(tmp_path)))
    size = 2 if dtype == "bfloat16" else 4
    wanted = ids.numel() * token_bytes(sizes, size)
    wanted += 2 * sizes.matrices if dtype == "bfloat16" else 0
    assert counted[1] - counted[0] == pytest.approx(wanted, rel=0.05)


# --- measured


def peak_of(work) -> int:
    """Bytes by which a process of its own grows while it does `work`."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        ctypes.CDLL(None).mallopt(-3, 2**16)  # what is freed leaves the process, as far as it can
        before = of_this_process("VmRSS")
        work()
        sender.send(of_this_process("VmHWM") - before)
        os._exit(0)
    sender.close()
    try:
        return receiver.recv()
    finally:
        os.waitpid(child, 0)


def of_this_process(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


def one_update(make, words: int, task: TaskSettings):
    """Everything of an update whose trajectories are as long as they may be."""

    def work() -> None:
        policy = make()
        optimiser = new_optimiser(policy, task.training)
        tokens = task.policy.max_tokens
        rows = task.training.questions_per_step * task.training.group_size
        stream = torch.Generator().manual_seed(0)
        ids = torch.randint(1, words, (rows, tokens), generator=stream)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        pieces = torch.arange(rows).split(task.training.micro_batch or rows)
        for piece in pieces:
            logprobs, entropies = policy.score(ids[piece], mask[piece])
            (logprobs.sum() + entropies.sum()).backward()
        optimiser.step()

    return work


on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="peak memory is read from /proc"
)


@on_linux
@pytest.mark.parametrize(
    ("shape", "rows", "micro_batch"),
    [((64, 2, 4, 192), 44, None), ((128, 3, 4, 160), 32, None), ((64, 2, 4, 192), 88, 22)],
)
def test_the_memory_of_a_tiny_policys_update_is_the_predicted_one(shape, rows, micro_batch):
    small = TinySettings(*shape)
    task = settings(small, rows=rows, micro_batch=micro_batch)
    found = peak_of(one_update(lambda: TinyPolicy(small, WORDS, 0), WORDS, task))
    wanted = predicted(small, rows=rows, micro_batch=micro_batch).peak
    assert wanted / 1.5 < found < wanted * 1.5, (found / 2**20, wanted / 2**20)


@needs_transformers
@on_linux
@pytest.mark.parametrize(
    ("changes", "rows", "micro_batch"),
    [
        ({}, 32, None),
        ({"gradient_checkpointing": True, "micro_batch_rows": 16}, 32, None),
        ({"micro_batch_rows": 8}, 32, 16),
        ({"dtype": "bfloat16"}, 32, None),
    ],
    ids=["plain", "checkpointed", "micro-batches", "bfloat16"],
)
def test_the_memory_of_a_small_qwen3s_update_is_the_predicted_one(
    qwen3, changes, rows, micro_batch
):
    model = replace(qwen3, **changes)
    task = settings(model, rows=rows, micro_batch=micro_batch)
    found = peak_of(one_update(lambda: HuggingFacePolicy(model, 0), WORDS, task))
    wanted = predicted(model, rows=rows, micro_batch=micro_batch).peak
    assert wanted / 1.5 < found < wanted * 1.5, (found / 2**20, wanted / 2**20)


# --- what moves the prediction


def test_every_part_grows_with_what_it_is_made_of():
    small = TinySettings(width=32, layers=1, heads=2, max_tokens=64)
    base = predicted(small).parts
    assert 1.5 * base.activations < predicted(small, rows=32).parts.activations
    assert predicted(small, rows=32, micro_batch=16).parts.activations == base.activations
    assert predicted(small, evaluated=32).parts.rollout == 2 * base.rollout
    assert base.reference == 0
    pulled = predicted(small, kl=KlSettings("loss", 0.01, "k3")).parts
    assert pulled.reference == base.weights
    assert base.optimiser == 2 * base.gradients == 8 * predicted(small).sizes.trained
    assert predicted(small, steps=1).parts.activations > base.activations, "64 demonstrations"


@needs_transformers
def test_adapters_share_the_base_with_their_reference_and_train_little(qwen3, without_peft):
    pull = KlSettings("loss", 0.01, "k3")
    whole, adapted = (predicted(replace(qwen3, lora=lora), kl=pull).parts for lora in (None, LORA))
    assert whole.reference == whole.weights
    assert (
        adapted.reference == adapted.gradients == 4 * model_sizes(replace(qwen3, lora=LORA)).trained
    )
    assert adapted.optimiser < 0.02 * whole.optimiser


def test_operations_are_those_of_the_products_counted_by_hand():
    """A pass takes 2 M + 2 T d L a token and 2 V d a sampled one; rollout is one, update three."""
    small = TinySettings(width=32, layers=1, heads=2, max_tokens=64)
    plain, sizes = predicted(small), predicted(small).sizes
    one = 16 * (64 * (2 * sizes.matrices + 2 * 64 * 32) + 2 * WORDS * 32 * 64)
    assert plain.operations.speaking == one
    assert plain.operations.reading == 3 * one, "log-probs before the only update are its own"
    assert predicted(small, updates_per_batch=2).operations.reading == 3.5 * one
    assert predicted(small, micro_batch=4).operations.reading == 4 * one
    pulled = predicted(small, kl=KlSettings("loss", 0.01, "k3"))
    assert pulled.operations.reading == 4 * one
    assert plain.seconds(Rates(reading=3 * one, speaking=one / 2)) == pytest.approx(3.0)


def test_rates_are_measured_and_turn_work_into_seconds():
    wide = predicted(TinySettings(width=256, layers=1, heads=4, max_tokens=64))
    rates = measure_rates(wide)
    assert 1e6 < rates.reading < 1e15
    assert 1e6 < rates.speaking < 1e15
    assert 0 < wide.seconds(rates) < 1e4


# --- refused, and said


def test_what_cannot_fit_is_refused_with_file_and_keys_and_what_fits_is_not():
    small = TinySettings(width=32, layers=1, heads=2, max_tokens=64)
    need = predicted(small)
    need.require_fits(need.peak + 2**29)
    with pytest.raises(ValueError, match=r"params/smoke/tasks/costly_guess\.yaml: 1 run at") as one:
        need.require_fits(need.peak + 2**29 - 1)
    assert "training.micro_batch" in str(one.value)
    assert "\n" not in str(one.value)
    with pytest.raises(ValueError, match=r"3 runs at a time .*change TURNCREDIT_JOBS, "):
        need.require_fits(2 * need.peak + 2**30, processes=3)
    with pytest.raises(ValueError, match=r"evaluation\.questions"):
        predicted(small, evaluated=10**7).require_fits(2**34)
    huge = TinySettings(width=2**16, layers=8, heads=2, max_tokens=8)
    with pytest.raises(ValueError, match="a smaller model"):
        predicted(huge).require_fits()


def test_the_sentence_is_one_line_with_memory_and_if_measured_time():
    need = predicted(TinySettings(width=32, layers=1, heads=2, max_tokens=64))
    said = need.sentence()
    for part in ("costly_guess.yaml", "on cpu", "16 trajectories of up to 64 tokens", "GiB"):
        assert part in said
    assert " s" not in said.rsplit(")", 1)[1]
    rates = Rates(reading=need.operations.reading, speaking=need.operations.speaking)
    assert need.sentence(rates).endswith(", and about 2 s")
    assert "\n" not in said


@on_linux
@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "1000", "memory.current": "300"}, [700]),
        ({"memory.max": "max", "memory.current": "300"}, []),
        ({"memory/memory.limit_in_bytes": "5", "memory/memory.usage_in_bytes": "2"}, [3]),
        ({}, []),
    ],
)
def test_a_control_group_limits_what_is_left(tmp_path, monkeypatch, files, left):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="ascii")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    assert machine.group_memory() == left
    if left:
        assert available_memory("cpu") == left[0]
    else:
        assert available_memory("cpu") > 2**20


# --- the benchmark


@needs_transformers
def test_the_benchmark_of_a_gpu_step_runs_to_its_end_on_a_toy(monkeypatch, capsys):
    folder = paths.PACKAGE.parents[1] / "benchmarks"
    specification = importlib.util.spec_from_file_location("gpu_step", folder / "gpu_step.py")
    benchmark = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(benchmark)
    monkeypatch.setattr(huggingface, "load_model", huggingface.load_model)  # put back at the end
    monkeypatch.setattr("sys.argv", ["gpu_step.py", "--smoke"])
    benchmark.main()
    header, line, toy = capsys.readouterr().out.splitlines()
    assert toy.startswith("| toy | ")
    assert header.count("|") == line.count("|") == toy.count("|")
    times = [float(cell) for cell in toy.split("|")[4:7]]
    assert all(seconds > 0 for seconds in times)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_step.py"])
    benchmark.main()
    assert "no CUDA device" in capsys.readouterr().out
