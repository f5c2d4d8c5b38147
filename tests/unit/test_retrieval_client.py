"""Whatever a retrieval server does, a search ends in time with results or a counted cause."""

import contextlib
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit import paths
from turncredit.retrieval import Passage, RemoteRetriever, RetrievalClient
from turncredit.retrieval.client import OUTCOMES, Found, RetrievalError, read_answer
from turncredit.worlds.base import Document

pytest.importorskip("httpx", reason="the client needs httpx")

LIBRARY = paths.PACKAGE.parent

Behaviour = Callable[[BaseHTTPRequestHandler, dict], None]


def search_r1_answer(request: dict) -> dict:
    """What Search-R1's dense server answers, from its published format."""
    rows = [{"id": str(n), "contents": f'"Page {n}"\ntext {n}'} for n in range(request["topk"])]
    items = [{"document": row, "score": 1.0 / (1 + n)} for n, row in enumerate(rows)]
    return {"result": [items for _ in request["queries"]]}


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def good(handler: BaseHTTPRequestHandler, request: dict) -> None:
    send(handler, json.dumps(search_r1_answer(request)).encode())


def changed(change: Callable[[dict], object]) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler, request: dict) -> None:
        answer = search_r1_answer(request)
        other = change(answer)
        send(handler, json.dumps(answer if other is None else other).encode())

    return behave


def status(code: int) -> Behaviour:
    return lambda handler, request: send(handler, b'{"detail": "no"}', code)


def hangs(handler: BaseHTTPRequestHandler, request: dict) -> None:
    time.sleep(5)


def drips(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def drips_headers(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(100):
        handler.wfile.write(b"a")
        handler.wfile.flush()
        time.sleep(0.05)


def breaks_off(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"result": [')


def says_nothing(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.close_connection = True


def false_gzip(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", "4")
    handler.end_headers()
    handler.wfile.write(b"junk")


def huge(handler: BaseHTTPRequestHandler, request: dict) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" " * 100_000)


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[tuple[str, list[dict]]]:
    """A server that behaves in these ways, one request after another, the last for ever."""
    requests: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(json.loads(body) | {"path": self.path})
            self.behave = behaviours[min(len(requests), len(behaviours)) - 1]
            with contextlib.suppress(OSError):  # the client has left
                self.behave(self, requests[-1])
            if self.behave is not good:
                self.close_connection = True

        def end_headers(self) -> None:
            if self.behave is not good:  # else the client may ask again before it sees the end
                self.send_header("Connection", "close")
            super().end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def client_of(url: str, **options: object) -> RetrievalClient:
    return RetrievalClient(url, **({"timeout": 20.0, "retries": 0, "pause": 0.01} | options))


def item(**fields: object) -> dict:
    return {"document": {"id": "0", "contents": "a\nb"}, "score": 1.0} | fields


def only(*items: object) -> Behaviour:
    """Every query gets these items."""
    return changed(lambda answer: {"result": [list(items) for _ in answer["result"]]})


FAILURES: dict[str, tuple[Behaviour, str]] = {
    "hangs": (hangs, "timeout"),
    "drips": (drips, "timeout"),
    "drips headers": (drips_headers, "timeout"),
    "breaks off": (breaks_off, "unreachable"),
    "says nothing": (says_nothing, "unreachable"),
    "false gzip": (false_gzip, "malformed"),
    "huge": (huge, "too_large"),
    "500": (status(500), "server_error"),
    "503": (status(503), "server_error"),
    "404": (status(404), "refused"),
    "422": (status(422), "refused"),
    "302": (status(302), "refused"),
    "204": (lambda handler, request: send(handler, b"", 204), "refused"),
    "no body": (lambda handler, request: send(handler, b""), "malformed"),
    "html": (lambda handler, request: send(handler, b"<html>"), "malformed"),
    "half JSON": (lambda handler, request: send(handler, b'{"result": [['), "malformed"),
    "latin-1": (lambda handler, request: send(handler, b'{"result": "\xe9"}'), "malformed"),
    "nested": (lambda handler, request: send(handler, b"[" * 100_000), "malformed"),
    "list": (changed(lambda answer: answer["result"]), "wrong_schema"),
    "null": (changed(lambda answer: {"result": None}), "wrong_schema"),
    "error with 200": (changed(lambda answer: {"error": "index not loaded"}), "wrong_schema"),
    "flat": (changed(lambda answer: {"result": [1, 2]}), "wrong_schema"),
    "no scores": (only({"id": "0", "contents": "a\nb"}), "wrong_schema"),
    "score NaN": (only(item(score=float("nan"))), "wrong_schema"),
    "score inf": (only(item(score=float("inf"))), "wrong_schema"),
    "score text": (only(item(score="1")), "wrong_schema"),
    "score true": (only(item(score=True)), "wrong_schema"),
    "score huge": (only(item(score=10**400)), "wrong_schema"),
    "no document": (only(item(document=None)), "wrong_schema"),
    "no contents": (only(item(document={"id": "0"})), "wrong_schema"),
    "contents null": (only(item(document={"id": "0", "contents": None})), "wrong_schema"),
    "half a pair": (only(item(document={"id": "0", "contents": "\ud800"})), "wrong_schema"),
    "one list too few": (changed(lambda answer: {"result": answer["result"][1:]}), "wrong_count"),
    "one list too many": (changed(lambda answer: {"result": [[], [], []]}), "wrong_count"),
    "no lists": (changed(lambda answer: {"result": []}), "wrong_count"),
}


@pytest.mark.parametrize(("behaviour", "outcome"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_no_result_and_a_counted_cause(behaviour: Behaviour, outcome: str) -> None:
    with serving(behaviour) as (url, _):
        timeout = 0.4 if outcome == "timeout" else 20.0
        client = client_of(url, timeout=timeout, most_bytes=2_000_000)
        start = time.monotonic()
        assert client.search(["a", "b"], 3) == [[], []]
        assert time.monotonic() - start < 4
        assert client.counts == {outcome: 1}
        assert outcome in OUTCOMES
        client.strict = True
        with pytest.raises(RetrievalError, match=f"^{outcome}: "):
            client.search(["a", "b"], 3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_server_that_is_down_is_counted(host: str) -> None:
    client = client_of(f"http://{host}:{free_port()}", timeout=3.0)
    assert client.search(["a"], 3) == [[]]
    assert client.counts == {"unreachable": 1}


def test_a_server_of_search_r1_is_understood() -> None:
    with serving(good) as (url, requests):
        client = client_of(url)
        found = client.search(["a", "b"], 2)
    assert requests == [
        {"queries": ["a", "b"], "topk": 2, "return_scores": True, "path": "/retrieve"}
    ]
    expected = [Found(Passage(str(n), f"Page {n}", f"text {n}"), 1 / (1 + n)) for n in range(2)]
    assert found == [expected, expected]
    assert client.counts == {"ok": 1}


@pytest.mark.parametrize("end", ["", "/", "/retrieve", "/retrieve/"])
def test_the_url_may_name_the_path(end: str) -> None:
    with serving(good) as (url, requests):
        client_of(url + end).search(["a"], 1)
    assert requests[0]["path"] == "/retrieve"


def test_fewer_than_k_are_kept_and_counted() -> None:
    def lose_one(answer: dict) -> dict:
        first, second = answer["result"]
        return {"result": [first, second[:-1]]}

    with serving(changed(lose_one)) as (url, _):
        client = client_of(url, strict=True)
        assert [len(found) for found in client.search(["a", "b"], 3)] == [3, 2]
    assert client.counts == {"short": 1}


def test_more_than_k_are_cut_and_counted() -> None:
    rows = [item(document={"id": each, "contents": "a\nb"}) for each in "xyz"]
    with serving(only(*rows)) as (url, _):
        client = client_of(url)
        assert [len(found) for found in client.search(["a", "b"], 2)] == [2, 2]
    assert client.counts == {"long": 1}


def test_a_document_that_comes_twice_is_kept_and_counted() -> None:
    with serving(only(item(), item(), item(document={"id": "1", "contents": "a\nb"}))) as (url, _):
        client = client_of(url)
        assert [found.document.id for found in client.search(["x"], 3)[0]] == ["0", "0", "1"]
    assert client.counts == {"ok": 1, "repeated_document": 1}


def test_documents_without_ids_are_still_told_apart() -> None:
    documents = [{"contents": "a\nb"}, {"contents": "a\nc"}]
    with serving(only(*(item(document=each) for each in documents))) as (url, _):
        [first, second] = client_of(url).search(["q"], 2)[0]
    assert first.document.id != second.document.id


@pytest.mark.parametrize(
    "behaviour", [status(500), says_nothing, false_gzip], ids=["500", "silence", "gzip"]
)
def test_what_may_pass_is_tried_again(behaviour: Behaviour) -> None:
    with serving(behaviour, behaviour, good) as (url, requests):
        client = client_of(url, retries=2)
        assert len(client.search(["a"], 3)[0]) == 3
    assert len(requests) == 3
    assert client.counts == {"ok": 1, "retries": 2}


@pytest.mark.parametrize("behaviour", [status(422), only(1)], ids=["refused", "schema"])
def test_what_will_not_pass_is_not_tried_again(behaviour: Behaviour) -> None:
    with serving(behaviour) as (url, requests):
        client_of(url, retries=5).search(["a"], 3)
    assert len(requests) == 1


def test_the_first_failure_of_a_kind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving(status(500)) as (url, _), caplog.at_level(logging.WARNING):
        client = client_of(url)
        for _ in range(3):
            client.search(["a"], 3)
    assert client.counts == {"server_error": 3}
    [record] = [each for each in caplog.records if each.name.startswith("turncredit")]
    assert "server_error" in record.getMessage() and '"no"' in record.getMessage()


def test_the_answer_names_outcome_and_details() -> None:
    with serving(status(500)) as (url, _):
        answer = client_of(url).ask(["a"], 3)
    assert (answer.results, answer.outcome) == ([[]], "server_error")
    assert answer.detail == 'status 500: {"detail": "no"}'


def test_no_queries_ask_nobody() -> None:
    assert client_of(f"http://127.0.0.1:{free_port()}").search([], 3) == []


def test_half_a_surrogate_pair_does_not_break_the_batch() -> None:
    with serving(good) as (url, requests):
        client = client_of(url)
        client.search(["fine", "\ud800x"], 1)
    assert requests[0]["queries"] == ["fine", "?x"]
    assert client.counts == {"ok": 1}


URLS = ["", "localhost:8000", "ftp://host", "http://", "http://host:port"]
URLS += [f"http://host:{port}" for port in (0, -1, 65536, 10**30)]


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="url '"):
        RetrievalClient(url)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retries": -1}, {"pause": -1.0}], ids=str)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RetrievalClient("http://host", **options)


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        client_of("http://host").search(["a"], 0)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_a_named_failure(body: bytes) -> None:
    with pytest.raises(RetrievalError) as error:
        read_answer(body, 2, 3)
    assert error.value.outcome in OUTCOMES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["result", "document", "score", "id", "contents", "title", "text"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.integers(1, 3))
def test_any_json_is_an_answer_of_the_right_shape_or_a_named_failure(value: object, k: int) -> None:
    try:
        answer = read_answer(json.dumps({"result": value}).encode(), 1, k)
    except RetrievalError as error:
        assert error.outcome in OUTCOMES
    else:
        assert len(answer.results) == 1 and len(answer.results[0]) <= k
        assert all(type(found.document.title) is str for found in answer.results[0])


# --- in the place of a retriever -----------------------------------------------------------------

DOCUMENTS = [Document("1", "Page 1", "text 1"), Document("0", "Page 0", "text 0")]


def test_hits_are_positions_in_our_documents() -> None:
    with serving(good) as (url, _):
        [hits] = RemoteRetriever(DOCUMENTS, client_of(url)).search(["a"], 2)
    assert [(hit.position, hit.score) for hit in hits] == [(1, 1.0), (0, 0.5)]


def test_documents_of_another_corpus_are_left_out_and_counted() -> None:
    other = [DOCUMENTS[0], Document("0", "Page 0", "another text")]
    with serving(good) as (url, _):
        client = client_of(url)
        [hits] = RemoteRetriever(other, client).search(["a"], 3)  # "2" is not here at all
    assert [hit.position for hit in hits] == [0]
    assert client.counts == {"ok": 1, "foreign_document": 2}


def test_two_documents_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two documents have the id '1'"):
        RemoteRetriever([DOCUMENTS[0], DOCUMENTS[0]], client_of("http://host"))


def test_a_world_sees_a_server_that_is_down_as_no_results() -> None:
    client = client_of(f"http://127.0.0.1:{free_port()}")
    assert RemoteRetriever(DOCUMENTS, client).search(["a", "b"], 3) == [[], []]
    assert client.counts == {"unreachable": 1}


# --- processes -----------------------------------------------------------------------------------


def test_a_failed_search_can_be_raised_in_another_process() -> None:
    error = pickle.loads(pickle.dumps(RetrievalError("timeout", "no whole answer in 3 s")))
    assert (error.outcome, error.detail) == ("timeout", "no whole answer in 3 s")
    assert str(error) == "timeout: no whole answer in 3 s"


def test_a_client_can_be_pickled() -> None:
    with serving(good) as (url, _):
        client = client_of(url)
        client.search(["a"], 1)
        copy = pickle.loads(pickle.dumps(client))
        assert len(copy.search(["a"], 1)[0]) == 1
    assert copy.counts == {"ok": 2} and client.counts == {"ok": 1}


FORKED = """
import os, sys
from turncredit.retrieval.client import RetrievalClient

client = RetrievalClient(sys.argv[1], timeout=60.0)
found = [len(client.search(["a"], 3)[0])]
child = os.fork()
if not child:
    os._exit(len(client.search(["a"], 3)[0]))
found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
found.append(len(client.search(["a"], 3)[0]))
print(found)
"""


def test_a_fork_opens_its_own_connection() -> None:
    """In a process of its own: a fork beside the server's threads could inherit their locks."""
    with serving(good) as (url, _):
        ended = subprocess.run(
            [sys.executable, "-c", FORKED, url],
            env=os.environ | {"PYTHONPATH": str(LIBRARY)},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert ended.stdout == "[3, 3, 3]\n", ended.stderr
