"""Heat maps over a grid of regimes."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from turncredit.plots.panels import say_no_runs
from turncredit.plots.style import WIDTH, styled

EMPTY = "#e8e8e8"
AXES = {"x": "prior", "y": "knowledge", "column": "miss_rate", "row": "learning_rate"}
"""Where the factors of the map of regimes stand in `regime_map`."""


@styled
def regime_map(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    column: str | None = None,
    row: str | None = None,
    label: str,
    gain: bool = False,
    form: str = ".2f",
) -> Figure:
    """A number over two factors, small multiples over two more; seeds in each cell.

    table: one row per cell: the factors' columns, value, low, high (NaN: no interval) and n, the
    seeds behind it.  A cell without a row, or with n = 0, is grey and says so.  `gain`: the number
    can be negative; colours are centred at 0 and a cell is hatched if its interval holds 0.
    """
    columns, rows = (_values(table, name) for name in (column, row))
    xs, ys = sorted(table[x].unique()), sorted(table[y].unique())
    height = 1.0 + len(rows) * max(0.46 * len(ys) + 0.5, 1.3)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    norm, colours = _scale(table, gain)
    for i, at_row in enumerate(rows):
        for j, at_column in enumerate(columns):
            here = _at(_at(table, row, at_row), column, at_column)
            cells = {(cell[x], cell[y]): cell for cell in here.to_dict("records")}
            _cells(axes[i, j], cells, xs, ys, norm, colours, gain, form)
            axes[i, j].set_title(_title((row, at_row), (column, at_column)), loc="left", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel(_name(x))
    for axis in axes[:, 0]:
        axis.set_ylabel(_name(y))
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, aspect=30, pad=0.01)
    bar.set_label(label)
    bar.outline.set_visible(False)
    notes = [Patch(facecolor=EMPTY, label="no runs")]
    if gain:
        hatch = Patch(facecolor="white", edgecolor="#555555", hatch="////", linewidth=0.5)
        hatch.set_label("interval includes 0")
        notes = [hatch, *notes]
    figure.legend(handles=notes, loc="outside upper right", ncols=2, fontsize=7.5)
    return figure


def _values(table: pd.DataFrame, factor: str | None) -> list[Hashable]:
    """The values of a factor in order of appearance; one dummy where there is no factor."""
    return list(dict.fromkeys(table[factor])) or [None] if factor else [None]


def _at(table: pd.DataFrame, factor: str | None, value: Hashable) -> pd.DataFrame:
    return table if factor is None else table[table[factor] == value]


def _name(factor: str) -> str:
    return factor.replace("_", " ")


def _title(*fixed: tuple[str | None, Hashable]) -> str:
    parts = [
        value.replace("_", " ") if isinstance(value, str) else f"{_name(factor)} {value:g}"
        for factor, value in fixed
        if factor is not None and value is not None
    ]
    return ", ".join(parts)


def _scale(table: pd.DataFrame, gain: bool) -> tuple[Normalize, Colormap]:
    """Shares from 0 to 1, or gains evenly around 0."""
    if not gain:
        return Normalize(0, max(1.0, table["value"].max())), matplotlib.colormaps["Blues"]
    largest = table["value"].abs().max()
    reach = largest if largest > 0 else 1.0
    return Normalize(-reach, reach), matplotlib.colormaps["PuOr_r"]


def _cells(
    axis: Axes,
    cells: Mapping[tuple, Mapping[str, Any]],
    xs: Sequence[float],
    ys: Sequence[float],
    norm: Normalize,
    colours: Colormap,
    gain: bool,
    form: str,
) -> None:
    """One map, low values of y at the bottom."""
    axis.grid(False)
    axis.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
    axis.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
    axis.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    if not cells:
        say_no_runs(axis)
        return
    for i, at_x in enumerate(xs):
        for j, at_y in enumerate(ys):
            _cell(axis, i, j, cells.get((at_x, at_y)), norm, colours, gain, form)


def _cell(
    axis: Axes,
    i: int,
    j: int,
    cell: Mapping[str, Any] | None,
    norm: Normalize,
    colours: Colormap,
    gain: bool,
    form: str,
) -> None:
    """One square, its number and its seeds."""
    place = {"xy": (i - 0.48, j - 0.48), "width": 0.96, "height": 0.96, "linewidth": 0}
    if cell is None or not cell["n"] or math.isnan(cell["value"]):
        axis.add_patch(Rectangle(**place, facecolor=EMPTY))
        axis.text(i, j, "–", ha="center", va="center", fontsize=7, color="#777777")
        return
    face = colours(norm(cell["value"]))
    unsure = gain and cell["low"] <= 0 <= cell["high"]
    axis.add_patch(
        Rectangle(
            **place, facecolor=face, hatch="////" if unsure else None,
            edgecolor="#00000033" if unsure else face,
        )
    )  # fmt: skip
    dark = 0.299 * face[0] + 0.587 * face[1] + 0.114 * face[2] < 0.5
    rounded = float(format(cell["value"], form)) + 0.0  # no minus before zero
    number = format(rounded, f"+{form}" if gain else form).replace("-", "−")
    text = axis.text(
        i, j, f"{number}\nn = {cell['n']:.0f}", ha="center", va="center", fontsize=7,
        color="white" if dark else "black",
    )  # fmt: skip
    if unsure:  # keep the number legible over the hatching
        text.set_bbox({"facecolor": face, "edgecolor": "none", "pad": 0.8})
