"""Time of lexical search over 250 documents, and of `FlatIndex` beside a bare FAISS call.

PYTHONPATH=lib OMP_NUM_THREADS=1 python benchmarks/retrieval.py
"""

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


def report_flat(stream: np.random.Generator) -> None:
    """Print `FlatIndex.search` over bare `index.search`, the two taken in turn, by batch size."""
    vectors = stream.standard_normal((VECTORS, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ours, bare = FlatIndex(vectors), faiss.IndexFlatIP(DIMENSION)
    bare.add(vectors)
    print(f"flat, {VECTORS} x {DIMENSION}, k = {K}, median of 11 pairs")
    for batch, repeats in ((1, 20), (8, 10), (64, 3), (256, 1)):
        queries = vectors[:batch] + 0.01
        pairs = [
            (
                microseconds(lambda: ours.search(queries, K), repeats),  # noqa: B023
                microseconds(lambda: bare.search(queries, K), repeats),  # noqa: B023
            )
            for _ in range(11)
        ]
        ratio = median(own / peer for own, peer in pairs)
        own, peer = (median(column) / batch for column in zip(*pairs, strict=True))
        print(f"  batch {batch:4}: {own:7.0f} us/query, bare {peer:7.0f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    report_lexical(np.random.default_rng(0))
    report_flat(np.random.default_rng(1))
