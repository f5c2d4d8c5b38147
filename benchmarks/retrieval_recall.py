"""Recall of MiniLM, BM25, shared words and their fusion, over chunks of the whole Factbook.

PYTHONPATH=lib OMP_NUM_THREADS=1 nice python benchmarks/retrieval_recall.py

The first run embeds the chunks, which takes about seven minutes of one core; the vectors stay in
the cache.  A document counts as found when one of its chunks is among the first k chunks; a gold
chunk holds the field that the fact was read from and, where it is spelled alike, its value.

`REFERENCE` is an earlier measurement with other code: 8,033 chunks of 88.6 words on average, 118
chemical elements among them, and 200 questions of 30 attributes, of which this corpus has 12.
"""

import argparse
import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turncredit.answers import words
from turncredit.retrieval import (
    FusedRetriever,
    MiniLM,
    bm25_retriever,
    dense_retriever,
    lexical_retriever,
)
from turncredit.seeding import python_stream
from turncredit.worlds.base import Document
from turncredit.worlds.factbook import FactbookWorld, load_facts
from turncredit.worlds.factbook.profiles import load_profiles

CHUNK_WORDS = 110
DEPTH = 100
DROPPED = frozenset({"Environment", "Energy", "Transnational Issues", "Terrorism"})
FIELDS = {
    "capital": "Capital",
    "largest city": "Major urban areas - population",
    "currency code": "Exchange rates",
    "internet code": "Internet country code",
    "highest point": "Elevation",
    "longest river": "Major rivers (by length in km)",
    "top export commodity": "Exports - commodities",
    "top farm product": "Agricultural products",
    "top export partner": "Exports - partners",
    "second export partner": "Exports - partners",
    "top import partner": "Imports - partners",
    "longest land border": "Land boundaries",
}
"""Where the profile holds the fact."""

DESCRIPTORS = ("capital", "internet code", "highest point", "longest river")
"""Attributes that can stand for a country where no other country shares the value."""

SHARES = {"1 hop": 80, "2 hops": 70, "3 hops": 50, "sub-query": 200}
"""Questions of each kind; `--times` draws a multiple of them."""

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
class Asked:
    """A query and the facts it leads along: (title, relation, value), first to last."""

    query: str
    facts: tuple[tuple[str, str, str], ...]


def chunks() -> list[Document]:
    """All profiles cut into pieces of one section, at most `CHUNK_WORDS` words and a heading."""
    found = []
    for title, profile in load_profiles().items():
        for section, fields in profile.items():
            if section not in DROPPED:
                pieces = pack(list(section_lines(fields)), CHUNK_WORDS)
                texts = [f"{section}. {piece}" for piece in pieces]
                start = len(found)
                found += [Document(str(start + n), title, text) for n, text in enumerate(texts)]
    return found


def section_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """'field: subfield: text' for each text of a section that says more than a number."""
    for path, text in texts_below(fields, ()):
        outside = re.sub(r"\(.*?\)", "", text)
        if re.search(r"[^\W\d]{4}", outside) or not re.search(r"\d", outside):
            yield ": ".join((*path, text))


def texts_below(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Paths and plain texts, in the order of the profile."""
    for key, value in node.items():
        if key == "text" and value:
            yield path, " ".join(re.sub(r"<[^>]*>", " ", html.unescape(value)).split())
        elif key != "text" and hasattr(value, "items"):
            yield from texts_below(value, (*path, key.strip()))


def pack(lines: Sequence[str], most: int) -> list[str]:
    """Lines joined while they fit in `most` words; a longer line is cut, its field repeated."""
    packed: list[list[str]] = []
    for line in lines:
        parts, field = line.split(), line.split(":")[0].split()
        pieces = [parts[:most]]
        rest = parts[most:]
        step = most - len(field)
        pieces += [[*field, *rest[at : at + step]] for at in range(0, len(rest), step)]
        for piece in pieces:
            if packed and len(packed[-1]) + len(piece) <= most:
                packed[-1] += piece
            else:
                packed.append(piece)
    return [" ".join(piece) for piece in packed]


def asked(times: int, wording: str) -> dict[str, list[Asked]]:
    """Queries by kind, drawn with a fixed seed; `wording` is sentence or world.

    Half of the three-hop sentences begin at a described country ("the country whose capital is
    ..."), which has no name to search by; the world asks no such questions.
    """
    world = FactbookWorld(max_per_final=10_000)
    pools: dict[str, list[Asked]] = defaultdict(list)
    for question in world.train + world.test:
        facts = tuple((hop.title, hop.relation, hop.value) for hop in question.hops)
        text = sentence(facts, facts[0][0]) if wording == "sentence" else question.text
        pools[f"{len(facts)} hop{'s' if len(facts) > 1 else ''}"].append(Asked(text, facts))
        if len(facts) == 1:
            pools["sub-query"].append(Asked(f"{facts[0][0]} {facts[0][1]}", facts))
    stream = python_stream(0, "benchmark of recall", wording)
    drawn = {kind: stream.sample(pools[kind], times * count) for kind, count in SHARES.items()}
    if wording == "sentence":
        half = times * SHARES["3 hops"] // 2
        drawn["3 hops"][:half] = stream.sample(described(world), half)
    return drawn


def sentence(facts: Sequence[tuple[str, str, str]], start: str) -> str:
    """'What is the capital of the top export partner of Chad?'"""
    relations = " of the ".join(relation for _, relation, _ in reversed(facts))
    return f"What is the {relations} of {start}?"


def described(world: FactbookWorld) -> list[Asked]:
    """Two-hop questions whose first country is described by a value that no other shares."""
    facts = [fact for fact in load_facts() if fact.relation in DESCRIPTORS]
    shared = Counter((fact.relation, fact.value) for fact in facts)
    by_title = defaultdict(list)
    for fact in facts:
        if shared[fact.relation, fact.value] == 1:
            by_title[fact.title].append(fact)
    found = []
    for question in world.train + world.test:
        if len(question.hops) == 2:
            hops = tuple((hop.title, hop.relation, hop.value) for hop in question.hops)
            for fact in by_title[hops[0][0]]:
                start = f"the country whose {fact.relation} is {fact.value}"
                first = (fact.title, fact.relation, fact.value)
                found.append(Asked(sentence(hops, start), (first, *hops)))
    return found


class Gold:
    """Which chunks belong to a document, and which hold a fact."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self.chunks: dict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(documents):
            self.chunks[document.title].append(row)

    def of(self, fact: tuple[str, str, str]) -> set[int]:
        """Chunks with the fact's field and value; with the field, where it is spelled otherwise."""
        title, relation, value = fact
        field = f"{FIELDS[relation]}:"
        rows = [row for row in self.chunks[title] if field in self._documents[row].text]
        spelled = f" {' '.join(words(value))} "
        exact = [
            row for row in rows if spelled in f" {' '.join(words(self._documents[row].text))} "
        ]
        return set(exact or rows)


def recall(rankings: Sequence[Sequence[int]], asked: Sequence[Asked], gold: Gold) -> np.ndarray:
    """Means in the order of `COLUMNS` and `CHUNK_COLUMNS`; `rankings` hold five chunks each."""
    rows = []
    for ranking, each in zip(rankings, asked, strict=True):
        first, last = each.facts[0], each.facts[-1]
        wanted = [gold.chunks[first[0]]] * 2 + [gold.chunks[last[0]]] * 2
        wanted += [gold.of(first)] * 2 + [gold.of(last)]
        depths = (3, 5, 3, 5, 3, 5, 5)
        rows.append(
            [bool(set(ranking[:k]) & set(each)) for each, k in zip(wanted, depths, strict=True)]
        )
    return np.mean(rows, axis=0)


def report(kind: str, name: str, found: np.ndarray, count: int) -> None:
    """One line: the recalls, and their differences to the reference in points."""
    print(f"{kind:10} {name:8} n {count:4}  {'  '.join(f'{value:.3f}' for value in found)}")
    if (kind, name) in REFERENCE:
        reference = np.array(REFERENCE[kind, name])
        spread = 100 * np.sqrt(reference * (1 - reference) / SHARES[kind])
        points = 100 * (found - reference)
        print(f"{'':20}points  {'  '.join(f'{value:+5.1f}' for value in points)}")
        print(f"{'':17}reference\u00b1  {'  '.join(f'{value:5.1f}' for value in spread)}")


def main() -> None:
    """Build the chunks and the retrievers, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=4, help="multiple of the reference's 400")
    parser.add_argument("--skip-dense", action="store_true", help="without MiniLM: a minute")
    options = parser.parse_args()
    documents = chunks()
    lengths = [len(f"{document.title} {document.text}".split()) for document in documents]
    print(f"{len(documents)} chunks of {np.mean(lengths):.1f} words on average")
    retrievers = {"BM25": bm25_retriever(documents), "lexical": lexical_retriever(documents)}
    if not options.skip_dense:
        retrievers["MiniLM"] = dense_retriever(documents, encoder=MiniLM(threads=1))
    gold = Gold(documents)
    for wording in ("sentence", "world"):
        print(f"\n{wording}: {', '.join((*COLUMNS, *CHUNK_COLUMNS))}")
        for kind, each in asked(options.times, wording).items():
            found = {
                name: retriever.search([item.query for item in each], DEPTH)
                for name, retriever in retrievers.items()
            }
            if not options.skip_dense:
                fused = [Found(documents, found[name]) for name in ("MiniLM", "BM25")]
                found["fusion"] = FusedRetriever(fused).search([""] * len(each), DEPTH)
            for name, hits in found.items():
                rankings = [[hit.position for hit in row[:5]] for row in hits]
                report(kind, name, recall(rankings, each, gold), len(each))


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
