"""The parameters of the credit audit's notebook."""

import itertools
from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        require_positive(self, "blame_every", "last_turn")
        for name in ("seeds", "warm_start_seeds", "rules", "ks"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        ascending = all(a < b for a, b in itertools.pairwise(self.stages))
        if len(self.stages) < 2 or self.stages[0] != 0 or not ascending:
            raise ValueError(f"stages = {list(self.stages)} do not rise from 0")

    def block(self, seed: int) -> int:
        """The warm start of a seed."""
        return self.warm_start_seeds[seed % len(self.warm_start_seeds)]
