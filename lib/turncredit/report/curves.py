"""The training curves of every finished run, as data for a picture to zoom and toggle."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from turncredit import paths
from turncredit.plots.sources import RUN, FigureParams
from turncredit.plots.style import ARM_COLOURS, arm_label, task_label
from turncredit.results import read_table, table_paths

METRICS = {
    "reward": "training reward",
    "search_first": "trajectories that search first (share)",
    "grounded": "trajectories that saw the evidence (share)",
    "entropy": "policy entropy (nats)",
}
"""What can be shown, columns of metrics.csv, with the label of the axis."""

Chart = dict[str, Any]


def curve_chart(settings: FigureParams, notebooks: Iterable[str]) -> Chart | None:
    """Everything that the picture shows and its script needs, as JSON; None without a run.

    A run that two notebooks hold counts once, as the first has it.  Shown at first are the task and
    the arms that `settings` name first and that have runs, smoothed with its weight.
    """
    table = _runs(settings.tier, notebooks)
    if table.empty:
        return None
    tasks = sorted(table["task"].unique(), key=_place(settings.tasks))
    arms = sorted(table["arm"].unique(), key=_place(settings.arms))
    colours = _colours(arms)
    there = set(table.loc[table["task"] == tasks[0], "arm"])
    first = [arm for arm in settings.arms if arm in there] or sorted(there)[:1]
    return {
        "metrics": METRICS,
        "weight": settings.smoothing,
        "first": {"task": tasks[0], "metric": "reward", "arms": first},
        "arms": {arm: {"label": arm_label(arm), "colour": colours[arm]} for arm in arms},
        "tasks": {
            task: {"label": task_label(task), "runs": _packed(table[table["task"] == task], arms)}
            for task in tasks
        },
    }


def _runs(tier: str, notebooks: Iterable[str]) -> pd.DataFrame:
    """RUN, step and METRICS of all finished runs, each run once."""
    frames, seen = [], set()
    for name in notebooks:
        root = paths.results(tier) / name
        if not table_paths(root, "metrics.csv"):
            continue
        over = {path.parts[-4:-1] for path in table_paths(root, "manifest.json")}
        table = read_table(root, "metrics.csv").reindex(columns=[*RUN, "step", *METRICS])
        for (task, arm, seed), run in table.groupby(RUN, sort=False):
            if (task, arm, f"seed_{seed}") in over and (task, arm, seed) not in seen:
                seen.add((task, arm, seed))
                frames.append(run)
    if not frames:
        return pd.DataFrame(columns=[*RUN, "step", *METRICS])
    return pd.concat(frames, ignore_index=True)


def _colours(arms: list[str]) -> dict[str, str]:
    """The colour of each arm in all figures; those unknown there share a few, however many."""
    spare = itertools.cycle(("#000000", "#999999", "#7A4FA3", "#8C6D31"))
    return {arm: ARM_COLOURS.get(arm) or next(spare) for arm in arms}


def _place(listed: tuple[str, ...]) -> Any:
    """Sort key: names in the order of `listed`, then the others by name."""
    return lambda name: (listed.index(name) if name in listed else len(listed), name)


def _packed(table: pd.DataFrame, arms: list[str]) -> dict[str, dict[str, dict[str, str]]]:
    """arm to seed to metric to `packed` values, step by step from step 0."""
    return {
        arm: {
            str(seed): {name: packed(run.sort_values("step")[name]) for name in METRICS}
            for seed, run in table[table["arm"] == arm].groupby("seed")
        }
        for arm in arms
        if arm in set(table["arm"])
    }


def packed(values: Iterable[float]) -> str:
    """Thousandths in a row, a point where a number is missing.

    >>> packed([0.71875, 1.0, float("nan")])
    '719 1000 .'
    """
    return " ".join(str(round(v * 1000)) if math.isfinite(v) else "." for v in values)


def unpacked(text: str) -> list[float]:
    """Inverse of `packed`, to the thousandth.

    >>> unpacked("719 .")
    [0.719, nan]
    """
    return [math.nan if word == "." else int(word) / 1000 for word in text.split()]
