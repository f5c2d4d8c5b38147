"""What is read from the package alfworld, and what it must be like."""

import importlib.util
from pathlib import Path

LABEL = "ALFWorld engine, generated placements"
"""What results on these games are called, in tables and figures."""
NEEDED = ("alfworld", "textworld", "fast_downward")
INSTALL = "pip install 'turncredit[alfworld]', or the leaner way in docs/environments.md"
MOVE = '"move {o} to {r}"'
"""The command that puts things down, since alfworld 0.4; before it was `put {o} in/on {r}`."""


def missing_packages() -> list[str]:
    """Those of the needed packages that are not installed; none is imported."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def require_packages() -> None:
    """RuntimeError saying what to install, if a package is missing or has other commands."""
    missing = missing_packages()
    if missing:
        raise RuntimeError(f"ALFWorld's engine needs {', '.join(missing)}: {INSTALL}")
    require_move(packaged("data/alfred.twl2"))


def require_move(grammar: str) -> None:
    """RuntimeError for a grammar in which things are not put down by `move`.

    >>> require_move('template :: "move {o} to {r}";')
    """
    if MOVE not in grammar:
        raise RuntimeError(
            f"the grammar of the installed alfworld has no command {MOVE}, which these games use: "
            "install alfworld==0.4.2"
        )


def packaged(name: str) -> str:
    """The text of a file of the package, whose import would make folders."""
    found = importlib.util.find_spec("alfworld")
    return (Path(found.origin).parent / name).read_text(encoding="utf-8")
