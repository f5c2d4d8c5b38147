"""Environments: what an agent can do, what it sees, and when an episode is over."""

from turncredit.environments.deep_research import DeepResearch, DeepResearchSettings
from turncredit.environments.protocol import Environment, Episode, Step

__all__ = ["DeepResearch", "DeepResearchSettings", "Environment", "Episode", "Step"]
