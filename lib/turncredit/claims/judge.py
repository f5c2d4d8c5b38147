"""Verdicts: reproduced, not reproduced, or not testable here, by rule and with the reason.

The interval decides.  Reproduced: it lies wholly where the claim holds.  Not reproduced: it lies
wholly where the claim does not hold (contradicted), or it leaves open whether the claim holds but
excludes the effect that was published (ruled out).  Else these seeds cannot tell, which is no
verdict on the claim: not testable here, and the reason says "undecided at n seeds".  No claim asks
for a number of seeds of its own: few seeds have a wide interval.  No runs, no number, no interval
or fewer than `FEWEST_SEEDS` are not testable here as well, never a verdict.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from turncredit.claims.measure import Measured, columns, measure
from turncredit.claims.records import KEYS, Claim, Measurement

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable here"

FEWEST_SEEDS = 4
"""Of each arm; fewer are never a verdict, since what three of them share may be chance."""

ROW = (
    *"claim task source sentence published ours low high level".split(),
    *"seeds missing unit verdict reason run".split(),
)
"""Columns of the table of claims."""


def judge(
    claims: Sequence[Claim], table: pd.DataFrame, *, level: float = 0.95, seed: int = 0
) -> list[dict[str, Any]]:
    """One row (`ROW`) per claim and task, in order; one without a task if it cannot be tested.

    table: one row per run with the columns `KEYS` and those `QUANTITIES` that there are.  Claims
    about others are not testable here.  level: of every interval; nothing corrects for the number
    of claims (`stats.holm`).  seed: of the bootstrap.
    Raises ValueError for a missing key column, or a run that is there twice.
    """
    absent = [name for name in KEYS if name not in table]
    if absent:
        raise ValueError(f"the table of outcomes has no column {absent[0]!r}")
    rows = []
    for claim in claims:
        if claim.test.KIND == "measured":
            rows += [_judged(claim, task, table, level, seed) for task in claim.test.tasks]
        else:
            rows.append(_row(claim, "", None, level, NOT_TESTABLE, claim.test.reason))
    return rows


def decide(measured: Measured, measurement: Measurement) -> tuple[str, str]:
    """Verdict and reason from the interval, the number of seeds and the published effect."""
    verdict, reason = _decided(measured, measurement)
    return verdict, f"{reason}; {measurement.note}" if measurement.note else reason


def _decided(measured: Measured, measurement: Measurement) -> tuple[str, str]:
    """Without the note."""
    seeds, probed = measured.seeds, measurement.rule == "probe"
    basis = "over the states of one run" if probed else f"at {seeds} seeds"
    if seeds == 0:
        return NOT_TESTABLE, "no run has this number"
    if seeds < FEWEST_SEEDS and not probed:
        return NOT_TESTABLE, f"seeds with this number: {seeds}, needed: {FEWEST_SEEDS}"
    if any(map(math.isnan, (measured.value, measured.low, measured.high))):
        return NOT_TESTABLE, f"no interval {basis}"
    least, greatest = measurement.inside
    above, below = (
        least is None or measured.low > least,
        greatest is None or measured.high < greatest,
    )
    claimed = _region(measurement.inside)
    if above and below:
        return REPRODUCED, f"the interval lies {claimed}"
    # Equal runs on the very bound, such as two arms that never act, contradict nothing.
    if (least is not None and measured.low < least >= measured.high) or (
        greatest is not None and measured.high > greatest <= measured.low
    ):
        return NOT_REPRODUCED, f"contradicted: no part of the interval lies {claimed}"
    effect = measurement.effect
    if effect is not None and not measured.low <= effect <= measured.high:
        return NOT_REPRODUCED, f"the published effect of {effect:g} is ruled out"
    return NOT_TESTABLE, f"undecided {basis}: the interval lies only partly {claimed}"


def _judged(
    claim: Claim, task: str, table: pd.DataFrame, level: float, seed: int
) -> dict[str, Any]:
    absent = [name for name in columns(claim.test) if name not in table]
    if absent:
        ends = f"; {claim.test.note}" if claim.test.note else ""
        reason = f"the outcomes have no column {absent[0]}{ends}"
        return _row(claim, task, None, level, NOT_TESTABLE, reason)
    measured = measure(claim.test, task, table, level=level, seed=seed)
    return _row(claim, task, measured, level, *decide(measured, claim.test))


def _row(
    claim: Claim, task: str, measured: Measured | None, level: float, verdict: str, reason: str
) -> dict[str, Any]:
    found = measured or Measured(math.nan, math.nan, math.nan, 0, 0, "")
    published = "; ".join(f"{name} {value:g}" for name, value in claim.published.items())
    values = (
        *(claim.id, task, f"{claim.source}, {claim.where}", claim.sentence, published),
        *(found.value, found.low, found.high, level, found.seeds, found.missing),
        *(claim.unit, verdict, reason, found.runs),
    )
    return dict(zip(ROW, values, strict=True))


def _region(inside: tuple[float | None, ...]) -> str:
    least, greatest = inside
    if greatest is None:
        return f"above {least:g}"
    return f"below {greatest:g}" if least is None else f"between {least:g} and {greatest:g}"
