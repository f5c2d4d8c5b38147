"""What is wrong with a question file: counted, and named by row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turncredit.answers import normalise_answer
from turncredit.storage import sha256_file
from turncredit.worlds.question_files.files import read_records, rows_sha256
from turncredit.worlds.question_files.rows import SOURCES, QuestionRow, from_record, gold_answers

NAMED = 10
"""Problems of one kind that a report spells out."""


@dataclass(frozen=True)
class Problem:
    """One bad row; `row` counts from 1."""

    kind: str
    """broken: no row can be made of it; gold: something is wrong with its answers, if none is left
    its reward is missing; duplicate: of an id; unreadable: the file ends here, before its end."""
    row: int
    id: str
    detail: str


@dataclass
class FileReport:
    """What one file holds."""

    path: Path
    sha256: str = ""
    """Of the file's bytes."""
    content_sha256: str = ""
    """Of what the sound rows say."""
    rows: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    """Sound rows of each `source/split`."""
    repeated_questions: int = 0
    """Rows whose question came before in the same source and split: legal, and worth knowing."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether there are rows and no problem at all."""
        return self.rows > 0 and not self.problems

    @property
    def writable(self) -> bool:
        """Whether all rows may go into another file: a missing gold answer is all that is wrong."""
        return self.rows > 0 and set(self.counts) <= {"gold"}

    @property
    def status(self) -> int:
        """0 if all is sound, 1 if rows are bad or there are none, 2 if the file cannot be used."""
        return 2 if "unreadable" in self.counts else 0 if self.sound else 1

    @property
    def counts(self) -> Counter[str]:
        """Problems of each kind."""
        return Counter(problem.kind for problem in self.problems)


def validate(
    path: Path, *, data_source: str = "", split: str = "", sources: Sequence[str] = SOURCES
) -> FileReport:
    """Read all rows of a file and report; arguments as of `read_rows`.

    Rows are never dropped here: one with bad gold answers keeps its place and its reward is
    missing.  A file that cannot be read to its end has that as its last problem, `unreadable`.
    Raises FileNotFoundError when there is none.
    """
    report = FileReport(path, sha256=sha256_file(path))
    rows: list[QuestionRow] = []
    seen: dict[tuple[str, str, str], int] = {}

    def broken(number: int, error: ValueError) -> None:
        report.problems.append(Problem("broken", number, "", str(error)))

    try:
        for number, record in read_records(path, complain=broken):
            report.rows += 1
            try:
                row = from_record(
                    record, number - 1, data_source=data_source, split=split, sources=sources
                )
            except ValueError as error:
                identity = str(record.get("id") or "")
                report.problems.append(Problem("broken", number, identity, str(error)))
                continue
            rows.append(row)
            report.problems += _problems(number, row, record, seen)
    except ValueError as error:
        report.problems.append(Problem("unreadable", report.rows + 1, "", str(error)))
    report.content_sha256 = rows_sha256(rows)
    report.sources = Counter(f"{row.data_source}/{row.split}" for row in rows)
    questions = Counter((r.data_source, r.split, normalise_answer(r.question)) for r in rows)
    report.repeated_questions = questions.total() - len(questions)
    return report


def _problems(
    number: int, row: QuestionRow, record: dict[str, Any], seen: dict[tuple[str, str, str], int]
) -> list[Problem]:
    """What is wrong with a row that can be read; `seen` maps its key to its first row number."""
    found = []
    if complaint := gold_answers(record)[1]:
        found.append(Problem("gold", number, row.id, complaint))
    first = seen.setdefault((row.data_source, row.split, row.id), number)
    if first != number:
        where = f"{row.data_source}/{row.split}, first in row {first}"
        found.append(Problem("duplicate", number, row.id, where))
    return found


def shared_questions(files: Sequence[Sequence[QuestionRow]]) -> int:
    """How many different questions, normalised, stand in more than one of several files."""
    each = [{normalise_answer(row.question) for row in rows} for rows in files]
    return sum(1 for count in Counter(q for one in each for q in one).values() if count > 1)


def describe(report: FileReport) -> str:
    """The report as text: counts, then the first problems of each kind."""
    lines = [
        f"{report.path}: {report.rows} rows, SHA-256 {report.sha256}",
        f"  content SHA-256 {report.content_sha256}",
        *(f"  {name}: {count} rows" for name, count in sorted(report.sources.items())),
        f"  questions asked before: {report.repeated_questions}",
    ]
    for kind, count in sorted(report.counts.items()):
        lines.append(f"  {kind}: {count}")
        named = [problem for problem in report.problems if problem.kind == kind][:NAMED]
        lines += [f"    row {p.row}, id {p.id or 'unknown'}: {p.detail}" for p in named]
    return "\n".join(lines)
