"""Figures of the surprisal probe: does AEM's coefficient know the relative surprisal?"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from turncredit.claims import PROBED, read_claims
from turncredit.plots.panels import MEAN_LINE, SEED_LINE, legend, say_no_runs
from turncredit.plots.style import WIDTH, styled, task_label
from turncredit.probe.over_seeds import bin_place

RECORDED, FRESH = "#0072B2", "#D55E00"
WORLD_COLOURS = (RECORDED, FRESH, "#009E73", "#CC79A7")
MEASURES = {
    "sign_agreement": "sign agreement (share,\nalpha = 1 counts half)",
    "pearson": "Pearson",
}
DIVISIONS = ("step", "turn", "difficulty", "tokens")
STEP_LABELS = {
    "surprisal": "S - H\n(exact)",
    "predictable": "entropies for\nsurprisals",
    "per_token": "mean for\nsum",
    "group_baseline": "group for\nstate",
    "coefficient": "1 - alpha",
}
VARIANCES = {
    "surprisal_variance": ("surprisal S", "#333333"),
    "predictable_variance": ("predictable part P", "#2A9D8F"),
    "martingale_variance": ("martingale part M", "#882255"),
}


@cache
def published() -> dict[str, float]:
    """What AEM's own probe found, by measure, as claims.yaml has it.

    64 states of another policy on other tasks, silent ones unstated.
    """
    measured = [one.test for one in read_claims() if one.test.KIND == "measured"]
    return {
        name.removeprefix("probe_"): test.effect
        for test in measured
        for name in test.quantity
        if name in PROBED
    }


@styled
def probe_scatter(table: pd.DataFrame) -> Figure:
    """Alpha - 1 against minus the relative surprisal (nats), one panel per training step.

    table: step, response (-1: recorded), signal, target.  In the lower left and upper right
    quadrants the signs agree.
    """
    steps = sorted(table["step"].unique())
    figure, axes = _row(max(len(steps), 1), 2.6, sharex="row", sharey="row")
    for axis, step in zip(axes, steps, strict=False):
        rows = table[table["step"] == step]
        for fresh, colour, size in ((True, FRESH, 5), (False, RECORDED, 16)):
            dots = rows[(rows["response"] >= 0) == fresh]
            axis.scatter(
                dots["target"], dots["signal"], s=size, color=colour, linewidths=0,
                alpha=0.4 if fresh else 0.9, zorder=2 + (not fresh), rasterized=True,
            )  # fmt: skip
        axis.axhline(0, color="#444444", linewidth=0.8)
        axis.axvline(0, color="#444444", linewidth=0.8)
        axis.set_title(f"step {step}", loc="left")
        axis.set_xlabel("minus relative surprisal (nats)")
    axes[0].set_ylabel("alpha - 1")
    if not steps:
        say_no_runs(axes[0])
    legend(figure, [_dot(RECORDED, "recorded response"), _dot(FRESH, "fresh response")])
    return figure


@styled
def probe_agreement(table: pd.DataFrame) -> Figure:
    """Sign agreement and Pearson by step, turn, difficulty and length, with their intervals.

    table: responses, by, bin, measure, silent, value, low, high as `probe.tables.agreement_table`
    gives it; drawn are the sign agreement that counts silent pairs half, and Pearson's r.
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots(len(MEASURES), len(DIVISIONS), sharey="row", sharex="col")
    for (measure, label), line in zip(MEASURES.items(), axes, strict=True):
        chosen = table[
            (table["measure"] == measure) & table["silent"].fillna("").isin(["", "half"])
        ]
        line[0].set_ylabel(label)
        for by, axis in zip(DIVISIONS, line, strict=True):
            _intervals(axis, chosen[chosen["by"] == by], measure)
    for by, axis in zip(DIVISIONS, axes[-1], strict=True):
        axis.set_xlabel({"step": "training step", "tokens": "tokens of the response"}.get(by, by))
    theirs = Line2D([], [], color="#555555", linestyle=":", label="published (64 states)")
    marks = [_dot(RECORDED, "recorded responses"), _dot(FRESH, "fresh responses")]
    legend(figure, [*marks, theirs])
    return figure


@styled
def probe_worlds(table: pd.DataFrame, runs: pd.DataFrame, *, responses: str = "recorded") -> Figure:
    """`probe_agreement` over seeds: a pale dot for each, means with intervals; worlds in colour.

    table: world, responses, by, bin, measure, silent, value, low, high as `probe.over_seeds` gives
    it of runs, which have a seed besides; responses: "recorded" or "fresh".
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots(len(MEASURES), len(DIVISIONS), sharey="row", sharex="col")
    shown, dots = (
        rows[(rows["responses"] == responses) & rows["silent"].fillna("").isin(["", "half"])]
        for rows in (table, runs)
    )
    looks = dict(zip(dict.fromkeys(table["world"]), WORLD_COLOURS, strict=False))
    bins = {by: _ordered(shown[shown["by"] == by]["bin"]) for by in DIVISIONS}
    for (measure, label), line in zip(MEASURES.items(), axes, strict=True):
        line[0].set_ylabel(label)
        for by, axis in zip(DIVISIONS, line, strict=True):
            parts = [
                rows[(rows["measure"] == measure) & (rows["by"] == by)] for rows in (shown, dots)
            ]
            _worlds(axis, *parts, bins[by], looks, measure)
    for by, axis in zip(DIVISIONS, axes[-1], strict=True):
        axis.set_xlabel({"step": "training step", "tokens": "tokens of the response"}.get(by, by))
    theirs = Line2D([], [], color="#555555", linestyle=":", label="published (64 states)")
    marks = [_dot(colour, task_label(world)) for world, colour in looks.items()]
    legend(figure, [*marks, theirs])
    return figure


@styled
def probe_decomposition(table: pd.DataFrame, steps: Sequence[str]) -> Figure:
    """Wrong signs after each approximation, and the variances behind the first, on listed trees.

    table: seed, step, one column for each of `steps` (shares) and of VARIANCES (nats squared).
    """
    figure, (left, right) = _row(2, 2.8)
    numbers = sorted(table["step"].unique())
    shades = np.linspace(0.15, 0.75, max(len(numbers), 1))
    for number, shade in zip(numbers, shades, strict=False):
        rows = table[table["step"] == number][list(steps)]
        for _, row in rows.iterrows():
            left.plot(range(len(steps)), row, color=str(shade), **SEED_LINE)
        left.plot(
            range(len(steps)), rows.mean(), color=str(shade), marker="o",
            label=f"step {number}", **MEAN_LINE,
        )  # fmt: skip
    left.axhline(0.5, color="#882255", linewidth=0.8, linestyle=":")
    left.set_xticks(range(len(steps)), [STEP_LABELS.get(step, step) for step in steps])
    left.set_ylabel("turns of the wrong sign (share;\nsilent ones count half)")
    left.legend(loc="upper left")
    for name, (label, colour) in VARIANCES.items():
        for _, run in table.groupby("seed", sort=True):
            right.plot(run["step"], run[name], color=colour, **SEED_LINE)
        mean = table.groupby("step")[name].mean()
        right.plot(mean.index, mean, color=colour, label=label, **MEAN_LINE)
    right.set(
        xlabel="exact gradient steps", ylabel="variance within a state (nats²)", ylim=(0, None)
    )
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend()
    return figure


@styled
def probe_proxies(table: pd.DataFrame) -> Figure:
    """Sign agreement (silent half) and Pearson of each proxy on held-out states.

    table: world, proxy, measure, silent, value, low, high.
    """
    worlds = list(dict.fromkeys(table["world"]))
    proxies = list(dict.fromkeys(table["proxy"]))[::-1]
    figure, axes = _row(len(MEASURES), 0.9 + 0.28 * len(proxies), sharey="row")
    looks = dict(zip(worlds, WORLD_COLOURS, strict=False))
    offsets = np.linspace(0.2, -0.2, len(worlds)) if len(worlds) > 1 else [0.0]
    for axis, measure in zip(axes, MEASURES, strict=True):
        chosen = table[
            (table["measure"] == measure) & table["silent"].fillna("").isin(["", "half"])
        ]
        for (world, colour), offset in zip(looks.items(), offsets, strict=True):
            rows = chosen[chosen["world"] == world].set_index("proxy").reindex(proxies)
            places = np.arange(len(proxies)) + offset
            _bar(axis, rows, rows["value"], places, colour, along="x")
        axis.axvline(0.5 if measure == "sign_agreement" else 0.0, color="#444444", linewidth=0.8)
        axis.set_yticks(range(len(proxies)), [proxy.replace("_", " ") for proxy in proxies])
        axis.set_xlabel(MEASURES[measure].replace("\n", " "))
    legend(figure, [_dot(colour, world) for world, colour in looks.items()])
    return figure


def _intervals(axis: Axes, table: pd.DataFrame, measure: str) -> None:
    """Points with intervals, one place per bin; recorded and fresh side by side."""
    bins = list(dict.fromkeys(table["bin"]))
    for kind, colour, offset in (("recorded", RECORDED, -0.12), ("fresh", FRESH, 0.12)):
        rows = table[table["responses"] == kind].set_index("bin").reindex(bins)
        _bar(axis, rows, np.arange(len(bins)) + offset, rows["value"], colour, along="y")
    _references(axis, bins, measure)


def _worlds(
    axis: Axes,
    table: pd.DataFrame,
    runs: pd.DataFrame,
    bins: Sequence[str],
    looks: dict[str, str],
    measure: str,
) -> None:
    """Points with intervals beside the dots of runs, one place per bin; worlds side by side."""
    places = {name: place for place, name in enumerate(bins)}
    offsets = np.linspace(-0.15, 0.15, len(looks)) if len(looks) > 1 else [0.0]
    for (world, colour), offset in zip(looks.items(), offsets, strict=True):
        own = runs[runs["world"] == world]
        axis.scatter(
            own["bin"].map(places) + offset + 0.09, own["value"], s=7, color=colour, alpha=0.45,
            linewidths=0,
        )  # fmt: skip
        rows = table[table["world"] == world].set_index("bin").reindex(bins)
        _bar(axis, rows, np.arange(len(bins)) + offset, rows["value"], colour, along="y")
    _references(axis, bins, measure)


def _ordered(bins: pd.Series) -> list[str]:
    """Bins once each, by their first number where they have one."""
    return sorted(set(bins), key=bin_place)


def _references(axis: Axes, bins: Sequence[str], measure: str) -> None:
    """What was published, what a coin would get, and the bins' names."""
    axis.axhline(published()[measure], color="#555555", linewidth=0.9, linestyle=":")
    axis.axhline(0.5 if measure == "sign_agreement" else 0.0, color="#444444", linewidth=0.8)
    axis.set_xticks(range(len(bins)), bins, rotation=20 if len("".join(bins)) > 18 else 0)
    axis.set_xlim(-0.5, max(len(bins), 1) - 0.5)


def _bar(axis: Axes, rows: pd.DataFrame, x, y, colour: str, *, along: str) -> None:
    """A point with its interval where there is one; a value that is missing is not drawn."""
    errors = np.abs(np.array([rows["value"] - rows["low"], rows["high"] - rows["value"]]))
    axis.errorbar(
        x, y, **{f"{along}err": errors}, fmt="o", color=colour, markersize=3.5,
        elinewidth=1.0, capsize=2,
    )  # fmt: skip


def _row(count: int, height: float, **shared: str) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(WIDTH, 0.75 + height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, **shared)[0]


def _dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", markersize=4, linestyle="", label=label)
