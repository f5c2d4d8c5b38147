"""Lock-step rollouts: every trajectory consumes one token per step, forced or sampled.

All rows share one position, so the KV cache needs no padding and no position bookkeeping.  Prompts
and observations are fed as ids; sampled ids are never decoded and encoded again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turncredit.environments.actions import closing_tags
from turncredit.environments.oracle import oracle_turn
from turncredit.environments.protocol import Environment, Episode
from turncredit.policies.protocol import Decoder, Policy, Tokens
from turncredit.records import Trajectory, Turn
from turncredit.seeding import python_stream, torch_stream
from turncredit.worlds.base import Question

_COMPACT_BELOW = 0.75
"""Rows that are over leave the batch once fewer than this share is still alive."""


@dataclass
class _Turn:
    """A turn whose log-probs still lie in the engine's record."""

    sampled_ids: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    """Where in the record each sampled token's log-prob and entropy lie."""
    observation_ids: tuple[int, ...] = ()
    action: str = "unfinished"
    correct: bool | None = None


@dataclass
class _Row:
    """One trajectory under way."""

    index: int
    question: Question
    episode: Episode
    prompt_ids: tuple[int, ...]
    next_id: int = 0
    """The token this row consumes in the coming step."""
    forced: list[int] = field(default_factory=list)
    """Ids still to be fed, last one first; when none is left, the policy speaks."""
    turns: list[_Turn] = field(default_factory=lambda: [_Turn()])
    """The last one is being written."""
    stop_reason: str | None = None
    grounded: bool | None = None
    """Before the latest observation, which may not fit any more."""

    def speaks(self) -> bool:
        """Whether the policy has to give the token after the next; if not, that one is queued."""
        if self.forced:
            self.next_id = self.forced.pop()
            return False
        return self.stop_reason is None


@torch.inference_mode()
def roll_out(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    *,
    seed: int,
    step: int,
    max_turn_tokens: int,
    temperature: float = 1.0,
) -> list[Trajectory]:
    """One trajectory per entry of `questions` (repeat a question to form a group).

    A turn ends at any closing action tag or after `max_turn_tokens` sampled tokens; a trajectory at
    the environment's word, or when it fills the policy's `max_tokens` (stop reason `max_tokens`).
    Sampling draws from the full vocabulary at `temperature`; log-probs and entropies, in nats, are
    those of the distribution sampled from.  All randomness is a function of (seed, step, row).
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} must be above 0")
    limit = policy.settings.max_tokens
    rows = [
        _start(vocabulary, environment, question, seed, step, index, limit)
        for index, question in enumerate(questions)
    ]
    ended = vocabulary.message_end(closing_tags(environment.actions))
    # One line a row: more rows at the end leave the numbers of the first ones alone.
    stream = torch_stream(seed, "sampling", step)
    uniforms = torch.rand(len(rows), limit, generator=stream, dtype=_precision(len(vocabulary)))
    decoder = _read_prompts(policy, rows)
    record: list[Tensor] = []
    recorded = 0
    alive = rows
    for position in range(decoder.length, limit - 1):
        token_ids = torch.tensor([row.next_id for row in alive])
        speaking = [slot for slot, row in enumerate(alive) if row.speaks()]
        hidden = decoder.step(token_ids, speaking)
        if speaking:
            speakers = [alive[slot] for slot in speaking]
            logits = policy.logits(hidden) / temperature
            draws = uniforms[[row.index for row in speakers], position].to(logits.device)
            ids, statistics = sample(logits, draws)
            record.append(statistics)
            for mark, (row, token) in enumerate(zip(speakers, ids.tolist(), strict=True), recorded):
                _say(row, token, mark)
                said = row.turns[-1].sampled_ids
                if len(said) >= max_turn_tokens or ended(said):
                    _close_turn(row, vocabulary)
            recorded += len(speakers)
        alive = _still_alive(alive, decoder)
        if not alive:
            break
    logprobs, entropies = torch.cat(record, dim=1).tolist()
    return [_finish(row, logprobs, entropies) for row in rows]


SMALL_VOCABULARY = 16_384
"""Tokens up to which probabilities are summed up in float32, whose steps at 1 are 6e-8.  Of more,
the rare ones lie closer: then some would never be drawn, and the last one too often or never."""


def _precision(tokens: int) -> torch.dtype:
    return torch.float32 if tokens <= SMALL_VOCABULARY else torch.float64


def sample(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF samples from logits [n, V]: ids [n], and their log-probs and entropies [2, n]."""
    logprobs = torch.log_softmax(logits, dim=-1)
    probabilities = logprobs.exp()
    precision = torch.promote_types(uniforms.dtype, _precision(logits.shape[1]))
    cumulative = probabilities.cumsum(-1, dtype=precision)
    thresholds = (uniforms * cumulative[:, -1]).unsqueeze(1)
    ids = torch.searchsorted(cumulative, thresholds, right=True).clamp_(max=logits.shape[1] - 1)
    chosen = logprobs.gather(1, ids).squeeze(1)
    entropies = -(probabilities * logprobs).sum(-1)
    return ids.squeeze(1), torch.stack([chosen, entropies])


def _start(
    vocabulary: Tokens,
    environment: Environment,
    question: Question,
    seed: int,
    step: int,
    index: int,
    max_tokens: int,
) -> _Row:
    episode = environment.reset(question, python_stream(seed, "environment", step, index))
    prompt_ids = vocabulary.encode_prompt(episode.prompt)
    if len(prompt_ids) >= max_tokens:
        raise ValueError(
            f"max_tokens = {max_tokens} leaves no room after the {len(prompt_ids)} tokens of "
            f"the prompt of question {question.id}"
        )
    return _Row(index, question, episode, prompt_ids)


def _read_prompts(policy: Policy, rows: Sequence[_Row]) -> Decoder:
    """A decoder of all rows that has read their prompts as far as all of them go.

    The rows of a group have one prompt, which is read once.
    """
    prompts = {prompt: slot for slot, prompt in enumerate({row.prompt_ids: 0 for row in rows})}
    shared = min(map(len, prompts)) - 1  # the policy may have to speak after the last token
    decoder = policy.decoder(len(prompts))
    for token_ids in torch.tensor([prompt[:shared] for prompt in prompts]).unbind(1):
        decoder.step(token_ids, [])
    decoder.keep(torch.tensor([prompts[row.prompt_ids] for row in rows]))
    for row in rows:
        row.next_id, *rest = row.prompt_ids[shared:]
        row.forced = rest[::-1]
    return decoder


def _say(row: _Row, token: int, mark: int) -> None:
    """Add a sampled token, whose log-prob and entropy lie at `mark` of the record."""
    row.turns[-1].sampled_ids.append(token)
    row.turns[-1].marks.append(mark)
    row.next_id = token


def _still_alive(alive: list[_Row], decoder: Decoder) -> list[_Row]:
    """The rows to go on with: those that are over leave once they are many, or all."""
    slots = [slot for slot, row in enumerate(alive) if row.stop_reason is None]
    if slots and len(slots) >= _COMPACT_BELOW * len(alive):
        return alive
    decoder.keep(torch.tensor(slots, dtype=torch.int64))
    return [alive[slot] for slot in slots]


def _close_turn(row: _Row, vocabulary: Tokens) -> None:
    """Hand the finished message to the environment and queue what it returns."""
    turn = row.turns[-1]
    row.grounded = row.episode.grounded
    result = row.episode.step(vocabulary.decode(turn.sampled_ids))
    turn.action, turn.correct, row.stop_reason = result.action, result.correct, result.stop_reason
    if result.stop_reason is None:
        turn.observation_ids = vocabulary.encode(result.observation)
        row.forced = list(reversed(turn.observation_ids))
        row.turns.append(_Turn())


def _finish(row: _Row, logprobs: list[float], entropies: list[float]) -> Trajectory:
    """The record of a row; an observation that did not fit any more is dropped."""
    turns = [turn for turn in row.turns if turn.sampled_ids]
    cut = row.stop_reason is None and turns[-1].observation_ids != ()
    if cut:
        turns[-1].observation_ids = ()
    return Trajectory(
        question_id=row.question.id,
        prompt_ids=row.prompt_ids,
        turns=tuple(_record(turn, logprobs, entropies) for turn in turns),
        reward=row.episode.reward,
        success=row.episode.success,
        stop_reason=row.stop_reason or "max_tokens",
        grounded=row.grounded if cut else row.episode.grounded,
        oracle_turn=oracle_turn(row.episode, len(turns)),
    )


def _record(turn: _Turn, logprobs: list[float], entropies: list[float]) -> Turn:
    return Turn(
        sampled_ids=tuple(turn.sampled_ids),
        sampled_logprobs=tuple(logprobs[mark] for mark in turn.marks),
        sampled_entropies=tuple(entropies[mark] for mark in turn.marks),
        observation_ids=turn.observation_ids,
        action=turn.action,
        correct=turn.correct,
    )
