"""Verdicts: reproduced, direction only, not reproduced, or not testable here, by rule.

`RULE` says the whole of it; the report prints the same sentences.  No claim asks for a number of
seeds of its own: few seeds have a wide interval.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from turncredit.claims.measure import FEWEST_FOR_INTERVAL, Measured, columns, measure
from turncredit.claims.records import KEYS, Claim, Measurement

REPRODUCED = "reproduced"
DIRECTION_ONLY = "direction only"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable here"
VERDICTS = (REPRODUCED, DIRECTION_ONLY, NOT_REPRODUCED, NOT_TESTABLE)

FEWEST_SEEDS = 4
"""Of each arm; fewer are never a verdict, since what three of them share may be chance."""

FEWEST_STATES = 64
"""Of a policy that is probed untrained, so that states and not seeds are what varies: as many as
the published probe has."""

RULE = (
    "The interval decides. Reproduced: it lies wholly where the claim holds and, where the source "
    "gives the size of the same quantity, holds that size. Direction only: it lies wholly where "
    "the claim holds and excludes the published size (where a claim is a range, the range is the "
    "size). Not reproduced: no part of it lies where the "
    "claim holds (contradicted), or it leaves open whether the claim holds and excludes the "
    "published size (ruled out). A claim that a method prevents something also asks that the share "
    "of the method's own runs in which it happens lies below a stated limit, and is contradicted "
    "where no part of that share's interval does. All else is not testable here: an interval that "
    "lies only partly where the claim holds (undecided), no runs, no number, or fewer than "
    f"{FEWEST_SEEDS} seeds of an arm. A probe of a policy that is not trained has no seeds: it is "
    f"judged over its states, at least {FEWEST_STATES} of them. An interval of a mean is cut to "
    f"what the quantity can be, and none is given from fewer than {FEWEST_FOR_INTERVAL} seeds."
)
"""How every verdict comes about."""

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
    states = measured.states is not None and f"over {measured.states} states"
    told = [states] if states and states not in reason else []
    parts = [reason, *told, *_cut(measured), *([measurement.note] if measurement.note else [])]
    return verdict, "; ".join(parts)


def _decided(measured: Measured, measurement: Measurement) -> tuple[str, str]:
    """Without what is added to every reason."""
    short = _too_little(measured, measurement)
    if short:
        return NOT_TESTABLE, short
    inside, seen = measurement.inside, (measured.low, measured.high)
    sides = [_side(seen, inside)]
    if measurement.own_below is not None:
        own, limit = measured.own[1:], (None, measurement.own_below)
        sides.append(_side(own, limit))
        if sides[1] == "outside":
            return NOT_REPRODUCED, f"contradicted: {_own(measured, measurement)}"
    if sides[0] == "outside":
        return NOT_REPRODUCED, f"contradicted: no part of the interval lies {_region(inside)}"
    effect = measurement.effect
    excluded = effect is not None and not measured.low <= effect <= measured.high
    if sides[0] == "within" and excluded and None in inside:
        return DIRECTION_ONLY, (
            f"direction only: the interval lies {_region(inside)} and excludes the published "
            f"{effect:g}"
        )
    if set(sides) == {"within"}:
        told = "" if len(sides) == 1 else f"; {_own(measured, measurement)}"
        return REPRODUCED, f"the interval lies {_region(inside)}{told}"
    if excluded:
        return NOT_REPRODUCED, f"the published effect of {effect:g} is ruled out"
    if sides[0] == "within":
        return NOT_TESTABLE, f"undecided {_basis(measured)}: {_own(measured, measurement)}"
    return NOT_TESTABLE, (
        f"undecided {_basis(measured)}: the interval lies only partly {_region(inside)}"
    )


def _too_little(measured: Measured, measurement: Measurement) -> str:
    """Why these runs cannot be judged at all; "" if they can."""
    if measured.seeds == 0:
        return "no run has this number"
    if measurement.rule == "probe":
        if measured.states is not None and measured.states < FEWEST_STATES:
            return f"states with this number: {measured.states}, needed: {FEWEST_STATES}"
    elif measured.seeds < FEWEST_SEEDS:
        return f"seeds with this number: {measured.seeds}, needed: {FEWEST_SEEDS}"
    numbers = (measured.value, measured.low, measured.high)
    return f"no interval {_basis(measured)}" if any(map(math.isnan, numbers)) else ""


def _basis(measured: Measured) -> str:
    if measured.states is not None:
        return f"over {measured.states} states of one policy"
    return f"at {measured.seeds} seeds"


def _side(ends: tuple[float, float], inside: tuple[float | None, ...]) -> str:
    """Where an interval lies: "within" the region, "outside" or "across" its bound."""
    (low, high), (least, greatest) = ends, inside
    if (least is None or low > least) and (greatest is None or high < greatest):
        return "within"
    # Equal runs on the very bound, such as two arms that never act, contradict nothing.
    beneath = least is not None and low < least >= high
    beyond = greatest is not None and high > greatest <= low
    return "outside" if beneath or beyond else "across"


def _own(measured: Measured, measurement: Measurement) -> str:
    """What the share of the arm's own runs says about its limit."""
    share, low, high = (round(value, 3) for value in measured.own)
    where = {"within": "is", "outside": "is not", "across": "is not clearly"}
    side = where[_side(measured.own[1:], (None, measurement.own_below))]
    return (
        f"the share of {measurement.arm}'s own runs, {share:g} [{low:g}, {high:g}], "
        f"{side} below {measurement.own_below:g}"
    )


def _cut(measured: Measured) -> list[str]:
    if measured.cut is None:
        return []
    ends = " to ".join(f"{end:g}" for end in measured.cut)
    return [f"the interval is cut to what the number can be, {ends}"]


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
