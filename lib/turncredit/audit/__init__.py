"""Credit audit: what each turn was truly worth, and how the credit it was given compares.

`replay` stands at every turn of recorded trajectories, `audit_turns` continues from there with the
current policy (`exact_audit` enumerates, on a tree), `comparison_table` holds what a method assigns
beside what came out; see docs/audit.md.
"""

from turncredit.audit.comparison import (
    comparison_table,
    correlation,
    ledger_rows,
    turn_means,
)
from turncredit.audit.estimates import (
    Audit,
    AuditSettings,
    audit_turns,
    continuations_for,
    state_values,
)
from turncredit.audit.replay import TurnStart, replay, replay_one
from turncredit.audit.trees import exact_audit

__all__ = [
    "Audit",
    "AuditSettings",
    "TurnStart",
    "audit_turns",
    "comparison_table",
    "continuations_for",
    "correlation",
    "exact_audit",
    "ledger_rows",
    "replay",
    "replay_one",
    "state_values",
    "turn_means",
]
