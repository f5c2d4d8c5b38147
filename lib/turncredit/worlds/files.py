"""A world over files: questions from Parquet or JSON lines, documents from a corpus or a server."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from turncredit import paths
from turncredit.announcements import Announced
from turncredit.answers import exact_match, normalise_answer
from turncredit.retrieval import RetrievalClient, Retriever, encoder_from_name
from turncredit.retrieval.passages import parse_passage
from turncredit.seeding import python_stream
from turncredit.storage import content_sha256, file_stamp
from turncredit.worlds.base import Document, Question
from turncredit.worlds.question_files import read_rows, to_question

_LOGGER = logging.getLogger(__name__)

_COUNTING = threading.Lock()
"""Searches may be made by several threads; one for all worlds, which can then be pickled."""

Replied = tuple[str, list[Document]]
"""What a search came to, and what it found."""


class Searcher(Protocol):
    """A retriever in this process, or the client of one elsewhere."""

    def search(self, queries: list[str], k: int) -> Sequence[Sequence[Any]]:
        """For each query at most `k` hits, best first.

        A hit has a `position` in the corpus, or a `document`, or is itself one; or it is a dict in
        the form of Search-R1's `/retrieve`.
        """


class FileWorld:
    """Questions of two files and whatever finds documents for them.

    `corpus` is what positions point into (default: the retriever's own `documents`).  Training
    questions that are also evaluation questions are left out of training, counted in `dropped`.
    Questions without a usable gold answer stay: their reward is missing; `missing` counts them.

    `words` and `names` are empty: a policy with a tokeniser of its own needs no list of words.

    Raises ValueError for a question id that comes twice, and when the retriever's documents are not
    those of the corpus.
    """

    words: Sequence[str] = ()
    names: Sequence[str] = ()

    def __init__(
        self,
        train: Sequence[Question],
        evaluation: Sequence[Question],
        retriever: Searcher,
        *,
        corpus: Sequence[Document] | None = None,
    ) -> None:
        _check_ids([*train, *evaluation])
        asked = {normalise_answer(question.text) for question in evaluation}
        self.train = tuple(q for q in train if normalise_answer(q.text) not in asked)
        self.evaluation = tuple(evaluation)
        self.dropped = len(train) - len(self.train)
        if self.dropped:
            _LOGGER.warning("%d training questions are also evaluation questions", self.dropped)
        self.missing = sum(
            exact_match("", q.answers) is None for q in (*self.train, *self.evaluation)
        )
        self.retriever = retriever
        self.corpus = getattr(retriever, "documents", None) if corpus is None else corpus
        _check_corpus(retriever, self.corpus)
        self.outcomes: Counter[str] = Counter()
        """What searches came to: ok, short (of k), or why one failed: the outcome that a
        `RetrievalClient` names, or the name of the error raised."""
        self._announced: Announced[tuple[str, int], Replied] = Announced(self._search)

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` training questions; none comes twice before all have come once.

        Raises ValueError when there are none.
        """
        if not self.train:
            raise ValueError(f"{count} training questions wanted, there are none")
        passes, rest = divmod(count, len(self.train))
        return list(self.train) * passes + stream.sample(self.train, rest)

    def evaluation_questions(self, count: int, seed: int = 0) -> list[Question]:
        """`count` fixed evaluation questions, none twice, drawn alike from all sources.

        Raises ValueError naming both numbers when there are fewer.
        """
        if count > len(self.evaluation):
            have = len(self.evaluation)
            raise ValueError(f"{count} evaluation questions wanted, there are {have}")
        return python_stream(seed, "file evaluation questions").sample(self.evaluation, count)

    def expect(self, query: str, k: int) -> None:
        """Announce a search; the retriever is asked for all announced ones in one request."""
        self._announced.expect((query, k))

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """At most `k` documents for `query`, best first; [] when nothing matches.

        A failure that the retriever reports as an outcome (`RetrievalClient`) is counted in
        `outcomes` and gives []; one that it raises is counted and raised as it is.  A reply that
        cannot be one is a ValueError naming it.
        """
        try:
            outcome, found = self._announced.reply((query, k))
        except Exception as error:
            self._count(getattr(error, "outcome", type(error).__name__))
            raise
        self._count(outcome)
        return found

    def _count(self, outcome: str) -> None:
        with _COUNTING:
            self.outcomes[outcome] += 1

    def _search(self, wanted: list[tuple[str, int]]) -> list[Replied]:
        """The reply to each of (query, k), all of one k in one request."""
        replies: dict[int, Iterator[Replied]] = {}
        for k in {k for _, k in wanted}:
            replies[k] = iter(self._replies([query for query, each in wanted if each == k], k))
        return [next(replies[k]) for _, k in wanted]

    def _replies(self, queries: list[str], k: int) -> list[Replied]:
        ask = getattr(self.retriever, "ask", None)  # a client that says what became of a search
        answer = ask(queries, k) if ask else None
        replies = answer.results if answer else self.retriever.search(queries, k)
        if len(replies) != len(queries):
            many = "one query" if len(queries) == 1 else f"{len(queries)} queries"
            raise ValueError(f"the retriever gave {len(replies)} lists of hits for {many}")
        outcome = answer.outcome if answer else ""
        if len(queries) > 1 and outcome == "short":  # one query may be short and others not
            outcome = ""
        return [self._replied(hits, k, outcome) for hits in replies]

    def _replied(self, hits: Sequence[Any], k: int, outcome: str) -> Replied:
        if len(hits) > k:
            raise ValueError(f"the retriever gave {len(hits)} hits, {k} were wanted")
        outcome = outcome or ("ok" if len(hits) == k else "short")
        return outcome, [self._document(hit) for hit in hits]

    def _document(self, hit: Any) -> Document:
        if hasattr(hit, "position"):
            found = self._at(hit.position)
        elif type(hit) is dict:
            found = parse_passage(hit.get("document", hit))
        else:
            found = getattr(hit, "document", hit)
        return Document(found.id, found.title, found.text)

    def _at(self, position: int) -> Document:
        have = 0 if self.corpus is None else len(self.corpus)
        if not 0 <= position < have:  # -1 would be the last document
            raise ValueError(f"the retriever gave position {position} of {have} documents")
        return self.corpus[position]


def open_file_world(
    train: Path,
    evaluation: Path,
    retriever: Searcher,
    *,
    corpus: Sequence[Document] | None = None,
    data_source: str = "",
) -> FileWorld:
    """The world of two question files; raw files are of `data_source`.

    Raises ValueError naming files and split when both hold rows of one split of one source.
    """
    rows = [
        read_rows(path, data_source=data_source, split=split)
        for path, split in ((train, "train"), (evaluation, "test"))
    ]
    parts = [{(row.data_source, row.split) for row in part} for part in rows]
    for source, split in sorted(parts[0] & parts[1]):
        raise ValueError(f"{train} and {evaluation} both hold rows of {source}/{split}")
    asked, held_out = (list(map(to_question, part)) for part in rows)
    return FileWorld(asked, held_out, retriever, corpus=corpus)


@dataclass(frozen=True)
class ServerSettings:
    """A server with Search-R1's `/retrieve`; see `RetrievalClient`.  It is asked when searched."""

    KIND: ClassVar[str] = "server"

    url: str
    timeout: float
    retries: int
    strict: bool
    """A search that fails raises, instead of finding nothing."""

    def open(self) -> RetrievalClient:
        """The client.  Raises ValueError for a url that is none and for numbers out of range."""
        return RetrievalClient(
            self.url, timeout=self.timeout, retries=self.retries, strict=self.strict
        )


@dataclass(frozen=True)
class IndexSettings:
    """A folder that `python -m turncredit.retrieval build` wrote; see `load_index`."""

    KIND: ClassVar[str] = "index"

    folder: str
    encoder: str
    """`all_minilm` or FAMILY:FOLDER, as it was built with."""
    corpus: str | None
    """The corpus file; null where it lay at building."""
    device: str
    parameters: str
    """FAISS's search parameters: nprobe=32 of IVF, efSearch=64 of HNSW; may be empty."""

    def open(self) -> Retriever:
        """The retriever over the index.  Raises as `load_index` and `encoder_from_name` do."""
        from turncredit.retrieval.stored import load_index

        encoder = encoder_from_name(self.encoder, device=self.device)
        corpus = None if self.corpus is None else paths.repository() / self.corpus
        folder = paths.repository() / self.folder
        stored = load_index(folder, encoder, corpus=corpus, parameters=self.parameters)
        return Retriever(stored.passages, encoder, stored.index)

    def files(self) -> list[Path]:
        """Manifest, index and corpus, as far as the manifest can be read."""
        from turncredit.retrieval.stored import INDEX, MANIFEST, read_manifest

        folder = paths.repository() / self.folder
        try:
            corpus = self.corpus or read_manifest(folder)["corpus"]
        except (ValueError, OSError):
            return []  # opening says what is wrong
        return [folder / MANIFEST, folder / INDEX, paths.repository() / corpus]

    def content_hashes(self) -> dict[str, str]:
        """Hashes by key that the manifest pins and `load_index` has compared with the files."""
        from turncredit.retrieval.stored import read_manifest

        manifest = read_manifest(paths.repository() / self.folder)
        pinned = ("corpus_sha256", "index_sha256", "encoder")
        return {f"world.retriever.{name}": str(manifest.get(name)) for name in pinned}


@dataclass(frozen=True)
class FileSettings:
    """Question files and a retriever, as a task names them; paths start at the repository."""

    KIND: ClassVar[str] = "files"

    train: str
    evaluation: str
    data_source: str
    """Of raw files, such as nq; empty where the rows name their own."""
    retriever: ServerSettings | IndexSettings

    def stamps(self) -> tuple[tuple[str, int, int], ...]:
        """Path, size and time of change of the files behind the world, as far as they exist.

        Two worlds of equal settings and stamps are the same.
        """
        named = [paths.repository() / name for name in (self.train, self.evaluation)]
        named += self.retriever.files() if self.retriever.KIND == "index" else []
        return tuple(file_stamp(file) for file in named if file.is_file())

    def content_hashes(self) -> dict[str, str]:
        """What the files behind the world hold, by key; of a server nothing is known."""
        found = {
            f"world.{key}": content_sha256(paths.repository() / getattr(self, key))
            for key in ("train", "evaluation")
        }
        return found | (self.retriever.content_hashes() if self.retriever.KIND == "index" else {})

    def open(self) -> FileWorld:
        """The world.  Raises ValueError naming the key and what is wrong with its value."""
        files = {key: paths.repository() / getattr(self, key) for key in ("train", "evaluation")}
        for key, path in files.items():
            if not path.is_file():
                raise ValueError(f"world: {key} = {getattr(self, key)!r}: {path} is no file")
        try:
            retriever = self.retriever.open()
        except (ValueError, OSError, MemoryError) as error:
            raise ValueError(f"world: retriever: {error}") from error
        try:
            world = open_file_world(**files, retriever=retriever, data_source=self.data_source)
        except ValueError as error:
            raise ValueError(f"world: {error}") from error
        if not world.train:
            raise ValueError(f"world: train = {self.train!r} has no question to train on")
        return world


def _check_ids(questions: Sequence[Question]) -> None:
    for identity, count in Counter(question.id for question in questions).items():
        if count > 1:
            raise ValueError(f"question id {identity!r} comes {count} times")


def _check_corpus(retriever: Any, corpus: Sequence[Document] | None) -> None:
    """Refuse a retriever over another corpus: equally many documents, and a few of them equal."""
    indexed = getattr(retriever, "documents", None)
    if corpus is None or indexed is None or corpus is indexed:
        return
    if len(indexed) != len(corpus):
        have = f"the retriever has {len(indexed)} documents"
        raise ValueError(f"{have}, the corpus has {len(corpus)}")
    last = len(corpus) - 1
    for position in sorted({0, last // 2, last} if corpus else ()):
        there, here = indexed[position], corpus[position]
        if (there.id, there.title, there.text) != (here.id, here.title, here.text):
            raise ValueError(
                f"document {position} is {there.title!r} (id {there.id}) for the retriever "
                f"and {here.title!r} (id {here.id}) in the corpus"
            )
