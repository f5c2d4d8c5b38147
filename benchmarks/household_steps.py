"""Steps per second of the household games, by the rules in Python and by ALFWorld's engine.

    PYTHONPATH=lib .venv/bin/python benchmarks/household_steps.py [--games 16] [--workers 2]
    PYTHONPATH=lib .venv/bin/python benchmarks/household_steps.py --memory 1000

With `--memory` one worker that is never replaced plays so many games of all families in real rooms,
each to its end by its walkthrough, and every hundredth game its memory is printed (MB, seconds of
the wall since the start, games won).

A printed line is a row of Markdown: who plays, kind of room, games at a time, steps per second of
the wall (loading apart), seconds to load a game, largest memory of a worker in MB.  Eight games go
on at once, each given a random admissible command a round, 20 rounds; `--games` of them in all.
Rooms are real floor plans where the package alfworld is there, else large made-up ones.  Without
the engine's packages only the rules are timed, and the output says so.
"""

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from turncredit.environments.alfworld import EngineGames
from turncredit.environments.alfworld.package import missing_packages
from turncredit.environments.alfworld.workers import Lost
from turncredit.environments.household import Play
from turncredit.worlds.household.games import FAMILIES, Game, draw, plans

AT_ONCE, ROUNDS = 8, 20
PLANS = {"kitchen": range(7, 31), "bedroom": range(307, 331)}


def main(arguments: argparse.Namespace) -> None:
    """Print a row for each way to play and kind of room."""
    missing = missing_packages()
    if arguments.memory:
        memory_over(arguments.memory)
        return
    size = "large" if "alfworld" in missing else "real"
    print(f"| played by | room ({size}) | at once | steps/s | load s | worker MB |")
    print("|---|---|---|---|---|---|")
    for room, numbers in PLANS.items():
        stream = random.Random(0)
        games = [
            draw("pick_and_place_simple", stream.choice(numbers), size, stream)
            for _ in range(arguments.games)
        ]
        row("rules", room, games, None)
        if not missing:
            row("engine", room, games, EngineGames(arguments.workers))
    if missing:
        print(f"\nThe engine was not timed: {', '.join(missing)} missing.")


def row(name: str, room: str, games: Sequence[Game], engine: EngineGames | None) -> None:
    """Play the games, `AT_ONCE` at a time, and print what it took."""
    loading = playing = memory = 0.0
    steps = 0
    for start in range(0, len(games), AT_ONCE):
        clock = time.perf_counter()
        if engine:
            engine.prepare(games[start : start + AT_ONCE])
        plays = [(engine or Play)(game) for game in games[start : start + AT_ONCE]]
        loading += time.perf_counter() - clock
        stream = random.Random(start)
        clock = time.perf_counter()
        for _ in range(ROUNDS):
            steps += take_a_step(plays, stream, engine)
        playing += time.perf_counter() - clock
        memory = max([memory, *map(memory_of, engine.pool.workers if engine else ())])
        for play in plays:
            play.leave()
    shown = f"{memory:.0f}" if engine else "-"
    rate, load = steps / playing, loading / len(games)
    print(f"| {name} | {room} | {AT_ONCE} | {rate:.0f} | {load:.2f} | {shown} |", flush=True)
    if engine:
        engine.close()


def take_a_step(plays: Sequence[Any], stream: random.Random, engine: EngineGames | None) -> int:
    """One random admissible command to each game; how many there were."""
    commands = [stream.choice(play.admissible()) for play in plays]
    if engine:
        engine.do_all(plays, commands)
    else:
        for play, command in zip(plays, commands, strict=True):
            play.do(command)
    return len(plays)


def memory_over(count: int) -> None:
    """Print what a worker's memory comes to over many games, and stop if one is not won."""
    engine, stream, clock = EngineGames(1, recycle_after=count + 1), random.Random(0), time.time()
    print("| games | won | worker MB | s |\n|---|---|---|---|")
    for number, family in enumerate(itertools.islice(itertools.cycle(FAMILIES), count), start=1):
        plan = stream.choice(plans(family, held_out=False, size="real"))
        play = engine(draw(family, plan, "real", stream))
        for command in play.game.walkthrough:
            play.do(command)
        if not play.won:
            raise RuntimeError(f"{play.game.id} is not won: {play.lost or 'no error'}")
        play.leave()
        if number % 100 == 0 or number in (1, count):
            memory = memory_of(engine.pool.workers[0])
            print(f"| {number} | {number} | {memory:.0f} | {time.time() - clock:.0f} |", flush=True)
    engine.close()


def memory_of(worker: Any) -> float:
    """Resident memory of a worker in MB; 0 if it does not answer."""
    try:
        return worker.fetch(worker.send("memory"), 60.0)
    except Lost:
        return 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=int, default=0, metavar="GAMES")
    main(parser.parse_args())
