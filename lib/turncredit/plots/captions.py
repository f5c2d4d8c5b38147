"""One caption per figure; every number in it is rendered from the tables it describes."""

import math
from collections.abc import Callable

import pandas as pd

from turncredit.plots.panels import select
from turncredit.plots.sources import FigureParams, Runs, equal_from
from turncredit.plots.style import arm_label, task_label
from turncredit.training import FIRST_K
from turncredit.tripwires import FINISHED, NON_FINITE

FIGURES = (
    "training_reward",
    "total_entropy",
    "turn_entropy",
    "decision_vs_execution",
    "clip_fraction",
    "turns",
    "search_first",
    "turn_accuracy",
    "results_table",
    "entropy_k",
)
LINES = (
    "Thin lines are seeds, to where their run ends; thick lines are means over seeds, at the steps "
    "that all seeds have."
)


def captions(
    runs: Runs, shifts: pd.DataFrame, accuracies: pd.DataFrame, settings: FigureParams
) -> dict[str, str]:
    """Figure name to caption, in the order of FIGURES."""
    smooth = (
        f"Exponential moving average as in TensorBoard (debiased, weight {settings.smoothing:g})."
    )
    counted, dated = _run_counts(shifts, settings), _shift_counts(shifts, settings)
    texts = {
        "training_reward": f"Training reward. {smooth} {LINES} "
        f"{_ends('reward', '.2f', runs, settings)} {_missing_rewards(runs)}",
        "total_entropy": f"Mean entropy of the sampled tokens of a step. {smooth} {LINES} "
        f"{_ends('entropy', '.3f', runs, settings)}",
        "turn_entropy": f"Mean entropy of the first {settings.first_k} tokens of turns 0 to "
        f"{settings.turns_shown - 1}, over the trajectories that reach the turn; one row per arm, "
        f"log scale. {smooth} {LINES}",
        "decision_vs_execution": f"Mean entropy of the first {settings.first_k} tokens of turn 0, "
        "where the agent decides to search or to guess, and of turn 1, log scale. "
        f"{smooth} {LINES} {dated} Triangles mark the step.",
        "clip_fraction": f"Share of sampled tokens whose ratio was clipped. {smooth} {LINES} "
        f"{_clip_sizes(runs)}",
        "turns": f"Turns per trajectory. {smooth} {LINES} {_ends('turns', '.1f', runs, settings)}",
        "search_first": "Share of training trajectories whose first turn is a search, not "
        f"smoothed. {LINES} {dated} Triangles mark the step.",
        "turn_accuracy": _accuracy_caption(accuracies, settings),
        "results_table": _table_caption(runs, dated, settings),
        "entropy_k": "Mean entropy of the first k tokens of turn 0, mean over seeds at the steps "
        f"that all seeds have, log scale. {smooth} {_equal_k(runs)}",
    }
    return {name: f"{texts[name].strip()} {counted}{_stops(name, runs)}" for name in FIGURES}


def _per_cell(shifts: pd.DataFrame, settings: FigureParams, text: Callable[[str, str], str]) -> str:
    """`text(task, arm)` of every cell that has runs; those without are named."""

    def cell(task: str, arm: str) -> str:
        known = not select(shifts, task, arm).empty
        return f"{arm_label(arm)} {text(task, arm) if known else 'no runs'}"

    def column(task: str) -> str:
        known = (shifts["task"] == task).any()
        return ", ".join(cell(task, arm) for arm in settings.arms) if known else "no runs"

    return "; ".join(f"{task_label(task)}: {column(task)}" for task in settings.tasks)


def _run_counts(shifts: pd.DataFrame, settings: FigureParams) -> str:
    counts = _per_cell(shifts, settings, lambda *cell: str(len(select(shifts, *cell))))
    return f"Seeds: {counts}."


def _stops(name: str, runs: Runs) -> str:
    """How many runs a tripwire ended, which and when; nothing where there is none."""
    stopped = runs.finished[runs.finished["stop_reason"] != FINISHED]
    if stopped.empty:
        return ""
    which = ", ".join(
        f"{task_label(run.task)} {arm_label(run.arm)} seed {run.seed} "
        f"({run.stop_reason.replace('_', ' ')}, step {run.stop_step:.0f})"
        for run in stopped.itertuples(index=False)
    )
    marked = ", marked by a cross where they end" if name in _MARKED else ""
    return f" Ended early by a tripwire{marked}: {len(stopped)}, {which}."


_MARKED = frozenset(FIGURES) - {"turn_accuracy", "results_table", "entropy_k"}


def _shift_counts(shifts: pd.DataFrame, settings: FigureParams) -> str:
    def count(task: str, arm: str) -> str:
        steps = select(shifts, task, arm)["shift_step"]
        return f"{steps.notna().sum()} of {len(steps)}"

    return (
        "A run shifts at the first step at which the mean search-first share of the last "
        f"{settings.shift_window} steps is below {settings.shift_threshold:g}; the rule sees turn "
        "0 alone. "
        f"Shifted runs: {_per_cell(shifts, settings, count)}."
    )


def _ends(column: str, form: str, runs: Runs, settings: FigureParams) -> str:
    """Mean of `column` over the last steps of each run, averaged over seeds."""
    length = settings.comparison_window

    def end(task: str, arm: str) -> str:
        seeds = select(runs.metrics, task, arm).sort_values("step").groupby("seed")[column]
        return format(seeds.apply(lambda values: values.tail(length).mean()).mean(), form)

    ends = _per_cell(runs.metrics, settings, end)
    return f"Mean of the last {length} steps of the runs: {ends}."


def _missing_rewards(runs: Runs) -> str:
    missing = runs.metrics["missing_rewards"].sum()
    return f"Trajectories without a reward, left out of the mean: {missing:.0f}."


def _clip_sizes(runs: Runs) -> str:
    if runs.metrics.empty:
        return ""
    percent = 100 * runs.metrics["clip_fraction"]
    return f"Over all steps: mean {percent.mean():.3f} %, largest value {percent.max():.2f} %."


def _equal_k(runs: Runs) -> str:
    first = runs.turns[runs.turns["turn"] == 0]
    if first.empty:
        return ""
    ranks = first[[f"entropy_k{k}" for k in FIRST_K]].corr(method="spearman")
    correlation = (
        f"Over steps and runs, the rank correlation of any k with k = {FIRST_K[-1]} is at least "
        f"{ranks.iloc[-1].min():.2f}."
    )
    if equal_from(runs) == FIRST_K[-1]:
        return correlation
    return (
        f"From k = {equal_from(runs)} on all k agree: no first turn has more tokens. {correlation}"
    )


def _accuracy_caption(accuracies: pd.DataFrame, settings: FigureParams) -> str:
    shown = accuracies[accuracies["turn"] < settings.turns_shown]
    silent = int((shown["answered"] == 0).sum())
    fewest = shown["answered"][shown["answered"] > 0].min()
    support = (
        "" if math.isnan(fewest) else f" Fewest answering turns behind an accuracy: {fewest:.0f}."
    )
    return (
        "Accuracy of the turns that submit an answer or verify a guess, and their share of all "
        f"turns at that position, pooled over up to {settings.comparison_window} training steps: "
        f"before, just ahead of the {settings.shift_window} steps whose mean crossed the "
        "threshold, and after the shift step. Runs without a shift (triangles) show their first "
        "and last steps instead. Dots are seeds, lines their means over the seeds with a value, "
        "shifted or not. "
        f"Dots without an accuracy, since no trajectory answered there: {silent} of {len(shown)}."
        f"{support}"
    )


def _table_caption(runs: Runs, dated: str, settings: FigureParams) -> str:
    lost = int((runs.finished["stop_reason"] == NON_FINITE).sum())
    missing = (
        f" Runs without a final evaluation, since an update was not finite: {lost}." if lost else ""
    )
    return (
        "Last evaluation of the finished runs (of those begun, if fewer): mean over seeds and "
        f"Student t interval at level {settings.confidence_level:g}; differences to "
        f"{arm_label(settings.reference_arm)} are paired by seed. The intervals cover the choice "
        "of seed, not of the evaluation questions, and seeds that share a warm start are not "
        "independent. Search first, turns and grounded are means over "
        f"trajectories of that evaluation. {dated}{missing}"
    )
