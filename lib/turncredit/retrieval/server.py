"""HTTP server with Search-R1's `POST /retrieve`, and `GET /health`.

A request holds `queries` (texts), `topk` (a number, or null for the server's) and `return_scores`;
the answer is `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, one list for
each query, and without scores the bare documents.  What is wrong with a request is said in `detail`
with status 413 or 422.
"""

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from turncredit.params import require_positive
from turncredit.retrieval.merging import MergedSearch, Overloaded
from turncredit.retrieval.passages import contents_of, shown

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for; Search-R1's own batches have 2,560 queries."""

    queries: int = 4096
    query_characters: int = 8192
    topk: int = 100
    body_bytes: int = 16 << 20
    body_seconds: float = 30.0
    """Within which a request's body must have come in."""
    waiting: int = 1024
    """Requests that may wait for a search; one more is told to come back (503)."""

    def __post_init__(self) -> None:
        require_positive(self, "queries", "query_characters", "topk", "body_bytes", "waiting")
        if not self.body_seconds > 0:
            raise ValueError(f"body_seconds must be above 0, got {self.body_seconds}")


@dataclass(frozen=True)
class Request:
    """A request that has been checked."""

    queries: list[str]
    topk: int
    return_scores: bool


class Refused(Exception):
    """A request that is not served: HTTP status and the reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def parse_request(body: bytes, limits: Limits, *, topk: int) -> Request:
    """The request in a body; `topk` stands for one that is null or absent.

    Raises Refused (422) naming the field, its value or size, and the limit.
    """
    fields = _fields(body)
    queries = fields.get("queries")
    if type(queries) is not list:
        raise Refused(422, f"queries must be a list of texts, got {shown(queries)}")
    if len(queries) > limits.queries:
        raise Refused(422, f"queries: {len(queries)} in one request, at most {limits.queries}")
    for row, query in enumerate(queries):
        _check_query(row, query, limits.query_characters)
    asked = fields.get("topk")
    asked = topk if asked is None else asked
    if type(asked) is not int or not 1 <= asked <= limits.topk:
        raise Refused(422, f"topk must be from 1 to {limits.topk}, got {shown(asked)}")
    scores = fields.get("return_scores", False)
    if type(scores) is not bool:
        raise Refused(422, f"return_scores must be true or false, got {shown(scores)}")
    return Request(queries, asked, scores)


def create_app(
    retriever: Any,
    *,
    topk: int = 3,
    limits: Limits | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> Any:
    """A FastAPI application over a retriever (`documents`, `search(queries, k)`).

    manifest: shown by /health.  Requests that wait at the same time are searched together.
    Raises ImportError with the pip command when FastAPI is missing, ValueError for a `topk` above
    the limit.
    """
    try:
        from fastapi import FastAPI
        from fastapi import Request as HttpRequest
        from fastapi.responses import JSONResponse
    except ImportError as error:
        raise ImportError("the server needs fastapi: pip install fastapi uvicorn") from error
    limits = limits or Limits()
    if not 1 <= topk <= limits.topk:
        raise ValueError(f"topk must be from 1 to {limits.topk}, got {topk}")
    search = MergedSearch(retriever.search, limits.queries, limits.waiting)
    counts: Counter[str] = Counter()
    app = FastAPI(title="turncredit retrieval", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/retrieve")
    async def retrieve(request: HttpRequest) -> JSONResponse:
        try:
            asked = parse_request(await _body(request, limits), limits, topk=topk)
            found = await search(asked.queries, asked.topk)
            answer = JSONResponse({"result": _result(retriever.documents, found, asked)})
        except Exception as error:  # whatever the retriever raises, the server goes on
            outcome, status, detail = _failure(error)
            counts[outcome] += 1
            return JSONResponse({"detail": detail}, status)
        counts["served"] += 1
        counts["queries"] += len(asked.queries)
        return answer

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "documents": len(retriever.documents),
            "manifest": dict(manifest or {}),
            "topk": topk,
            "limits": asdict(limits),
            "counts": dict(counts),
        }

    return app


def serve(
    retriever: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    topk: int = 3,
    limits: Limits | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> None:
    """Serve until interrupted; other machines reach it only when `host` says so.

    There is no password: give another host only inside a network that is trusted.
    Raises ValueError for a port that is none, OSError naming host and port that cannot be had.
    """
    check_port(port)
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("the server needs uvicorn: pip install fastapi uvicorn") from error
    app = create_app(retriever, topk=topk, limits=limits, manifest=manifest)
    require_free(host, port)
    uvicorn.run(app, host=host, port=port, log_level="warning")


def check_port(port: int) -> int:
    """The port; ValueError naming it unless it is a whole number from 1 to 65535."""
    if type(port) is not int or not 1 <= port <= 65535:
        raise ValueError(f"port {port!r} is not from 1 to 65535")
    return port


def require_free(host: str, port: int) -> None:
    """Raises OSError naming host and port when a server could not listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will
            probe.bind(address)
            probe.listen()
    except (OSError, UnicodeError) as error:
        raise OSError(f"cannot listen on host {host!r}, port {port}: {error}") from error


def _failure(error: Exception) -> tuple[str, int, str]:
    """(count, HTTP status, reason) of a request that gets no results."""
    if type(error) is Refused:
        return "refused", error.status, error.detail
    if type(error) is Overloaded:
        return "overloaded", 503, str(error)
    _LOGGER.error("a search failed", exc_info=error)
    return "failed", 500, f"search failed: {error!r}"


async def _body(request: Any, limits: Limits) -> bytes:
    """The body, refused as soon as it is seen to be too large, or does not come."""
    from starlette.requests import ClientDisconnect

    too_large = Refused(413, f"the body is larger than {limits.body_bytes} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limits.body_bytes:
        raise too_large

    async def read() -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limits.body_bytes:
                raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), limits.body_seconds)
    except asyncio.TimeoutError as error:
        raise Refused(408, f"the body did not come in {limits.body_seconds:g} s") from error
    except ClientDisconnect as error:  # nobody reads this answer; it is counted
        raise Refused(400, "the client went away before its body was whole") from error


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise Refused(422, f"the body is not JSON: {error}") from error
    if type(fields) is not dict:
        raise Refused(422, f"the body must be a JSON object, got {shown(fields)}")
    return fields


def _check_query(row: int, query: Any, most: int) -> None:
    if type(query) is not str:
        raise Refused(422, f"queries[{row}] must be a text, got {shown(query)}")
    if len(query) > most:
        raise Refused(422, f"queries[{row}] has {len(query)} characters, at most {most}")
    if not query.isascii():
        try:
            query.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Refused(422, f"queries[{row}] holds half a surrogate pair") from error


def _result(documents: Any, found: list[list[Any]], asked: Request) -> list[list[dict]]:
    return [[_item(documents[hit.position], hit, asked) for hit in hits] for hits in found]


def _item(document: Any, hit: Any, asked: Request) -> dict[str, Any]:
    passage = {"id": document.id, "contents": contents_of(document)}
    return {"document": passage, "score": hit.score} if asked.return_scores else passage
