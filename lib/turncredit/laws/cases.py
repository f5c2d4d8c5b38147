"""What a law is asked about: one base or turn weight, in the company that it will meet."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.laws.examples import make_batch
from turncredit.methods import Methods, option_names

PARTNERS = {"base": ("none", "suffix_mask"), "turn weight": ("grpo", "gae")}
"""What stands beside it: for a turn weight a base by trajectory, and one that is free by token."""
PARTNER_OPTIONS = {"gae": {"whiten": False}}
"""Whitening would make every credit depend on the whole batch."""
SCOPES = ("group", "batch")


@dataclass(frozen=True)
class Case:
    """An estimator by its name; ValueError for one that no table has, or that two have."""

    name: str
    scope: str = "group"
    """Whether other groups of the batch may matter to it: "group" (no) or "batch"."""

    def __post_init__(self) -> None:
        found = [table.kind for table in (BASES, TURN_WEIGHTS) if self.name in table]
        if len(found) != 1:
            said = "is a base and a turn weight" if found else "is no base and no turn weight"
            raise ValueError(f"{self.name!r} {said}; the laws are about one of either")
        if self.scope not in SCOPES:
            raise ValueError(f"scope = {self.scope!r} is not one of {', '.join(SCOPES)}")

    @property
    def table(self) -> Methods:
        """The one that it is in."""
        return BASES if self.name in BASES else TURN_WEIGHTS

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Base and weight, with each of its partners."""
        partners = PARTNERS[self.table.kind]
        if self.table is BASES:
            return tuple((self.name, weight) for weight in partners)
        return tuple((base, self.name) for base in partners)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, row by row."""
        return "generator" in option_names(self.table[self.name])

    def close(self, found: Tensor, expected: Tensor) -> bool:
        """Equal bit for bit, or within rounding where sums run over the whole batch."""
        if self.scope == "batch":
            return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
        return torch.equal(found, expected)

    def results(self, batch: TurnBatch, logprobs: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Partner and advantages [B, L], with the same random numbers at every call."""
        for base, weight in self.pairs:
            partner = weight if self.table is BASES else base
            options = [_given(BASES[base], logprobs), _given(TURN_WEIGHTS[weight], logprobs)]
            if partner == base:
                options[0] |= PARTNER_OPTIONS.get(base, {})
            yield partner, token_advantages(batch, base, weight, *options)


def _given(function: Any, logprobs: Tensor) -> dict[str, Any]:
    """What the loop hands over; and a generous gate, so that small examples mask something."""
    given = {"logprobs": logprobs, "generator": torch.Generator().manual_seed(0)}
    given |= {"c": 1.1, "limit": 1.1}
    return {name: value for name, value in given.items() if name in option_names(function)}


def example() -> TurnBatch:
    """Two groups: ragged rows, empty turns, a single turn, a tie and a missing reward."""
    return make_batch(
        [[3, 2, 4], [1], [2, 0, 3], [4, 1], [0, 2, 2], [1, 1, 1], [2, 5]],
        rewards=[0.0, 1.0, 0.0, 0.2, 1.0, 0.0, float("nan")],
        groups=[3, 3, 3, 8, 8, 8, 8],
        seed=5,
    )


def random_batch(seed: int) -> TurnBatch:
    """Groups of 2 to 4 rows of up to 4 turns: empty and single turns, ties, missing rewards."""
    stream = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=stream))

    groups = [group for group in range(whole(1, 3)) for _ in range(whole(2, 4))]
    palette = [[0.0], [1.0], [0.0, 1.0], [0.1, 0.7, 1.0], [0.0, 1.0, float("nan")]][whole(0, 4)]
    return make_batch(
        [[whole(0, 4) for _ in range(whole(1, 4))] for _ in groups],
        rewards=[palette[whole(0, len(palette) - 1)] for _ in groups],
        groups=groups,
        seed=seed,
    )
