"""The environments of this package as subjects of the conformance check, and those of others."""

import importlib
import random
from collections.abc import Callable
from dataclasses import replace

from turncredit.environments.alfworld import EngineGames
from turncredit.environments.conformance import Subject
from turncredit.environments.deep_research import DeepResearch, DeepResearchSettings
from turncredit.environments.household import Household, HouseholdSettings
from turncredit.environments.judges import RuleJudge
from turncredit.environments.protocol import Episode
from turncredit.environments.search_r1 import SearchR1, SearchR1Settings
from turncredit.environments.table_query import TableQuery, TableQuerySettings
from turncredit.environments.toy_tree import ToyTree, search_or_guess
from turncredit.environments.wording import WORDINGS
from turncredit.environments.wrappers import Disturbances, disturbed
from turncredit.worlds.base import Question
from turncredit.worlds.household import HouseholdWorld
from turncredit.worlds.synthetic import SyntheticWorld
from turncredit.worlds.tables import TableWorld

_SMALL = SyntheticWorld(films=12, people=12, cities=8)


def deep_research() -> Subject:
    """Malformed messages cost a turn, so that episodes are long."""
    settings = DeepResearchSettings(minimum_paragraph=1, invalid_ends=False, invalid_penalty=0.1)
    environment = DeepResearch(_SMALL, RuleJudge(knowledge=0.3, noise=0.1), settings)
    return Subject(environment, _SMALL.evaluation_questions(12))


def deep_research_json() -> Subject:
    """The same under the protocol of tool calls."""
    wording = WORDINGS["deep_research_json"]
    judge = RuleJudge(knowledge=0.3, noise=0.1)
    environment = DeepResearch(_SMALL, judge, DeepResearchSettings(), wording=wording)
    return Subject(environment, _SMALL.evaluation_questions(12), "json")


def search_r1() -> Subject:
    """The short horizon."""
    environment = SearchR1(_SMALL, SearchR1Settings(best_paragraph=True))
    return Subject(environment, _SMALL.evaluation_questions(12))


def table_query() -> Subject:
    """Tools that can fail."""
    world = TableWorld(things=12, places=8)
    environment = TableQuery(world, TableQuerySettings(invalid_ends=False))
    return Subject(environment, world.evaluation_questions(12))


def toy_tree() -> Subject:
    """The tree that can be enumerated; half of the messages are responses that it knows."""
    tree = search_or_guess()
    question = Question("tree", tree.prompt, (), (), "tree", "")

    def respond(episode: Episode, stream: random.Random) -> str:
        return " ".join(stream.choice(tree.responses).words)

    return Subject(ToyTree(tree), [question], say=respond)


def household() -> Subject:
    """Chores in full wording; half of the messages are admissible commands."""
    world = HouseholdWorld(size="small")

    def act(episode: Episode, stream: random.Random) -> str:
        return f"<action> {stream.choice(episode.play.admissible())} </action>"

    environment = Household(HouseholdSettings(max_turns=20))
    return Subject(environment, world.evaluation_questions(12), say=act)


def alfworld() -> Subject:
    """The same chores by ALFWorld's own engine; RuntimeError where its packages are missing."""
    chores = household()
    environment = replace(chores.environment, play=EngineGames(2))
    return replace(chores, environment=environment)


def disturbed_research() -> Subject:
    """Deep research with everything that `Disturbances` knows."""
    bad = Disturbances(tool_failure=0.3, word_drop=0.1, word_swap=0.1, outcome_flip=0.2)
    research = deep_research()
    return Subject(disturbed(research.environment, bad), research.questions)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "deep_research": deep_research,
    "deep_research_json": deep_research_json,
    "search_r1": search_r1,
    "table_query": table_query,
    "toy_tree": toy_tree,
    "household": household,
    "alfworld": alfworld,
    "disturbed": disturbed_research,
}
"""Subjects by name, each made when it is asked for."""


def open_subject(name: str) -> Subject:
    """One of `SUBJECTS`, or `module:function` of yours, which returns a `Subject`.

    Raises ValueError for a name that is neither, or whose function returns something else.
    """
    if name in SUBJECTS:
        return SUBJECTS[name]()
    module, _, function = name.partition(":")
    if not function:
        known = ", ".join(SUBJECTS)
        raise ValueError(f"NAME={name!r} is none of {known}, and no module:function of yours")
    try:
        subject = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"NAME={name!r}: {error}") from error
    for part in ("environment", "questions", "longest"):
        if not hasattr(subject, part):
            raise ValueError(f"NAME={name!r} returned {type(subject).__name__}, not a Subject")
    return subject
