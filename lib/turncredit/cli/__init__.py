"""The command line: what the notebooks do, for people who do not open one.

`turncredit train|eval|probe|audit|view|report --params FILE` takes the parameter files of the
notebooks, writes what they write and finds finished what they have finished, and the other way
round.  Progress and complaints go to stderr; stdout holds a few lines or, with --json, one object.
Nothing heavy is imported before a command needs it.
"""

import contextlib
import importlib
import signal
import threading
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from turncredit.cli.commands import COMMANDS
from turncredit.cli.completion import script
from turncredit.cli.output import note, tell
from turncredit.cli.parser import parser
from turncredit.cli.surroundings import surroundings

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
STATUS = {DONE: "done", FAILED: "failed run", BAD_INPUT: "bad input", INTERRUPTED: "interrupted"}
"""Exit codes, and their names in --json."""

MODULES = {command.name: command.module or command.name for command in COMMANDS}
EXTRA = "pip install 'turncredit[experiments]' brings what the commands need"
FORESEEN = (ValueError, OSError, RuntimeError, MemoryError, ImportError)
"""What the library raises with a sentence that says all; anything else comes with its traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (`STATUS`).  argparse exits with 2 by itself."""
    options = parser().parse_args(arguments)
    if options.command == "completion":
        print(script(options.shell), end="")
        return DONE
    try:
        with surroundings(options), _endable():
            return _run(options)
    except KeyboardInterrupt:
        return _ended(INTERRUPTED, "interrupted; the same command goes on from here", options)


def _run(options: Namespace) -> int:
    """First what is asked for is read, and whatever is wrong with it is bad input; then it is done,
    and whatever goes wrong is a failed run.
    """
    try:
        command = importlib.import_module(f"turncredit.cli.{MODULES[options.command]}")
        asked = command.read(options)
    except ImportError as error:
        return _ended(BAD_INPUT, f"{error}; {EXTRA}", options)
    except (ValueError, OSError) as error:
        return _ended(BAD_INPUT, str(error), options)
    try:
        result = command.work(asked, options)
    except FORESEEN as error:
        return _ended(FAILED, str(error) or type(error).__name__, options)
    except Exception as error:
        traceback.print_exc()
        return _ended(FAILED, f"{type(error).__name__}: {error}", options)
    _answer(DONE, result, command.sentences(result), options)
    return DONE


def _ended(code: int, sentence: str, options: Namespace) -> int:
    sentence = " ".join(sentence.split())
    note(f"{STATUS[code]}: {sentence}")
    _answer(code, {"message": sentence}, [], options)
    return code


def _answer(code: int, result: dict[str, Any], lines: Sequence[str], options: Namespace) -> None:
    facts = {"command": options.command, "params": str(options.params), "status": STATUS[code]}
    tell(facts | result, lines, as_json=options.json)


@contextlib.contextmanager
def _endable() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that workers end too; signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
