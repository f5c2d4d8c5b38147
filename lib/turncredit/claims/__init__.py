"""The published claims, what is measured here for each, and the verdict by rule.

`claims.yaml` holds the claims with their numbers and sources, `records` their types, `measure`
takes a claim's number out of the table of outcomes, `judge` decides.
"""

from turncredit.claims.judge import (
    DIRECTION_ONLY,
    FEWEST_SEEDS,
    FEWEST_STATES,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    ROW,
    RULE,
    VERDICTS,
    decide,
    judge,
)
from turncredit.claims.records import (
    CLAIMS,
    DECISIONS,
    MEASURED,
    PROBED,
    QUANTITIES,
    Claim,
    Measurement,
    NotTestable,
    arms_of,
    read_claims,
)

__all__ = [
    "CLAIMS",
    "DECISIONS",
    "DIRECTION_ONLY",
    "FEWEST_SEEDS",
    "FEWEST_STATES",
    "MEASURED",
    "NOT_REPRODUCED",
    "NOT_TESTABLE",
    "PROBED",
    "QUANTITIES",
    "REPRODUCED",
    "ROW",
    "RULE",
    "VERDICTS",
    "Claim",
    "Measurement",
    "NotTestable",
    "arms_of",
    "decide",
    "judge",
    "read_claims",
]
