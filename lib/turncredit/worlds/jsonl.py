"""JSON lines, plain or gzipped, one at a time: every complaint names the file and the line."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turncredit.retrieval.passages import parse_json


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end) of a file that is gzipped if named `.gz`.

    Lines end at "\\n" only: a text may hold the other separators.
    Raises ValueError naming file and line where the gzip data are damaged or cut short.
    """
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
        try:
            for number, line in enumerate(handle, start=1):
                yield number, line.removesuffix(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}, line {number + 1}: damaged gzip data ({error})") from error


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object on a line, read by `parse_json`.

    Raises ValueError naming file and line for anything else.
    """
    try:
        record = parse_json(line)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
    if type(record) is not dict:
        kind = type(record).__name__
        raise ValueError(f"{path}, line {number}: a {kind}, not a JSON object")
    return record
