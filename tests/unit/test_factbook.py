"""The Factbook world: facts read by hand, and laws that every question has to obey."""

import json
import random
import re
from collections import Counter
from importlib import resources

import pytest

from turncredit import paths
from turncredit.answers import exact_match, words
from turncredit.storage import sha256_file
from turncredit.worlds.factbook import (
    ATTRIBUTES,
    RELATIONS,
    FactbookWorld,
    is_test_title,
    load_facts,
    read_questions,
    write_questions,
)
from turncredit.worlds.factbook.facts import PARSER_VERSION
from turncredit.worlds.factbook.profiles import load_profiles, name_key, without_accents

# Copied by hand from the profiles; relation by relation, so that each parser has several.
READ_BY_HAND = [
    ("Romania", "capital", "Bucharest"),
    ("Canada", "capital", "Ottawa"),
    ("Vietnam", "capital", "Hanoi"),
    ("Chile", "capital", "Santiago"),
    ("United States", "capital", "Washington"),
    ("Turkey", "largest city", "Istanbul"),
    ("Ghana", "largest city", "Kumasi"),
    ("Saudi Arabia", "largest city", "Riyadh"),  # the profile also says "872,000 million"
    ("Colombia", "largest city", "Bogotá"),  # BOGOTA in the list, spelled as the capital
    ("Japan", "currency code", "JPY"),
    ("Romania", "currency code", "RON"),
    ("Chad", "currency code", "XAF"),
    ("Romania", "internet code", ".ro"),
    ("United Kingdom", "internet code", ".uk"),
    ("Nepal", "highest point", "Mount Everest"),
    ("Germany", "highest point", "Zugspitze"),
    ("Uganda", "highest point", "Margherita Peak"),
    ("Spain", "highest point", "Pico de Teide"),
    ("Austria", "longest river", "Danube"),
    ("Brazil", "longest river", "Amazon"),
    ("Russia", "longest river", "Yenisey-Angara"),
    ("Japan", "top export commodity", "cars"),
    ("Paraguay", "top export commodity", "soybeans"),
    ("Kenya", "top farm product", "sugarcane"),
    ("Armenia", "top farm product", "milk"),
    ("Nepal", "top export partner", "India"),
    ("Argentina", "top export partner", "Brazil"),
    ("Argentina", "second export partner", "United States"),
    ("Saint Lucia", "second export partner", "Suriname"),
    ("Bhutan", "top import partner", "India"),
    ("Azerbaijan", "top import partner", "Russia"),
    ("Croatia", "longest land border", "Bosnia and Herzegovina"),
    ("Pakistan", "longest land border", "India"),
    ("Zambia", "longest land border", "DRC"),
]

# What must be left out, and why.
LEFT_OUT = [
    ("South Africa", "capital"),  # three capitals
    ("Burundi", "capital"),  # two, in a list without ';'
    ("Burma", "capital"),  # disputed
    ("Moldova", "capital"),  # "Chisinau in Romanian"
    ("Belize", "largest city"),  # only the capital is listed, and it is not the largest city
    ("Kuwait", "currency code"),  # "KD" is no code
    ("Pakistan", "highest point"),  # K2 holds a digit
    ("New Zealand", "highest point"),  # two names with a slash
    ("Benin", "highest point"),  # unnamed
    ("Paraguay", "longest river"),  # two names with a slash
    ("Somalia", "top export commodity"),  # sheep and goats
    ("Jersey", "top farm product"),  # list without year, not ranked
    ("Italy", "top export partner"),  # Germany 11%, USA 11%
    ("Sweden", "top export partner"),  # Germany 10%, USA 10%
    ("Cuba", "longest land border"),  # a naval base
]


@pytest.fixture(scope="module")
def facts():
    return load_facts()


@pytest.fixture(scope="module")
def table(facts):
    return {(fact.title, fact.relation): fact for fact in facts}


@pytest.fixture(scope="module")
def world():
    return FactbookWorld()


@pytest.fixture(scope="module")
def questions(world):
    return world.train + world.test


@pytest.mark.parametrize(("title", "relation", "value"), READ_BY_HAND)
def test_facts_are_what_a_reader_finds(table, title, relation, value):
    assert table[title, relation].value == value


@pytest.mark.parametrize(("title", "relation"), LEFT_OUT)
def test_unclean_values_are_left_out(table, title, relation):
    assert (title, relation) not in table


@pytest.mark.parametrize(
    ("relation", "text", "names"),
    [
        ("top export partner", "Peru 11%, Chad 10%, Mali 10% (2023)", ["Peru"]),
        ("second export partner", "Peru 11%, Chad 10%, Mali 10% (2023)", []),
        ("second export partner", "Peru 11%, Chad 11%, Mali 10% (2023)", []),
        ("second export partner", "Peru 11% (2023)", []),
        ("top export partner", "Congo, Republic of the 9%, Mali 8%", ["Republic of the Congo"]),
        ("top export partner", "Peru 9%, Mali 12%", []),  # not in order: no ranking to trust
        ("top export partner", "almost entirely Peru (2000)", []),
    ],
)
def test_partners_are_read_without_ties(relation, text, names):
    profile = {"Economy": {"Exports - partners": {"text": text}}}
    assert ATTRIBUTES[relation](profile) == names


def test_longest_border_and_largest_city_need_a_single_winner():
    borders = {"text": "Chad 1,000 km; Mali 1,000.0 km; Peru 20 km"}
    assert (
        ATTRIBUTES["longest land border"](
            {"Geography": {"Land boundaries": {"border countries": borders}}}
        )
        == []
    )
    cities = {"text": "1.2 million Aa, 1.30 million BB CC (capital), 900,000 Dd (2023)"}
    field = {"Major urban areas - population": cities}
    assert ATTRIBUTES["largest city"]({"People and Society": field}) == ["Bb Cc"]


def test_answers_are_short_and_not_numeric(facts, questions):
    for answer in [fact.value for fact in facts] + [q.answers[0] for q in questions]:
        assert 1 <= len(words(answer)) <= 3, answer
        assert not re.search(r"\d", answer), answer


def test_aliases_are_long_enough_and_name_nobody_else(facts, world):
    titles = {name_key(document.title) for document in world.documents}
    for fact in facts:
        for alias in fact.aliases:
            assert len(alias) > 3, (fact, alias)
            if fact.relation in RELATIONS:
                assert name_key(alias) == name_key(fact.value) or name_key(alias) not in titles
                assert name_key(alias) not in ("congo", "korea", "thai"), fact


def test_known_aliases(table):
    assert table["United States", "capital"].aliases == ("Washington, D.C.",)
    assert exact_match("Côte d'Ivoire", [table["Liberia", "longest land border"].value])
    assert "Ivory Coast" in table["Liberia", "longest land border"].aliases
    assert "Great Britain" in table["Ireland", "top import partner"].aliases
    assert "Donau" in table["Austria", "longest river"].aliases


def test_most_facts_agree_with_an_independent_source(facts):
    """`countryinfo` gives aliases to countries only, so its capitals and currencies are a check."""
    folder = resources.files("countryinfo") / "data"
    entries = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    entries = {f".{e['ISO']['alpha2'].lower()}": e for e in entries if e.get("ISO")}
    codes = {fact.title: fact.value for fact in facts if fact.relation == "internet code"}
    agree = Counter()
    for fact in facts:
        entry = entries.get(codes.get(fact.title, "").replace(".uk", ".gb"), {})
        if fact.relation == "capital" and entry.get("capital"):
            mine, theirs = (words(without_accents(t)) for t in (fact.value, entry["capital"]))
            agree["capital", mine == theirs] += 1
        if fact.relation == "currency code" and entry.get("currencies"):
            agree["currency", fact.value in entry["currencies"]] += 1
    assert agree["capital", True] >= 205 and agree["capital", False] <= 12
    assert agree["currency", True] >= 190 and agree["currency", False] <= 13


def test_every_country_has_one_document(world):
    titles = [document.title for document in world.documents]
    assert len(set(titles)) == len(titles) == 248
    assert not {"World", "European Union", "Atlantic Ocean"} & set(titles)
    assert {"Congo (Brazzaville)", "DRC", "Dominican Republic", "Central African Republic"} <= set(
        titles
    )
    assert len(load_profiles()) == 253  # five islets without a clean fact have no document


def test_paragraphs_are_short_and_say_one_thing(world):
    for document in world.documents:
        for paragraph in document.text.split("\n\n"):
            assert len(words(paragraph)) <= 12, paragraph
            assert paragraph.startswith(document.title + " ")
            assert paragraph[len(document.title) + 1 :].split(":")[0] in ATTRIBUTES


def test_gold_paragraphs_stand_in_their_documents_and_hops_connect(world, questions):
    texts = {document.title: document.text.split("\n\n") for document in world.documents}
    for question in questions:
        for hop in question.hops:
            assert hop.paragraph in texts[hop.title]
            assert hop.paragraph == f"{hop.title} {hop.relation}: {hop.value}"
        for hop, following in zip(question.hops, question.hops[1:], strict=False):
            assert hop.value == following.title
        assert question.answers[0] == question.hops[-1].value
        assert len({hop.title for hop in question.hops}) == len(question.hops)


def test_question_text_and_kind_name_the_relations(questions):
    for question in questions:
        relations = [hop.relation for hop in question.hops]
        assert question.kind == " > ".join(relations)
        assert question.text == " of ".join([*reversed(relations), question.hops[0].title])


def test_neither_question_nor_earlier_hop_gives_the_answer(questions):
    def holds(text, answer):
        return f" {' '.join(words(answer))} " in f" {' '.join(words(text))} "

    for question in questions:
        shown = [question.text, *(hop.paragraph for hop in question.hops[:-1])]
        assert not any(holds(text, question.answers[0]) for text in shown), question.text


def test_final_documents_of_training_and_test_are_disjoint(world):
    train = {question.hops[-1].title for question in world.train}
    test = {question.hops[-1].title for question in world.test}
    assert not train & test
    assert all(map(is_test_title, test)) and not any(map(is_test_title, train))
    assert 0.15 < len(test) / len(train | test) < 0.25


def test_ids_are_unique(questions):
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.text for question in questions}) == len(questions)


@pytest.mark.parametrize("cap", [1, 60])
def test_cap_on_final_documents_holds_and_is_reached(cap, world):
    world = world if cap == 60 else FactbookWorld(hops=(1, 2), max_per_final=cap)
    finals = Counter((len(q.hops), q.hops[-1].title) for q in world.train + world.test)
    assert max(finals.values()) == cap


def test_every_number_of_hops_has_hundreds_of_questions(world):
    for part, least in ((world.train, 1500), (world.test, 400)):
        counts = Counter(len(question.hops) for question in part)
        assert set(counts) == {1, 2, 3} and min(counts.values()) >= least


def test_guess_is_the_most_frequent_training_answer_of_the_last_relation(world, questions):
    for relation in ATTRIBUTES:
        asked = [q for q in world.train if q.hops[-1].relation == relation]
        counts = Counter(question.answers[0] for question in asked)
        best = max(counts.values())
        guesses = {q.guess for q in questions if q.hops[-1].relation == relation}
        assert guesses == {min(answer for answer in counts if counts[answer] == best)}


def test_words_cover_everything_and_stay_below_the_bound(world, questions):
    vocabulary = set(world.words)
    assert len(vocabulary) == len(world.words) <= 4000
    for document in world.documents:
        assert vocabulary.issuperset(words(document.title) + words(document.text))
    for question in questions:
        assert vocabulary.issuperset(words(question.text) + words(question.answers[0]))


def test_names_are_the_words_that_no_question_template_holds(world):
    phrases = set(words(" of ".join(ATTRIBUTES)))
    assert set(world.names) | phrases == set(world.words) and not set(world.names) & phrases
    assert {"romania", "bucharest", "danube", "ron"} <= set(world.names)


def test_too_large_a_vocabulary_is_refused_with_both_numbers(world):
    with pytest.raises(ValueError, match=rf"{len(world.words)} words, max_words is 1000"):
        FactbookWorld(max_words=1000, max_per_final=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": (0, 1)}, r"\(0, 1\)"),
        ({"hops": ()}, r"hops: \(\)"),
        ({"hops": (4,)}, r"\(4,\)"),
        ({"max_per_final": 0}, "max_per_final: 0"),
        ({"miss_rate": 1.5}, "miss_rate: 1.5"),
        ({"attributes": ("capital", "voting age")}, "voting age"),
        ({"attributes": ("capital", "capital")}, "'capital' is unknown or repeated"),
    ],
)
def test_options_out_of_range_are_refused_by_value(options, message):
    with pytest.raises(ValueError, match=message):
        FactbookWorld(**options)


def test_attributes_and_hops_choose_what_is_asked():
    world = FactbookWorld(hops=(2,), attributes=("capital", "top import partner"))
    kinds = {question.kind for question in world.train + world.test}
    assert kinds == {"top import partner > capital", "top import partner > top import partner"}
    assert "top export partner" not in " ".join(document.text for document in world.documents)


def test_training_draws_follow_the_stream_and_mix_hops(world):
    first, again = (world.train_questions(30, random.Random(5)) for _ in range(2))
    assert first == again != world.train_questions(30, random.Random(6))
    assert Counter(len(question.hops) for question in first) == {1: 10, 2: 10, 3: 10}
    assert len(set(first)) == 30 and set(first) <= set(world.train)
    single = {len(world.train_questions(1, random.Random(s))[0].hops) for s in range(30)}
    assert single == {1, 2, 3}


def test_no_training_question_repeats_before_all_came_once(world):
    drawn = Counter(q.id for q in world.train_questions(len(world.train) + 5, random.Random(0)))
    assert len(drawn) == len(world.train) and sorted(drawn.values())[-6:] == [1, 2, 2, 2, 2, 2]


def test_evaluation_questions_are_fixed_and_held_out(world):
    asked = world.evaluation_questions(60)
    assert asked == world.evaluation_questions(60) != world.evaluation_questions(60, seed=1)
    assert len(set(asked)) == 60 and set(asked) <= set(world.test)
    assert Counter(len(question.hops) for question in asked) == {1: 20, 2: 20, 3: 20}
    assert set(world.evaluation_questions(len(world.test))) == set(world.test)
    with pytest.raises(ValueError, match=rf"{len(world.test) + 1} .* {len(world.test)}"):
        world.evaluation_questions(len(world.test) + 1)


def test_search_finds_a_title_first(world):
    question = world.test[0]
    first = [world.search(question, d.title, 1, random.Random(0)) == [d] for d in world.documents]
    assert sum(first) / len(first) >= 0.95


def test_one_search_with_a_multi_hop_question_does_not_bring_the_last_document(world):
    asked = [question for question in world.test if len(question.hops) > 1]
    brought = [
        question.hops[-1].title in {d.title for d in world.search(question, question.text, 3, None)}
        for question in asked
    ]
    assert sum(brought) / len(brought) < 0.05


def test_search_keeps_to_k_and_to_what_matches(world):
    question = world.test[0]
    assert len(world.search(question, "capital of Romania", 5, random.Random(0))) == 5
    assert world.search(question, "qqqq zzzz", 5, random.Random(0)) == []
    assert world.search(question, "", 5, random.Random(0)) == []
    with pytest.raises(ValueError, match="0"):
        world.search(question, "Romania", 0, random.Random(0))


def test_miss_rate_hides_only_wanted_documents_and_fills_up():
    never, half = (FactbookWorld(hops=(2,), miss_rate=rate) for rate in (1.0, 0.5))
    question = half.test[0]
    wanted = [hop.title for hop in question.hops]
    other = next(d.title for d in half.documents if d.title not in wanted)
    found = never.search(question, f"{wanted[0]} capital", 5, random.Random(0))
    assert len(found) == 5 and not set(wanted) & {d.title for d in found}
    assert never.search(question, other, 1, random.Random(0))[0].title == other
    stream = random.Random(0)
    hits = [half.search(question, wanted[0], 1, stream)[0].title == wanted[0] for _ in range(400)]
    assert 160 < sum(hits) < 240  # four standard errors around 200


def test_written_files_are_equal_bytes_and_read_back(world, tmp_path):
    manifest = write_questions(world, tmp_path / "a")
    assert manifest == write_questions(FactbookWorld(), tmp_path / "b")
    for name in (
        "documents.jsonl",
        "questions_train.jsonl",
        "questions_test.jsonl",
        "manifest.json",
    ):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    stored = read_questions(tmp_path / "a")
    assert stored.documents == world.documents and stored.manifest == manifest
    assert (stored.train, stored.test) == (world.train, world.test)
    assert manifest["counts"]["questions_test.jsonl"] == len(world.test)


def test_files_of_the_default_world_are_pinned(world, tmp_path):
    """Another hash means other facts: raise PARSER_VERSION and change both together."""
    hashes = write_questions(world, tmp_path)["sha256"]
    assert PARSER_VERSION == 1
    assert {name: value[:16] for name, value in hashes.items()} == {
        "documents.jsonl": "915d3432ce608678",
        "questions_train.jsonl": "12d4fa05959abf91",
        "questions_test.jsonl": "2d5aabef51eaf4c8",
    }


@pytest.mark.parametrize(
    "name", ["documents.jsonl", "questions_train.jsonl", "questions_test.jsonl"]
)
def test_a_changed_file_is_refused_with_both_hashes(tmp_path, name):
    small = FactbookWorld(hops=(1,), attributes=("capital",))
    expected = write_questions(small, tmp_path)["sha256"][name]
    path = tmp_path / name
    path.write_text(path.read_text(encoding="utf-8").replace("Bucharest", "Budapest", 1) + " ")
    with pytest.raises(ValueError, match=rf"{name}: SHA-256 is {sha256_file(path)}.*{expected}"):
        read_questions(tmp_path)


def test_data_md_reports_this_corpus(world, facts):
    text = (paths.repository() / "DATA.md").read_text(encoding="utf-8")
    for relation in ATTRIBUTES:
        values = [fact.value for fact in facts if fact.relation == relation]
        row = rf"\| {relation}(?: \(leads on\))? \| {len(values)} \| {len(set(values))} \|"
        assert re.search(row, text), row
    for hops in (1, 2, 3):
        parts = [[q for q in part if len(q.hops) == hops] for part in (world.train, world.test)]
        counts = [len(part) for part in parts]
        finals = [len({q.hops[-1].title for q in part}) for part in parts]
        row = "| " + " | ".join(map(str, (hops, *counts, *finals))) + " |"
        assert row in text, row
