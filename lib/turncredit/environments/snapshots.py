"""Saving what an episode may change, so that it can be taken up again any number of times."""

import random
from collections.abc import Mapping
from typing import Any

Snapshot = Mapping[str, Any]
"""Attributes of an episode by name; nothing in it is shared with the episode."""


def saved(episode: Any, *lasting: str) -> dict[str, Any]:
    """Every attribute of the episode but the `lasting` ones, apart from the original.

    Streams and what has a `copy` method (lists, dicts, sets, an oracle) are copied one level deep;
    everything else is taken for a value that never changes.
    """
    return {name: _apart(value) for name, value in vars(episode).items() if name not in lasting}


def put_back(episode: Any, snapshot: Snapshot) -> None:
    """Give the episode the attributes of a snapshot, which stays good for another time."""
    for name, value in snapshot.items():
        setattr(episode, name, _apart(value))


def twin_stream(stream: random.Random) -> random.Random:
    """A stream that will draw what the other will draw, and leaves that as it is."""
    twin = random.Random(0)
    twin.setstate(stream.getstate())
    return twin


def _apart(value: Any) -> Any:
    if isinstance(value, random.Random):
        return twin_stream(value)
    return value.copy() if hasattr(value, "copy") else value
