"""One row per finished run, over all experiments: the table that the claims are judged by."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from turncredit import params, paths, stats
from turncredit.claims import QUANTITIES
from turncredit.plots.outcomes import outcome_rows
from turncredit.plots.sources import RUN, FigureParams, Runs, read_runs, shift_table
from turncredit.results import check_comparable, read_manifests, read_table, table_paths

PROBE = "14_surprisal_probe"
"""Notebook whose agreement.csv holds the probe."""

_FINAL = ("collapsed", "exact_match", "grounded", "search_first", "turns", "malformed")
FILES = {
    **dict.fromkeys(QUANTITIES, "metrics.csv"),
    **dict.fromkeys(_FINAL, "eval.csv"),
    **{name: "turns.csv.gz" for name in QUANTITIES if "_turn_" in name},
    "turns_sd": "questions.csv",
}  # fmt: skip
"""The table of a run that a quantity is read from; probe_... come from the probe's own."""

_COLUMNS = ("notebook", "task", "arm", "seed", "block", "run")
_VERSION = ["params_hash", "code_hash"]
_ALONG = ("reward", "entropy", "clip_fraction", "turns")


def run_table(tier: str, tasks: Sequence[str]) -> pd.DataFrame:
    """What every finished run on `tasks` under results/<tier> came to.

    Columns: notebook, task, arm, seed, block (its warm start), run (its folder, from results/ on),
    then `claims.QUANTITIES`; a quantity that a run's tables lack is NaN, and probe_... are there
    only where the probe was.  Thresholds and windows are those of the figure notebook.  A run that
    two notebooks hold, equal in parameters and code, counts once.
    Raises ValueError for runs that must not be compared (`results.check_comparable`), or a run that
    two notebooks hold in two versions.
    """
    settings = figure_settings(tier)
    arms = {name: _arms(tier, name, tasks) for name in notebooks(tier)}
    arms = {name: found for name, found in arms.items() if found}
    check_comparable([paths.results(tier) / name for name in arms])
    tables = [
        _rows(replace(settings, experiments=(name,), tasks=tuple(tasks), arms=found,
                      reference_arm=found[0]))
        for name, found in arms.items()
    ]  # fmt: skip
    if not tables:
        return pd.DataFrame(columns=[*_COLUMNS, *(q for q in QUANTITIES if q[:6] != "probe_")])
    return _with_probe(_once(pd.concat(tables, ignore_index=True)), tier)


def figure_settings(tier: str) -> FigureParams:
    """The parameters of the figure notebook."""
    return params.load(FigureParams, paths.params(tier) / "90_figures.yaml")


def notebooks(tier: str) -> list[str]:
    """Names of the folders under results/<tier> that hold finished runs, in order."""
    runs = paths.results(tier).glob("*/*/*/seed_*/manifest.json")
    return sorted({path.parts[-5] for path in runs})


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
    hashes = read_manifests(root).reindex(columns=["task", "arm", "run_seed", *_VERSION])
    hashes = hashes.rename(columns={"run_seed": "seed"})
    table = table.merge(hashes, on=RUN).merge(_spreads(root), on=RUN, how="left")
    table["turns_sd"] = table["turns_sd"].where(table["exact_match"].notna())
    labels = table["task"] + "/" + table["arm"] + "/seed_" + table["seed"].astype(str)
    table["notebook"], table["run"] = notebook, f"results/{settings.tier}/{notebook}/" + labels
    table["shifted"] = table["shift_step"].notna().astype(float)
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
        early = own.loc[own["step"] < settings.comparison_window, "entropy"].mean()
        row = dict(zip(RUN, key, strict=True)) | {"entropy_early": early}
        for period, steps in (("before", found.before), ("after", found.after)):
            means = _period(own[own["step"].isin(steps)], parts[parts["step"].isin(steps)],
                            f"entropy_k{settings.first_k}")  # fmt: skip
            row |= {f"{name}_{period}": value for name, value in means.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def _period(metrics: pd.DataFrame, turns: pd.DataFrame, entropy: str) -> dict[str, float]:
    """Means over some steps of one run; accuracy is pooled over the answering turns."""
    first, second = (turns[turns["turn"] == turn] for turn in (0, 1))
    answered = second["answered"].sum()
    return {
        **{name: metrics[name].mean() for name in _ALONG},
        "entropy_turn_0": first[entropy].mean(),
        "entropy_turn_1": second[entropy].mean(),
        "accuracy_turn_1": second["answered_correct"].sum() / answered if answered else math.nan,
    }


def _spreads(root: Path) -> pd.DataFrame:
    """Standard deviation of the turns over the trajectories of the final evaluation."""
    if not table_paths(root, "questions.csv"):
        return pd.DataFrame(columns=[*RUN, "turns_sd"]).astype({"seed": int, "turns_sd": float})
    questions = read_table(root, "questions.csv")
    spreads = questions.groupby(RUN)["turns"].std()
    return spreads.rename("turns_sd").reset_index()


def _once(table: pd.DataFrame) -> pd.DataFrame:
    """Each run once, with the notebook that comes first; ValueError if there are two versions."""
    versions = table.groupby(RUN)[_VERSION].nunique(dropna=False).max(axis=1)
    if (versions > 1).any():
        task, arm, seed = versions.index[versions > 1][0]
        where = table[(table[RUN] == [task, arm, seed]).all(axis=1)]["run"].tolist()
        raise ValueError(f"{' and '.join(where)} are two versions of one run; rerun the older")
    return table.drop_duplicates(RUN, ignore_index=True).sort_values(RUN, ignore_index=True)


def _with_probe(table: pd.DataFrame, tier: str) -> pd.DataFrame:
    """The probe's agreement beside the run that it probed, if there is one, in order of columns."""
    saved, given = probe_file(tier), paths.params(tier) / f"{PROBE}.yaml"
    if saved.exists() and given.exists():
        asked = params.read_yaml(given)
        probed = (table[RUN] == [asked["task_name"], "grpo", asked["seed"]]).all(axis=1)
        for name, value in _agreement(pd.read_csv(saved)).items():
            table[name] = pd.Series(math.nan, index=table.index).where(~probed, value)
    order = [*_COLUMNS, *(name for name in QUANTITIES if name in table or name[:6] != "probe_")]
    return table.reindex(columns=order)


def probe_file(tier: str) -> Path:
    """Where the probe's notebook keeps its agreement."""
    return paths.results(tier) / PROBE / "agreement.csv"


def _agreement(table: pd.DataFrame) -> dict[str, float]:
    """The two numbers of the published probe: recorded responses, silent ones counted half."""
    overall = table[(table["responses"] == "recorded") & (table["by"] == "all")]
    pearson = overall.loc[overall["measure"] == "pearson", "value"]
    signs = overall[(overall["measure"] == "sign_agreement") & (overall["silent"] == "half")]
    return {"probe_pearson": float(pearson.iloc[0]),
            "probe_sign_agreement": float(signs["value"].iloc[0])}  # fmt: skip
