"""Where files of the repository are on the site, and links from one to another rewritten so."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT_PAGES = {
    "README.md": "overview.md",
    "REPRODUCING.md": "reproducing.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "DATA.md": "data.md",
}
"""Files of the root that are pages of the site."""

ASIDE = {"results/cpu/99_report/report.md": "results/cpu/99_report/report.html"}
"""Files in whose place another form of them is better to read on a site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^)\s>]+)>?\)")
_REFERENCE = re.compile(r"""(?:src|href)=["']([^"'#?]+)""")


def site_path(file: str) -> str:
    """Where a file of the repository is on the site: a page, a notebook, or a copy below files/.

    >>> site_path("docs/audit.md"), site_path("README.md"), site_path("params/cpu/90.yaml")
    ('audit.md', 'overview.md', 'files/params/cpu/90.yaml')
    """
    if file in ROOT_PAGES:
        return ROOT_PAGES[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("notebooks/") and file.endswith(".ipynb"):
        return file.removesuffix(".ipynb") + ".md"
    return f"files/{file}"


def repository_path(page: str) -> str:
    """The file of the repository that a page of the site is made of; inverse of `site_path`."""
    for file, place in ROOT_PAGES.items():
        if page == place:
            return file
    if page.startswith("notebooks/"):
        return page.removesuffix(".md") + ".ipynb"
    return f"docs/{page}"


def slug(heading: str, separator: str = "-") -> str:
    """The name of a heading in links, as GitHub makes it: one text then leads there in both places.

    >>> slug("alpha = 1"), slug("`turncredit.laws`, by name")
    ('alpha--1', 'turncreditlaws-by-name')
    """
    return re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", separator)


def rewritten(text: str, page: str, repository: Path) -> tuple[str, set[str]]:
    """A page's Markdown with links that work on the site, and the files that must be copied to it.

    A link to a folder, which a site cannot show, becomes its text.  What is no file of the
    repository stays as it is.
    """
    source, copied = repository_path(page), set()

    def replaced(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, hash_sign, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not path or ":" in path or not (repository / file).exists():
            return found[0]
        if (repository / file).is_dir():
            return label
        place = site_path(ASIDE.get(file, file))
        if place.startswith("files/"):
            copied.add(place.removeprefix("files/"))
        where = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{mark}[{label}]({where}{hash_sign}{anchor})"

    return _LINK.sub(replaced, text), copied


def with_what_they_show(files: set[str], repository: Path) -> set[str]:
    """The files and, for each HTML page among them, what it refers to by relative links."""
    found = set(files)
    for file in sorted(file for file in files if file.endswith(".html")):
        text = (repository / file).read_text(encoding="utf-8")
        found |= set(_referred(text, posixpath.dirname(file), repository))
    return found


def _referred(text: str, folder: str, repository: Path) -> Iterator[str]:
    for target in _REFERENCE.findall(text):
        file = posixpath.normpath(posixpath.join(folder, target))
        if ":" not in target and (repository / file).is_file():
            yield file
