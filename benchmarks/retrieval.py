"""Time of lexical search over 250 documents, and of `FlatIndex` beside a bare FAISS call.

PYTHONPATH=lib OMP_NUM_THREADS=1 python benchmarks/retrieval.py

Ends with status 1 when `FlatIndex` takes more than 1.2 times as long at some batch size.
"""

import random
import sys
import time
from collections.abc import Callable
from statistics import median

import faiss
import numpy as np

from turncredit.retrieval import lexical_retriever
from turncredit.retrieval.index import FlatIndex
from turncredit.worlds.base import Document

VOCABULARY, DOCUMENTS, WORDS_PER_TEXT = 5_000, 250, 600
VECTORS, DIMENSION, K = 12_000, 384, 5
MOST = 1.2


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Mean wall time of one call over `repeats` calls, after one to warm up."""
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


def zipf_documents(stream: np.random.Generator) -> list[Document]:
    """Documents whose words follow a Zipf law, with titles of two rare words."""
    chances = 1 / np.arange(1, VOCABULARY + 1)
    texts = stream.choice(VOCABULARY, (DOCUMENTS, WORDS_PER_TEXT), p=chances / chances.sum())
    titles = [f"name{stream.integers(400)} place{stream.integers(400)}" for _ in texts]
    return [
        Document(str(row), title, " ".join(f"w{word}" for word in text))
        for row, (title, text) in enumerate(zip(titles, texts, strict=True))
    ]


def report_lexical(stream: np.random.Generator) -> None:
    """Print microseconds a query: encoding, searching, both."""
    documents = zipf_documents(stream)
    start = time.perf_counter()
    retriever = lexical_retriever(documents)
    print(f"lexical, {DOCUMENTS} documents: built in {(time.perf_counter() - start) * 1e3:.0f} ms")
    queries = [f"w3 w1 {each.title} w40" for each in documents]
    encoded = retriever.encoder.encode(queries)
    calls = {
        "encode": lambda: retriever.encoder.encode(queries),
        "search": lambda: retriever.index.search(encoded, K),
        "both": lambda: retriever.search(queries, K),
    }
    for name, call in calls.items():
        print(f"  {name:7}{microseconds(call, 20) / len(queries):8.1f} us/query")


def report_flat(stream: np.random.Generator) -> int:
    """Print `FlatIndex.search` over bare `index.search`, call by call; how many are above `MOST`.

    CPU time, of one thread: what else the machine does is not counted, but strikes both.
    """
    vectors = stream.standard_normal((VECTORS, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ours, bare = FlatIndex(vectors), faiss.IndexFlatIP(DIMENSION)
    bare.add(vectors)
    print(f"flat, {VECTORS} x {DIMENSION}, k = {K}: median CPU time of alternating calls")
    above = 0
    for batch, calls in ((1, 401), (8, 101), (64, 21), (256, 7)):
        queries = vectors[:batch] + 0.01
        own, peer = alternating(
            lambda: ours.search(queries, K),  # noqa: B023
            lambda: bare.search(queries, K),  # noqa: B023
            calls,
        )
        above += own / peer > MOST
        own, peer = own / batch * 1e6, peer / batch * 1e6
        print(f"  batch {batch:4}: {own:7.0f} us/query, bare {peer:7.0f}, ratio {own / peer:.2f}")
    return above


def alternating(
    first: Callable[[], object], second: Callable[[], object], calls: int
) -> tuple[float, float]:
    """Median CPU seconds of a call of each; which goes first is drawn anew each time."""
    seconds: tuple[list[float], list[float]] = ([], [])
    order = [(first, seconds[0]), (second, seconds[1])]
    stream = random.Random(0)
    for _ in range(calls):
        for call, kept in stream.sample(order, 2):
            start = time.process_time()
            call()
            kept.append(time.process_time() - start)
    return median(seconds[0]), median(seconds[1])


if __name__ == "__main__":
    report_lexical(np.random.default_rng(0))
    sys.exit(report_flat(np.random.default_rng(1)) > 0)
