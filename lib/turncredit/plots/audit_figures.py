"""Figures of the credit audit: who is blamed, turn by turn, and does a gate find the decision?"""

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from turncredit.plots.dots import stripes
from turncredit.plots.panels import legend, say_no_runs
from turncredit.plots.style import WIDTH, arm_label, styled

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
LABEL_COLOURS = {
    "right": "#CDE7D8",
    "follows": "#CFE0F1",
    "wrong": "#F3C6BC",
    "unjudged": "#E4E4E4",
}
BY_ORACLE = "turns that are right, or follow from the decision"
BY_WORTH = {"right": "turns that were worth more than their state", "wrong": "turns worth less"}
"""Names of `audit_grid` where playing on told right from wrong."""
EMPTY = "#f4f4f4"
_DOT = {"s": 14, "linewidths": 0, "alpha": 0.45, "zorder": 3}
_MEAN = {"marker": "D", "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.5}


@styled
def audit_cases(table: pd.DataFrame, means: pd.DataFrame, cases: Sequence[str]) -> Figure:
    """Failed trajectories by case, and execution after a wrong decision, by training stage.

    table: seed, stage, outcome, measure, value; means: the same without seed, with low and high.
    Dots are seeds, diamonds their means; the stage "all" is not drawn.
    """
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    execution = {
        "execution_right": "on the path, or following from it",
        "execution_follows": "following from it alone",
    }
    for axis, measures in zip(axes, (list(cases), list(execution)), strict=True):
        stages = _drawn_stages(table)
        for number, (measure, colour) in enumerate(zip(measures, SERIES, strict=False)):
            offset = 0.16 * (number - (len(measures) - 1) / 2)
            for rows, draw in ((table, _seed_dots), (means, _interval)):
                chosen = rows[(rows["outcome"] == "failed") & (rows["measure"] == measure)]
                draw(axis, chosen, "stage", stages, offset, colour, along="y")
        axis.set_xticks(range(len(stages)), stages)
        axis.set(xlabel="training steps", ylim=(-0.04, 1.04))
        axis.set_xlim(-0.5, max(len(stages), 1) - 0.5)
        if not stages:
            say_no_runs(axis)
    axes[0].set_ylabel("share of failed trajectories")
    axes[1].set_ylabel("share of their judged turns\nafter the wrong decision")
    for axis, labels in zip(axes, (cases, execution.values()), strict=True):
        marks = [_mark(c, label) for c, label in zip(SERIES, labels, strict=False)]
        axis.legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=7.5)
    return figure


@styled
def audit_gates(table: pd.DataFrame, means: pd.DataFrame, *, stage: str = "all") -> Figure:
    """Precision and recall of every gate rule against the oracle's first wrong turn, all seeds.

    table: seed, stage, rule, k, measure, value; means: the same without seed, with low and high.
    The hair line beside a precision is that of gates at even random in the same trajectories.
    """
    table, means = (rows[rows["stage"] == stage] for rows in (table, means))
    rules, ks = (list(dict.fromkeys(table[name])) for name in ("rule", "k"))
    figure = Figure(figsize=(WIDTH, 1.1 + 0.36 * max(len(rules), 3)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, measure in zip(axes, ("precision", "recall"), strict=True):
        stripes(axis, len(rules))
        for number, (k, colour) in enumerate(zip(ks, SERIES, strict=False)):
            offset = 0.24 * (number - (len(ks) - 1) / 2)
            for rows, draw in ((table, _seed_dots), (means, _interval)):
                chosen = rows[(rows["k"] == k) & (rows["measure"] == measure)]
                draw(axis, chosen, "rule", rules, offset, colour, along="x")
            if measure == "precision":
                _chance(axis, means[means["k"] == k], rules, offset)
        axis.set(xlim=(-0.03, 1.03), xlabel=f"{measure} (share)")
        axis.grid(axis="y", visible=False)
    axes[0].set_ylim(max(len(rules), 1) - 0.5, -0.5)
    axes[0].set_yticks(range(len(rules)), [rule.replace("_", " ") for rule in rules])
    if not rules:
        say_no_runs(axes[0])
    chance = Line2D(
        [], [], color="#222222", marker="|", markersize=8, linestyle="", label="gates at random"
    )
    legend(figure, [*(_mark(c, f"k = {k}") for k, c in zip(ks, SERIES, strict=False)), chance])
    return figure


@styled
def audit_grid(
    means: pd.DataFrame, *, stage: str = "all", right: str = BY_ORACLE, wrong: str = "wrong turns"
) -> Figure:
    """Blame put on right turns and credit put on wrong ones, for every base and weight.

    means: stage, base, weight, measure, value; right, wrong: what such turns are called.  A cell
    without a value is grey: nothing is blamed.
    """
    rows = means[means["stage"] == stage]
    bases, weights = (list(dict.fromkeys(rows[name])) for name in ("base", "weight"))
    figure = Figure(figsize=(WIDTH, 1.8 + 0.48 * max(len(weights), 4)), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    measures = {
        "blame_on_right": f"share of blame on {right}",
        "credit_on_wrong": f"share of credit on {wrong}",
    }
    for axis, (measure, title) in zip(axes, measures.items(), strict=True):
        chosen = rows[rows["measure"] == measure].pivot(
            index="weight", columns="base", values="value"
        )
        values = chosen.reindex(index=weights, columns=bases).to_numpy(dtype=float)
        heat(axis, values, Normalize(0, 1), matplotlib.colormaps["Oranges"], two_decimals)
        axis.set_title(title, loc="left")
        axis.set_yticks(range(len(weights)), map(arm_label, weights))
    axes[1].set_xticks(range(len(bases)), map(arm_label, bases), rotation=35, ha="right")
    return figure


@styled
def audit_map(means: pd.DataFrame, *, last: int) -> Figure:
    """Share of all blame in failed trajectories by turn: a heat map of methods and turns.

    means: base, weight, turn, value; turns from `last` on are one.  "the oracle" comes first.
    """
    methods = list(dict.fromkeys(zip(means["base"], means["weight"], strict=True)))
    methods.sort(key=lambda method: method[0] != "the oracle")
    figure = Figure(figsize=(WIDTH, 1.2 + 0.25 * max(len(methods), 4)), layout="constrained")
    axis = figure.subplots()
    table = means.pivot(index=["base", "weight"], columns="turn", values="value")
    values = table.reindex(methods).to_numpy(dtype=float)
    norm = Normalize(0, max(float(np.nanmax(values, initial=0.0)), 1e-9))
    heat(axis, values, norm, matplotlib.colormaps["Oranges"], two_decimals)
    axis.set_yticks(range(len(methods)), [method_label(*method) for method in methods])
    axis.set_xticks(range(last + 1), [*map(str, range(last)), f"{last} on"])
    axis.set_xlabel("turn")
    return figure


@styled
def audit_ledger(table: pd.DataFrame) -> Figure:
    """One trajectory under every method: the mean token advantage of each turn, side by side.

    table: base, weight, turn, action, label, advantage.  Above each turn stands what it did, on the
    colour of its label; turns that are blamed are orange, credited ones violet.
    """
    methods = list(dict.fromkeys(zip(table["base"], table["weight"], strict=True)))
    turns = table.drop_duplicates("turn").sort_values("turn")
    figure = Figure(figsize=(WIDTH, 1.7 + 0.25 * max(len(methods), 4)), layout="constrained")
    axis = figure.subplots()
    wide = table.pivot(index=["base", "weight"], columns="turn", values="advantage")
    values = wide.reindex(methods).to_numpy(dtype=float)
    reach = max(float(np.nanmax(np.abs(values), initial=0.0)), 1e-9)
    heat(axis, values, Normalize(-reach, reach), matplotlib.colormaps["PuOr"], _signed)
    for number, (_, turn) in enumerate(turns.iterrows()):
        colour = LABEL_COLOURS[turn["label"]]
        axis.add_patch(Rectangle((number - 0.48, -1.9), 0.96, 1.3, facecolor=colour, linewidth=0))
        text = f"{turn['action'].replace('_', ' ')}\n{turn['label']}"
        axis.text(number, -1.25, text, ha="center", va="center", fontsize=7)
    axis.set_ylim(len(methods) - 0.5, -2.0)
    axis.set_yticks(range(len(methods)), [method_label(*method) for method in methods])
    axis.set_xticks(range(len(turns)), turns["turn"])
    axis.set_xlabel("turn")
    legend(figure, [Patch(facecolor=c, label=name) for name, c in LABEL_COLOURS.items()])
    return figure


def method_label(base: str, weight: str) -> str:
    """A base with its weight as a reader sees them."""
    if base == "the oracle":
        return "wrong turns (oracle)"
    return arm_label(base) if weight == "none" else f"{arm_label(base)}, {arm_label(weight)}"


def _drawn_stages(table: pd.DataFrame) -> list[str]:
    return [stage for stage in dict.fromkeys(table["stage"]) if stage != "all"]


def _places(rows: pd.DataFrame, column: str, names: Sequence[str], offset: float) -> np.ndarray:
    return rows[column].map({name: n for n, name in enumerate(names)}).to_numpy(float) + offset


def _points(
    rows: pd.DataFrame, column: str, names: Sequence[str], offset: float, *, along: str
) -> tuple[pd.DataFrame, tuple]:
    """The rows of `names`, and their x and y: values `along` one of them, places the other way."""
    rows = rows[rows[column].isin(names)]
    places = _places(rows, column, names, offset)
    return rows, (rows["value"], places) if along == "x" else (places, rows["value"])


def _seed_dots(
    axis: Axes,
    rows: pd.DataFrame,
    column: str,
    names: Sequence[str],
    offset: float,
    colour: str,
    *,
    along: str,
) -> None:
    """A dot for each seed, its value `along` x or y; one that is missing is not drawn."""
    _, pair = _points(rows, column, names, offset, along=along)
    axis.scatter(*pair, color=colour, **_DOT)


def _interval(
    axis: Axes,
    rows: pd.DataFrame,
    column: str,
    names: Sequence[str],
    offset: float,
    colour: str,
    *,
    along: str,
) -> None:
    """A diamond at each mean, on its interval where there is one."""
    rows, pair = _points(rows, column, names, offset, along=along)
    errors = np.abs(np.array([rows["value"] - rows["low"], rows["high"] - rows["value"]]))
    axis.errorbar(
        *pair, **{f"{along}err": errors}, fmt="none", ecolor=colour, elinewidth=1.1, zorder=4
    )
    axis.plot(*pair, color=colour, linestyle="", zorder=5, **_MEAN)


def _chance(axis: Axes, means: pd.DataFrame, rules: Sequence[str], offset: float) -> None:
    rows = means[means["measure"] == "chance"]
    places = _places(rows, "rule", rules, offset)
    axis.plot(rows["value"], places, "|", color="#222222", markersize=8, zorder=6)


def heat(
    axis: Axes,
    values: np.ndarray,
    norm: Normalize,
    colours: Colormap,
    write: Callable[[float], str],
) -> None:
    """A cell for each value, its number in it; NaN is a light cell without one."""
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    rows, columns = (max(size, 1) for size in values.shape)
    axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    for (row, column), value in np.ndenumerate(values):
        face = EMPTY if np.isnan(value) else colours(norm(value))
        place = (column - 0.48, row - 0.46)
        axis.add_patch(Rectangle(place, 0.96, 0.92, facecolor=face, linewidth=0))
        if not np.isnan(value):
            dark = 0.299 * face[0] + 0.587 * face[1] + 0.114 * face[2] < 0.5
            axis.text(
                column, row, write(value), ha="center", va="center", fontsize=7,
                color="white" if dark else "black",
            )  # fmt: skip
    if not values.size:
        say_no_runs(axis)


def two_decimals(value: float) -> str:
    """A share or a correlation, with a true minus."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def _signed(value: float) -> str:
    return "0" if round(value, 2) == 0 else f"{value:+.2f}".replace("-", "−")


def _mark(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, linestyle="", label=label, **_MEAN)
