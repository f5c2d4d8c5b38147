"""ALFWorld's own games, for who has downloaded them (`alfworld-download`): nothing is fetched here.

They lie below the folder that the variable ALFWORLD_DATA names, in `json_2.1.1/<split>`, each with
its problem in `game.tw-pddl` and its task in `traj_data.json`.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.worlds.base import Question
from turncredit.worlds.household.games import FAMILIES

SPLITS = ("train", "valid_seen", "valid_unseen")
_REMEDY = "run alfworld-download, or leave ALFWORLD_DATA unset for generated games"


@dataclass(frozen=True)
class OfficialGame:
    """One of ALFWorld's games."""

    id: str
    """Its folder below the split."""
    family: str
    task: str
    """In the words of the family's template, not of a person."""
    path: Path
    walkthrough: tuple[str, ...]
    """As stored in the game's file; () where it stores none."""

    def read_problem(self) -> str:
        """The planning problem.  Raises ValueError naming the file if it holds none."""
        return _read(self.path, "pddl_problem")["pddl_problem"]


@dataclass(frozen=True)
class OfficialGames:
    """The playable games of a split."""

    split: str
    games: Mapping[str, OfficialGame]
    skipped: Mapping[str, int]
    """Folders without a playable game, by cause."""

    @property
    def label(self) -> str:
        """What results on these games are called."""
        return f"ALFWorld, {self.split}"

    @property
    def questions(self) -> list[Question]:
        """The games as questions, in order of their folders."""
        return [Question(g.id, g.task, (), (), g.family, "") for g in self.games.values()]

    def game(self, identity: str) -> OfficialGame:
        """The game of a question's id: the `game` of a `Household`."""
        return self.games[identity]


def official_games(split: str, folder: Path | None = None) -> OfficialGames:
    """Find the games of a split below `folder` (default: ALFWORLD_DATA).

    Skipped and counted are folders of movable receptacles and sliced objects, which the engine's
    text games do not support, of other families, without a game file, with one that cannot be read,
    and those that are not known to have a solution.
    Raises ValueError saying what to do for an unknown split and where no game is left.
    """
    if split not in SPLITS:
        raise ValueError(f"split = {split!r} is not one of {', '.join(SPLITS)}")
    folder = folder or Path(os.environ.get("ALFWORLD_DATA", ""))
    root = folder / "json_2.1.1" / split
    games: dict[str, OfficialGame] = {}
    skipped: Counter[str] = Counter()
    for task in sorted(root.rglob("traj_data.json")):
        identity = task.parent.relative_to(root).as_posix()
        try:
            games[identity] = _game(identity, task)
        except _Skipped as reason:
            skipped[str(reason)] += 1
    if not games:
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(skipped.items()))
        raise ValueError(f"{root}: no playable game ({causes or 'no folder or empty'}); {_REMEDY}")
    return OfficialGames(split, games, dict(sorted(skipped.items())))


class _Skipped(Exception):
    """Why a folder holds no game to play."""


def _game(identity: str, task: Path) -> OfficialGame:
    if "movable" in identity or "Sliced" in identity:
        raise _Skipped("movable or sliced")
    path = task.with_name("game.tw-pddl")
    if not path.is_file():
        raise _Skipped("without game file")
    try:
        told, parts = _read(task, "task_type", "pddl_params"), _read(path, "pddl_problem")
        family, sentence = told["task_type"], _sentence(told)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _Skipped("unreadable") from None
    if sentence is None:
        raise _Skipped("of another family")
    if parts.get("solvable") is not True:
        raise _Skipped("without solution")
    return OfficialGame(identity, family, sentence, path, tuple(parts.get("walkthrough") or ()))


def _sentence(told: Mapping[str, Any]) -> str | None:
    """The task in the family's words; None for a family that there is not."""
    template, named = FAMILIES.get(told["task_type"]), told["pddl_params"]
    if template is None:
        return None
    goal = "toggle_target" if told["task_type"] == "look_at_obj_in_light" else "parent_target"
    return template.format(target=named["object_target"].lower(), goal=named[goal].lower())


def _read(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON object with these keys; ValueError naming the file otherwise."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if type(values) is not dict or not values.keys() >= {*keys}:
        raise ValueError(f"{path}: no object with {', '.join(keys)}")
    return values
