"""Games in worker processes, with what `household.Play` offers: look, act, be copied.

What a worker holds is only a cache.  A game is its commands so far, so that one whose worker died,
or that is taken up again from a snapshot, is replayed in another; the engine is deterministic.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turncredit.environments.alfworld.package import packaged, require_packages
from turncredit.environments.alfworld.problem import game_file, problem
from turncredit.environments.alfworld.workers import SCRIPT, Lost, Pool, Worker
from turncredit.environments.household.rules import HELP, NOTHING, Play

ATTEMPTS = 2
"""Workers that a game is replayed in after one gave no answer, before it is given up."""


class EngineGames:
    """Starts games in recycled worker processes.

    workers: processes at a time.  deadline: seconds for one command, or for loading a game.
    recycle_after: games after which a process is replaced, since the engine keeps memory of each.
    Raises RuntimeError saying what to install where the packages are missing.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        deadline: float = 60.0,
        recycle_after: int = 200,
        script: Path = SCRIPT,
    ) -> None:
        if script == SCRIPT:
            require_packages()
        if not deadline > 0:
            raise ValueError(f"deadline = {deadline} must be above 0")
        self.deadline = deadline
        self.pool = Pool(workers, recycle_after=recycle_after, script=script)
        self.failures: Counter[str] = Counter()
        """Answers that did not come, by cause: timeout, died, error."""
        self._prepared: dict[str, list[EnginePlay]] = {}

    def __call__(self, game: Any) -> "EnginePlay":
        """Start a game, a generated one or an `OfficialGame`."""
        waiting = self._prepared.get(game.id)
        play = waiting.pop() if waiting else EnginePlay(self, game)
        return play.started()

    def prepare(self, games: Sequence[Any]) -> None:
        """Let the workers load games that are started next, side by side; does not wait.

        What was prepared before and is not started by then is given up.
        """
        self._prepared = defaultdict(list)
        for game in games:
            play = EnginePlay(self, game)
            play.load_ahead()
            self._prepared[game.id].append(play)

    def text(self, game: Any) -> str:
        """The file of a generated or official game, as the engine reads it."""
        domain, grammar, goals = self._library
        read = getattr(game, "read_problem", None)
        stated = read() if read else problem(game, goals[game.family]["pddl"])
        return game_file(stated, game.task, domain, grammar)

    @functools.cached_property
    def _library(self) -> tuple[str, str, dict[str, Any]]:
        """Domain, grammar and goals of the package."""
        goals: dict[str, Any] = {}
        exec(compile(packaged("gen/goal_library.py"), "goal_library.py", "exec"), goals)
        return packaged("data/alfred.pddl"), packaged("data/alfred.twl2"), goals["gdict"]

    def do_all(self, plays: Sequence["EnginePlay"], commands: Sequence[str]) -> list[str]:
        """One command to each of different games, so that the workers work side by side."""
        asked = [play.ask(command) for play, command in zip(plays, commands, strict=True)]
        told = zip(plays, commands, asked, strict=True)
        return [play.hear(command, ticket) for play, command, ticket in told]

    def close(self) -> None:
        """End the processes; games can still be taken up again."""
        self.pool.close()


class EnginePlay:
    """A game under way in some worker, or waiting to be replayed in one."""

    def __init__(self, games: EngineGames, game: Any) -> None:
        self.games, self.game = games, game
        self.commands: tuple[str, ...] = ()
        self.lost = ""
        """Why the game cannot go on, '' while it can."""
        self._worker: Worker | None = None
        self._number = -1
        self._first, self._admissible, self.won = "", [], False
        self._loading: int | None = None
        """The ticket of the game's first look, while it is awaited."""
        self._announced: tuple[str, int] | None = None
        """A command that the worker carries out already, with the ticket of the answer."""

    def load_ahead(self) -> None:
        """Have a worker load the game, and do not wait for it."""
        try:
            self._load()
        except Lost as error:
            self._forget(error)

    def started(self) -> "EnginePlay":
        """This, once the game is loaded, or lost."""
        self._try(lambda: None)
        return self

    def first_look(self) -> str:
        """What is seen at the start."""
        return self._first

    def admissible(self) -> list[str]:
        """Every command that the engine would carry out now, in alphabetical order."""
        return sorted(self._admissible)

    def copy(self) -> "EnginePlay":
        """The same game at the same point, to go on by itself; replayed when it does."""
        twin = EnginePlay.__new__(EnginePlay)
        twin.__dict__ |= vars(self) | {"_worker": None, "_number": -1}
        twin._loading = twin._announced = None
        return twin

    def announce(self, command: str) -> None:
        """Have the worker carry out what `do` is asked for next, and do not wait for it."""
        ticket = self.ask(command)
        self._announced = None if ticket is None else (command, ticket)

    def do(self, command: str) -> str:
        """Carry out a command; what is seen then, '' once the game is lost."""
        if self._announced is None:
            return self.hear(command, self.ask(command))
        (announced, ticket), self._announced = self._announced, None
        if announced == command:
            return self.hear(command, ticket)
        self.leave()  # the worker has gone another way
        return self.hear(command, None)

    def ask(self, command: str) -> int | None:
        """Send a command and do not wait; the ticket for `hear`, None if it was not sent."""
        if self.lost or command not in self._admissible or self._worker is None:
            return None
        if command == "help":
            return None
        if self._announced is not None:
            self.leave()
            return None
        try:
            return self._worker.send("step", self._number, command)
        except Lost as error:
            self._forget(error)
            return None

    def hear(self, command: str, ticket: int | None) -> str:
        """What is seen after a command that was sent, or that is sent now."""
        if self.lost:
            return ""
        if command not in self._admissible:
            return NOTHING
        if command == "help":
            return HELP
        answer = None if ticket is None else self._fetched(ticket)
        if answer is None:
            answer = self._try(lambda: self._step(command))
        if answer is not None:
            self.commands += (command,)
        return answer or ""

    def _step(self, command: str) -> str:
        ticket = self._worker.send("step", self._number, command)
        return self._note(self._worker.fetch(ticket, self.games.deadline))

    def _fetched(self, ticket: int) -> str | None:
        try:
            return self._note(self._worker.fetch(ticket, self.games.deadline))
        except Lost as error:
            self._forget(error)
            return None

    def _try(self, act: Any) -> str | None:
        """Do something in a worker that plays this game; None, and `lost`, if none answers."""
        for _ in range(ATTEMPTS):
            try:
                if self._loading is not None or self._worker is None or not self._worker.alive:
                    self._replay()
                return act()
            except Lost as error:
                self._forget(error)
                cause = error.cause
        self.lost = cause
        return None

    def _load(self) -> None:
        """Ask a worker to start the game."""
        pool = self.games.pool
        self._worker, self._number = pool.least_busy(), pool.next_number()
        self._worker.loaded += 1
        self._worker.playing.add(self._number)
        self._loading = self._worker.send("load", self._number, self.games.text(self.game))

    def _replay(self) -> None:
        """Start the game in a worker and give it the commands so far."""
        if self._loading is None:
            self._load()
        ticket, self._loading = self._loading, None
        worker, deadline = self._worker, self.games.deadline
        self._first = _room(self._note(worker.fetch(ticket, deadline)))
        for command in self.commands:
            self._note(worker.fetch(worker.send("step", self._number, command), deadline))

    def _note(self, seen: tuple[str, list[str], bool]) -> str:
        text, self._admissible, self.won = seen
        return text.strip()

    def _forget(self, error: Lost) -> None:
        self.games.failures[error.cause] += 1
        self.leave()

    def leave(self) -> None:
        """Give the worker back; the game can still be taken up again."""
        if self._worker is not None:
            self.games.pool.drop(self._worker, self._number)
        self._worker = self._loading = self._announced = None

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self.leave()


def player(engine: str) -> Callable[[Any], Any]:
    """What starts the games of a task: the rules in Python, or the engine with its defaults.

    Raises ValueError saying what to install for an engine whose packages are missing.
    """
    if engine == "rules":
        return Play
    try:
        return EngineGames()
    except RuntimeError as error:
        raise ValueError(f"environment.engine = {engine!r}: {error}") from error


def _room(intro: str) -> str:
    """The description of the room in a game's first text.

    >>> _room("-= Welcome =-\\n\\nYou are in a room.\\n\\nYour task is to: x.")
    'You are in a room.'
    """
    return intro.split("\n\n")[1].strip()
