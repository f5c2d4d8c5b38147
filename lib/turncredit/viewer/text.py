"""Ids to text, and text to markup that shows exactly that text and can do nothing else."""

import functools
import html
import unicodedata
from collections.abc import Sequence
from typing import Protocol

_HIDDEN_KINDS = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that draw nothing, though Unicode counts them as text."""

_REPLACEMENT = "\ufffd"
_LONGEST_WAIT = 32
"""Tokens after which U+FFFD is taken for what was meant, not for half a character."""


class Decoder(Protocol):
    """Our word-level vocabulary, a Hugging Face tokenizer, or anything else that decodes."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""


def is_hidden(character: str) -> bool:
    """Would this character be invisible, or reorder its neighbours?  Line feed and tab are not.

    Controls, bidirectional and zero-width formats, line separators, tags, variation selectors,
    lone surrogates, private and unassigned code points, and letters that draw nothing.

    >>> [is_hidden(c) for c in ("a", " ", "\\n", "\\u202e", "\\0", "\\u2028")]
    [False, False, False, True, True, True]
    """
    if character in "\n\t":
        return False
    selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    kind = unicodedata.category(character)
    return kind in _HIDDEN_KINDS or selector or character in _BLANK_LETTERS


def code_point(character: str) -> str:
    """Its Unicode number, as one writes it.

    >>> code_point("\\u202e")
    'U+202E'
    """
    return f"U+{ord(character):04X}"


def markup(text: str, *, mark_lines: bool = False) -> str:
    """`text` as HTML: escaped, each hidden character replaced by its number in a box.

    With `mark_lines` a line feed also shows an arrow, so that a token of nothing else is seen.

    >>> markup("<b> \\u202e &")
    '&lt;b&gt; <b class="hid">U+202E</b> &amp;'
    """
    if _plain(text) and not (mark_lines and "\n" in text):
        return html.escape(text)
    return "".join(_character(c, mark_lines) for c in text)


def _character(character: str, mark_lines: bool) -> str:
    if is_hidden(character):
        return f'<b class="hid">{code_point(character)}</b>'
    if character == "\n" and mark_lines:
        return '<b class="hid">\u21b5</b>\n'
    return html.escape(character)


def _plain(text: str) -> bool:
    return text.isprintable() and not any(is_hidden(c) for c in text if c > "~")


def readable(text: str) -> str:
    """`text` with hidden characters as their numbers in angle brackets; not escaped.

    >>> readable("a\\u202eb")
    'a⟨U+202E⟩b'
    """
    if _plain(text):
        return text
    return "".join(f"⟨{code_point(c)}⟩" if is_hidden(c) else c for c in text)


def attribute(text: str) -> str:
    """`text` for use between double quotes in an attribute, on one line."""
    return html.escape(" ".join(readable(text).split()), quote=True)


def decoded(decoder: Decoder, ids: Sequence[int], where: str) -> str:
    """The text of `ids`; ValueError naming `where` if the decoder does not know one of them."""
    return _decode(decoder, tuple(ids), where)


def pieces(decoder: Decoder, ids: Sequence[int], where: str) -> list[str]:
    """The text that each id adds to those before it; together they are the text of `ids`.

    Decoding an id alone would lose the space before it, or break a character that several byte
    tokens share: such a character stands with the last of them, the others add ''.
    """
    ids = tuple(ids)
    decode = functools.cache(lambda window: _decode(decoder, window, where))
    parts: list[str] = []
    start = done = 0  # ids[start:done] are context, from `done` on characters may be incomplete
    shown = ""
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        whole = end == len(ids) or end - done >= _LONGEST_WAIT or not text.endswith(_REPLACEMENT)
        stable = text if whole else text[:-1]
        follows = stable.startswith(shown)
        parts.append(stable[len(shown) :] if follows else decode(ids[done:end]))
        shown = stable
        if whole:
            start, done = done, end
            shown = decode(ids[start:done])
    return parts


def _decode(decoder: Decoder, ids: tuple[int, ...], where: str) -> str:
    negative = [index for index in ids if index < 0]
    if negative:
        raise ValueError(f"{where}: {negative[0]} is not a token id")
    try:
        return decoder.decode(list(ids)) if ids else ""
    except (IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{where}: the vocabulary cannot decode {list(ids)} ({error})") from error
