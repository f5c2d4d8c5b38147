"""Worker processes that are asked with a deadline, replaced when they die, and recycled."""

import contextlib
import itertools
import multiprocessing
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from turncredit.environments.alfworld import engine_process

SCRIPT = Path(engine_process.__file__)
"""Run in processes of its own; imported so that it counts as code that a run depends on."""


class Lost(Exception):
    """A worker gave no answer: `cause` is timeout, died or error."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}{': ' if detail else ''}{detail}")
        self.cause = cause


class Worker:
    """One process; a request gets a ticket, with which its answer is fetched."""

    def __init__(self, script: Path = SCRIPT) -> None:
        ours, theirs = multiprocessing.Pipe()
        command = [sys.executable, str(script), str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        theirs.close()
        self.connection = ours
        self.loaded = 0
        """Games started in it so far."""
        self.playing: set[int] = set()
        """Numbers of the games that are under way in it."""
        self.alive = True
        self._tickets = itertools.count()
        self._answers: dict[int, tuple[str, Any]] = {}
        weakref.finalize(self, _end, self.process, ours)

    def send(self, name: str, *arguments: Any) -> int:
        """Ask for something; the ticket of the answer.  `Lost` if nobody is there.

        Answers that have come are read first: two sides that only write would wait for each other.
        """
        ticket = next(self._tickets)
        try:
            while self.connection.poll():
                self._read()
            self.connection.send((ticket, name, arguments))
        except (EOFError, OSError) as error:
            raise self._lost("died", str(error)) from error
        return ticket

    def fetch(self, ticket: int, deadline: float) -> Any:
        """The answer to a request; after `deadline` seconds without one the worker is killed.

        Raises `Lost` then, and where the worker has died or says that it met an error.
        """
        try:
            while ticket not in self._answers:
                if not self.connection.poll(deadline):
                    raise self._lost("timeout", f"no answer in {deadline} s")
                self._read()
        except (EOFError, OSError) as error:
            raise self._lost("died", f"exit status {self.process.poll()}") from error
        kind, result = self._answers.pop(ticket)
        if kind == "error":
            raise Lost("error", result)
        return result

    def _read(self) -> None:
        ticket, *answer = self.connection.recv()
        self._answers[ticket] = tuple(answer)

    def close(self) -> None:
        """End the process."""
        self.alive = False
        _end(self.process, self.connection)

    def _lost(self, cause: str, detail: str) -> Lost:
        self.close()
        return Lost(cause, detail)


def _end(process: subprocess.Popen, connection: Any) -> None:
    with contextlib.suppress(OSError):
        connection.close()
    process.kill()
    process.wait()


class Pool:
    """At most `size` workers that take new games, each `recycle_after` of them."""

    def __init__(self, size: int, *, recycle_after: int, script: Path = SCRIPT) -> None:
        for name, value in (("size", size), ("recycle_after", recycle_after)):
            if value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.size, self.recycle_after, self.script = size, recycle_after, script
        self.workers: list[Worker] = []
        """Those that take new games; retired ones live on with the games they play."""
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count()

    def next_number(self) -> int:
        """A number for a game that no other game has."""
        return next(self._numbers)

    def least_busy(self) -> Worker:
        """A worker for a new game."""
        self.workers = [w for w in self.workers if w.alive and w.loaded < self.recycle_after]
        if len(self.workers) < self.size:
            self.workers.append(Worker(self.script))
            self.counts["started"] += 1
        return min(self.workers, key=lambda worker: len(worker.playing))

    def drop(self, worker: Worker, number: int) -> None:
        """A game is over; a retired worker without games ends."""
        worker.playing.discard(number)
        if not worker.alive:
            return
        if worker not in self.workers and not worker.playing:
            worker.close()
            return
        with contextlib.suppress(Lost):
            worker.send("drop", number)

    def close(self) -> None:
        """End all workers that take new games."""
        for worker in self.workers:
            worker.close()
        self.workers = []
