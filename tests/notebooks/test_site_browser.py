"""The built site in a real browser: on a phone, in a window, light and dark."""

import json
import os
from pathlib import Path

import pytest
from browser import BROWSER, NO_BROWSER, browsing

from turncredit import paths

SITE = Path(os.environ.get("TURNCREDIT_SITE") or paths.PACKAGE.parents[1] / "site")
INDEX = SITE / "index.html"
REPOSITORY = paths.PACKAGE.parents[1]
PHONE = (390, 844)
WINDOW = (1440, 900)


def newest_source() -> float:
    """When the looks of the site last changed, in seconds since the epoch."""
    sources = [REPOSITORY / "mkdocs.yml", *(REPOSITORY / "docs" / "theme").iterdir()]
    return max(file.stat().st_mtime for file in sources if file.is_file())


pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER),
    pytest.mark.skipif(not INDEX.exists(), reason="no built site: `make docs` writes it to site/"),
    pytest.mark.skipif(
        INDEX.exists() and INDEX.stat().st_mtime < newest_source(),
        reason="the built site is older than what it is made with: `make docs` writes it anew",
    ),
]
pytest.importorskip("websocket", reason="comes with the notebooks extra")
SECONDS = 120
PICTURED = ("index", "overview", "notebooks/00_first_trajectory", "reference/credit")

LUMINANCE = """
(text => {
  const [r, g, b, a] = [...text.matchAll(/[\\d.]+/g)].map(Number);
  return a === 0 ? null : (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
})(getComputedStyle(%s).%s)
"""


def pages() -> list[str]:
    """Every page by its name without suffix; what was copied to files/ is no page."""
    found = [file.relative_to(SITE) for file in sorted(SITE.rglob("*.html"))]
    return [str(file.with_suffix("")) for file in found if file.parts[0] != "files"]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def opened(tab, page: str) -> None:
    address = (SITE / f"{page}.html").resolve().as_uri()
    tab.open(address)
    there = f"document.readyState === 'complete' && location.href === {json.dumps(address)}"
    tab.wait(there, seconds=SECONDS, what=page)


def luminance(tab, element: str, what: str) -> float:
    return tab.value(LUMINANCE % (element, what))


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(tab):
    tab.resize(*PHONE)
    tab.prefer("light")
    wide = {}
    for page in pages():
        opened(tab, page)
        width = tab.value("Math.max(document.documentElement.scrollWidth, innerWidth)")
        if width > PHONE[0]:
            wide[page] = width
    assert len(pages()) > 30
    assert wide == {}


def test_what_is_wide_is_scrolled_by_itself_and_names_are_whole(tab):
    tab.resize(*PHONE)
    opened(tab, "overview")
    names = "[...document.querySelectorAll('article td:first-child code')]"
    assert tab.value(f"{names}.length") > 10
    assert tab.value(f"{names}.every(name => name.getClientRects().length === 1)")
    assert tab.value("document.querySelector('article img[src*=results_table]').width") > PHONE[0]


@pytest.mark.parametrize("size", [PHONE, WINDOW], ids=["phone", "window"])
@pytest.mark.parametrize("page", PICTURED)
def test_the_site_is_light_or_dark_as_the_system_says(tab, page, size):
    tab.resize(*size)
    for scheme in ("light", "dark"):
        tab.prefer(scheme)
        opened(tab, page)
        kind = "phone" if size == PHONE else "window"
        tab.picture(f"site-{kind}-{page.replace('/', '-')}-{scheme}")
        behind = luminance(tab, "document.body", "backgroundColor")
        ink = luminance(tab, "document.querySelector('article p')", "color")
        assert (behind > 0.8) if scheme == "light" else (behind < 0.25), (scheme, behind)
        assert abs(behind - ink) > 0.35, "text stands out"


def test_the_switch_of_the_page_wins_over_the_system(tab):
    tab.resize(*WINDOW)
    tab.prefer("light")
    opened(tab, "index")
    shown = "document.body.dataset.mdColorScheme"
    seen = [tab.value(shown)]
    for _ in range(3):
        tab.click("document.querySelector('form[data-md-component=palette] label:not([hidden])')")
        seen.append(tab.value(shown))
    tab.value("localStorage.clear()")
    assert seen == ["default", "default", "slate", "default"]


def test_a_view_of_trajectories_keeps_its_own_style_and_follows_the_switch(tab):
    """Theme styles would put their icons over its headings."""
    tab.resize(*WINDOW)
    tab.prefer("light")
    opened(tab, "notebooks/00_first_trajectory")
    view = "document.querySelector('.output').shadowRoot.querySelector('.tc')"
    if tab.value("document.querySelector('.output') === null"):
        pytest.skip("the site was built before notebook 00 was executed")
    assert tab.value(f"getComputedStyle({view}.querySelector('summary'), '::before').content") == (
        "none"
    )
    light = luminance(tab, view, "backgroundColor")
    tab.value("document.body.dataset.mdColorScheme = 'slate'")
    assert light > 0.8
    assert luminance(tab, view, "backgroundColor") < 0.25
