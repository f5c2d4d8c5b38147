"""The corpus and the questions of the benchmark of recall, which its figures stand or fall with."""

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit import paths
from turncredit.worlds.base import Document
from turncredit.worlds.factbook.profiles import load_profiles

sys.path.insert(0, str(paths.PACKAGE.parents[1] / "benchmarks"))
import retrieval_attributes as attributes
import retrieval_chunks as corpus
import retrieval_questions as questions
import retrieval_recall as benchmark

CAPITAL, CURRENCY = attributes.ATTRIBUTES[0], attributes.ATTRIBUTES[2]
PARTNER, SECOND = attributes.RELATIONS[:2]


def fact(title: str, attribute: attributes.Attribute, value: str) -> questions.Fact:
    """A relation leads to its value."""
    target = value if attribute in attributes.RELATIONS else None
    return questions.Fact(title, attribute, value, target)


CHAD = fact("Chad", PARTNER, "Niger")
FACTS = [
    CHAD,
    fact("Chad", SECOND, "Mali"),
    fact("Niger", CAPITAL, "Niamey"),
    fact("Niger", PARTNER, "Mali"),
    fact("Mali", CAPITAL, "Bamako"),
    fact("Mali", CURRENCY, "francs"),
    fact("Mali", PARTNER, "Chad"),
    fact("Peru", CURRENCY, "francs"),
]


@pytest.fixture(scope="module")
def facts() -> list[questions.Fact]:
    return questions.load_facts()


# --- corpus


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b c"]), st.integers(1, 40)), max_size=8),
    st.integers(4, 12),
)
def test_packing_keeps_every_word_once_and_names_the_field_of_every_piece(sizes, most):
    numbers = iter(range(1000))
    lines = [f"{field}: {' '.join(str(next(numbers)) for _ in range(n))}" for field, n in sizes]
    packed = corpus.pack(lines, most)
    assert all(len(" ".join(pieces).split()) <= most for pieces in packed)
    said = [word for pieces in packed for piece in pieces for word in piece.split(": ")[1].split()]
    assert said == [str(number) for number in range(sum(n for _, n in sizes))]
    assert {piece.split(":")[0] for pieces in packed for piece in pieces} == {f for f, _ in sizes}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("14.5% (2023 est.)", False),
        ("$7.447 billion (2021 est.)", False),
        ("652,230 sq km", False),
        ("15.2 years", False),
        ("none", True),
        ("4 July (1776)", True),
        ("Mont Blanc 4,810 m", True),
    ],
)
def test_a_line_of_numbers_says_no_more_than_a_number(text, more):
    assert corpus.tells(text) is more


def test_a_chunk_is_headed_by_its_section_and_fields_and_below_the_limit():
    chunks = corpus.country_chunks()
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        heading, body = chunk.text.split("\n")
        assert len(body.split()) <= corpus.CHUNK_WORDS
        assert heading.split(" - ")[0] not in corpus.DROPPED
        named = heading.split(" - ", 1)[1].split("; ")
        assert all(f"{field}:" in body for field in named)
    whole = corpus.country_chunks(dropped=(), numbers=True)
    assert len(whole) > len(chunks)
    assert {chunk.title for chunk in whole} == set(load_profiles())


def test_every_fact_has_a_gold_chunk_that_spells_it(facts):
    """The corpus leaves out lines, but none that a question asks for."""
    chunks = corpus.country_chunks()
    gold = corpus.Gold(chunks)
    spelled = 0
    for each in facts:
        rows = gold.of(each.title, each.field, each.value)
        assert rows, each
        assert {chunks[row].title for row in rows} == {each.title}
        spelled += any(each.value in chunks[row].text for row in rows)
    assert spelled / len(facts) > 0.95


def test_gold_prefers_the_chunk_that_holds_the_value():
    texts = ["Capital: name: Old Town", "Capital: name: New Town", "Flag: New Town"]
    gold = corpus.Gold([Document(str(n), "Chad", text) for n, text in enumerate(texts)])
    assert gold.of("Chad", "Capital", "new town") == {1}
    assert gold.of("Chad", "Capital", "elsewhere") == {0, 1}
    assert gold.of("Niger", "Capital", "new town") == set()


# --- facts


def profile(section: str, field: str, text: str, part: str = "") -> dict:
    held = {part: {"text": text}} if part else {"text": text}
    return {section: {field: held}}


@pytest.mark.parametrize(
    ("phrase", "text", "value"),
    [
        ("name of the chief of state", "President Maia SANDU (since 24 May 2020)", "Maia SANDU"),
        ("name of the chief of state", "King CHARLES III (since 8 September 2022)", "CHARLES III"),
        ("name of the chief of state", "President (vacant)", None),
        ("name of the ambassador to the United States", "Ambassador (vacant); Mr X Y (since", None),
        ("date of independence", "6 March 1957 (from the UK)", "6 March 1957"),
        ("date of independence", "1 May 1918 (x); 2 June 1991 (y)", None),
        ("former ruler", "6 March 1957 (from the UK)", "UK"),
        ("day and month of the national holiday", "Flag Day, 18 March (1976)", "18 March"),
        ("day and month of the national holiday", "Day, 1 May (1900); Day, 2 May (1901)", "1 May"),
        ("voting age", "18 years of age; universal", "18"),
        ("currency", "cedis (GHC) per US dollar -", "cedis"),
        ("currency", "none", None),
        ("largest religion", "Roman Catholic 44.9%, other 1.2%", "Roman Catholic"),
        ("largest ethnic group", "Mestizo (mixed) 69%, White 17%", "Mestizo"),
        ("lowest point", "Shatt al Gharsah -17 m", "Shatt al Gharsah"),
        ("title of the national anthem", '"Limba noastra" (Our Tongue)', "Limba noastra"),
        ("legislature", "Legislature (Staten)", "Legislature"),
        ("highest court", "Supreme Court or Corte Suprema (consists of 9)", "Supreme Court"),
        ("country sharing the shortest land border with {}", "A 9 km; B 1,000 km", "A"),
        ("country sharing the shortest land border with {}", "A 9 km; B 9 km", None),
        ("country sharing the shortest land border with {}", "A 9 km", None),
    ],
)  # fmt: skip
def test_a_field_is_read_or_left_out(phrase, text, value):
    everything = (*attributes.ATTRIBUTES, *attributes.RELATIONS)
    (attribute,) = [each for each in everything if each.phrase == phrase]
    assert attribute.value(profile(*attribute.path[:2], text, *attribute.path[2:])) == value
    assert attribute.value({}) is None


def test_thirty_attributes_and_six_relations_are_found_in_many_profiles(facts):
    assert (len(attributes.ATTRIBUTES), len(attributes.RELATIONS)) == (30, 6)
    counts = Counter(each.attribute for each in facts)
    assert set(counts) == {*attributes.ATTRIBUTES, *attributes.RELATIONS}
    assert min(counts.values()) >= 60
    assert set(attributes.DESCRIBING) < {a.phrase for a in counts}
    titles = set(load_profiles())
    for each in facts:
        assert each.value.strip() and (each.target in titles - {each.title} or not each.target)
        assert (each.target is not None) == (each.attribute in attributes.RELATIONS)


# --- questions


def test_chains_follow_the_relations_and_come_back_to_no_country():
    found = {
        " > ".join(f"{each.title} {each.attribute.short}" for each in chain)
        for chain in questions.chains(FACTS, FACTS, 3)
    }
    partner, capital, currency = PARTNER.short, CAPITAL.short, CURRENCY.short
    assert found == {
        f"Chad {partner} > Niger {partner} > Mali {last}" for last in (capital, currency, partner)
    } | {
        f"Niger {partner} > Mali {partner} > Chad {last}" for last in (partner, SECOND.short)
    } | {
        f"Mali {partner} > Chad {partner} > Niger {last}" for last in (capital, partner)
    }  # fmt: skip


def test_a_question_is_worded_from_the_last_fact_to_the_first():
    chain = (CHAD, fact("Niger", attributes.RELATIONS[3], "Mali"), FACTS[4])
    assert questions.question(chain, "Chad") == (
        "What is the capital of the country sharing the longest land border with "
        "the largest export partner of Chad?"
    )


def test_a_country_is_described_only_by_what_no_other_has():
    values = [("Chad", "N'Djamena"), ("Niger", "Same"), ("Mali", "Same")]
    found = questions.describing([fact(title, CAPITAL, value) for title, value in values])
    assert {title for title, held in found.items() if held} == {"Chad"}


def test_elements_lead_to_the_one_country_of_their_discovery():
    titles = [fact(title, CAPITAL, "x") for title in ("France", "United Kingdom")]
    places = {"Neon": "England", "Boron": "England/France", "Iron": "", "Gallium": "France"}
    found = questions.discoveries(places, titles)
    assert {each.title: each.target for each in found} == {
        "Neon": "United Kingdom",
        "Gallium": "France",
    }


def test_questions_are_drawn_by_kind_with_a_cap_on_each_final_document():
    types = questions.pools(FACTS, [])
    assert len(types["1 hop"]) == len(types["sub-query"]) == len(FACTS)
    assert all(len(asked.facts) == int(kind[0]) for kind in types if kind[0].isdigit()
               for asked in types[kind])  # fmt: skip
    two = questions.drawn(types, "2 hops", 100, 0)
    assert sorted(a.query for a in two) == sorted(a.query for a in types["2, named"])
    ends = Counter(asked.facts[-1].title for asked in questions.drawn(types, "2 hops", 100, 1))
    assert set(ends.values()) == {1} and set(ends) == {a.facts[-1].title for a in two}
    assert len(questions.drawn(types, "1 hop", 3, 0)) == 3


# --- figures


def test_recall_counts_documents_and_gold_chunks_by_hand():
    documents = [
        Document("0", "Chad", f"{PARTNER.path[1]}: Niger"),
        Document("1", "Chad", "Flag: blue"),
        Document("2", "Niger", "Capital: name: Niamey"),
        Document("3", "Peru", "Flag: red"),
    ]
    asked = [questions.plain((CHAD, FACTS[2]))] * 2
    found = benchmark.recall([[1, 3, 3, 0, 2], [3, 3, 3, 3, 0]], asked, corpus.Gold(documents))
    np.testing.assert_allclose(found, [0.5, 1.0, 0.0, 0.5, 0.0, 1.0, 0.5])


def test_the_distance_to_the_reference_is_in_points_and_standard_errors(capsys):
    """Two shares of 80 each with the mean p: sqrt(p (1 - p) (1 / 80 + 1 / 80))."""
    reference = np.array(benchmark.REFERENCE["1 hop", "BM25"])
    benchmark.report("1 hop", "BM25 stem", reference - 0.1, 80)
    values, points, errors = capsys.readouterr().out.splitlines()
    assert values.split()[6] == "0.825" and points.split()[1] == "-10.0"
    pooled = 0.925 - 0.05
    assert float(errors.split()[1]) == pytest.approx(
        -0.1 / np.sqrt(pooled * (1 - pooled) / 40), abs=0.05
    )
