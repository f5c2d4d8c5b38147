"""Any Hugging Face causal language model as a policy.

Trained weights are float32 whatever the precision: an update of 1e-6 is lost in bfloat16.  With
`dtype: bfloat16` the products of the layers are computed in it, and weights that are never trained
are kept in it.  The head is computed in float32 (MiniMax-M1, arXiv 2506.13585, found it the
main source of differences between the sampling and the training pass).
"""

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from turncredit.checkpoints import require_shapes
from turncredit.logprobs import from_hidden
from turncredit.params import require_positive
from turncredit.policies.model_sources import (
    import_transformers,
    load_model,
    model_config,
    model_folder,
    require_device,
    require_packages,
)
from turncredit.policies.tokenizer import ModelTokens, open_tokens
from turncredit.seeding import derive

_PREFILL_TOKENS = 16_384
"""Tokens, over all rows, that a decoder reads in one pass at most."""


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters (Hu et al. 2021), all that is then trained and saved; needs `peft`."""

    rank: int
    alpha: float
    """Updates are scaled by alpha / rank."""
    targets: tuple[str, ...]
    """Names of the linear layers, such as q_proj; empty for all but the head."""

    def __post_init__(self) -> None:
        require_positive(self, "rank", "alpha")
        if "lm_head" in self.targets:
            raise ValueError("targets: the head 'lm_head' takes no adapter")


@dataclass(frozen=True)
class HuggingFaceSettings:
    """Which language model, and how it is run."""

    KIND: ClassVar[str] = "huggingface"

    model: str
    """A folder, `package:NAME` or `hub:OWNER/NAME`; see `model_folder`."""
    max_tokens: int
    """Longest trajectory, prompt included."""
    chat: bool
    """Put the prompt into the model's chat template."""
    preface: str
    """What stands before every prompt, such as worked examples; '' for nothing."""
    dtype: Literal["float32", "bfloat16"]
    attention: Literal["sdpa", "eager", "flash_attention_2"]
    micro_batch_rows: int
    """Trajectories scored in one pass."""
    gradient_checkpointing: bool
    """Compute each pass once more backward, so that memory is that of one pass, not of all."""
    device: str
    lora: LoraSettings | None

    def __post_init__(self) -> None:
        require_positive(self, "max_tokens", "micro_batch_rows")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype = {self.dtype!r} is not one of float32, bfloat16")

    def find_model(self) -> tuple[Path, Any]:
        """The model's folder and configuration; first of all, whether it can run here."""
        require_device(self.device)
        require_packages(adapters=self.lora is not None, attention=self.attention)
        folder = model_folder(self.model)
        return folder, model_config(folder, self.max_tokens)

    def open_tokens(self) -> ModelTokens:
        """The model's tokens; reads no weight.  Raises what `HuggingFacePolicy` raises."""
        return open_tokens(*self.find_model(), chat=self.chat, preface=self.preface)


class CachedDecoder:
    """Rows that all stand at one position, `length`, with the keys and values of what they read.

    Tokens whose hidden states nobody wants wait, and are read together in one pass.  The policy
    must not be updated while a decoder of it is in use.
    """

    def __init__(self, policy: "HuggingFacePolicy") -> None:
        self.policy = policy
        self.length = 0
        self.cache = import_transformers().DynamicCache(config=policy.model.config)
        self._weights = policy.decoding_weights()
        self._waiting: list[Tensor] = []

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        """Feed one token per row, [rows]; returns hidden states [n, width] of the rows `speaking`.

        Those are given in ascending order; None: all rows.  float32, on the policy's device.
        """
        self._waiting.append(token_ids)
        self.length += 1
        if speaking is None:
            return self._read()
        if speaking or len(self._waiting) * len(token_ids) >= _PREFILL_TOKENS:
            return self._read()[speaking]
        return torch.empty(0, self.policy.model.get_output_embeddings().weight.shape[1])

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows` alone, of which one may stand more than once.

        What waits is read before, so that a prompt that several rows share is read once.
        """
        if self._waiting and len(rows):
            self._read()
        self._waiting.clear()
        self.cache.batch_select_indices(rows.to(self.policy.device))

    @torch.no_grad()
    def _read(self) -> Tensor:
        """Read what waits; the hidden states of the last token of each row."""
        block = torch.stack(self._waiting, dim=1)
        self._waiting.clear()
        options = {"past_key_values": self.cache, "use_cache": True}
        return self.policy.hidden(block, weights=self._weights, **options)[:, -1]


class HuggingFacePolicy(nn.Module):
    """Scores padded batches in passes of a few rows, or decodes rows in lock-step with a cache.

    Tensors come in on any device; scores go back to where the ids were.  Dropout is off in training
    too: a ratio would otherwise differ from 1 before any update.  The seed draws adapters alone.

    Raises ValueError naming file and key if this machine lacks the device or a library that the
    settings need, there is no such model, it is no causal language model, it has fewer positions
    than `max_tokens`, lacks weights, or its logits are not its last hidden states times a matrix (a
    bias, scale or cap after it); ImportError with the pip command if there is no transformers.
    """

    def __init__(self, settings: HuggingFaceSettings, seed: int) -> None:
        super().__init__()
        self.settings = settings
        folder, _ = settings.find_model()
        dtype = "float32" if settings.lora is None else settings.dtype
        self.model = load_model(folder, dtype=dtype, attention=settings.attention)
        if settings.lora is not None:
            _add_adapters(self.model, settings.lora, seed)
        self.model.to(settings.device).eval()
        self.device = torch.device(settings.device)
        head = self.model.get_output_embeddings().weight
        self._frozen_head = None if head.requires_grad else head.float()
        _require_plain_head(self, folder)

    def hidden(
        self, token_ids: Tensor, weights: Mapping[str, Tensor] | None = None, **options: Any
    ) -> Tensor:
        """Last hidden states of token_ids [rows, L], padded on the right: [rows, L, width] float32.

        `weights` stand in for those of the same name; options go to the model.
        """
        inputs = {"input_ids": token_ids.to(self.device), **options}
        with self._precision():
            output = torch.func.functional_call(self.model.base_model, weights or {}, (), inputs)
        return output.last_hidden_state.float()

    def decoder(self, rows: int) -> CachedDecoder:
        """Decoding of any number of rows in lock-step, from an empty context."""
        return CachedDecoder(self)

    @torch.no_grad()
    def decoding_weights(self) -> dict[str, Tensor]:
        """Trained matrices in the precision of the products, so that no step converts them anew."""
        if self.settings.dtype == "float32":
            return {}
        layers = self.model.base_model.named_modules()
        return {
            f"{name}.weight": layer.weight.to(torch.bfloat16)
            for name, layer in layers
            if type(layer) is nn.Linear and layer.weight.dtype == torch.float32
        }

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., width] -> logits [..., vocabulary], float32."""
        return F.linear(hidden, self._head())

    def score(self, token_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (nats) of the tokens under `mask`; all [B, L], 0 elsewhere.

        Rows of similar length share a pass and are cut after their last masked token.  No more
        than a few hundred rows of logits exist at a time, forward or backward.
        Raises ValueError if a row's first token, which has no context, is under the mask.
        """
        if mask[:, 0].any():
            raise ValueError("mask: the first token of a row has no context to be scored under")
        lengths = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)
        order = lengths.argsort()
        chunks = order[lengths[order] > 0].split(self.settings.micro_batch_rows)
        logprobs, entropies = torch.zeros(2, *mask.shape, device=mask.device)
        for chunk in chunks if mask.any() else ():
            length = int(lengths[chunk[-1]])
            rows, columns = mask[chunk, :length].nonzero(as_tuple=True)
            scored = self._score_chunk(token_ids[chunk, :length], rows, columns)
            places = (chunk[rows], columns)
            logprobs = logprobs.index_put(places, scored[0].to(mask.device))
            entropies = entropies.index_put(places, scored[1].to(mask.device))
        return logprobs, entropies

    def frozen_copy(self) -> "HuggingFacePolicy":
        """This policy as it is now, for good; what is never trained is shared, not copied."""
        fixed = [parameter for parameter in self.parameters() if not parameter.requires_grad]
        fixed += [] if self._frozen_head is None else [self._frozen_head]
        shared = {id(tensor): tensor for tensor in fixed}
        return copy.deepcopy(self, shared).requires_grad_(False)

    def _score_chunk(self, ids: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the tokens at `rows`, `columns` of ids [rows, L]."""
        if self.settings.gradient_checkpointing and torch.is_grad_enabled():
            options = {"use_reentrant": False, "preserve_rng_state": False}  # nothing is drawn
            return checkpoint(self._score_places, ids, rows, columns, **options)
        return self._score_places(ids, rows, columns)

    def _score_places(self, ids: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        ids, rows, columns = (part.to(self.device) for part in (ids, rows, columns))
        hidden = self.hidden(ids, use_cache=False)[rows, columns - 1]
        return from_hidden(hidden, self._head(), ids[rows, columns])

    def _head(self) -> Tensor:
        """[vocabulary, width] float32; of an adapted model, a copy that never changes."""
        if self._frozen_head is None:
            return self.model.get_output_embeddings().weight
        return self._frozen_head

    def _precision(self) -> contextlib.AbstractContextManager:
        if self.settings.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def state_dict(self, **_: Any) -> dict[str, Tensor]:
        """The trained weights alone, each once: with adapters, the adapters."""
        named = self.named_parameters()
        return {name: value.detach() for name, value in named if value.requires_grad}

    @torch.no_grad()
    def load_state_dict(self, weights: Mapping[str, Tensor], **_: Any) -> None:
        """Inverse of `state_dict`; ValueError unless names and shapes are the same."""
        require_shapes(self, weights)
        for name, value in self.state_dict().items():
            value.copy_(weights[name])


def _add_adapters(model: Any, settings: LoraSettings, seed: int) -> None:
    """Put adapters into the model, in float32, and freeze everything else."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):  # adapters draw from torch's global stream
        torch.manual_seed(derive(seed, "adapters"))
        inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


@torch.no_grad()
def _require_plain_head(policy: HuggingFacePolicy, folder: Path) -> None:
    """Raise ValueError unless the model's own logits are what `logits` makes of `hidden`."""
    ids = torch.arange(4)[None]
    with policy._precision():
        wanted = policy.model(input_ids=ids.to(policy.device), use_cache=False).logits.float()
    found = policy.logits(policy.hidden(ids, use_cache=False))
    allowed = 1e-3 if policy.settings.dtype == "float32" else 0.1
    if not (found - wanted).abs().max() <= allowed * (1 + wanted.abs().max()):
        raise ValueError(
            f"{folder / 'config.json'}: the logits of this {policy.model.config.model_type} are "
            "not hidden states times a matrix: a bias, a scale or a cap comes after it"
        )
