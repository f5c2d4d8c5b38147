"""What a cluster run takes on each GPU, from shapes: nothing is loaded and nothing was measured.

Moments are told apart, since verl's hybrid engine never has two at once: the rollout (vLLM awake,
the optimisers' states beside it), then, with vLLM asleep, log-probs, the update, and that of a
critic, whose values take less.  Assumed of verl 0.9.1 with FSDP2: weights, gradients and Adam's
moments in float32, split over all GPUs, and the reference alike; layers gathered in bfloat16, two
at a time; checkpointed activations in bfloat16; log-probs from hidden states, 512 tokens at a time.
What else verl can be told, and would take other memory, is refused: see `sizable`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.params import require_positive
from turncredit.verl_plugin.sizable import asks_a_judge, critic_tokens, has_critic, require_sizable

GIB = 2**30
CHUNK = 512
"""Tokens whose logits exist at once under verl's fused kernels."""
LOGIT_BYTES, READ_LOGIT_BYTES = 14, 10
"""Of one logit: bfloat16, float32, its softmax and, in an update, its gradient."""
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
    def critic_parameters(self) -> int:
        """Of the same model with one value in the place of logits."""
        return self.parameters - self.vocabulary * self.width

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
    judge_gib_per_gpu: float
    """Taken by the judge on a GPU that it shares, where one is asked; 0 if it shares none."""
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

    moments: dict[str, float]
    """`rollout`, `log-probs`, `update`, and that of a critic."""
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
        moments = ", ".join(f"{name} {gib:.0f}" for name, gib in self.moments.items())
        return (
            f"{moments} of {self.gpu_gib:.0f} GiB a GPU; {self.trajectories} trajectories of at "
            f"most {self.row_tokens} tokens, {self.step_tokens / 1e6:.1f} M a step; cache for "
            f"{self.cached_tokens / self.row_tokens:.1f} of the longest a replica"
        )


def size_of(shape: Shape, machine: Machine, config: Mapping[str, Any]) -> Size:
    """What the composed configuration (plain mappings, resolved) takes on the machine."""
    data, rollout = config["data"], config["actor_rollout_ref"]["rollout"]
    row = data["max_prompt_length"] + data["max_response_length"]
    rows = data["train_batch_size"] * rollout["n"]
    engine = rollout["gpu_memory_utilization"] * machine.gpu_gib
    beside = machine.retrieval_gib_per_gpu + machine.context_gib
    beside += machine.judge_gib_per_gpu if asks_a_judge(config) else 0.0
    moments = {"rollout": engine + _states(shape, machine, config, asleep=True)}
    moments |= _passes(shape, machine, config, row)
    return Size(
        moments={name: gib + beside for name, gib in moments.items()},
        gpu_gib=machine.gpu_gib,
        cached_tokens=cached_tokens(shape, machine, rollout),
        row_tokens=row,
        trajectories=rows,
        step_tokens=rows * row,
    )


def cached_tokens(shape: Shape, machine: Machine, rollout: Mapping[str, Any]) -> int:
    """Tokens whose keys and values fit on a replica's GPUs, by verl's node `rollout`."""
    engine = rollout["gpu_memory_utilization"] * machine.gpu_gib
    weights = shape.parameters * 2 / rollout["tensor_model_parallel_size"] / GIB
    cache = max(0.0, engine - weights - ENGINE_GIB) * rollout["tensor_model_parallel_size"]
    return int(cache * GIB / shape.cache_bytes)


REMEDIES = {
    "rollout": "lower rollout.gpu_memory_utilization",
    "log-probs": "lower log_prob_micro_batch_size_per_gpu or take shorter rows",
    "critic": "take more GPUs or lower critic.ppo_infer_max_token_len_per_gpu",
}


def require_fits(shape: Shape, machine: Machine, config: Mapping[str, Any]) -> Size:
    """The size of a run that fits; ValueError naming the first thing that does not fit."""
    rollout, trainer = config["actor_rollout_ref"]["rollout"], config["trainer"]
    require_sizable(config, shares=machine.judge_gib_per_gpu > 0)
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
    needed, moment = max((gib, name) for name, gib in size.moments.items())
    if needed > machine.gpu_gib:
        raise ValueError(
            f"the {moment} needs {needed:.1f} GiB on a GPU of {machine.gpu_gib:.1f}: "
            f"{REMEDIES.get(moment, 'take more GPUs or shorter rows')}"
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
    shape: Shape, machine: Machine, config: Mapping[str, Any], *, asleep: bool = False
) -> float:
    """GiB of a GPU's part of weights and moments: actor, reference and critic.

    asleep: none of them is at work, so that what may be offloaded is; verl fetches it for a pass.
    """
    model, critic = config["actor_rollout_ref"], config.get("critic") or {}
    told = [(shape.parameters, model["actor"]["fsdp_config"], 12)]
    if model["actor"]["use_kl_loss"]:
        told.append((shape.parameters, model["ref"]["fsdp_config"], 4))
    if has_critic(config):
        told.append((shape.critic_parameters, critic["fsdp"], 12))
    total = 0
    for parameters, engine, size in told:
        if asleep and engine["optimizer_offload"] and size > 4:
            size -= 8
        if asleep and engine["param_offload"]:
            size -= 4
        total += parameters * size
    return total / machine.gpus / GIB


def _passes(
    shape: Shape, machine: Machine, config: Mapping[str, Any], row: int
) -> dict[str, float]:
    """GiB of a GPU in each kind of pass, vLLM asleep."""
    model, critic = config["actor_rollout_ref"], config.get("critic") or {}
    states = _states(shape, machine, config)
    gradients = 4 / machine.gpus / GIB
    read = max(_tokens(model[part], "log_prob_", "log_prob_", row) for part in ("rollout", "ref"))
    taken = _tokens(model["actor"], "ppo_", "", row)
    found = {
        "log-probs": _pass(shape, model["model"], read, heads=True, learns=False),
        "update": _pass(shape, model["model"], taken, heads=True, learns=True)
        + shape.parameters * gradients,
    }
    if has_critic(config):
        packed = critic_tokens(config)
        found["critic"] = _pass(shape, critic["model"], packed, heads=False, learns=True)
        found["critic"] += shape.critic_parameters * gradients
    return {name: states + gib for name, gib in found.items()}


def _tokens(told: Mapping[str, Any], name: str, flag: str, row: int) -> int:
    """Tokens of a micro-batch: of its rows, or what bounds them together."""
    if told.get(f"{flag}use_dynamic_bsz"):
        return told[f"{name}max_token_len_per_gpu"]
    return told[f"{name}micro_batch_size_per_gpu"] * row


def _pass(
    shape: Shape, model: Mapping[str, Any], tokens: int, *, heads: bool, learns: bool
) -> float:
    """GiB of a pass over a micro-batch: activations, two gathered layers and logits."""
    inside = 2 * (6 * shape.width + 2 * shape.queries + 4 * shape.keys + 4 * shape.inner)
    if learns and model["enable_gradient_checkpointing"]:
        activations = 2 * shape.width * shape.layers + inside
    else:
        activations = inside * (shape.layers if learns else 1)
    gathered = 2 * 2 * max(shape.layer, shape.vocabulary * shape.width)
    logits = _logits(shape, model, tokens, learns) if heads else 0
    return FRAGMENTS * (activations * tokens + gathered + logits) / GIB


def _logits(shape: Shape, model: Mapping[str, Any], tokens: int, learns: bool) -> int:
    """Bytes of the logits alive at once, and of the head's gradient."""
    alive = min(CHUNK, tokens) if model["use_fused_kernels"] else tokens
    if not learns:
        return alive * shape.vocabulary * READ_LOGIT_BYTES
    return alive * shape.vocabulary * LOGIT_BYTES + 4 * shape.vocabulary * shape.width
