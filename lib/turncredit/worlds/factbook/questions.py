"""Questions of one to three hops, split so that no final document is in both halves."""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from turncredit.answers import words
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.factbook.facts import Fact

TEST_SHARE = 0.2
"""Expected share of the documents that only test questions may end in."""

MOST_HOPS = 3

Chain = tuple[Fact, ...]


def build_documents(facts: Sequence[Fact]) -> list[Document]:
    """One document for each title, one paragraph for each fact, in the order of `facts`."""
    paragraphs: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        paragraphs[fact.title].append(fact.paragraph)
    return [
        Document(id=f"factbook-{'-'.join(words(title))}", title=title, text="\n\n".join(lines))
        for title, lines in paragraphs.items()
    ]


def is_test_title(title: str) -> bool:
    """Whether questions that end in this document are test questions: a hash of the title alone."""
    return _hash(f"factbook split/{title}") / 2**64 < TEST_SHARE


def build_questions(
    facts: Sequence[Fact], hops: Sequence[int], max_per_final: int
) -> tuple[list[Question], list[Question]]:
    """Training and test questions, ordered by number of hops and then by text.

    Of each number of hops, at most `max_per_final` questions end in one document; which, decides a
    hash of their text.  A guess is the most frequent training answer on the last relation.
    Left out: chains that come back to a document, questions that hold their answer, and questions
    whose answer stands in the paragraph of an earlier hop.
    """
    chains = [c for count in sorted(hops) for c in _capped(_chains(facts, count), max_per_final)]
    train = [_question(chain) for chain in chains if not is_test_title(chain[-1].title)]
    test = [_question(chain) for chain in chains if is_test_title(chain[-1].title)]
    guesses = _most_frequent_answers(train)
    return _with_guesses(train, guesses), _with_guesses(test, guesses)


def question_text(chain: Chain) -> str:
    """'capital of top import partner of Chad': relations last to first, then the title."""
    return " of ".join([fact.relation for fact in reversed(chain)] + [chain[0].title])


def _chains(facts: Sequence[Fact], count: int) -> Iterator[Chain]:
    by_title: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_title[fact.title].append(fact)
    for fact in facts:
        yield from _extend((fact,), by_title, count - 1)


def _extend(chain: Chain, by_title: Mapping[str, list[Fact]], more: int) -> Iterator[Chain]:
    if more == 0:
        yield chain
        return
    target = chain[-1].target
    if target is None or target in {fact.title for fact in chain}:
        return
    for fact in by_title[target]:
        yield from _extend((*chain, fact), by_title, more - 1)


def _gives_itself_away(chain: Chain) -> bool:
    answer = f" {_spaced(chain[-1].value)} "
    shown = [question_text(chain), *(fact.paragraph for fact in chain[:-1])]
    return any(answer in f" {_spaced(text)} " for text in shown)


def _capped(chains: Iterable[Chain], limit: int) -> list[Chain]:
    """Usable chains, at most `limit` to one final document, in the order of their texts."""
    kept: dict[str, list[Chain]] = defaultdict(list)
    for chain in sorted(chains, key=lambda chain: _hash(question_text(chain))):
        of_document = kept[chain[-1].title]
        if len(of_document) < limit and not _gives_itself_away(chain):
            of_document.append(chain)
    return sorted(itertools.chain.from_iterable(kept.values()), key=question_text)


def _question(chain: Chain) -> Question:
    text = question_text(chain)
    return Question(
        id=f"factbook-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
        text=text,
        answers=(chain[-1].value, *chain[-1].aliases),
        hops=tuple(Hop(f.title, f.relation, f.value, f.paragraph) for f in chain),
        kind=" > ".join(fact.relation for fact in chain),
        guess="",
    )


def _most_frequent_answers(questions: Iterable[Question]) -> dict[str, str]:
    """Most frequent canonical answer by last relation; the first in the alphabet on a tie."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        counts[question.hops[-1].relation][question.answers[0]] += 1
    return {
        relation: min(answers, key=lambda answer: (-answers[answer], answer))
        for relation, answers in counts.items()
    }


def _with_guesses(questions: Iterable[Question], guesses: Mapping[str, str]) -> list[Question]:
    return [replace(q, guess=guesses.get(q.hops[-1].relation, "")) for q in questions]


def _spaced(text: str) -> str:
    return " ".join(words(text))


def _hash(text: str) -> int:
    """64 bits that depend on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
