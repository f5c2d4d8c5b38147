"""Film -> person -> city: a world of invented facts, drawn afresh for every question.

Nothing can be memorised, so training and test questions share one distribution, and what a guess
is worth is a parameter: the popularity prior of the answer and what the verifier knows by itself
(the latter belongs to the environment's judge).
"""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from turncredit.answers import distinct_words
from turncredit.params import require_shares
from turncredit.seeding import python_stream
from turncredit.worlds.base import Document, Hop, Question

ROLES = ("director", "writer", "composer")
RELATIONS = ("birthplace", "residence", "deathplace")
GENRES = ("comedy", "drama", "western", "thriller", "musical", "romance", "mystery", "adventure")


def invented_names(count: int, endings: tuple[str, ...]) -> tuple[str, ...]:
    """`count` distinct pronounceable words, the same for every call.

    >>> invented_names(3, ("o", "a"))
    ('bano', 'bana', 'belo')
    """
    return tuple(_take(_names(endings), count))


def _names(endings: tuple[str, ...]) -> Iterator[str]:
    onsets = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
    middles = ("an", "el", "ir", "om", "ul", "ar", "en", "is", "ov", "um")
    for index in range(len(onsets) * len(middles)):
        stem = onsets[index // len(middles)] + middles[index % len(middles)]
        for ending in endings:
            yield stem + ending


def _take(names: Iterator[str], count: int) -> list[str]:
    taken = [name for name, _ in zip(names, range(count), strict=False)]
    if len(taken) < count:
        raise ValueError(f"only {len(taken)} names can be invented, {count} wanted")
    return taken


@dataclass(frozen=True)
class SyntheticWorld:
    """Two-hop questions over a small set of documents that belongs to one question alone.

    Each question has one film (three people), the documents of six people (three cities each) and
    one distractor film.  With probability `unsolvable_share` the asked person's document lacks the
    asked paragraph, so that only a guess can win.
    """

    KIND: ClassVar[str] = "synthetic"

    prior: float = 0.55
    """Probability that the answer is the popular city of the film's genre."""
    unsolvable_share: float = 0.2
    miss_rate: float = 0.25
    """Probability that one search does not return the wanted title."""
    hard_share: float = 0.3
    hard_miss_rate: float = 0.55
    """The same for hard questions."""
    films: int = 60
    people: int = 40
    cities: int = 16

    def __post_init__(self) -> None:
        require_shares(self, "prior", "unsolvable_share", "miss_rate", "hard_share")
        require_shares(self, "hard_miss_rate")
        for name, least in (("films", 2), ("people", 6), ("cities", len(GENRES))):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        object.__setattr__(self, "_film_names", invented_names(self.films, ("aria", "odon")))
        object.__setattr__(self, "_person_names", invented_names(self.people, ("ric", "dis")))
        object.__setattr__(self, "_city_names", invented_names(self.cities, ("burg", "ville")))

    @property
    def names(self) -> tuple[str, ...]:
        """Films, people and cities."""
        return self._film_names + self._person_names + self._city_names

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that a question, document or answer can hold."""
        return self.names + ROLES + RELATIONS + GENRES + ("of",)

    def popular_city(self, genre: str) -> str:
        """The city that people of this genre's films most often come from."""
        return self._city_names[GENRES.index(genre) % self.cities]

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` questions, each with facts of its own."""
        return [self._question(stream) for _ in range(count)]

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """`count` fixed questions from the same distribution."""
        return self.train_questions(count, python_stream(seed, "synthetic evaluation questions"))

    def documents(self, question: Question) -> tuple[Document, ...]:
        """The documents of one question, rebuilt from its id."""
        return _from_identity(self, question.id)[1]

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """Documents titled as asked, each missed at times, then others in random order."""
        documents = self.documents(question)
        asked = distinct_words(query)
        wanted = [d for d in documents if d.title in asked]  # every title is one word
        miss_rate = self.hard_miss_rate if question.hard else self.miss_rate
        found = [document for document in wanted if stream.random() >= miss_rate]
        others = [document for document in documents if document.title not in asked]
        fill = max(min(k - len(found), len(others)), 0)
        return (found + stream.sample(others, fill))[:k]

    def _question(self, stream: random.Random) -> Question:
        identity = f"{stream.getrandbits(48):012x}"
        return _from_identity(self, identity)[0]


@functools.lru_cache(maxsize=4096)
def _from_identity(world: SyntheticWorld, identity: str) -> tuple[Question, tuple[Document, ...]]:
    """A question and its documents, both a function of the world's parameters and the id alone."""
    stream = random.Random(int(identity, 16))
    genre, role, relation = stream.choice(GENRES), stream.choice(ROLES), stream.choice(RELATIONS)
    film, distractor = stream.sample(world._film_names, 2)
    cast = stream.sample(world._person_names, 6)
    person = cast[ROLES.index(role)]
    popular = world.popular_city(genre)
    others = [city for city in world._city_names if city != popular]
    answer = popular if stream.random() < world.prior else stream.choice(others)
    unsolvable = stream.random() < world.unsolvable_share
    hard = stream.random() < world.hard_share
    documents = [_film(film, cast[:3]), _film(distractor, cast[3:])]
    for name in cast:
        facts = {r: stream.choice(world._city_names) for r in RELATIONS}
        if name == person:
            facts[relation] = answer
            if unsolvable:
                del facts[relation]
        documents.append(_document(name, facts))
    stream.shuffle(documents)
    evidence = "" if unsolvable else f"{person} {relation} {answer}"
    question = Question(
        id=identity,
        text=f"{relation} of {role} of {genre} {film}",
        answers=(answer,),
        hops=(
            Hop(film, role, person, f"{film} {role} {person}"),
            Hop(person, relation, answer, evidence),
        ),
        kind=f"{role} > {relation}",
        guess=popular,
        hard=hard,
    )
    return question, tuple(documents)


def _film(title: str, people: list[str]) -> Document:
    return _document(title, dict(zip(ROLES, people, strict=True)))


def _document(title: str, facts: dict[str, str]) -> Document:
    paragraphs = [f"{title} {relation} {value}" for relation, value in facts.items()]
    return Document(id=title, title=title, text="\n\n".join(paragraphs))
