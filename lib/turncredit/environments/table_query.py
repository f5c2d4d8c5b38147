"""Questions about a table that is asked by queries, which can fail with an error message.

The tools are deterministic: a call that fails has been avoidable, and fails again when repeated.
The query language is small enough for a word-level policy; blanks separate its words.

    get COLUMN ROW    the cell: "bano cost 17", "none" for a missing one
    max COLUMN        the row with the largest number: "max cost bano"; likewise min
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

from turncredit.answers import exact_match, words
from turncredit.environments.episode import QuestionEpisode
from turncredit.environments.oracle import Oracle, has_oracle
from turncredit.environments.reading import evidence, holds
from turncredit.environments.wording import Wording
from turncredit.params import require_positive
from turncredit.worlds.base import Question
from turncredit.worlds.tables import EXTREMES, Table, TableWorld

ERRORS = ("syntax", "column", "row", "type", "table")
"""What a call can fail by: `Step.error`, and the second word of its observation."""
SAID = "get columns error none <think> </think>"
"""Words of queries, results and messages beside those of the world."""


@dataclass(frozen=True)
class TableQuerySettings:
    """Constants of the environment."""

    KIND: ClassVar[str] = "table_query"

    max_turns: int = 12
    error_lists_columns: bool = True
    """The error about an unknown column says which ones there are."""
    invalid_ends: bool = True
    """A malformed message ends the episode; otherwise it costs its turn and the penalty."""
    invalid_penalty: float = 0.0
    """Subtracted from the reward for each malformed message."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turns")
        if self.invalid_penalty < 0:
            raise ValueError(f"invalid_penalty = {self.invalid_penalty} must not be below 0")


class Result(NamedTuple):
    """What a call returned."""

    text: str
    error: str | None = None
    """One of `ERRORS`; None if the call worked."""


def run_call(table: Table, action: str, argument: str, *, list_columns: bool = True) -> Result:
    """What a tool says of a table: `schema` with its name, or `query`.  Never raises.

    >>> table = Table("boats", {"cost": "number", "base": "text"}, {"bano": {"cost": "17"}})
    >>> run_call(table, "schema", "boats")
    Result(text='columns cost number base text', error=None)
    >>> run_call(table, "query", "get price bano", list_columns=False)
    Result(text='error column price', error='column')
    >>> run_call(table, "query", "max base").text, run_call(table, "query", "max cost").text
    ('error type base text', 'max cost bano')
    """
    if action == "schema":
        if words(argument) != [table.name]:
            return Result("error table", "table")
        return Result(_columns(table))
    match words(argument):
        case [verb, column] if verb in EXTREMES:
            return _missing(table, column, list_columns) or _extreme(table, verb, column)
        case ["get", column, row]:
            return _missing(table, column, list_columns) or _cell(table, column, row)
    return Result("error syntax", "syntax")


def _columns(table: Table) -> str:
    return " ".join(("columns", *(f"{name} {kind}" for name, kind in table.columns.items())))


def _missing(table: Table, column: str, list_columns: bool) -> Result | None:
    """The error about a column that the table has not."""
    if column in table.columns:
        return None
    known = f" {_columns(table)}" if list_columns else ""
    return Result(f"error column {column}{known}", "column")


def _extreme(table: Table, verb: str, column: str) -> Result:
    if table.columns[column] != "number":
        return Result(f"error type {column} {table.columns[column]}", "type")
    numbers = {row: int(cells[column]) for row, cells in table.rows.items()}
    row = (max if verb == "max" else min)(numbers, key=numbers.__getitem__)
    return Result(f"{verb} {column} {row}")


def _cell(table: Table, column: str, row: str) -> Result:
    if row not in table.rows:
        return Result(f"error row {row}", "row")
    return Result(f"{row} {column} {table.rows[row][column] or 'none'}")


@dataclass(frozen=True)
class TableQuery:
    """A factory of episodes over a world of tables."""

    world: TableWorld
    settings: TableQuerySettings
    actions: tuple[str, ...] = ("schema", "query", "answer")
    wording: Wording = field(default_factory=Wording)
    counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    """Failed calls so far by their error, over all episodes."""

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that the environment itself says, for a word-level vocabulary."""
        return tuple(dict.fromkeys([*self.wording.words(), *words(SAID), *ERRORS]))

    @property
    def failures(self) -> dict[str, int]:
        """Failed calls by error, over all episodes so far."""
        return {f"call_{error}": count for error, count in sorted(self.counts.items())}

    def call(self, question: Question, action: str, argument: str) -> Result:
        """What a tool says of a question's table."""
        listed = self.settings.error_lists_columns
        return run_call(self.world.table(question), action, argument, list_columns=listed)

    def reset(self, question: Question, stream: random.Random) -> "TableQueryEpisode":
        """Start an episode; nothing in it is by chance."""
        return TableQueryEpisode(self, question, stream)


class TableQueryEpisode(QuestionEpisode):
    """One question being looked up."""

    def _new_oracle(self) -> "TableOracle | None":
        return TableOracle(self.question, self.environment) if has_oracle(self.question) else None

    def call(self, action: str, argument: str) -> Result:
        """What a tool would say; changes nothing."""
        return self.environment.call(self.question, action, argument)

    def _use(self, action: str, argument: str) -> str:
        result = self.call(action, argument)
        if result.error is None:
            return self._show(result.text)
        self._error = result.error
        self.environment.counts[result.error] += 1
        return result.text


class TableOracle(Oracle):
    """The oracle where every call's result is known before it is made.

    On the path are a look at the columns while there was none and something is still to be found, a
    query whose result states the first hop that was not shown yet, and after the last hop the right
    answer.  A call that fails is off it, and so is one that repeats what was shown.  At most an
    answer follows from a wrong turn, where it stands in what that has shown.
    """

    def __init__(self, question: Question, environment: TableQuery) -> None:
        super().__init__(question, environment.settings)
        self._call = partial(environment.call, question)
        self._knows_columns = False

    def learn(
        self, shown: Sequence[str], listing: str = "", first: str = "", verdict: str = ""
    ) -> None:
        """Take note of what a turn shows the policy."""
        self._knows_columns |= any(text.startswith("columns ") for text in shown)
        super().learn(shown, listing, first, verdict)

    def _is_needed(self, action: str, argument: str) -> bool:
        if self._is_lost():
            return True
        if action == "answer":
            return not self._unread and bool(exact_match(argument, self._question.answers))
        if action not in ("schema", "query") or not self._unread:
            return False
        result = self._call(action, argument)
        if action == "schema":
            return result.error is None and not self._knows_columns
        return result.error is None and holds(result.text, evidence(self._unread[0]))
