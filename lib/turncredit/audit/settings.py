"""The parameters of the credit audit's notebook."""

import itertools
from dataclasses import dataclass
from typing import Any

from turncredit.audit.estimates import AuditSettings
from turncredit.params import require_positive


@dataclass(frozen=True)
class LabelAuditSettings:
    """What is played, and how it is judged."""

    tier: str
    notebook: str
    task_name: str
    seeds: tuple[int, ...]
    warm_start_seeds: tuple[int, ...]
    """Seed s starts from warm start s modulo their number."""
    stages: tuple[int, ...]
    """First training steps of the stages, and the number of steps."""
    rules: tuple[str, ...]
    """Gate rules by the names of their methods in params/methods.yaml."""
    ks: tuple[int, ...]
    """Tokens that open a turn."""
    blame_every: int
    """Blame is booked at each training step that this divides."""
    last_turn: int
    """Later turns are drawn as one with this."""
    audit_at: tuple[int, ...]
    """Training steps before which turns are audited; the number of steps is after the last."""
    audit_questions: int
    """Of each audit, with a group of the task's size each."""
    audit_continuations: int
    """Of each state and of each message in it."""
    ceiling: dict[str, Any]
    """An experiment whose arms are told what turns were worth, without tier and notebook."""

    def __post_init__(self) -> None:
        require_positive(self, "blame_every", "last_turn", "audit_questions")
        for name in ("seeds", "warm_start_seeds", "rules", "ks", "audit_at"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        for name in ("seeds", "rules", "ks"):  # counted twice, one would pass for two
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} = {list(getattr(self, name))} repeats one")
        for name, least in (("seeds", 0), ("warm_start_seeds", 0), ("ks", 1)):
            if min(getattr(self, name)) < least:
                raise ValueError(f"{name}: {min(getattr(self, name))} must be at least {least}")
        ascending = all(a < b for a, b in itertools.pairwise(self.stages))
        if len(self.stages) < 2 or self.stages[0] != 0 or not ascending:
            raise ValueError(f"stages = {list(self.stages)} do not rise from 0")
        outside = [step for step in self.audit_at if not 0 <= step <= self.stages[-1]]
        if outside:
            raise ValueError(f"audit_at: step {outside[0]} is not in 0 .. {self.stages[-1]}")
        AuditSettings(self.audit_continuations)  # or refused

    def block(self, seed: int) -> int:
        """The warm start of a seed."""
        return self.warm_start_seeds[seed % len(self.warm_start_seeds)]
