"""The argument parser, made of `COMMANDS`."""

import argparse
import textwrap
from pathlib import Path

from turncredit import __version__
from turncredit.cli.commands import (
    COMMANDS,
    COMMON,
    COMPLETION,
    FILE,
    FOLDER,
    NOTHING,
    NUMBER,
    PARAMS,
    SHELLS,
    Command,
    Option,
)

EPILOG = """\
examples:
{examples}
  source <(turncredit completion bash)

exit codes: 0 done, 1 failed run, 2 bad input, 130 interrupted

Outside a checkout the folder above params/<tier>/FILE holds tasks and results, or TURNCREDIT_HOME.
"""
_SUFFIXES = {"bash": "source <(turncredit completion bash)",
             "zsh": "turncredit completion zsh > ~/.zfunc/_turncredit",
             "fish": "turncredit completion fish | source"}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Of the whole command line."""
    shape = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    found = argparse.ArgumentParser(
        prog="turncredit",
        description="Train, judge and look at turn-level credit assignment, without a notebook.",
        epilog=EPILOG.format(examples="\n".join(map(example, COMMANDS))),
        **shape,
    )
    found.add_argument("--version", action="version", version=__version__)
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        text = f"examples:\n{example(command)}\n{example(command)} --json"
        one = commands.add_parser(
            command.name, help=command.summary, description=_wrapped(command), epilog=text, **shape
        )
        for option in (PARAMS, *command.options, *COMMON):
            _add(one, option)
    tail = "\n".join(f"  {line}" for line in _SUFFIXES.values())
    last = commands.add_parser(
        "completion", help=COMPLETION, description=COMPLETION.capitalize() + ".",
        epilog=f"examples:\n{tail}", **shape,
    )  # fmt: skip
    last.add_argument("shell", choices=SHELLS)
    return found


def example(command: Command) -> str:
    """One line of help."""
    return f"  turncredit {command.name} {command.example}"


def _wrapped(command: Command) -> str:
    text = f"{command.summary[0].upper()}{command.summary[1:]}".rstrip(".")
    ending = "" if text.endswith("?") else "."
    return textwrap.fill(f"{text}{ending}  {command.text}", 90)


def _add(command: argparse.ArgumentParser, option: Option) -> None:
    if option.takes == NOTHING:
        command.add_argument(option.flag, action="store_true", help=option.help)
        return
    kinds = {FILE: Path, FOLDER: Path, NUMBER: _above_zero}
    command.add_argument(
        option.flag,
        type=kinds.get(option.takes, str),
        metavar=option.takes,
        help=option.help,
        required=option == PARAMS,
    )


def _above_zero(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
