"""Documents as text: how they are listed, cut, split, ranked, parsed back and found again."""

import functools
import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from turncredit.answers import distinct_words, words
from turncredit.worlds.base import Document, Hop

_BLANK_LINE = re.compile(r"\n\s*\n")
_LONGEST_WORD = 64
_HEADER = re.compile(
    r"\bDoc\s*(?P<number>\d+)\s*\(Title:(?P<title>(?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*+\))*+)\)"
)
"""Brackets inside a title may nest twice; the possessive loops keep junk linear."""


# --- listing


def list_documents(documents: Iterable[Document], template: str, limit: int) -> str:
    """One entry a document, numbered from 1, at most `limit` characters in all.

    `template` may use {number}, {title} and {text}; {text:.300} is the text cut to 300 characters,
    without the half of a word.

    >>> list_documents([Document("", "Rome", "a city in Italy")], "Doc {number}: {text:.8}", 99)
    'Doc 1: a city '
    """
    entries = [
        template.format(number=number, title=document.title, text=_Shortened(document.text))
        for number, document in enumerate(documents, start=1)
    ]
    return cut("\n".join(entries), limit)


def require_template(name: str, template: str) -> None:
    """Raise ValueError naming a template that uses anything but {number}, {title} and {text}."""
    try:
        template.format(number=1, title="", text=_Shortened())
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{name} = {template!r} may use {{number}}, {{title}} and {{text}}"
        ) from error


def template_words(template: str, count: int) -> list[str]:
    """The words that a listing of at most `count` documents has of its own."""
    return words(list_documents([Document("", "", "")] * count, template, sys.maxsize))


class _Shortened(str):
    """A text whose format precision cuts between words."""

    def __format__(self, spec: str) -> str:
        if spec.startswith("."):
            return cut(str(self), int(spec[1:]))
        return super().__format__(spec)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text, without the half of a word.

    A word of more than 64 letters, as in scripts without blanks, is cut all the same.

    >>> cut("seat: The Hague", 13), cut("seat: The Hague", 99)
    ('seat: The ', 'seat: The Hague')
    """
    if len(text) <= limit or not _of_a_word(text[limit]):
        return text[:limit]
    for end in range(limit, max(limit - _LONGEST_WORD, 0), -1):
        if not _of_a_word(text[end - 1]):
            return text[:end]
    return text[:limit] if limit > _LONGEST_WORD else ""


def _of_a_word(character: str) -> bool:
    """A letter, a digit, or a mark on the letter before it."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


# --- paragraphs


@dataclass(frozen=True)
class Paragraph:
    """A paragraph with its distinct words and the MD5 that marks it as returned."""

    text: str
    words: frozenset[str]
    digest: str


@functools.lru_cache(maxsize=16384)
def paragraphs(text: str, minimum: int) -> tuple[Paragraph, ...]:
    """Blank-line separated paragraphs of at least `minimum` characters."""
    pieces = (piece.strip() for piece in _BLANK_LINE.split(text))
    return tuple(
        Paragraph(piece, distinct_words(piece), _md5(piece))
        for piece in pieces
        if len(piece) >= max(minimum, 1)
    )


def _md5(text: str) -> str:
    """Hex MD5 of any text, also of one that UTF-8 cannot hold."""
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def rank_by_overlap(candidates: Iterable[Paragraph], query: str) -> list[Paragraph]:
    """Paragraphs sharing a word with the query, most distinct shared words first, ties in order."""
    asked = distinct_words(query)
    scored = [(len(asked & paragraph.words), paragraph) for paragraph in candidates]
    kept = [pair for pair in scored if pair[0] > 0]
    return [paragraph for _, paragraph in sorted(kept, key=lambda pair: -pair[0])]


def best_paragraph(document: Document, query: str) -> Document:
    """The document with no more than the paragraph that shares most words with the query.

    The first of those that share as many, and the first of all if none shares any.

    >>> best_paragraph(Document("1", "Rome", "seat of a pope\\n\\nriver Tiber"), "Rome river").text
    'river Tiber'
    """
    pieces = paragraphs(document.text, 1)
    best = [*rank_by_overlap(pieces, query), *pieces][:1]
    return replace(document, text=best[0].text) if best else document


# --- documents from text


def parse_documents(text: str) -> list[Document]:
    """The documents that a text holds under `Doc N (Title: ...)` headers; [] without a header.

    What stands before the first header is dropped; quotes around a title too.  Equal documents get
    equal ids, whatever their numbers.  Never raises.

    >>> found = parse_documents('Doc 1(Title: "Rome") a city Doc 2 (Title: Congo (Zaire)) a state')
    >>> [(document.title, document.text) for document in found]
    [('Rome', 'a city'), ('Congo (Zaire)', 'a state')]
    """
    headers = list(_HEADER.finditer(text))
    starts = [header.start() for header in headers] + [len(text)]
    return [
        _parsed(header["title"], text[header.end() : end])
        for header, end in zip(headers, starts[1:], strict=True)
    ]


def _parsed(title: str, text: str) -> Document:
    title, text = title.strip().strip('"').strip(), text.strip()
    digest = _md5(f"{title}\n{text}")
    return Document(f"parsed-{digest}", title, text)


def separate(hits: Sequence[Document], limit: int) -> list[Document]:
    """At most `limit` documents: search hits, an untitled one with headers taken apart by them.

    Some retrievers answer with all passages in one text.  A titled document is never taken apart:
    its author may write what looks like a header.
    """
    documents: list[Document] = []
    for hit in hits:
        documents += ([] if hit.title else parse_documents(hit.text)) or [hit]
    return documents[:limit]


# --- evidence


def evidence(hop: Hop) -> str:
    """What a text must hold to state the hop: its paragraph up to the last mention of the value.

    The whole paragraph if the value is not in it literally; '' if the world has lost it.

    >>> evidence(Hop("Peru", "capital", "Lima", "Peru capital: Lima, a port"))
    'Peru capital: Lima'
    """
    paragraph = hop.paragraph.strip()
    start = paragraph.rfind(hop.value) if hop.value else -1
    return paragraph if start < 0 else paragraph[: start + len(hop.value)]


def holds(text: str, phrase: str) -> bool:
    """Whether a phrase stands in a text literally and not inside longer words; never for ''.

    >>> holds("Peru capital: Lima, a port", "capital: Lima"), holds("Limassol", "Lima")
    (True, False)
    """
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        end = start + len(phrase)
        inside = start > 0 and text[start - 1].isalnum() and phrase[0].isalnum()
        goes_on = end < len(text) and text[end].isalnum() and phrase[-1].isalnum()
        if not (inside or goes_on):
            return True
        start = text.find(phrase, start + 1)
    return False
