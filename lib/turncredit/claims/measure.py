"""The number of a claim, out of the table of outcomes."""

import math
from dataclasses import dataclass

import pandas as pd

from turncredit import stats
from turncredit.claims.records import KEYS, Measurement, arms_of, quantity_range

FEWEST_FOR_INTERVAL = 3
"""Seeds of an arm with fewer of which no interval of a mean is given."""


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
    cut: tuple[float, float] | None = None
    """Least and greatest value there can be, where the interval went beyond and is cut to them."""
    own: tuple[float, float, float] | None = None
    """For a claim with `own_below`: the share of the arm's own runs, with its interval."""
    states: int | None = None
    """For a probe: the states its interval is taken over."""


def columns(measurement: Measurement) -> list[str]:
    """The columns of the table of outcomes that a measurement reads, beside the keys."""
    names = list(measurement.quantity)
    probed = [f"{names[0]}_low", f"{names[0]}_high", "probe_states"]
    shifted = ["shifted"] if measurement.among == "shifted" else []
    return [*names, *(probed if measurement.rule == "probe" else ()), *shifted]


def measure(
    measurement: Measurement, task: str, table: pd.DataFrame, *, level: float, seed: int
) -> Measured:
    """Apply the rule to the runs of one task; NaN where there are none.

    Raises ValueError if a run is in the table twice.
    """
    arms = [_runs(measurement, table, *asked) for asked in arms_of(measurement, task)]
    if measurement.rule == "probe":
        return _probed(arms[0])
    known = [int(arm["value"].notna().sum()) for arm in arms]
    missing = sum(map(len, arms)) - sum(known)
    found, seeds = _RULES[measurement.rule](arms, level, seed), min(known)
    if measurement.rule == "difference":
        seeds, missing = found.n, found.missing
    runs, own = _files(pd.concat(arms)["run"]), None
    ends, cut = _possible(measurement, (found.low, found.high), seeds)
    if measurement.own_below is not None:
        share = _share(arms, level, seed)
        own = (share.value, share.low, share.high)
    return Measured(found.value, *ends, seeds, missing, runs, cut, own)


def value_range(measurement: Measurement) -> tuple[float, float]:
    """Least and greatest value that the measured number can have."""
    ranges = [(f, *quantity_range(name)) for name, f in measurement.quantity.items()]
    least = sum(min(f * low, f * high) for f, low, high in ranges)
    greatest = sum(max(f * low, f * high) for f, low, high in ranges)
    if measurement.rule in ("difference", "share_difference"):
        return least - greatest, greatest - least
    return (0.0, math.inf) if measurement.rule == "sd_ratio" else (least, greatest)


def _possible(
    measurement: Measurement, ends: tuple[float, float], seeds: int
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """The interval within what the number can be, and that range if it went beyond; no interval of
    a mean from fewer than `FEWEST_FOR_INTERVAL` seeds.
    """
    if measurement.rule in ("mean", "difference") and seeds < FEWEST_FOR_INTERVAL:
        return (math.nan, math.nan), None
    least, greatest = value_range(measurement)
    if not (ends[0] < least or ends[1] > greatest):
        return ends, None
    return (max(ends[0], least), min(ends[1], greatest)), (least, greatest)


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
        found = found.assign(states=runs["probe_states"])
    return found


def _by_block(runs: pd.DataFrame) -> dict:
    return stats.by_block(runs["value"], runs["block"])


def _probed(runs: pd.DataFrame) -> Measured:
    """The number of the only policy that has one, with its own interval; of several, their mean."""
    runs = runs[runs["value"].notna()]
    ends, states = (math.nan, math.nan), None
    if len(runs) == 1:
        ends = float(runs["low"].iloc[0]), float(runs["high"].iloc[0])
        states = int(runs["states"].iloc[0])
    found = (float(runs["value"].mean()), *ends, len(runs), 0, _files(runs["run"]))
    return Measured(*found, states=states)


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
