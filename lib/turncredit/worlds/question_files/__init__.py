"""Question files: NQ, HotpotQA and five more in Search-R1's schema, as verl reads it."""

from turncredit.worlds.question_files.files import read_rows, rows_sha256, write_rows
from turncredit.worlds.question_files.report import (
    FileReport,
    Problem,
    describe,
    shared_questions,
    validate,
)
from turncredit.worlds.question_files.rows import (
    SOURCES,
    QuestionRow,
    asked,
    rows_from_questions,
    to_question,
    with_prompts,
)

__all__ = [
    "SOURCES",
    "FileReport",
    "Problem",
    "QuestionRow",
    "asked",
    "describe",
    "read_rows",
    "rows_from_questions",
    "rows_sha256",
    "shared_questions",
    "to_question",
    "validate",
    "with_prompts",
    "write_rows",
]
