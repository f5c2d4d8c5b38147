"""Environments: what an agent can do, what it sees, and when an episode is over."""

from turncredit.environments.deep_research import DeepResearch, DeepResearchSettings
from turncredit.environments.household import Household, HouseholdSettings
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.environments.search_r1 import SearchR1, SearchR1Settings
from turncredit.environments.table_query import TableQuery, TableQuerySettings
from turncredit.environments.wording import WORDINGS, Wording

__all__ = [
    "WORDINGS",
    "DeepResearch",
    "DeepResearchSettings",
    "Environment",
    "Episode",
    "Household",
    "HouseholdSettings",
    "SearchR1",
    "SearchR1Settings",
    "Step",
    "TableQuery",
    "TableQuerySettings",
    "Wording",
]
