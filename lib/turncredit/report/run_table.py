"""One row per finished run, over all experiments: the table that the claims are judged by."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from turncredit import params, paths, stats
from turncredit.claims import DECISIONS, MEASURED, QUANTITIES
from turncredit.plots.outcomes import outcome_rows
from turncredit.plots.rollout_rows import MEASURES
from turncredit.plots.sources import RUN, FigureParams, Runs, read_runs, shift_table
from turncredit.report.probe_table import BOUNDS, with_probes
from turncredit.report.versions import require_same_tasks
from turncredit.results import read_manifests, read_table, table_paths

_FINAL = ("collapsed", "exact_match", "grounded", "search_first", "turns", "turns_sd", "malformed")
FILES = {
    **dict.fromkeys(QUANTITIES, ("metrics.csv",)),
    **dict.fromkeys(_FINAL, ("eval.csv",)),
    "unstable": ("eval.csv", "metrics.csv"),
    **{name: ("turns.csv.gz",) for name in QUANTITIES if "_turn_" in name},
    "ratio_lead_turn_0": ("metrics.csv", "turns.csv.gz"),
    **dict.fromkeys(MEASURED, (MEASURES,)),
}  # fmt: skip
"""The tables of a run that a quantity is read from; MEASURES is one for a whole notebook, and
probe_... come from the probes' own (`probe_table`)."""

_COLUMNS = ("notebook", "task", "arm", "seed", "block", "run", "code_hash")
_ALONG = ("reward", "entropy", "clip_fraction", "turns")
_LOST = 0.1
"""Share of its best reward below which a run has lost it."""


def run_table(tier: str, tasks: Sequence[str]) -> pd.DataFrame:
    """What every finished run on `tasks` under results/<tier> came to.

    Columns: notebook, task, arm, seed, block (its warm start), run (its folder, from results/ on),
    code_hash, then `claims.QUANTITIES`; a quantity that a run's tables lack is NaN, and probe_...
    with the ends of its interval are there only where the probe was, and `claims.MEASURED` only
    where a notebook has saved them.  Thresholds and windows are those of the figure notebook.  A
    run that two notebooks hold counts once, as the first has it.  Runs of several
    versions of the code stand side by side (`code_warnings`).
    Raises ValueError for runs of one task and seed, or of one name, whose parameters differ.
    """
    settings = figure_settings(tier)
    arms = {name: _arms(tier, name, tasks) for name in notebooks(tier)}
    arms = {name: found for name, found in arms.items() if found}
    require_same_tasks([paths.results(tier) / name for name in arms])
    tables = [
        _rows(replace(settings, experiments=(name,), tasks=tuple(tasks), arms=found,
                      reference_arm=found[0]))
        for name, found in arms.items()
    ]  # fmt: skip
    if not tables:
        names = [*_COLUMNS, *(q for q in QUANTITIES if not _optional(q))]
        return _in_order(with_probes(pd.DataFrame(columns=names), tier, tasks))
    return _in_order(with_probes(_once(pd.concat(tables, ignore_index=True)), tier, tasks))


def figure_settings(tier: str) -> FigureParams:
    """The parameters of the figure notebook."""
    return params.load(FigureParams, paths.params(tier) / "90_figures.yaml")


def notebooks(tier: str) -> list[str]:
    """Names of the folders under results/<tier> that hold finished runs, in order.

    Those of lessons, whose names begin with 0, are no evidence: a few seeds from one warm start.
    """
    runs = paths.results(tier).glob("*/*/*/seed_*/manifest.json")
    return sorted({path.parts[-5] for path in runs if not path.parts[-5].startswith("0")})


def _arms(tier: str, notebook: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """Arms with finished runs on one of the tasks."""
    found = table_paths(paths.results(tier) / notebook, "manifest.json")
    return tuple(sorted({path.parts[-3] for path in found if path.parts[-4] in tasks}))


def _rows(settings: FigureParams) -> pd.DataFrame:
    """The runs of one notebook."""
    runs, (notebook,) = read_runs(settings, partly=True), settings.experiments
    root, last = paths.results(settings.tier) / notebook, settings.comparison_window
    table = outcome_rows(
        runs, shift_threshold=settings.shift_threshold, window=settings.shift_window, last=last
    )
    table = table[table["finished"]].merge(_windows(runs, settings), on=RUN)
    table = table.merge(_measures(root), on=RUN, how="left")
    hashes = read_manifests(root).reindex(
        columns=["task", "arm", "run_seed", "params_hash", "code_hash"]
    )
    hashes = hashes.rename(columns={"run_seed": "seed"})
    table = table.merge(hashes, on=RUN).merge(_spreads(root), on=RUN, how="left")
    table["turns_sd"] = table["turns_sd"].where(table["exact_match"].notna())
    labels = table["task"] + "/" + table["arm"] + "/seed_" + table["seed"].astype(str)
    table["notebook"], table["run"] = notebook, f"results/{settings.tier}/{notebook}/" + labels
    table["shifted"] = table["shift_step"].notna().astype(float)
    unstable = table["shifted"].where(table["shifted"] == 1, table["collapsed"])
    table["unstable"] = unstable.where(table["collapsed"].notna())
    ends = {"reward_last": "reward_end", "entropy_mean_last": "entropy_end"}
    return table.rename(columns=ends)


def _windows(runs: Runs, settings: FigureParams) -> pd.DataFrame:
    """Means around the shift of each run, and of the first steps: RUN and the ..._before, ..."""
    turns = dict(list(runs.turns.groupby(RUN)))
    metrics = dict(list(runs.metrics.groupby(RUN)))
    rows = []
    for run in shift_table(runs, settings).itertuples(index=False):
        key = (run.task, run.arm, run.seed)
        shift = None if math.isnan(run.shift_step) else int(run.shift_step)
        found = stats.windows(
            shift, run.steps, length=settings.comparison_window, shift_window=settings.shift_window
        )
        own, parts = metrics[key], turns.get(key, runs.turns.iloc[:0])
        row = dict(zip(RUN, key, strict=True)) | own.reindex(columns=DECISIONS).mean().to_dict()
        entropy = f"entropy_k{settings.first_k}"
        row |= _along(own, parts, entropy, settings.comparison_window)
        row |= _curves(own, parts, entropy, found)
        for period, steps in (("before", found.before), ("after", found.after)):
            means = _period(own[own["step"].isin(steps)], parts[parts["step"].isin(steps)], entropy)
            row |= {f"{name}_{period}": value for name, value in means.items()}
        rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=RUN).astype({"seed": int})


def _along(
    metrics: pd.DataFrame, turns: pd.DataFrame, entropy: str, length: int
) -> dict[str, float]:
    """What one run's curves come to by rules that know of no shift; length: of means, in steps."""
    early, reward = metrics[metrics["step"] < length], metrics.sort_values("step")["reward"]
    found = {f"{name}_early": early[name].mean() for name in ("reward", "entropy", "turns")}
    best, last = reward.rolling(length).mean().max(), reward.tail(length).mean()
    found["reward_lost"] = math.nan if math.isnan(best) else float(last < _LOST * best)
    first = turns[turns["turn"] == 0].sort_values("step")
    found["first_tokens_alike_turn_0"] = _correlation(first, "entropy_k8", "entropy_k128")
    if first["entropy_k8"].equals(first["entropy_k128"]):  # by construction: no turn is longer
        found["first_tokens_alike_turn_0"] = math.nan
    stopped = metrics["stopped"].any()  # the steps that are left would not be those of other runs
    found["entropy_turn_0_rise"] = math.nan if stopped else _rise(first[entropy], length)
    return found


def _curves(
    metrics: pd.DataFrame, turns: pd.DataFrame, entropy: str, around: stats.Windows
) -> dict[str, float]:
    """How the curves of one run go together around its shift; NaN without one."""
    names = ("shift_length", "ratio_lead_turn_0", "divergence_follows_turn_2")
    if not around.shifted or not len(around.before):
        return dict.fromkeys(names, math.nan)
    metrics = metrics.set_index("step").sort_index()
    steps = range(around.before.start, around.after.stop)
    first, third = (
        turns[turns["turn"] == turn].set_index("step").reindex(steps) for turn in (0, 2)
    )
    moved = [
        stats.level_step(values)
        for values in (metrics["search_first"].reindex(steps), _column(first, "turn_ratio_mean"))
    ]
    length = stats.transition(metrics["search_first"].to_numpy(), around)
    both = pd.DataFrame({"a": first[entropy], "b": _column(third, "divergence_k1")})
    lead = math.nan if None in moved else float(moved[0] - moved[1])
    found = (math.nan if length is None else float(length), lead, _correlation(both, "a", "b"))
    return dict(zip(names, found, strict=True))


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    """A column of numbers; NaN where an older table lacks it."""
    return table.reindex(columns=[name])[name].astype(float)


def _correlation(table: pd.DataFrame, a: str, b: str) -> float:
    """Pearson's r of two columns over the rows that have both; NaN for fewer than three, or where
    one of them does not vary.
    """
    known = table[[a, b]].astype(float).dropna()
    varied = len(known) > 2 and (known.max() > known.min()).all()
    return float(known[a].corr(known[b])) if varied else math.nan


def _period(metrics: pd.DataFrame, turns: pd.DataFrame, entropy: str) -> dict[str, float]:
    """Means over some steps of one run; accuracy is pooled over the answering turns."""
    first, second, third = (turns[turns["turn"] == turn] for turn in (0, 1, 2))
    answered = second["answered"].sum()
    return {
        **{name: metrics[name].mean() for name in _ALONG},
        "entropy_turn_0": first[entropy].mean(),
        "entropy_turn_1": second[entropy].mean(),
        "accuracy_turn_1": second["answered_correct"].sum() / answered if answered else math.nan,
        "turn_ratio_turn_0": _column(first, "turn_ratio_mean").mean(),
        "divergence_turn_2": _column(third, "divergence_k1").mean(),
    }


def _rise(values: pd.Series, length: int) -> float:
    """Greatest mean of `length` successive values that follow the first `length`, minus the mean of
    those; below 0 where values only fall, NaN if there are fewer than twice as many.

    >>> _rise(pd.Series([1.0, 3.0, 7.0, 5.0, 1.0]), 2)
    4.0
    """
    means = values.rolling(length).mean().iloc[length - 1 :]
    return float(means.iloc[length:].max() - means.iloc[0]) if len(means) > length else math.nan


def _spreads(root: Path) -> pd.DataFrame:
    """Standard deviation of the turns over the trajectories of the latest evaluation."""
    if not table_paths(root, "eval.csv"):
        return pd.DataFrame(columns=[*RUN, "turns_sd"]).astype({"seed": int, "turns_sd": float})
    evaluations = read_table(root, "eval.csv").query("hops == 'all'")
    latest = evaluations.sort_values("step", kind="stable").groupby(RUN, sort=False).tail(1)
    return latest.reindex(columns=[*RUN, "turns_sd"])


def _measures(root: Path) -> pd.DataFrame:
    """What a notebook has measured of its runs beyond their own tables; RUN alone if nothing."""
    if not (root / MEASURES).exists():
        return pd.DataFrame(columns=RUN).astype({"seed": int})
    table = pd.read_csv(root / MEASURES)
    return table[[*RUN, *(name for name in MEASURED if name in table)]]


def _optional(quantity: str) -> bool:
    """Whether the table has a column of this quantity only where something was measured for it."""
    return quantity.startswith("probe_") or quantity in MEASURED


def _once(table: pd.DataFrame) -> pd.DataFrame:
    """Each run once, with the notebook that comes first; ValueError if their parameters differ."""
    versions = table.groupby(RUN)["params_hash"].nunique(dropna=False)
    if (versions > 1).any():
        task, arm, seed = versions.index[versions > 1][0]
        where = table[(table[RUN] == [task, arm, seed]).all(axis=1)]["run"].tolist()
        raise ValueError(f"{' and '.join(where)} are two versions of one run; rerun the older")
    return table.drop_duplicates(RUN, ignore_index=True).sort_values(RUN, ignore_index=True)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The columns in order, those of what was measured apart only where they are there."""
    named = (*QUANTITIES, *BOUNDS)
    order = [*_COLUMNS, *(name for name in named if name in table or not _optional(name))]
    return table.reindex(columns=order)
