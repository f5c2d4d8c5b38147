"""A method: which base, turn weight and objective, with their options."""

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from turncredit.batch_contract import LAYOUT, TYPES
from turncredit.batching import TurnBatch, two_turns_and_one
from turncredit.credit import BASES, TURN_WEIGHTS, Credit, assign_credit, weigh
from turncredit.credit.gates import update_reference
from turncredit.expert_actions import SCRIPTED, log_path
from turncredit.methods import option_names
from turncredit.objectives import OBJECTIVES, batch_totals
from turncredit.objectives.tokens import segment_means
from turncredit.params import OPTIONAL
from turncredit.policies.protocol import Policy, Tokens
from turncredit.rollout.protocol import Strategy
from turncredit.rollout.strategies import STRATEGIES
from turncredit.storage import content_sha256
from turncredit.training.collect import Collected
from turncredit.training.extensions import enter, is_known, source_sha256
from turncredit.training.turn_inputs import TURN_INPUTS, TurnInput, check_input

SET_BY_THE_LOOP = frozenset(
    {"total_tokens", "total_sequences", "reference", "logprobs", "generator"}
)
"""Options that are tensors, streams or totals of a batch and cannot come from a params file."""

RATIO_LEVELS = {"gspo": "sequence", "gspo_token": "sequence", "turn_gspo": "turn"}
"""Whose ratio an objective clips; that of the token for all others."""

ONE_ADVANTAGE = ("gspo",)
"""Objectives that give a trajectory the mean advantage of its tokens before they clip."""

TABLES = {
    "base": BASES,
    "weight": TURN_WEIGHTS,
    "objective": OBJECTIVES,
    "rollout": STRATEGIES,
}

NOTHING_SEEN = torch.empty(0, dtype=torch.float64)
"""The running mean of turn entropies before the first step."""


@dataclass(frozen=True)
class Method:
    """An arm: names in the registries and their options."""

    base: str
    base_options: dict[str, Any]
    weight: str
    weight_options: dict[str, Any]
    objective: str
    objective_options: dict[str, Any]
    rollout: str = field(default="independent", metadata=OPTIONAL)
    """How the trajectories of a group come about, a name in `rollout.strategies`."""
    rollout_options: dict[str, Any] = field(default_factory=dict, metadata=OPTIONAL)
    module: str = field(default="", metadata=OPTIONAL)
    """A module of one's own that enters what is named above (`extensions.enter`); "": none."""

    def __post_init__(self) -> None:
        self.enter()
        for kind, table in TABLES.items():
            known = set(option_names(table[getattr(self, kind)])) - SET_BY_THE_LOOP
            if kind == "base":
                known |= set(self.input_options)
            unknown = sorted(set(getattr(self, f"{kind}_options")) - known)
            if unknown:
                raise ValueError(
                    f"{kind}_options: {getattr(self, kind)!r} has no option {unknown[0]!r}; "
                    f"it has: {', '.join(sorted(known)) or 'none'}"
                )

    def enter(self) -> None:
        """Have what its module enters in the tables of this process, such as a run's own."""
        if self.module:
            enter(self.module)

    @property
    def strategy(self) -> Strategy:
        """What plays the groups of a step; ValueError for an option out of range."""
        return STRATEGIES[self.rollout](**self.rollout_options)

    @property
    def values(self) -> dict[str, Any]:
        """The fields by name, without a rollout that is the usual one: what identifies a method."""
        fields = asdict(self)
        if self.rollout == "independent":
            del fields["rollout"], fields["rollout_options"]
        if not self.module:
            del fields["module"]
        return fields

    @property
    def contents(self) -> dict[str, str]:
        """Hashes of the files that it names, by key: an action log, a module of one's own."""
        log = self.rollout_options.get("log", SCRIPTED)
        found = {} if log == SCRIPTED else {"rollout.log": content_sha256(log_path(log))}
        return found | ({"module": source_sha256(self.module)} if self.module else {})

    def require_source(self) -> None:
        """ValueError naming a function that only this process knows, and no run would find."""
        for kind, table in TABLES.items():
            name = getattr(self, kind)
            if not is_known(table[name], self.module):
                raise ValueError(
                    f"{kind} = {name!r} was entered by {table[name].__module__}, where no run "
                    "finds it; write it into a file, and name that as the method's module"
                )

    def credit(self, batch: TurnBatch, **given: Any) -> Credit:
        """The credit of a batch; of `given`, its functions get the options that they know."""
        base, weight = BASES[self.base], TURN_WEIGHTS[self.weight]
        given = {"reference": NOTHING_SEEN} | given
        return assign_credit(
            batch,
            self.base,
            self.weight,
            self._options(filling=False) | _known(base, given),
            self.weight_options | _known(weight, given),
        )

    def reweigh(self, batch: TurnBatch, base: Tensor, logprobs: Tensor) -> Credit:
        """The credit of base advantages [B, L] under the current policy's logprobs [B, L]."""
        return weigh(batch, base, self.weight, self.weight_options | {"logprobs": logprobs})

    @property
    def turn_inputs(self) -> tuple[TurnInput, ...]:
        """What its base, and the base that this one is put on, want the loop to fill in."""
        own, inner = (TURN_INPUTS.get(base, ()) for base in (self.base, self._inner_base))
        found = {wanted.field: wanted for wanted in own}
        for wanted in inner:
            if found.setdefault(wanted.field, wanted) is not wanted:
                raise ValueError(
                    f"base_options: {self.base!r} cannot be put on {self._inner_base!r}: both "
                    f"read {wanted.field}, and not the same"
                )
        return tuple(found.values())

    @property
    def _inner_base(self) -> str | None:
        """The base that this one is put on."""
        return self.base_options.get("base")

    @property
    def input_options(self) -> dict[str, tuple[str, ...] | str]:
        """The options of its `turn_inputs`, to what they may be."""
        return {
            name: known for wanted in self.turn_inputs for name, known in wanted.options.items()
        }

    def fill(
        self, batch: TurnBatch, policy: Policy, tokens: Tokens, drawn: Collected
    ) -> tuple[TurnBatch, dict[str, float]]:
        """The batch with its `turn_inputs`, before any update, and counts for metrics.csv.

        The same batch, and nothing to count, for a method that has none.
        """
        found: dict[str, float] = {}
        given = self._options(filling=True)
        for wanted in self.turn_inputs:
            options = {name: given[name] for name in wanted.options if name in given}
            values, counts = wanted.fill(policy, tokens, drawn, batch, **options)
            batch, found = batch.replace(**{wanted.field: values}), found | counts
        return batch, found

    def _options(self, *, filling: bool) -> dict[str, Any]:
        """Of the base's options, those of its turn inputs, or all the others."""
        names = self.input_options
        return {k: value for k, value in self.base_options.items() if (k in names) == filling}

    @property
    def follows_the_policy(self) -> bool:
        """Whether the turn weight depends on the current policy: then each update computes it."""
        return "logprobs" in option_names(TURN_WEIGHTS[self.weight])

    def rehearse(self, **fields: Tensor) -> None:
        """Raise ValueError for what the first step would refuse, such as an option out of range.

        Plays base, weight and objective on two invented trajectories with what a loop provides:
        `fields` of `two_turns_and_one` that it has beyond the usual, such as a critic's `values`.
        """
        self.strategy  # noqa: B018 (it refuses options)
        known = {"grounded": torch.tensor([True, False]), "oracle_turn": torch.tensor([1, -1])}
        batch = two_turns_and_one()
        batch = batch.replace(**{"ref_logprobs": batch.old_logprobs} | known | fields)
        for name, value in self._options(filling=True).items():
            check_input(self.base, name, value, self.input_options[name])
        for wanted in self.turn_inputs:
            if wanted.replays and self.rollout != "independent":
                raise ValueError(
                    f"rollout: base {self.base!r} plays trajectories again, which only rollout "
                    f"'independent' allows, and not {self.rollout!r}"
                )
            axes, kind = LAYOUT[wanted.field]
            shape = (2, 2) if axes == "BT" else batch.token_ids.shape
            invented = torch.zeros(shape, dtype=TYPES[kind][0])
            batch = batch.replace(**{wanted.field: invented})
        given = {"generator": torch.Generator(), "logprobs": batch.old_logprobs}
        advantages = self.credit(batch, **given).advantages
        objective = OBJECTIVES[self.objective]
        totals = batch_totals(batch)
        objective(batch.old_logprobs, batch, advantages, **totals, **self.objective_options)

    @property
    def clip(self) -> dict[str, Any]:
        """Range and level of the objective's clip, as `signals.ratio_columns` takes them.

        An objective without a range, such as one of a user's own, clips nothing.

        >>> Method("grpo", {}, "none", {}, "turn_gspo", {"clip_high": 0.01}).clip
        {'clip_low': 0.003, 'clip_high': 0.01, 'level': 'turn'}
        """
        parameters = inspect.signature(OBJECTIVES[self.objective]).parameters.values()
        options = {p.name: p.default for p in parameters} | self.objective_options
        low, high = (options.get(name, math.inf) for name in ("clip_low", "clip_high"))
        cap = options.get("upper_cap")
        if cap is not None:  # of CISPO, in place of the range; no ratio is below 0
            low, high = 1.0, cap - 1
        level = RATIO_LEVELS.get(self.objective, "token")
        return {"clip_low": low, "clip_high": high, "level": level}

    def as_clipped(self, batch: TurnBatch, advantages: Tensor) -> Tensor:
        """[B, L] to [B, L]: the advantages whose signs decide what the objective clips.

        Those of `gspo` are one for each trajectory, the mean over its sampled tokens: a turn that a
        weight has silenced is clipped with the others.
        """
        if self.objective not in ONE_ADVANTAGE:
            return advantages
        places, lengths = batch.spans.places, batch.response_mask.sum(dim=1)
        means = segment_means(advantages.flatten()[places], lengths)
        return (
            torch.zeros_like(advantages).flatten().index_copy(0, places, means).view_as(advantages)
        )

    def remember(self, memory: dict[str, Tensor], batch: TurnBatch) -> None:
        """Update in place what the weight has to know of earlier steps, if anything.

        Rule `running` compares a turn's entropy with `reference`, its mean over earlier steps.
        """
        if self.weight_options.get("rule") == "running":
            size = {key: value for key, value in self.weight_options.items() if key == "k"}
            seen = memory.get("reference", NOTHING_SEEN)
            memory["reference"] = update_reference(seen, batch, **size)


def _known(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in option_names(function) if name in given}
