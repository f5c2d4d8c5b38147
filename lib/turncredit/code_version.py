"""Which code made a result: a hash of the modules a run can reach, and of nothing else."""

import ast
import functools
import hashlib
from pathlib import Path

from turncredit import paths

_ENTRY = "turncredit.experiment"
"""Every run starts here."""


def code_hash(*further: str) -> str:
    """SHA-256 over the code, as parsed, of all library modules that a run can reach.

    Reach: what `turncredit.experiment` imports, and what that imports, also inside functions.  So
    neither comments, docstrings and layout, nor figures, servers and estimators that no run knows,
    make a result stale.  further: modules by dotted name that a result depends on besides.
    """
    digest, reached = hashlib.sha256(), reached_modules(_ENTRY)
    for entry in further:
        reached |= reached_modules(entry)
    for name, tree in sorted(reached.items()):
        digest.update(f"{name}\n{_dumped(tree)}\n".encode())
    return digest.hexdigest()


def reached_modules(entry: str) -> dict[str, ast.Module]:
    """`entry` and the library modules reached from it by imports: dotted name to parsed code."""
    reached: dict[str, ast.Module] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if file is not None and name not in reached:
            reached[name] = _parsed(file.read_text(encoding="utf-8"))
            waiting.append(name.rpartition(".")[0])  # a package runs before its modules
            waiting += _imported(reached[name])
    return reached


@functools.cache
def _parsed(text: str) -> ast.Module:
    """Parsed once: an experiment asks for its code's version before and after its runs."""
    return ast.parse(text)


@functools.cache
def _dumped(tree: ast.Module) -> str:
    """A tree of `_parsed` without its texts, which this takes out of it."""
    return ast.dump(_WithoutTexts().visit(tree))


@functools.cache
def _imported(tree: ast.Module) -> tuple[str, ...]:
    """What a module imports; of `from a import b` both a and a.b, since b may be a module.

    Raises ValueError for a relative import, so that none is overlooked.
    """
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: name the package, not a relative place")
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(imported))


def _file(name: str) -> Path | None:
    """The file of a dotted name, None if it is no module of this library."""
    first, *parts = name.split(".")
    if first != "turncredit":
        return None
    base = paths.PACKAGE.joinpath(*parts)
    candidates = [base / "__init__.py", *([base.with_suffix(".py")] if parts else [])]
    return next((path for path in candidates if path.is_file()), None)


class _WithoutTexts(ast.NodeTransformer):
    """Drops docstrings and every other text that stands alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else node
