"""A generated game as ALFWorld's engine reads it: a planning problem beside domain and grammar."""

import json
from collections.abc import Iterator

from turncredit.worlds.household.games import Game
from turncredit.worlds.household.kinds import (
    CHANGEABLE,
    HOLDS,
    LAMP,
    OPENABLE,
    SLICEABLE,
    VESSELS,
    holds,
    kind_of,
)

AGENT, START = "agent1", "loc0"
_NAMED_BY_DOMAIN = ("sinkbasin", "microwave", "fridge"), ("knife", "butterknife")
"""Types of receptacles and objects that the domain mentions, so that each must be declared."""


def game_file(problem_text: str, task: str, domain: str, grammar: str) -> str:
    """The JSON text of a `game.tw-pddl`."""
    parts = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", task),
        "pddl_problem": problem_text,
        "solvable": True,
    }
    return json.dumps(parts)


def entity(name: str) -> str:
    """The id from which the engine's demangler makes a numbered name again.

    It numbers the ids of a kind backwards in alphabetical order, and a sink basin is a part of a
    sink.

    >>> entity("drawer 2"), entity("sinkbasin 1")
    ('drawer_bar_98', 'sink_bar_99_bar_sinkbasin')
    """
    kind, _, number = name.rpartition(" ")
    place = f"{100 - int(number):02d}"
    if kind == "sinkbasin":
        return f"sink_bar_{place}_bar_sinkbasin"
    return f"{kind}_bar_{place}"


def problem(game: Game, goal: str) -> str:
    """The planning problem; `goal` is the formula of the game's family, which closes the text."""
    filled = goal.format(obj=game.target, recep=game.goal, toggle=game.goal, mrecep="")
    closed = filled.replace("#", "-").rstrip().removesuffix(")")
    facts = "\n".join(f"    ({fact})" for fact in _facts(game))
    objects = "\n".join(f"    {line}" for line in _objects(game))
    return (
        f"(define (problem chore)\n  (:domain alfred)\n  (:objects\n{objects}\n  )\n"
        f"  (:init\n{facts}\n  )\n{closed}\n  (:metric minimize (total-cost))\n)\n"
    )


def _objects(game: Game) -> Iterator[str]:
    """Every constant with its type."""
    receptacle_types = {*map(kind_of, game.receptacles), *_NAMED_BY_DOMAIN[0]}
    object_types = {*_kinds(), *_NAMED_BY_DOMAIN[1], LAMP}
    yield f"{AGENT} - agent"
    yield from (f"{entity(name)} - object" for name, _ in game.places)
    yield from (f"{entity(name)} - receptacle" for name in game.receptacles)
    yield from (f"loc{number} - location" for number in range(len(game.receptacles) + 1))
    yield from (f"{kind}type - rtype" for kind in sorted(receptacle_types))
    yield from (f"{kind}type - otype" for kind in sorted(object_types))


def _kinds() -> list[str]:
    return sorted({thing for things in HOLDS.values() for thing in things.split()})


def _facts(game: Game) -> Iterator[str]:
    """What holds at the start."""
    yield f"atlocation {AGENT} {START}"
    yield "= (total-cost) 0"
    where = {name: f"loc{number}" for number, name in enumerate(game.receptacles, 1)}
    for name, location in where.items():
        receptacle, kind = entity(name), kind_of(name)
        yield f"receptacletype {receptacle} {kind}type"
        yield f"receptacleatlocation {receptacle} {location}"
        if kind in OPENABLE:
            yield f"openable {receptacle}"
    for kind in sorted({*map(kind_of, game.receptacles)}):
        yield from (
            f"cancontain {kind}type {thing}type" for thing in _kinds() if holds(kind, thing)
        )
    for name, receptacle in game.places:
        thing, kind = entity(name), kind_of(name)
        yield f"objecttype {thing} {kind}type"
        yield f"inreceptacle {thing} {entity(receptacle)}"
        yield f"objectatlocation {thing} {where[receptacle]}"
        yield from (f"{quality} {thing}" for quality in _qualities(kind))


def _qualities(kind: str) -> Iterator[str]:
    if kind == LAMP:
        yield "toggleable"
        return
    yield "pickupable"
    yield from (f"{change}able" for change, kinds in CHANGEABLE.items() if kind in kinds)
    if kind in SLICEABLE:
        yield "sliceable"
    if kind in VESSELS:
        yield "isreceptacleobject"
