"""Words, answer normalisation and answer scores (SQuAD convention, extended to Unicode)."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_MARKS = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c))[0] == "M")
"""Combining marks, which belong to the letter before them."""

_WORD = re.compile(rf"</?[a-z_]+>|(?:[^\W_]|[{re.escape(_MARKS)}])+")
_ARTICLES = frozenset({"a", "an", "the"})


def words(text: str) -> list[str]:
    """Lower-case words of a text; a tag such as <search> is one word, other signs separate words.

    Unicode is NFKC-normalised and letters with accents are kept.

    >>> words("<search> São Tomé (.st) </search>")
    ['<search>', 'são', 'tomé', 'st', '</search>']
    """
    return list(_split(text))


@functools.lru_cache(maxsize=65536)
def _split(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).lower()))


@functools.lru_cache(maxsize=16384)
def distinct_words(text: str) -> frozenset[str]:
    """The set of a text's `words`."""
    return frozenset(_split(text))


@functools.lru_cache(maxsize=16384)
def spoken(text: str) -> str:
    """A text's `words` joined by blanks: what remains of it when it is read aloud."""
    return " ".join(_split(text))


def stands_in(phrase: str, text: str) -> bool:
    """Whether the words of a phrase stand in a text one after the other; never for no words.

    >>> stands_in("Niger", "Doc 1 (Title: Nigeria)"), stands_in("São Tomé", "<doc> são tomé")
    (False, True)
    """
    wanted = spoken(phrase)
    return bool(wanted) and f" {wanted} " in f" {spoken(text)} "


def normalise_answer(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces.

    >>> normalise_answer("The Hague!")
    'hague'
    """
    return " ".join(word for word in words(text) if word not in _ARTICLES)


def exact_match(answer: str, golds: Sequence[str]) -> bool | None:
    """Whether the normalised answer equals any gold answer; None (missing) if no gold is usable.

    Spaces do not count, so that "U.S." matches "US", "1,000" "1000", and "Timor-Leste" the words
    "timor leste" of a word-level policy.

    >>> exact_match("the hague", ["Hague", "Den Haag"]), exact_match("x", ["..."])
    (True, None)
    """
    usable = {_letters(gold) for gold in golds} - {""}
    if not usable:
        return None
    return _letters(answer) in usable


@functools.lru_cache(maxsize=65536)
def _letters(text: str) -> str:
    return normalise_answer(text).replace(" ", "")


def f1_score(answer: str, golds: Sequence[str]) -> float | None:
    """Largest word-overlap F1 with any gold answer; None (missing) if no gold is usable.

    >>> f1_score("united kingdom", ["the united states"])
    0.5
    """
    usable = [normalise_answer(gold).split() for gold in golds]
    scores = [_overlap_f1(normalise_answer(answer).split(), gold) for gold in usable if gold]
    return max(scores) if scores else None


def _overlap_f1(answer: list[str], gold: list[str]) -> float:
    shared = sum((Counter(answer) & Counter(gold)).values())
    return 2 * shared / (len(answer) + len(gold)) if shared else 0.0
