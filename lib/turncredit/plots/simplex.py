"""Policies over three responses as points of a triangle: fields, updates and paths on it.

A policy [3] lies nearer to a corner the likelier its response is.  Fields are functions: policies
[N, 3] to values [N], or to directions [N, 3] that sum to 0.  Float64, natural logarithms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation
from torch import Tensor

from turncredit.plots.style import WIDTH, styled

Field = Callable[[Tensor], Tensor]

RESPONSES = ("a", "b", "c")
HEIGHT = math.sqrt(3) / 2
"""Of the triangle, whose sides have length 1."""
CORNERS = torch.tensor([[0.5, HEIGHT], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
INK, UPDATE, ENTROPY = "#222222", "#0072B2", "#D55E00"
DRIFT = "drift (nats per unit step)"
SERIES, LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7"), ("-", "--", ":", "-.")

_RESOLUTION = 90
"""Points along a side of the grid on which colours are drawn; arrows stand farther apart."""
_ARROWS = 11
_SHADES = 16
_ROUNDING = 1e-9
"""A field that leaves one side of 0 by less has no line of sign changes."""


class Panel(NamedTuple):
    """What one triangle shows."""

    values: Field
    """Colour: policies [N, 3] to [N]."""
    directions: Field | None = None
    """Arrows: policies [N, 3] to [N, 3], where an update leads; None: no arrows."""


def grid(resolution: int, *, margin: float = 0.15) -> Tensor:
    """[(n + 1) (n + 2) / 2, 3] float64: evenly spaced policies, no response impossible.

    n is `resolution`; the outermost policies are `margin` spacings away from the edges.  Raises
    ValueError for a resolution below 1 or a margin that is not above 0.

    >>> grid(1, margin=1.0)
    tensor([[0.2500, 0.2500, 0.5000],
            [0.2500, 0.5000, 0.2500],
            [0.5000, 0.2500, 0.2500]], dtype=torch.float64)
    """
    if resolution < 1 or not margin > 0:
        raise ValueError(f"grid: resolution = {resolution}, margin = {margin}; need >= 1 and > 0")
    counts = [
        (first, second, resolution - first - second)
        for first in range(resolution + 1)
        for second in range(resolution + 1 - first)
    ]
    return (torch.tensor(counts, dtype=torch.float64) + margin) / (resolution + 3 * margin)


def in_plane(policies: Tensor) -> np.ndarray:
    """[..., 3] to [..., 2]: where policies lie; a direction, which sums to 0, becomes an arrow.

    >>> in_plane(torch.tensor([0.5, 0.25, 0.25])).round(4).tolist()
    [0.5, 0.433]
    """
    if policies.shape[-1] != len(CORNERS):
        raise ValueError(f"policies have {policies.shape[-1]} responses; a triangle shows 3")
    return (policies.double() @ CORNERS).numpy()


def entropies(policies: Tensor) -> Tensor:
    """[..., 3] to [...], nats; a response of probability 0 adds nothing.

    >>> entropies(torch.tensor([[0.5, 0.5, 0.0]]))
    tensor([0.6931])
    """
    return torch.special.entr(policies).sum(-1)


@styled
def fields(
    panels: Mapping[str, Panel],
    *,
    unit: str,
    limit: float,
    policy: Tensor | None = None,
    responses: Sequence[str] = RESPONSES,
) -> Figure:
    """One triangle per panel, by title: colour for the sign and size of a field, and its arrows.

    Colours run from -`limit` to `limit`; the black line is where the field changes sign.
    policy: [3], marked in each panel if given.
    """
    figure, axes = _triangles(list(panels), responses)
    for axis, panel in zip(axes, panels.values(), strict=True):
        shown = _field(axis, panel, limit)
        if policy is not None:
            _mark(axis, policy)
    _colour_bar(figure, axes, shown, np.linspace(-limit, limit, 5), unit)
    return figure


@styled
def updates(policy: Tensor, entropy_gradient: Tensor, steps: Mapping[str, Tensor]) -> Figure:
    """Update directions at one policy [3] over lines of equal entropy (after AEM, figure 1).

    steps: title to direction [3], a panel each; `entropy_gradient` [3] is drawn in every panel.
    An arrow that leaves the line through the policy towards the darker side raises entropy.
    """
    figure, axes = _triangles(list(steps), RESPONSES)
    for axis, step in zip(axes, steps.values(), strict=True):
        shown = _entropy_map(axis, policy)
        _arrow(axis, policy, entropy_gradient, ENTROPY, "entropy gradient")
        _arrow(axis, policy, step, UPDATE, "update")
        _mark(axis, policy)
    _colour_bar(figure, axes, shown, (0, 0.25, 0.5, 0.75, 1), "entropy (nats)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled
def paths(trails: Mapping[str, Tensor], rewards: Tensor) -> Figure:
    """Paths of policies, and their entropy against the expected reward reached so far.

    trails: name to [starts, steps, 3]; rewards: [3], of the responses.  Progress and not time is
    the axis, since the methods' clocks cannot be compared.
    """
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    triangle, curves = figure.subplots(1, 2, width_ratios=(1, 1.05))
    named = [f"{r}: reward {reward:g}" for r, reward in zip(RESPONSES, rewards, strict=True)]
    _frame(triangle, named)
    _entropy_map(triangle, None)
    for (name, trail), colour, style in _looks(trails):
        look = {"color": colour, "linestyle": style, "linewidth": 1.6}
        for number, path in enumerate(trail):
            triangle.plot(*in_plane(path).T, **look)
            label = name if number == 0 else None
            curves.plot((path @ rewards).numpy(), entropies(path).numpy(), label=label, **look)
        for axis, starts in (
            (triangle, in_plane(trail[:, 0]).T),
            (curves, (trail[:, 0] @ rewards, entropies(trail[:, 0]))),
        ):
            axis.plot(*starts, "o", color=INK, markersize=4, zorder=5)
    curves.set(xlabel="expected reward", ylabel="entropy (nats)")
    curves.set_ylim(bottom=0)
    curves.legend(loc="lower left")
    return figure


@styled
def explorer(
    panel: Panel,
    policy: Tensor,
    trail: Tensor,
    drifts: Mapping[str, Tensor],
    *,
    title: str,
    limit: float,
) -> Figure:
    """A drift field beside the drifts of the three responses at one policy, for sliders.

    trail: [N, 3], the policies that one of the sliders leads through; drifts: name to [3], nats
    per unit step.  Both parts have fixed scales, so that nothing jumps when a slider moves.
    """
    figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
    triangle, beside = figure.subplots(1, 2, width_ratios=(1, 1.05))
    _frame(triangle, RESPONSES)
    triangle.set_title(title)
    shown = _field(triangle, panel, limit)
    triangle.plot(*in_plane(trail).T, color=INK, linewidth=0.9, linestyle=":")
    _mark(triangle, policy)
    _colour_bar(figure, [triangle], shown, np.linspace(-limit, limit, 5), DRIFT, side="left")
    named = [f"{r}\n({float(p):.2f})" for r, p in zip(RESPONSES, policy, strict=True)]
    _grouped(beside, drifts, named)
    beside.set(ylabel=DRIFT, xlabel="sampled response (probability)")
    beside.set_ylim(-limit, limit)
    return figure


@styled
def bars(values: Mapping[str, Tensor], labels: Sequence[str], *, unit: str) -> Figure:
    """Groups of bars, one per label, a colour for each of the named `values` [labels]."""
    lines = max(label.count("\n") for label in labels)
    figure = Figure(figsize=(WIDTH, 2.7 + 0.15 * lines), layout="constrained")
    axis = figure.subplots()
    _grouped(axis, values, labels)
    axis.set_ylabel(unit)
    return figure


def _triangles(titles: Sequence[str], responses: Sequence[str]) -> tuple[Figure, list[Axes]]:
    width = min(WIDTH, 3.6 * len(titles) + 0.8)
    height = 0.95 * width / len(titles) + 0.15
    figure = Figure(figsize=(width, min(height, 3.7)), layout="constrained")
    axes = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        _frame(axis, responses)
    return figure, axes


def _frame(axis: Axes, responses: Sequence[str]) -> None:
    """The edges, and the name of each corner's response."""
    axis.set(aspect="equal", xlim=(-0.06, 1.06), ylim=(-0.1, HEIGHT + 0.09))
    axis.set_axis_off()
    outline = in_plane(torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]])
    axis.plot(*outline.T, color=INK, linewidth=1.0, zorder=4)
    places = ((0.5, HEIGHT + 0.02, "bottom"), (0.0, -0.025, "top"), (1.0, -0.025, "top"))
    for (x, y, side), response in zip(places, responses, strict=True):
        axis.text(x, y, response, ha="center", va=side, fontsize=9.5, color=INK)


def _field(axis: Axes, panel: Panel, limit: float) -> ScalarMappable:
    policies = grid(_RESOLUTION)
    mesh, values = Triangulation(*in_plane(policies).T), panel.values(policies).numpy()
    levels = np.linspace(-limit, limit, _SHADES + 1)
    shown = axis.tricontourf(mesh, values, levels=levels, cmap="PuOr_r", extend="both")
    if min(-values.min(), values.max()) > _ROUNDING:
        axis.tricontour(mesh, values, levels=[0.0], colors=INK, linewidths=1.6)
    if panel.directions is not None:
        places = grid(_ARROWS, margin=1.0)
        arrows = in_plane(panel.directions(places))
        longest = max(np.linalg.norm(arrows, axis=1).max(), 1e-12)
        axis.quiver(
            *in_plane(places).T, *arrows.T, pivot="middle", angles="xy", scale_units="xy",
            scale=longest / 0.11, width=0.006, color=INK, alpha=0.65, zorder=3,
        )  # fmt: skip
    return shown


def _entropy_map(axis: Axes, policy: Tensor | None) -> ScalarMappable:
    """Entropy as shades, and the line of policies as uncertain as `policy`."""
    policies = grid(_RESOLUTION)
    mesh, values = Triangulation(*in_plane(policies).T), entropies(policies).numpy()
    levels = np.linspace(0, math.log(3), _SHADES + 1)
    shown = axis.tricontourf(mesh, values, levels=levels, cmap="Greys", vmin=0, vmax=2.2)
    if policy is not None:
        own = [float(entropies(policy))]
        axis.tricontour(mesh, values, levels=own, colors=ENTROPY, linewidths=1.0)
    return shown


def _arrow(axis: Axes, policy: Tensor, direction: Tensor, colour: str, label: str) -> None:
    """`direction` from `policy`, drawn at one length: its size depends on the step."""
    arrow = in_plane(direction)
    axis.quiver(
        *in_plane(policy), *(0.27 * arrow / np.linalg.norm(arrow)), angles="xy", scale_units="xy",
        scale=1, width=0.016, color=colour, label=label, zorder=5,
    )  # fmt: skip


def _mark(axis: Axes, policy: Tensor) -> None:
    axis.plot(*in_plane(policy), "o", color=INK, markeredgecolor="white", markersize=6.5, zorder=6)


def _colour_bar(
    figure: Figure,
    axes: list[Axes],
    shown: ScalarMappable,
    ticks: Sequence[float],
    unit: str,
    *,
    side: str = "right",
) -> None:
    bar = figure.colorbar(
        shown, ax=axes, label=unit, ticks=ticks, location=side, shrink=0.78, aspect=22, pad=0.02
    )
    bar.outline.set_visible(False)


def _looks(series: Mapping[str, Tensor]) -> list[tuple[tuple[str, Tensor], str, str]]:
    """Each series with a colour and a line style; ValueError for more than there are."""
    count = len(series)
    if count > len(SERIES):
        raise ValueError(f"{count} series, but only {len(SERIES)} colours: {', '.join(series)}")
    return list(zip(series.items(), SERIES[:count], LINES[:count], strict=True))


def _grouped(axis: Axes, values: Mapping[str, Tensor], labels: Sequence[str]) -> None:
    places, width = np.arange(len(labels)), 0.8 / len(values)
    for number, ((name, heights), colour, _) in enumerate(_looks(values)):
        offset = (number - (len(values) - 1) / 2) * width
        axis.bar(places + offset, heights.numpy(), 0.92 * width, label=name, color=colour)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set_xticks(places, labels)
    axis.grid(axis="x", visible=False)
    if len(values) > 1:
        axis.legend(loc="best")
