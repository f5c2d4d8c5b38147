"""A scripted helper in the house, who looks for things and errs as people do."""

import random
from collections.abc import Generator
from typing import Any

from turncredit.worlds.base import Question
from turncredit.worlds.household.games import Game, game_of
from turncredit.worlds.household.kinds import LAMP, OPENABLE, TOOLS, holds, kind_of

Script = Generator[str, str, None]


def tidy(question: Question, settings: Any, stream: random.Random) -> Script:
    """Look for what is wanted, change it, put it where it belongs; wander about after giving up.

    settings: `DemonstrationSettings`.  With probability `guess_first` it knows where things lie;
    otherwise it looks into the receptacles that may hold the object, in the order in which the room
    lists them, at most `patience` of them for each object.  `error` is the probability of a useless
    command before a useful one, `verify` that of looking at what it carries after it has taken it,
    and `quit` that of giving up before an object is put down.
    """
    helper = _Helper(game_of(question.id), settings, stream)
    knows = stream.random() < settings.guess_first
    for thing in helper.game.wanted:
        found = yield from helper.fetch(thing, knows)
        if not found or stream.random() < settings.quit:
            break
        yield from helper.finish(thing)
    while True:
        yield from helper.visit(stream.choice(helper.game.receptacles))
        yield _said("look")


class _Helper:
    """Where the scripted agent stands and what it has opened."""

    def __init__(self, game: Game, settings: Any, stream: random.Random) -> None:
        self.game, self.settings, self.stream = game, settings, stream
        self.where = dict(game.places)
        self.at = ""
        self.opened: set[str] = set()

    def visit(self, receptacle: str, *, opens: bool = False) -> Script:
        """Go to a receptacle, and open it where that is wanted and needed."""
        if receptacle != self.at:
            yield _said(f"go to {receptacle}")
            self.at = receptacle
        if opens and kind_of(receptacle) in OPENABLE and receptacle not in self.opened:
            yield _said(f"open {receptacle}")
            self.opened.add(receptacle)

    def fetch(self, thing: str, knows: bool) -> Generator[str, str, bool]:
        """Find and take an object; False when patience runs out."""
        kind, goal = self.game.target, self.game.goal
        places = [r for r in self.game.receptacles if holds(kind_of(r), kind)]
        places = [r for r in places if kind_of(r) != goal]  # what lies there is in its place
        for receptacle in [self.where[thing]] if knows else places[: self.settings.patience]:
            yield from self.slip()
            yield from self.visit(receptacle, opens=True)
            if self.where[thing] == receptacle:
                yield _said(f"take {thing} from {receptacle}")
                if self.stream.random() < self.settings.verify:
                    yield _said("inventory")
                return True
        return False

    def finish(self, thing: str) -> Script:
        """Change the carried object where asked, and put it down or under the lamp."""
        game = self.game
        if game.change:
            yield from self.slip()
            tool = self._first(TOOLS[game.change])
            yield from self.visit(tool)
            yield _said(f"{game.change} {thing} with {tool}")
        yield from self.slip()
        if game.goal == LAMP:
            yield from self.visit(self.where[f"{LAMP} 1"])
            yield _said(f"use {LAMP} 1")
        else:
            yield from self.visit(end := self._first(game.goal), opens=True)
            yield _said(f"move {thing} to {end}")

    def slip(self) -> Script:
        """Sometimes: go somewhere else, or try to take what is not there."""
        if self.stream.random() >= self.settings.error:
            return
        elsewhere = self.stream.choice(self.game.receptacles)
        if elsewhere == self.at or self.stream.random() < 0.3:
            yield _said(f"take {self.game.target} 1 from {elsewhere}")
        else:
            yield from self.visit(elsewhere)

    def _first(self, kind: str) -> str:
        return next(r for r in self.game.receptacles if kind_of(r) == kind)


def _said(command: str) -> str:
    return f"<action> {command} </action>"
