"""The claims judged by the table of runs, and how many seeds would decide those left open."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import pvariance
from typing import Any

import pandas as pd

from turncredit import paths, stats
from turncredit.claims import (
    FEWEST_SEEDS,
    NOT_TESTABLE,
    PROBED,
    ROW,
    Claim,
    Measurement,
    arms_of,
    judge,
)
from turncredit.claims.measure import value_range
from turncredit.plots.rollout_rows import MEASURES
from turncredit.report.probe_table import model_note, model_source, probe_source, source_files
from turncredit.report.run_table import FILES
from turncredit.report.versions import SHOWN

COLUMNS = (*ROW, "seeds_needed", "resolvable")
"""Columns of claims.csv."""

MOST_SEEDS = 1000
"""Seeds beyond which their number is not told: it would rest on a spread that is a guess itself."""


def claim_rows(
    claims: Sequence[Claim],
    table: pd.DataFrame,
    tier: str,
    *,
    level: float = 0.95,
    power: float = 0.8,
) -> list[dict[str, Any]]:
    """One row (COLUMNS) per claim and task, as `claims.judge` decides, in order.

    table: see `run_table`.  run: the tables that the number was read from, from results/ on.
    reason: also says which tables are not here, as in a clone, which holds the small ones alone,
    and that the runs compared are of several versions of the code.
    seeds_needed, resolvable: see there, for a number without a verdict from at least `FEWEST_SEEDS`
    seeds, since the spread of fewer says nothing; else NaN.
    """
    rows, asked = [], {"alpha": 1 - level, "power": power}
    for claim in claims:
        sources = table.assign(run=_sources(claim, table, tier))
        for row in judge([claim], sources, level=level):
            beyond = {"seeds_needed": math.nan, "resolvable": math.nan}
            if row["task"]:
                row["reason"] += _doubts(claim.test, row, table, tier)
            known = not math.isnan(row["ours"]) and row["seeds"] >= FEWEST_SEEDS
            if row["verdict"] == NOT_TESTABLE and known:
                beyond = {
                    "seeds_needed": seeds_needed(claim.test, row["task"], table, **asked),
                    "resolvable": resolvable(claim.test, row["task"], table, **asked),
                }
            rows.append(row | beyond)
    return rows


def seeds_needed(
    test: Measurement, task: str, table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Seeds of each arm that would decide a claim with this power if its effect is the true one.

    The effect is the published one or, where none was, the one seen here, which is a guess that
    the seeds at hand allow.  Means: `stats.mean_power` at the distance from the effect to the
    nearest bound of the claim, with the spread of the seeds at hand within warm starts; shares of
    two arms: `stats.seeds_for_rates` of the rates seen, approximately.  Never fewer than
    `FEWEST_SEEDS`; infinite for more than `MOST_SEEDS`.  NaN where these do not tell: fewer than
    `FEWEST_SEEDS` of an arm, no spread, no distance, one arm's share, or a ratio of spreads.
    """
    arms = _arms(test, task, table)
    if _few(test, arms):
        return math.nan
    if test.rule == "share_difference":
        rates = [float(arm.mean()) for arm in arms]
        if any(map(math.isnan, rates)) or rates[0] == rates[1]:
            return math.nan
        found = stats.seeds_for_rates(*rates, alpha=alpha, power=power, test="normal")
        return float(max(found, FEWEST_SEEDS)) if found <= MOST_SEEDS else math.inf
    if test.rule not in ("mean", "difference"):
        return math.nan
    values = arms[0] - arms[1] if test.rule == "difference" else arms[0]
    sd = _spread(values, table[table["task"] == task])
    effect = float(values.mean()) if test.effect is None else test.effect
    distance = min(abs(effect - bound) for bound in test.inside if bound is not None)
    if not (sd > 0 and distance > 0):
        return math.nan
    return float(max(_seeds_for(distance / sd, alpha, power), FEWEST_SEEDS))


def resolvable(
    test: Measurement, task: str, table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The distance from the bound of a claim that the seeds at hand would have decided.

    With this power, in the claim's unit.  Means: `stats.detectable_mean_difference` of their spread
    within warm starts; shares of two arms: from the reference's to the nearest rate on the claimed
    side that Fisher's test tells from it (`stats.detectable_rate`).  NaN for other rules, fewer
    than `FEWEST_SEEDS`, no spread, or if no number that far is possible.
    """
    arms = _arms(test, task, table)
    if _few(test, arms):
        return math.nan
    if test.rule == "share_difference":
        rate, seeds = float(arms[1].mean()), int(min(arm.count() for arm in arms))
        lower = test.inside[0] is None
        return abs(rate - stats.detectable_rate(rate, seeds, alpha=alpha, power=power, lower=lower))
    if test.rule not in ("mean", "difference"):
        return math.nan
    values = (arms[0] - arms[1] if test.rule == "difference" else arms[0]).dropna()
    sd = _spread(values, table[table["task"] == task])
    if not sd > 0:
        return math.nan
    found = stats.detectable_mean_difference(sd, len(values), alpha=alpha, power=power, paired=True)
    least, greatest = value_range(test)
    return found if found <= greatest - least else math.nan


def _few(test: Measurement, arms: Sequence[pd.Series]) -> bool:
    """Whether fewer than FEWEST_SEEDS have a number: pairs of a difference, else of either arm."""
    if test.rule == "difference":
        arms = [arms[0] - arms[1]]
    return min(arm.count() for arm in arms) < FEWEST_SEEDS


def _spread(values: pd.Series, table: pd.DataFrame) -> float:
    """Standard deviation of values by seed within warm starts, as the verdict's interval has it.

    Over all seeds where no warm start has two of them.
    """
    known, blocks = values.dropna(), table.drop_duplicates("seed").set_index("seed")["block"]
    groups = stats.by_block(known, blocks.reindex(known.index)).values()
    freedom = len(known) - len(groups)
    if freedom < 1:
        return float(known.std())
    return math.sqrt(sum(len(group) * pvariance(group) for group in groups) / freedom)


def _seeds_for(ratio: float, alpha: float, power: float) -> float:
    """Fewest seeds whose t test of one mean finds `ratio` deviations; infinite above MOST_SEEDS."""

    def suffices(seeds: int) -> bool:
        return stats.mean_power(ratio, 1.0, seeds, alpha=alpha, paired=True) >= power

    low, high = 1, MOST_SEEDS
    if not suffices(high):
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return float(high)


def _arms(test: Measurement, task: str, table: pd.DataFrame) -> list[pd.Series]:
    """The number of each run that counts, by seed, of the arm and of the reference if there is."""
    found = []
    for where, arm in arms_of(test, task):
        runs = table[(table["task"] == where) & (table["arm"] == arm)].set_index("seed")
        if test.among == "shifted":
            runs = runs[runs["shifted"] == 1]
        parts = (factor * runs[name].astype(float) for name, factor in test.quantity.items())
        found.append(sum(parts))
    return found


def _doubts(test: Measurement, row: dict[str, Any], table: pd.DataFrame, tier: str) -> str:
    """What else to know of a test, each after a semicolon."""
    asked = arms_of(test, row["task"])
    counts = [pair in asked for pair in zip(table["task"], table["arm"], strict=True)]
    runs = table[pd.Series(counts, index=table.index, dtype=bool)]
    doubts = [model_note(tier)] if test.rule == "probe" and row["seeds"] else []
    if row["seeds"] == 0 or row["missing"]:
        doubts += _absent(test, runs, tier)
    codes = sorted({str(code)[:SHOWN] for code in runs.get("code_hash", ())})
    if len(codes) > 1:
        doubts.append(f"the runs come from {len(codes)} versions of the code: {', '.join(codes)}")
    return "".join(f"; {doubt}" for doubt in doubts)


def _absent(test: Measurement, runs: pd.DataFrame, tier: str) -> list[str]:
    """The tables that a number is read from and that are missing here."""
    if set(PROBED) & set(test.quantity):
        source = _probed_source(test, tier)
        return [] if source_files(source, tier) else [f"missing here: {source}"]
    below = paths.results(tier)
    lost = {
        name: sum(
            not (below / Path(*Path(_file(run, name)).parts[2:])).exists() for run in runs["run"]
        )
        for name in _tables(test)
    }
    lost = {name: "one run" if n == 1 else f"{n} runs" for name, n in lost.items() if n}
    return [f"missing here: {name} of {runs}" for name, runs in lost.items()]


def _tables(test: Measurement) -> list[str]:
    """Names of the tables of a run that its number is read from."""
    return sorted({name for quantity in test.quantity for name in FILES[quantity]})


def _sources(claim: Claim, table: pd.DataFrame, tier: str) -> pd.Series:
    """The files of each run that the claim's number is read from, separated by a blank."""
    if claim.test.KIND != "measured":
        return table["run"].str[:0]
    if set(PROBED) & set(claim.test.quantity):
        return pd.Series(_probed_source(claim.test, tier), index=table.index)
    return sum(
        (
            " " + table["run"].map(lambda run, name=name: _file(run, name))
            for name in _tables(claim.test)
        ),
        table["run"].str[:0],
    ).str.strip()


def _probed_source(test: Measurement, tier: str) -> str:
    return model_source(tier) if test.rule == "probe" else probe_source(tier)


def _file(run: str, name: str) -> str:
    """The path of a run's table; MEASURES lies in the folder of its notebook.

    >>> _file("results/cpu/16_aepo/map/aepo/seed_0", "measures.csv")
    'results/cpu/16_aepo/measures.csv'
    """
    return f"{run.rsplit('/', 3)[0] if name == MEASURES else run}/{name}"
