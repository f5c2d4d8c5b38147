"""Who is blamed, turn by turn, in cases side by side: a row for each method, the truth the last."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from turncredit.plots.audit_figures import LABEL_COLOURS, heat
from turncredit.plots.panels import LETTERS, legend
from turncredit.plots.style import WIDTH, styled

MEANING = {"follows": "follows (right, given the wrong turn before it)"}


class Case(NamedTuple):
    """One trajectory and what every method gives its turns."""

    turns: Sequence[str]
    """What each turn did, in two short lines."""
    labels: Sequence[str]
    """right, follows, wrong or unjudged, for each turn."""
    credit: Mapping[str, Sequence[float]]
    """Method to one number for each turn; the same methods in every case."""


@styled
def credit_ledgers(cases: Mapping[str, Case]) -> Figure:
    """A panel for each case: blame is orange, praise violet, the number stands in the cell.

    A row's colours are shares of its strongest number over all cases, since methods differ in their
    units.  Raises ValueError for a case without a number for each turn.
    """
    for title, case in cases.items():
        counts = [len(case.labels), *map(len, case.credit.values())]
        if set(counts) != {len(case.turns)}:
            raise ValueError(f"{title!r}: {counts} labels and numbers for {len(case.turns)} turns")
    methods = list(next(iter(cases.values())).credit)
    widths = [len(case.turns) for case in cases.values()]
    figure = Figure(figsize=(WIDTH, 1.5 + 0.27 * len(methods)), layout="constrained")
    axes = figure.subplots(1, len(cases), width_ratios=widths, squeeze=False)[0]
    strongest = {m: max(_largest(case.credit[m]) for case in cases.values()) for m in methods}
    for axis, (title, case) in zip(axes, cases.items(), strict=True):
        _panel(axis, case, strongest)
        letters = int(LETTERS * (WIDTH - 1.5) * len(case.turns) / sum(widths))
        axis.set_title(textwrap.fill(title, letters), loc="left")
        axis.set_yticks(range(len(methods)), methods if axis is axes[0] else [""] * len(methods))
    axes[0].get_yticklabels()[-1].set_weight("bold")
    shown = {label for case in cases.values() for label in case.labels}
    colours = {name: colour for name, colour in LABEL_COLOURS.items() if name in shown}
    legend(figure, [Patch(facecolor=c, label=MEANING.get(n, n)) for n, c in colours.items()])
    return figure


def _largest(numbers: Sequence[float]) -> float:
    return float(np.max(np.abs(numbers)))


def _panel(axis: Axes, case: Case, strongest: Mapping[str, float]) -> None:
    scaled = np.array([np.asarray(case.credit[m]) / (s or 1.0) for m, s in strongest.items()])
    numbers = iter([float(value) for m in strongest for value in case.credit[m]])
    colours = matplotlib.colormaps["PuOr"]
    heat(axis, scaled, Normalize(-1.2, 1.2), colours, lambda _: _signed(next(numbers)))
    for number, (turn, label) in enumerate(zip(case.turns, case.labels, strict=True)):
        colour = LABEL_COLOURS[label]
        axis.add_patch(Rectangle((number - 0.48, -1.9), 0.96, 1.3, facecolor=colour, linewidth=0))
        axis.text(number, -1.25, turn, ha="center", va="center", fontsize=7)
    axis.set_ylim(len(strongest) - 0.5, -2.0)
    axis.set_xticks(range(len(case.turns)))
    axis.set_xlabel("turn")


def _signed(value: float) -> str:
    """Three decimals, and 0 for what is nothing but rounding."""
    return "0" if abs(value) < 5e-4 else f"{value:+.3f}".replace("-", "−")
