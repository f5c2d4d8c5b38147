"""Responses of a model behind an OpenAI-style server, such as vLLM's, by its log-probs.

The server must speak `/completions` with a prompt of token ids.  vLLM's does, and gives ids back;
`plain` leaves its own fields out for a server that refuses them.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from turncredit.batching import ROUNDING
from turncredit.environments.judges.chat import retry_after, usable_key
from turncredit.params import require_positive
from turncredit.policies.protocol import Message, MessageEnd
from turncredit.records import Turn
from turncredit.seeding import derive

WHOLE = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Nothing is cut off the distribution; said aloud, since a server has defaults of its own."""
VLLM = {
    "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True,
    "return_token_ids": True, "return_tokens_as_token_ids": True,
}  # fmt: skip
"""Fields that vLLM adds to OpenAI's: the same for its further cuts, no end of its own, and ids."""
_MARK = "token_id:"
"""Before the number of a token that stands for its text."""
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading an answer of another shape than it should have may raise."""


@dataclass(frozen=True)
class Endpoint:
    """A served model: speaks many times in one context (`Responder`), or once (`Engine`).

    A call that fails raises ValueError or ConnectionError that name the address and what was wrong:
    a probe of whatever did come back would be a probe of something else.
    """

    base_url: str
    """Up to and with the version, as in http://127.0.0.1:8000/v1."""
    model: str
    ended: MessageEnd
    """Where a turn ends, as `Tokens.message_end` tells; the server's answer is cut there."""
    max_turn_tokens: int
    max_tokens: int
    """Longest context with its response."""
    stop: tuple[str, ...] = ()
    """Texts after which the server may stop, to save tokens: the closing tags.  `ended` decides."""
    top_logprobs: int = 0
    """Alternatives to ask for at each token; with them the entropies are lower bounds
    (`least_entropy`), without them NaN.  vLLM gives 20 at most unless told otherwise."""
    rows: int = 64
    """Responses per request, which the server samples after one reading of the prefix."""
    plain: bool = False
    """Send OpenAI's own fields alone."""
    token_id: Callable[[str], int] | None = None
    """Id of a token's text, for servers that return no ids."""
    key_variable: str = ""
    """Name of the environment variable that holds the API key; '' for no key."""
    timeout: float = 600.0
    """Seconds without a byte, and the longest wait that a busy server may ask for."""
    retries: int = 3
    """Further attempts after status 429 or 5xx or a lost connection."""
    pause: float = 1.0
    """Seconds before the first of them; doubles for each one more."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turn_tokens", "max_tokens", "rows", "timeout")
        for name in ("top_logprobs", "retries", "pause"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)!r} must not be below 0")
        parts = urlsplit(self.base_url)
        if parts.username or parts.password:
            raise ValueError("base_url must hold no user or password; see key_variable")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url = {self.base_url!r} is no http or https address")
        if self.key_variable and not usable_key(os.environ.get(self.key_variable, "")):
            raise ValueError(f"key_variable = {self.key_variable!r}: holds no API key")

    def respond(self, prefix_ids: Sequence[int], count: int, *, seed: int) -> list[Turn]:
        """See `Responder`; repeats itself as far as the server's sampling by seed does.

        Raises ValueError for a prefix that is empty or leaves no room for a token.
        """
        if not 0 < len(prefix_ids) < self.max_tokens:
            raise ValueError(
                f"prefix_ids: {len(prefix_ids)} ids; need 1 to max_tokens - 1 = "
                f"{self.max_tokens - 1}"
            )
        room = min(self.max_turn_tokens, self.max_tokens - len(prefix_ids))
        turns: list[Turn] = []
        for start in range(0, count, self.rows):
            body = self._body(prefix_ids, room, derive(seed, "endpoint", start))
            body["n"] = min(self.rows, count - start)
            said = self._said(body, self.ended, room)
            turns += [Turn(*message, observation_ids=(), action="unfinished") for message in said]
        return turns

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        ended: MessageEnd,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Message:
        """See `Engine`: so `rollout.asynchronous.roll_out` plays with the served model."""
        body = self._body(token_ids, max_tokens, seed) | {"temperature": temperature}
        return (await asyncio.to_thread(self._said, body, ended, max_tokens))[0]

    def _body(self, prompt: Sequence[int], room: int, seed: int) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": room, "n": 1}
        body |= WHOLE | {"seed": seed, "logprobs": max(1, self.top_logprobs)}
        if self.stop:
            body["stop"] = list(self.stop)
        if not self.plain:
            body |= VLLM | ({"include_stop_str_in_output": True} if self.stop else {})
        return body

    def _said(self, body: Mapping[str, Any], ended: MessageEnd, room: int) -> list[Message]:
        """The messages that one request brought."""
        answer = self._post(body)
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            tokens = [(_ids(one, self.token_id), one["logprobs"]) for one in choices]
            found = [_message(ids, given, self.top_logprobs, ended, room) for ids, given in tokens]
        except _MALFORMED as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{self.base_url}: {reason}") from error
        if len(found) != body["n"]:
            raise ValueError(f"{self.base_url}: {len(found)} choices for n = {body['n']}")
        return found

    def _post(self, body: Mapping[str, Any]) -> Any:
        """The server's answer as JSON; asked again where that may help."""
        cause = ""
        for attempt in range(self.retries + 1):
            status, text, after = self._attempt(body)
            if status == 200:
                try:
                    return json.loads(text)
                except (ValueError, RecursionError):
                    raise ValueError(f"{self.base_url}: the answer is no JSON") from None
            cause = f"status {status}: {text[:200]}" if status else text
            if status and status != 429 and status < 500:
                raise ValueError(f"{self.base_url}: {cause}")
            if attempt < self.retries:
                time.sleep(max(self.pause * 2**attempt, min(after, self.timeout)))
        raise ConnectionError(f"{self.base_url}: {cause}, after {self.retries + 1} attempts")

    def _attempt(self, body: Mapping[str, Any]) -> tuple[int, str, float]:
        """Status (0: no answer), text or cause, and seconds that the server asks to wait."""
        httpx = _httpx()
        key = os.environ.get(self.key_variable, "") if self.key_variable else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = self.base_url.rstrip("/") + "/completions"
        loopback = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        # certificates take time to load; a proxy has no business between two local processes
        options = {"verify": url.startswith("https"), "trust_env": not loopback}
        try:
            with httpx.Client(timeout=self.timeout, **options) as client:
                answer = client.post(url, json=dict(body), headers=headers)
        except httpx.RequestError as error:
            return 0, type(error).__name__, 0.0
        return answer.status_code, answer.text, retry_after(answer.headers.get("Retry-After", ""))


def least_entropy(logprobs: Sequence[float]) -> float:
    """Entropy in nats of a distribution of which these are the likeliest log-probs: at least this.

    What they leave of the mass counts as one token.  Spread over n tokens instead, it would add the
    mass times log n, and no more.

    >>> round(least_entropy([math.log(0.5), math.log(0.25)]), 4)  # 1/4 is left
    1.0397
    >>> least_entropy([0.0])
    0.0
    """
    masses = [math.exp(logprob) for logprob in logprobs]
    masses.append(max(0.0, 1.0 - sum(masses)))
    return sum(-mass * math.log(mass) for mass in masses if mass > 0.0) + 0.0


def _ids(choice: Mapping[str, Any], token_id: Callable[[str], int] | None) -> list[int]:
    """Ids of the sampled tokens; ValueError where the server gives texts that nobody can number."""
    if choice.get("token_ids") is not None:
        return [_id(token) for token in choice["token_ids"]]
    texts = choice["logprobs"]["tokens"]
    if all(text.startswith(_MARK) for text in texts):
        return [_id(int(text.removeprefix(_MARK))) for text in texts]
    if token_id is None:
        raise ValueError("the tokens are texts without ids; give token_id")
    return [token_id(text) for text in texts]


def _message(
    ids: Sequence[int], given: Mapping[str, Any], top: int, ended: MessageEnd, room: int
) -> Message:
    """A choice up to where it `ended`; ValueError for one that breaks off before."""
    logprobs = [_logprob(value) for value in given["token_logprobs"]]
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log-probs")
    over = (count for count in range(1, len(ids) + 1) if ended(ids[:count]))
    length = next(over, min(len(ids), room))
    if length < room and not (length and ended(ids[:length])):
        # the server ended it by a token that it did not return, so its log-prob is not known
        raise ValueError(f"a response breaks off after {length} of {room} tokens without its end")
    entropies = (math.nan,) * length
    if top:
        entropies = _least_entropies(given["top_logprobs"], len(ids))[:length]
    return Message(tuple(ids[:length]), tuple(logprobs[:length]), entropies)


def _id(token: Any) -> int:
    if type(token) is not int or token < 0:
        raise ValueError(f"token id {token!r} is no number from 0 on")
    return token


def _logprob(value: Any) -> float:
    """A log-prob, up to rounding; NaN and what is no number are none."""
    if type(value) not in (int, float) or not value <= ROUNDING:
        raise ValueError(f"log-prob {value!r} is no number up to 0")
    return value


def _least_entropies(likeliest: Sequence[Mapping[str, Any]], tokens: int) -> tuple[float, ...]:
    """`least_entropy` at each token of a response."""
    if len(likeliest) != tokens or not all(likeliest):
        raise ValueError(f"{tokens} tokens with {len(likeliest)} top_logprobs, or with empty ones")
    return tuple(least_entropy([_logprob(v) for v in one.values()]) for one in likeliest)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ImportError("a model behind a server needs httpx: pip install httpx") from error
    return httpx
