"""Agreement of several probed runs: each number of `agreement_table` as a mean over seeds."""

import re
from collections.abc import Sequence
from typing import Any

from turncredit.stats import t_interval

Row = dict[str, Any]
KEYS = ("world", "responses", "by", "bin", "measure", "silent")


def over_seeds(rows: Sequence[Row], *, level: float = 0.95) -> list[Row]:
    """Mean over seeds with Student's t interval; one row for each of KEYS that occurs.

    rows: of `agreement_table`, each with its `world` and `seed`.  A seed is one draw: it shares a
    policy, and its states are its own, so that states of all seeds are not thrown together.  Seeds
    without a number in a bin (no response there, or none that varies) are left out and counted in
    `missing`; one seed has no interval.  `pairs` and `silent_pairs` are sums over seeds.  In the
    order of bins by their first number, then by name.
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    table = []
    for key, members in sorted(found.items(), key=lambda item: _place(item[0], rows)):
        mean = t_interval([row["value"] for row in members], level=level)
        row = dict(zip(KEYS, key, strict=True)) | {"value": mean.value, "low": mean.low}
        row |= {"high": mean.high, "seeds": mean.n, "missing": mean.missing}
        row |= {name: sum(r[name] for r in members) for name in ("pairs", "silent_pairs")}
        table.append(row)
    return table


def bin_place(name: str) -> tuple[int, str]:
    """Where a bin stands among its like: by the first number in its name, then by the name.

    >>> sorted(["17 or more", "3 to 4", "plain", "hard"], key=bin_place)
    ['hard', 'plain', '3 to 4', '17 or more']
    """
    number = re.search(r"\d+", name)
    return (int(number[0]) if number else -1, name)


def _place(key: tuple[str, ...], rows: Sequence[Row]) -> tuple:
    """Worlds, kinds, divisions and measures as they first come, bins by `bin_place`."""
    firsts = [
        next(number for number, row in enumerate(rows) if row[name] == value)
        for name, value in zip(KEYS, key, strict=True)
    ]
    world, kind, division, _, measure, silent = firsts
    return (world, kind, division, bin_place(key[KEYS.index("bin")]), measure, silent)
