"""Which stand-in for the relative surprisal wins: chosen on some states, reported on others."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def best_proxy(rows: Sequence[Row]) -> str:
    """The proxy with the highest sign agreement, silent pairs counted half; ties: the first listed.

    rows: of `proxy_table` or `exact_proxy_table`, on the states that fit.  Counted half, since a
    proxy that hardly ever speaks would win if its silences were left out.  A proxy without a number
    does not win; ValueError if none has one.

    >>> def row(proxy, value):
    ...     return {"proxy": proxy, "silent": "half", "value": value}
    >>> best_proxy([row("published", 0.6), row("martingale", 0.9), row("corrected", 0.9)])
    'martingale'
    """
    shares = {name: row["value"] for name, row in _halves(rows).items()}
    known = {name: share for name, share in shares.items() if not math.isnan(share)}
    if not known:
        raise ValueError(f"none of {len(rows)} rows has a sign agreement to choose by")
    return max(known, key=known.__getitem__)


def choice_rows(
    fitting: Mapping[str, Sequence[Row]], held_out: Mapping[str, Sequence[Row]]
) -> list[Row]:
    """One row per world: `best_proxy` on the states that fit, and what it is worth on the others.

    fitting, held_out: tables of proxies by world, as for `best_proxy`.  Columns: world, proxy,
    options, fitted (its share where it was chosen), value, low, high, pairs (on held-out states),
    and published, published_low, published_high: AEM's coefficient on those same states.
    """
    rows = []
    for world, chosen_on in fitting.items():
        proxy = best_proxy(chosen_on)
        judged = _halves(held_out[world])
        row = {"world": world, "proxy": proxy, "fitted": _halves(chosen_on)[proxy]["value"]}
        row |= {name: judged[proxy][name] for name in ("options", "value", "low", "high", "pairs")}
        ends = {"value": "published", "low": "published_low", "high": "published_high"}
        rows.append(row | {ends[name]: judged["published"][name] for name in ends})
    return rows


def _halves(rows: Sequence[Row]) -> dict[str, Row]:
    """The rows of the sign agreement that counts silent pairs half, by proxy."""
    return {row["proxy"]: row for row in rows if row["silent"] == "half"}
