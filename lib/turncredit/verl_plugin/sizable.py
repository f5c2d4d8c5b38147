"""What the formulas of `sizing` take for granted; a run that says otherwise is refused."""

from collections.abc import Mapping
from typing import Any

from turncredit.verl_plugin.addresses import host_of, means_this_machine

PARTS = ("actor_rollout_ref.actor", "actor_rollout_ref.ref")
ENGINES = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config")

ASSUMED: dict[str, Any] = {
    **{f"{part}.strategy": "fsdp2" for part in PARTS},
    **{f"{part}.ulysses_sequence_parallel_size": 1 for part in PARTS},
    **{f"{engine}.fsdp_size": -1 for engine in ENGINES},
    **{f"{engine}.model_dtype": "fp32" for engine in ENGINES},
    **{f"{engine}.offload_policy": False for engine in ENGINES},
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.rollout.data_parallel_size": 1,
    "actor_rollout_ref.rollout.pipeline_model_parallel_size": 1,
    "actor_rollout_ref.rollout.nnodes": 0,
}
"""Key to the only value that is sized; a key that is not said counts as that."""

ASSUMED_OF_A_CRITIC: dict[str, Any] = {
    "critic.strategy": "fsdp2",
    "critic.ulysses_sequence_parallel_size": 1,
    "critic.fsdp.fsdp_size": -1,
    "critic.fsdp.model_dtype": "fp32",
    "critic.fsdp.offload_policy": False,
    "critic.model.lora_rank": 0,
    "critic.model.use_remove_padding": True,
}
"""The same for a run with a critic."""

DYNAMIC = {
    "actor_rollout_ref.actor.use_dynamic_bsz": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    **{
        f"actor_rollout_ref.{part}.log_prob_use_dynamic_bsz": (
            f"actor_rollout_ref.{part}.log_prob_max_token_len_per_gpu"
        )
        for part in ("rollout", "ref")
    },
}
"""Keys by which micro-batches have as many rows as fit, to the keys of their tokens."""


def asks_a_judge(config: Mapping[str, Any]) -> bool:
    """Whether the run's agent loop asks a model behind a server for verdicts."""
    ours = _ours(config)
    return _kind(ours, "environment") == "deep_research" and _kind(ours, "judge") == "endpoint"


def has_critic(config: Mapping[str, Any]) -> bool:
    """Whether verl trains a critic beside the actor."""
    return bool((config.get("critic") or {}).get("enable"))


def critic_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of a critic's micro-batch: verl packs its rows up to this, whatever else is said."""
    return at(config, "critic.ppo_infer_max_token_len_per_gpu", 32768)


def require_sizable(config: Mapping[str, Any], *, shares: bool) -> None:
    """Refuse what has no formula, naming the key.  shares: GiB were set aside for a judge."""
    assumed = ASSUMED | (ASSUMED_OF_A_CRITIC if has_critic(config) else {})
    for key, wanted in assumed.items():
        found = at(config, key, wanted)
        if found != wanted:
            raise ValueError(f"{key} = {found!r} is not sized here, only {wanted!r}")
    for flag, most in DYNAMIC.items():
        if at(config, flag, False):
            _require_packed(config, flag, most)
    if has_critic(config):
        _require_sized_critic(config)
    _require_sized_judge(config, shares)


def _require_packed(config: Mapping[str, Any], flag: str, most: str) -> None:
    """Micro-batches of a bounded number of tokens need rows without padding between them."""
    if not config["actor_rollout_ref"]["model"]["use_remove_padding"]:
        raise ValueError(
            f"{flag} = true without model.use_remove_padding: each micro-batch is padded to its "
            "longest row, so that no number of tokens bounds its memory"
        )
    _require_room(config, most, at(config, most, 0))


def _require_room(config: Mapping[str, Any], key: str, tokens: int) -> None:
    row = config["data"]["max_prompt_length"] + config["data"]["max_response_length"]
    if tokens < row:
        raise ValueError(f"{key} = {tokens} is below the {row} tokens of the longest row")


def _require_sized_critic(config: Mapping[str, Any]) -> None:
    critic, actor = config["critic"]["model"], config["actor_rollout_ref"]["model"]
    if critic["path"] != actor["path"]:
        raise ValueError(
            f"critic.model.path = {critic['path']!r} has a shape that nobody has said: only that "
            f"of the actor, {actor['path']!r}, is sized"
        )
    _require_room(config, "critic.ppo_infer_max_token_len_per_gpu", critic_tokens(config))


def _require_sized_judge(config: Mapping[str, Any], shares: bool) -> None:
    """A judge on a machine of the run takes memory of GPUs that are all in use."""
    ours = _ours(config)
    for part, kind in (("judge", "endpoint"), ("retriever", "server")):
        device = (ours.get(part) or {}).get("device", "cpu")
        if device != "cpu":
            raise ValueError(
                f"{part}.device = {device!r}: agent loops have no GPU; take kind: {kind}"
            )
    if shares or not asks_a_judge(config):
        return
    judge = ours["judge"]
    url, search = judge["base_url"], (ours.get("retriever") or {}).get("url", "")
    if means_this_machine(url) or host_of(url) == host_of(search):
        raise ValueError(
            f"judge.base_url = {url} is on a machine whose GPUs are all in use: say in "
            "machine.judge_gib_per_gpu what it takes of one, or give it a machine of its own"
        )


def _ours(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return at(config, "actor_rollout_ref.rollout.custom.turncredit", {})


def _kind(ours: Mapping[str, Any], part: str) -> Any:
    return (ours.get(part) or {}).get("kind")


def at(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """What a configuration says at a dotted key; `default` where it says nothing."""
    for name in key.split("."):
        if not isinstance(config, Mapping) or name not in config:
            return default
        config = config[name]
    return config
