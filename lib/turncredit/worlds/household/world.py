"""Chores as questions: drawn on plans for training, asked again on plans that were held out."""

import random
from dataclasses import dataclass
from typing import ClassVar

from turncredit.seeding import python_stream
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.household.games import FAMILIES, SIZES, WORDS, Game, draw, plans


@dataclass(frozen=True)
class HouseholdWorld:
    """Games of the given families, in rooms of one size.

    Rooms and placements are generated, so no result on them is one on ALFWorld's own games.
    """

    KIND: ClassVar[str] = "household"

    families: tuple[str, ...] = tuple(FAMILIES)
    """Names in `FAMILIES`; an evaluation holds equally many games of each, in this order."""
    size: str = "medium"
    """A name in `SIZES`: how many receptacles of a kind there may be, and other objects."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.families if name not in FAMILIES]
        if unknown or not self.families:
            raise ValueError(f"families = {self.families!r} must be some of {', '.join(FAMILIES)}")
        if self.size not in SIZES:
            raise ValueError(f"size = {self.size!r} is not one of {', '.join(SIZES)}")

    @property
    def names(self) -> tuple[str, ...]:
        """None: every word of this world says what can be done with a thing."""
        return ()

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of tasks and commands; real rooms have up to 28 receptacles of a kind."""
        return (*WORDS, *map(str, range(1, 31))) if self.size == "real" else WORDS

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` games on plans for training, of random families."""
        drawn = []
        for _ in range(count):
            family = stream.choice(self.families)
            plan = stream.choice(plans(family, held_out=False, size=self.size))
            drawn.append(question_of(draw(family, plan, self.size, stream)))
        return drawn

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """`count` fixed games on held-out plans, of all families in turn."""
        stream = python_stream(seed, "household evaluation questions")
        drawn = []
        for number in range(count):
            family = self.families[number % len(self.families)]
            plan = stream.choice(plans(family, held_out=True, size=self.size))
            drawn.append(question_of(draw(family, plan, self.size, stream)))
        return drawn

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """Nothing: a room has no documents."""
        return []


def question_of(game: Game) -> Question:
    """A game as a question, whose hops are the commands of its walkthrough.

    It has no answer, as nothing is handed in; its kind is the family.
    """
    hops = tuple(Hop(game.target, command, "", command) for command in game.walkthrough)
    return Question(game.id, game.task, (), hops, game.family, "")
