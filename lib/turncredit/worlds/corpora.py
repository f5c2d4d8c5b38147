"""Corpus files in the form of wiki-18 as documents: plain or gzipped, streamed or by position.

The form is Search-R1's, see `retrieval.passages`.  The real file has 21 million lines and 14 GB;
one document is in memory at a time.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turncredit import paths
from turncredit.retrieval.corpus import corpus_sha256
from turncredit.retrieval.passages import Passage, PassageFile, contents_of, parse_passage
from turncredit.storage import atomic_path, exclusive, sha256_file
from turncredit.worlds.base import Document
from turncredit.worlds.jsonl import parse_line, read_lines


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a corpus file, in order; `.gz` is unpacked on the way.

    Raises ValueError naming file and line at the first row that is no document.
    """
    for number, line in read_lines(path):
        record = parse_line(path, number, line)
        try:
            if "id" not in record:
                raise ValueError("id is missing")
            yield _document(parse_passage(record))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not a document ({error})") from error


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Write a plain corpus file, atomically; `read_documents` gives equal documents back.

    Raises ValueError naming the document whose title the form cannot hold (it has a line end).
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        for document in documents:
            row = {"id": document.id, "contents": contents_of(document)}
            if _document(parse_passage(row)) != document:
                raise ValueError(f"document {document.id}: title {document.title!r} has a line end")
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


class JsonlCorpus(Sequence[Document]):
    """A corpus file as a sequence of documents, each read from disk when it is asked for.

    Memory: 8 bytes a line.  A `.gz` file cannot be entered in the middle: it is unpacked once, into
    a folder of `cache` (default `<turncredit cache>/corpora`) named after the hash of its bytes.
    Opening finds the lines; a malformed row is a ValueError naming file and line when it is
    reached, and `sha256()`, which reads them all, is the check of the whole file.
    """

    def __init__(self, path: Path, *, cache: Path | None = None) -> None:
        self.path = path
        packed = path.suffix == ".gz"
        plain = _unpacked(path, cache or paths.cache() / "corpora") if packed else path
        self._passages = PassageFile(plain)
        self.file_sha256 = self._passages.sha256
        """Of the plain file's bytes: what the manifest of an index over this file holds."""

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, position: Any) -> Any:
        """The document at a position, or a list for a slice; IndexError naming the number."""
        found = self._passages[position]
        return list(map(_document, found)) if type(position) is slice else _document(found)

    def __iter__(self) -> Iterator[Document]:
        return map(_document, self._passages)

    def sha256(self) -> str:
        """`retrieval.corpus_sha256`, streamed: equal for every file that says the same."""
        return corpus_sha256(self)


def _document(passage: Passage) -> Document:
    return Document(passage.id, passage.title, passage.text)


def _unpacked(path: Path, cache: Path) -> Path:
    """The plain copy of a gzipped file in `cache`, made if it is not there."""
    target = cache / sha256_file(path)[:32] / path.stem
    with exclusive(target.parent / ".lock"):
        if not target.exists():
            with atomic_path(target) as temporary, temporary.open("wb") as plain:
                plain.writelines(line + b"\n" for _, line in read_lines(path))
    return target
