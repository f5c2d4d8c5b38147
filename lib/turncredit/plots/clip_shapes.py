"""What a clip does to gradients: by ratio, along a trajectory, and as its range grows."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from turncredit.plots.simplex import INK, LINES, SERIES
from turncredit.plots.style import WIDTH, styled

PUSH = "push on the token's log-prob\n(per unit of advantage)"


@styled
def pushes(
    panels: Mapping[str, Mapping[str, Tensor]], ratios: Tensor, *, clip_low: float, clip_high: float
) -> Figure:
    """A panel for each title: what gradient ascent does to a log-prob, against the token's ratio.

    panels: title to name to [N]; ratios: [N].  The range of the clip is grey.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.axvspan(1 - clip_low, 1 + clip_high, color="#eeeeee", zorder=0)
        looks = zip(SERIES, LINES, strict=True)
        for (name, values), (colour, style) in zip(lines.items(), looks, strict=False):
            axis.plot(ratios.numpy(), values.numpy(), style, color=colour, label=name)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set(title=title, xlabel="importance ratio of the token")
    axes[0].set_ylabel(PUSH)
    axes[0].legend(loc="best")
    return figure


@styled
def strips(rows: Mapping[str, Tensor], turns: Sequence[int], *, limit: float, unit: str) -> Figure:
    """One strip of cells for each name: the sampled tokens of one trajectory, in order.

    rows: name to [N]; turns: [N], whose turn each token is of.  A cell of exactly 0 is crossed out.
    """
    figure = Figure(figsize=(WIDTH, 0.9 + 0.42 * len(rows)), layout="constrained")
    axis = figure.subplots()
    table = np.stack([values.numpy() for values in rows.values()])
    shown = axis.imshow(table, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, column in zip(*np.nonzero(table == 0), strict=True):
        axis.text(column, row, "×", ha="center", va="center", color=INK)
    _mark_turns(axis, turns)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.grid(visible=False)
    figure.colorbar(shown, ax=axis, label=unit, shrink=0.9, pad=0.01)
    return figure


def _mark_turns(axis: Axes, turns: Sequence[int]) -> None:
    """A line where a turn begins, and its number in its middle."""
    numbers = np.asarray(turns)
    for turn in dict.fromkeys(numbers.tolist()):
        places = np.nonzero(numbers == turn)[0]
        if places[0]:
            axis.axvline(places[0] - 0.5, color=INK, linewidth=1.4)
    middles = [np.nonzero(numbers == turn)[0].mean() for turn in dict.fromkeys(numbers.tolist())]
    axis.set_xticks(middles, [f"turn {turn}" for turn in dict.fromkeys(numbers.tolist())])


@styled
def shares(lines: Mapping[str, Tensor], ranges: Tensor, *, label: str) -> Figure:
    """A share [N] for each name against the clip range [N], which is drawn on a log scale."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axis = figure.subplots()
    for (name, values), colour, style in zip(lines.items(), SERIES, LINES, strict=False):
        axis.plot(ranges.numpy(), values.numpy(), style, color=colour, label=name)
    axis.set(xscale="log", xlabel="clip range ε of 1 ± ε", ylabel=label, ylim=(-0.02, 1.02))
    axis.legend(loc="best")
    return figure
