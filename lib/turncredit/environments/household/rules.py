"""What commands do in a room: the rules and the words of ALFWorld's text games.

Closed receptacles hide what they hold; one object can be carried at a time; a command that is not
admissible answers "Nothing happens.".  Who looks around in the middle of the room, where nothing
stands, sees nothing; what is in the room is told once, at the start.  Things are cleaned, heated
and cooled while they are carried, at the sink basin, microwave and fridge, which need not be open
for it.  Checked against ALFWorld's engine, command by command, and against the domain and grammar
files of the package alfworld 0.4.2 (preconditions, effects, texts).
"""

import copy
from collections.abc import Sequence

from turncredit.worlds.household.games import Game
from turncredit.worlds.household.kinds import (
    CHANGEABLE,
    LAMP,
    OPENABLE,
    SLICEABLE,
    TOOLS,
    VESSELS,
    holds,
    kind_of,
)

NOTHING = "Nothing happens."
"""The answer to what cannot be done."""
EMPTY_HANDED = "You are not carrying anything."
MIDDLE = "You are in the middle of a room."


class Play:
    """A game under way."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.at = ""
        """The receptacle in front of the agent; '' in the middle of the room."""
        self.carried = ""
        """The object in hand; '' for none."""
        self.where = dict(game.places)
        """Receptacle of every object that is not carried."""
        self.opened: set[str] = set()
        self.changed: set[tuple[str, str]] = set()
        """(object, change); an object that is heated is cool no more, and the other way round."""
        self.lit = False

    lost = ""
    """Why a game cannot go on; by these rules it always can."""

    def leave(self) -> None:
        """The game is over; there is nothing to give back."""

    def copy(self) -> "Play":
        """The same game at the same point, to go on by itself."""
        twin = copy.copy(self)
        twin.where, twin.opened = {**self.where}, {*self.opened}
        twin.changed = {*self.changed}
        return twin

    def first_look(self) -> str:
        """What is seen at the start."""
        things = _listed(sorted(self.game.receptacles, key=_rank))
        return f"{MIDDLE} Looking quickly around you, you see {things}."

    @property
    def won(self) -> bool:
        """Whether the task is done as things stand."""
        game = self.game
        if game.goal == LAMP:
            beside = self.at != "" and self.at == self.where.get(f"{LAMP} 1")
            return self.lit and beside and kind_of(self.carried) == game.target
        needed = 2 if game.family == "pick_two_obj_and_place" else 1
        return any(
            sum(self._counts(thing, receptacle) for thing in self.where) >= needed
            for receptacle in game.receptacles
            if kind_of(receptacle) == game.goal
        )

    def _counts(self, thing: str, receptacle: str) -> bool:
        change = self.game.change
        done = change is None or (thing, change) in self.changed
        return done and kind_of(thing) == self.game.target and self.where[thing] == receptacle

    def visible(self) -> list[str]:
        """Objects that can be seen and reached from where the agent stands."""
        if not self.at or self._is_closed(self.at):
            return []
        here = [thing for thing, receptacle in self.where.items() if receptacle == self.at]
        return sorted(here, key=_rank)

    def admissible(self) -> list[str]:
        """Every command that can be carried out now, in alphabetical order.

        Of objects only the one in hand can be examined: so it is in the domain as translated.
        """
        found = ["help", "inventory", "look"]
        found += [f"go to {r}" for r in self.game.receptacles if r != self.at]
        if self.carried:
            found += [f"examine {self.carried}", *self._with_carried()]
        if self.at:
            found.append(f"examine {self.at}")
            if kind_of(self.at) in OPENABLE:
                found.append(f"{'open' if self._is_closed(self.at) else 'close'} {self.at}")
        for thing in self.visible():
            if kind_of(thing) == LAMP:
                found.append(f"use {thing}")
            elif not self.carried:
                found.append(f"take {thing} from {self.at}")
        return sorted(found)

    def _with_carried(self) -> list[str]:
        """What can be done here with the object in hand."""
        thing, here = self.carried, kind_of(self.at)
        found = [
            f"{change} {thing} with {self.at}"
            for change, tool in TOOLS.items()
            if tool == here and kind_of(thing) in CHANGEABLE[change]
        ]
        if self.at and not self._is_closed(self.at) and holds(here, kind_of(thing)):
            found.append(f"move {thing} to {self.at}")
        if kind_of(thing) == "knife":
            near = [other for other, receptacle in self.where.items() if receptacle == self.at]
            found += [
                f"slice {other} with {thing}" for other in near if kind_of(other) in SLICEABLE
            ]
        return found

    def do(self, command: str) -> str:
        """Carry out a command; what is seen then.  Any text may be given."""
        if command not in self.admissible():
            return NOTHING
        verb, _, rest = command.partition(" ")
        match verb:
            case "go":
                self.at = rest.removeprefix("to ")
                return f"You arrive at {self.at}. {self._sight()}"
            case "open":
                self.opened.add(rest)
                return f"You open the {rest}. The {rest} is open. In it, you see {self._inside()}."
            case "close":
                self.opened.discard(rest)
                return f"You close the {rest}."
            case "take":
                self.carried = rest.partition(" from ")[0]
                del self.where[self.carried]
                return f"You pick up the {self.carried} from the {self.at}."
            case "move":
                thing, self.carried = self.carried, ""
                self.where[thing] = self.at
                return f"You move the {thing} to the {self.at}."
            case "use":
                self.lit = True
                return f"You turn on the {rest}."
            case "clean" | "heat" | "cool":
                return self._change(verb)
            case "slice":
                sliced = rest.partition(" with ")[0]
                self.changed.add((sliced, verb))
                return f"You sliced the {sliced} with the {self.carried}."
        return self._told(verb, rest)

    def _change(self, change: str) -> str:
        opposite = {"heat": "cool", "cool": "heat"}.get(change)
        self.changed -= {(self.carried, opposite or "")}
        self.changed.add((self.carried, change))
        return f"You {change} the {self.carried} using the {self.at}."

    def _told(self, verb: str, rest: str) -> str:
        """Commands that change nothing."""
        if verb == "inventory":
            return f"You are carrying: a {self.carried}." if self.carried else EMPTY_HANDED
        if verb == "help":
            return HELP
        if verb == "look" and not self.at:
            return f"{MIDDLE} Looking quickly around you, you see nothing."  # only at the start
        if verb == "look":
            return f"You are facing the {self.at}. Next to it, you see nothing."
        return self._sight() if rest == self.at else self._described(rest)

    def _described(self, thing: str) -> str:
        """What is seen of an object that is examined."""
        if kind_of(thing) in VESSELS:
            return f"This is a normal {thing}. In it, you see nothing."
        if kind_of(thing) == LAMP:
            return f"This {thing} is {'on' if self.lit else 'off'}."
        marks = {change for other, change in self.changed if other == thing}
        warmth = ["hot"] * ("heat" in marks) or ["cool"] * ("cool" in marks)
        state = " and ".join([*warmth, *["clean"] * ("clean" in marks)])
        if state == "cool" and "slice" not in marks:
            state = "cold"  # as the grammar has it
        state = " ".join([*([state] if state else []), *["sliced"] * ("slice" in marks)])
        return f"This is a {state} {thing}." if state else f"There's nothing special about {thing}."

    def _sight(self) -> str:
        if self._is_closed(self.at):
            return f"The {self.at} is closed."
        if kind_of(self.at) in OPENABLE:
            return f"The {self.at} is open. In it, you see {self._inside()}."
        return f"On the {self.at}, you see {self._inside()}."

    def _inside(self) -> str:
        return _listed(self.visible())

    def _is_closed(self, receptacle: str) -> bool:
        return kind_of(receptacle) in OPENABLE and receptacle not in self.opened


COMMANDS = (
    "look", "inventory", "go to RECEPTACLE", "open RECEPTACLE", "close RECEPTACLE",
    "take OBJECT from RECEPTACLE", "move OBJECT to RECEPTACLE", "examine SOMETHING", "use OBJECT",
    "clean OBJECT with RECEPTACLE", "heat OBJECT with RECEPTACLE", "cool OBJECT with RECEPTACLE",
    "slice OBJECT with OBJECT",
)  # fmt: skip
"""What `help` lists."""
HELP = f"Available commands: {', '.join(COMMANDS)}."
"""The answer to `help`, which changes nothing: the same whoever plays, in words that all know."""


def _rank(name: str) -> tuple[str, int]:
    """Where a thing stands in a list: by kind, the highest number first, as in the engine."""
    return kind_of(name), -int(name.rpartition(" ")[2])


def _listed(names: Sequence[str]) -> str:
    """Names with articles, as the games write them.

    >>> _listed([]), _listed(["book 1"]), _listed(["book 1", "pen 2"])
    ('nothing', 'a book 1', 'a book 1, and a pen 2')
    """
    if not names:
        return "nothing"
    *rest, last = [f"a {name}" for name in names]
    return f"{', '.join(rest)}, and {last}" if rest else last
