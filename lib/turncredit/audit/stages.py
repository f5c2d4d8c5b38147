"""Training stages, and intervals over seeds of what was measured in them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from turncredit.stats import block_mean, by_block

Row = dict[str, Any]

WHOLE = "all"
"""The stage that is the whole training."""


def stages_of(step: int, edges: Sequence[int]) -> tuple[str, str]:
    """The stages a step belongs to: the whole training, and that of `edges` it falls between.

    edges: first steps of the stages, ascending, then the first step after the last.  Raises
    ValueError for a step outside.

    >>> stages_of(25, [0, 20, 80])
    ('all', '20-79')
    """
    for first, following in itertools.pairwise(edges):
        if first <= step < following:
            return WHOLE, f"{first}-{following - 1}"
    raise ValueError(f"step {step} is outside the stages {list(edges)}")


def with_intervals(rows: Iterable[Mapping[str, Any]], *, seed: int) -> list[Row]:
    """One row for all seeds alike but for `seed`, `block` and `value`: mean, interval and counts.

    The mean is over the blocks' means (`stats.block_mean`): runs of one warm start are no
    independent witnesses.  A NaN is missing, counted and left out.
    """
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        key = tuple((name, row[name]) for name in row if name not in ("seed", "block", "value"))
        groups.setdefault(key, []).append(row)
    found = []
    for key, members in groups.items():
        values = by_block([m["value"] for m in members], [m["block"] for m in members])
        found.append(dict(key) | asdict(block_mean(values, seed=seed)))
    return found


def share(part: float, whole: float) -> float:
    """Part over whole; NaN, which is missing, of nothing."""
    return part / whole if whole else float("nan")
