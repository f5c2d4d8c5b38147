"""The plan of the site, completed: who adds a notebook, page or module need not name it here."""

import re
from pathlib import Path
from typing import Any

import site_links

OTHERS = "reference/others.md"
"""A page that no file holds: the modules that the other pages of the reference leave out."""


def pages(nav: Any) -> list[str]:
    """Every page of a nav, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages(part)]


def completed(nav: list[Any], repository: Path) -> list[Any]:
    """`nav` with all notebooks under Notebooks, and under Guide the pages that it does not name."""
    named = set(pages(nav))
    notebooks = [
        site_links.site_path(f"notebooks/{path.name}")
        for path in sorted((repository / "notebooks").glob("*.ipynb"))
    ]
    docs = sorted(path.name for path in (repository / "docs").glob("*.md"))
    further = {"Notebooks": notebooks, "Guide": [page for page in docs if page not in named]}
    return [_with(part, further) for part in nav]


def _with(part: Any, further: dict[str, list[str]]) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        name: [*(own or []), *further[name]] if name in further else own
        for name, own in part.items()
    }


def others(repository: Path) -> str:
    """The page of the modules that no page of the reference shows."""
    written = (path.read_text(encoding="utf-8") for path in
               (repository / "docs" / "reference").glob("*.md"))  # fmt: skip
    shown = set(re.findall(r"^::: turncredit\.(\w+)$", "".join(written), re.MULTILINE))
    library = repository / "lib" / "turncredit"
    found = {path.stem for path in library.glob("*.py")}
    found |= {path.parent.name for path in library.glob("*/__init__.py")}
    names = sorted(name for name in found - shown if not name.startswith("_"))
    parts = (f"\n## turncredit.{name}\n\n::: turncredit.{name}\n" for name in names)
    return "# Other modules\n" + "".join(parts)
