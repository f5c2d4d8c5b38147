"""What a page is made of, and its two forms: Markdown and one HTML file.

Texts are plain: each form escapes them, so that nothing in a result can become markup.
"""

import html
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turncredit.report.curve_picture import picture
from turncredit.report.curves import Chart
from turncredit.report.look import STYLE


@dataclass(frozen=True)
class Heading:
    """A title (level 1) or the name of a section."""

    KIND = "heading"

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    KIND = "text"

    text: str


@dataclass(frozen=True)
class Links:
    """Places to go on reading: name and address, relative to the page's folder."""

    KIND = "links"

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Cells of text; `""` stands for the cell above it, which goes on."""

    KIND = "table"

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: str = ""
    """Summary behind which the table is folded away; "": it is open."""
    badges: tuple[str, ...] = ()
    """Columns whose cells are verdicts."""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; `source` is relative to the page's folder."""

    KIND = "picture"

    name: str
    source: str
    caption: str


@dataclass(frozen=True)
class Curves:
    """Training curves to zoom and toggle; see `curves.curve_chart`."""

    KIND = "curves"

    chart: Chart


Block = Heading | Text | Links | Table | Picture | Curves

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head>
<body><main>
{body}
</main></body></html>
"""


def markdown(blocks: Sequence[Block]) -> str:
    """The page as Markdown for GitHub."""
    return "\n\n".join(_MARKDOWN[block.KIND](block) for block in blocks) + "\n"


def page(title: str, blocks: Sequence[Block]) -> str:
    """The page as one HTML file: its style inside, light and dark; nothing loads but the figures,
    by relative links, and nothing runs but the script of `Curves`, which the page can do without.
    """
    body = "\n".join(_HTML[block.KIND](block) for block in blocks)
    return _PAGE.format(title=html.escape(title), style=STYLE, body=body)


def _plain(text: str) -> str:
    """Markdown that shows exactly `text`, on one line.

    >>> _plain("a|b <i> *c*")
    'a\\\\|b &lt;i&gt; \\\\*c\\\\*'
    """
    text = " ".join(text.split()).replace("\\", "\\\\")
    for mark in "`*[]|~":
        text = text.replace(mark, "\\" + mark)
    return html.escape(text, quote=False)


def _markdown_table(table: Table) -> str:
    header, *rows = (
        "| " + " | ".join(map(_plain, row)) + " |" for row in (table.header, *table.rows)
    )
    text = "\n".join([header, "|" + "---|" * len(table.header), *rows])
    if table.folded:
        summary = html.escape(table.folded, quote=False)
        return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
    return text


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    body = "".join(f"<tr>{_cells(table, line)}</tr>\n" for line in range(len(table.rows)))
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    text = f'<div class="wide"><table>{inner}</table></div>'
    if table.folded:
        summary = html.escape(table.folded)
        return f"<details><summary>{summary}</summary>{text}</details>"
    return text


def _cells(table: Table, line: int) -> str:
    """The cells of one row; one that goes on in the rows below spans them."""
    cells = []
    for column, (name, cell) in enumerate(zip(table.header, table.rows[line], strict=True)):
        if not cell and line:
            continue
        below = (row[column] for row in table.rows[line + 1 :])
        span = 1 + sum(1 for _ in itertools.takewhile(lambda text: not text, below))
        kind = "first" if column == 0 else "none" if cell == "–" else ""
        facts = (f' class="{kind}"' if kind else "") + (f' rowspan="{span}"' if span > 1 else "")
        shown = html.escape(cell)
        if name in table.badges:
            shown = f'<b class="{html.escape(cell.replace(" ", "-"))}">{shown}</b>'
        cells.append(f'<td{facts} data-name="{html.escape(name)}">{shown}</td>')
    return "".join(cells)


def _markdown_picture(picture: Picture) -> str:
    name, caption = map(_plain, (picture.name, picture.caption))
    return f"![{name}](<{picture.source}>)\n\n*{name}.* {caption}"


def _html_picture(picture: Picture) -> str:
    name, source, caption = map(html.escape, (picture.name, picture.source, picture.caption))
    return (
        f'<figure><img src="{source}" alt="{name}" loading="lazy">'
        f"<figcaption><details><summary>{name}</summary>{caption}</details></figcaption></figure>"
    )


def _html_curves(curves: Curves) -> str:
    """The picture, then data and script, which adds the controls; `<` is escaped in the data."""
    chart = curves.chart
    data = json.dumps(chart, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    first, labels = chart["first"], chart["arms"]
    named = ", ".join(labels[arm]["label"] for arm in first["arms"])
    task = chart["tasks"][first["task"]]["label"]
    text = html.escape(
        f"Every thin line is a run, the thick line of a colour the mean over a method's runs, both "
        f"smoothed (weight {chart['weight']:g}). Drag over steps to zoom, click a method to toggle "
        "it, point at a line to read it."
    )
    without = html.escape(
        f"Without JavaScript only {named} on {task} are shown; metrics.csv of a run has the rest."
    )
    script = (Path(__file__).parent / "curves.js").read_text(encoding="utf-8")
    return (
        f"<p>{text}</p><noscript><p>{without}</p></noscript>"
        f'<div class="curves"><div class="plot">{picture(chart)}</div>'
        f'<script type="application/json">{data}</script></div><script>{script}</script>'
    )


def _markdown_curves(curves: Curves) -> str:
    runs = sum(len(seeds) for task in curves.chart["tasks"].values() for seeds in
               task["runs"].values())  # fmt: skip
    return f"The training curves of {runs} runs, to zoom and toggle: [report.html](<report.html>)"


_MARKDOWN = {
    "curves": _markdown_curves,
    "heading": lambda block: "#" * block.level + " " + _plain(block.text),
    "text": lambda block: _plain(block.text),
    "links": lambda block: "\n".join(f"- [{_plain(n)}](<{a}>)" for n, a in block.entries),
    "table": _markdown_table,
    "picture": _markdown_picture,
}
_HTML = {
    "curves": _html_curves,
    "heading": lambda block: f"<h{block.level}>{html.escape(block.text)}</h{block.level}>",
    "text": lambda block: f"<p>{html.escape(block.text)}</p>",
    "links": lambda block: (
        "<ul>"
        + "".join(
            f'<li><a href="{html.escape(address)}">{html.escape(name)}</a></li>'
            for name, address in block.entries
        )
        + "</ul>"
    ),
    "table": _html_table,
    "picture": _html_picture,
}
