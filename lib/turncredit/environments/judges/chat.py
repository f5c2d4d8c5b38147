"""A client of an OpenAI-compatible chat server that waits a bounded time and names every failure.

All calls share one event loop in a thread of its own, so that the client also works in a notebook,
whose own loop is running already.
"""

import asyncio
import email.utils
import json
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """What came of one call."""

    text: str | None
    """The model's words; None when the call failed."""
    cause: str = ""
    """Why it failed: hang, refused, disconnected, http_<status>, malformed, wrong_schema, huge,
    no_key; '' when it did not."""
    retried: tuple[str, ...] = ()
    """Causes of the attempts that were repeated."""


class _Failure(Exception):
    def __init__(self, cause: str, *, again: bool = False, after: float = 0.0) -> None:
        super().__init__(cause)
        self.cause, self.again, self.after = cause, again, after


class ChatClient:
    """Calls `<base_url>/chat/completions`.

    deadline: seconds that one call may take with all its attempts and waits, from when it gets one
    of the `concurrency` places; it also ends a server that sends a byte now and then.  retries:
    further attempts after status 429 or 5xx or a lost connection; the first comes after `backoff`
    seconds, each later one after twice the wait before, shortened at random by up to half, and
    never sooner than a Retry-After header says.  limit: bytes of a reply.  key_variable: name of
    the environment variable that holds the API key, '' for none; the key is read for each call and
    kept nowhere.

    Raises ImportError with the pip command when httpx is missing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        deadline: float,
        retries: int,
        backoff: float,
        concurrency: int,
        limit: int,
        key_variable: str = "",
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ImportError("a judge behind a server needs httpx: pip install httpx") from error
        self._httpx = httpx
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._deadline, self._retries, self._backoff = deadline, retries, backoff
        self._concurrency, self._limit, self._key_variable = concurrency, limit, key_variable
        # Jitter must differ between processes, and must not shift any stream of the run.
        self._jitter = random.SystemRandom()
        self._session: _Session | None = None
        self._starting = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine run in the client's loop, from any other thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._open().loop)
        try:
            return future.result()
        except BaseException:  # an interrupt must not leave calls behind
            future.cancel()
            raise

    async def reply(self, body: Mapping[str, Any]) -> Reply:
        """Post one request; to be awaited inside `run`."""
        retried: list[str] = []
        session = self._open()
        async with session.places:
            try:
                text = await asyncio.wait_for(
                    self._attempts(session.client, body, retried), self._deadline
                )
            except asyncio.TimeoutError:
                return Reply(None, "hang", tuple(retried))
            except _Failure as failure:
                return Reply(None, failure.cause, tuple(retried))
        return Reply(text, retried=tuple(retried))

    def close(self) -> None:
        """End calls under way, connections and the thread; a later call starts anew."""
        with self._starting:
            session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(session.end(), session.loop).result()
            session.stop()

    def _open(self) -> "_Session":
        with self._starting:
            if self._session is None or self._session.pid != os.getpid():  # threads die in a fork
                self._session = _Session(self._new_client(), self._concurrency)
                weakref.finalize(self, self._session.stop)
            return self._session

    def _new_client(self) -> "httpx.AsyncClient":
        httpx = self._httpx
        loopback = httpx.URL(self._url).host in ("localhost", "127.0.0.1", "::1")
        # The deadline bounds everything; a proxy has no business between two local processes.
        return httpx.AsyncClient(
            timeout=None,
            limits=httpx.Limits(max_connections=self._concurrency),
            trust_env=not loopback,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )

    async def _attempts(
        self, client: "httpx.AsyncClient", body: Mapping[str, Any], retried: list[str]
    ) -> str:
        end = time.monotonic() + self._deadline
        while True:
            try:
                return await self._post(client, body)
            except _Failure as failure:
                wait = self._backoff * 2 ** len(retried) * (1 - self._jitter.random() / 2)
                wait = max(wait, failure.after)
                spent = len(retried) >= self._retries or time.monotonic() + wait >= end
                if spent or not failure.again:
                    raise
                retried.append(failure.cause)
            await asyncio.sleep(wait)

    async def _post(self, client: "httpx.AsyncClient", body: Mapping[str, Any]) -> str:
        httpx, content = self._httpx, json.dumps(body).encode()
        try:
            async with client.stream(
                "POST", self._url, content=content, headers=self._authorization()
            ) as response:
                status = response.status_code
                if status != 200:
                    after = retry_after(response.headers.get("Retry-After", ""))
                    again = status == 429 or status >= 500
                    raise _Failure(f"http_{status}", again=again, after=after)
                return _content(await self._read(response))
        except httpx.ConnectError:  # `from None`: what the library raises may quote what was sent
            raise _Failure("refused", again=True) from None
        except httpx.TransportError:
            raise _Failure("disconnected", again=True) from None

    async def _read(self, response: "httpx.Response") -> bytes:
        parts, size = [], 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > self._limit:
                raise _Failure("huge")
            parts.append(part)
        return b"".join(parts)

    def _authorization(self) -> dict[str, str]:
        if not self._key_variable:
            return {}
        key = os.environ.get(self._key_variable, "")
        if not usable_key(key):
            raise _Failure("no_key")
        return {"Authorization": f"Bearer {key}"}


class _Session:
    """A thread with an event loop, the connections and the places that belong to it."""

    def __init__(self, client: "httpx.AsyncClient", concurrency: int) -> None:
        self.client, self.pid = client, os.getpid()
        self.loop = asyncio.new_event_loop()
        self.places = asyncio.Semaphore(concurrency)
        self._stopped = False
        threading.Thread(target=self._serve, name="judge calls", daemon=True).start()

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def end(self) -> None:
        """Cancel what is under way, so that nobody waits for it, and close the connections."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.client.aclose()

    def stop(self) -> None:
        """End the thread, the first time."""
        if not self._stopped:
            self._stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)


def usable_key(key: str) -> bool:
    """Whether a text can be sent as a bearer token: printable ASCII without spaces."""
    return key.isascii() and key.isprintable() and key != "" and " " not in key


def retry_after(header: str) -> float:
    """Seconds that a Retry-After header asks for: a number or an HTTP date; 0 if it says neither.

    >>> retry_after("2"), retry_after("soon"), retry_after("-1"), retry_after("nan")
    (2.0, 0.0, 0.0, 0.0)
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(header)
            zoned = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
            seconds = zoned.timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return 0.0 if math.isnan(seconds) else max(seconds, 0.0)


def _content(payload: bytes) -> str:
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        raise _Failure("malformed") from None
    try:
        content = document["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise _Failure("wrong_schema") from None
    if not isinstance(content, str):
        raise _Failure("wrong_schema")
    return content
