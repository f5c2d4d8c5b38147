"""Small tables of invented things, drawn afresh for every question: what a query tool can fail on.

A question asks in everyday words ("price"), and a table may call the same column otherwise
("cost").  Who queries without having looked at the columns is told by an error, and so is who mixes
up numbers and texts.  As in the synthetic world nothing can be memorised, and what a guess is worth
is a parameter.
"""

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from turncredit.answers import words
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.synthetic import invented_names

KINDS = ("boats", "farms", "mines", "shops", "tools", "horses", "carts", "mills")
"""What the rows of a table are, which is also its name."""
QUANTITIES = {
    "price": ("price", "cost", "fee"),
    "weight": ("weight", "mass", "load"),
    "age": ("age", "years", "seasons"),
}
"""Columns of numbers by the word a question uses: what a table may call them."""
RELATIONS = {"home": ("home", "base", "seat"), "market": ("market", "fair", "outlet")}
"""Columns of texts, in the same way."""
EXTREMES = ("max", "min")
NUMBERS = tuple(map(str, range(10, 34)))


@dataclass(frozen=True)
class Table:
    """A table with a name for each row; cells are texts, '' where one is missing."""

    name: str
    columns: Mapping[str, str]
    """Name to type, "number" or "text"."""
    rows: Mapping[str, Mapping[str, str]]
    """Cells by row and column."""


@dataclass(frozen=True)
class TableWorld:
    """Questions of one or two hops over one table that belongs to the question alone.

    Two hops: which row has the largest or smallest number, then where that row is at home.  One
    hop: the row is named.  With probability `unsolvable_share` the asked cell is missing, so that
    only a guess can win.
    """

    KIND: ClassVar[str] = "tables"

    prior: float = 0.4
    """Probability that the answer is the popular place of the table's kind."""
    unsolvable_share: float = 0.1
    one_hop_share: float = 0.3
    """Questions that name their row."""
    renamed_share: float = 0.5
    """Probability that a column is not called by the word the question uses."""
    rows: int = 3
    things: int = 40
    """Names that rows can have."""
    places: int = 16

    def __post_init__(self) -> None:
        require_shares(self, "prior", "unsolvable_share", "one_hop_share", "renamed_share")
        if not 2 <= self.rows <= min(self.things, len(NUMBERS)):
            most = min(self.things, len(NUMBERS))
            raise ValueError(f"rows = {self.rows} must be in 2..{most}")
        if self.places < len(KINDS):
            raise ValueError(f"places = {self.places} must be at least {len(KINDS)}")
        object.__setattr__(self, "_thing_names", invented_names(self.things, ("o", "a")))
        object.__setattr__(self, "_place_names", invented_names(self.places, ("burg", "ville")))

    @property
    def names(self) -> tuple[str, ...]:
        """Things and places."""
        return self._thing_names + self._place_names

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that a question, table or answer can hold."""
        columns = [name for names in (QUANTITIES | RELATIONS).values() for name in names]
        return (*self.names, *KINDS, *columns, *EXTREMES, *NUMBERS, "of", "number", "text")

    def popular_place(self, kind: str) -> str:
        """The place that such things most often belong to."""
        return self._place_names[KINDS.index(kind) % self.places]

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` questions, each with a table of its own."""
        return [self._question(stream) for _ in range(count)]

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """`count` fixed questions from the same distribution."""
        return self.train_questions(count, python_stream(seed, "table evaluation questions"))

    def table(self, question: Question) -> Table:
        """The table of a question, rebuilt from its id."""
        return _from_identity(self, question.id)[1]

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """The rows that the query names, as documents; a table is queried, not searched."""
        table, asked = self.table(question), set(words(query))
        named = [(name, cells) for name, cells in table.rows.items() if name in asked]
        return [
            Document(name, name, "\n\n".join(f"{name} {c} {v}" for c, v in cells.items()))
            for name, cells in named[:k]
        ]

    def _question(self, stream: random.Random) -> Question:
        identity = f"{stream.getrandbits(48):012x}"
        return _from_identity(self, identity)[0]


@functools.lru_cache(maxsize=4096)
def _from_identity(world: TableWorld, identity: str) -> tuple[Question, Table]:
    """A question and its table, both a function of the world's parameters and the id alone."""
    stream = random.Random(int(identity, 16))
    kind, relation = stream.choice(KINDS), stream.choice(tuple(RELATIONS))
    extreme, quantity = stream.choice(EXTREMES), stream.choice(tuple(QUANTITIES))
    things = stream.sample(world._thing_names, world.rows)
    called = {
        asked: stream.choice(names[1:]) if stream.random() < world.renamed_share else names[0]
        for asked, names in (QUANTITIES | RELATIONS).items()
    }
    numbers = {asked: stream.sample(NUMBERS, world.rows) for asked in QUANTITIES}
    places = {asked: stream.choices(world._place_names, k=world.rows) for asked in RELATIONS}
    ranked = sorted(range(world.rows), key=lambda row: int(numbers[quantity][row]))
    chosen = ranked[-1] if extreme == "max" else ranked[0]
    popular = world.popular_place(kind)
    others = [place for place in world._place_names if place != popular]
    answer = popular if stream.random() < world.prior else stream.choice(others)
    unsolvable = stream.random() < world.unsolvable_share
    one_hop = stream.random() < world.one_hop_share
    places[relation][chosen] = "" if unsolvable else answer
    order = stream.sample(tuple(called), len(called))
    cells = numbers | places
    table = Table(
        kind,
        {called[asked]: "number" if asked in QUANTITIES else "text" for asked in order},
        {
            thing: {called[asked]: cells[asked][row] for asked in order}
            for row, thing in enumerate(things)
        },
    )
    thing, found = things[chosen], f"{extreme} {called[quantity]} {things[chosen]}"
    evidence = "" if unsolvable else f"{thing} {called[relation]} {answer}"
    first = Hop(kind, f"{extreme} {quantity}", thing, found)
    last = Hop(thing, relation, answer, evidence)
    question = Question(
        id=identity,
        text=f"{relation} of {thing if one_hop else f'{extreme} {quantity}'} {kind}",
        answers=(answer,),
        hops=(last,) if one_hop else (first, last),
        kind=relation if one_hop else f"{extreme} {quantity} > {relation}",
        guess=popular,
    )
    return question, table
