"""Every link of the built site leads somewhere, and nothing is loaded from elsewhere."""

import posixpath
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Reader(HTMLParser):
    """Names that a page offers to links, and its own links and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADING.get(tag) in values and values.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(values[LOADING[tag]])


def complaints(site: Path) -> list[str]:
    """What is wrong with the links of the pages below `site`; the copies in files/ are not pages.

    404.html is left out: it may stand for a page at any depth, so its links begin at the root.
    """
    pages = {}
    for file in sorted(site.rglob("*.html")):
        place = file.relative_to(site).as_posix()
        if place != "404.html" and not place.startswith("files/"):
            pages[place] = _read(file)
    found = []
    for place, page in pages.items():
        found += [f"{place}: loads {url}" for url in page.loads if _is_elsewhere(url)]
        own = [url for url in (*page.links, *page.loads) if not _is_elsewhere(url)]
        found += [f"{place}: {url} leads nowhere" for url in own
                  if not _leads_somewhere(url, place, pages, site)]  # fmt: skip
    return found


def _read(file: Path) -> _Reader:
    reader = _Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    reader.close()
    return reader


def _is_elsewhere(url: str) -> bool:
    return url.startswith(("http:", "https:", "//"))


def _leads_somewhere(url: str, place: str, pages: dict[str, _Reader], site: Path) -> bool:
    if url.startswith(("mailto:", "data:", "javascript:")):
        return True
    path, _, anchor = url.partition("#")
    path = unquote(path.partition("?")[0])
    target = posixpath.normpath(posixpath.join(posixpath.dirname(place), path)) if path else place
    if not (site / target).is_file():
        return (site / target / "index.html").is_file()
    known = target not in pages or not anchor or unquote(anchor) in pages[target].names
    return known or anchor.startswith("__")  # of the theme: its script makes them
