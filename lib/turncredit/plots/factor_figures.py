"""Figures of runs by a factor: clip ranges, difficulty of questions, grids of regimes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit import paths, results
from turncredit.plots.outcomes import arm_methods, differing_in, run_params
from turncredit.plots.panels import legend, say_absent, say_no_runs, select, task_grid
from turncredit.plots.sources import RUN, FigureParams
from turncredit.plots.study import Study
from turncredit.plots.style import WIDTH, arm_label, arm_looks, styled

UPDATES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "v"), ("#E69F00", "P"))

CLIP_QUANTITIES = {
    "clip_fraction": "clip fraction\n(mean over steps)",
    "turns_sd": "turns, standard\ndeviation over steps",
    "exact_match": "final exact match\n(share)",
}


def clip_rows(study: Study) -> pd.DataFrame:
    """The runs by what they clip: task, arm, seed, level, clip_range, updates, CLIP_QUANTITIES.

    Of the arms that are the reference arm but for the objective: a turn weight, such as that of
    `high_is_turns`, is no clip.  Of the first task, and those that differ from it in the updates on
    a batch alone.  Ranges ascend; an arm without any run is a row without task, updates and seed.
    """
    made_with = run_params(study.settings)
    methods = arm_methods(study.settings, made_with)
    reference = study.settings.reference_arm
    near = differing_in(methods, reference, "objective", "objective_options")
    clips = [{"arm": arm} | method.clip for arm, method in near.items()]
    arms = pd.DataFrame(clips, columns=["arm", "level", "clip_low", "clip_high"])
    arms = arms.sort_values(["clip_high", "clip_low"], kind="stable")
    bounds = zip(arms["clip_low"], arms["clip_high"], strict=True)
    arms["clip_range"] = [f"{a:g}" if a == b else f"−{a:g}, +{b:g}" for a, b in bounds]
    measured = study.runs.metrics.groupby(RUN, as_index=False).agg(
        clip_fraction=("clip_fraction", "mean"), turns_sd=("turns", "std")
    )
    updates = _updates({task: values["task"] for (task, _, _), values in made_with.items()}, study)
    runs = study.outcomes[[*RUN, "exact_match"]].merge(measured, on=RUN)
    runs = runs[runs["task"].isin(updates)].assign(updates=runs["task"].map(updates))
    table = arms.merge(runs, on="arm", how="left")
    return table[[*RUN, "level", "clip_range", "updates", *CLIP_QUANTITIES]]


def _updates(tasks: dict[str, dict], study: Study) -> dict[str, int]:
    """Updates on a batch by task, of the study's first task and its equals but for this number."""
    updates = {task: values["training"]["updates_per_batch"] for task, values in tasks.items()}
    rest = {
        task: values | {"training": values["training"] | {"updates_per_batch": None}}
        for task, values in tasks.items()
    }
    first = next((rest[task] for task in study.settings.tasks if task in rest), None)
    return {task: count for task, count in updates.items() if rest[task] == first}


@styled
def clip_grid(
    table: pd.DataFrame,
    levels: Sequence[str] = ("token", "turn", "sequence"),
    *,
    quantities: dict[str, str] = CLIP_QUANTITIES,
) -> Figure:
    """What clipping does, by the level of the ratio, its range and the updates on a batch.

    table: one row per run: level, clip_range (number or text; in order of first appearance),
    updates, seed and the columns of `quantities`; without a seed, a range that has no runs yet.
    Dots are seeds, filled ones their means; a level without runs says so.  One task per figure.
    """
    size = (WIDTH, 0.9 + 1.75 * len(quantities))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(quantities), len(levels), squeeze=False, sharex="col", sharey="row")
    looks = dict(zip(sorted(table["updates"].dropna().unique()), UPDATES, strict=False))
    for column, level in enumerate(levels):
        axes[0, column].set_title(f"{level} ratio", loc="left")
        runs = table[table["level"] == level]
        for axis, name in zip(axes[:, column], quantities, strict=True):
            if runs["seed"].isna().all():
                say_no_runs(axis)
            else:
                _by_factor(axis, runs, "clip_range", name, "updates", looks)
        if runs["seed"].notna().any():
            points = runs.groupby(["clip_range", "updates"], dropna=False)
            _count_title(axes[0, column], points["seed"].count())
        axes[-1, column].set_xlabel("clip range")
    for axis, label in zip(axes[:, 0], quantities.values(), strict=True):
        axis.set_ylabel(label)
    entries = [
        _dot_entry(colour, marker, f"{updates:g} update{'s' if updates > 1 else ''} per batch")
        for updates, (colour, marker) in looks.items()
    ]
    legend(figure, entries)
    return figure


def _count_title(axis: Axes, counts: pd.Series) -> None:
    few, many = counts.min(), counts.max()
    text = f"{few}" if few == many else f"{few}–{many}"
    axis.set_title(f"seeds per point: {text}", loc="right", fontsize=7, weight="normal")


def _by_factor(
    axis: Axes, runs: pd.DataFrame, factor: str, quantity: str, line: str, looks: dict
) -> None:
    """Dots and mean lines over a factor's values in order of appearance, lines side by side."""
    values = list(dict.fromkeys(runs[factor]))
    places = {value: place for place, value in enumerate(values)}
    width = min(0.25, 0.05 * len(looks))
    offsets = np.linspace(-width, width, len(looks)) if len(looks) > 1 else [0.0]
    for (key, (colour, marker)), offset in zip(looks.items(), offsets, strict=True):
        own = runs[runs[line] == key]
        axis.scatter(
            own[factor].map(places).astype(float) + offset, own[quantity], s=15, marker=marker,
            facecolors="none", edgecolors=colour, linewidths=0.8, zorder=3,
        )  # fmt: skip
        mean = own.groupby(factor, sort=False)[quantity].mean().reindex(values)
        x = [places[value] + offset for value in values]
        axis.plot(x, mean, color=colour, marker=marker, markersize=4.5, linewidth=1.4)
    axis.set_xticks(range(len(values)), [v if isinstance(v, str) else f"{v:g}" for v in values])
    axis.set_xlim(-0.5, len(values) - 0.5)


def _dot_entry(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=1.4, label=label)


def difficulty_rows(settings: FigureParams, by: str) -> pd.DataFrame:
    """Success of the final evaluation by a factor of difficulty.csv, such as `hops` or `search`.

    Result: task, arm, seed, bin, questions, success (share).  Runs without the table, since they
    are not over or lost their policy, are not in it.
    """
    frames = []
    for experiment in settings.experiments:
        root = paths.results(settings.tier) / experiment
        if results.table_paths(root, "difficulty.csv"):
            table = results.read_table(root, "difficulty.csv")
            frames.append(table.merge(_evaluated(root), on=RUN))
    columns = [*RUN, "bin", "questions", "success"]
    if not frames:
        return pd.DataFrame(columns=columns)
    table = pd.concat(frames, ignore_index=True)
    return table.loc[table["factor"] == by, columns].reset_index(drop=True)


def _evaluated(root: Path) -> pd.DataFrame:
    """Task, arm and seed of the runs whose latest evaluation is the one after training."""
    ended = []
    for path in results.table_paths(root, "manifest.json"):
        manifest = results.RunDirectory(path.parent).read_manifest() or {}
        if manifest.get("evaluated_at") is not None:
            ended.append((*path.parts[-4:-2], manifest["seed"]))
    return pd.DataFrame(ended, columns=RUN).astype({"seed": int})


@styled
def difficulty_bins(
    table: pd.DataFrame,
    tasks: Sequence[str],
    arms: Sequence[str],
    *,
    label: str = "difficulty of the question",
) -> Figure:
    """Success by difficulty of the questions, every seed a dot, lines their means.

    table: task, arm, seed, bin, questions, success, as of `difficulty_rows`; bins in order of
    first appearance, each with its number of questions.
    """
    figure, axes = task_grid(tasks, height=2.9)
    looks = arm_looks(arms)
    for axis, task in zip(axes[0], tasks, strict=True):
        runs = table[table["task"] == task]
        absent = [arm for arm in arms if select(table, task, arm).empty]
        if len(absent) == len(arms):
            say_no_runs(axis)
            continue
        say_absent(axis, absent)
        questions = runs.groupby("bin", sort=False)["questions"].max()
        names = {name: f"{name}\n{count} questions" for name, count in questions.items()}
        shown = runs.assign(bin=runs["bin"].map(names))
        _by_factor(axis, shown, "bin", "success", "arm", looks)
        axis.set_xlabel(label)
    axes[0, 0].set_ylabel("exact match (share)")
    entries = [
        _dot_entry(*look, f"{arm_label(arm)}{_seeds(table, arm)}") for arm, look in looks.items()
    ]
    legend(figure, entries)
    return figure


def _seeds(table: pd.DataFrame, arm: str) -> str:
    """Numbers of seeds of an arm, over the tasks that have any."""
    counts = table[table["arm"] == arm].groupby("task")["seed"].nunique()
    if counts.empty:
        return ""
    few, many = counts.min(), counts.max()
    return f" ({few} seeds)" if few == many else f" ({few}–{many} seeds)"
