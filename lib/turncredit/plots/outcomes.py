"""What each run came to: one row per run, and the numbers that figures of arms are drawn from."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from turncredit import params, paths, results, stats
from turncredit.plans import methods_path, named_methods
from turncredit.plots.sources import RUN, FigureParams, Runs
from turncredit.plots.summary import final_evaluations
from turncredit.training import Method

FINAL = [
    "exact_match",
    "grounded",
    "search_first",
    "answer_first",
    "guess_first",
    "malformed",
    "turns",
]
"""Columns of the final evaluation, by their names in eval.csv."""

COLLAPSE_THRESHOLD = 0.1
"""A run whose grounded rate is below it in the final evaluation has collapsed."""

ALONG = ["reward_last", "entropy_mean_last", "clip_fraction_max", "mismatch_max", "masked_share"]


def outcome_rows(
    runs: Runs,
    *,
    shift_threshold: float = 0.5,
    collapse_threshold: float = COLLAPSE_THRESHOLD,
    window: int = 10,
    last: int = 20,
) -> pd.DataFrame:
    """One row per run that has begun: task, arm, seed, block, finished, then what it came to.

    block: the seed of its warm start.  FINAL: the final evaluation, NaN where there is none.
    collapsed: 1.0 if `grounded` there is below `collapse_threshold`, else 0.0, NaN if unknown.
    shift_step: first step at which the mean of the last `window` steps of search_first is below its
    threshold, NaN: never; collapse_step: the same of grounded, and NaN unless the run ended
    collapsed, since some recover.  reward_last and
    entropy_mean_last: means of the last `last` steps; clip_fraction_max and mismatch_max (of
    mean_abs_prob_diff): largest step; masked_share: mean over steps; seconds: of all processes that
    worked on the run.  A column that the tables lack is NaN.
    """
    final = _finals(runs)
    along = [
        _along(key, run.sort_values("step"), shift_threshold, collapse_threshold, window, last)
        for key, run in runs.metrics.groupby(RUN, sort=True)
    ]
    steps = pd.DataFrame(along, columns=[*RUN, "shift_step", "collapse_step", *ALONG])
    table = steps.merge(final, on=RUN, how="left")
    known = table["grounded"].notna()
    table["collapsed"] = (table["grounded"] < collapse_threshold).astype(float).where(known)
    table["collapse_step"] = table["collapse_step"].where(table["collapsed"] == 1)
    table["finished"] = table["finished"].eq(True)
    order = ["block", "finished", *FINAL, "collapsed", "shift_step", "collapse_step", *ALONG]
    return table[[*RUN, *order, "seconds"]]


def _finals(runs: Runs) -> pd.DataFrame:
    """Of each run that is over: its final evaluation, seconds and block."""
    evaluated = final_evaluations(runs).reindex(columns=[*RUN, *FINAL])
    lost = evaluated["exact_match"].isna()  # no policy was left: no column of it is a result
    evaluated[FINAL] = evaluated[FINAL].astype(float).where(~lost)
    over = runs.finished.rename(columns={"warm_start_seed": "block"})
    over = over[[*RUN, "seconds", "block"]].assign(finished=True)
    return over.merge(evaluated, on=RUN, how="left")


def _along(
    key: tuple, run: pd.DataFrame, shift: float, collapse: float, window: int, last: int
) -> tuple:
    """The row of one run: its key, the two steps and ALONG."""

    def column(name: str) -> pd.Series:
        return run.get(name, pd.Series(math.nan, index=run.index)).astype(float)

    def first(name: str, threshold: float) -> float:
        step = stats.shift_step(column(name), threshold=threshold, window=window)
        return math.nan if step is None else float(run["step"].iloc[step])

    return (
        *key,
        first("search_first", shift),
        first("grounded", collapse),
        column("reward").tail(last).mean(),
        column("entropy").tail(last).mean(),
        column("clip_fraction").max(),
        column("mean_abs_prob_diff").max(),
        column("masked_share").mean(),
    )


def outcome_intervals(
    outcomes: pd.DataFrame, column: str = "exact_match", *, level: float = 0.95
) -> pd.DataFrame:
    """Mean of `column` with its t interval: task, arm, mean, low, high, n, missing.

    The interval treats seeds as independent and normal; where outcomes have two modes, as with
    collapse, it is an approximation, and the dots say more.
    """
    rows = []
    for (task, arm), runs in outcomes.groupby(["task", "arm"], sort=False):
        found = stats.t_interval(runs[column].to_numpy(), level=level)
        rows.append((task, arm, found.mean, found.low, found.high, found.n, found.missing))
    return pd.DataFrame(rows, columns=["task", "arm", "mean", "low", "high", "n", "missing"])


def difference_rows(
    outcomes: pd.DataFrame,
    reference_arm: str,
    column: str = "exact_match",
    *,
    level: float = 0.95,
) -> pd.DataFrame:
    """Difference of each arm to the reference, paired by seed: task, arm, difference, low, high, n.

    Other designs, such as differences within warm starts, give rows of the same columns.
    """
    rows = []
    for task, runs in outcomes.groupby("task", sort=False):
        by_arm = {
            arm: dict(zip(r["seed"], r[column], strict=True)) for arm, r in runs.groupby("arm")
        }
        reference = by_arm.pop(reference_arm, {})
        for arm, values in by_arm.items():
            found = stats.paired_difference(values, reference, level=level)
            rows.append((task, arm, found.mean, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=["task", "arm", "difference", "low", "high", "n"])


def rate_rows(
    outcomes: pd.DataFrame, column: str = "collapsed", *, level: float = 0.95
) -> pd.DataFrame:
    """Share of runs with `column` 1, with Wilson's interval: task, arm, rate, low, high, count, n.

    Runs whose `column` is NaN are in neither count nor n.
    """
    rows = []
    for (task, arm), runs in outcomes.groupby(["task", "arm"], sort=False):
        events = stats.count_events(runs[column].to_numpy())
        found = stats.rate_interval(events, level=level)
        rows.append((task, arm, found.value, found.low, found.high, events.events, events.total))
    return pd.DataFrame(rows, columns=["task", "arm", "rate", "low", "high", "count", "n"])


def spread_rows(
    outcomes: pd.DataFrame,
    reference_arm: str,
    column: str = "exact_match",
    *,
    level: float = 0.95,
) -> pd.DataFrame:
    """Standard deviation over seeds and its ratio to the reference arm's, with `stats.sd_ratio`.

    Result: task, arm, sd (over all seeds, n - 1), ratio (within warm starts), low, high, n.  A run
    without a known warm start is in sd alone.
    """
    rows = []
    for task, runs in outcomes.groupby("task", sort=False):
        blocks = {arm: _by_block(r, column) for arm, r in runs.groupby("arm", sort=False)}
        for arm, own in runs.groupby("arm", sort=False):
            ratio = (math.nan,) * 3
            if arm != reference_arm and reference_arm in blocks:
                found = stats.sd_ratio(blocks[arm], blocks[reference_arm], level=level)
                ratio = (found.value, found.low, found.high)
            rows.append((task, arm, own[column].std(), *ratio, int(own[column].notna().sum())))
    return pd.DataFrame(rows, columns=["task", "arm", "sd", "ratio", "low", "high", "n"])


def _by_block(runs: pd.DataFrame, column: str) -> dict[float, list[float]]:
    return {block: own[column].dropna().tolist() for block, own in runs.groupby("block")}


def reach_rows(runs: Runs, column: str, threshold: float, *, window: int = 10) -> pd.DataFrame:
    """First step at which the mean of the last `window` steps of `column` is at least `threshold`.

    Result: task, arm, seed, steps (NaN: never), last (the run's last step).
    """
    rows = []
    for key, run in runs.metrics.groupby(RUN, sort=True):
        run = run.sort_values("step")
        means = run[column].rolling(window).mean()
        reached = run["step"][means >= threshold]
        steps = float(reached.iloc[0]) if len(reached) else math.nan
        rows.append((*key, steps, int(run["step"].max())))
    return pd.DataFrame(rows, columns=[*RUN, "steps", "last"])


def run_params(settings: FigureParams) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What each run was made with: the `params` of its manifest, by task, arm and seed.

    Of the tasks and arms of the settings.  A run that is not over has no manifest.
    """
    found = {}
    for experiment in settings.experiments:
        root = paths.results(settings.tier) / experiment
        for path in results.table_paths(root, "manifest.json"):
            task, arm = path.parts[-4:-2]
            if task in settings.tasks and arm in settings.arms:
                manifest = results.RunDirectory(path.parent).read_manifest() or {}
                found[task, arm, manifest["seed"]] = manifest["params"]
    return found


def arm_methods(
    settings: FigureParams, made_with: Mapping[tuple[str, str, int], Mapping[str, Any]]
) -> dict[str, Method]:
    """The method of each arm: its runs', or before it has any, that of params/methods.yaml.

    made_with: as of `run_params`.  An arm that neither knows is left out.  Raises ValueError naming
    a run whose method is not that of the arm's other runs.
    """
    methods: dict[str, Method] = {}
    for (task, arm, seed), values in made_with.items():
        method = Method(**values["method"])
        if methods.setdefault(arm, method) != method:
            raise ValueError(f"{task}/{arm}/seed_{seed}: other runs of {arm} have another method")
    known = params.read_yaml(methods_path())
    planned = [arm for arm in settings.arms if arm in known and arm not in methods]
    methods |= {arm: Method(**values) for arm, values in named_methods(planned).items()}
    return {arm: methods[arm] for arm in settings.arms if arm in methods}


def differing_in(
    methods: Mapping[str, Method], reference_arm: str, *names: str
) -> dict[str, Method]:
    """The arms whose methods are that of the reference arm but for the fields `names`.

    >>> grpo = Method("grpo", {}, "none", {}, "ppo_clip", {})
    >>> methods = {"grpo": grpo, "gspo": replace(grpo, objective="gspo")}
    >>> methods["aem"] = replace(grpo, weight="aem")
    >>> list(differing_in(methods, "grpo", "objective", "objective_options"))
    ['grpo', 'gspo']
    """
    reference = methods.get(reference_arm)
    if reference is None:
        return {}
    same = {name: getattr(reference, name) for name in names}
    return {arm: method for arm, method in methods.items() if replace(method, **same) == reference}
