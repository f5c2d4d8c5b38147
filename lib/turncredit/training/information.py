"""Information gain: how much likelier each turn made the true answer to the policy (IGPO)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, contexts, row_sums
from turncredit.credit.steps import information_gains
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.training.collect import Collected


def measured_gains(
    policy: Policy,
    tokens: Tokens,
    drawn: Collected,
    batch: TurnBatch,
    *,
    gain: str = "probability",
) -> tuple[Tensor, dict[str, float]]:
    """[B, T]: `credit.steps.information_gains` under `policy`, and how many rows have none.

    The true answer is the first of the question's.  A trajectory that has no room for it before
    each of its turns, or whose question has none, is NaN throughout, which to a base is missing.
    """
    asked = [drawn.questions[trajectory.question_id] for trajectory in drawn.trajectories]
    answers = [next(iter(question.answers), "") for question in asked]
    probabilities = answer_probabilities(policy, tokens, drawn.trajectories, answers)
    unknown = ((batch.turn_lengths() > 0) & probabilities.isnan()).any(dim=1)
    gains = information_gains(batch, probabilities.nan_to_num(nan=1.0), gain=gain)
    gains = torch.where(unknown[:, None], torch.nan, gains).to(batch.rewards.dtype)
    return gains, {"missing_gains": int(unknown.sum())}


def answer_probabilities(
    policy: Policy, tokens: Tokens, trajectories: Sequence[Trajectory], answers: Sequence[str]
) -> Tensor:
    """[B, T] float64: the policy's probability of the true answer before each turn, per token.

    exp of the mean log-prob of the answer's tokens (IGPO, arXiv 2510.14967).  The message
    `<answer> answer </answer>` is put behind all ids before the turn, and the answer's own tokens
    in it are scored: the tags would tell how willing the policy is to answer, not what it knows.
    NaN where there is no such turn, no answer, or the message would exceed `max_tokens`.

    answers: one text for each trajectory, '' for none.  Equal contexts, such as the prompt of a
    group, are scored once, all of them in one call without a gradient.
    """
    messages = {answer: _message(tokens, answer) for answer in dict.fromkeys(answers)}
    places = torch.full((len(trajectories), max(len(t.turns) for t in trajectories)), -1)
    rows: dict[_Scored, int] = {}
    for number, (trajectory, answer) in enumerate(zip(trajectories, answers, strict=True)):
        message = messages[answer]
        room = policy.settings.max_tokens - len(message.ids)
        for turn, context in enumerate(contexts(trajectory)):
            if message.answer and len(context) <= room:
                row = _Scored(context + message.opening, message.answer)
                places[number, turn] = rows.setdefault(row, len(rows))
    means = _mean_logprobs(policy, list(rows))
    return torch.cat([means, torch.tensor([torch.nan])])[places].exp()  # -1: the NaN at the end


class _Scored(NamedTuple):
    """Tokens to score after a context."""

    context: tuple[int, ...]
    ids: tuple[int, ...]


class _Message(NamedTuple):
    """A message that hands in an answer."""

    ids: tuple[int, ...]
    opening: tuple[int, ...]
    """Of `ids`, those before the answer."""
    answer: tuple[int, ...]
    """The answer's own."""


def _message(tokens: Tokens, answer: str) -> _Message:
    """The message as the tokens spell it; its answer is what an empty message does not share."""
    frame = tokens.encode("<answer> </answer>")
    ids = tokens.encode(f"<answer> {answer} </answer>") if answer.strip() else frame
    start = _shared(frame, ids)
    closing = _shared(frame[::-1], ids[start:][::-1])
    return _Message(ids, ids[:start], ids[start : len(ids) - closing])


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@torch.no_grad()
def _mean_logprobs(policy: Policy, rows: Sequence[_Scored]) -> Tensor:
    """[N] float64: the mean log-prob of each row's ids after its context."""
    if not rows:
        return torch.empty(0, dtype=torch.float64)
    width = max(len(row.context) + len(row.ids) for row in rows)
    token_ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids = row.context + row.ids
        token_ids[number, : len(ids)] = torch.tensor(ids)
        mask[number, len(row.context) : len(ids)] = True
    logprobs, _ = policy.score(token_ids, mask)
    return (row_sums(logprobs, mask) / mask.sum(dim=1)).clamp(max=0.0)  # rounding, from_hidden
