"""A judge behind an OpenAI-compatible server, such as vLLM's."""

import asyncio
import json
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from turncredit import paths
from turncredit.announcements import Announced
from turncredit.environments.judges.base import VERDICTS, JudgeRequest
from turncredit.environments.judges.chat import ChatClient, usable_key
from turncredit.environments.judges.prompt import judge_messages, latest_sections, read_verdict
from turncredit.params import require_positive
from turncredit.storage import sha256_json, write_json
from turncredit.worlds.base import Question

_LOGGER = logging.getLogger(__name__)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class EndpointSettings:
    """Which model is asked, and how patiently."""

    KIND: ClassVar[str] = "endpoint"

    base_url: str
    """Up to and with the version, as in http://127.0.0.1:8000/v1."""
    model: str
    key_variable: str = ""
    """Name, in capitals, of the environment variable that holds the API key; '' for no key."""
    deadline_seconds: float = 30.0
    """For one verdict, all attempts together, from when it gets one of the places."""
    retries: int = 3
    """Further attempts after status 429 or 5xx or a lost connection."""
    backoff_seconds: float = 0.5
    """Before the first further attempt; doubles for each one more."""
    concurrency: int = 16
    """Calls under way at once, at most."""
    context_characters: int = 32000
    """Of the gathered context; the earliest sections are left out."""
    reply_tokens: int = 16
    """Enough for one word; a model that thinks first needs more."""
    reply_bytes: int = 1_000_000
    """A longer reply is not read to its end."""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "deadline_seconds", "concurrency", "reply_tokens", "reply_bytes")
        for name in ("retries", "backoff_seconds", "context_characters", "temperature"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)!r} must not be below 0")
        if self.key_variable and not _VARIABLE.fullmatch(self.key_variable):
            # not repeated: it may be the key itself, and settings are written into results
            raise ValueError("key_variable must be the name of a variable, such as JUDGE_API_KEY")
        if not self.model:
            raise ValueError("model = '' names no model")
        _check_url(self.base_url)


def _check_url(url: str) -> None:
    """Raise ValueError unless `url` is a plain web address; one with a password is not repeated."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("base_url must hold no user, password, query or fragment")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url = {url!r} is no http or https address")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"base_url = {url!r}: {error}") from error


class EndpointJudge:
    """Asks a chat model; its verdict never depends on the gold answer.

    A call that fails is UNCERTAIN and counted by its cause in `counts`, whose values sum to the
    number of verdicts asked for: `answered`, `cached`, `hang`, `refused`, `disconnected`,
    `http_<status>`, `malformed`, `wrong_schema`, `huge`, `junk`, `no_key`, `error`.  `incidents`
    counts what went wrong and cost no verdict: `retry_<cause>`, `cache_unreadable`,
    `cache_unwritable`.

    Verdicts are kept as files in `cache` (default: the cache folder) by hash of model, prompt and
    sampling settings; the address is left out, since a model may move.  Failures and junk are not
    kept.  Nothing but the verdict of a reply is stored or logged, and the key never.

    Raises ValueError if `key_variable` is not set to something that can be sent.
    """

    def __init__(self, settings: EndpointSettings, *, cache: Path | None = None) -> None:
        variable = settings.key_variable
        if variable and not usable_key(os.environ.get(variable, "")):
            raise ValueError(
                f"key_variable = {variable!r}: this environment variable holds no API key "
                "(printable ASCII without spaces)"
            )
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.incidents: Counter[str] = Counter()
        self._announced: Announced[JudgeRequest, str] = Announced(self.verdicts)
        self._cache = cache or paths.cache() / "verdicts"
        self._chat = ChatClient(
            settings.base_url,
            deadline=settings.deadline_seconds,
            retries=settings.retries,
            backoff=settings.backoff_seconds,
            concurrency=settings.concurrency,
            limit=settings.reply_bytes,
            key_variable=variable,
        )

    def __repr__(self) -> str:
        return f"EndpointJudge({self.settings!r})"

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """Verdict on `answer`; draws nothing from `stream`."""
        return self._announced.reply(JudgeRequest(question, answer, tuple(context)))

    def expect(self, question: Question, answer: str, context: Sequence[str]) -> None:
        """Announce a verdict; all announced ones are asked for side by side."""
        self._announced.expect(JudgeRequest(question, answer, tuple(context)))

    def verdicts(self, requests: Sequence[JudgeRequest]) -> list[str]:
        """One verdict for each request, in order, `concurrency` of them under way at a time.

        Takes at most `deadline_seconds` for each `concurrency` requests.
        """
        return self._chat.run(self._all(requests))

    def close(self) -> None:
        """Close all connections; a later verdict opens new ones."""
        self._chat.close()

    async def _all(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: JudgeRequest) -> str:
        try:
            verdict, outcome = await self._ask(request)
        except Exception as error:  # a judge must not end a run
            verdict, outcome = "UNCERTAIN", "error"
            _LOGGER.warning("judge %s: %s", self.settings.model, type(error).__name__)
        self.counts[outcome] += 1
        if outcome not in ("answered", "cached") and self.counts[outcome] == 1:
            _LOGGER.warning("judge %s: first failure by %s", self.settings.model, outcome)
        return verdict

    async def _ask(self, request: JudgeRequest) -> tuple[str, str]:
        """(verdict, outcome as counted)."""
        body = self._body(request)
        path = self._path(body)
        cached = self._recall(path)
        if cached is not None:
            return cached, "cached"
        reply = await self._chat.reply(body)
        self.incidents.update(f"retry_{cause}" for cause in reply.retried)
        if reply.text is None:
            return "UNCERTAIN", reply.cause
        verdict = read_verdict(reply.text)
        if verdict is None:
            return "UNCERTAIN", "junk"
        # In a thread: waiting for the disk must not hold up the other calls.
        if not await asyncio.to_thread(self._keep, path, verdict):
            self.incidents["cache_unwritable"] += 1
        return verdict, "answered"

    def _body(self, request: JudgeRequest) -> dict:
        settings = self.settings
        sections = latest_sections(request.context, settings.context_characters, len)
        return {
            "model": settings.model,
            "messages": judge_messages(request.question.text, request.answer, sections),
            "temperature": settings.temperature,
            "max_tokens": settings.reply_tokens,
        }

    def _path(self, body: dict) -> Path:
        key = sha256_json(body)
        return self._cache / key[:2] / f"{key}.json"

    def _recall(self, path: Path) -> str | None:
        try:
            verdict = json.loads(path.read_text(encoding="utf-8"))["verdict"]
            if verdict not in VERDICTS:
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            self.incidents["cache_unreadable"] += 1
            return None
        return verdict

    def _keep(self, path: Path, verdict: str) -> bool:
        """Whether the verdict could be written."""
        try:
            write_json(path, {"model": self.settings.model, "verdict": verdict})
        except OSError:
            return False
        return True
