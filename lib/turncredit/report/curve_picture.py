"""What the chart of curves shows at first, as SVG that needs no script; `curves.js` draws the rest.

Both draw by the same rules, so that the picture does not jump when the script takes over: thin
lines are runs, the thick one of a colour is the mean over the runs of its arm.
"""

import html
import itertools
import math
from collections.abc import Sequence

from turncredit.report.curves import Chart, unpacked
from turncredit.stats import ema

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 12, 44
LABEL_GAP = 15
"""Pixels between the labels at the ends of lines, at least."""

Line = list[float]


def picture(chart: Chart) -> str:
    """The SVG of `chart["first"]`."""
    first = chart["first"]
    runs = chart["tasks"][first["task"]]["runs"]
    curves = {
        arm: [
            ema(unpacked(run[first["metric"]]), chart["weight"]).tolist()
            for run in runs[arm].values()
        ]
        for arm in first["arms"]
    }
    means = {arm: mean_line(lines) for arm, lines in curves.items()}
    steps = max(
        len(unpacked(run[first["metric"]])) for seeds in runs.values() for run in seeds.values()
    )
    low, high = bounds([line for lines in curves.values() for line in lines])
    scale = _Scale(steps - 1, low, high)
    body = [_axes(scale, chart["metrics"][first["metric"]])]
    for arm, lines in curves.items():
        colour = chart["arms"][arm]["colour"]
        body += [_polyline(scale, line, colour, "run") for line in lines]
    for arm, line in means.items():
        body.append(_polyline(scale, line, chart["arms"][arm]["colour"], "mean"))
    ends = {arm: scale.y(_last(line)) for arm, line in means.items()}
    for arm, y in spread(ends).items():
        label, colour = (html.escape(chart["arms"][arm][key]) for key in ("label", "colour"))
        x = WIDTH - RIGHT + 8
        body.append(f'<text class="arm" x="{x}" y="{y + 4:.1f}" fill="{colour}">{label}</text>')
    title = html.escape(f"{chart['metrics'][first['metric']]} by training step, every run a line")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def mean_line(lines: Sequence[Line]) -> Line:
    """Mean at each step of the runs that have it; NaN where none has.

    >>> mean_line([[0.0, 1.0], [1.0]])
    [0.5, 1.0]
    """
    columns = itertools.zip_longest(*lines, fillvalue=math.nan)
    known = ([value for value in column if math.isfinite(value)] for column in columns)
    return [sum(values) / len(values) if values else math.nan for values in known]


def bounds(lines: Sequence[Line]) -> tuple[float, float]:
    """Ends of the vertical axis: those of the values, with a little room."""
    known = [value for line in lines for value in line if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = (high - low) * 0.04 or 0.5
    return low - room, high + room


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between the ends, at most about `count`.

    >>> ticks(0.03, 0.97, 5)
    [0.2, 0.4, 0.6, 0.8]
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.9999)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)]


def spread(ends: dict[str, float]) -> dict[str, float]:
    """Heights of labels moved apart, in order, so that none covers another.

    >>> spread({"a": 50.0, "b": 49.0})
    {'b': 49.0, 'a': 64.0}
    """
    placed, last = {}, -math.inf
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        last = placed[name] = max(y, last + LABEL_GAP)
    over = max(0.0, last - (HEIGHT - BOTTOM))
    return {name: y - over for name, y in placed.items()}


class _Scale:
    """From step and value to pixels."""

    def __init__(self, last_step: int, low: float, high: float) -> None:
        self.last_step, self.low, self.high = max(last_step, 1), low, high

    def x(self, step: float) -> float:
        return LEFT + step / self.last_step * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(scale: _Scale, label: str) -> str:
    parts = []
    for value in ticks(scale.low, scale.high, 6):
        y = scale.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for step in ticks(0, scale.last_step, 8):
        at = f'x="{scale.x(step):.1f}" y="{HEIGHT - BOTTOM + 16}"'
        parts.append(f'<text {at} text-anchor="middle">{step:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">training step</text>')
    place = f'transform="translate(14 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)"'
    parts.append(f'<text {place} text-anchor="middle">{html.escape(label)}</text>')
    return "".join(parts)


def _polyline(scale: _Scale, line: Line, colour: str, kind: str) -> str:
    points = " ".join(
        f"{scale.x(step):.1f},{scale.y(value):.1f}"
        for step, value in enumerate(line)
        if math.isfinite(value)
    )
    return f'<polyline class="{kind}" stroke="{html.escape(colour)}" points="{points}"/>'


def _last(line: Line) -> float:
    return next((value for value in reversed(line) if math.isfinite(value)), 0.0)
