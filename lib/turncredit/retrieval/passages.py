"""Passages in Search-R1's form: `{"id": "0", "contents": "\\"Title\\"\\ntext"}`, one row a line.

The corpus of Search-R1, wiki-18, has 21 million rows in 14 GB: rows are read where they lie.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from turncredit.worlds.base import Document

_BLOCK = 1 << 22
_GZIP = b"\x1f\x8b"


class BadRow(ValueError):
    """A row of a corpus file that is refused; the message names file and line."""


@dataclass(frozen=True)
class Passage:
    """A titled text out of a corpus file or a server; has what a world's document has."""

    id: str
    title: str
    text: str


def contents_of(document: "Document | Passage") -> str:
    r"""The title in quotes, then the text; line ends within a title become blanks.

    >>> contents_of(Passage("7", "The Hague", "Seat of the court."))
    '"The Hague"\nSeat of the court.'
    """
    return f'"{" ".join(document.title.splitlines())}"\n{document.text}'


def parse_passage(row: Any) -> Passage:
    r"""A passage from a row with `contents`, or with `title` and `text`.

    The first line of `contents` is the title; one pair of quotes around it is not part of it.
    Servers may leave the id out: then it is made from the contents.  Raises ValueError naming the
    field.

    >>> parse_passage({"id": 7, "contents": '"The Hague"\nSeat of the court.'})
    Passage(id='7', title='The Hague', text='Seat of the court.')
    """
    if type(row) is not dict:
        raise ValueError(f"a {type(row).__name__}, not an object")
    if "contents" in row:
        title, _, text = _text(row["contents"], "contents").partition("\n")
        title = title[1:-1] if len(title) >= 2 and title[0] == title[-1] == '"' else title
    else:
        title, text = _text(row.get("title"), "title"), _text(row.get("text"), "text")
    made = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
    identity = row.get("id", made)
    if type(identity) is int:
        identity = str(identity)
    if identity == "":
        raise ValueError("id is ''")
    return Passage(_text(identity, "id"), title, text)


class PassageFile(Sequence[Passage]):
    """A corpus file as a sequence; 8 bytes of memory a row.

    Opening finds the lines and the hash of the file's bytes; a malformed row is a BadRow when it is
    reached.  Raises ValueError for a gzipped file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                raise ValueError(f"{path} is gzipped, and rows are read by position: unpack it")
        self._offsets, self.sha256 = _scan(path)
        self._file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: Any) -> Any:
        """The passage at a position, or a list for a slice."""
        if type(position) is slice:
            return [self._read(row) for row in range(*position.indices(len(self)))]
        row = position + len(self) if position < 0 else position
        if not 0 <= row < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, no row {position}")
        return self._read(row)

    def __iter__(self) -> Iterator[Passage]:
        with self.path.open("rb") as file:
            for row, line in enumerate(file):
                yield self._parse(row, line)

    def _read(self, row: int) -> Passage:
        start, end = self._offsets[row : row + 2].tolist()
        # a positioned read moves no shared cursor: threads may read at the same time
        return self._parse(row, os.pread(self._file.fileno(), end - start, start))

    def _parse(self, row: int, line: bytes) -> Passage:
        try:
            record = parse_json(line)
            if type(record) is dict and "id" not in record:
                raise ValueError("id is missing")
            return parse_passage(record)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"{self.path}, line {row + 1}: not a passage ({error})") from error


def check_passages(passages: PassageFile, advance: Callable[[], object]) -> None:
    """Read every passage of a file; `advance` is called after each.  8 bytes of memory a row.

    Raises BadRow naming file and line of a malformed row, or both lines of an id that comes twice:
    by its id alone a passage could then not be told from another.
    """
    marks = np.zeros(len(passages), dtype=np.uint64)
    for row, passage in enumerate(passages):
        digest = hashlib.blake2b(passage.id.encode(), digest_size=8).digest()
        marks[row] = int.from_bytes(digest, "little")
        advance()
    order = np.argsort(marks, kind="stable")
    for place in np.flatnonzero(marks[order[1:]] == marks[order[:-1]]):
        first, again = order[place : place + 2].tolist()
        if passages[first].id == passages[again].id:  # and not two ids with one mark
            lines = f"lines {first + 1} and {again + 1}"
            raise BadRow(f"{passages.path}, {lines}: both have the id {passages[again].id!r}")


def parse_json(line: bytes) -> Any:
    """The JSON value in UTF-8 bytes.

    Raises ValueError for what is no JSON, and for what Python would read all the same: a key that
    an object repeats (its last value would win), NaN, Infinity, and numbers that become infinite.

    >>> parse_json(b'{"id": 1, "score": 0.5}')
    {'id': 1, 'score': 0.5}
    """
    return _DECODER.decode(line.decode("utf-8"))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} comes twice in one object")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{shown(text)} is no finite number")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_constant=_finite, parse_float=_finite
)


def shown(value: Any) -> str:
    """A value from a file or a request, short enough for a message.

    >>> shown([3]), len(shown([3] * 1000))
    ('[3]', 63)
    """
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _text(value: Any, field: str) -> str:
    if type(value) is not str:
        raise ValueError(f"{field} is {shown(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} holds half a surrogate pair") from error
    return value


def _scan(path: Path) -> tuple[np.ndarray, str]:
    """Offsets (rows + 1,) int64 of the line starts and of the end; hex SHA-256 of the bytes."""
    starts, position, digest = [np.zeros(1, dtype=np.int64)], 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
            starts.append(ends + (position + 1))
            position += len(block)
    offsets = np.concatenate(starts)
    whole = offsets if offsets[-1] == position else np.append(offsets, position)
    return whole, digest.hexdigest()
