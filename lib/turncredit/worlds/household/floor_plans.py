"""The receptacles of AI2-THOR's floor plans, as the package alfworld lists them."""

import functools
import importlib.util
import json
from collections import Counter
from pathlib import Path

from turncredit.worlds.household.kinds import HOLDS


@functools.cache
def floor_plan(plan: int) -> tuple[str, ...]:
    """Numbered receptacles of a plan, of the kinds that `kinds.HOLDS` knows.

    Raises ValueError saying what to install where the package is missing.
    """
    found = importlib.util.find_spec("alfworld")
    if found is None:
        raise ValueError(
            "size = 'real' reads floor plans of the package alfworld, which is not installed: "
            "pip install --no-deps alfworld==0.4.2"
        )
    path = Path(found.origin).parent / "gen" / "layouts" / f"FloorPlan{plan}-openable.json"
    counts = Counter(kind_of_id(name) for name in json.loads(path.read_text(encoding="utf-8")))
    return tuple(
        f"{kind} {number}"
        for kind in sorted(counts)
        if kind in HOLDS
        for number in range(1, counts[kind] + 1)
    )


def kind_of_id(name: str) -> str:
    """The kind of a receptacle by its id; a basin is a part of a sink.

    >>> kind_of_id("Drawer|-00.3|+00.6|+01.0"), kind_of_id("Sink|-00.7|+01.0|-00.7|SinkBasin")
    ('drawer', 'sinkbasin')
    """
    first, *_, last = name.split("|")
    return (last if last.endswith("Basin") else first).lower()
