"""What trajectories did: actions, outcomes, turns, repetitions, and tokens per second."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turncredit.batching import TurnBatch

if TYPE_CHECKING:  # signals must be importable with torch alone
    from turncredit.records import Trajectory

TURN_ACTIONS = ("search", "read_chunk", "external_verify", "answer", "invalid")
"""Actions with columns of their own; a turn cut off before its action is none of them."""


def outcome_shares(trajectories: Sequence["Trajectory"]) -> dict[str, float]:
    """Behaviour of a set of trajectories, as means over trajectories but for the last.

    turns; first-turn actions (`search_first`, `guess_first`: verifying or answering at turn 0,
    `answer_first`); `grounded`: the evidence was read; `answered`: ended by an answer;
    `malformed`: has a malformed message; `truncated`: ended by the cap on turns or tokens;
    `invalid_actions`: malformed messages / all turns, NaN without any.
    """
    first = [t.turns[0].action if t.turns else "invalid" for t in trajectories]
    counts = [len(t.turns) for t in trajectories]
    invalid = [sum([u.action == "invalid" for u in t.turns]) for t in trajectories]
    reasons = [t.stop_reason for t in trajectories]
    return {
        "turns": fmean(counts),
        "search_first": fmean([action == "search" for action in first]),
        "guess_first": fmean([action in ("external_verify", "answer") for action in first]),
        "answer_first": fmean([action == "answer" for action in first]),
        "grounded": fmean([math.nan if t.grounded is None else t.grounded for t in trajectories]),
        "answered": fmean([reason == "answer" for reason in reasons]),
        "malformed": fmean([count > 0 for count in invalid]),
        "truncated": fmean([reason in ("max_turns", "max_tokens") for reason in reasons]),
        "invalid_actions": sum(invalid) / sum(counts) if sum(counts) else math.nan,
    }


def group_diversity(trajectories: Sequence["Trajectory"]) -> dict[str, float]:
    """How differently the trajectories of one question go about it; NaN without trajectories.

    `distinct_actions` different sequences of actions / trajectories of the question, and
    `distinct_texts` the same of everything that was written; means over questions.  1 / group size
    if all do the same, 1 if no two do.
    """
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.question_id, []).append(trajectory)
    actions = [[tuple(turn.action for turn in t.turns) for t in group] for group in groups.values()]
    texts = [[tuple(turn.sampled_ids for turn in t.turns) for t in g] for g in groups.values()]
    return {
        "distinct_actions": _mean([len(set(done)) / len(done) for done in actions]),
        "distinct_texts": _mean([len(set(written)) / len(written) for written in texts]),
    }


def action_columns(trajectories: Sequence["Trajectory"], num_turns: int) -> dict[str, list[float]]:
    """By turn index, `num_turns` values each: what was done there, and what it came to.

    `trajectories` that have the turn; how many of them did each of the `TURN_ACTIONS`;
    `answered`, submitted answers and verified guesses, and `answered_correct`, the right ones of
    them; `reward_<action>`, E[reward | action at this turn]: the mean known reward of the
    trajectories that did the action there, NaN without any.  It describes those that chose the
    action, and is not what the action adds.
    """
    having, answered, correct = ([0] * num_turns for _ in range(3))
    done = {name: [0] * num_turns for name in TURN_ACTIONS}
    rewards: dict[str, list[list[float]]] = {name: [[] for _ in having] for name in TURN_ACTIONS}
    for trajectory in trajectories:
        for index, turn in enumerate(trajectory.turns[:num_turns]):
            having[index] += 1
            if turn.action in done:
                done[turn.action][index] += 1
                if trajectory.reward is not None:
                    rewards[turn.action][index].append(trajectory.reward)
            if turn.correct is not None:
                answered[index] += 1
                correct[index] += turn.correct
    return {
        "trajectories": having,
        **done,
        "answered": answered,
        "answered_correct": correct,
        **{f"reward_{name}": [_mean(known) for known in rewards[name]] for name in rewards},
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def turn_histogram(batch: TurnBatch) -> Tensor:
    """[T + 1] int64: how many trajectories have 0, 1, ... T turns with a sampled token.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_histogram(two_turns_and_one())
    tensor([0, 1, 1])
    """
    counts = (batch.turn_lengths() > 0).sum(dim=1)
    return torch.bincount(counts, minlength=batch.num_turns + 1)


def repeated_share(batch: TurnBatch, *, n: int = 4) -> float:
    """Share of a trajectory's runs of n sampled tokens that it has sampled before.

    All runs of n tokens that follow each other among the sampled ones of a trajectory, across
    turns and observations; one is repeated when an equal one began earlier in the trajectory
    (seq-rep-n of Welleck et al. 2019, "Neural text generation with unlikelihood training", pooled
    over the batch).  With n = 1 the share of sampled tokens that the trajectory has used before.
    NaN when no trajectory has n tokens.  Raises ValueError for n below 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> batch = batch.replace(token_ids=torch.tensor([[5, 6, 7, 5], [5, 0, 0, 0]]))
    >>> repeated_share(batch, n=1), repeated_share(batch, n=2)
    (0.25, 0.0)
    """
    if n < 1:
        raise ValueError(f"repeated_share: n is {n}; need at least 1")
    ids = batch.token_ids.flatten()[batch.spans.places]
    lengths = batch.response_mask.sum(dim=1)
    rows = torch.arange(len(lengths), device=ids.device).repeat_interleave(lengths)
    if len(ids) < n:
        return math.nan
    runs, limit, base = rows, len(rows), int(ids.max()) + 1
    for start in range(n):  # one number per trajectory and ids up to here
        if limit * base >= 2**63:
            runs, limit = runs.unique(return_inverse=True)[1], len(ids)
        runs, limit = runs[: len(ids) - start] * base + ids[start:], limit * base
    whole = rows[: len(runs)] == rows[n - 1 :]  # a run must not reach into the next row
    count = int(whole.sum())
    return (count - runs[whole].unique().numel()) / count if count else math.nan


def token_rates(tokens: float, seconds: Mapping[str, float]) -> dict[str, float]:
    """Tokens per second of a step from its sampled tokens and the seconds of its named parts.

    `rollout_tokens_per_second`: over the part "rollout", the speed of sampling;
    `tokens_per_second`: over all parts.  NaN where no time has passed.

    >>> token_rates(300, {"rollout": 0.5, "update": 1.0})
    {'rollout_tokens_per_second': 600.0, 'tokens_per_second': 200.0}
    """
    spans = {
        "rollout_tokens_per_second": seconds["rollout"],
        "tokens_per_second": sum(seconds.values()),
    }
    return {name: tokens / span if span > 0 else math.nan for name, span in spans.items()}
