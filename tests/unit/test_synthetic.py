"""The synthetic world: facts afresh for every question, shares as asked, known words only."""

import random
from dataclasses import replace

import pytest
from play import SMALL, global_streams

from turncredit.answers import words
from turncredit.worlds.synthetic import SyntheticWorld, invented_names

MANY = 3000
QUESTIONS = SMALL.train_questions(MANY, random.Random(5))


def near(share: float, expected: float) -> bool:
    return abs(share - expected) < 5 * (expected * (1 - expected) / MANY) ** 0.5


def test_a_list_of_questions_is_the_start_of_a_longer_one_and_touches_no_global_stream():
    before = global_streams()
    short = SMALL.train_questions(5, random.Random(1))
    assert short == SMALL.train_questions(9, random.Random(1))[:5]
    assert short != SMALL.train_questions(5, random.Random(2))
    assert SMALL.evaluation_questions(4) == SMALL.evaluation_questions(7)[:4]
    assert SMALL.evaluation_questions(4) != SMALL.evaluation_questions(4, seed=1)
    assert global_streams() == before


def test_evaluation_questions_are_not_training_questions():
    assert not {q.id for q in QUESTIONS} & {q.id for q in SMALL.evaluation_questions(500)}
    assert len({q.id for q in QUESTIONS}) == MANY


def test_the_shares_are_those_asked_for():
    popular = sum(q.answers[0] == q.guess for q in QUESTIONS) / MANY
    assert near(popular, SMALL.prior)
    assert near(sum(not q.hops[-1].paragraph for q in QUESTIONS) / MANY, SMALL.unsolvable_share)
    assert near(sum(q.hard for q in QUESTIONS) / MANY, SMALL.hard_share)


def test_documents_state_every_hop_and_lack_the_asked_one_when_unsolvable():
    for asked in QUESTIONS[:300]:
        documents = {d.title: d.text.split("\n\n") for d in SMALL.documents(asked)}
        film, person = asked.hops
        assert film.paragraph in documents[film.title]
        if person.paragraph:
            assert person.paragraph in documents[person.title]
            assert person.value == asked.answers[0]
        else:
            lines = documents[person.title]
            assert not any(line.startswith(f"{person.title} {person.relation}") for line in lines)


def test_questions_documents_and_answers_hold_known_words_only():
    known = set(SMALL.words)
    for asked in QUESTIONS[:300]:
        texts = [asked.text, *asked.answers, asked.guess]
        texts += [f"{d.title} {d.text}" for d in SMALL.documents(asked)]
        assert set(words(" ".join(texts))) <= known
    assert set(SMALL.names) <= known
    assert len(set(SMALL.words)) == len(SMALL.words)


def test_a_search_returns_distinct_documents_and_misses_as_often_as_asked():
    stream, found = random.Random(3), []
    for asked in QUESTIONS:
        title = asked.hops[0].title
        results = SMALL.search(asked, f"{title}", 2, stream)
        assert len({d.id for d in results}) == len(results) == 2
        found.append((asked.hard, title in [d.title for d in results]))
    hits = [hit for hard, hit in found if not hard]
    assert abs(1 - sum(hits) / len(hits) - SMALL.miss_rate) < 0.05
    hits = [hit for hard, hit in found if hard]
    assert abs(1 - sum(hits) / len(hits) - SMALL.hard_miss_rate) < 0.08


@pytest.mark.parametrize("k", [0, 1, 3, 8, 50])
def test_a_search_returns_at_most_k_documents_the_named_one_first(k):
    sure = replace(SMALL, miss_rate=0.0, hard_miss_rate=0.0)
    asked = sure.train_questions(1, random.Random(1))[0]
    results = sure.search(asked, f"who is {asked.hops[1].title}", k, random.Random(0))
    assert len(results) == min(k, len(sure.documents(asked)))
    assert [d.title for d in results[:1]] == [asked.hops[1].title][:k]


def test_names_are_distinct_and_run_out_loudly():
    assert len(set(invented_names(280, ("o", "a")))) == 280
    with pytest.raises(ValueError, match="only 280 names can be invented, 281 wanted"):
        invented_names(281, ("o", "a"))


@pytest.mark.parametrize(
    "name", ["prior", "unsolvable_share", "miss_rate", "hard_share", "hard_miss_rate"]
)
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        SyntheticWorld(**{name: value})


@pytest.mark.parametrize(("name", "least"), [("films", 2), ("people", 6), ("cities", 8)])
def test_a_world_too_small_for_one_question_is_refused_by_name(name, least):
    question = SyntheticWorld(**{name: least}).train_questions(50, random.Random(0))
    assert len(question) == 50
    with pytest.raises(ValueError, match=name):
        SyntheticWorld(**{name: least - 1})
