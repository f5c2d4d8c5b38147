"""Published claims beside what was measured here, as a table."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit.plots.style import WIDTH, styled

# Header, left edge as a share of the width, letters per line.
_COLUMNS = (
    ("claim", 0.005, 44),
    ("source", 0.335, 16),
    ("published", 0.465, 17),
    ("ours [interval]", 0.6, 26),
    ("seeds", 0.785, 8),
    ("verdict", 0.845, 20),
)
_LINE = 0.155
"""Inches per line of text."""

VERDICT_COLOURS = {
    "reproduced": "#00694B",
    "direction only": "#7A5C00",
    "not reproduced": "#B03A00",
    "inconclusive": "#555555",
    "not measured": "#888888",
}
"""Verdicts that have a colour; any other is black.  The word says it too."""


@styled
def claims_table(rows: Sequence[Mapping[str, Any]], *, form: str = ".3g") -> Figure:
    """One row per claim: claim, source, published, ours, low, high, seeds, verdict.

    published, ours: number or text; a missing one is a dash.  seeds: a number or text.
    Raises ValueError if there is no row.
    """
    if not rows:
        raise ValueError("claims_table: there are no rows")
    texts = [_texts(row, form) for row in rows]
    heights = [_LINE * max(text.count("\n") + 1 for text in cells) + 0.1 for cells in texts]
    height = sum(heights) + 0.45
    figure = Figure(figsize=(WIDTH, height))
    axis = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axis.set_axis_off()
    axis.set(xlim=(0, 1), ylim=(height, 0))
    for header, x, _ in _COLUMNS:
        axis.text(x, 0.22, header, weight="bold", va="baseline")
    axis.hlines([0.03, height - 0.05], 0, 1, color="black", linewidth=1.2)
    axis.hlines(0.32, 0, 1, color="black", linewidth=0.7)
    top = 0.35
    for cells, size, row in zip(texts, heights, rows, strict=True):
        _write_row(axis, top, cells, VERDICT_COLOURS.get(str(row["verdict"]), "black"))
        top += size
        axis.hlines(top - 0.005, 0, 1, color="#dddddd", linewidth=0.5)
    return figure


def _write_row(axis: Axes, top: float, cells: Sequence[str], verdict_colour: str) -> None:
    for (header, x, _), cell in zip(_COLUMNS, cells, strict=True):
        verdict = header == "verdict"
        for number, line in enumerate(cell.split("\n")):
            axis.text(
                x, top + 0.155 + number * _LINE, line, va="baseline", fontsize=8,
                color=verdict_colour if verdict else "black",
                weight="bold" if verdict else "normal",
            )  # fmt: skip


def _texts(row: Mapping[str, Any], form: str) -> list[str]:
    """The cells of a row, wrapped."""
    ours = _text(row["ours"], form)
    low, high = (_text(row[end], form) for end in ("low", "high"))
    if "–" not in (ours, low, high):
        ours += f" [{low}, {high}]"
    cells = [row["claim"], row["source"], _text(row["published"], form), ours]
    cells += [_text(row["seeds"], ".0f"), str(row["verdict"])]
    return [
        textwrap.fill(cell, letters) for cell, (_, _, letters) in zip(cells, _COLUMNS, strict=True)
    ]


def _text(value: Any, form: str) -> str:
    """A number in `form`, a text as it is, a dash for what is missing."""
    if isinstance(value, str):
        return value or "–"
    if value is None or math.isnan(value):
        return "–"
    return format(value, form).replace("-", "−")
