"""What the figures are made of: parameters, saved runs, and the tidy tables derived from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from turncredit import paths, results, stats
from turncredit.training import FIRST_K
from turncredit.tripwires import FINISHED

RUN = ["task", "arm", "seed"]


@dataclass(frozen=True)
class FigureParams:
    """The parameters of the figure notebook."""

    tier: str
    experiments: tuple[str, ...]
    """Folders under results/<tier> whose runs are drawn together."""
    tasks: tuple[str, ...]
    """One column each, in this order."""
    arms: tuple[str, ...]
    reference_arm: str
    """Arm that differences are taken against."""
    smoothing: float
    """EMA weight of the curves, share of the past."""
    shift_threshold: float
    shift_window: int
    comparison_window: int
    """Steps before and after a shift that are compared."""
    first_k: int
    turns_shown: int
    confidence_level: float
    studies: tuple[str, ...] = ()
    """Experiment notebooks whose plans are drawn one by one, with the figures of `EXHIBITS`."""

    def __post_init__(self) -> None:
        for name in ("experiments", "tasks", "arms"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if self.reference_arm not in self.arms:
            raise ValueError(f"reference_arm = {self.reference_arm!r} is not one of the arms")
        if self.first_k not in FIRST_K:
            raise ValueError(f"first_k = {self.first_k} is not recorded; recorded: {FIRST_K}")
        if self.turns_shown < 2:
            raise ValueError(f"turns_shown = {self.turns_shown} must be at least 2")


@dataclass(frozen=True)
class Runs:
    """All runs of the experiments; every table has the columns task, arm, seed first."""

    metrics: pd.DataFrame
    """One row per run and step; `stopped`: a tripwire ended this run."""
    turns: pd.DataFrame
    """One row per run, step and turn; `stopped` as above."""
    evaluations: pd.DataFrame
    """One row per run and evaluation over all questions."""
    finished: pd.DataFrame
    """One row per run that is over: why, the last step of one that a tripwire ended, its seconds,
    and the seed of its warm start (NaN if the manifest does not say)."""


def read_runs(settings: FigureParams, *, partly: bool = False) -> Runs:
    """Read what results/<tier> holds of the experiments; none of them has to be there.

    partly: leave out tasks and arms that are not among the parameters.
    Raises ValueError naming the run if two experiments hold the same one, and, unless `partly`, if
    a task or an arm is not among the parameters, since it would be left out of every figure.
    """
    metrics = _read(settings, "metrics.csv", ["step", *METRICS])
    turns = pd.concat(
        [_read(settings, name, ["step", *TURNS]) for name in ("turns.csv.gz", "turns.csv")],
        ignore_index=True,
    )
    # A stopped run may have written turns of a step whose metrics never came.
    turns = turns.merge(metrics[[*RUN, "step"]], on=[*RUN, "step"])
    evaluations = _read(settings, "eval.csv", ["step", "hops", *EVALUATION])
    evaluations = evaluations[evaluations["hops"].astype(str) == "all"]
    finished = _read_finished(settings)
    if partly:
        metrics, turns, evaluations, finished = (
            table[table["task"].isin(settings.tasks) & table["arm"].isin(settings.arms)]
            for table in (metrics, turns, evaluations, finished)
        )
    _refuse_unlisted(settings, metrics)
    _refuse_repeated(metrics)
    metrics, turns = (_with_stops(table, finished) for table in (metrics, turns))
    return Runs(metrics, turns, evaluations.reset_index(drop=True), finished)


METRICS = ["reward", "entropy", "clip_fraction", "turns", "search_first", "missing_rewards"]
TURNS = [
    "turn",
    "trajectories",
    "answered",
    "answered_correct",
    *(f"entropy_k{k}" for k in FIRST_K),
]
ENDING = ["stop_reason", "stop_step", "seconds", "warm_start_seed"]
EVALUATION = ["exact_match", "questions", "turns", "search_first", "grounded"]


def figure_folder(settings: FigureParams) -> Path:
    """figures/ of the repository for the reference tier, results/<tier>/figures/ otherwise."""
    if settings.tier == "cpu":
        return paths.repository() / "figures"
    return paths.results(settings.tier) / "figures"


def smoothed(
    table: pd.DataFrame, column: str, weight: float, *, by: Sequence[str] = ()
) -> pd.DataFrame:
    """`column` as an EMA along the steps of each run, and of each value of the columns `by`.

    Result: task, arm, seed, *by, step, `column`, in that order of rows, and `stopped` if known.
    """
    keys = [*RUN, *by]
    kept = [name for name in ("stopped",) if name in table]
    ordered = table[[*keys, "step", column, *kept]].sort_values([*keys, "step"], ignore_index=True)
    groups = ordered.groupby(keys, sort=False)[column]
    return ordered.assign(**{column: groups.transform(lambda values: stats.ema(values, weight))})


def turn_entropies(runs: Runs, settings: FigureParams) -> pd.DataFrame:
    """First-k entropy of the turns shown, smoothed: task, arm, seed, turn, step, entropy."""
    shown = runs.turns[runs.turns["turn"] < settings.turns_shown]
    shown = shown.assign(entropy=shown[f"entropy_k{settings.first_k}"])  # not that of whole turns
    return smoothed(shown, "entropy", settings.smoothing, by=["turn"])


def entropies_by_k(runs: Runs, settings: FigureParams) -> pd.DataFrame:
    """Turn-0 entropy for each k, smoothed: task, arm, seed, k, step, entropy.

    Of the k whose entropies are all equal, because no first turn is longer, only the smallest.
    """
    names = {f"entropy_k{k}": k for k in FIRST_K if k <= equal_from(runs)}
    first = runs.turns.loc[runs.turns["turn"] == 0, [*RUN, "step", *names]].rename(columns=names)
    long = first.melt([*RUN, "step"], list(names.values()), var_name="k", value_name="entropy")
    return smoothed(long, "entropy", settings.smoothing, by=["k"])


def equal_from(runs: Runs) -> int:
    """Smallest recorded k from which on the turn-0 entropies are the same in every row."""
    first = runs.turns[runs.turns["turn"] == 0]
    columns = {k: first[f"entropy_k{k}"].to_numpy() for k in FIRST_K}
    longest = columns[FIRST_K[-1]]
    equal = [np.array_equal(columns[k], longest, equal_nan=True) for k in FIRST_K]
    return FIRST_K[max((i + 1 for i, same in enumerate(equal) if not same), default=0)]


def shift_table(runs: Runs, settings: FigureParams) -> pd.DataFrame:
    """One row per run: task, arm, seed, steps, shift_step (NaN: never)."""
    rows = []
    for key, run in runs.metrics.groupby(RUN, sort=True):
        step = stats.shift_step(
            run.sort_values("step")["search_first"],
            threshold=settings.shift_threshold,
            window=settings.shift_window,
        )
        rows.append((*key, len(run), float("nan") if step is None else step))
    return pd.DataFrame(rows, columns=[*RUN, "steps", "shift_step"])


def turn_accuracies(runs: Runs, shifts: pd.DataFrame, settings: FigureParams) -> pd.DataFrame:
    """Accuracy of answering turns and their share, per run, period and turn, pooled over its steps.

    Result: task, arm, seed, period, shifted, turn, trajectories, answered, accuracy, share.
    `answered` counts submitted answers and verified guesses; accuracy is NaN where there is none.
    """
    frames = []
    for run in shifts.itertuples(index=False):
        shift = None if pd.isna(run.shift_step) else int(run.shift_step)
        windows = stats.windows(
            shift, run.steps, length=settings.comparison_window, shift_window=settings.shift_window
        )
        rows = runs.turns[(runs.turns[RUN] == [run.task, run.arm, run.seed]).all(axis=1)]
        for period, steps in (("before", windows.before), ("after", windows.after)):
            frame = rows[rows["step"].isin(steps)].groupby("turn", as_index=False)[_COUNTS].sum()
            frames.append(
                frame.assign(
                    task=run.task,
                    arm=run.arm,
                    seed=run.seed,
                    period=period,
                    shifted=windows.shifted,
                )
            )
    columns = [*RUN, "period", "shifted", "turn", *_COUNTS]
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
    table["accuracy"] = table["answered_correct"] / table["answered"].where(table["answered"] > 0)
    table["share"] = table["answered"] / table["trajectories"]
    return table[[*columns, "accuracy", "share"]]


_COUNTS = ["trajectories", "answered", "answered_correct"]


def _read(settings: FigureParams, name: str, columns: list[str]) -> pd.DataFrame:
    """A table over all experiments, `columns` first; no rows where there are no runs."""
    frames = []
    for experiment in settings.experiments:
        root = paths.results(settings.tier) / experiment
        if results.table_paths(root, name):
            table = results.read_table(root, name)
            first = [*RUN, *columns]
            lacking = sorted({*first} - {*table})
            if lacking:
                where = f"{root}: {name} of its runs"
                raise ValueError(f"{where} lacks {', '.join(lacking)}; delete and rerun them")
            frames.append(table[[*first, *(c for c in table if c not in first)]])
    return pd.concat(frames, ignore_index=True) if frames else _no_rows([*RUN, *columns])


def _read_finished(settings: FigureParams) -> pd.DataFrame:
    frames = []
    for experiment in settings.experiments:
        manifests = results.read_manifests(paths.results(settings.tier) / experiment)
        if len(manifests):
            ends = manifests.reindex(columns=["task", "arm", "run_seed", *ENDING])
            ends = ends.rename(columns={"run_seed": "seed"})
            frames.append(
                ends.astype({name: object if name == ENDING[0] else float for name in ENDING})
            )
    if not frames:
        return _no_rows([*RUN, *ENDING])
    ends = pd.concat(frames, ignore_index=True)
    return ends.assign(stop_reason=ends["stop_reason"].fillna(FINISHED))


def _with_stops(table: pd.DataFrame, finished: pd.DataFrame) -> pd.DataFrame:
    stopped = finished.loc[finished["stop_reason"] != FINISHED, RUN]
    keys = set(stopped.itertuples(index=False, name=None))
    return table.assign(stopped=[k in keys for k in table[RUN].itertuples(index=False, name=None)])


def _no_rows(columns: list[str]) -> pd.DataFrame:
    """An empty table whose columns can be merged with those of a filled one."""
    types = {"task": str, "arm": str, "seed": int, "step": int, "hops": str, "stop_reason": str}
    return pd.DataFrame({name: pd.Series(dtype=types.get(name, float)) for name in columns})


def _refuse_unlisted(settings: FigureParams, metrics: pd.DataFrame) -> None:
    for column, listed in (("task", settings.tasks), ("arm", settings.arms)):
        found = sorted(set(metrics[column]) - set(listed))
        if found:
            raise ValueError(f"results hold the {column} {found[0]!r}, which no figure would show; "
                             f"add it to the parameter {column}s")  # fmt: skip


def _refuse_repeated(metrics: pd.DataFrame) -> None:
    repeated = metrics[metrics.duplicated([*RUN, "step"])]
    if len(repeated):
        task, arm, seed = repeated.iloc[0][RUN]
        raise ValueError(f"{task}/{arm}/seed_{seed} lies in two of the experiments")
