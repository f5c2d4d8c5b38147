"""One chore in one generated room, rebuilt from its id alone."""

import functools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turncredit.worlds.household.floor_plans import floor_plan
from turncredit.worlds.household.kinds import (
    CHANGEABLE,
    FOUND_IN,
    HOLDS,
    LAMP,
    LAMP_STANDS_ON,
    ODD,
    OPENABLE,
    ROOMS,
    SEVERAL,
    TOOLS,
    holds,
    kind_of,
)

FAMILIES = {
    "pick_and_place_simple": "put some {target} on {goal}",
    "look_at_obj_in_light": "examine the {target} with the {goal}",
    "pick_clean_then_place_in_recep": "put a clean {target} in {goal}",
    "pick_heat_then_place_in_recep": "put a hot {target} in {goal}",
    "pick_cool_then_place_in_recep": "put a cool {target} in {goal}",
    "pick_two_obj_and_place": "put two {target} in {goal}",
}
"""The families of ALFWorld's games, with a sentence for the task."""
CHANGES = {f"pick_{change}_then_place_in_recep": change for change in TOOLS}
"""What has to be done to the object, in the families that change it."""
PLANS = {"kitchen": 0, "livingroom": 200, "bedroom": 300, "bathroom": 400}
"""Plans of a kind of room are numbered from here plus 1 to plus 30; the first 6 are held out."""
HELD_OUT = range(1, 7)
SIZES = {"small": (1, 2), "medium": (2, 5), "large": (4, 10), "real": (0, 12)}
"""Most receptacles of a kind, and number of other objects that lie about; "real" has the
receptacles of AI2-THOR's floor plans, which the package alfworld brings."""


@dataclass(frozen=True)
class Game:
    """A room, what lies where in it, and what is to be done."""

    id: str
    """family/target/goal/plan/size/seed: all that the rest follows from."""
    family: str
    target: str
    """Kind of the object that matters."""
    goal: str
    """Kind of the receptacle to put it into; of the lamp, where it is to be looked at."""
    receptacles: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    """(object, receptacle it lies in), the lamp among them."""

    @property
    def task(self) -> str:
        """What to do, as a sentence."""
        return FAMILIES[self.family].format(target=self.target, goal=self.goal)

    @property
    def change(self) -> str | None:
        """clean, heat or cool; None in families that leave the object as it is."""
        return CHANGES.get(self.family)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The objects of the target's kind that have to be fetched."""
        found = sorted(name for name, _ in self.places if kind_of(name) == self.target)
        return tuple(found[: 2 if self.family == "pick_two_obj_and_place" else 1])

    @property
    def walkthrough(self) -> tuple[str, ...]:
        """The shortest commands that win, known from where things lie."""
        return tuple(_commands(self))


def room_of(plan: int) -> str:
    """The kind of room of a plan; ValueError for a number that no plan has.

    >>> room_of(301)
    'bedroom'
    """
    for room, first in PLANS.items():
        if first < plan <= first + 30:
            return room
    raise ValueError(f"plan = {plan} is none of 1 to 30, 201 to 230, 301 to 330, 401 to 430")


@functools.cache
def plans(family: str, *, held_out: bool, size: str = "medium") -> tuple[int, ...]:
    """The plans on which a family can be played, of training or held out."""
    numbers = HELD_OUT if held_out else range(HELD_OUT.stop, 31)
    candidates = [first + number for first in PLANS.values() for number in numbers]
    return tuple(plan for plan in candidates if _tasks(family, plan, size))


def _tasks(family: str, plan: int, size: str) -> tuple[tuple[str, str], ...]:
    """The pairs of a family on a plan."""
    kinds = dict.fromkeys(map(kind_of, _receptacles(plan, size)))
    return pairs(family, room_of(plan), tuple(kinds))


@functools.cache
def pairs(
    family: str, room: str, kinds: tuple[str, ...] | None = None
) -> tuple[tuple[str, str], ...]:
    """(target, goal) of every task of a family in a kind of room; odd ones are left out.

    kinds: of the receptacles that there are; None: all of such a room.  A target has a receptacle
    to start from that is not of the goal's kind.
    """
    kinds = tuple(ROOMS[room]) if kinds is None else kinds
    if family == "look_at_obj_in_light":
        fits = any(kind in LAMP_STANDS_ON for kind in kinds)
        startable = [t for t in FOUND_IN[room] if any(holds(kind, t) for kind in kinds)]
        return tuple((target, LAMP) for target in startable if fits)
    change = CHANGES.get(family)
    if change and TOOLS[change] not in kinds:
        return ()
    return tuple(
        (target, goal)
        for target in FOUND_IN[room]
        for goal in kinds
        if holds(goal, target)
        and (target, goal) not in ODD
        and (change is None or (goal != TOOLS[change] and target in CHANGEABLE[change]))
        and any(holds(kind, target) for kind in kinds if kind != goal)
    )


def draw(family: str, plan: int, size: str, stream: random.Random) -> Game:
    """A game of a family on a plan; object, goal and placement come from `stream`."""
    target, goal = stream.choice(_tasks(family, plan, size))
    return game_of(f"{family}/{target}/{goal}/{plan}/{size}/{stream.getrandbits(32):08x}")


@functools.lru_cache(maxsize=4096)
def game_of(identity: str) -> Game:
    """The game with this id.  Raises ValueError for one that no game has."""
    try:
        family, target, goal, number, size, seed = identity.split("/")
        _, others = SIZES[size]
        room, stream = room_of(int(number)), random.Random(int(seed, 16))
        receptacles = _receptacles(int(number), size)
        known = (target, goal) in _tasks(family, int(number), size)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{identity!r} is not the id of a game: {error}") from error
    if family not in FAMILIES or not known:
        raise ValueError(f"{identity!r} is not the id of a game: no such task in a {room}")
    kinds = [target] * (2 if family == "pick_two_obj_and_place" else 1)
    rest = [kind for kind in FOUND_IN[room] if kind != target]
    rest = [kind for kind in rest if any(holds(kind_of(r), kind) for r in receptacles)]
    kinds += stream.choices(rest, k=others)
    return Game(
        identity, family, target, goal, receptacles, _places(kinds, goal, receptacles, stream)
    )


def _receptacles(plan: int, size: str) -> tuple[str, ...]:
    """Numbered receptacles of a plan, the same for all games on it."""
    if size == "real":
        return floor_plan(plan)
    room, (most, _), stream = room_of(plan), SIZES[size], random.Random(plan)
    counts = [stream.randint(1, most) if kind in SEVERAL else 1 for kind in ROOMS[room]]
    return tuple(
        f"{kind} {number}"
        for kind, count in zip(ROOMS[room], counts, strict=True)
        for number in range(1, count + 1)
    )


def _places(
    kinds: Sequence[str], goal: str, receptacles: Sequence[str], stream: random.Random
) -> tuple[tuple[str, str], ...]:
    """Where each object lies; those of the first kind, the target, not at the goal."""
    numbers: Counter[str] = Counter()
    places = []
    for kind in kinds:
        numbers[kind] += 1
        free = [r for r in receptacles if holds(kind_of(r), kind)]
        if kind == kinds[0]:
            free = [r for r in free if kind_of(r) != goal]
        places.append((f"{kind} {numbers[kind]}", stream.choice(free)))
    stands = [r for r in receptacles if kind_of(r) in LAMP_STANDS_ON]
    if stands:
        places.append((f"{LAMP} 1", stream.choice(stands)))
    return tuple(places)


def _commands(game: Game) -> Iterator[str]:
    """Fetch every wanted object, change it where asked, and put it down or under the lamp."""
    where = dict(game.places)
    if game.goal == LAMP:
        end = where[f"{LAMP} 1"]
    else:
        end = next(r for r in game.receptacles if kind_of(r) == game.goal)
    at, opened = "", set()

    def visit(receptacle: str, *, opens: bool = True) -> Iterator[str]:
        nonlocal at
        if receptacle != at:
            yield f"go to {receptacle}"
            at = receptacle
        if opens and kind_of(receptacle) in OPENABLE and receptacle not in opened:
            yield f"open {receptacle}"
            opened.add(receptacle)

    for thing in game.wanted:
        yield from visit(where[thing])
        yield f"take {thing} from {where[thing]}"
        if game.change:
            tool = next(r for r in game.receptacles if kind_of(r) == TOOLS[game.change])
            yield from visit(tool, opens=False)
            yield f"{game.change} {thing} with {tool}"
        if game.goal == LAMP:
            yield from visit(end, opens=False)
            yield f"use {LAMP} 1"
        else:
            yield from visit(end)
            yield f"move {thing} to {end}"


WORDS = tuple(
    dict.fromkeys(
        [
            *(kind for kinds in ROOMS.values() for kind in kinds),
            *(kind for text in HOLDS.values() for kind in text.split()),
            LAMP,
            *map(str, range(1, max(count for count, _ in SIZES.values()) + 12)),
            *"put some on examine the with a clean in hot cool two heat go to open close".split(),
            *"take from move use look inventory help".split(),
        ]
    )
)
"""Every word of tasks and commands."""
