"""Question files on disk: Parquet in Search-R1's schema, and the same columns as JSON lines."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turncredit.storage import atomic_path, sha256_json, write_text
from turncredit.worlds.jsonl import parse_line, read_lines
from turncredit.worlds.question_files.rows import (
    SOURCES,
    QuestionRow,
    check_source,
    from_record,
    to_record,
)

_BATCH = 4096


def read_rows(
    path: Path, *, data_source: str = "", split: str = "", sources: Sequence[str] = SOURCES
) -> list[QuestionRow]:
    """The rows of a `.parquet`, `.jsonl` or `.jsonl.gz` file; see `from_record`.

    Raw files (`id`, `question`, `golden_answers`) need `data_source` and `split`.  Columns outside
    the schema, such as `metadata`, are not kept.  Raises ValueError naming file, row and field.
    """
    rows = []
    for number, record in read_records(path):
        try:
            row = from_record(
                record, number - 1, data_source=data_source, split=split, sources=sources
            )
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
        rows.append(row)
    return rows


def write_rows(
    path: Path, rows: Sequence[QuestionRow], *, sources: Sequence[str] = SOURCES
) -> None:
    """Write rows as Parquet or JSON lines, by the suffix; `read_rows` gives equal rows back.

    verl wants rows with a prompt: see `with_prompts`.
    Raises ValueError naming the row for a source that is none of `sources`.
    """
    for number, row in enumerate(rows, start=1):
        try:
            check_source(row.data_source, sources)
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
    records = [to_record(row) for row in rows]
    if path.suffix == ".parquet":
        _write_parquet(path, records)
    elif path.suffix == ".jsonl":
        write_text(path, "".join(f"{json.dumps(r, ensure_ascii=False)}\n" for r in records))
    else:
        raise ValueError(f"{path}: write .parquet or .jsonl, not {path.suffix or 'no suffix'!r}")


def _refuse(number: int, error: ValueError) -> None:
    raise error


def read_records(
    path: Path, *, complain: Callable[[int, ValueError], None] = _refuse
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, columns) of a question file, a few thousand rows in memory at a time.

    A line that is no JSON object goes to `complain` with its number; by default it is raised.
    Raises ValueError naming the file when it cannot be read on.
    """
    if path.suffix == ".parquet":
        yield from _parquet_records(path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        for number, line in read_lines(path):
            try:
                record = parse_line(path, number, line)
            except ValueError as error:
                complain(number, error)
                continue
            yield number, record
    else:
        raise ValueError(f"{path}: not a .parquet, .jsonl or .jsonl.gz file")


def rows_sha256(rows: Sequence[QuestionRow]) -> str:
    """Hex SHA-256 of what the rows say, whatever the file's form and the version that wrote it."""
    return sha256_json([to_record(row) for row in rows])


def _parquet_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    pyarrow, parquet = _pyarrow()
    number = 0
    with path.open("rb") as handle:
        try:
            file = parquet.ParquetFile(handle)
            _check_columns(file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
        except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
            raise ValueError(f"{path}: not a sound Parquet file ({error})") from error


def _check_columns(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:  # the last would win, unseen
            raise ValueError(f"the column {name!r} comes {count} times")


def _write_parquet(path: Path, records: list[dict[str, Any]]) -> None:
    pyarrow, parquet = _pyarrow()
    if any("agent_name" in record for record in records):
        records = [{"agent_name": ""} | record for record in records]
    table = pyarrow.Table.from_pylist(records, schema=_schema(pyarrow, records))
    with atomic_path(path) as temporary:
        parquet.write_table(table, temporary)


def _schema(pyarrow: Any, records: list[dict[str, Any]]) -> Any:
    """Fixed column types, so that a file of no rows and one of empty lists have them too."""
    text, texts = pyarrow.string(), pyarrow.list_(pyarrow.string())
    truth = pyarrow.struct([("target", texts)])
    fields = [
        ("id", text),
        ("question", text),
        ("golden_answers", texts),
        ("data_source", text),
        ("prompt", pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))),
        ("ability", text),
        ("reward_model", pyarrow.struct([("style", text), ("ground_truth", truth)])),
        ("extra_info", pyarrow.struct([("split", text), ("index", pyarrow.int64())])),
    ]
    named = any("agent_name" in record for record in records)
    return pyarrow.schema([*fields, ("agent_name", text)] if named else fields)


def _pyarrow() -> tuple[Any, Any]:
    # only Parquet files need it, so a world of JSON lines works without
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
