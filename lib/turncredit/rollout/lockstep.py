"""Lock-step rollouts: every trajectory consumes one token per step, forced or sampled.

All rows share one position, so the KV cache needs no padding and no position bookkeeping.  Prompts
and observations are fed as ids; sampled ids are never decoded and encoded again.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from turncredit.environments.actions import closing_tags
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Decoder, Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout.rows import (
    REWOUND,
    Close,
    Row,
    announce_turn,
    begin,
    close_turn,
    trajectory_of,
)
from turncredit.seeding import torch_stream
from turncredit.worlds.base import Question

_COMPACT_BELOW = 0.75
"""Rows that are over leave the batch once fewer than this share is still alive."""


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
    close: Close = close_turn,
) -> list[Trajectory]:
    """One trajectory per entry of `questions` (repeat a question to form a group).

    A turn ends at any closing action tag or after `max_turn_tokens` sampled tokens; a trajectory at
    the environment's word, or when it fills the policy's `max_tokens` (stop reason `max_tokens`).
    Sampling draws from the full vocabulary at `temperature`; log-probs and entropies, in nats, are
    those of the distribution sampled from.  All randomness is a function of (seed, step, row).

    close: what is done with a message that is over.  Rows that it has `REWOUND` leave the batch and
    are read again from their new context, all together, once the others are done.
    """
    limit = policy.settings.max_tokens
    rows = begin(vocabulary, environment, questions, seed, step, limit)
    over = _closing(vocabulary, environment, close, max_turn_tokens)
    record: list[Tensor] = []
    playing, rewinds = rows, 0
    while playing:
        # One line a row: more rows at the end leave the numbers of the first ones alone.
        stream = torch_stream(seed, "sampling", step, *([rewinds] if rewinds else []))
        uniforms = draw_uniforms(len(rows), limit, len(vocabulary), stream)
        _play(policy, playing, uniforms, temperature, over, record)
        playing, rewinds = _rewound(playing, limit), rewinds + 1
    logprobs, entropies = _lists(record)
    return [trajectory_of(row, logprobs, entropies) for row in rows]


def draw_uniforms(rows: int, positions: int, tokens: int, stream: torch.Generator) -> Tensor:
    """[rows, positions]: one number in [0, 1) for each token of each row, of a policy's `tokens`.

    In float32 or float64, as `sample` sums up so many probabilities.
    """
    return torch.rand(rows, positions, generator=stream, dtype=_precision(tokens))


@torch.inference_mode()
def play(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    rows: Sequence[Row],
    uniforms: Tensor,
    *,
    max_turn_tokens: int,
    temperature: float = 1.0,
) -> tuple[list[float], list[float]]:
    """Play all rows to their ends; log-probs and entropies of what was said, by the rows' marks.

    Each row has read its `prompt_ids`, at least one token fewer than the policy's `max_tokens`,
    and its episode waits for a message.  The token of row r at position p of its trajectory is
    drawn by `uniforms[row.index, p - 1]`.
    """
    record: list[Tensor] = []
    over = _closing(vocabulary, environment, close_turn, max_turn_tokens)
    _play(policy, rows, uniforms, temperature, over, record)
    return _lists(record)


def _closing(
    vocabulary: Tokens, environment: Environment, close: Close, max_turn_tokens: int
) -> Callable[[Sequence[Row]], None]:
    """What closes the turns that rows are writing, where they are over.

    All are announced first, so that an environment of several processes acts on them side by side.
    """
    ended = vocabulary.message_end(closing_tags(environment.actions))

    def is_over(row: Row) -> bool:
        said = row.turns[-1].sampled_ids
        return len(said) >= max_turn_tokens or ended(said)

    def over(rows: Sequence[Row]) -> None:
        finished = [row for row in rows if is_over(row)]
        for row in finished:
            announce_turn(row, vocabulary)
        for row in finished:
            close(row, vocabulary)

    return over


def _play(
    policy: Policy,
    rows: Sequence[Row],
    uniforms: Tensor,
    temperature: float,
    over: Callable[[Sequence[Row]], None],
    record: list[Tensor],
) -> None:
    """Let rows go on, each from its context, until they stop or fill the policy's `max_tokens`.

    `over(rows)` is called with those that have sampled a token, and closes the turn of each for
    which it was the last.  Log-probs and entropies are added to `record`, [2, n] for each position.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} must be above 0")
    decoder = _read_prompts(policy, rows)
    recorded = sum(part.shape[1] for part in record)
    alive = list(rows)
    for position in range(decoder.length, policy.settings.max_tokens - 1):
        token_ids = torch.tensor([row.next_id for row in alive])
        speaking = [slot for slot, row in enumerate(alive) if row.speaks()]
        hidden = decoder.step(token_ids, speaking)
        if speaking:
            speakers = [alive[slot] for slot in speaking]
            logits = policy.logits(hidden) / temperature
            draws = uniforms[[row.index for row in speakers], position].to(logits.device)
            ids, statistics = sample(logits, draws)
            record.append(statistics)
            _say(speakers, ids.tolist(), recorded, over)
            recorded += len(speakers)
        alive = _still_alive(alive, decoder)
        if not alive:
            break


def _lists(record: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Log-probs and entropies of a record, one after the other."""
    logprobs, entropies = torch.cat(list(record), dim=1).tolist()
    return logprobs, entropies


def _rewound(rows: Sequence[Row], limit: int) -> list[Row]:
    """Those of the rows to read again; one whose context leaves no room for a token is over."""
    again = [row for row in rows if row.stop_reason == REWOUND]
    for row in again:
        row.stop_reason = None
    return [row for row in again if len(row.context_ids()) < limit]


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


def _read_prompts(policy: Policy, rows: Sequence[Row]) -> Decoder:
    """A decoder of all rows that has read their contexts as far as all of them go.

    The rows of a group have one prompt, which is read once.
    """
    contexts = [row.context_ids() for row in rows]
    prompts = {prompt: slot for slot, prompt in enumerate(dict.fromkeys(contexts))}
    shared = min(map(len, prompts)) - 1  # the policy may have to speak after the last token
    decoder = policy.decoder(len(prompts))
    for token_ids in torch.tensor([prompt[:shared] for prompt in prompts]).unbind(1):
        decoder.step(token_ids, [])
    decoder.keep(torch.tensor([prompts[context] for context in contexts]))
    for row, context in zip(rows, contexts, strict=True):
        row.next_id, *rest = context[shared:]
        row.forced = rest[::-1]
    return decoder


def _say(
    rows: Sequence[Row],
    token_ids: Sequence[int],
    mark: int,
    over: Callable[[Sequence[Row]], None],
) -> None:
    """Add a sampled token to each row, and close the turns that are `over`.

    Their log-probs and entropies lie in the record one after the other, the first at `mark`.
    """
    for place, (row, token) in enumerate(zip(rows, token_ids, strict=True), mark):
        turn = row.turns[-1]
        turn.sampled_ids.append(token)
        turn.marks.append(place)
        row.next_id = token
    over(rows)


def _still_alive(alive: list[Row], decoder: Decoder) -> list[Row]:
    """The rows to go on with: those that are over leave once they are many, or all."""
    slots = [slot for slot, row in enumerate(alive) if row.stop_reason is None]
    if slots and len(slots) >= _COMPACT_BELOW * len(alive):
        return alive
    decoder.keep(torch.tensor(slots, dtype=torch.int64))
    return [alive[slot] for slot in slots]
