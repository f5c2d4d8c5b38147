"""Recall of MiniLM, BM25, shared words and their fusion, over chunks of the whole Factbook.

PYTHONPATH=lib OMP_NUM_THREADS=1 nice python benchmarks/retrieval_recall.py

The first run embeds the chunks, 15 minutes of one core; the vectors stay in the cache.
A document counts as found when one of its chunks is among the first k chunks; a gold chunk holds
the field that the fact was read from and, where it is spelled alike, its value.

With the pip packages `mendeleev` (118 chemical elements; `--no-deps` will do) and `PyStemmer` the
corpus and the search are as close to the reference as is known.  `--vary` changes one thing at a
time, for BM25 alone.

`REFERENCE` is an earlier measurement with other code: 8,033 chunks of 88.6 words on average, and
400 questions.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from retrieval_chunks import Gold, country_chunks, load_elements
from retrieval_questions import SHARES, Asked, discoveries, drawn, load_facts, pools

from turncredit.retrieval import (
    FusedRetriever,
    MiniLM,
    Retriever,
    bm25_retriever,
    dense_retriever,
    lexical_retriever,
)
from turncredit.retrieval.corpus import passage
from turncredit.retrieval.fusion import Bm25Index
from turncredit.worlds.base import Document

DEPTH = 100
MOST_PER_FINAL = 60
KINDS = (*SHARES, "2, named", "2, element", "3, described", "3, named", "3, element")
"""Those of the reference, and the types that two and three hops are made of."""

COLUMNS = ("first doc @3", "first doc @5", "last doc @3", "last doc @5")
CHUNK_COLUMNS = ("first chunk @3", "first chunk @5", "last chunk @5")

REFERENCE = {
    ("1 hop", "MiniLM"): (0.963, 0.988, 0.963, 0.988, 0.863, 0.925, 0.925),
    ("1 hop", "BM25"): (0.925, 0.963, 0.925, 0.963, 0.537, 0.637, 0.637),
    ("1 hop", "fusion"): (0.975, 0.988, 0.975, 0.988, 0.812, 0.925, 0.925),
    ("2 hops", "MiniLM"): (0.986, 0.986, 0.043, 0.086, 0.743, 0.829, 0.043),
    ("2 hops", "BM25"): (0.743, 0.814, 0.086, 0.114, 0.257, 0.314, 0.043),
    ("3 hops", "MiniLM"): (0.640, 0.640, 0.000, 0.020, 0.500, 0.500, 0.000),
    ("3 hops", "BM25"): (0.740, 0.780, 0.000, 0.000, 0.380, 0.440, 0.000),
    ("sub-query", "MiniLM"): (0.995, 1.000, 0.995, 1.000, 0.870, 0.910, 0.910),
    ("sub-query", "BM25"): (0.900, 0.950, 0.900, 0.950, 0.610, 0.725, 0.725),
}


@dataclass(frozen=True)
class Tokens:
    """The tokeniser of `bm25s`: words of two letters and more, lower case."""

    stop_words: str | None
    stemmer: Any = None

    def encode(self, texts: Sequence[str]) -> list[list[str]]:
        """One list of words for each text."""
        return importlib.import_module("bm25s").tokenize(
            list(texts),
            stopwords=self.stop_words,
            stemmer=self.stemmer,
            return_ids=False,
            show_progress=False,
        )

    def retriever(self, documents: Sequence[Document]) -> Retriever:
        """BM25 over title and text, by these words."""
        texts = self.encode([passage(document) for document in documents])
        return Retriever(documents, self, Bm25Index(texts))


def stemmer() -> Any | None:
    """English stems of `PyStemmer`; None without it."""
    if importlib.util.find_spec("Stemmer") is None:
        return None
    return importlib.import_module("Stemmer").Stemmer("english")


def recall(rankings: Sequence[Sequence[int]], asked: Sequence[Asked], gold: Gold) -> np.ndarray:
    """Means in the order of `COLUMNS` and `CHUNK_COLUMNS`; `rankings` hold five chunks each."""
    rows = []
    for ranking, each in zip(rankings, asked, strict=True):
        ends = (each.facts[0], each.facts[-1])
        first, last = (gold.chunks[fact.title] for fact in ends)
        first_chunk, last_chunk = (gold.of(fact.title, fact.field, fact.value) for fact in ends)
        wanted = (first, first, last, last, first_chunk, first_chunk, last_chunk)
        depths = (3, 5, 3, 5, 3, 5, 5)
        rows.append(
            [bool(set(ranking[:k]) & set(each)) for each, k in zip(wanted, depths, strict=True)]
        )
    return np.mean(rows, axis=0)


def report(kind: str, name: str, found: np.ndarray, count: int) -> None:
    """The recalls and, where there is a reference, the differences.

    points: percentage points; errors: the same in standard errors of the difference of two shares.
    """
    print(f"{kind:12} {name:12} n {count:4}  {_row(found, '.3f')}")
    reference = REFERENCE.get((kind, "BM25" if name.startswith("BM25") else name))
    if reference is not None:
        there = np.array(reference)
        each = 1 / count + 1 / SHARES[kind]
        pooled = (found * count + there * SHARES[kind]) / (count + SHARES[kind])
        spread = np.sqrt(pooled * (1 - pooled) * each)
        print(f"{'':26}points  {_row(100 * (found - there), '+.1f')}")
        print(f"{'':26}errors  {_row((found - there) / np.maximum(spread, 1e-9), '+.1f')}")


def _row(values: np.ndarray, form: str) -> str:
    return "  ".join(f"{value:{form}}".rjust(5) for value in values)


def main() -> None:
    """Build the chunks and the retrievers, search, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="multiple of the reference's 400")
    parser.add_argument("--most-per-final", type=int, default=MOST_PER_FINAL, help="0 for all")
    parser.add_argument("--skip-dense", action="store_true", help="without MiniLM: a minute")
    parser.add_argument("--vary", action="store_true", help="one thing at a time, for BM25")
    options = parser.parse_args()
    elements = load_elements()
    facts = load_facts()
    places = {document.title: place for document, place in elements}
    types = pools(facts, discoveries(places, facts))
    print(f"{len(facts)} facts; {', '.join(f'{len(each)} {name}' for name, each in types.items())}")
    asked = {
        kind: drawn(types, kind, options.times * SHARES.get(kind, 50), options.most_per_final)
        for kind in KINDS
    }
    asked = {kind: each for kind, each in asked.items() if each}
    more = [document for document, _ in elements]
    if options.vary:
        vary({kind: asked[kind] for kind in SHARES}, more)
        return
    documents = country_chunks() + more
    describe(documents)
    compare(documents, asked, dict(retrievers(documents, dense=not options.skip_dense)))


def describe(documents: Sequence[Document]) -> None:
    """Number and length of the chunks."""
    lengths = [len(f"{document.title} {document.text}".split()) for document in documents]
    print(f"{len(documents)} chunks of {np.mean(lengths):.1f} words on average")


def retrievers(documents: Sequence[Document], *, dense: bool) -> Iterator[tuple[str, Any]]:
    """Ours; BM25 with the words that `bm25s` makes, with and without stems."""
    yield "BM25", bm25_retriever(documents)
    yield "BM25 stop", Tokens("en").retriever(documents)
    if (stems := stemmer()) is not None:
        yield "BM25 stem", Tokens("en", stems).retriever(documents)
    yield "lexical", lexical_retriever(documents)
    if dense:
        yield "MiniLM", dense_retriever(documents, encoder=MiniLM(threads=1))


def compare(
    documents: Sequence[Document],
    asked: Mapping[str, Sequence[Asked]],
    by_name: Mapping[str, Any],
) -> None:
    """Search every question by every retriever, and report."""
    gold = Gold(documents)
    print(f"\n{', '.join((*COLUMNS, *CHUNK_COLUMNS))}")
    for kind, each in asked.items():
        queries = [item.query for item in each]
        found = {name: retriever.search(queries, DEPTH) for name, retriever in by_name.items()}
        if "MiniLM" in found:
            words = "BM25 stem" if "BM25 stem" in found else "BM25 stop"
            fused = [Found(documents, found[name]) for name in ("MiniLM", words)]
            found["fusion"] = FusedRetriever(fused).search(queries, DEPTH)
        for name, hits in found.items():
            rankings = [[hit.position for hit in row[:5]] for row in hits]
            report(kind, name, recall(rankings, each, gold), len(each))


def vary(asked: Mapping[str, Sequence[Asked]], elements: Sequence[Document]) -> None:
    """BM25 as it is, then with one thing changed."""
    stems = stemmer()
    corpora = {
        "heading without the names of the fields": {"fields_named": False},
        "lines of numbers kept": {"numbers": True},
        "chunks of 50 words": {"most": 50},
        "chunks of 150 words": {"most": 150},
    }
    words = {"no stems": ("en", None), "no stop words": (None, stems), "neither": (None, None)}
    for name in ("as it is", *corpora, *words):
        documents = country_chunks(**corpora.get(name, {})) + list(elements)
        print(f"\n# {name}")
        describe(documents)
        tokens = Tokens(*words.get(name, ("en", stems)))
        compare(documents, asked, {"BM25": tokens.retriever(documents)})


@dataclass(frozen=True)
class Found:
    """Results at hand in the place of a retriever, so that nothing is encoded twice."""

    documents: Sequence[Document]
    hits: Sequence[Sequence[Any]]

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Any]]:
        """The results, whatever is asked."""
        return self.hits


if __name__ == "__main__":
    main()
