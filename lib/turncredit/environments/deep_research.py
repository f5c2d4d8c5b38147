"""The deep-research task: search, read_chunk, external_verify, answer; one reward at the end.

Source: the slides "Entropy-gated suffix masking", "From Search-R1 to a deep-research agent".
The defaults are the slides' constants; the tiny tier scales them down.
"""

import random
from dataclasses import dataclass, field
from typing import ClassVar

from turncredit.answers import words
from turncredit.environments.episode import NO_RESULTS, QuestionEpisode, failures_of
from turncredit.environments.judges import VERDICTS, Judge
from turncredit.environments.reading import (
    Paragraph,
    cut,
    list_documents,
    paragraphs,
    parse_documents,
    rank_by_overlap,
    require_template,
    separate,
    template_words,
)
from turncredit.environments.wording import Wording
from turncredit.params import require_positive
from turncredit.worlds.base import Document, Question, World


@dataclass(frozen=True)
class DeepResearchSettings:
    """Constants of the environment."""

    KIND: ClassVar[str] = "deep_research"

    max_turns: int = 20
    search_results: int = 3
    summary_characters: int = 8000
    header: str = "Doc {number} (Title: {title})"
    """How a search hit is announced; may use {number}, {title} and {text}, and {text:.300} for the
    first 300 characters of the document."""
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
        require_template("header", self.header)


@dataclass(frozen=True)
class DeepResearch:
    """A factory of deep-research episodes over one world."""

    world: World
    judge: Judge
    settings: DeepResearchSettings
    actions: tuple[str, ...] = ("search", "read_chunk", "external_verify", "answer")
    wording: Wording = field(default_factory=Wording)

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that the environment itself says, for a word-level vocabulary."""
        settings = self.settings
        headers = template_words(settings.header, settings.search_results)
        fixed = words(" ".join((NO_RESULTS, *VERDICTS)))
        return tuple(dict.fromkeys([*self.wording.words(), *headers, *fixed]))

    @property
    def failures(self) -> dict[str, int]:
        """Failed verdicts and searches by cause, over all episodes so far."""
        return failures_of(judge=self.judge, search=self.world)

    @property
    def waits_for_servers(self) -> bool:
        """Whether steps may wait for others, and may be taken in several threads at a time."""
        return hasattr(self.world, "expect") or hasattr(self.judge, "expect")

    def reset(self, question: Question, stream: random.Random) -> "DeepResearchEpisode":
        """Start an episode; search misses and judge noise come from `stream`."""
        return DeepResearchEpisode(self, question, stream)


class DeepResearchEpisode(QuestionEpisode):
    """One question being researched.  Full documents stay in a stash outside the context."""

    def __init__(
        self, environment: DeepResearch, question: Question, stream: random.Random
    ) -> None:
        super().__init__(environment, question, stream)
        self.sections: list[str] = []
        """Texts of documents as the policy was shown them, each cut as it saw it: the gathered
        context, and all that the judge may see."""
        self._stash: dict[str, Document] = {}
        self._unread: dict[str, Paragraph] = {}
        """By MD5, in the order of the stash."""
        self._read_before: set[str] = set()

    def _expect(self, action: str, argument: str) -> None:
        world, judge = self.environment.world, self.environment.judge
        if action == "search" and hasattr(world, "expect"):
            world.expect(argument, self.environment.settings.search_results)
        if action == "external_verify" and hasattr(judge, "expect"):
            judge.expect(self.question, argument, tuple(self.sections))

    def _use(self, action: str, argument: str) -> str:
        if action == "search":
            return self._search(argument)
        if action == "read_chunk":
            return self._read(argument)
        judge = self.environment.judge
        return judge.verdict(self.question, argument, tuple(self.sections), self.stream)

    def _search(self, query: str) -> str:
        settings = self.environment.settings
        limit = settings.search_results
        hits = self.environment.world.search(self.question, query, limit, self.stream)
        found = separate(hits, limit)
        self._keep(found)
        summary = list_documents(found, settings.header, settings.summary_characters)
        if summary and "{text" in settings.header:
            self.sections.append(self._show(summary))
        return summary or NO_RESULTS

    def _keep(self, documents: list[Document]) -> None:
        """Put documents into the stash and their paragraphs among those that can be read."""
        for document in documents:
            if self._stash.get(document.id) == document:
                continue
            self._stash[document.id] = document
            for paragraph in paragraphs(document.text, self.environment.settings.minimum_paragraph):
                if paragraph.digest not in self._read_before:
                    self._unread.setdefault(paragraph.digest, paragraph)

    def _read(self, query: str) -> str:
        settings = self.environment.settings
        if not self._stash:  # documents that came with the question, if any
            self._keep(parse_documents(self.question.text))
        best = rank_by_overlap(self._unread.values(), query)[: settings.sections]
        for paragraph in best:
            self._read_before.add(paragraph.digest)
            del self._unread[paragraph.digest]
        shown = [self._show(cut(paragraph.text, settings.section_characters)) for paragraph in best]
        self.sections += shown
        return "\n".join(shown) or self.environment.wording.nothing_to_read
