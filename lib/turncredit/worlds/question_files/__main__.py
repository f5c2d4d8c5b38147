r"""Check and convert question files.

python -m turncredit.worlds.question_files validate train.parquet test.parquet
python -m turncredit.worlds.question_files convert raw.jsonl nq_train.parquet \
    --data-source nq --split train --template prompt.txt

The exit status of either is 0 if all rows are sound, 1 if some are bad or there are none, and 2 if
a file or an option cannot be used.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from turncredit.worlds.question_files.files import read_rows, write_rows
from turncredit.worlds.question_files.report import describe, shared_questions, validate
from turncredit.worlds.question_files.rows import SOURCES, check_source, with_prompts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the status is that of the worst file, see `FileReport.status`.

    2 also stands for an option or a target that cannot be used.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.data_source:
            check_source(options.data_source, SOURCES)
        return options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2


def _validate(options: argparse.Namespace) -> int:
    named = {"data_source": options.data_source, "split": options.split}
    reports = [validate(path, **named) for path in options.files]
    sys.stdout.reconfigure(errors="backslashreplace")  # half a surrogate pair may be in an id
    print("\n".join(map(describe, reports)))
    status = max(report.status for report in reports)
    if len(reports) > 1 and not status:
        shared = shared_questions([read_rows(path, **named) for path in options.files])
        print(f"questions in more than one file: {shared}")
    return status


def _convert(options: argparse.Namespace) -> int:
    """Write the rows, unless one is broken or an id repeats: such a file could not be used."""
    if options.target.exists() and not options.force:
        raise ValueError(f"{options.target} exists already; --force overwrites it")
    template = _template(options.template) if options.template else None
    named = {"data_source": options.data_source, "split": options.split}
    report = validate(options.source, **named)
    if not report.sound:
        print(describe(report), file=sys.stderr)
    if not report.writable:
        print(f"{options.target} is not written", file=sys.stderr)
        return report.status
    rows = read_rows(options.source, **named)
    if template:
        rows = with_prompts(
            rows, lambda text: template.replace("{question}", text), agent_name=options.agent_name
        )
    write_rows(options.target, rows)
    print(f"{options.target}: {len(rows)} rows, {sum(row.missing for row in rows)} without gold")
    return report.status


def _template(path: Path) -> str:
    template = path.read_text(encoding="utf-8", errors="replace")
    if "{question}" not in template or "\ufffd" in template:
        raise ValueError(f"{path}: holds no {{question}}, or is not UTF-8")
    return template


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.worlds.question_files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("validate", help="report what files hold and what is wrong")
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    check.set_defaults(run=_validate)
    convert = commands.add_parser("convert", help="raw JSON lines to Parquet, or either to other")
    convert.add_argument("source", type=Path)
    convert.add_argument("target", type=Path)
    convert.add_argument("--template", type=Path, help="file with the prompt around {question}")
    convert.add_argument("--agent-name", default="", help="verl's agent loop for these rows")
    convert.add_argument("--force", action="store_true", help="overwrite the target")
    convert.set_defaults(run=_convert)
    for command in (check, convert):
        command.add_argument("--data-source", default="", help="where rows name none, e.g. nq")
        command.add_argument("--split", default="", help="where rows name none, e.g. train")
    return parser


if __name__ == "__main__":
    sys.exit(main())
