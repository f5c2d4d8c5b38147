"""Notebooks as Markdown pages: prose, code and, where they were executed, outputs."""

import re
from collections.abc import Callable
from html import escape
from typing import Any

NOTE = (
    "*Shown as it is stored, without outputs. After `make reproduce` the site shows the executed "
    "notebook; `make lab` opens it.*"
)
WIDGET = "application/vnd.jupyter.widget-view+json"
OWN_STYLE = (
    "table.dataframe{border-collapse:collapse;font-size:.8em;font-variant-numeric:tabular-nums}"
    ".dataframe :is(td,th){border:0;border-bottom:1px solid #8886;padding:.3em .7em;"
    "text-align:right}"
)
"""Tables of pandas, on any background."""
_MATH = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.S)


class Page:
    """The Markdown of a notebook, and pieces of HTML that Markdown must not touch."""

    def __init__(self, notebook: dict[str, Any], math: Callable[[str, str], str]) -> None:
        """math: (TeX, "inline" or "block") to MathML."""
        self.pieces: list[str] = []
        self._math = math
        executed = any(cell.get("outputs") for cell in notebook["cells"])
        parts = [self._cell(cell) for cell in _in_effect(notebook["cells"])]
        if not executed:
            parts.insert(1, NOTE)
        self.markdown = "\n\n".join(parts) + "\n"

    def finished(self, html: str) -> str:
        """The page once Markdown is done: every piece in its place."""
        for number, piece in enumerate(self.pieces):
            place = f"@@piece-{number}@@"
            html = html.replace(f"<p>{place}</p>", piece).replace(place, piece)
        return html

    def _keep(self, html: str) -> str:
        self.pieces.append(html)
        return f"@@piece-{len(self.pieces) - 1}@@"

    def _cell(self, cell: dict[str, Any]) -> str:
        source = _text(cell["source"])
        if cell["cell_type"] != "code":
            return _MATH.sub(self._formula, source)
        shown = [self._output(output) for output in cell.get("outputs", [])]
        return "\n\n".join([_fenced(source, "python"), *filter(None, shown)])

    def _formula(self, found: re.Match[str]) -> str:
        code, block, inline = found.groups()
        if code is not None:
            return code
        return self._keep(self._math(block or inline, "block" if block else "inline"))

    def _output(self, output: dict[str, Any]) -> str:
        if output["output_type"] == "stream":
            progress = output.get("name") == "stderr"
            return "" if progress else _fenced(_text(output["text"]).rstrip(), "text")
        data = output.get("data", {})
        if WIDGET in data:  # no kernel moves it here; a picture of it stands in a cell before
            return ""
        if "text/html" in data:
            return self._keep(apart(_text(data["text/html"])))
        if "image/png" in data:
            code = _text(data["image/png"]).replace("\n", "")
            picture = f'<img alt="figure of this cell" src="data:image/png;base64,{code}">'
            return self._keep(f'<div class="output">{picture}</div>')
        if "text/markdown" in data:
            return _text(data["text/markdown"])
        text = _text(data.get("text/plain", ""))
        return _fenced(text, "text") if text else ""


def apart(html: str) -> str:
    """HTML in a tree of its own: it has its own styles, and none of the site's touches it."""
    inner = f'<style>{OWN_STYLE}</style><div class="themed">{html}</div>'
    return f'<div class="output"><template shadowrootmode="open">{inner}</template></div>'


def spaced(mathml: str) -> str:
    """MathML with room around the names of functions, which browsers set like variables.

    >>> spaced("<mi>p</mi><mi>log</mi><mi>p</mi>")
    '<mi>p</mi><mspace width="0.17em"/><mi>log</mi><mspace width="0.17em"/><mi>p</mi>'
    """
    room = '<mspace width="0.17em"/>'
    return re.sub(r"<mi>(log|exp|sign)</mi>", rf"{room}<mi>\1</mi>{room}", mathml)


def _in_effect(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the parameters that others have taken the place of."""
    tags = [cell.get("metadata", {}).get("tags", []) for cell in cells]
    if not any("injected-parameters" in own for own in tags):
        return cells
    return [cell for cell, own in zip(cells, tags, strict=True) if "parameters" not in own]


def inline_math(tex: str, kind: str) -> str:
    """TeX as it is, where no converter is at hand."""
    return f"<code>{escape(tex)}</code>"


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text}\n{fence}"


def _text(value: str | list[str]) -> str:
    return value if type(value) is str else "".join(value)
