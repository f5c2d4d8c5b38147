"""Every kept figure at half its width: no text too small to read, and none over another.

The SVG files say where each line of text stands and how large it is, so nothing is drawn here.
"""

import html
import json
import re
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from turncredit import paths
from turncredit.plots.style import RC, WIDTH

FOLDER = paths.PACKAGE.parents[1] / "figures"
KEPT = sorted(FOLDER.glob("*.svg"))
HALF = WIDTH * RC["savefig.dpi"] / 2
"""Pixels: as wide as a README or a page of the site shows a figure."""
SMALLEST = 9.5
"""Pixels of the font's size at that width; browsers call 10 small, and below 9 one guesses."""
SLACK = 1.0
"""Points by which boxes may touch: capitals and descenders leave some of theirs empty."""
BREATH = 2.5
"""Points that words side by side need between them; a space is about as wide."""

LINE = re.compile(
    r"<!-- (?P<text>.*?) -->\s*<g (?:style=\"[^\"]*\" )?"
    r"transform=\"translate\((?P<x>\S+) (?P<y>\S+)\)"
    r"(?: rotate\((?P<turned>\S+)\))? scale\((?P<scale>\S+) \S+\)\">(?P<body>.*?)</g>",
    re.DOTALL,
)

each_figure = pytest.mark.parametrize("file", KEPT, ids=lambda path: path.stem)


class Line(NamedTuple):
    """One line of text: its font size and its box, in points from the top left."""

    text: str
    size: float
    level: bool
    """Whether it is to be read without turning one's head."""
    box: tuple[float, float, float, float] | None
    """None where it stands aslant."""


@lru_cache
def extent(text: str, weight: str, style: str) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a text of 100 points."""
    if not text.strip():
        return 0.0, 0.0, 0.0, 0.0
    font = FontProperties(family=RC["font.family"], weight=weight, style=style)
    return TextPath((0, 0), text, size=100, prop=font).get_extents().extents


def lines(svg: str) -> list[Line]:
    """Every line of text of a figure."""
    found = []
    for match in LINE.finditer(svg):
        text, size = html.unescape(match["text"]), 100 * float(match["scale"])
        bold, slanted = ("Bold" in match["body"], "Oblique" in match["body"])
        style = "oblique" if slanted else "normal"
        left, bottom, right, top = (
            side * size / 100 for side in extent(text, "bold" if bold else "normal", style)
        )
        x, y, turned = float(match["x"]), float(match["y"]), float(match["turned"] or 0)
        box = {
            0.0: (x + left, y - top, x + right, y - bottom),
            -90.0: (x - top, y - right, x - bottom, y - left),
            90.0: (x + bottom, y + left, x + top, y + right),
        }.get(turned)
        found.append(Line(text, size, turned == 0, box))
    return found


def width(svg: str) -> float:
    """Of a figure, in points."""
    return float(re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)[1])


def overlaps(one: Line, other: Line) -> bool:
    """Whether two boxes share more than a rim, or two words of a row no longer stand apart."""
    if one.box is None or other.box is None:
        return False
    across = min(one.box[2], other.box[2]) - max(one.box[0], other.box[0])
    down = min(one.box[3], other.box[3]) - max(one.box[1], other.box[1])
    return across > (-BREATH if one.level and other.level else SLACK) and down > SLACK


def test_every_caption_has_its_figure():
    captions = json.loads((FOLDER / "captions.json").read_text(encoding="utf-8"))
    assert sorted(captions) == [file.stem for file in KEPT]


@each_figure
def test_text_is_readable_at_half_the_width(file):
    svg = file.read_text(encoding="utf-8")
    found = lines(svg)
    assert found and len(found) == svg.count("<!-- ")
    small = {line.text: round(line.size * HALF / width(svg), 1) for line in found}
    assert {text: size for text, size in small.items() if size < SMALLEST} == {}


@each_figure
def test_no_text_stands_on_another(file):
    found = lines(file.read_text(encoding="utf-8"))
    assert [(a.text, b.text) for a, b in combinations(found, 2) if overlaps(a, b)] == []


def drawn(folder: Path, *texts: tuple[float, float, str], size: float = 9.0) -> str:
    """A figure with texts at these places (shares of its width and height), as an SVG."""
    from matplotlib.figure import Figure

    from turncredit.plots.style import save_figure, styled

    def draw() -> Figure:
        figure = Figure(figsize=(WIDTH, 3))
        for x, y, text in texts:
            figure.text(x, y, text, fontsize=size)
        return figure

    save_figure(styled(draw)(), folder, "it")
    return (folder / "it.svg").read_text(encoding="utf-8")


def test_the_measure_knows_small_text_and_text_on_text(tmp_path):
    apart = lines(drawn(tmp_path, (0.1, 0.5, "left & right"), (0.6, 0.5, "far"), size=6.0))
    assert [(line.text, round(line.size, 3)) for line in apart] == [
        ("left & right", 6.0), ("far", 6.0)
    ]  # fmt: skip
    assert not overlaps(*apart)
    assert overlaps(*lines(drawn(tmp_path, (0.1, 0.5, "left & right"), (0.12, 0.5, "far"))))
    svg = drawn(tmp_path, (0.1, 0.5, "so long that it has an end"))
    assert width(svg) == 72 * WIDTH
    (line,) = lines(svg)
    assert 100 < line.box[2] - line.box[0] < 150 and line.box[0] == pytest.approx(64.8, abs=1)
