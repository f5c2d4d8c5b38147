"""What `mkdocs build` adds to Markdown: pages from the root, notebooks, copies, a link check."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import site_check
import site_links
import site_nav
import site_notebooks
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

REPOSITORY = Path(__file__).resolve().parents[2]
EXECUTED = REPOSITORY / "results" / os.environ.get("TIER", "cpu") / "notebooks"
_notebooks: dict[str, site_notebooks.Page] = {}
_beside: set[str] = set()
"""Markdown that a copied page refers to: MkDocs would take it for a page, so it is copied last."""


def on_config(config: Any) -> Any:
    """Complete the plan of the site."""
    config["nav"] = site_nav.completed(config["nav"], REPOSITORY)
    config["mdx_configs"].setdefault("toc", {})["slugify"] = site_links.slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root and the notebooks, executed where they have been."""
    for file, page in site_links.ROOT_PAGES.items():
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, site_nav.OTHERS, content=site_nav.others(REPOSITORY)))
    for stored in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        executed = EXECUTED / stored.name
        path = executed if executed.exists() else stored
        page = site_links.site_path(f"notebooks/{stored.name}")
        notebook = json.loads(path.read_text(encoding="utf-8"))
        _notebooks[page] = site_notebooks.Page(notebook, _math)
        files.append(File.generated(config, page, content=_notebooks[page].markdown))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links that leave docs/, and copy what they lead to."""
    place = page.file.src_uri
    if place.startswith("reference/"):
        return markdown
    text, copied = site_links.rewritten(markdown, place, REPOSITORY)
    for file in sorted(site_links.with_what_they_show(copied, REPOSITORY)):
        if file.endswith(".md"):
            _beside.add(file)
        elif files.get_file_from_path(f"files/{file}") is None:
            source = str(REPOSITORY / file)
            files.append(File.generated(config, f"files/{file}", abs_src_path=source))
    return text


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Put outputs and formulas of a notebook where Markdown has left room for them."""
    found = _notebooks.get(page.file.src_uri)
    return found.finished(html) if found else html


def on_post_build(config: Any) -> None:
    """Finish the copies; fail if a link leads nowhere or a page would load from the network."""
    site = Path(config["site_dir"])
    for file in sorted(_beside):
        (site / "files" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / file, site / "files" / file)
    found = site_check.complaints(site)
    if found:
        shown = "\n".join(found[:40])
        raise PluginError(f"{len(found)} links are broken:\n{shown}")


def _math(tex: str, kind: str) -> str:
    from latex2mathml.converter import convert

    return site_notebooks.spaced(convert(tex, display=kind))
