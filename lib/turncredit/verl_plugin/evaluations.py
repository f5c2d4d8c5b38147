"""What verl's validation keeps of an episode, and the row of eval.csv that episodes come to.

verl averages numbers only, and keeps no trajectory: an episode hands over its part of each share.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from turncredit.records import Trajectory
from turncredit.rollout.rows import LOST
from turncredit.signals import outcome_shares

Outcome = dict[str, float | None]


def outcome_of(trajectory: Trajectory) -> Outcome:
    """Numbers of one episode; None where nobody knows, which verl leaves out of its means.

    `success` is 0 also where the reward is missing (`missing_rewards` 1), for verl's own metrics.
    The shares of an episode that an error ended (`lost` 1) are None.
    """
    lost, turns = trajectory.stop_reason == LOST, trajectory.turns
    shares = outcome_shares([trajectory])
    known = {} if lost else {name: value for name, value in shares.items() if value == value}
    return {
        "success": float(trajectory.success),
        "missing_rewards": float(trajectory.reward is None),
        "lost": float(lost),
        "invalid_turns": None if lost else float(sum(turn.action == "invalid" for turn in turns)),
        **{name: float(known[name]) if name in known else None for name in shares},
    }


def evaluation_row(outcomes: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """The columns of eval.csv over all questions, of `outcome_of` by name, an episode a question.

    The same numbers as `turncredit.evaluation.evaluation_rows` has for the trajectories themselves.
    """
    missing, lost = outcomes["missing_rewards"], outcomes["lost"]
    right = [value for value, gone in zip(outcomes["success"], missing, strict=True) if not gone]
    exact, lengths = _mean(right), _known(outcomes["turns"])
    shares = {name: _mean(_known(outcomes[name])) for name in _SHARES}
    shares["invalid_actions"] = _ratio(sum(_known(outcomes["invalid_turns"])), sum(lengths))
    if len(_known(outcomes["grounded"])) < len(lengths):  # unknown of one is unknown of all
        shares["grounded"] = math.nan
    return {
        "questions": len(missing),
        "missing_rewards": int(sum(missing)),
        "lost": int(sum(lost)),
        "exact_match": exact,
        "standard_error": math.sqrt(exact * (1 - exact) / max(len(right), 1)),
        **shares,
        "turns_sd": stdev(lengths) if len(lengths) > 1 else math.nan,
    }


_SHARES = (
    "turns", "search_first", "guess_first", "answer_first", "grounded", "answered", "malformed",
    "truncated", "invalid_actions",
)  # fmt: skip


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
