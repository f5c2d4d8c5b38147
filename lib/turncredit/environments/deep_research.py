"""The deep-research task: search, read_chunk, external_verify, answer; one reward at the end.

Source: the slides "Entropy-gated suffix masking", "From Search-R1 to a deep-research agent".
The defaults are the slides' constants; the tiny tier scales them down.
"""

import functools
import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.answers import exact_match, words
from turncredit.environments.actions import parse_action
from turncredit.environments.judges import Judge
from turncredit.environments.protocol import Step
from turncredit.params import require_positive
from turncredit.worlds.base import Document, Question, World

_BLANK_LINE = re.compile(r"\n\s*\n")
_HALF_WORD = re.compile(r"[^\W_]+\Z")


@dataclass(frozen=True)
class DeepResearchSettings:
    """Constants of the environment."""

    max_turns: int = 20
    search_results: int = 3
    summary_characters: int = 8000
    header: str = "Doc {number} (Title: {title})"
    """How a search hit is announced; may use {number} and {title}."""
    minimum_paragraph: int = 80
    """Paragraphs with fewer characters are dropped."""
    sections: int = 2
    """Sections returned by one read_chunk."""
    section_characters: int = 2000
    invalid_ends: bool = True
    """A malformed message ends the episode; otherwise it costs its turn and the penalty."""
    invalid_penalty: float = 0.0
    """Subtracted from the reward for each malformed message."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turns", "search_results", "summary_characters", "sections")
        require_positive(self, "section_characters")
        if self.minimum_paragraph < 0 or self.invalid_penalty < 0:
            raise ValueError("minimum_paragraph and invalid_penalty must not be below 0")
        try:
            self.header.format(number=1, title="")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"header = {self.header!r} may use {{number}} and {{title}}"
            ) from error


@dataclass(frozen=True)
class DeepResearch:
    """A factory of deep-research episodes over one world."""

    world: World
    judge: Judge
    settings: DeepResearchSettings
    actions: tuple[str, ...] = ("search", "read_chunk", "external_verify", "answer")

    def reset(self, question: Question, stream: random.Random) -> "DeepResearchEpisode":
        """Start an episode; search misses and judge noise come from `stream`."""
        return DeepResearchEpisode(self, question, stream)


class DeepResearchEpisode:
    """One question being researched.  Full documents stay in a stash outside the context."""

    def __init__(
        self, environment: DeepResearch, question: Question, stream: random.Random
    ) -> None:
        self.environment = environment
        self.question = question
        self.stream = stream
        self.prompt = f"<question> {question.text} </question>"
        self.success = False
        self.sections: list[str] = []
        """Paragraphs returned by read_chunk so far: the gathered context that the judge may see."""
        self._stash: dict[str, Document] = {}
        self._returned: set[str] = set()
        self._turns = 0
        self._invalid = 0

    @property
    def reward(self) -> float | None:
        """1 for an exact match, 0 otherwise, minus the penalty of malformed messages.

        None (missing, which is not 0) if the question has no usable gold answer.
        """
        if exact_match("", self.question.answers) is None:
            return None
        return float(self.success) - self.environment.settings.invalid_penalty * self._invalid

    @property
    def grounded(self) -> bool:
        """Whether the paragraph that states the answer was ever read."""
        paragraph = self.question.hops[-1].paragraph
        return bool(paragraph) and paragraph in self.sections

    def step(self, message: str) -> Step:
        """Act on one message."""
        settings = self.environment.settings
        action, argument = parse_action(message, self.environment.actions)
        self._turns += 1
        if action == "answer":
            correct = exact_match(argument, self.question.answers)
            self.success = bool(correct)
            return Step(action, "", stop_reason="answer", correct=correct)
        if action == "invalid":
            self._invalid += 1
            if settings.invalid_ends:
                return Step(action, "", stop_reason="invalid")
        if self._turns >= settings.max_turns:
            return Step(
                action, "", stop_reason="max_turns", correct=self._guess_correct(action, argument)
            )
        observation = f"<information> {self._observe(action, argument)} </information>"
        return Step(action, observation, correct=self._guess_correct(action, argument))

    def _guess_correct(self, action: str, argument: str) -> bool | None:
        return exact_match(argument, self.question.answers) if action == "external_verify" else None

    def _observe(self, action: str, argument: str) -> str:
        if action == "search":
            return self._search(argument)
        if action == "read_chunk":
            return self._read(argument)
        if action == "external_verify":
            judge = self.environment.judge
            return judge.verdict(self.question, argument, self.sections, self.stream)
        return "invalid action"

    def _search(self, query: str) -> str:
        settings = self.environment.settings
        found = self.environment.world.search(
            self.question, query, settings.search_results, self.stream
        )
        self._stash.update((document.id, document) for document in found)
        lines = [
            settings.header.format(number=n, title=d.title) for n, d in enumerate(found, start=1)
        ]
        return cut("\n".join(lines), settings.summary_characters) or "no results"

    def _read(self, query: str) -> str:
        settings = self.environment.settings
        candidates = {
            paragraph.digest: paragraph
            for document in self._stash.values()
            for paragraph in _paragraphs(document.text, settings.minimum_paragraph)
            if paragraph.digest not in self._returned
        }
        best = rank_by_overlap(list(candidates.values()), query)[: settings.sections]
        self._returned.update(paragraph.digest for paragraph in best)
        self.sections += [paragraph.text for paragraph in best]
        shown = [cut(paragraph.text, settings.section_characters) for paragraph in best]
        return "\n".join(shown) or "none"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph with its distinct words and the MD5 that marks it as returned."""

    text: str
    words: frozenset[str]
    digest: str


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text, without the half of a word.

    >>> cut("seat: The Hague", 13), cut("seat: The Hague", 99)
    ('seat: The ', 'seat: The Hague')
    """
    if len(text) <= limit or not (text[limit - 1].isalnum() and text[limit].isalnum()):
        return text[:limit]
    return _HALF_WORD.sub("", text[:limit])


def rank_by_overlap(paragraphs: Sequence[Paragraph], query: str) -> list[Paragraph]:
    """Paragraphs sharing a word with the query, most distinct shared words first, ties in order."""
    asked = set(words(query))
    scored = [(len(asked & paragraph.words), paragraph) for paragraph in paragraphs]
    kept = [pair for pair in scored if pair[0] > 0]
    return [paragraph for _, paragraph in sorted(kept, key=lambda pair: -pair[0])]


@functools.lru_cache(maxsize=16384)
def _paragraphs(text: str, minimum: int) -> tuple[Paragraph, ...]:
    """Blank-line separated paragraphs of at least `minimum` characters."""
    pieces = (piece.strip() for piece in _BLANK_LINE.split(text))
    return tuple(
        Paragraph(
            piece,
            frozenset(words(piece)),
            hashlib.md5(piece.encode(), usedforsecurity=False).hexdigest(),
        )
        for piece in pieces
        if len(piece) >= max(minimum, 1)
    )
