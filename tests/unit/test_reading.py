"""Documents as text: parsed back from headers, cut between words, and found again as evidence."""

import random
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.answers import words
from turncredit.environments.reading import (
    cut,
    evidence,
    holds,
    list_documents,
    paragraphs,
    parse_documents,
    separate,
)
from turncredit.worlds.base import Document, Hop

HEADERS = ("Doc {number} (Title: {title}) {text}", "Doc {number}(Title: {title}) {text}\n")
PLAIN = st.text(st.characters(exclude_characters='()\n"', exclude_categories=["Cs"]), max_size=30)


def pairs(text: str) -> list[tuple[str, str]]:
    return [(document.title, document.text) for document in parse_documents(text)]


# --- headers


@pytest.mark.parametrize("template", HEADERS)
def test_what_is_listed_is_parsed_back(template):
    titles = ("Rome", "Congo (Zaire)", "f(g(x)) and (y)", "A: B, C", "Doc 1", "", "São Tomé")
    texts = ("a city (in Italy)", "", "two\n\nparagraphs", "Document 3 (Title: x)", "(", ")", "é")
    documents = [Document("", *pair) for pair in zip(titles, texts, strict=True)]
    listed = list_documents(documents, template, 10**6)
    assert pairs(listed) == list(zip(titles, texts, strict=True))


@given(st.lists(st.tuples(PLAIN, PLAIN), max_size=4), st.sampled_from(HEADERS))
def test_any_plain_titles_and_texts_are_parsed_back(expected, template):
    expected = [(title.strip(), text.strip()) for title, text in expected]
    expected = [pair for pair in expected if "Doc" not in "".join(pair)]
    documents = [Document("", title, text) for title, text in expected]
    assert pairs(list_documents(documents, template, 10**6)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Doc 1 (Title: X) body Doc 2 (Title: Y)", [("X", "body"), ("Y", "")]),
        ('Doc 7(Title: "X Y")\n a\n\n b \n', [("X Y", "a\n\n b")]),
        ("Results: Doc 1 (Title: X) a", [("X", "a")]),
        ("Doc  12  (Title:X)a", [("X", "a")]),
        ("", []),
        ("no header", []),
        ("Doc 1 (Title: X", []),
        ("Doc one (Title: X) a", []),
        ("doc 1 (title: X) a", []),
        ("aDoc 1 (Title: X) a", []),
        ("Doc 1 (Title: X\nY) a", []),
        ("Doc 1 (Title: (X) a Doc 2 (Title: Y) b", [("Y", "b")]),
    ],
)
def test_headers_by_hand(text, expected):
    assert pairs(text) == expected


def test_junk_never_raises_and_takes_time_in_proportion():
    pieces = (
        "Doc ",
        "1",
        " (Title: ",
        ")",
        "(",
        "\n",
        "x",
        '"',
        "\ud800",
        "\x00",
        "Doc 2 (Title: y) ",
    )
    stream = random.Random(0)
    for _ in range(5000):
        parse_documents("".join(stream.choices(pieces, k=stream.randint(0, 20))))
    for unit in (
        *pieces,
        "Doc 1 (Title: ",
        "Doc 1 (Title: ()",
        "Doc 1 (Title: (((",
        "Doc 1 (Title: x)",
    ):
        begun = time.process_time()
        parse_documents("Doc 1 (Title: " + unit * (40_000 // len(unit)))
        # Quadratic time would be minutes here; the limit leaves room for a busy machine.
        assert time.process_time() - begun < 5.0, unit


def test_equal_documents_have_equal_ids_whatever_their_number():
    first, second, other = parse_documents(
        "Doc 1 (Title: X) a Doc 5 (Title: X) a Doc 5 (Title: X) b"
    )
    assert first == second
    assert other.id != first.id


def test_only_untitled_hits_are_taken_apart():
    blob = "Doc 1 (Title: X) a Doc 2 (Title: Y) b"
    titled, untitled, plain = (
        Document("1", "T", blob),
        Document("2", "", blob),
        Document("3", "", "c"),
    )
    assert separate([titled, plain], 9) == [titled, plain]
    parts = separate([untitled, plain], 9)
    assert [(part.title, part.text) for part in parts] == [("X", "a"), ("Y", "b"), ("", "c")]
    assert separate([untitled, plain], 2) == parts[:2]


# --- cuts


@given(st.text(st.sampled_from("ab é\u0301.\n_7"), max_size=60), st.integers(0, 60))
def test_a_cut_is_the_longest_start_without_half_a_word(text, limit):
    shown = cut(text, limit)
    assert text.startswith(shown)
    assert len(shown) <= limit
    assert words(text)[: len(words(shown))] == words(shown), "whole words of the text"
    if len(text) > limit:
        missing = text[len(shown) : limit]
        assert all(c.isalnum() or unicodedata.combining(c) for c in missing), "no more than a word"
    else:
        assert shown == text


def test_a_script_without_blanks_is_cut_all_the_same():
    assert cut("ก" * 500, 200) == "ก" * 200
    assert cut("word " + "x" * 500, 200) == "word " + "x" * 195
    assert cut("word " + "x" * 60, 40) == "word "


def test_cutting_takes_time_in_proportion():
    begun = time.process_time()
    cut("x" * 1_000_000, 900_000)
    assert time.process_time() - begun < 0.1


def test_a_template_cuts_each_text_and_the_limit_the_whole():
    documents = [Document("", "X", "one two"), Document("", "Y", "three four")]
    assert list_documents(documents, "{number} {title} {text:.6}", 99) == "1 X one \n2 Y three "
    assert list_documents(documents, "{number} {title} {text:.6}", 13) == "1 X one \n2 Y "


# --- paragraphs and evidence


def test_a_text_that_utf8_cannot_hold_is_read_like_any_other():
    (paragraph,) = paragraphs("a \ud800 b", 1)
    assert paragraph.words == {"a", "b"}


@pytest.mark.parametrize(
    ("paragraph", "value", "expected"),
    [
        ("Peru capital: Lima", "Lima", "Peru capital: Lima"),
        ("Peru capital: Lima, a port", "Lima", "Peru capital: Lima"),
        ("Luxembourg capital: Luxembourg", "Luxembourg", "Luxembourg capital: Luxembourg"),
        (" Peru capital: Lima \n", "Lima", "Peru capital: Lima"),
        ("the seat is there", "hague", "the seat is there"),
        ("the seat is there", "", "the seat is there"),
        ("", "hague", ""),
    ],
)
def test_evidence_goes_to_the_last_mention_of_the_value(paragraph, value, expected):
    assert evidence(Hop("t", "r", value, paragraph)) == expected


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("a b c", "b", True),
        ("abc", "b", False),
        ("ab", "b", False),
        ("bc", "b", False),
        ("ab b", "b", True),
        ("b", "b", True),
        ("a (b)", "b", True),
        ("a b1", "b", False),
        ("a .b", ".b", True),
        ("a.b", ".b", True),
        ("", "", False),
        ("a", "", False),
    ],
)
def test_a_phrase_is_held_between_word_ends(text, phrase, expected):
    assert holds(text, phrase) is expected
