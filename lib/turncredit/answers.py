"""Words, answer normalisation and answer scores (SQuAD convention, extended to Unicode)."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"</?[a-z_]+>|[^\W_]+", re.UNICODE)
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


def normalise_answer(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces.

    >>> normalise_answer("The Hague!")
    'hague'
    """
    return " ".join(word for word in words(text) if word not in _ARTICLES)


def exact_match(answer: str, golds: Sequence[str]) -> bool | None:
    """Whether the normalised answer equals any gold answer; None (missing) if no gold is usable.

    >>> exact_match("the hague", ["Hague", "Den Haag"]), exact_match("x", ["..."])
    (True, None)
    """
    usable = {normalise_answer(gold) for gold in golds} - {""}
    if not usable:
        return None
    return normalise_answer(answer) in usable


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
