"""Household chores by the rules of ALFWorld's text games, in Python alone.

A stand-in: rooms and placements are generated and the engine is not ALFWorld's own, which is why
the environment has a name of its own.  Results on it are none on ALFWorld.
"""

from turncredit.environments.household.environment import Household, HouseholdSettings
from turncredit.environments.household.rules import Play

__all__ = ["Household", "HouseholdSettings", "Play"]
