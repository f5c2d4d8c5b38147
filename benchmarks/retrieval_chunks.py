"""The corpus of the benchmark of recall: profiles cut into chunks, and chemical elements."""

import html
import importlib.util
import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval_attributes import ATTRIBUTES, RELATIONS

from turncredit.answers import words
from turncredit.worlds.base import Document
from turncredit.worlds.factbook.profiles import load_profiles

CHUNK_WORDS = 100
DROPPED = frozenset({"Environment", "Energy", "Transnational Issues", "Terrorism"})
"""Sections that nothing is asked about."""

_MAGNITUDES = frozenset({"million", "billion", "trillion", "years"})
_ASKED = frozenset(attribute.path for attribute in (*ATTRIBUTES, *RELATIONS))


def country_chunks(
    *,
    most: int = CHUNK_WORDS,
    dropped: Collection[str] = DROPPED,
    numbers: bool = False,
    fields_named: bool = True,
) -> list[Document]:
    """Pieces of one section of a profile, at most `most` words below a heading.

    dropped: sections left out.  numbers: keep lines that say no more than a number.  fields_named:
    the heading names the section and the fields in the piece, not the section alone.
    """
    found = []
    for title, profile in load_profiles().items():
        for section, content in profile.items():
            if section in dropped:
                continue
            for lines in pack(list(section_lines(section, content, numbers)), most):
                named = "; ".join(dict.fromkeys(line.split(":")[0] for line in lines))
                heading = f"{section} - {named}" if fields_named else section
                text = f"{heading}\n{' '.join(lines)}"
                found.append(Document(str(len(found)), title, text))
    return found


def section_lines(section: str, content: Mapping[str, Any], numbers: bool) -> Iterator[str]:
    """'field: part: text' for each text; without `numbers`, those asked about or telling more."""
    for path, text in texts_below(content, ()):
        if numbers or (section, *path) in _ASKED or tells(text):
            yield ": ".join((*path, text))


def tells(text: str) -> bool:
    """Whether a text says more than a number; brackets, units and magnitudes are not more.

    >>> tells("$7.4 billion (2021 est.)"), tells("18 years of age; universal"), tells("none")
    (False, True, True)
    """
    outside = re.sub(r"\(.*?\)", "", text)
    long_words = {word.lower() for word in re.findall(r"[^\W\d]{4,}", outside)}
    return bool(long_words - _MAGNITUDES) or not re.search(r"\d", outside)


def texts_below(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Paths and plain texts, in the order of the profile."""
    for key, value in node.items():
        if key == "text" and value:
            yield path, " ".join(re.sub(r"<[^>]*>", " ", html.unescape(value)).split())
        elif key != "text" and hasattr(value, "items"):
            yield from texts_below(value, (*path, key.strip()))


def pack(lines: Sequence[str], most: int) -> list[list[str]]:
    """Lines put together while they fit in `most` words.

    A longer line is cut, and its field stands before each piece.

    >>> pack(["a: b c", "d: e", "f: 1 2 3 4 5 6"], 5)
    [['a: b c', 'd: e'], ['f: 1 2 3 4'], ['f: 5 6']]
    """
    packed: list[list[str]] = []
    left = 0
    for line in lines:
        field, parts = line.split(":")[0] + ":", line.split()
        step = most - len(field.split())
        rest = [[field, *parts[at : at + step]] for at in range(most, len(parts), step)]
        for words_of_piece in (parts[:most], *rest):
            piece = " ".join(words_of_piece)
            if packed and len(piece.split()) <= left:
                packed[-1].append(piece)
            else:
                packed.append([piece])
                left = most
            left -= len(piece.split())
    return packed


def load_elements() -> list[tuple[Document, str]]:
    """A document for each chemical element, and the country of its discovery; '' if unknown.

    Read from the pip package `mendeleev`, which need not be importable.  [] without it.
    """
    found = importlib.util.find_spec("mendeleev")
    if found is None or found.origin is None:
        return []
    path = Path(found.origin).with_name("elements.db")
    columns = ("description", "name_origin", "discoverers", "discovery_location", "uses")
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        rows = database.execute(
            f"SELECT atomic_number, name, {', '.join(columns)} FROM elements ORDER BY atomic_number"
        ).fetchall()
    finally:
        database.close()
    return [
        (_element(number, name, columns, texts), texts[3] or "") for number, name, *texts in rows
    ]


def _element(number: int, name: str, columns: Sequence[str], texts: Sequence[str]) -> Document:
    named = zip(columns, texts, strict=True)
    said = [f"{column.replace('_', ' ').capitalize()}: {text}" for column, text in named if text]
    return Document(f"element-{number}", name, " ".join(["Chemical element.", *said]))


class Gold:
    """Which chunks belong to a document, and which hold a value."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._texts = [document.text for document in documents]
        self._spelled = [_spelled(text) for text in self._texts]
        self.chunks: dict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(documents):
            self.chunks[document.title].append(row)

    def of(self, title: str, field: str, value: str) -> set[int]:
        """Chunks of `title` with `field:` and the value; all with the field if none spells it."""
        rows = [row for row in self.chunks[title] if f"{field}:" in self._texts[row]]
        exact = [row for row in rows if _spelled(value) in self._spelled[row]]
        return set(exact or rows)


def _spelled(text: str) -> str:
    return f" {' '.join(words(text))} "
