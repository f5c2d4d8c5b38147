"""`turncredit probe` and `turncredit audit`: their notebooks, run to the end without being opened.

They are analyses more than loops, and a notebook's cells say best what is done; a second copy here
would drift from them.  All their work is resumable, state by state or run by run.
"""

import contextlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from turncredit import paths
from turncredit.cli.output import note
from turncredit.notebook_runner import (
    NotebookFailed,
    check_notebook,
    check_params,
    load_params,
    run_notebook,
)


class Asked(NamedTuple):
    """A notebook, its parameter file, and where its results go."""

    notebook: Path
    params_file: Path
    results: Path


def read(options: Namespace) -> Asked:
    """The notebook that the file names.  Raises ValueError unless the two fit each other."""
    values = load_params(options.params)
    name, tier = (str(values.get(key, "")) for key in ("notebook", "tier"))
    if options.command not in name:
        raise ValueError(
            f"{options.params}: notebook = {name!r} is no {options.command}; {options.command} "
            f"takes the file of a notebook that has {options.command!r} in its name"
        )
    notebook = paths.repository() / "notebooks" / f"{name}.ipynb"
    if not notebook.is_file():
        raise ValueError(f"{notebook}: no such notebook; {options.command} needs a checkout")
    literals = check_notebook(notebook)
    check_params(literals, values, notebook=notebook, params_file=options.params)
    return Asked(notebook, options.params, paths.results(tier))


def work(asked: Asked, options: Namespace) -> dict[str, Any]:
    """Run the notebook; what its cells print, and a traceback of theirs, goes to stderr."""
    note(f"running {asked.notebook.name}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            executed = run_notebook(
                asked.notebook, params_file=asked.params_file, results=asked.results
            )
    except NotebookFailed as error:
        print(error, file=sys.stderr)
        raise RuntimeError(f"{_sentence(error)} (parameters: {asked.params_file})") from error
    folder = asked.results / asked.notebook.stem
    tables = sorted(path.name for path in folder.glob("*.csv"))
    return {"folder": folder, "tables": tables, "executed": executed}


def _sentence(error: NotebookFailed) -> str:
    """Where a notebook failed, and the last line of its traceback, which says why."""
    where, *traceback = str(error).splitlines()
    return ": ".join([where, *(line.partition(": ")[2] or line for line in traceback[-1:])])


def sentences(result: dict[str, Any]) -> list[str]:
    """Tables and the executed notebook."""
    tables = ", ".join(result["tables"]) or "no tables"
    return [f"{tables} in {result['folder']}", f"executed notebook: {result['executed']}"]
