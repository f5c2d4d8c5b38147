"""What a run under way has to remember beside its checkpoints: `begun.json`."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from turncredit.storage import read_mapping, write_json

_KEPT = 3
"""Notes of so many checkpoints: the newest, the previous one, and one that is being written."""


class Ledger:
    """Which run has begun here, its damaged checkpoints, and what it had spent at the others.

    What a run did after the checkpoint it goes on from is done again, and so is counted once: an
    interrupted and an unbroken run agree in failures, and differ in seconds by the wall alone.

    failures: the numbers by kind that the environment has counted so far, other runs' included.
    Raises ValueError naming the file if it is broken.
    """

    clock: Callable[[], float] = staticmethod(time.time)

    def __init__(
        self, path: Path, hashes: Mapping[str, str], failures: Callable[[], Mapping[str, int]]
    ) -> None:
        self.path, self.hashes = path, dict(hashes)
        self._count = failures
        noted = read_mapping(path, "delete it to start this run anew") or {}
        self.damages: list[int] = noted.pop("damaged_checkpoints", [])
        """Steps at which the run went on from its previous checkpoint."""
        self._spent: dict[str, dict] = noted.pop("spent", {})
        self._found = noted
        self._begun, self._before = self.clock(), Counter(self._count())
        self._count_on_from({})

    def _count_on_from(self, spent: dict) -> None:
        self._seconds, self._failures = spent.get("seconds", 0.0), Counter(spent.get("failures"))

    @property
    def seconds(self) -> float:
        """Spent by the run so far, in all its processes."""
        return round(self._seconds + self.clock() - self._begun, 1)

    @property
    def failures(self) -> dict[str, int]:
        """Of the run so far by kind, in all its processes."""
        return dict(self._failures + (Counter(self._count()) - self._before))

    def continues(self) -> bool:
        """Whether the run that has begun here is this one."""
        return self._found == self.hashes

    def begin(self) -> None:
        """Note down that this run begins, from nothing."""
        self.damages, self._spent = [], {}
        self._write()

    def go_on(self, step: int) -> None:
        """Count on from the checkpoint of `step` steps."""
        self._spent = {key: spent for key, spent in self._spent.items() if int(key) <= step}
        self._count_on_from(self._spent.get(str(step), {}))

    def damaged(self, step: int) -> None:
        """Note down that the run goes on from its previous checkpoint, of `step` steps."""
        self.damages = [*self.damages, step]
        self._write()

    def note(self, step: int) -> None:
        """Note down what is spent, before the checkpoint of `step` steps is written."""
        self._spent[str(step)] = {"seconds": self.seconds, "failures": self.failures}
        self._spent = {key: self._spent[key] for key in sorted(self._spent, key=int)[-_KEPT:]}
        self._write()

    def _write(self) -> None:
        damages = {"damaged_checkpoints": self.damages} if self.damages else {}
        spent = {"spent": self._spent} if self._spent else {}
        write_json(self.path, self.hashes | damages | spent)
