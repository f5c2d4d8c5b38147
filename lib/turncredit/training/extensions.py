"""Methods of one's own from outside the library: a file, or an installed module, named in params.

The module enters functions in the tables with the library's decorators (`@TURN_WEIGHTS.add`).  What
it holds is part of the identity of every run that names it.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from turncredit import paths
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.methods import Methods
from turncredit.objectives import OBJECTIVES
from turncredit.storage import content_sha256, sha256_json, sha256_text

OPEN = (BASES, TURN_WEIGHTS, OBJECTIVES)
"""The tables that a module of one's own may enter functions in."""

LIBRARY = "turncredit"
_STAMP = "__turncredit_sha256__"
"""Where a module that was run keeps the hash of what was run."""


def enter(module: str) -> list[tuple[str, str]]:
    """Run a module once in this process; returns (kind, name) of what it enters in the tables.

    module: a file (`my_weights.py`, relative to the repository or absolute) or a dotted name that
    Python can import.  An edited one is run again, in the place of what it had entered before.

    Raises ValueError naming the module that cannot be found, does not run, enters nothing, or puts
    a function in the place of one that is not its own; the tables are then as they were.
    """
    with _all_or_nothing(module):
        name, sha256 = name_of(module), source_sha256(module)
        known = sys.modules.get(name)
        if known is None or getattr(known, _STAMP, None) != sha256:
            known = _run(module, name)
            setattr(known, _STAMP, sha256)
    found = [(table.kind, entry) for table, entry in _entered(name)]
    if not found:
        raise ValueError(
            f"module {module!r} enters nothing in the tables; put @TURN_WEIGHTS.add, @BASES.add or "
            "@objective above its function"
        )
    return found


def is_known(function: object, module: str) -> bool:
    """Whether a function of the tables is the library's, or one that `module` enters ("": none)."""
    owner = function.__module__
    return _within(owner, LIBRARY) or (bool(module) and _within(owner, name_of(module)))


def source_sha256(module: str) -> str:
    """Hash of a file's bytes, or of all Python files of the package that a dotted name is from.

    Raises ValueError naming a module that is not there.
    """
    files = _files(module)
    if len(files) == 1:
        return content_sha256(files[0])
    root = files[0].parent
    return sha256_json([[str(file.relative_to(root)), content_sha256(file)] for file in files])


def name_of(module: str) -> str:
    """What Python calls a module once it is loaded."""
    if not _is_file(module):
        return module
    return f"turncredit_own_{sha256_text(str(_path(module)))[:12]}"


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def _path(module: str) -> Path:
    """One for all spellings, or a file would stand in its own way."""
    return (paths.repository() / Path(module).expanduser()).resolve()


def _files(module: str) -> list[Path]:
    """A file alone; of a dotted name all of its top package, whose parts may use each other."""
    if _is_file(module):
        if not _path(module).is_file():
            raise ValueError(f"module {module!r}: there is no file {_path(module)}")
        return [_path(module)]
    first = module.split(".")[0]
    if first == LIBRARY:
        raise ValueError(f"module {module!r} is the library's own: its methods are there already")
    spec = importlib.util.find_spec(first) if first.isidentifier() else None
    if spec is None or not (spec.has_location or spec.submodule_search_locations):
        raise ValueError(
            f"module {module!r} cannot be found: name a file that ends in .py, or what `import` "
            "finds in this environment"
        )
    if not spec.submodule_search_locations:
        return [Path(spec.origin)]
    files = {file for folder in spec.submodule_search_locations for file in _sources(Path(folder))}
    return sorted(files, key=lambda file: (len(file.parts), file))


def _sources(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def _run(module: str, name: str) -> ModuleType:
    """The module, run from its source as it is now, in the place of what it was before."""
    first = name if _is_file(module) else module.split(".")[0]
    if name in sys.modules:  # edited: its neighbours may be too
        for table, entry in list(_entered(first)):
            del table[entry]
        for loaded in [loaded for loaded in sys.modules if _within(loaded, first)]:
            del sys.modules[loaded]
    if not _is_file(module):
        importlib.invalidate_caches()
        return importlib.import_module(module)
    # Not by import, which would leave compiled code beside the file and might take that for it.
    code = compile(_path(module).read_bytes(), str(_path(module)), "exec")
    found = sys.modules[name] = ModuleType(name)
    found.__file__ = str(_path(module))
    exec(code, vars(found))
    return found


@contextlib.contextmanager
def _all_or_nothing(module: str) -> Iterator[None]:
    """Tables and loaded modules as they were, and one sentence, if the block fails."""
    before, loaded = [dict(table) for table in OPEN], dict(sys.modules)
    own = name_of(module) if _is_file(module) else module.split(".")[0]
    try:
        yield
        _refuse_replaced(before, own)
    except BaseException as error:
        for table, methods in zip(OPEN, before, strict=True):
            table.clear()
            table.update(methods)
        for name in [name for name in sys.modules if _within(name, own)]:
            del sys.modules[name]
        sys.modules.update({name: old for name, old in loaded.items() if _within(name, own)})
        if not isinstance(error, Exception):
            raise
        said = str(error)
        if said.startswith(f"module {module!r}"):
            raise
        raise ValueError(
            f"module {module!r} cannot be used: {type(error).__name__}: {said}"
        ) from error


def _refuse_replaced(before: list[dict], own: str) -> None:
    """Another arm of the same experiment may rely on what was replaced, and would not know."""
    for table, methods in zip(OPEN, before, strict=True):
        for name, function in methods.items():
            if table.get(name) is not function and not _within(function.__module__, own):
                raise ValueError(
                    f"it puts its own {table.kind} {name!r} in the place of that of "
                    f"{function.__module__}; give it a name of its own"
                )


def _entered(module: str) -> Iterator[tuple[Methods, str]]:
    """Table and name of what a module, or one below it, has entered."""
    for table in OPEN:
        for name, function in table.items():
            if _within(function.__module__, module):
                yield table, name


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
