"""The process that plays: run as a script, it imports the engine and nothing of this package.

So it stays small, and what the engine does to its process (it keeps memory of every game, and
overwrites `sys.argv`) is gone with it.  It answers requests (ticket, name, arguments) that come
through the connection whose descriptor is its only argument with (ticket, "ok", result) or
(ticket, "error", text); only `drop` has no answer.
"""

import copy
import functools
import importlib.util
import os
import sys
import tempfile
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Seen = tuple[str, list[str], bool]
"""Observation, admissible commands, whether the game is won."""


class Engine:
    """Games under way in this process, by number."""

    def __init__(self) -> None:
        self.games: dict[int, Any] = {}
        self.folder = tempfile.TemporaryDirectory(prefix="turncredit-alfworld-")
        os.environ.setdefault("ALFWORLD_DATA", self.folder.name)  # else the import makes a folder
        _stub_jericho()
        import fast_downward
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv, textgen

        _translate_once(fast_downward)
        _parse_once(textgen)
        self.libraries = _kept_libraries(fast_downward)
        infos = textworld.EnvInfos(won=True, admissible_commands=True)  # never a plan: minutes
        self.open = lambda: AlfredDemangler(PddlEnv(infos), shuffle=False)

    def load(self, number: int, text: str) -> Seen:
        """Start a game from the text of its file."""
        path = Path(self.folder.name, f"{number}.tw-pddl")
        path.write_text(text, encoding="utf-8")
        game = self.open()
        game.load(str(path))
        state = game.reset()
        path.unlink()
        self.games[number] = game
        return _seen(state)

    def step(self, number: int, command: str) -> Seen:
        """Give a command."""
        return _seen(self.games[number].step(command)[0])

    def drop(self, number: int) -> None:
        """Forget a game."""
        game = self.games.pop(number, None)
        if game is not None:
            game.close()
            self.libraries.append(game.unwrapped.downward_lib)

    def memory(self) -> float:
        """Resident memory of this process in megabytes."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _seen(state: Any) -> Seen:
    return state["feedback"], list(state["admissible_commands"]), bool(state["won"])


def _translate_once(fast_downward: Any) -> None:
    """The engine translates a problem twice, the second time for its planner, which is not used."""
    translate = fast_downward.pddl2sas

    @functools.lru_cache(maxsize=8)
    def cached(domain: str, problem: str) -> Any:
        return translate(domain, problem, verbose=False, optimize=False)

    def once(domain: str, problem: str, *_: Any, **__: Any) -> Any:
        return cached(domain, problem)

    fast_downward.pddl2sas = once


def _kept_libraries(fast_downward: Any) -> list[Any]:
    """Libraries that no game needs any more, from which the next one is served.

    The engine loads a copy of its C++ library for each game and never lets go of it; every copy
    takes memory and makes the next one slower to load.
    """
    free: list[Any] = []
    load = fast_downward.load_lib
    fast_downward.load_lib = lambda: free.pop() if free else load()
    return free


def _parse_once(textgen: Any) -> None:
    """The engine parses a template of its grammar whenever it uses it, thousands of times a step.

    And it copies all that is known of every thing in a sentence, though nothing changes it: here
    only the dictionaries are copied.  What it writes is the same.
    """
    parse = functools.lru_cache(maxsize=1024)(textgen._parse_and_convert)
    # Symbols get a context when they are used: the parsed ones are kept as they are.
    textgen._parse_and_convert = lambda *args, **options: copy.deepcopy(parse(*args, **options))
    rule = textgen.Rule
    rule.parse_conjunctive_query = functools.lru_cache(maxsize=1024)(rule.parse_conjunctive_query)

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        copied = {name: dict(context[name]) for name in ("variables", "mapping")}
        return {**context, **copied}

    textgen.copy_context = copy_context


def _stub_jericho() -> None:
    """Stand in for jericho, which textworld imports for games of another kind."""
    if importlib.util.find_spec("jericho") is None:
        stub = types.ModuleType("jericho")
        stub.FrotzEnv = object
        stub.UnsupportedGameWarning = stub.TruncatedInputActionWarning = Warning
        sys.modules["jericho"] = stub


def serve(connection: Connection) -> None:
    """Answer until the other side hangs up."""
    engine: Engine | None = None
    while True:
        try:
            ticket, name, arguments = connection.recv()
        except EOFError:
            return
        try:
            engine = engine or Engine()
            reply = (ticket, "ok", getattr(engine, name)(*arguments))
        except Exception as error:
            reply = (ticket, "error", f"{type(error).__name__}: {error}")
        if name != "drop":
            connection.send(reply)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
