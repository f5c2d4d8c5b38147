"""A trajectory as verl carries it, ids and mask and a note of our own, and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turncredit.records import Trajectory, Turn

NOTE = "turncredit"
"""The key of our note among verl's `extra_fields`."""

FAILURES = "tool_failures"
"""In the note, how often what kept tools from working, by cause; in an evaluation, their sum."""


class Response(NamedTuple):
    """What follows the prompt: sampled tokens and observations in order."""

    ids: list[int]
    mask: list[int]
    """1 where the policy sampled the token."""
    logprobs: list[float]
    """By the sampler; 0 at observations, as in verl."""
    note: dict[str, Any]
    """Plain values that `trajectory_of` reads."""


def response_of(trajectory: Trajectory) -> Response:
    """A trajectory's response and note; `turn_spans` are [start, end) in the response."""
    ids, mask, logprobs, spans = [], [], [], []
    for turn in trajectory.turns:
        spans.append([len(ids), len(ids) + len(turn.sampled_ids)])
        ids += [*turn.sampled_ids, *turn.observation_ids]
        mask += [1] * len(turn.sampled_ids) + [0] * len(turn.observation_ids)
        logprobs += [*turn.sampled_logprobs, *([0.0] * len(turn.observation_ids))]
    note = {
        "question_id": trajectory.question_id,
        "turn_spans": spans,
        "actions": [turn.action for turn in trajectory.turns],
        "correct": [turn.correct for turn in trajectory.turns],
        "stop_reason": trajectory.stop_reason,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "grounded": trajectory.grounded,
        "oracle_turn": trajectory.oracle_turn,
        "turn_labels": trajectory.turn_labels and list(trajectory.turn_labels),
    }
    return Response(ids, mask, logprobs, note)


def trajectory_of(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    mask: Sequence[int],
    logprobs: Sequence[float],
    note: Mapping[str, Any] | None,
    score: float,
) -> Trajectory:
    """The trajectory of a row: by its note, or without one by mask and score.

    Our trainer refuses other agent loops; rows without a note come from batches made by hand.

    Without a note a turn is a run of sampled tokens, an action is unknown, and a score above 0 is a
    success.  Raises ValueError when note and mask disagree: the row was cut or masked anew.
    """
    runs = spans_of(mask)
    note = {"turn_spans": runs, "reward": score, "success": score > 0} | dict(note or {})
    spans = [list(span) for span in note["turn_spans"]]
    if spans != runs:
        raise ValueError(f"turn_spans {spans} are not the sampled runs {runs} of the mask")
    starts = [start for start, _ in spans[1:]] + [len(response_ids)]
    unknown = [None] * len(spans)
    labels = note.get("turn_labels")
    actions, correct = note.get("actions", ["unknown"] * len(spans)), note.get("correct", unknown)
    turns = [
        Turn(
            sampled_ids=tuple(response_ids[start:end]),
            sampled_logprobs=tuple(logprobs[start:end]),
            sampled_entropies=(math.nan,) * (end - start),
            observation_ids=tuple(response_ids[end:following]),
            action=actions[number],
            correct=correct[number],
        )
        for number, ((start, end), following) in enumerate(zip(spans, starts, strict=True))
    ]
    return Trajectory(
        question_id=str(note.get("question_id", "")),
        prompt_ids=tuple(prompt_ids) + tuple(response_ids[: spans[0][0]] if spans else ()),
        turns=tuple(turns),
        reward=note["reward"],
        success=bool(note["success"]),
        stop_reason=note.get("stop_reason", "unknown"),
        grounded=note.get("grounded"),
        oracle_turn=note.get("oracle_turn"),
        turn_labels=None if labels is None else tuple(labels),
    )


def spans_of(mask: Sequence[int]) -> list[list[int]]:
    """The runs of 1 in a mask as [start, end).

    >>> spans_of([1, 1, 0, 1])
    [[0, 2], [3, 4]]
    """
    padded = [0, *(int(bool(value)) for value in mask), 0]
    starts = [i for i in range(len(mask) + 1) if padded[i] < padded[i + 1]]
    ends = [i for i in range(len(mask) + 1) if padded[i] > padded[i + 1]]
    return [list(span) for span in zip(starts, ends, strict=True)]
