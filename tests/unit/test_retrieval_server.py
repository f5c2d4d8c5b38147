"""The server speaks Search-R1's /retrieve, and nothing that a request holds stops it."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.retrieval import RemoteRetriever, RetrievalClient, lexical_retriever
from turncredit.retrieval.index import Hit
from turncredit.retrieval.merging import MergedSearch, Overloaded
from turncredit.retrieval.server import Limits, Refused, create_app, parse_request, serve
from turncredit.worlds.base import Document

pytest.importorskip("fastapi", reason="the server needs fastapi")
uvicorn = pytest.importorskip("uvicorn", reason="the server needs uvicorn")

DOCUMENTS = [
    Document("a", "Andorra", "A small country between France and Spain."),
    Document("f", "France", "Its capital is Paris.\nIt borders Spain and Andorra."),
    Document("p", "Paris", "The capital of France, on the river Seine."),
    Document("s", 'The "Kingdom" of Spain', "Its capital is Madrid. France lies to the north."),
]
LIMITS = Limits(queries=50, query_characters=100, topk=7, body_bytes=20_000, body_seconds=1.0)


@contextmanager
def running(app: object) -> Iterator[str]:
    """The address of an application that is being served on this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    manifest = {"corpus_sha256": "00", "count": 4}
    app = create_app(lexical_retriever(DOCUMENTS), limits=LIMITS, manifest=manifest)
    with running(app) as url:
        yield url


def call(
    address: str, body: bytes, *, method: str = "POST", path: str = "/retrieve", **headers: str
) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def search_r1_client(address: str, queries: list[str], topk: int) -> list[str]:
    """What the generation loop of Search-R1 makes of an answer, from its published format."""
    payload = {"queries": queries, "topk": topk, "return_scores": True}
    _, answer = call(address, json.dumps(payload).encode())
    texts = []
    for results in answer["result"]:
        text = ""
        for rank, item in enumerate(results):
            lines = item["document"]["contents"].split("\n")
            text += f"Doc {rank + 1}(Title: {lines[0]}) {chr(10).join(lines[1:])}\n"
        texts.append(text)
    return texts


def test_a_client_of_search_r1_gets_its_passages(address: str) -> None:
    first, second = search_r1_client(address, ["Seine", "capital of France"], 1)
    assert first == 'Doc 1(Title: "Paris") The capital of France, on the river Seine.\n'
    assert second == (
        'Doc 1(Title: "France") Its capital is Paris.\nIt borders Spain and Andorra.\n'
    )


def test_with_scores_and_without(address: str) -> None:
    body = {"queries": ["France", "xylophone"], "topk": 2}
    status, scored = call(address, json.dumps(body | {"return_scores": True}).encode())
    hits = lexical_retriever(DOCUMENTS).search(["France"], 2)[0]
    assert status == 200
    assert [item["score"] for item in scored["result"][0]] == [hit.score for hit in hits]
    bare = [[item["document"] for item in items] for items in scored["result"]]
    for fields in (body, body | {"return_scores": False}):
        assert call(address, json.dumps(fields).encode()) == (200, {"result": bare})
    assert bare[0][0] == {
        "id": "f",
        "contents": '"France"\nIts capital is Paris.\nIt borders Spain and Andorra.',
    }
    assert bare[1] == []


@pytest.mark.parametrize("fields", [{}, {"topk": None}], ids=["absent", "null"])
def test_topk_may_be_left_to_the_server(address: str, fields: dict) -> None:
    body = json.dumps({"queries": ["France Spain capital"]} | fields).encode()
    assert len(call(address, body)[1]["result"][0]) == 3


def test_no_queries_no_results(address: str) -> None:
    assert call(address, b'{"queries": []}') == (200, {"result": []})


def test_our_client_and_our_server_lose_nothing(address: str) -> None:
    client, local = RetrievalClient(address), lexical_retriever(DOCUMENTS)
    queries = ["France", "kingdom of spain", "xylophone", "é \ud800 Paris"]
    remote = RemoteRetriever(DOCUMENTS, client)
    expected = local.search(queries, 3)
    assert remote.search(queries, 3) == expected
    found = client.search(queries, 3)
    assert found[1][0].document.title == 'The "Kingdom" of Spain'
    assert [[each.document.id for each in row] for row in found] == [
        [DOCUMENTS[hit.position].id for hit in hits] for hits in expected
    ]
    assert client.counts == {"short": 2}


def test_health_shows_manifest_limits_and_counts(address: str) -> None:
    call(address, b"junk")
    status, health = call(address, b"", method="GET", path="/health")
    assert (status, health["status"], health["documents"]) == (200, "ok", 4)
    assert health["manifest"] == {"corpus_sha256": "00", "count": 4}
    assert health["limits"]["queries"] == 50
    assert health["counts"]["refused"] >= 1


BAD = {
    "empty body": (b"", "the body is not JSON"),
    "not JSON": (b"queries=1", "the body is not JSON"),
    "not UTF-8": (b'{"queries": ["\xff"]}', "the body is not JSON"),
    "nested": (b"[" * 15_000, "the body is not JSON"),
    "list": (b"[]", "must be a JSON object, got []"),
    "no queries": (b"{}", "queries must be a list of texts, got None"),
    "one text": (b'{"queries": "a"}', "queries must be a list of texts, got 'a'"),
    "number": (b'{"queries": ["a", 1]}', "queries[1] must be a text, got 1"),
    "too many": (json.dumps({"queries": ["a"] * 51}).encode(), "queries: 51 in one request"),
    "too long": (json.dumps({"queries": ["a" * 101]}).encode(), "has 101 characters, at most 100"),
    "half a pair": (b'{"queries": ["\\ud800"]}', "queries[0] holds half a surrogate pair"),
    "topk 0": (b'{"queries": ["a"], "topk": 0}', "topk must be from 1 to 7, got 0"),
    "topk 8": (b'{"queries": ["a"], "topk": 8}', "topk must be from 1 to 7, got 8"),
    "topk true": (b'{"queries": ["a"], "topk": true}', "topk must be from 1 to 7, got True"),
    "topk text": (b'{"queries": ["a"], "topk": "3"}', "topk must be from 1 to 7, got '3'"),
    "topk 3.0": (b'{"queries": ["a"], "topk": 3.0}', "topk must be from 1 to 7, got 3.0"),
    "scores": (b'{"queries": ["a"], "return_scores": 1}', "return_scores must be true or false"),
}


@pytest.mark.parametrize(("body", "message"), BAD.values(), ids=BAD)
def test_a_bad_request_is_told_what_is_wrong(address: str, body: bytes, message: str) -> None:
    status, answer = call(address, body)
    assert status == 422
    assert message in answer["detail"]
    assert call(address, b'{"queries": ["France"], "topk": 1}')[0] == 200


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_body_is_a_request_or_refused(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse_request(body, LIMITS, topk=3)
    assert refused.value.status == 422


def test_a_large_body_is_refused_before_it_is_read(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.putrequest("POST", "/retrieve")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read()) == {"detail": "the body is larger than 20000 bytes"}


def test_a_large_body_without_a_declared_length_is_refused(address: str) -> None:
    netloc = urlsplit(address).netloc
    connection = http.client.HTTPConnection(netloc, timeout=20)
    connection.request("POST", "/retrieve", iter([b" " * 15_000] * 2), encode_chunked=True)
    assert connection.getresponse().status == 413


def test_a_body_that_does_not_come_is_given_up(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.putrequest("POST", "/retrieve")
    connection.putheader("Content-Length", "10")
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 408
    assert "did not come in 1 s" in json.loads(response.read())["detail"]


def test_a_client_that_breaks_off_its_body_is_refused_and_counted(caplog) -> None:
    with running(create_app(lexical_retriever(DOCUMENTS))) as address:
        netloc = urlsplit(address)
        with socket.create_connection((netloc.hostname, netloc.port)) as client:
            client.sendall(b"POST /retrieve HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n{")
            time.sleep(0.1)
        for _ in range(100):
            counts = call(address, b"", method="GET", path="/health")[1]["counts"]
            if counts:
                break
            time.sleep(0.02)
    assert counts == {"refused": 1}
    assert not caplog.records


@pytest.mark.parametrize("topk", [0, 8])
def test_a_topk_that_every_request_would_break_is_refused_at_once(topk: int) -> None:
    with pytest.raises(ValueError, match=f"topk must be from 1 to 7, got {topk}"):
        create_app(lexical_retriever(DOCUMENTS), topk=topk, limits=LIMITS)


class Breaks:
    """A retriever that fails on one word, and gives too little on another."""

    documents = DOCUMENTS

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        if any("boom" in query for query in queries):
            raise RuntimeError("no such luck")
        return [[Hit(0, float("nan"))] if "nan" in query else [Hit(1, 0.5)] for query in queries][
            "lost" in queries :
        ]


def test_a_failing_search_is_a_500_and_the_server_goes_on(caplog) -> None:
    with running(create_app(Breaks())) as address:
        bodies = {
            word: json.dumps({"queries": [word], "return_scores": True}).encode()
            for word in ("boom", "nan", "lost", "fine")
        }
        answers = {word: call(address, body) for word, body in bodies.items()}
        health = call(address, b"", method="GET", path="/health")[1]
    assert [answers[word][0] for word in ("boom", "nan", "lost", "fine")] == [500, 500, 500, 200]
    assert "no such luck" in answers["boom"][1]["detail"]
    assert "1 queries gave 0 results" in answers["lost"][1]["detail"]
    assert health["counts"] == {"failed": 3, "served": 1, "queries": 1}


def test_it_listens_to_this_machine_unless_told_otherwise(monkeypatch) -> None:
    asked = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.update(options))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve(lexical_retriever(DOCUMENTS), port=port)
    assert asked["host"] == "127.0.0.1"
    serve(lexical_retriever(DOCUMENTS), port=port, host="0.0.0.0")
    assert asked["host"] == "0.0.0.0"


@pytest.mark.parametrize("name", ["queries", "topk", "body_bytes", "body_seconds", "waiting"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


def test_many_clients_at_once_get_their_own_answers(address: str) -> None:
    local = lexical_retriever(DOCUMENTS)
    queries = [f"{document.title} {n}" for n in range(50) for document in DOCUMENTS]
    expected = [local.search([query], 2)[0] for query in queries]
    remote = RemoteRetriever(DOCUMENTS, RetrievalClient(address))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda query: remote.search([query], 2)[0], queries))
    assert found == expected


# --- merging -------------------------------------------------------------------------------------


class Recorder:
    """Answers each query with itself; slow, so that requests meet; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def __call__(self, queries: list[str], k: int) -> list[list[str]]:
        self.calls.append((queries, k))
        time.sleep(0.05)
        if "bad" in queries:
            raise RuntimeError("bad query")
        return [[query] * k for query in queries]


def together(merged: MergedSearch, requests: list[tuple[list[str], int]]) -> list[object]:
    async def ask() -> list[object]:
        searches = [merged(queries, k) for queries, k in requests]
        return await asyncio.gather(*searches, return_exceptions=True)

    return asyncio.run(ask())


def test_requests_of_equal_k_are_searched_together_up_to_the_limit() -> None:
    search = Recorder()
    requests = [(["a"], 1), (["b", "c"], 1), (["d"], 2), ([], 1), (["e", "f"], 1), (["g"], 1)]
    answers = together(MergedSearch(search, 4, 99), requests)
    assert answers == [[[query] * k for query in queries] for queries, k in requests]
    assert all(len(queries) <= 4 for queries, _ in search.calls)
    assert sorted(k for _, k in search.calls) == [1, 1, 2]


def test_one_failure_is_not_that_of_its_neighbours() -> None:
    answers = together(MergedSearch(Recorder(), 99, 99), [(["a"], 1), (["bad"], 1), (["b"], 1)])
    assert answers[0] == [["a"]] and answers[2] == [["b"]]
    assert str(answers[1]) == "bad query"


def test_a_request_above_the_limit_of_one_search_is_still_searched() -> None:
    assert together(MergedSearch(Recorder(), 2, 9), [(list("abc"), 1)]) == [[["a"], ["b"], ["c"]]]


def test_too_many_waiting_are_told_to_come_back() -> None:
    answers = together(MergedSearch(Recorder(), 1, 3), [([str(n)], 1) for n in range(5)])
    refused = [answer for answer in answers if type(answer) is Overloaded]
    assert len(refused) == 2 and "3 requests are waiting" in str(refused[0])


def test_a_client_that_goes_away_costs_only_its_own_answer() -> None:
    async def ask() -> object:
        merged = MergedSearch(Recorder(), 99, 99)
        gone = asyncio.create_task(merged(["a"], 1))
        stays = asyncio.create_task(merged(["b"], 1))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await stays

    assert asyncio.run(ask()) == [["b"]]


def test_a_port_in_use_is_no_silent_success(address: str) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    with socket.socket() as probe:
        assert probe.connect_ex((host, port)) == 0
    with pytest.raises(OSError, match=f"cannot listen on host '127.0.0.1', port {port}: .*in use"):
        serve(lexical_retriever(DOCUMENTS), port=port)


@pytest.mark.parametrize("port", [0, -1, 65536, 2**40, True, "80", 1.5], ids=repr)
def test_a_port_that_is_none_is_refused_naming_it(port: object, monkeypatch) -> None:
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: None)
    with pytest.raises(ValueError, match=f"port {port!r} is not from 1 to 65535"):
        serve(lexical_retriever(DOCUMENTS), port=port)
