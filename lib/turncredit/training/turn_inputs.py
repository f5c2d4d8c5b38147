"""Which fields of a batch the loop makes for a base, and how."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from turncredit.batching import STATES, TurnBatch, anchor_ids
from turncredit.credit.steps import GAINS
from turncredit.policies.protocol import Policy, Tokens
from turncredit.training.collect import Collected
from turncredit.training.information import measured_gains
from turncredit.training.teacher import SKILLS, privileged_logprobs


class TurnInput(NamedTuple):
    """A field of `TurnBatch` that a base reads and no rollout brings along."""

    field: str
    fill: Callable[..., tuple[Tensor, dict[str, float]]]
    """(policy, tokens, drawn, batch, **options) -> the field, and counts for metrics.csv."""
    options: Mapping[str, tuple[str, ...]]
    """Those of `fill`, to what they may be; a params file gives them among those of the base."""


def visited_states(
    policy: Policy,
    tokens: Tokens,
    drawn: Collected,
    batch: TurnBatch,
    *,
    state: str = "observation",
) -> tuple[Tensor, dict[str, float]]:
    """[B, T]: `batching.anchor_ids`, and the share of turns whose state their group met again."""
    anchors = anchor_ids(drawn.trajectories, group_ids=drawn.group_ids, state=state)
    ids = anchors[anchors >= 0]
    again = ids.bincount()[ids] > 1
    return anchors, {"repeated_states": again.double().mean().item()}


STATE_INPUT = TurnInput("anchor_ids", visited_states, {"state": STATES})

TURN_INPUTS = {
    "adrs": (
        TurnInput("teacher_logprobs", privileged_logprobs, {"skill": SKILLS}),
        STATE_INPUT,
    ),
    "gigpo": (STATE_INPUT,),
    "igpo": (TurnInput("turn_rewards", measured_gains, {"gain": GAINS}),),
}
"""By base; all others do with what a rollout brings."""
