"""Small worlds, environments and policies for tests of everything that plays an episode."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from turncredit.answers import words
from turncredit.demonstrations import DemonstrationSettings
from turncredit.environments import DeepResearch, DeepResearchSettings, Step
from turncredit.environments.judges import RuleJudge
from turncredit.environments.snapshots import Snapshot, put_back, saved
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.tiny_decoder import Decoder
from turncredit.policies.vocabulary import Vocabulary, tag_vocabulary
from turncredit.training import Method, TrainingSettings
from turncredit.worlds.base import Document, Hop, Question
from turncredit.worlds.synthetic import SyntheticWorld

ACTIONS = ("search", "read_chunk", "external_verify", "answer")
PLAIN = Method("grpo", {}, "none", {}, "ppo_clip", {})
RESEARCH = DemonstrationSettings(guess_first=0.2, error=0.2, quit=0.1, verify=0.5, patience=3)
SMALL = SyntheticWorld(films=6, people=8, cities=8)
TINY = TinySettings(width=16, layers=2, heads=2, max_tokens=64)
TRAINING = TrainingSettings(
    steps=6,
    questions_per_step=3,
    group_size=4,
    updates_per_batch=2,
    learning_rate=1.0e-2,
    warmup_steps=2,
    max_gradient_norm=1.0,
    max_turn_tokens=5,
    checkpoint_every=2,
)


@dataclass(frozen=True)
class ListWorld:
    """Documents written by hand; a search returns those whose title shares a word with it."""

    documents: tuple[Document, ...]

    @property
    def words(self) -> tuple[str, ...]:
        texts = (f"{document.title} {document.text}" for document in self.documents)
        return tuple(dict.fromkeys(word for text in texts for word in words(text)))

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        asked = set(words(query))
        return [d for d in self.documents if asked & set(words(d.title))][:k]


def document(title: str, *paragraphs: str) -> Document:
    return Document(id=title, title=title, text="\n\n".join(paragraphs))


def question(answer: str = "hague", *, paragraph: str = "", title: str = "court") -> Question:
    """A one-hop question, unsolvable unless the paragraph that states its answer is given."""
    hop = Hop(title, "seat", answer, paragraph)
    return Question("q", "seat of court", (answer,), (hop,), "seat", guess="paris")


def episode(
    documents: Sequence[Document],
    asked: Question,
    *,
    knowledge: float = 0.0,
    noise: float = 0.0,
    **options: object,
):
    """An episode of deep research over hand-made documents; options override the defaults."""
    settings = replace(DeepResearchSettings(), **options)
    environment = DeepResearch(ListWorld(tuple(documents)), RuleJudge(knowledge, noise), settings)
    return environment.reset(asked, random.Random(0))


@dataclass(frozen=True)
class CoinEnvironment:
    """Ends at any turn with probability `end`; prompts, observations and rewards are all by chance.

    Observations may be empty, so that two turns may follow each other without a token between.
    """

    failures: ClassVar[dict[str, int]] = {}
    content: tuple[str, ...]
    end: float = 0.3
    actions: tuple[str, ...] = ACTIONS

    def reset(self, question: Question, stream: random.Random) -> "CoinEpisode":
        return CoinEpisode(self, stream)


class CoinEpisode:
    grounded = None

    def __init__(self, environment: CoinEnvironment, stream: random.Random) -> None:
        self.environment, self.stream = environment, stream
        self.prompt = f"<question> {self._text(1, 9)} </question>"
        self.success = stream.random() < 0.5

    @property
    def reward(self) -> float:
        return float(self.success)

    def step(self, message: str) -> Step:
        if self.stream.random() < self.environment.end:
            return Step("answer", "", stop_reason="answer", correct=self.success)
        return Step("search", self._text(0, 8))

    def snapshot(self) -> Snapshot:
        return saved(self, "environment")

    def restore(self, snapshot: Snapshot, stream: random.Random | None = None) -> None:
        put_back(self, snapshot)
        self.stream = stream or self.stream

    def _text(self, least: int, most: int) -> str:
        count = self.stream.randint(least, most)
        return " ".join(self.stream.choices(self.environment.content, k=count))


def coin_environment(end: float = 0.3) -> CoinEnvironment:
    return CoinEnvironment(SMALL.words, end)


def synthetic_environment(**options: object) -> DeepResearch:
    """Deep research over the small synthetic world, scaled down like the tiny tier's."""
    scaled = {"header": "<doc> {title}", "search_results": 2, "minimum_paragraph": 1, "sections": 1}
    settings = replace(DeepResearchSettings(), **scaled | options)
    return DeepResearch(SMALL, RuleJudge(0.5, 0.1), settings)


def vocabulary() -> Vocabulary:
    return tag_vocabulary(ACTIONS, SMALL.words)


def questions(count: int, seed: int = 0) -> list[Question]:
    return SMALL.train_questions(count, random.Random(seed))


def policy(seed: int = 0, settings: TinySettings = TINY) -> TinyPolicy:
    return TinyPolicy(settings, len(vocabulary()), seed)


class Recording:
    """Which row sits in which slot of a decoder, and what each row was fed."""

    def __init__(self, rows: int) -> None:
        self.rows = list(range(rows))
        self.fed: list[list[int]] = [[] for _ in self.rows]
        self.compactions = -1

    def keep(self, rows: Tensor) -> None:
        slots = rows.tolist()
        if self.compactions < 0:  # the first call gives each row the prompt that it shares
            self.fed = [list(self.fed[slot]) for slot in slots]
            slots = range(len(slots))
            self.rows = list(slots)
        self.rows = [self.rows[slot] for slot in slots]
        self.compactions += 1

    def feed(self, token_ids: Tensor) -> None:
        for row, token in zip(self.rows, token_ids.tolist(), strict=True):
            self.fed[row].append(token)


class SpiedDecoder(Decoder):
    """A decoder that records."""

    def __init__(self, model: TinyPolicy, rows: int) -> None:
        super().__init__(model, rows)
        self.recording = Recording(rows)

    def step(self, token_ids: Tensor, speaking: list[int] | None = None) -> Tensor:
        self.recording.feed(token_ids)
        return super().step(token_ids, speaking)

    def keep(self, rows: Tensor) -> None:
        self.recording.keep(rows)
        super().keep(rows)


class SpiedPolicy(TinyPolicy):
    """Keeps what its decoders recorded."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.recordings: list[Recording] = []

    def decoder(self, rows: int) -> SpiedDecoder:
        made = SpiedDecoder(self, rows)
        self.recordings.append(made.recording)
        return made


class ScriptedDecoder(Recording):
    """Its hidden states are the numbers of the rows."""

    length = 0

    def step(self, token_ids: Tensor, speaking: list[int]) -> Tensor:
        self.feed(token_ids)
        self.length += 1
        return torch.tensor([self.rows[slot] for slot in speaking])


class ScriptedPolicy:
    """Row r says the words of scripts[r] in order, whatever it reads, then closing tags."""

    def __init__(
        self, scripts: Sequence[str], words_known: Vocabulary, max_tokens: int = 64
    ) -> None:
        self.settings = replace(TINY, max_tokens=max_tokens)
        self.size = len(words_known)
        self.closing = words_known.id("</answer>")
        self.left = [list(words_known.encode(script)) for script in scripts]

    def decoder(self, rows: int) -> ScriptedDecoder:
        return ScriptedDecoder(rows)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = torch.full((len(hidden), self.size), -1e9)
        for slot, row in enumerate(hidden.tolist()):
            logits[slot, self.left[row].pop(0) if self.left[row] else self.closing] = 0.0
        return logits


def global_streams() -> tuple:
    """The states of all global generators, comparable with ==."""
    import numpy

    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, keys.tolist(), *rest), torch.get_rng_state().tolist()
