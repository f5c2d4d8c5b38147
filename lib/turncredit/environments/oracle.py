"""What a question still needs, turn by turn: the truth that entropy gates are compared with."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

from turncredit.answers import distinct_words, exact_match, stands_in, words
from turncredit.environments.premises import Premises
from turncredit.environments.protocol import Episode
from turncredit.environments.reading import (
    cut,
    evidence,
    holds,
    list_documents,
    paragraphs,
    parse_documents,
)
from turncredit.worlds.base import Document, Hop, Question

RIGHT, FOLLOWS, WRONG, UNJUDGED = LABELS = ("right", "follows", "wrong", "unjudged")
"""What a turn can be: on the path; off it, but right given the wrong turns before it (`Premises`);
wrong; or taken where nothing is wrong any more, or never seen by the environment."""


class Oracle:
    """Follows one episode along the hops of its question and notes what each turn was.

    On the path are, for the first hop whose evidence was not shown yet, a search that names its
    title and, once the result of any search has named it, a reading that does; after the last hop
    the right answer and its verification.  What was shown before its turn, as by a search for
    another hop, may be looked up all the same, until it is shown in its turn.  A call that comes
    back empty was no mistake, and neither is to repeat it; what a disturbance takes from the text
    on its way to the policy counts as shown.  Everything else is wrong, a guess also if it happens
    to be right.

    Where the paragraph that is needed next cannot be shown, nothing is wrong any more, as only a
    guess can win: the world has lost it, `can_show` says no, or a search has put its document first
    and the passage ended before the evidence.

    A query names a title by its words, so that one which lists every title is never wrong, and a
    title within another one is named by both.  What a reading asks of its document is not judged.
    """

    def __init__(self, question: Question, settings: Any) -> None:
        self.first_wrong = -1
        """Turn of the first action off the path, -1 while there was none."""
        self.labels: tuple[str, ...] = ()
        """One of LABELS for each turn."""
        self._premises = Premises(distinct_words(question.text))
        self._before = (self.first_wrong, self.labels, self._premises)
        self._argument = ""
        self._question = question
        self._unread = self._due = question.hops  # never shown; not shown in their turn
        self._lost = [hop for hop in question.hops if not can_show(hop, settings)]
        self._listed = {document.title for document in parse_documents(question.text)}

    def copy(self) -> "Oracle":
        """An oracle that knows the same and follows an episode of its own from here on."""
        twin = copy.copy(self)
        twin._lost, twin._listed = [*self._lost], {*self._listed}
        return twin

    def take_note(self, action: str, argument: str) -> None:
        """Judge the action of the next turn, whatever will come of it."""
        self._before = (self.first_wrong, self.labels, self._premises)
        self._argument = argument
        if self._is_needed(action, argument):
            self.labels += (UNJUDGED if self._is_lost() else RIGHT,)
            return
        if self.first_wrong < 0:
            self.first_wrong = len(self.labels)
        self.labels += (FOLLOWS if self._premises.support(action, argument) else WRONG,)
        self._premises = self._premises.after(argument)

    def forget(self) -> None:
        """Take back the note of the last turn, of which nothing was learnt."""
        self.first_wrong, self.labels, self._premises = self._before

    def learn(
        self, shown: Sequence[str], listing: str = "", first: str = "", verdict: str = ""
    ) -> None:
        """Take note of what a turn shows the policy, the texts that `grounded` goes by too.

        listing: the whole result if the turn was a search; first: the title of the document that
        comes first in it, where a search shows all that can be seen of a document; verdict: what
        the verifier said.
        """
        self._premises = self._premises.learn(self._argument, shown, listing, verdict)
        stated = [hop for hop in self._due if shown and _hold(shown, evidence(hop))]
        if stated:
            self._unread = tuple(hop for hop in self._unread if hop not in stated)
            self._due = self._due[self._due[0] in stated :]
        if listing:
            self._listed |= {hop.title for hop in self._due if stands_in(hop.title, listing)}
        self._lost += [hop for hop in self._unread if first and words(first) == words(hop.title)]

    def _is_needed(self, action: str, argument: str) -> bool:
        if self._is_lost():
            return True
        if not self._unread and action in ("answer", "external_verify"):
            return bool(exact_match(argument, self._question.answers))
        if action not in ("search", "read_chunk"):
            return False
        titles = {hop.title for hop in (*self._unread[:1], *self._due[:1])}
        if action == "read_chunk":
            titles &= self._listed
        return any(stands_in(title, argument) for title in titles)

    def _is_lost(self) -> bool:
        """Whether the paragraph that is needed next cannot be shown."""
        return bool(self._unread) and self._unread[0] in self._lost


def oracle_of(question: Question, settings: Any) -> Oracle | None:
    """The oracle of a question; None without known hops, or without an answer that could match."""
    return Oracle(question, settings) if has_oracle(question) else None


def has_oracle(question: Question) -> bool:
    """Whether a question has known hops, and an answer that could match."""
    return bool(question.hops) and exact_match("", question.answers) is not None


def can_show(hop: Hop, settings: Any) -> bool:
    """Whether the evidence of a hop could be found and shown, as far as the hop itself can tell.

    Not if the world has lost it, or if its title has no words that a query could name.  In deep
    research a search must also be able to list the title, and one section of the paragraph, or the
    text that a search shows, to hold the evidence.
    """
    reads = getattr(settings, "KIND", "") == "deep_research"
    shown = _shown_at_best(hop, settings) if reads else [hop.paragraph]
    return bool(words(hop.title)) and _hold(shown, evidence(hop))


@functools.lru_cache(maxsize=4096)
def _shown_at_best(hop: Hop, settings: Any) -> Sequence[str]:
    """What deep research shows of a document that is this paragraph and nothing else."""
    alone = [Document("", hop.title, hop.paragraph)]
    listing = list_documents(alone, settings.header, settings.summary_characters)
    shown = [listing] if "{text" in settings.header else []
    if stands_in(hop.title, listing):
        pieces = paragraphs(hop.paragraph, settings.minimum_paragraph)
        shown += [cut(piece.text, settings.section_characters) for piece in pieces]
    return shown


def oracle_turn(episode: Episode, turns: int) -> int | None:
    """First wrong turn of an episode among the first `turns`, which a record keeps; -1: none.

    None where the world cannot tell, or an environment of one's own has no `oracle_turn`.
    """
    turn = getattr(episode, "oracle_turn", None)
    return -1 if turn is not None and turn >= turns else turn


def turn_labels(episode: Episode, turns: int) -> tuple[str, ...] | None:
    """One of LABELS for each of the first `turns` turns of an episode, which a record keeps.

    A message that was cut before the environment saw it is unjudged.  None where the world cannot
    tell, or an environment of one's own has no `turn_labels`.
    """
    labels = getattr(episode, "turn_labels", None)
    if labels is None:
        return None
    return (*labels[:turns], *[UNJUDGED] * (turns - len(labels)))


def note_action(episode: Any, action: str, argument: str) -> bool:
    """Let an episode know of a turn whose message never reached it; False if it follows none."""
    follow = getattr(episode, "note_action", None)
    if follow is not None:
        follow(action, argument)
    return follow is not None


def forget_action(episode: Any) -> None:
    """Undo `note_action` of the last turn, where the episode follows it."""
    forget = getattr(episode, "forget_action", None)
    if forget is not None:
        forget()


def _hold(texts: Sequence[str], phrase: str) -> bool:
    """Whether one of the texts holds a phrase."""
    return any(holds(text, phrase) for text in texts)
