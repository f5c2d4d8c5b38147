"""The results table: one row per task and arm, as numbers and as a picture."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit import stats
from turncredit.comparisons import by_seed
from turncredit.plots.panels import select
from turncredit.plots.sources import EVALUATION, RUN, FigureParams, Runs
from turncredit.plots.style import WIDTH, arm_label, styled, task_label
from turncredit.tripwires import NON_FINITE


def final_evaluations(runs: Runs) -> pd.DataFrame:
    """The last evaluation of each run that is over; an unfinished run has no final result.

    A run stopped by a tripwire counts with the evaluation where it stopped.  After an update that
    was not finite there is none, and an earlier one does not stand in: its numbers are NaN.
    """
    ends = runs.evaluations.merge(runs.finished, on=RUN)
    last = ends.groupby(RUN)["step"].transform("max") == ends["step"]
    final = ends[last].sort_values(RUN, ignore_index=True)
    lost = final["stop_reason"] == NON_FINITE
    final[EVALUATION] = final[EVALUATION].where(~lost)
    return final[[*runs.evaluations.columns]]


def summary_rows(runs: Runs, shifts: pd.DataFrame, settings: FigureParams) -> list[dict[str, Any]]:
    """One row per task and arm, also for those without runs: counts 0, numbers NaN.

    exact_match: mean over seeds of the final evaluation with its t interval; difference: to the
    reference arm, paired by seed, with its t interval; search_first, turns, grounded: means of the
    final evaluation over the seeds that have one; shift_steps: by seed, "never" for a run that did
    not shift.  Unfinished runs count in `runs` and `shift_steps` only.
    """
    finals = final_evaluations(runs)
    return [
        _row(finals, select(shifts, task, arm), task, arm, settings)
        for task in settings.tasks
        for arm in settings.arms
    ]


def _row(
    finals: pd.DataFrame, shifts: pd.DataFrame, task: str, arm: str, settings: FigureParams
) -> dict[str, Any]:
    final, reference = select(finals, task, arm), select(finals, task, settings.reference_arm)
    level = settings.confidence_level
    exact = stats.t_interval(final["exact_match"].to_numpy(), level=level)
    difference = stats.t_interval([], level=level)
    if arm != settings.reference_arm:
        difference = stats.paired_difference(
            by_seed(final, "exact_match"), by_seed(reference, "exact_match"), level=level
        )
    steps, known = shifts.sort_values("seed")["shift_step"], final.dropna(subset=["exact_match"])
    return {
        "task": task,
        "arm": arm,
        "runs": len(shifts),
        "finished": len(final),
        **_columns("exact_match", exact),
        **_columns("difference", difference),
        **{name: known[name].mean(skipna=False) for name in ("search_first", "turns", "grounded")},
        "shifted": int(steps.notna().sum()),
        "shift_steps": " ".join("never" if math.isnan(step) else f"{step:.0f}" for step in steps),
        "level": level,
    }


def _columns(name: str, interval: stats.Interval) -> dict[str, float]:
    return {
        name: interval.mean,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
        f"{name}_seeds": interval.n,
        f"{name}_missing": interval.missing,
    }


# Header, left edge as a share of the width, alignment.
_COLUMNS = (
    ("task", 0.005, "left"),
    ("arm", 0.135, "left"),
    ("seeds", 0.255, "center"),
    ("final exact match\n[{level} interval]", 0.365, "center"),
    ("paired difference\nto {reference} [interval]", 0.53, "center"),
    ("search\nfirst", 0.655, "center"),
    ("turns", 0.715, "center"),
    ("grounded", 0.78, "center"),
    ("seeds that shifted:\nat steps", 0.835, "left"),
)
_LINE = 0.17
"""Inches per line of text."""


@styled
def results_table(rows: list[Mapping[str, Any]], *, reference_arm: str) -> Figure:
    """The rows of `summary_rows` as a table; a dash is a number that does not exist."""
    texts = [_texts(row, reference_arm) for row in rows]
    heights = [_LINE * (text[-1].count("\n") + 1) + 0.09 for text in texts]
    height = sum(heights) + 0.55
    figure = Figure(figsize=(WIDTH, height))
    axis = figure.add_axes((0.01, 0.02, 0.98, 0.96))
    axis.set_axis_off()
    axis.set(xlim=(0, 1), ylim=(height, 0))
    level = f"{rows[0]['level']:.0%}".replace("%", " %")
    for header, x, alignment in _COLUMNS:
        text = header.format(level=level, reference=arm_label(reference_arm))
        _write(axis, x, 0.2 if "\n" in text else 0.27, text, ha=alignment, weight="bold")
    axis.hlines([0.02, height - 0.06], 0, 1, color="black", linewidth=1.2)
    top, task = 0.45, None
    for row, text, size in zip(rows, texts, heights, strict=True):
        new_task = row["task"] != task
        task = row["task"]
        if new_task:
            axis.hlines(top, 0, 1, color="#888888", linewidth=0.6)
        for (_, x, alignment), cell in zip(
            _COLUMNS, text if new_task else ["", *text[1:]], strict=True
        ):
            _write(axis, x, top + 0.175, cell, ha=alignment)
        top += size
    return figure


def _write(axis: Axes, x: float, y: float, text: str, **style: str) -> None:
    """Text whose first baseline is at `y`; matplotlib would align lines by their tallest letter."""
    for number, line in enumerate(text.split("\n")):
        axis.text(x, y + number * _LINE, line, va="baseline", **style)


def _texts(row: Mapping[str, Any], reference_arm: str) -> list[str]:
    """The cells of a row."""
    if row["runs"] == 0:
        return [task_label(row["task"]), arm_label(row["arm"]), "no runs", *["–"] * 6]
    seeds = str(row["finished"])
    if row["finished"] < row["runs"]:
        seeds += f" of {row['runs']}"
    difference = _interval_text(row, "difference", "+.3f")
    return [
        task_label(row["task"]),
        arm_label(row["arm"]),
        seeds,
        _interval_text(row, "exact_match", ".3f"),
        "reference" if row["arm"] == reference_arm else difference,
        _number_text(row["search_first"], ".2f"),
        _number_text(row["turns"], ".1f"),
        _number_text(row["grounded"], ".2f"),
        _shifts_text(row),
    ]


def _shifts_text(row: Mapping[str, Any]) -> str:
    """How many runs shifted, and at which steps.

    >>> _shifts_text({"shift_steps": "12 never 7", "runs": 3})
    '2 of 3: 7, 12'
    """
    steps = sorted(int(step) for step in row["shift_steps"].split() if step != "never")
    count = f"{len(steps)} of {row['runs']}"
    return textwrap.fill(f"{count}: {', '.join(map(str, steps))}" if steps else count, 24)


def _interval_text(row: Mapping[str, Any], name: str, form: str) -> str:
    mean, low, high = (_number_text(row[name + end], form) for end in ("", "_low", "_high"))
    return mean if low == "–" else f"{mean} [{low}, {high}]"


def _number_text(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form).replace("-", "−")
