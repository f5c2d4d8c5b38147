"""The documentation site: every page of its plan exists, links are rewritten, broken ones found."""

import importlib.util
import json
import posixpath
import re
import sys

import pytest
import yaml

from turncredit import paths

REPOSITORY = paths.PACKAGE.parents[1]
DOCS = REPOSITORY / "docs"
SITE = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))


def theme(name):
    """A module of docs/theme, which is no package; the site's modules import each other."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "theme" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


links, nav, notebooks, check = (
    theme(f"site_{name}") for name in ("links", "nav", "notebooks", "check")
)
PAGES = nav.pages(nav.completed(SITE["nav"], REPOSITORY))


def has(page: str) -> bool:
    return page == nav.OTHERS or (REPOSITORY / links.repository_path(page)).is_file()


# ---- the plan of the site ------------------------------------------------------------------------


def test_every_page_of_the_nav_has_a_file_and_stands_there_once():
    assert [page for page in PAGES if not has(page)] == []
    assert len(PAGES) == len(set(PAGES)) > 30


def test_every_page_there_is_stands_in_the_nav():
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    there |= set(links.ROOT_PAGES.values())
    there |= {f"notebooks/{path.stem}.md" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert there | {nav.OTHERS} == set(PAGES)


def test_what_the_configuration_names_exists():
    (own,) = [plugin["mkdocstrings"] for plugin in SITE["plugins"] if type(plugin) is dict]
    python = own["handlers"]["python"]
    named = [*SITE["hooks"], *python["paths"], *python["options"]["extensions"]]
    named += [f"docs/{file}" for file in SITE["extra_css"] + SITE["extra_javascript"]]
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    assert SITE["theme"]["font"] is False, "fonts would come from elsewhere"


def test_the_reference_shows_every_public_module_once():
    text = nav.others(REPOSITORY)
    text += "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: turncredit\.(\w+)$", text, re.MULTILINE)
    modules = {path.stem for path in paths.PACKAGE.glob("*.py")}
    modules |= {path.parent.name for path in paths.PACKAGE.glob("*/__init__.py")}
    assert sorted(shown) == sorted(name for name in modules if not name.startswith("_"))


def test_a_new_page_or_notebook_finds_its_place_by_itself(tmp_path):
    for name in ("docs/new.md", "docs/index.md", "notebooks/30_new.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = nav.completed(["index.md", {"Notebooks": []}, {"Guide": ["old.md"]}], tmp_path)
    assert found == [
        "index.md", {"Notebooks": ["notebooks/30_new.md"]}, {"Guide": ["old.md", "new.md"]}
    ]  # fmt: skip


# ---- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page != nav.OTHERS])
def test_links_of_every_page_lead_to_something_that_the_site_has(page):
    found, copied = links.rewritten(prose_of(page), page, REPOSITORY)
    assert [file for file in copied if not (REPOSITORY / file).is_file()] == []
    for _, _, target in links._LINK.findall(found):
        path = target.partition("#")[0]
        if not path or ":" in path:
            continue
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        known = has(place) or place.removeprefix("files/") in copied
        assert known, f"{page}: {target}"


def prose_of(page: str) -> str:
    """The Markdown that a page is made of, without code and comments."""
    source = REPOSITORY / links.repository_path(page)
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)


def test_names_of_headings_are_those_of_github():
    headings = {
        "alpha = 1": "alpha--1",
        "KL: k1, k2": "kl-k1-k2",
        "`vineppo`": "vineppo",
        "deep_research": "deep_research",
        "Ours & theirs (2)": "ours--theirs-2",
    }
    assert {heading: links.slug(heading) for heading in headings} == headings


def test_links_into_a_page_name_one_of_its_headings():
    """By the names that GitHub gives, which `on_config` gives on the site too."""
    own = [page for page in PAGES if page != nav.OTHERS and not page.startswith("reference/")]
    texts = {page: prose_of(page) for page in own}
    names = {
        page: {links.slug(name) for name in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        for page, text in texts.items()
    }
    found = 0
    for page, text in texts.items():
        for _, _, target in links._LINK.findall(links.rewritten(text, page, REPOSITORY)[0]):
            path, _, name = target.partition("#")
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
            if name and ":" not in path and (place in names or not path):
                assert name in names[place if path else page], f"{page}: {target}"
                found += 1
    assert found > 50


def test_links_are_rewritten_by_hand(tmp_path):
    for name in ("docs/a.md", "figures/f.png", "notebooks/00_x.ipynb", "README.md", "lib/m.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    text = (
        "[a](docs/a.md#part) ![f](figures/f.png) [n](notebooks/00_x.ipynb) [`lib`](lib/) "
        "[m](<lib/m.py>) [out](https://x.y) [gone](docs/b.md) [here](#part)"
    )
    found, copied = links.rewritten(text, "overview.md", tmp_path)
    assert found == (
        "[a](a.md#part) ![f](files/figures/f.png) [n](notebooks/00_x.md) `lib` "
        "[m](files/lib/m.py) [out](https://x.y) [gone](docs/b.md) [here](#part)"
    )
    assert copied == {"figures/f.png", "lib/m.py"}
    found, _ = links.rewritten("[r](../README.md) [m](../lib/m.py)", "a.md", tmp_path)
    assert found == "[r](overview.md) [m](files/lib/m.py)"


def test_a_copied_page_brings_what_it_shows(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "f.png").touch()
    page = '<img src="../figures/f.png"><a href="https://x.y">x</a><a href="gone.csv">y</a>'
    (tmp_path / "results" / "r.html").write_text(page, encoding="utf-8")
    found = links.with_what_they_show({"results/r.html"}, tmp_path)
    assert found == {"results/r.html", "figures/f.png"}


def test_paths_go_there_and_back():
    for page in set(PAGES) - {nav.OTHERS}:
        assert links.site_path(links.repository_path(page)) == page


# ---- the check of the built site -----------------------------------------------------------------

GOOD = '<h2 id="part">x</h2><a href="sub/b.html#there">b</a><a href="#part">p</a><img src="i.png">'


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("", None),
        ('<a href="gone.html">x</a>', "gone.html leads nowhere"),
        ('<a href="sub/b.html#gone">x</a>', "#gone leads nowhere"),
        ('<a href="#gone">x</a>', "#gone leads nowhere"),
        ('<img src="gone.png">', "gone.png leads nowhere"),
        ('<script src="https://cdn.x/y.js"></script>', "loads https://cdn.x/y.js"),
        ('<link rel="stylesheet" href="//cdn.x/y.css">', "loads //cdn.x/y.css"),
        ('<a href="https://x.y/">x</a><a href="mailto:a@b.c">x</a>', None),
    ],
)
def test_broken_links_and_foreign_loads_are_found(more, complaint, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(GOOD + more, encoding="utf-8")
    back = '<p id="there"><a href="../index.html#part">a</a>'
    (tmp_path / "sub" / "b.html").write_text(back, encoding="utf-8")
    (tmp_path / "i.png").touch()
    found = check.complaints(tmp_path)
    assert len(found) == (complaint is not None)
    if complaint:
        assert found[0].startswith("index.html: ") and complaint in found[0]


# ---- notebooks -----------------------------------------------------------------------------------


def cell(kind, source, **more):
    return {"cell_type": kind, "source": source} | more


def test_a_notebook_becomes_prose_code_and_outputs():
    shown = [
        {"output_type": "stream", "text": ["a\n", "b\n"]},
        {"output_type": "display_data", "data": {"text/html": "<table>\n\n</table>"}},
        {"output_type": "display_data", "data": {"image/png": "QUJD\n", "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/plain": ["1.5"]}},
    ]
    cells = [
        cell("markdown", ["# Title\n", "where $p < q$ and `$x$`"]),
        cell("code", "print('a')", outputs=shown),
    ]
    page = notebooks.Page({"cells": cells}, lambda tex, kind: f"<math>{kind} {tex}</math>")
    assert page.markdown == (
        "# Title\nwhere @@piece-0@@ and `$x$`\n\n```python\nprint('a')\n```\n\n"
        "```text\na\nb\n```\n\n@@piece-1@@\n\n@@piece-2@@\n\n```text\n1.5\n```\n"
    )
    html = page.finished("<p>where @@piece-0@@</p><p>@@piece-1@@</p><p>@@piece-2@@</p>")
    picture = '<img alt="figure of this cell" src="data:image/png;base64,QUJD">'
    assert html == (
        "<p>where <math>inline p < q</math></p>"
        + notebooks.apart("<table>\n\n</table>")
        + f'<div class="output">{picture}</div>'
    )


def test_what_only_a_kernel_or_a_terminal_can_show_is_left_out():
    shown = [
        {"output_type": "stream", "name": "stderr", "text": "100%|███"},
        {"output_type": "execute_result",
         "data": {notebooks.WIDGET: {}, "text/plain": "interactive(children=(Float"}},
    ]  # fmt: skip
    page = notebooks.Page({"cells": [cell("code", "sliders()", outputs=shown)]}, None)
    assert page.markdown == "```python\nsliders()\n```\n"


def test_parameters_are_shown_once_as_they_were_given():
    cells = [
        cell("code", "seed = 0", metadata={"tags": ["parameters"]}),
        cell("code", "# Parameters\nseed = 1", metadata={"tags": ["injected-parameters"]}),
    ]
    stored, executed = cells[:1], [cells[0], cells[1] | {"outputs": [{"output_type": "x"}]}]
    page = notebooks.Page({"cells": executed}, None)
    assert "seed = 1" in page.markdown and "seed = 0" not in page.markdown
    assert "seed = 0" in notebooks.Page({"cells": stored}, None).markdown


def test_html_of_an_output_is_out_of_reach_of_the_sites_styles():
    shown = [{"output_type": "display_data", "data": {"text/html": "<details>x</details>"}}]
    page = notebooks.Page({"cells": [cell("code", "x", outputs=shown)]}, None)
    (piece,) = page.pieces
    assert re.search(r'<template shadowrootmode="open">.*<details>.*</template>', piece)


def test_a_notebook_that_was_not_executed_says_so():
    page = notebooks.Page({"cells": [cell("markdown", "# T"), cell("code", "x")]}, None)
    assert page.markdown.split("\n\n")[1] == notebooks.NOTE


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_every_notebook_becomes_a_page(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    page = notebooks.Page(notebook, notebooks.inline_math)
    assert page.markdown.startswith("# ")
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert page.markdown.count("```python\n") == len(code)
    assert not re.search(r"@@piece-\d+@@", page.finished(page.markdown))


# ---- doctests ------------------------------------------------------------------------------------


def test_doctests_are_fenced_and_prose_is_left_alone():
    pytest.importorskip("griffe", reason="comes with requirements/docs.txt")
    fenced = theme("doctests").fenced
    text = "One.\n\n>>> f(1)\n2\n>>> g()\n3\n\nMore > text."
    assert fenced(text) == "One.\n\n```pycon\n>>> f(1)\n2\n>>> g()\n3\n```\n\nMore > text."
    assert fenced("Prose only.") == "Prose only."
