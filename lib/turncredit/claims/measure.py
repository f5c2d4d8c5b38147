"""The number of a claim, out of the table of outcomes."""

import math
from dataclasses import dataclass

import pandas as pd

from turncredit import stats
from turncredit.claims.records import KEYS, Measurement


@dataclass(frozen=True)
class Measured:
    """A number with its interval, and what it rests on."""

    value: float
    low: float
    high: float
    seeds: int
    """Seeds with a number: pairs for a difference, else of the arm that has fewer."""
    missing: int
    """Seeds of the table without one."""
    runs: str
    """Files the numbers came from."""


def columns(measurement: Measurement) -> list[str]:
    """The columns of the table of outcomes that a measurement reads, beside the keys."""
    names = list(measurement.quantity)
    ends = ("low", "high") if measurement.rule == "probe" else ()
    shifted = ["shifted"] if measurement.among == "shifted" else []
    return [*names, *(f"{names[0]}_{end}" for end in ends), *shifted]


def measure(
    measurement: Measurement, task: str, table: pd.DataFrame, *, level: float, seed: int
) -> Measured:
    """Apply the rule to the runs of one task; NaN where there are none.

    Raises ValueError if a run is in the table twice.
    """
    names = [measurement.arm, *([measurement.reference] if measurement.reference else [])]
    arms = [_runs(measurement, table, task, name) for name in names]
    if measurement.rule == "probe":
        return _probed(arms[0])
    known = [int(arm["value"].notna().sum()) for arm in arms]
    missing = sum(map(len, arms)) - sum(known)
    found, seeds = _RULES[measurement.rule](arms, level, seed), min(known)
    if measurement.rule == "difference":
        seeds, missing = found.n, found.missing
    runs = _files(pd.concat(arms)["run"])
    return Measured(found.value, found.low, found.high, seeds, missing, runs)


def _runs(measurement: Measurement, table: pd.DataFrame, task: str, arm: str) -> pd.DataFrame:
    """Seed, block, run and `value` of the runs that count."""
    runs = table[(table["task"] == task) & (table["arm"] == arm)].sort_values("seed")
    repeated = runs.loc[runs["seed"].duplicated(), "seed"]
    if len(repeated):
        raise ValueError(f"{task}/{arm}/seed_{repeated.iloc[0]} is in the table twice")
    if measurement.among == "shifted":
        runs = runs[runs["shifted"] == 1]
    parts = [factor * runs[name].astype(float) for name, factor in measurement.quantity.items()]
    found = runs[[*KEYS]].assign(value=sum(parts))  # NaN in a part is NaN in the sum
    if measurement.rule == "probe":
        (name,) = measurement.quantity
        found = found.assign(low=runs[f"{name}_low"], high=runs[f"{name}_high"])
    return found


def _by_block(runs: pd.DataFrame) -> dict:
    return stats.by_block(runs["value"], runs["block"])


def _probed(runs: pd.DataFrame) -> Measured:
    """The number of the only run that has one, with its own interval; of several, their mean."""
    runs = runs[runs["value"].notna()]
    ends = (math.nan, math.nan)
    if len(runs) == 1:
        ends = float(runs["low"].iloc[0]), float(runs["high"].iloc[0])
    return Measured(float(runs["value"].mean()), *ends, len(runs), 0, _files(runs["run"]))


def _mean(arms: list[pd.DataFrame], level: float, seed: int) -> stats.Interval:
    return stats.block_mean(_by_block(arms[0]), level=level, seed=seed)


def _difference(arms: list[pd.DataFrame], level: float, seed: int) -> stats.Interval:
    blocks = {s: b for arm in arms for s, b in zip(arm["seed"], arm["block"], strict=True)}
    pairs = [dict(zip(arm["seed"], arm["value"], strict=True)) for arm in arms]
    return stats.block_paired_difference(*pairs, blocks, level=level, seed=seed)


def _share(arms: list[pd.DataFrame], level: float, seed: int) -> stats.Estimate:
    return stats.block_rate(stats.count_blocks(_by_block(arms[0])), level=level)


def _share_difference(arms: list[pd.DataFrame], level: float, seed: int) -> stats.Estimate:
    rates = [stats.count_blocks(_by_block(arm)) for arm in arms]
    return stats.block_rate_difference(*rates, level=level)


def _sd_ratio(arms: list[pd.DataFrame], level: float, seed: int) -> stats.Estimate:
    return stats.sd_ratio(*map(_by_block, arms), level=level)


_RULES = {
    "mean": _mean,
    "share": _share,
    "difference": _difference,
    "share_difference": _share_difference,
    "sd_ratio": _sd_ratio,
}


def _files(runs: pd.Series) -> str:
    """The files, those of all seeds of a folder as one: seed_3 becomes seed_*.

    Nothing for a run whose file is not known.
    """
    known = {str(run) for run in runs if not (isinstance(run, float) and math.isnan(run))}
    return " ".join(sorted({_any_seed(run) for run in known}))


def _any_seed(run: str) -> str:
    parts = run.split("/")
    return "/".join("seed_*" if part.startswith("seed_") else part for part in parts)
