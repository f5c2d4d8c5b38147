"""What a cluster run takes on each GPU, from shapes: nothing is loaded and nothing was measured.

Two moments are told apart, since verl's hybrid engine never has both: the rollout (vLLM awake, the
optimiser's states beside it) and the update (vLLM asleep).  Assumed of verl 0.9.1 with FSDP2:
weights, gradients and Adam's moments in float32, split over all GPUs, and the reference alike;
layers gathered in bfloat16, two at a time; checkpointed activations in bfloat16; log-probs from
hidden states, 512 tokens at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.params import require_positive

GIB = 2**30
CHUNK = 512
"""Tokens whose logits exist at once under verl's fused kernels."""
LOGIT_BYTES = 14
"""Of one logit: bfloat16, float32, its softmax and its gradient."""
ENGINE_GIB = 4.0
"""What vLLM takes for its graphs and passes beside weights and cache."""
FRAGMENTS = 1.1
"""What the allocator wastes."""


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer with an embedding and a head of its own each."""

    layers: int
    width: int
    queries: int
    keys: int
    """Width of a token's keys, which is that of its values."""
    inner: int
    vocabulary: int
    positions: int
    """Longest context."""

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        attention = 2 * self.width * self.queries + 2 * self.width * self.keys
        return attention + 3 * self.width * self.inner

    @property
    def parameters(self) -> int:
        """All, but norms and biases, which are less than a thousandth."""
        return self.layers * self.layer + 2 * self.vocabulary * self.width

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of a token, in bfloat16."""
        return 2 * 2 * self.layers * self.keys


@dataclass(frozen=True)
class Machine:
    """Nodes of equal GPUs."""

    nodes: int
    gpus_per_node: int
    gpu_gib: float
    """What a GPU can hold."""
    retrieval_gib_per_gpu: float
    """Taken by the retrieval server where it runs; 0 if it has a machine of its own."""
    context_gib: float
    """CUDA contexts and communication buffers of the processes on a GPU."""

    def __post_init__(self) -> None:
        require_positive(self, "nodes", "gpus_per_node", "gpu_gib")

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Size:
    """What a run takes, and what it has; GiB on the fullest GPU."""

    rollout_gib: float
    update_gib: float
    gpu_gib: float
    cached_tokens: int
    """That vLLM can keep on the GPUs of one replica."""
    row_tokens: int
    """Of the longest trajectory, prompt included."""
    trajectories: int
    """Of a step."""
    step_tokens: int
    """Of a step, if all trajectories are the longest."""

    def sentence(self) -> str:
        """One line for `check`."""
        return (
            f"rollout {self.rollout_gib:.0f} and update {self.update_gib:.0f} of "
            f"{self.gpu_gib:.0f} GiB a GPU; {self.trajectories} trajectories of at most "
            f"{self.row_tokens} tokens, {self.step_tokens / 1e6:.1f} M a step; cache for "
            f"{self.cached_tokens / self.row_tokens:.1f} of the longest a replica"
        )


def size_of(shape: Shape, machine: Machine, config: Mapping[str, Any]) -> Size:
    """What the composed configuration (plain mappings, resolved) takes on the machine."""
    data, actor = config["data"], config["actor_rollout_ref"]["actor"]
    rollout = config["actor_rollout_ref"]["rollout"]
    row = data["max_prompt_length"] + data["max_response_length"]
    rows = data["train_batch_size"] * rollout["n"]
    beside = machine.retrieval_gib_per_gpu + machine.context_gib
    engine = rollout["gpu_memory_utilization"] * machine.gpu_gib
    weights = shape.parameters * 2 / rollout["tensor_model_parallel_size"] / GIB
    cache = max(0.0, engine - weights - ENGINE_GIB) * rollout["tensor_model_parallel_size"]
    resident = _states(shape, machine, config, per_parameter=12)
    states = _states(shape, machine, config, per_parameter=16)
    passing = _passing(shape, config) * actor["ppo_micro_batch_size_per_gpu"] * row
    gathered = 2 * 2 * max(shape.layer, shape.vocabulary * shape.width)
    update = states + FRAGMENTS * (passing + gathered + _logits(shape, config, row)) / GIB
    return Size(
        rollout_gib=engine + resident + beside,
        update_gib=update + beside,
        gpu_gib=machine.gpu_gib,
        cached_tokens=int(cache * GIB / shape.cache_bytes),
        row_tokens=row,
        trajectories=rows,
        step_tokens=rows * row,
    )


def require_fits(shape: Shape, machine: Machine, config: Mapping[str, Any]) -> Size:
    """The size of a run that fits; ValueError naming the first thing that does not fit."""
    rollout, trainer = config["actor_rollout_ref"]["rollout"], config["trainer"]
    size = size_of(shape, machine, config)
    given = (trainer["nnodes"], trainer["n_gpus_per_node"])
    if given != (machine.nodes, machine.gpus_per_node):
        raise ValueError(
            f"trainer asks for {given[0]} x {given[1]} GPUs, the machine has "
            f"{machine.nodes} x {machine.gpus_per_node}"
        )
    if size.row_tokens > shape.positions:
        raise ValueError(
            f"{size.row_tokens} tokens of prompt and response, the model has {shape.positions} "
            "positions: lower data.max_response_length"
        )
    if (rollout["max_model_len"] or 0) < size.row_tokens:
        raise ValueError(
            f"rollout.max_model_len = {rollout['max_model_len']} is below the {size.row_tokens} "
            "tokens of prompt and response: vLLM would end trajectories early"
        )
    for moment, needed, remedy in (
        ("rollout", size.rollout_gib, "lower rollout.gpu_memory_utilization"),
        ("update", size.update_gib, "take more GPUs, shorter rows or offload the optimiser"),
    ):
        if needed > machine.gpu_gib:
            raise ValueError(
                f"the {moment} needs {needed:.1f} GiB on a GPU of {machine.gpu_gib:.1f}: {remedy}"
            )
    if size.cached_tokens < size.row_tokens:
        raise ValueError(
            f"vLLM can cache {size.cached_tokens} tokens, one trajectory has {size.row_tokens}: "
            "raise rollout.gpu_memory_utilization or tensor_model_parallel_size"
        )
    if size.trajectories % machine.gpus:
        raise ValueError(
            f"{size.trajectories} trajectories do not divide among {machine.gpus} GPUs"
        )
    return size


def _states(
    shape: Shape, machine: Machine, config: Mapping[str, Any], *, per_parameter: int
) -> float:
    """GiB of a GPU's part: the actor's bytes for each parameter, and the reference's."""
    model = config["actor_rollout_ref"]
    engine = model["actor"]["fsdp_config"]
    if engine["optimizer_offload"]:
        per_parameter -= 8
    if engine["param_offload"]:
        per_parameter -= 4
    reference = model["actor"]["use_kl_loss"] and not model["ref"]["fsdp_config"]["param_offload"]
    per_parameter += 4 if reference else 0
    return shape.parameters * per_parameter / machine.gpus / GIB


def _passing(shape: Shape, config: Mapping[str, Any]) -> float:
    """Bytes of activations for each token of a pass."""
    kept = 2 * shape.width
    inside = 2 * (6 * shape.width + 2 * shape.queries + 4 * shape.keys + 4 * shape.inner)
    if config["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]:
        return kept * shape.layers + inside
    return inside * shape.layers


def _logits(shape: Shape, config: Mapping[str, Any], row: int) -> float:
    """Bytes of the logits alive at once, and of the head's gradient."""
    tokens = min(CHUNK, row) if config["actor_rollout_ref"]["model"]["use_fused_kernels"] else row
    return tokens * shape.vocabulary * LOGIT_BYTES + 4 * shape.vocabulary * shape.width
