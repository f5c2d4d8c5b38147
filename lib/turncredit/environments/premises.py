"""What wrong decisions take for granted: the truth about execution after them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turncredit.answers import distinct_words, spoken, stands_in

Words = frozenset[str]


@dataclass(frozen=True)
class Premises:
    """What one episode named off the path so far; tells which turns build on it.

    A turn builds on it if it would be on the path were the decision right: a search for what a
    wrong turn named, or what was read about that says, a reading of it once the result of a search
    has listed it, and at the end an answer, or its verification, that stands in what was read about
    it.  What was read need not be looked up again.  A guess that the verifier called CORRECT may be
    handed in.  Names are the words of an argument that the question does not hold.
    """

    asked: Words
    """Words of the question."""
    named: Words = frozenset()
    listed: Words = frozenset()
    done: frozenset[Words] = frozenset()
    """Names that were looked up and read about."""
    read: tuple[str, ...] = ()
    confirmed: Words = frozenset()
    """Guesses, their words joined by blanks."""

    def after(self, argument: str) -> "Premises":
        """These and what a wrong turn names."""
        return replace(self, named=self.named | self._names(argument))

    def support(self, action: str, argument: str) -> bool:
        """Whether an action builds on the wrong turns before it."""
        if action in ("answer", "external_verify"):
            confirmed = action == "answer" and spoken(argument) in self.confirmed
            return confirmed or any(stands_in(argument, text) for text in self.read)
        names = self._names(argument)
        if action not in ("search", "read_chunk") or not names or names in self.done:
            return False
        return names <= (self.named if action == "search" else self.named & self.listed)

    def learn(self, argument: str, shown: Sequence[str], listing: str, verdict: str) -> "Premises":
        """These and what came of an action; empty where it showed no such thing."""
        names = self._names(argument)
        about = [text for text in shown if names and names <= distinct_words(text) & self.named]
        return replace(
            self,
            named=self.named.union(*map(self._names, about)),
            listed=self.listed | distinct_words(listing),
            done=self.done | ({names} if about else set()),
            read=(*self.read, *about),
            confirmed=self.confirmed | ({spoken(argument)} if verdict == "CORRECT" else set()),
        )

    def _names(self, text: str) -> Words:
        return distinct_words(text) - self.asked
