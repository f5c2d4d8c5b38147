"""The claims judged by the table of runs, and how many seeds would decide those left open."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import pvariance
from typing import Any

import pandas as pd

from turncredit import paths, stats
from turncredit.claims import FEWEST_SEEDS, NOT_TESTABLE, ROW, Claim, Measurement, judge
from turncredit.plots.rollout_rows import MEASURES
from turncredit.report.run_table import FILES, PROBE, probe_file
from turncredit.report.versions import SHOWN

COLUMNS = (*ROW, "seeds_needed", "resolvable")
"""Columns of claims.csv."""

_MOST = 1_000_000
"""Seeds beyond which a question counts as out of reach."""


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
    seeds_needed, resolvable: see there, for a number without a verdict; else NaN.
    """
    rows, asked = [], {"alpha": 1 - level, "power": power}
    for claim in claims:
        sources = table.assign(run=_sources(claim, table, tier))
        for row in judge([claim], sources, level=level):
            beyond = {"seeds_needed": math.nan, "resolvable": math.nan}
            if row["task"]:
                row["reason"] += _doubts(claim.test, row, table, tier)
            if row["verdict"] == NOT_TESTABLE and not math.isnan(row["ours"]):
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
    `FEWEST_SEEDS`.  NaN where these do not tell: no spread, no distance, one arm's share, a ratio
    of spreads, or out of reach.
    """
    arms = _arms(test, task, table)
    if test.rule == "share_difference":
        rates = [float(arm.mean()) for arm in arms]
        if any(map(math.isnan, rates)) or rates[0] == rates[1]:
            return math.nan
        found = stats.seeds_for_rates(*rates, alpha=alpha, power=power, test="normal")
        return float(max(found, FEWEST_SEEDS))
    if test.rule not in ("mean", "difference"):
        return math.nan
    values = arms[0] - arms[1] if test.rule == "difference" else arms[0]
    sd = _spread(values, table[table["task"] == task])
    effect = float(values.mean()) if test.effect is None else test.effect
    distance = min(abs(effect - bound) for bound in test.inside if bound is not None)
    return float(max(_seeds_for(distance / sd, alpha, power), FEWEST_SEEDS)) if sd > 0 else math.nan


def resolvable(
    test: Measurement, task: str, table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The distance from the bound of a claim that the seeds at hand would have decided.

    With this power, in the claim's unit.  Means: `stats.detectable_mean_difference` of their spread
    within warm starts; shares of two arms: from the reference's to the nearest rate on the claimed
    side that Fisher's test tells from it (`stats.detectable_rate`).  NaN for other rules, fewer
    than two seeds, no spread, or if no rate is far enough.
    """
    arms = _arms(test, task, table)
    if test.rule == "share_difference":
        rate, seeds = float(arms[1].mean()), int(min(arm.count() for arm in arms))
        if not seeds:
            return math.nan
        lower = test.inside[0] is None
        return abs(rate - stats.detectable_rate(rate, seeds, alpha=alpha, power=power, lower=lower))
    if test.rule not in ("mean", "difference"):
        return math.nan
    values = (arms[0] - arms[1] if test.rule == "difference" else arms[0]).dropna()
    sd = _spread(values, table[table["task"] == task])
    if not sd > 0:
        return math.nan
    return stats.detectable_mean_difference(sd, len(values), alpha=alpha, power=power, paired=True)


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
    """Fewest seeds whose t test of one mean finds `ratio` standard deviations; NaN beyond _MOST."""

    def suffices(seeds: int) -> bool:
        return stats.mean_power(ratio, 1.0, seeds, alpha=alpha, paired=True) >= power

    low, high = 1, 2
    while not suffices(high):
        low, high = high, 2 * high
        if high > _MOST:
            return math.nan
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return float(high)


def _arms(test: Measurement, task: str, table: pd.DataFrame) -> list[pd.Series]:
    """The number of each run that counts, by seed, of the arm and of the reference if there is."""
    found = []
    for arm in filter(None, (test.arm, test.reference)):
        runs = table[(table["task"] == task) & (table["arm"] == arm)].set_index("seed")
        if test.among == "shifted":
            runs = runs[runs["shifted"] == 1]
        parts = (factor * runs[name].astype(float) for name, factor in test.quantity.items())
        found.append(sum(parts))
    return found


def _doubts(test: Measurement, row: dict[str, Any], table: pd.DataFrame, tier: str) -> str:
    """What else to know of a test, each after a semicolon."""
    runs = table[(table["task"] == row["task"]) & table["arm"].isin([test.arm, test.reference])]
    doubts = []
    if row["seeds"] == 0 or row["missing"]:
        doubts += _absent(test, runs, tier)
    codes = sorted({str(code)[:SHOWN] for code in runs.get("code_hash", ())})
    if len(codes) > 1:
        doubts.append(f"the runs come from {len(codes)} versions of the code: {', '.join(codes)}")
    return "".join(f"; {doubt}" for doubt in doubts)


def _absent(test: Measurement, runs: pd.DataFrame, tier: str) -> list[str]:
    """The tables that a number is read from and that are missing here."""
    if test.rule == "probe":
        return [] if probe_file(tier).exists() else [f"missing here: {PROBE}/agreement.csv"]
    below = paths.results(tier)
    lost = {
        name: sum(
            not (below / Path(*Path(_file(run, name)).parts[2:])).exists() for run in runs["run"]
        )
        for name in sorted({FILES[quantity] for quantity in test.quantity})
    }
    lost = {name: "one run" if n == 1 else f"{n} runs" for name, n in lost.items() if n}
    return [f"missing here: {name} of {runs}" for name, runs in lost.items()]


def _sources(claim: Claim, table: pd.DataFrame, tier: str) -> pd.Series:
    """The files of each run that the claim's number is read from, separated by a blank."""
    quantity = claim.test.quantity if claim.test.KIND == "measured" else {}
    if any(name.startswith("probe_") for name in quantity):
        return pd.Series(f"results/{tier}/{PROBE}/agreement.csv", index=table.index)
    files = sorted({FILES[name] for name in quantity})
    return sum(
        (" " + table["run"].map(lambda run, name=name: _file(run, name)) for name in files),
        table["run"].str[:0],
    ).str.strip()


def _file(run: str, name: str) -> str:
    """The path of a run's table; MEASURES lies in the folder of its notebook.

    >>> _file("results/cpu/16_aepo/map/aepo/seed_0", "measures.csv")
    'results/cpu/16_aepo/measures.csv'
    """
    return f"{run.rsplit('/', 3)[0] if name == MEASURES else run}/{name}"
