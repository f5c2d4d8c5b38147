"""What a composed verl configuration says to this plugin, read once and refused before any work.

verl checks neither the names of estimators and losses nor what a custom node holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from turncredit import params
from turncredit.environments import DeepResearchSettings, SearchR1Settings
from turncredit.environments.judges import EndpointSettings, LocalSettings, RuleJudge
from turncredit.environments.wording import WORDINGS
from turncredit.objectives import OBJECTIVES
from turncredit.params import require_positive
from turncredit.training import Method
from turncredit.verl_plugin.addresses import require_reachable
from turncredit.verl_plugin.sizable import at, has_critic
from turncredit.worlds.files import IndexSettings, ServerSettings

TRAINER = ESTIMATOR = AGENT_LOOP = "turncredit"
"""`trainer.v1.trainer_mode`, `algorithm.adv_estimator` and the agent loop go by this name."""

PREFIX = "turncredit_"
"""Before the name of an objective it is a `loss_mode`, before that of a base an `adv_estimator`."""

LOSS_CONFIG = "turncredit.verl_plugin.losses.TurnLossConfig"
"""`actor.policy_loss._target_`: verl's own has no place for options."""

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
"""verl's `loss_agg_mode` to ours."""

SAID_ELSEWHERE = frozenset({"aggregation", "max_length", "total_tokens", "total_sequences"})
"""Options of an objective that verl's `loss_agg_mode`, `loss_scale_factor` and batch give."""

IN_OPTIONS = "clip ranges are among actor.policy_loss.objective_options"
IN_CREDIT = "such options are among algorithm.turncredit.base_options"
IN_LOOP = "the agent loop hands over the environment's own reward as reward_score; leave it out"
UNREAD = {
    "actor_rollout_ref.actor.clip_ratio": (0.2, IN_OPTIONS),
    "actor_rollout_ref.actor.clip_ratio_low": (0.2, IN_OPTIONS),
    "actor_rollout_ref.actor.clip_ratio_high": (0.2, IN_OPTIONS),
    "actor_rollout_ref.actor.clip_ratio_c": (3.0, IN_OPTIONS),
    "algorithm.gamma": (1.0, IN_CREDIT),
    "algorithm.lam": (1.0, IN_CREDIT),
    "algorithm.norm_adv_by_std_in_grpo": (True, IN_CREDIT),
    "custom_reward_function.path": (None, IN_LOOP),
    "reward.custom_reward_function.path": (None, IN_LOOP),
    "reward.reward_model.enable": (False, IN_LOOP),
}
"""verl's defaults of what this plugin does not read, and where it is said instead."""

UNREAD_BASES = {
    "adrs": "its teacher needs passes of the policy that verl's trainer does not make",
    "igpo": "its information gains need passes of the policy that verl's trainer does not make",
    "true_advantage": "its audit plays on from every turn, which verl's trainer does not",
    "vineppo": "its values come of playing on from every turn, which verl's trainer does not",
}

UNREAD_WEIGHTS = {
    "oracle_suffix": ("oracle_turn", "the first wrong turn", "suffix_mask"),
    "scale_ungrounded": ("grounded", "whether the evidence was read", "scale_failed"),
}
"""Weights that read what a question without hops cannot tell: field, what it says, what to take.

Questions of files have answers alone, so that both fields are None in every trajectory."""


@dataclass(frozen=True)
class CreditSettings:
    """The node `algorithm.turncredit`."""

    base: str
    base_options: dict[str, Any]
    weight: str
    weight_options: dict[str, Any]
    seed: int
    """Of the weights that draw lots, such as `random_suffix`."""


@dataclass(frozen=True)
class AgentSettings:
    """The node `actor_rollout_ref.rollout.custom.turncredit`: what the agent loop plays."""

    environment: DeepResearchSettings | SearchR1Settings
    wording: str
    """A name in `WORDINGS`, written for this environment."""
    judge: RuleJudge | LocalSettings | EndpointSettings
    """Behind `external_verify`; an environment without that tool never asks it."""
    retriever: ServerSettings | IndexSettings
    chat: bool
    """Put the prompt into the model's chat template."""
    preface: str
    max_turn_tokens: int
    """Of one message.  What an observation may hold is said by `environment`, in characters."""
    seed: int

    def __post_init__(self) -> None:
        require_positive(self, "max_turn_tokens")
        fitting = [name for name in WORDINGS if name.startswith(self.environment.KIND)]
        if self.wording not in fitting:
            raise ValueError(f"wording = {self.wording!r} is not one of {', '.join(fitting)}")


def read_agent(config: Mapping[str, Any]) -> AgentSettings:
    """The agent loop's settings.  Raises ValueError naming node and key."""
    node = "actor_rollout_ref.rollout.custom.turncredit"
    custom = config["actor_rollout_ref"]["rollout"].get("custom") or {}
    return params.build(AgentSettings, _given(custom, "turncredit", node), node)


def read_method(config: Mapping[str, Any]) -> tuple[Method, CreditSettings]:
    """The method that a configuration (plain mappings, resolved) asks for, tried out once.

    Raises ValueError naming the node for a name or an option that does not exist, an option out of
    range, and a base or a weight that needs what is not there.
    """
    node = "algorithm.turncredit"
    credit = params.build(CreditSettings, _given(config["algorithm"], "turncredit", node), node)
    loss = config["actor_rollout_ref"]["actor"]["policy_loss"]
    options = dict(loss.get("objective_options") or {})
    for base in (credit.base, credit.base_options.get("base")):
        if base in UNREAD_BASES:
            raise ValueError(f"{node}: base {base!r} cannot run inside verl: {UNREAD_BASES[base]}")
    if credit.weight in UNREAD_WEIGHTS:
        field, says, instead = UNREAD_WEIGHTS[credit.weight]
        raise ValueError(
            f"{node}: weight {credit.weight!r} reads {field}, {says}, which only questions with "
            f"hops can tell, and those of question files have none; take {instead!r}, or run it in "
            "our own loop on a made world (params/cpu)"
        )
    unknown = {"grounded": None, "oracle_turn": None}  # of a weight that was entered since
    critic = {"values": torch.zeros(2, 4)} if has_critic(config) else {}
    try:
        method = Method(
            credit.base,
            credit.base_options,
            credit.weight,
            credit.weight_options,
            _objective(loss),
            options,
        )
        method.rehearse(**unknown, **critic)
    except ValueError as error:
        raise ValueError(f"{node}, policy_loss: {error}") from error
    if credit.weight_options.get("rule") == "running":
        raise ValueError(
            f"{node}: rule 'running' has to remember earlier steps, and verl's checkpoints would "
            "not hold it; take another rule"
        )
    return method, credit


def check_config(config: Mapping[str, Any], said_by: Callable[[str], str] = str) -> None:
    """Refuse a configuration (plain mappings, resolved) whose parts do not fit the trainer.

    Raises ValueError naming the key, its value and what it must be.  said_by: how to name the key
    of an address, such as with its file.
    """
    _check_trainer(config["trainer"])
    rollout, actor = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["actor"]
    algorithm, loss = config["algorithm"], config["actor_rollout_ref"]["actor"]["policy_loss"]
    _require("algorithm.adv_estimator", algorithm["adv_estimator"], ESTIMATOR)
    _require("actor.policy_loss._target_", loss.get("_target_"), LOSS_CONFIG)
    method, credit = read_method(config)
    for key in ("weight", "weight_options"):
        _require(f"actor.policy_loss.{key}", loss.get(key), getattr(credit, key))
    said = sorted(SAID_ELSEWHERE & set(method.objective_options))
    if said:
        raise ValueError(
            f"actor.policy_loss.objective_options.{said[0]}: verl's actor.loss_agg_mode, "
            "actor.loss_scale_factor and its batch say this; leave it out"
        )
    for key, (default, remedy) in UNREAD.items():
        value = at(config, key, default)
        if value != default:
            raise ValueError(f"{key} = {value!r} would not be read: {remedy}")
    _check_aggregation(actor)
    _check_corrections(algorithm)
    _check_rollout(config, rollout, said_by)


def _check_trainer(trainer: Mapping[str, Any]) -> None:
    """Only verl's second trainer has a place for ours, and only its synchronous one fits."""
    if not trainer.get("use_v1", True):
        raise ValueError("trainer.use_v1 = false: verl's older trainer would take no notice of us")
    _require("trainer.v1.trainer_mode", trainer["v1"]["trainer_mode"], TRAINER)


def _check_aggregation(actor: Mapping[str, Any]) -> None:
    mode = actor["loss_agg_mode"]
    if mode not in AGGREGATIONS:
        known = ", ".join(AGGREGATIONS)
        raise ValueError(f"actor.loss_agg_mode = {mode!r} is not one of {known}")
    if mode == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        raise ValueError(
            "actor.loss_scale_factor is null: with seq-mean-token-sum-norm the padded width would "
            "change the loss; give the number of tokens to divide by"
        )


def _check_corrections(algorithm: Mapping[str, Any]) -> None:
    """What verl would do to rewards, masks or weights behind the estimator's back."""
    if algorithm.get("use_kl_in_reward"):
        raise ValueError(
            "algorithm.use_kl_in_reward = true: rewards here are outcomes; take actor.use_kl_loss"
        )
    correction = algorithm.get("rollout_correction") or {}
    for key in ("rollout_is", "rollout_rs", "bypass_mode"):
        if correction.get(key):
            raise ValueError(
                f"algorithm.rollout_correction.{key} = {correction[key]!r}: it changes masks, "
                "weights or old log-probs that turns and entropies are read from; leave it out"
            )


def _check_rollout(
    config: Mapping[str, Any], rollout: Mapping[str, Any], said_by: Callable[[str], str]
) -> None:
    if rollout["n"] < 2:
        raise ValueError(f"rollout.n = {rollout['n']}: a group of one has no baseline")
    if not rollout["calculate_log_probs"]:
        raise ValueError("rollout.calculate_log_probs = false: diagnostics compare both engines")
    if rollout["top_p"] != 1 or rollout["top_k"] not in (-1, 0):
        raise ValueError(
            f"rollout.top_p = {rollout['top_p']}, top_k = {rollout['top_k']}: a cut distribution "
            "has other log-probs than the trainer's; take 1 and -1"
        )
    loop = rollout["agent"]["default_agent_loop"]
    if loop != AGENT_LOOP:
        raise ValueError(
            f"rollout.agent.default_agent_loop = {loop!r} must be {AGENT_LOOP!r}: another one "
            "leaves the reward to verl, which has no score for nq or hotpotqa, and tells no stop "
            "reason, action or missing reward"
        )
    settings = read_agent(config)
    if settings.max_turn_tokens > rollout["response_length"]:
        raise ValueError(
            f"rollout.custom.turncredit.max_turn_tokens = {settings.max_turn_tokens} is more "
            f"than data.max_response_length = {rollout['response_length']}"
        )
    require_reachable(settings, config["trainer"]["nnodes"], said_by)


def _objective(loss: Mapping[str, Any]) -> str:
    """The objective behind `loss_mode`; ValueError for none of ours."""
    mode = str(loss["loss_mode"])
    name = mode.removeprefix(PREFIX)
    if name == mode or name not in OBJECTIVES:
        known = ", ".join(f"{PREFIX}{name}" for name in OBJECTIVES)
        raise ValueError(f"loss_mode = {mode!r} is not one of {known}")
    return name


def _given(values: Mapping[str, Any], key: str, node: str) -> dict[str, Any]:
    found = values.get(key)
    if not isinstance(found, Mapping):
        raise ValueError(f"{node} is missing: it says what this plugin is to do")
    return dict(found)


def _require(key: str, value: Any, wanted: Any) -> None:
    if value != wanted:
        raise ValueError(f"{key} = {value!r} must be {wanted!r}")
