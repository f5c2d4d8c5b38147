"""Client of any server with Search-R1's `/retrieve`; no failure of it reaches an episode.

A search that fails gives [] for each of its queries, which an environment shows as "no results".
The cause is one of `OUTCOMES`, counted in `client.counts`, and logged when it first comes.
"""

import json
import logging
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turncredit.retrieval.index import Hit, check_k
from turncredit.retrieval.passages import Passage, contents_of, parse_passage, shown

if TYPE_CHECKING:
    from turncredit.worlds.base import Document

OUTCOMES = {
    "ok": "every query has its k results",
    "short": "a query has fewer than k results, which are kept",
    "long": "a query had more than k results and was cut to k",
    "unreachable": "no connection, or it broke",
    "timeout": "no whole answer in time",
    "refused": "a status below 500 other than 200: asking again would not help",
    "server_error": "a status from 500 on",
    "too_large": "an answer above the size limit",
    "malformed": "an answer that is not JSON",
    "wrong_schema": "JSON of another form, or a score that is no finite number",
    "wrong_count": "not one list of results for each query",
}
"""What can become of a search; the first three have results."""

_AGAIN = frozenset({"unreachable", "timeout", "server_error", "malformed"})
_LONGEST_PAUSE = 5.0
_LOGGER = logging.getLogger(__name__)


class RetrievalError(Exception):
    """A search that failed under `strict`: its outcome and the details."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(outcome, detail)  # both: it is rebuilt from them in another process
        self.outcome, self.detail = outcome, detail

    def __str__(self) -> str:
        return f"{self.outcome}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Found:
    """A document that a server returned, and its score."""

    document: Passage
    score: float


@dataclass(frozen=True)
class Answer:
    """What became of one search; `outcome` is a key of `OUTCOMES`."""

    results: list[list[Found]]
    outcome: str
    detail: str = ""


class RetrievalClient:
    """Searches by HTTP; may be shared by threads, pickled, and used after a fork.

    url: the server, with or without `/retrieve`.  timeout: seconds for one attempt, whole.
    retries: further attempts where another may succeed, after `pause`, twice that, ... seconds.
    strict: raise RetrievalError instead of giving [] when a search fails.  Proxy settings of the
    process do not apply.  Raises ValueError for a url that is none, ImportError without httpx.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 2,
        pause: float = 0.2,
        strict: bool = False,
        most_bytes: int = 256 << 20,
    ) -> None:
        _check_url(url)
        if not (timeout > 0 and retries >= 0 and pause >= 0):
            raise ValueError(f"timeout {timeout}, retries {retries}, pause {pause}: out of range")
        self.url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self.timeout, self.retries, self.pause, self.strict = timeout, retries, pause, strict
        self.counts: Counter[str] = Counter()
        """Searches by outcome, `retries`, and `repeated_document`: searches that gave one twice."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._http: tuple[int, Any] | None = None

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """At most `k` documents for each query, in the server's order; [] where the search failed.

        Raises ValueError for k < 1, and RetrievalError if `strict`.
        """
        return self.ask(queries, k).results

    def ask(self, queries: Sequence[str], k: int) -> Answer:
        """As `search`, with the outcome and its details."""
        check_k(k)
        if not queries:
            return Answer([], "ok")
        for attempt in range(self.retries + 1):
            answer = self._attempt(queries, k)
            if answer.outcome not in _AGAIN or attempt == self.retries:
                break
            self.count("retries")
            time.sleep(min(self.pause * 2**attempt, _LONGEST_PAUSE))
        if self.count(answer.outcome) == 1 and answer.outcome != "ok":
            _LOGGER.warning("%s: first search with outcome %s: %s", self.url, *_named(answer))
        if any(len({each.document for each in found}) < len(found) for found in answer.results):
            self.count("repeated_document")
        if self.strict and not answer.results:
            raise RetrievalError(answer.outcome, answer.detail)
        return answer if answer.results else Answer([[] for _ in queries], *_named(answer))

    def count(self, name: str) -> int:
        """Count an outcome, or what a user of the results finds wrong; how often so far."""
        with self._lock:
            self.counts[name] += 1
            return self.counts[name]

    def _attempt(self, queries: Sequence[str], k: int) -> Answer:
        # half a surrogate pair is no text; a policy can write one, and must not break its batch
        texts = [query.encode("utf-8", "replace").decode() for query in queries]
        try:
            payload = {"queries": texts, "topk": k, "return_scores": True}
            body = _within(self.timeout, lambda: self._post(payload))
            return read_answer(body, len(queries), k)
        except RetrievalError as error:
            return Answer([], error.outcome, error.detail)

    def _post(self, payload: dict[str, Any]) -> bytes:
        """The body of a 200; RetrievalError for anything else."""
        import httpx

        deadline = time.monotonic() + self.timeout
        body = bytearray()
        try:
            with self._connection().stream("POST", self.url, json=payload) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if time.monotonic() > deadline:  # a server may drip for ever
                        raise RetrievalError("timeout", f"no whole answer in {self.timeout:g} s")
                    if len(body) > self._most_bytes:
                        raise RetrievalError("too_large", f"above {self._most_bytes} bytes")
        except httpx.TimeoutException as error:
            raise RetrievalError("timeout", repr(error)) from error
        except httpx.DecodingError as error:
            raise RetrievalError("malformed", repr(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise RetrievalError("unreachable", repr(error)) from error
        if response.status_code != 200:
            outcome = "server_error" if response.status_code >= 500 else "refused"
            text = bytes(body[:300]).decode("utf-8", "replace")
            raise RetrievalError(outcome, f"status {response.status_code}: {text}")
        return bytes(body)

    def _connection(self) -> Any:
        """An HTTP client of this process: sockets must not be shared across a fork."""
        import httpx

        with self._lock:
            if self._http is None or self._http[0] != os.getpid():
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
                client = httpx.Client(timeout=self.timeout, limits=limits, trust_env=False)
                self._http = (os.getpid(), client)
            return self._http[1]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_http")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _http=None)


class RemoteRetriever:
    """A server in the place of a retriever over `documents`, for worlds that search by position.

    A document that the server returns and that is not here, by its id, title and text, is left out
    and counted as `foreign_document`: the server then holds another corpus.
    Raises ValueError naming an id that two documents have.
    """

    def __init__(self, documents: Sequence["Document"], client: RetrievalClient) -> None:
        self.documents, self.client = documents, client
        self._positions = {document.id: row for row, document in enumerate(documents)}
        if len(self._positions) < len(documents):
            ids = Counter(document.id for document in documents)
            raise ValueError(f"two documents have the id {ids.most_common(1)[0][0]!r}")

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query; see `RetrievalClient.search` for failures."""
        return [self._hits(found) for found in self.client.search(queries, k)]

    def _hits(self, found: Sequence[Found]) -> list[Hit]:
        hits = []
        for each in found:
            position = self._positions.get(each.document.id)
            if position is None or not self._same(position, each.document):
                self.client.count("foreign_document")
            else:
                hits.append(Hit(position, each.score))
        return hits

    def _same(self, position: int, passage: Passage) -> bool:
        return contents_of(self.documents[position]) == contents_of(passage)


def _within(seconds: float, call: Callable[[], bytes]) -> bytes:
    """What `call` returns or raises; RetrievalError `timeout` when it takes longer.

    httpx bounds each read by itself, so headers that drip, or a name server, could hold up an
    episode for ever.  A late call goes on in a thread of its own, and nobody waits for it.
    """
    done: queue.SimpleQueue[tuple[bytes, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:
            done.put((b"", error))

    threading.Thread(target=run, name="retrieve", daemon=True).start()
    try:
        body, error = done.get(timeout=seconds)
    except queue.Empty as late:
        raise RetrievalError("timeout", f"no whole answer in {seconds:g} s") from late
    if error is not None:
        raise error
    return body


def read_answer(body: bytes, count: int, k: int) -> Answer:
    """The answer in a server's body to `count` queries.

    Raises RetrievalError with the outcome `malformed`, `wrong_schema` or `wrong_count`.
    """
    try:
        result = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise RetrievalError("malformed", str(error)) from error
    result = result.get("result") if type(result) is dict else None
    if type(result) is not list or any(type(items) is not list for items in result):
        raise RetrievalError("wrong_schema", "the answer holds no `result` list of lists")
    if len(result) != count:
        raise RetrievalError("wrong_count", f"{count} queries, {len(result)} lists of results")
    found = [[_found(item) for item in items] for items in result]
    sizes = [len(items) for items in found]
    outcome = "short" if min(sizes) < k else "long" if max(sizes) > k else "ok"
    detail = "" if outcome == "ok" else f"from {min(sizes)} to {max(sizes)} results for k = {k}"
    return Answer([items[:k] for items in found], outcome, detail)


def _found(item: Any) -> Found:
    if type(item) is not dict:
        raise RetrievalError("wrong_schema", f"a result is {shown(item)}")
    try:
        return Found(parse_passage(item.get("document")), _score(item.get("score")))
    except (ValueError, OverflowError) as error:
        raise RetrievalError("wrong_schema", str(error)[:300]) from error


def _score(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(float(value)):
        raise ValueError(f"score is {shown(value)}")
    return float(value)


def _check_url(url: str) -> None:
    try:
        import httpx
    except ImportError as error:
        raise ImportError("the retrieval client needs httpx: pip install httpx") from error
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"url {url!r}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"url {url!r} must be http:// or https:// and a host")
    if parsed.port is not None and not 1 <= parsed.port <= 65535:
        raise ValueError(f"url {url!r}: port {parsed.port} is not from 1 to 65535")


def _named(answer: Answer) -> tuple[str, str]:
    return answer.outcome, answer.detail
