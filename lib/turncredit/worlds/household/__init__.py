"""Household chores in generated rooms, in the six families of ALFWorld's games."""

from turncredit.worlds.household.games import FAMILIES, Game, game_of
from turncredit.worlds.household.world import HouseholdWorld

__all__ = ["FAMILIES", "Game", "HouseholdWorld", "game_of"]
