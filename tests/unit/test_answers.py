"""Answers: normalisation, exact match and F1 as in SQuAD, with missing kept apart from wrong."""

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.answers import exact_match, f1_score, normalise_answer, stands_in, words

TEXT = st.text(max_size=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Hague!", "hague"),
        ("  a  b\tc\n", "b c"),
        ("São Tomé", "são tomé"),
        (unicodedata.normalize("NFD", "São Tomé"), "são tomé"),
        ("ﬁnland", "finland"),
        ("ＴＯＫＹＯ", "tokyo"),
        ("snake_case", "snake case"),
        ("theatre an anthem", "theatre anthem"),
        ("12 000", "12 000"),
        ("...", ""),
        ("The A an", ""),
    ],
)
def test_normalisation_by_hand(text, expected):
    assert normalise_answer(text) == expected


@given(TEXT)
def test_normalising_twice_changes_nothing(text):
    assert normalise_answer(normalise_answer(text)) == normalise_answer(text)


@given(TEXT)
def test_words_hold_no_space_and_survive_being_joined(text):
    assert words(" ".join(words(text))) == words(text)
    assert all(word and not any(letter.isspace() for letter in word) for word in words(text))


@pytest.mark.parametrize("tag", ["<search>", "</search>", "<read_chunk>", "</external_verify>"])
def test_a_tag_is_one_word_even_when_glued_to_its_neighbours(tag):
    assert words(f"x{tag}y") == ["x", tag, "y"]


def test_missing_is_not_wrong():
    assert exact_match("x", []) is None
    assert exact_match("", ["..."]) is None
    assert f1_score("x", ["the"]) is None
    assert exact_match("", ["x"]) is False
    assert exact_match("", ["...", "x"]) is False
    assert f1_score("", ["x"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("united kingdom", ["the united states"], 0.5),
        ("x", ["x"], 1.0),
        ("x x y", ["x y y y"], 2 * 2 / 7),
        ("new york city", ["york", "new york"], 0.8),
        ("a b", ["c d"], 0.0),
    ],
)
def test_f1_by_hand(answer, golds, expected):
    assert f1_score(answer, golds) == pytest.approx(expected)


@given(st.lists(st.sampled_from("xyzw"), min_size=1), st.lists(st.sampled_from("xyzw"), min_size=1))
def test_f1_is_symmetric_at_most_one_and_one_for_equal_bags_only(left, right):
    score = f1_score(" ".join(left), [" ".join(right)])
    assert score == f1_score(" ".join(right), [" ".join(left)])
    assert 0 <= score <= 1
    assert (score == 1) == (Counter(left) == Counter(right))


@given(TEXT, st.lists(TEXT, min_size=1, max_size=3))
def test_an_exact_match_is_the_match_of_any_usable_gold(answer, golds):
    each = [exact_match(answer, [gold]) for gold in golds]
    known = [match for match in each if match is not None]
    assert exact_match(answer, golds) == (any(known) if known else None)


@pytest.mark.parametrize(
    ("answer", "gold"), [("US", "U.S."), ("1000", "1,000"), ("moodys", "Moody's")]
)
def test_punctuation_is_removed_as_squad_does_and_does_not_split_words(answer, gold):
    assert exact_match(answer, [gold]) is True


def test_marks_that_are_part_of_a_letter_neither_split_words_nor_vanish():
    assert len(words("İstanbul")) == 1
    assert exact_match("कि", ["का"]) is False, "two syllables that differ in their vowel sign"


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("Doc 1 (Title: Nigeria)", "Niger", False),
        ("CORRECT", "correct", True),
        ("incorrect", "correct", False),
        ("a b c", "b c", True),
        ("a b c", "a c", False),
        ("<doc> São Tomé", "são tomé", True),
        ("", "", False),
        ("a b", "...", False),
    ],
)
def test_a_phrase_stands_in_a_text_by_whole_words_in_order(text, phrase, expected):
    assert stands_in(phrase, text) is expected
