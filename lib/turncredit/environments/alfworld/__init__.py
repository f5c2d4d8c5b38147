"""Chores played by ALFWorld's own engine, from its pip packages alone.

Domain, grammar, goals, parser and state are those of the packages `alfworld` and `textworld`; the
rooms and what lies where in them are generated (`turncredit.worlds.household`).  Label results on
these games with `LABEL`: they are not ALFWorld's own games, which `official_games` finds for who
has downloaded them.
"""

from turncredit.environments.alfworld.official import OfficialGames, official_games
from turncredit.environments.alfworld.package import LABEL, require_packages
from turncredit.environments.alfworld.play import EngineGames, EnginePlay, player

__all__ = [
    "LABEL",
    "EngineGames",
    "EnginePlay",
    "OfficialGames",
    "official_games",
    "player",
    "require_packages",
]
