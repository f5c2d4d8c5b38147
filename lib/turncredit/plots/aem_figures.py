"""Figures of AEM's analyses (arXiv 2605.00425, section 5.3): its coefficient and the entropy."""

import inspect
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from turncredit.credit import TURN_WEIGHTS
from turncredit.plots.outcomes import arm_methods, differing_in, run_params
from turncredit.plots.panels import (
    SEED_LINE,
    arm_entries,
    legend,
    say_absent,
    say_no_runs,
    seed_lines,
    seed_mean,
    select,
    step_axis,
    stop_entries,
    task_grid,
    thin_and_thick,
)
from turncredit.plots.sources import RUN
from turncredit.plots.study import Study
from turncredit.plots.style import arm_colours, arm_label, arm_looks, styled

GUARDS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "v"), ("#E69F00", "P"))


@styled
def entropy_divergence(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    reference_arm: str,
    weight: float,
) -> Figure:
    """Do the entropies of gradient-masked runs part?  All seeds; below, their distance to baseline.

    table: task, arm, seed, step, entropy (nats), already smoothed with `weight`.  Distances are
    paired by seed with the reference arm; a title counts the seeds that end above it.
    """
    figure, axes = task_grid(tasks, rows=2, height=2.1)
    looks, colours = arm_looks(arms), arm_colours(arms)
    others = [arm for arm in arms if arm != reference_arm]
    for column, task in enumerate(tasks):
        absent = [arm for arm in arms if select(table, task, arm).empty]
        top, below = axes[:, column]
        if len(absent) == len(arms):
            say_no_runs(top)
            say_no_runs(below)
            continue
        say_absent(top, absent)
        for arm, (colour, marker) in looks.items():
            seed_lines(top, select(table, task, arm), "entropy", colour, marker=marker)
        counts = [
            _distances(below, table, task, arm, reference_arm, colours[arm]) for arm in others
        ]
        below.set_title("\n".join(filter(None, counts)), loc="right", fontsize=7, weight="normal")
        below.axhline(0, color=colours[reference_arm], linewidth=1.2, zorder=1)
    axes[0, 0].set_ylabel(f"token entropy (nats)\n(EMA, weight {weight:g})")
    axes[1, 0].set_ylabel(f"difference to {arm_label(reference_arm)}\nof the same seed (nats)")
    step_axis(axes)
    legend(figure, [*arm_entries(arms), *thin_and_thick(), *stop_entries(table)])
    return figure


def _distances(
    axis: Axes, table: pd.DataFrame, task: str, arm: str, reference_arm: str, colour: str
) -> str:
    """Draw arm minus reference, seed by seed; says how many seeds end above."""
    own, other = (select(table, task, a)[["seed", "step", "entropy"]] for a in (arm, reference_arm))
    pairs = own.merge(other, on=["seed", "step"], suffixes=("", "_reference"))
    if pairs.empty:
        return f"{arm_label(arm)}: no pairs of seeds" if len(own) else ""
    pairs["entropy"] -= pairs["entropy_reference"]
    seed_lines(axis, pairs, "entropy", colour)
    ends = pairs.sort_values("step").groupby("seed")["entropy"].last()
    return f"{arm_label(arm)}: {(ends > 0).sum()} of {len(ends)} end above"


@styled
def exploration(
    entropies: pd.DataFrame,
    rewards: pd.DataFrame,
    metrics: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    weight: float,
) -> Figure:
    """Entropy, reward and the range of turn weights over the steps, arm beside arm.

    entropies: task, arm, seed, step, entropy; rewards: the same with reward; both smoothed with
    `weight`.  metrics: task, arm, seed, step, weight_min, weight_max (AEM's alpha), not smoothed;
    their range is a band from the smallest to the largest of all seeds, with each seed's two edges.
    """
    figure, axes = task_grid(tasks, rows=3, height=1.75)
    looks = arm_looks(arms)
    for column, task in enumerate(tasks):
        absent = [arm for arm in arms if select(entropies, task, arm).empty]
        if len(absent) == len(arms):
            for axis in axes[:, column]:
                say_no_runs(axis)
            continue
        say_absent(axes[0, column], absent)
        for arm, (colour, marker) in looks.items():
            entropy, reward = (select(table, task, arm) for table in (entropies, rewards))
            seed_lines(axes[0, column], entropy, "entropy", colour, marker=marker)
            seed_lines(axes[1, column], reward, "reward", colour, marker=marker)
            _range(axes[2, column], select(metrics, task, arm), colour)
    for axis, text in zip(
        axes[:, 0],
        (
            f"token entropy (nats)\n(EMA, weight {weight:g})",
            f"training reward\n(EMA, weight {weight:g})",
            "turn weights,\nsmallest to largest",
        ),
        strict=True,
    ):
        axis.set_ylabel(text)
    step_axis(axes)
    band = Patch(color="#555555", alpha=0.15, linewidth=0, label="range over all seeds")
    legend(figure, [*arm_entries(arms), *thin_and_thick(), band, *stop_entries(entropies)])
    return figure


def _range(axis: Axes, runs: pd.DataFrame, colour: str) -> None:
    """The band between the smallest and the largest weight of any seed at a step."""
    if runs.empty:
        return
    by_step = runs.groupby("step")
    low, high = by_step["weight_min"].min(), by_step["weight_max"].max()
    axis.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0)
    for column in ("weight_min", "weight_max"):
        for _, run in runs.groupby("seed"):
            axis.plot(run["step"], run[column], color=colour, **SEED_LINE)
        mean = seed_mean(runs, column)
        axis.plot(mean.index, mean, color=colour, linewidth=1.2)


def sweep_rows(study: Study) -> pd.DataFrame:
    """The runs of AEM by its guard and its temperature.

    Result: task, arm, seed, guard (for the reader), temperature, exact_match, alpha_spread (largest
    minus smallest coefficient, mean over steps); guards and temperatures ascend.  Of the arms that
    are the reference arm but for AEM.  One without any run is a row without task and seed, so that
    its temperature keeps its place.  Where several of them ran on a task, tasks on which one ran
    alone are left out: nothing is swept there.
    """
    metrics = study.runs.metrics.reindex(columns=[*RUN, "weight_min", "weight_max"])
    metrics["alpha_spread"] = metrics["weight_max"] - metrics["weight_min"]
    spreads = metrics.groupby(RUN, as_index=False)["alpha_spread"].mean()
    runs = study.outcomes[[*RUN, "exact_match"]].merge(spreads, on=RUN)
    table = _coefficients(study).merge(runs, on="arm", how="left")
    swept = table.groupby("task")["arm"].transform("nunique") > 1
    if swept.any():
        table = table[swept | table["task"].isna()]
    return table[[*RUN, "guard", "temperature", "exact_match", "alpha_spread"]]


def half_rows(study: Study) -> pd.DataFrame:
    """The runs of arms that are the reference arm but keep one half of AEM's gradient.

    Result: task, arm and seed, in the order of the study.
    """
    methods = arm_methods(study.settings, run_params(study.settings))
    same = differing_in(methods, study.settings.reference_arm, "weight", "weight_options")
    halves = [arm for arm, method in same.items() if method.weight.startswith("keep_entropy_")]
    return study.outcomes.loc[study.outcomes["arm"].isin(halves), RUN]


def _coefficients(study: Study) -> pd.DataFrame:
    """Guards and temperature of the arms of AEM: arm, both spreads, temperature, guard."""
    methods = arm_methods(study.settings, run_params(study.settings))
    near = differing_in(methods, study.settings.reference_arm, "weight", "weight_options")
    options = inspect.signature(TURN_WEIGHTS["aem"]).parameters.values()
    published = {option.name: option.default for option in options}
    rows = [
        {"arm": arm} | published | method.weight_options
        for arm, method in near.items()
        if method.weight == "aem"
    ]
    spreads = ["min_spread", "relative_spread"]
    arms = pd.DataFrame(rows, columns=["arm", *spreads, "temperature"])
    guards = [_guard(*both) for both in arms[spreads].itertuples(index=False)]
    return arms.assign(guard=guards).sort_values([*spreads, "temperature"])


def _guard(nats: float, share: float) -> str:
    """What a reader calls a pair of guards.

    >>> _guard(0.1, 0.0), _guard(0.0, 2.0), _guard(0.0, 0.0)
    ('guard 0.1 nats', 'guard 2 × mean', 'no guard')
    """
    parts = [f"{nats:g} nats"] * (nats > 0) + [f"{share:g} × mean"] * (share > 0)
    return "guard " + ", ".join(parts) if parts else "no guard"


@styled
def lambda_sweep(
    table: pd.DataFrame, baseline: pd.DataFrame, tasks: Sequence[str], guards: Sequence[str]
) -> Figure:
    """Final exact match and spread of AEM's coefficients by temperature, one line per guard.

    table: task, guard (its name for the reader), temperature, seed, exact_match, alpha_spread, as
    of `sweep_rows`; baseline: task, mean, low, high, n of the arm without AEM, a band; it may lack
    tasks.  Dots are seeds, filled ones their means; lines join the means of neighbours.
    """
    figure, axes = task_grid(tasks, rows=2, height=2.0)
    temperatures = sorted(table["temperature"].unique())
    looks = dict(zip(guards, GUARDS, strict=False))
    for column, task in enumerate(tasks):
        top, below = axes[:, column]
        runs = table[(table["task"] == task) & table["guard"].isin(guards)]
        for axis, name in ((top, "exact_match"), (below, "alpha_spread")):
            if runs.empty:
                say_no_runs(axis)
            else:
                _by_temperature(axis, runs, name, looks, temperatures)
        if len(runs):
            top.set_title(f"seeds per point: {_fewest(runs)}", loc="right", fontsize=7,
                          weight="normal")  # fmt: skip
        for found in baseline[baseline["task"] == task].to_dict("records"):
            if found["n"] > 1:  # one seed has no interval
                top.axhspan(found["low"], found["high"], color="#555555", alpha=0.13, linewidth=0)
            top.axhline(found["mean"], color="#555555", linewidth=1.2, linestyle="--")
    axes[0, 0].set_ylabel("final exact match (share)")
    axes[1, 0].set_ylabel("largest − smallest α\n(mean over steps)")
    for axis in axes[-1]:
        axis.set_xlabel("temperature λ")
    entries = [
        Line2D([], [], color=colour, label=guard, **_MEANS, marker=marker)
        for guard, (colour, marker) in looks.items()
    ]
    band = Patch(color="#555555", alpha=0.25, linewidth=0, label="without AEM: mean, interval")
    legend(figure, [*entries, band])
    return figure


def _by_temperature(
    axis: Axes, runs: pd.DataFrame, name: str, looks: dict, temperatures: Sequence[float]
) -> None:
    """Dots and mean lines at evenly spaced temperatures, the guards side by side."""
    offsets = np.linspace(-0.16, 0.16, len(looks)) if len(looks) > 1 else [0.0]
    places = {temperature: place for place, temperature in enumerate(temperatures)}
    for (guard, (colour, marker)), offset in zip(looks.items(), offsets, strict=True):
        own = runs[runs["guard"] == guard]
        x = own["temperature"].map(places).astype(float) + offset
        axis.scatter(
            x, own[name], s=14, marker=marker, facecolors="none", edgecolors=colour,
            linewidths=0.8, zorder=3,
        )  # fmt: skip
        mean = own.groupby("temperature")[name].mean().reindex(temperatures)
        x = [places[temperature] + offset for temperature in temperatures]
        axis.plot(x, mean, color=colour, marker=marker, **_MEANS)
    axis.set_xticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
    axis.set_xlim(-0.5, len(temperatures) - 0.5)


_MEANS = {"linewidth": 1.4, "markersize": 4.5}


def _fewest(runs: pd.DataFrame) -> str:
    """Smallest and largest number of seeds behind a mean."""
    counts = runs.groupby(["guard", "temperature"])["exact_match"].count()
    return f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}–{counts.max()}"
