"""The claims judged by the table of runs, and how many seeds would decide those left open."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from turncredit import stats
from turncredit.claims import NOT_TESTABLE, ROW, Claim, Measurement, judge
from turncredit.report.run_table import FILES, PROBE

COLUMNS = (*ROW, "seeds_needed")
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
    seeds_needed: see `seeds_needed`, for a number without a verdict; else NaN.
    """
    rows = []
    for claim in claims:
        sources = table.assign(run=_sources(claim, table, tier))
        for row in judge([claim], sources, level=level):
            needed = math.nan
            if row["verdict"] == NOT_TESTABLE and not math.isnan(row["ours"]):
                needed = seeds_needed(claim.test, row["task"], table, alpha=1 - level, power=power)
            rows.append(row | {"seeds_needed": needed})
    return rows


def seeds_needed(
    test: Measurement, task: str, table: pd.DataFrame, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Seeds of each arm that would decide a claim with this power if its effect is the true one.

    The effect is the published one or, where none was, the one seen here, which is a guess that
    the seeds at hand allow.  Means: `stats.mean_power` at the distance from the effect to the
    nearest bound of the claim, with the spread over the seeds at hand; shares of two arms:
    `stats.seeds_for_rates` of the rates seen.  Never fewer than the claim asks for.  NaN where
    these do not tell: no spread, no distance, one arm's share, a ratio of spreads, or out of reach.
    """
    arms = [_values(test, task, table, arm) for arm in (test.arm, test.reference) if arm]
    if test.rule == "share_difference":
        rates = [float(arm.mean()) for arm in arms]
        if any(map(math.isnan, rates)) or rates[0] == rates[1]:
            return math.nan
        found = stats.seeds_for_rates(*rates, alpha=alpha, power=power, test="normal")
        return float(max(found, test.seeds))
    if test.rule not in ("mean", "difference"):
        return math.nan
    values = arms[0] - arms[1] if test.rule == "difference" else arms[0]
    sd, effect = float(values.std()), float(values.mean()) if test.effect is None else test.effect
    distance = min(abs(effect - bound) for bound in test.inside if bound is not None)
    return float(max(_seeds_for(distance / sd, alpha, power), test.seeds)) if sd > 0 else math.nan


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


def _values(test: Measurement, task: str, table: pd.DataFrame, arm: str) -> pd.Series:
    """The number of each run that counts, by seed."""
    runs = table[(table["task"] == task) & (table["arm"] == arm)].set_index("seed")
    if test.among == "shifted":
        runs = runs[runs["shifted"] == 1]
    return sum(factor * runs[name].astype(float) for name, factor in test.quantity.items())


def _sources(claim: Claim, table: pd.DataFrame, tier: str) -> pd.Series:
    """The files of each run that the claim's number is read from, separated by a blank."""
    quantity = claim.test.quantity if claim.test.KIND == "measured" else {}
    if any(name.startswith("probe_") for name in quantity):
        return pd.Series(f"results/{tier}/{PROBE}/agreement.csv", index=table.index)
    files = sorted({FILES[name] for name in quantity})
    return sum(
        (" " + table["run"] + "/" + name for name in files), table["run"].str[:0]
    ).str.strip()
