"""Run one notebook with one parameter file, all or nothing.

`python -m turncredit.notebook_runner NOTEBOOK --params FILE --results DIR [--deadline SECONDS]`
checks the notebook contract, executes with papermill in a temporary file, and renames it to
DIR/notebooks/NAME.ipynb only on success.  Exit codes: 0 done, 1 failed, 2 contract broken or
nothing writable, 124 deadline passed, 130 interrupted.
"""

import argparse
import ast
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import get_kernel_spec

from turncredit import params, paths, storage

# nbformat imports jsonschema, which would compile a grammar of all URIs, for seconds in every
# notebook's runner; no field of a notebook is a URI, and jsonschema does without it.
sys.modules.setdefault("rfc3987_syntax", None)

import nbformat  # noqa: E402
import papermill  # noqa: E402
from nbclient.exceptions import DeadKernelError  # noqa: E402
from nbformat import NotebookNode  # noqa: E402

KERNEL = "python3"
GRACE_SECONDS = 20.0
"""How long nbclient may take to notice that the deadline has killed its kernel."""
TRACEBACK_LINES = 15
LITERALS = {
    bool: "true or false",
    int: "an integer",
    float: "a float",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}


class ContractError(ValueError):
    """The notebook or its parameter file breaks the contract; the message is one sentence."""


class NotebookFailed(RuntimeError):
    """The notebook ran and did not finish; `exit_code` is 1, or 124 after the deadline."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def read_notebook(notebook: Path) -> NotebookNode:
    """The notebook as stored.  Raises ContractError naming it when it cannot be read."""
    try:
        return nbformat.read(notebook, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ContractError(f"{notebook} cannot be read as a notebook: {reason}") from error


def code_cells(document: NotebookNode) -> list[NotebookNode]:
    """The code cells in order."""
    return [cell for cell in document.cells if cell.cell_type == "code"]


def cell_tree(cell: NotebookNode) -> ast.Module:
    """The syntax tree of a code cell, magics included.  Raises SyntaxError."""
    return ast.parse(TransformerManager().transform_cell(cell.source))


def parameter_cell(document: NotebookNode, notebook: Path) -> int:
    """Index among the code cells of the one cell tagged `parameters`."""
    tagged = [
        i
        for i, cell in enumerate(code_cells(document))
        if "parameters" in cell.metadata.get("tags", [])
    ]
    if len(tagged) != 1:
        raise ContractError(
            f"{notebook} must have exactly one code cell tagged `parameters`, not {len(tagged)}"
        )
    return tagged[0]


def parameter_literals(cell: NotebookNode, notebook: Path) -> dict[str, Any]:
    """Name to value of a cell that may hold nothing but `name = literal`."""
    literals: dict[str, Any] = {}
    for statement in _parse(cell, notebook).body:
        line = ast.unparse(statement)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                value = _literal(expression)
            case _:
                name, value = "", None
        if type(value) not in LITERALS:
            raise ContractError(
                f"{notebook}: the parameters cell may hold only `name = literal` with a number, "
                f"text, true/false, list or mapping, not `{line}`"
            )
        if name in literals:
            raise ContractError(f"{notebook}: the parameters cell assigns {name} twice")
        literals[name] = value
    return literals


def check_stripped(document: NotebookNode, notebook: Path) -> None:
    """Raise ContractError if outputs, counts or run metadata are stored."""
    for number, cell in enumerate(document.cells, start=1):
        where = f"{notebook}: cell {number} is stored with"
        if cell.get("outputs") or cell.get("execution_count"):
            advice = f"clear it with `jupyter nbconvert --clear-output --inplace {notebook}`"
            raise ContractError(f"{where} outputs or a count; {advice}")
        # `raises-exception` and `skip-execution` would let a broken notebook pass.
        for tag in set(cell.metadata.get("tags", [])) - {"parameters"}:
            raise ContractError(f"{where} the tag {tag!r}; only `parameters` is allowed")
        for key in sorted(set(cell.metadata) - {"tags"}):
            raise ContractError(f"{where} run metadata {key!r}")
    for key in sorted(set(document.metadata) - {"kernelspec", "language_info"}):
        raise ContractError(f"{notebook} is stored with run metadata {key!r}")


def check_notebook(notebook: Path) -> dict[str, Any]:
    """The declared parameters of a notebook that obeys the contract; ContractError otherwise."""
    document = read_notebook(notebook)
    check_stripped(document, notebook)
    kernel = document.metadata.get("kernelspec", {}).get("name")
    if kernel != KERNEL:
        raise ContractError(f"{notebook} names the kernel {kernel!r}; it must be {KERNEL!r}")
    index = parameter_cell(document, notebook)
    cells = code_cells(document)
    literals = parameter_literals(cells[index], notebook)
    if type(literals.get("tier")) is not str:
        raise ContractError(f'{notebook}: the parameters cell lacks a text `tier`: tier = "cpu"')
    unread = sorted(set(literals) - _names_read(cells[index + 1 :], notebook))
    if unread:
        raise ContractError(f"{notebook}: parameter {unread[0]} is never read in a later cell")
    return literals


def load_params(params_file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ContractError, one sentence naming the file, otherwise."""
    try:
        return params.read_yaml(params_file)
    except ValueError as error:
        raise ContractError(" ".join(str(error).split())) from error


def check_params(
    literals: dict[str, Any], values: dict[str, Any], *, notebook: Path, params_file: Path
) -> None:
    """Raise ContractError unless `values` has the keys and types of `literals`."""
    for key in values:
        if key not in literals:
            raise ContractError(f"{params_file}: {notebook} has no parameter {key}")
    for key, literal in literals.items():
        if key not in values:
            raise ContractError(f"{params_file} lacks the parameter {key} of {notebook}")
        if not _same_type(literal, values[key]):
            raise ContractError(
                f"{params_file}: {key} is {values[key]!r}, but {notebook} declares "
                f"{LITERALS[type(literal)]} as in {literal!r} (floats need a point: 1.0e-6)"
            )


def run_notebook(
    notebook: Path, *, params_file: Path, results: Path, deadline: float | None = None
) -> Path:
    """Execute `notebook` and return `results`/notebooks/NAME.ipynb, written only on success.

    deadline: seconds for the whole notebook, kernel start included; None waits for ever.
    Raises ContractError before anything runs, NotebookFailed when it does not finish (what ran
    is kept as NAME.failed.ipynb), OSError when the results folder cannot be written.
    """
    literals, values = check_notebook(notebook), load_params(params_file)
    check_params(literals, values, notebook=notebook, params_file=params_file)
    _check_kernel()
    target = results.resolve() / "notebooks" / notebook.name
    failed = target.with_suffix(".failed.ipynb")
    with storage.atomic_path(target) as temporary:
        try:
            with _environment(values["tier"], results), _deadline(deadline) as expired:
                _execute(notebook, temporary, values)
        except (papermill.PapermillExecutionError, DeadKernelError, RuntimeError) as error:
            if temporary.stat().st_size:
                temporary.replace(failed)
            raise _failure(error, notebook, deadline if expired.is_set() else None) from error
        _tidy(temporary, notebook)
    failed.unlink(missing_ok=True)
    return target


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code and says what went wrong on stderr."""
    parser = argparse.ArgumentParser(prog="turncredit.notebook_runner", description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--params", type=Path, required=True, metavar="FILE")
    parser.add_argument("--results", type=Path, required=True, metavar="DIR")
    parser.add_argument("--deadline", type=float, metavar="SECONDS")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):  # unwind, and so end the kernel
        signal.signal(number, signal.default_int_handler)
    _say(f"running {options.notebook} with {options.params}")
    try:
        target = run_notebook(
            options.notebook,
            params_file=options.params,
            results=options.results,
            deadline=options.deadline,
        )
    except NotebookFailed as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        # nbclient's abandoned task would report the dead kernel after our sentence
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        _say(f"{options.notebook} was interrupted")
        return 130
    except OSError as error:
        _say(error.strerror or str(error))
        return 2
    except ContractError as error:
        _say(str(error))
        return 2
    _say(f"wrote {target}")
    return 0


def _say(sentence: str) -> None:
    print(f"notebook_runner: {sentence}", file=sys.stderr, flush=True)


def _parse(cell: NotebookNode, notebook: Path) -> ast.Module:
    try:
        return cell_tree(cell)
    except SyntaxError as error:
        raise ContractError(f"{notebook}: {error.msg} in `{(error.text or '').strip()}`") from error


def _literal(expression: ast.expr) -> Any:
    """The value of a literal; None, which no parameter may be, for anything else."""
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return None


def _names_read(cells: list[NotebookNode], notebook: Path) -> set[str]:
    return {
        node.id
        for cell in cells
        for node in ast.walk(_parse(cell, notebook))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _same_type(literal: Any, value: Any) -> bool:
    """Equal types, and each element of a list of a type that the literal's elements have."""
    if type(literal) is not list or type(value) is not list:
        return type(literal) is type(value)
    return not literal or all(any(_same_type(one, item) for one in literal) for item in value)


def _check_kernel() -> None:
    """Refuse a `python3` kernel that starts another Python than the one running this."""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # before the user's own kernels
    os.environ.pop("JUPYTER_PATH", None)
    spec = get_kernel_spec(KERNEL)
    # jupyter_client replaces these bare names by the running interpreter.
    bare = {"python", "python3", f"python3.{sys.version_info.minor}"}
    if spec.argv[0] not in bare | {sys.executable}:
        raise ContractError(f"the kernel {KERNEL} in {spec.resource_dir} starts {spec.argv[0]}")


@contextlib.contextmanager
def _environment(tier: str, results: Path) -> Iterator[None]:
    """Tell the kernel, which inherits the environment, where it is; restored afterwards."""
    library = [str(paths.PACKAGE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    wanted = {
        "TURNCREDIT_TIER": tier,
        "TURNCREDIT_RESULTS": str(results.resolve()),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in library if folder),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _deadline(seconds: float | None) -> Iterator[threading.Event]:
    """Kill every process the block started after `seconds`, and at its end; yield `expired`.

    A watching thread and not a cell timeout: it also ends a kernel that hangs while starting or
    ignores interrupts, and the worker processes of the kernel.
    """
    before = set(psutil.Process().children(recursive=True))
    expired, finished = threading.Event(), threading.Event()

    def watch() -> None:
        if finished.wait(seconds):
            return
        expired.set()
        _kill(before)
        if not finished.wait(GRACE_SECONDS):
            _say(f"the deadline of {seconds:g} s has passed and the kernel client does not return")
            os._exit(124)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield expired
    finally:
        finished.set()
        _kill(before)


def _kill(spared: set[psutil.Process]) -> None:
    """Kill the descendants of this process except `spared`."""
    for process in set(psutil.Process().children(recursive=True)) - spared:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _execute(notebook: Path, output: Path, values: dict[str, Any]) -> None:
    papermill.execute_notebook(
        str(notebook),
        str(output),
        parameters=values,
        kernel_name=KERNEL,
        cwd=str(notebook.resolve().parent),  # as in JupyterLab, whatever folder this is called from
        progress_bar=False,
        stdout_file=sys.stdout,
        stderr_file=sys.stderr,
        coalesce_streams=True,
    )


def _failure(error: Exception, notebook: Path, deadline: float | None) -> NotebookFailed:
    """One sentence, then the last lines of the traceback."""
    if deadline is not None:
        return NotebookFailed(f"{notebook} passed its deadline of {deadline:g} s", exit_code=124)
    if isinstance(error, papermill.PapermillExecutionError):
        lines = str(error).strip().splitlines()[-TRACEBACK_LINES:]
        summary = f"{notebook} failed in cell [{error.exec_count}] with {error.ename}"
        return NotebookFailed("\n".join([summary, *lines]))
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return NotebookFailed(f"{notebook} failed, its kernel died or did not start: {reason}")


def _tidy(executed: Path, notebook: Path) -> None:
    """Check counts 1..N and drop papermill's metadata, which names machine paths."""
    document = nbformat.read(executed, as_version=4)
    counts = [cell.execution_count for cell in code_cells(document) if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        raise NotebookFailed(f"{notebook} has the execution counts {counts}, not 1..{len(counts)}")
    document.metadata.pop("papermill", None)
    for cell in document.cells:
        cell.metadata = {"tags": cell.metadata.get("tags", [])} if cell.metadata.get("tags") else {}
    nbformat.write(document, executed)


if __name__ == "__main__":
    sys.exit(main())
