"""The published claims, what is measured here for each, and the verdict by rule.

`claims.yaml` holds the claims with their numbers and sources, `records` their types, `measure`
takes a claim's number out of the table of outcomes, `judge` decides.
"""

from turncredit.claims.judge import (
    FEWEST_SEEDS,
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    ROW,
    decide,
    judge,
)
from turncredit.claims.records import (
    CLAIMS,
    DECISIONS,
    MEASURED,
    QUANTITIES,
    Claim,
    Measurement,
    NotTestable,
    read_claims,
)

__all__ = [
    "CLAIMS",
    "DECISIONS",
    "FEWEST_SEEDS",
    "MEASURED",
    "NOT_REPRODUCED",
    "NOT_TESTABLE",
    "QUANTITIES",
    "REPRODUCED",
    "ROW",
    "Claim",
    "Measurement",
    "NotTestable",
    "decide",
    "judge",
    "read_claims",
]
