"""Episodes as token ids, token in, token out: the shape that verl's agent loops produce.

Sampled ids are kept as the engine gave them and never encoded again; prompt and
observations are encoded once each and masked.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Protocol
from uuid import uuid4

from turncredit.environments.protocol import Episode

_ROUNDING = 1e-3
"""By how much a log-prob in half precision may be above 0."""

Encode = Callable[[str], Sequence[int]]


class Engine(Protocol):
    """What verl hands to an agent loop, or anything like it."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        """One policy message: `.token_ids`, and `.log_probs` or None."""


@dataclass
class TokenEpisode:
    """What one episode leaves; all lists but the prompt run over the response."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    """1 where the policy sampled the token, 0 on observations."""
    response_logprobs: list[float] | None = field(default_factory=list)
    """Of the sampled tokens, 0.0 on observations; None if the engine gave none."""
    turn_spans: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of each turn's sampled tokens.  Masks alone cannot tell two turns apart when
    the observation between them is empty, and later edits of the mask may split one."""
    actions: list[str] = field(default_factory=list)
    """One a turn; `unfinished` for a message that was cut before the environment saw it."""
    stop_reason: str = ""
    """The environment's, or max_tokens, engine_error, engine_timeout, engine_junk."""
    error: str = ""
    """What the engine did, where it is to blame."""
    reward: float | None = None
    """None = missing: no usable gold answer, or the engine failed."""
    success: bool = False
    grounded: bool | None = None

    def extra_fields(self) -> dict[str, Any]:
        """What a batch needs beside ids, mask, log-probs and reward."""
        return {
            "turn_spans": [list(span) for span in self.turn_spans],
            "actions": list(self.actions),
            "stop_reason": self.stop_reason,
            "error": self.error,
            "success": self.success,
            "grounded": self.grounded,
        }


async def play_tokens(
    episode: Episode,
    engine: Engine,
    *,
    encode: Encode,
    decode: Callable[[Sequence[int]], str],
    sampling_params: dict[str, Any],
    response_length: int,
    prompt_ids: Sequence[int] | None = None,
    encode_observation: Encode | None = None,
    deadline: float | None = None,
    request_id: str | None = None,
) -> TokenEpisode:
    """Play an episode to its end.

    One call of the engine is one policy message, so its stop texts must be the closing tags, kept
    in the output.  response_length: tokens of all turns and observations together; a message that
    exceeds it is cut and not acted on, an observation that does not fit is not appended, and both
    end the episode (max_tokens).  prompt_ids: default `encode(episode.prompt)`; give them, and
    `encode_observation`, where a chat template stands around the texts.  deadline: seconds for one
    message.  request_id: the same for all calls, so that an engine can keep its prefix cache.

    An engine that raises, is too slow or returns what cannot be a message is a named stop reason
    and a missing reward; cancellation goes through.  Raises ValueError for response_length < 1.
    """
    if response_length < 1:
        raise ValueError(f"response_length = {response_length} must be at least 1")
    record = TokenEpisode(list(encode(episode.prompt) if prompt_ids is None else prompt_ids))
    observe = encode_observation or encode
    request_id = request_id or uuid4().hex
    while not record.stop_reason:
        said = await _message(record, engine, request_id, sampling_params, deadline)
        text = None if said is None else _text(record, said[0], decode)
        if text is None:
            return record
        if _append_turn(record, *said, response_length):
            _act(record, episode, text, observe, response_length)
    record.reward, record.success = episode.reward, episode.success
    return record


async def _message(
    record: TokenEpisode,
    engine: Engine,
    request_id: str,
    sampling_params: dict[str, Any],
    deadline: float | None,
) -> tuple[list[int], list[float] | None] | None:
    """Ids and log-probs of one message; None, with the stop reason set, if the engine failed."""
    try:
        call = engine.generate(
            request_id=request_id,
            prompt_ids=record.prompt_ids + record.response_ids,
            sampling_params=dict(sampling_params),
        )
        output = await asyncio.wait_for(call, deadline)
    except asyncio.TimeoutError as error:
        return _fail(record, "engine_timeout", str(error) or f"deadline of {deadline} s")
    except Exception as error:
        return _fail(record, "engine_error", f"{type(error).__name__}: {error}")
    try:
        return _checked(output)
    except (AttributeError, TypeError, ValueError) as error:
        return _fail(record, "engine_junk", f"{type(error).__name__}: {error}")


def _checked(output: Any) -> tuple[list[int], list[float] | None]:
    """The message's ids and log-probs; an error when they cannot be such."""
    ids = [index(token) for token in output.token_ids]  # refuses fractions, which int() would cut
    if not ids or min(ids) < 0:
        raise ValueError(f"token ids {ids!r}")
    if output.log_probs is None:
        return ids, None
    logprobs = [float(value) for value in output.log_probs]
    if len(logprobs) != len(ids):
        raise ValueError(f"{len(logprobs)} log-probs for {len(ids)} tokens")
    if not all(math.isfinite(value) and value <= _ROUNDING for value in logprobs):
        raise ValueError("a log-prob is not finite or above 0")
    return ids, logprobs


def _text(
    record: TokenEpisode, ids: list[int], decode: Callable[[Sequence[int]], str]
) -> str | None:
    """The message as the environment reads it; None if the tokeniser does not know the ids."""
    try:
        return decode(ids)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        return _fail(record, "engine_junk", f"token ids {ids!r}: {error!r}")


def _fail(record: TokenEpisode, reason: str, error: str) -> None:
    record.stop_reason, record.error = reason, error


def _append_turn(
    record: TokenEpisode, ids: list[int], logprobs: list[float] | None, limit: int
) -> bool:
    """Append a message as far as it fits; whether all of it did."""
    start = len(record.response_ids)
    kept = ids[: limit - start]
    record.response_ids += kept
    record.response_mask += [1] * len(kept)
    if logprobs is None:
        record.response_logprobs = None
    elif record.response_logprobs is not None:
        record.response_logprobs += logprobs[: len(kept)]
    record.turn_spans.append((start, len(record.response_ids)))
    if len(kept) < len(ids):
        record.actions.append("unfinished")
        record.stop_reason = "max_tokens"
    return len(kept) == len(ids)


def _act(record: TokenEpisode, episode: Episode, message: str, observe: Encode, limit: int) -> None:
    """Hand the message to the environment and append what it returns, if it fits."""
    grounded = episode.grounded
    step = episode.step(message)
    record.actions.append(step.action)
    record.stop_reason = step.stop_reason or ""
    observed = [] if step.stop_reason else list(observe(step.observation))
    # a full response leaves no token for the next message
    if not step.stop_reason and len(record.response_ids) + len(observed) >= limit:
        record.stop_reason = "max_tokens"
        record.grounded = grounded  # the policy never reads it
        return
    record.response_ids += observed
    record.response_mask += [0] * len(observed)
    if record.response_logprobs is not None:
        record.response_logprobs += [0.0] * len(observed)
    record.grounded = episode.grounded
