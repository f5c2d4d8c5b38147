"""Bytes and operations of a training step, part by part.

Bytes that autograd keeps for backward were counted layer by layer for Llama, Qwen2 and Qwen3 (a
test counts them again); layers of other kinds are taken to be like those.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from turncredit.estimates.sizes import Sizes
from turncredit.policies.tiny import CHUNK_ROWS

if TYPE_CHECKING:
    from turncredit.policies.vllm import VllmSettings
    from turncredit.tasks import TaskSettings

_READ_AT_ONCE = 16_384
"""Tokens of a prompt or an observation that a language model reads in one pass at most."""
_HEAD_ROWS = 256
"""Rows of logits that exist at a time."""


@dataclass(frozen=True)
class Work:
    """Counts of a step, every trajectory as long as it may be."""

    rows: int
    """Trajectories of a step."""
    decoded: int
    """Trajectories of a rollout or of an evaluation, whichever are more."""
    graph: int
    """Trajectories whose passes wait for one backward."""
    tokens: int
    """Of a trajectory."""
    sampled: int
    """Tokens of a trajectory that the policy may have sampled."""


class Parts(NamedTuple):
    """Bytes that are in memory for one purpose."""

    weights: int
    gradients: int
    optimiser: int
    reference: int
    activations: int
    logits: int
    rollout: int
    engine: int = 0
    """A second engine that samples: its weights, keys and values, which stay."""


class Operations(NamedTuple):
    """Floating-point operations of a step."""

    reading: float
    speaking: float


def work_of(settings: "TaskSettings") -> Work:
    """What a step of a task comes to."""
    training = settings.training
    rows = training.questions_per_step * training.group_size
    update = math.ceil(training.questions_per_step / training.updates_per_batch)
    graph = min(training.micro_batch or rows, update * training.group_size)
    if settings.warm_start.steps:
        graph = max(graph, settings.warm_start.batch)
    tokens = settings.policy.max_tokens
    sampled = min(tokens, settings.environment.max_turns * training.max_turn_tokens)
    return Work(rows, max(rows, settings.evaluation.questions), graph, tokens, sampled)


def operations(settings: "TaskSettings", sizes: Sizes, work: Work) -> Operations:
    """Of matrix products: a forward pass counts once, backward twice as much.

    With adapters the gradients of the frozen matrices are not computed, which is half of backward.
    The first update's own log-probs are known from the pass before it, unless passes are cut into
    micro-batches.
    """
    training = settings.training
    forward = work.rows * _pass_operations(sizes, work)
    passes = 3.0 if sizes.trained == sizes.parameters else 2.0
    passes += getattr(settings.policy, "gradient_checkpointing", False)
    known = 0.0 if training.micro_batch is not None else 1 / training.updates_per_batch
    passes += 1 - known + (training.kl is not None)
    return Operations(reading=passes * forward, speaking=forward)


def _pass_operations(sizes: Sizes, work: Work) -> float:
    """Of one forward pass over a trajectory, where a token attends to half of the others."""
    attention = 2.0 * work.tokens * sizes.queries * sizes.layers
    head = 2.0 * sizes.vocabulary * sizes.width * work.sampled
    return work.tokens * (2.0 * sizes.matrices + attention) + head


def tiny_parts(settings: "TaskSettings", sizes: Sizes, work: Work) -> Parts:
    """Of a tiny policy: float32 throughout; attention is written out, so its shares are kept.

    A pass works in another layer's worth, and in four tables of logits beside the two that stay.
    """
    layer = 13 * sizes.width + 4 * sizes.keys + 0.75 * sizes.heads * work.tokens
    at_once = min(work.graph, CHUNK_ROWS)
    kept = work.graph * (layer * sizes.layers + 4 * sizes.width) + at_once * layer
    cache = 2 * work.tokens * sizes.keys * sizes.layers
    step = 5 * sizes.vocabulary + 12 * sizes.width
    weights = 4 * sizes.parameters
    return Parts(
        weights=weights,
        gradients=weights,
        optimiser=2 * weights,
        reference=weights if settings.training.kl is not None else 0,
        activations=int(4 * kept * work.tokens),
        logits=4 * (2 * work.graph + 4 * at_once) * work.sampled * sizes.vocabulary,
        rollout=4 * work.decoded * (cache + step),
    )


def model_parts(settings: "TaskSettings", sizes: Sizes, work: Work) -> Parts:
    """Of a language model: what is trained in float32, the rest and the products in its dtype."""
    policy = settings.policy
    size, whole = 2 if policy.dtype == "bfloat16" else 4, policy.lora is None
    head = 4 * sizes.vocabulary * sizes.width
    weights = 4 * sizes.trained
    if not whole:  # and a head in float32
        weights += size * (sizes.parameters - sizes.trained) + (head if size == 2 else 0)
    converted = 2 * sizes.matrices if whole and size == 2 else 0
    own_head = 4 * min(_HEAD_ROWS, work.graph * work.sampled) * sizes.vocabulary
    blocks = 2**21 if policy.device == "cpu" else 2**28
    return Parts(
        weights=weights,
        gradients=4 * sizes.trained,
        optimiser=8 * sizes.trained,
        reference=_reference(settings, sizes, weights),
        activations=_activations(settings, sizes, work, converted),
        logits=own_head + blocks + (head if whole else 0),
        rollout=_rollout(sizes, work, size, whole) + converted,
        engine=_engine(policy, sizes) if policy.KIND == "vllm" else 0,
    )


def _engine(policy: "VllmSettings", sizes: Sizes) -> int:
    """vLLM's own weights and what it sets apart for keys and values."""
    size = 2 if policy.engine_dtype == "bfloat16" else 4
    return size * sizes.parameters + int(policy.engine_cache_gib * 2**30)


def _reference(settings: "TaskSettings", sizes: Sizes, weights: int) -> int:
    """A second policy, which shares what is never trained."""
    if settings.training.kl is None:
        return 0
    return weights if settings.policy.lora is None else 4 * sizes.trained


def _activations(settings: "TaskSettings", sizes: Sizes, work: Work, converted: int) -> int:
    """Kept for backward, and one layer's worth to work in; each pass keeps its own weights."""
    policy = settings.policy
    rows = work.graph
    if policy.gradient_checkpointing:
        rows = min(rows, policy.micro_batch_rows)
    size = 2 if policy.dtype == "bfloat16" else 4
    eager = work.tokens if policy.attention == "eager" else 0
    layer = token_bytes(sizes, size, attended=eager, adapted=policy.lora is not None)
    kept = rows * work.tokens * (layer * sizes.layers + 28 * sizes.width)
    room = min(rows, policy.micro_batch_rows) * work.tokens * layer
    return kept + room + math.ceil(rows / policy.micro_batch_rows) * converted


def token_bytes(sizes: Sizes, size: int, *, attended: int = 0, adapted: bool = False) -> int:
    """Bytes that a layer keeps of one token for backward; products take `size` bytes a number.

    Kept are the inputs of every product, of both norms and of the gate; norms stay in float32.
    attended: tokens whose shares are kept too, where attention is written out.
    adapted: adapters keep another copy of their inputs, in float32.
    """
    kept = (24 if size == 4 else 26) * sizes.width
    kept += size * (2 * sizes.queries + 2 * sizes.keys + 4 * sizes.inner)
    kept += 8 * (sizes.queries + sizes.keys) if sizes.normed_heads else 0
    kept += 4 * (2 * sizes.width + sizes.queries + sizes.inner) if adapted else 0
    return kept + 4 * sizes.heads + 8 * sizes.heads * attended


def _rollout(sizes: Sizes, work: Work, size: int, whole: bool) -> int:
    """Keys and values, those of one layer twice while they grow, and what a step needs beside."""
    pair = 6 if size == 2 and whole else 2 * size  # autocast leaves turned keys in float32
    layer = work.decoded * work.tokens * sizes.keys * pair
    draws = work.decoded * sizes.vocabulary * (5 * 4 + 8)  # the sums are float64
    read = min(_READ_AT_ONCE, work.decoded * work.tokens) * size
    read *= 3 * sizes.inner + 8 * sizes.width
    return layer * (sizes.layers + 1) + max(draws, read)
