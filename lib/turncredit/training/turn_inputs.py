"""Which fields of a batch the loop makes for a base, and how."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turncredit.batching import STATES, TurnBatch, anchor_ids, contexts
from turncredit.credit.steps import GAINS
from turncredit.option_ranges import check_choice, check_range
from turncredit.policies.protocol import Policy, Tokens
from turncredit.training.audited import audited_advantages, continued_values
from turncredit.training.collect import Collected
from turncredit.training.information import measured_gains
from turncredit.training.teacher import SKILLS, privileged_logprobs


class TurnInput(NamedTuple):
    """A field of `TurnBatch` that a base reads and no rollout brings along."""

    field: str
    fill: Callable[..., tuple[Tensor, dict[str, float]]]
    """(policy, tokens, drawn, batch, **options) -> the field, and counts for metrics.csv."""
    options: Mapping[str, tuple[str, ...] | str]
    """Those of `fill`, to what they may be, choices or a kind of number (`option_ranges.RANGES`); a
    params file gives them among those of the base."""
    replays: bool = False
    """Whether it plays trajectories again, which must have been rolled out independently then."""


def check_input(base: str, name: str, value: Any, known: tuple[str, ...] | str) -> None:
    """ValueError naming base, option and value for one that is not what `known` says."""
    if isinstance(known, str):
        check_range(base, known, **{name: value})
    else:
        check_choice(base, name, value, known)


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


def shared_turns(
    policy: Policy, tokens: Tokens, drawn: Collected, batch: TurnBatch
) -> tuple[Tensor, dict[str, float]]:
    """[B, T] int64: equal where turns of a group are equal with all before them; -1 for no turn.

    Such turns were sampled once and left by a branch, or came out equal by chance.  Counted is the
    share of turns that some other trajectory of the group has too.
    """
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    ids = torch.full((len(drawn.trajectories), batch.num_turns), -1)
    for row, (group, trajectory) in enumerate(
        zip(drawn.group_ids, drawn.trajectories, strict=True)
    ):
        for turn, before in enumerate(contexts(trajectory)):
            key = (group, before + trajectory.turns[turn].sampled_ids)
            ids[row, turn] = numbers.setdefault(key, len(numbers))
    present = ids[ids >= 0]
    again = present.bincount()[present] > 1
    return ids, {"shared_turns": again.double().mean().item()}


STATE_INPUT = TurnInput("anchor_ids", visited_states, {"state": STATES})

TURN_INPUTS = {
    "adrs": (
        TurnInput("teacher_logprobs", privileged_logprobs, {"skill": SKILLS}),
        STATE_INPUT,
    ),
    "arpo": (TurnInput("anchor_ids", shared_turns, {}),),
    "gigpo": (STATE_INPUT,),
    "igpo": (TurnInput("turn_rewards", measured_gains, {"gain": GAINS}),),
    "true_advantage": (
        TurnInput("turn_rewards", audited_advantages, {"continuations": "several"}, replays=True),
    ),
    "vineppo": (TurnInput("values", continued_values, {"continuations": "count"}, replays=True),),
}
"""By base; all others do with what a rollout brings."""
