"""A scripted user of the table tools, who errs as people do and learns from the error message."""

import random
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from turncredit.answers import words
from turncredit.worlds.base import Hop, Question
from turncredit.worlds.tables import EXTREMES, QUANTITIES, RELATIONS


def consult(
    question: Question,
    names: Sequence[str],
    settings: Any,
    stream: random.Random,
) -> Generator[str, str, None]:
    """Ask for the hops one by one, then answer; ends with an answer whatever happens.

    settings: `DemonstrationSettings`.  `verify` is the probability of looking at the columns before
    the first query; who does not uses the question's words until an error lists the table's own.
    `error` is that of a wrong query before a right one.  Each query follows a thought that names
    what is wanted, and in half of the errors the thought is wrong already.
    """
    if stream.random() < settings.guess_first:
        yield f"<answer> {question.guess} </answer>"
    columns: set[str] = set()
    if stream.random() < settings.verify:
        columns |= listed((yield f"<schema> {words(question.text)[-1]} </schema>"))
    for number, hop in enumerate(question.hops):
        found = yield from _ask(hop, names, settings, stream, columns, first=number == 0)
        if not found:
            yield f"<answer> {question.guess} </answer>"
    yield f"<answer> {question.hops[-1].value} </answer>"


def _ask(
    hop: Hop,
    names: Sequence[str],
    settings: Any,
    stream: random.Random,
    columns: set[str],
    *,
    first: bool,
) -> Generator[str, str, bool]:
    """Query until the hop is stated; False where its cell is empty or patience runs out."""
    for attempt in range(settings.patience):
        if (attempt or not first) and stream.random() < settings.quit:
            return False
        if stream.random() < settings.error:
            columns |= listed((yield slip(hop, names, columns, stream)))
        seen = yield message(hop, query(hop, columns))
        columns |= listed(seen)
        if hop.paragraph and _states(seen, hop.paragraph):
            return True
        if "error" not in words(seen):  # the tools are deterministic: it would be empty again
            return False
    return False


def message(hop: Hop, asked: str) -> str:
    """A thought that names what the hop wants, then the query."""
    wanted = hop.relation if is_extreme(hop) else f"{hop.relation} {hop.title}"
    return f"<think> {wanted} </think> <query> {asked} </query>"


def query(hop: Hop, columns: Iterable[str]) -> str:
    """The query for a hop, in the column names that are known, or else in the question's words.

    >>> query(Hop("boats", "max price", "bano", ""), ["cost", "home"])
    'max cost'
    >>> query(Hop("bano", "home", "delburg", ""), ["cost"])
    'get home bano'
    """
    *verb, asked = hop.relation.split()
    known = [name for name in (QUANTITIES | RELATIONS)[asked] if name in set(columns)]
    column = known[0] if known else asked
    return f"{verb[0]} {column}" if verb else f"get {column} {hop.title}"


def slip(hop: Hop, names: Sequence[str], columns: Iterable[str], stream: random.Random) -> str:
    """A message that goes wrong: a word lost, a wrong column or row, or an extreme of texts.

    Half of the time the thought before it is right and only the query is not.
    """
    verb, column, *row = query(hop, columns).split()
    other = stream.choice([name for names in (QUANTITIES | RELATIONS).values() for name in names])
    text = stream.choice([name for names in RELATIONS.values() for name in names])
    wrong = [f"{verb} {verb} {column}", f"{verb} {other} {' '.join(row)}".strip()]
    if row:
        wrong += [f"get {column}", f"get {column} {stream.choice(names)}"]
    else:
        wrong += [column, f"{verb} {text}"]
    thought = hop
    if stream.random() < 0.5:
        thought = Hop(stream.choice(names), stream.choice(tuple(RELATIONS)), "", "")
    return message(thought, stream.choice(wrong))


def listed(observation: str) -> set[str]:
    """The column names that an observation lists, in a schema or an error.

    >>> sorted(listed("<information> columns cost number base text </information>"))
    ['base', 'cost']
    """
    said = [word for word in words(observation) if not word.startswith("<")]
    if "columns" not in said:
        return set()
    return set(said[said.index("columns") + 1 :: 2])


def is_extreme(hop: Hop) -> bool:
    """Whether a hop asks for the row with the largest or smallest number."""
    return hop.relation.split()[0] in EXTREMES


def _states(text: str, phrase: str) -> bool:
    return f" {' '.join(words(phrase))} " in f" {' '.join(words(text))} "
