"""A word-level vocabulary built from a world, so that a tiny policy speaks it exactly."""

import functools
from collections.abc import Iterable, Sequence

from turncredit.answers import words
from turncredit.policies.protocol import MessageEnd

PAD = "<pad>"


class Vocabulary:
    """Words to ids and back.  Ids are fixed by the order of the words given; id 0 pads batches.

    Only prompts and observations are ever encoded: policy-sampled ids stay ids.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = (PAD, *dict.fromkeys(entries))
        self._ids = {word: index for index, word in enumerate(self.entries)}
        self._plain = {word: self._ids[word] for word in self.entries if words(word) == [word]}
        """Those that stay as they are where a text is split into its words."""
        self._encode = functools.lru_cache(maxsize=65536)(self._encode_once)

    def __len__(self) -> int:
        return len(self.entries)

    def id(self, word: str) -> int:
        """Id of one word; KeyError naming it if unknown."""
        if word not in self._ids:
            raise KeyError(f"word {word!r} is not among the {len(self)} of this vocabulary")
        return self._ids[word]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text's words; KeyError naming the first unknown word."""
        return self._encode(text)

    def _encode_once(self, text: str) -> tuple[int, ...]:
        try:  # most texts are nothing but known words with blanks between them
            return tuple(map(self._plain.__getitem__, text.split()))
        except KeyError:
            return tuple(self.id(word) for word in words(text))

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of a prompt's words: nothing stands around them."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Words joined by single spaces."""
        return " ".join([self.entries[index] for index in ids])

    def message_end(self, closing: Sequence[str]) -> MessageEnd:
        """Where a message ends: at any of these tags, each a word; KeyError if one is unknown.

        >>> ended = Vocabulary(["<answer>", "lisbon", "</answer>"]).message_end(["</answer>"])
        >>> ended([1, 2]), ended([1, 2, 3])
        (False, True)
        """
        ids = frozenset(map(self.id, closing))
        return lambda sampled_ids: sampled_ids[-1] in ids


def tag_vocabulary(actions: Sequence[str], content: Iterable[str]) -> Vocabulary:
    """The vocabulary of a tag environment: tags, fixed observations, then the world's words."""
    tags = [
        tag for name in ("question", "information", *actions) for tag in (f"<{name}>", f"</{name}>")
    ]
    fixed = ("<doc>", "none", "no", "results", "invalid", "action", "correct", "uncertain", "wrong")
    return Vocabulary([*tags, *fixed, *content])
