"""The short-horizon task: question, search, answer; documents are dumped into the context.

Source: Jin et al. 2025, "Search-R1", and its public code.  The policy thinks in <think>, searches
with <search>, reads what comes between <information> tags, and ends with <answer>; the only reward
is the exact match of that answer.

Deviations from the public code:

- Scored is the policy-written answer alone.  There, prompt and response are scored together and
  two <answer> matches are asked for, but the prompt brings both of them along, so that a reply
  without an answer is scored as the prompt's example.
- A message must be one action after at most one thought (`parse_action`); there, the first tag pair
  found anywhere in it acts.
- Sampled ids are kept; there, the text is cut after the closing tag and tokenised again.
- `max_turns` counts every message.  There, it counts messages that may search, and one more is
  granted in which only an answer counts: 4 there is 5 here.
- Documents are cut to characters, between words, and inside their tags; there, the whole
  observation is cut to 500 tokens, which can cost it the closing tag.
- The prompt and the message after a malformed one say the same in other words.
- Answers are normalised as in `turncredit.answers`, which knows Unicode and ignores blanks.
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from turncredit.answers import words
from turncredit.environments.episode import NO_RESULTS, QuestionEpisode, failures_of
from turncredit.environments.reading import (
    best_paragraph,
    list_documents,
    require_template,
    separate,
    template_words,
)
from turncredit.environments.wording import WORDINGS, Wording
from turncredit.params import require_positive
from turncredit.worlds.base import Question, World


@dataclass(frozen=True)
class SearchR1Settings:
    """Constants of the environment."""

    KIND: ClassVar[str] = "search_r1"

    max_turns: int = 4
    search_results: int = 3
    passage: str = "Doc {number}(Title: {title}) {text}"
    """How a document is shown; may use {number}, {title} and {text}, and {text:.300} for its first
    300 characters."""
    best_paragraph: bool = False
    """Of each document show the paragraph that shares most words with the query, not the whole: a
    corpus of documents is then searched like one of passages, as wiki-18 is."""
    observation_characters: int = 2000
    """All passages of one search together; about 500 tokens of English."""
    invalid_ends: bool = False
    """A malformed message ends the episode; otherwise it costs its turn and the penalty."""
    invalid_penalty: float = 0.0
    """Subtracted from the reward for each malformed message."""

    def __post_init__(self) -> None:
        require_positive(self, "max_turns", "search_results", "observation_characters")
        if self.invalid_penalty < 0:
            raise ValueError(f"invalid_penalty = {self.invalid_penalty} must not be below 0")
        require_template("passage", self.passage)


@dataclass(frozen=True)
class SearchR1:
    """A factory of search-and-answer episodes over one world."""

    world: World
    settings: SearchR1Settings
    actions: tuple[str, ...] = ("search", "answer")
    wording: Wording = WORDINGS["search_r1"]

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that the environment itself says, for a word-level vocabulary."""
        settings = self.settings
        headers = template_words(settings.passage, settings.search_results)
        return tuple(dict.fromkeys([*self.wording.words(), *headers, *words(NO_RESULTS)]))

    @property
    def failures(self) -> dict[str, int]:
        """Failed searches by cause, over all episodes so far."""
        return failures_of(search=self.world)

    @property
    def waits_for_servers(self) -> bool:
        """Whether steps may wait for others, and may be taken in several threads at a time."""
        return hasattr(self.world, "expect")

    def reset(self, question: Question, stream: random.Random) -> "SearchR1Episode":
        """Start an episode; search misses come from `stream`."""
        return SearchR1Episode(self, question, stream)


class SearchR1Episode(QuestionEpisode):
    """One question being searched for."""

    def _expect(self, action: str, argument: str) -> None:
        world = self.environment.world
        if action == "search" and hasattr(world, "expect"):
            world.expect(argument, self.environment.settings.search_results)

    def _use(self, action: str, argument: str) -> str:
        settings = self.environment.settings
        limit = settings.search_results
        hits = self.environment.world.search(self.question, argument, limit, self.stream)
        documents = separate(hits, limit)
        if settings.best_paragraph:  # what one query leaves out, another may show
            documents = [best_paragraph(document, argument) for document in documents]
        elif documents:
            self._first = documents[0].title
        shown = list_documents(documents, settings.passage, settings.observation_characters)
        return self._show(shown) or NO_RESULTS
