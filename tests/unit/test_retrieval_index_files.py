"""Index folders: built in shards, resumed after a kill, and never paired with the wrong corpus."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from turncredit.retrieval import FusedRetriever, Retriever, bm25_retriever, lexical_retriever
from turncredit.retrieval.__main__ import main
from turncredit.retrieval.ann import (
    FaissIndex,
    bytes_per_vector,
    check_parameters,
    new_index,
    on_device,
)
from turncredit.retrieval.build import build_index
from turncredit.retrieval.encoders import FAMILIES, TransformerEncoder, encoder_from_name
from turncredit.retrieval.index import FlatIndex, Hit
from turncredit.retrieval.passages import PassageFile, contents_of
from turncredit.retrieval.stored import load_index, read_manifest
from turncredit.storage import sha256_file
from turncredit.worlds.base import Document

faiss = pytest.importorskip("faiss", reason="index files need faiss")

WORDS = "amber birch cedar delta ember flint grove heath islet jetty kelp larch".split()
FACTORIES = ["Flat", "HNSW32", "IVF8,Flat", "PQ4x4", "IVF4,PQ4x4", "HNSW16,SQ8", "PCA8,Flat"]


class Bags:
    """Unit vectors of hashed words; counts the passages it encodes."""

    def __init__(self, id: str = "bags", dimension: int = 16) -> None:
        self.id, self.dimension, self.encoded = id, dimension, 0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.full((len(texts), self.dimension), 0.01, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().replace('"', " ").split():
                vectors[row] += np.random.default_rng(list(word.encode())).normal(
                    size=self.dimension
                )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        self.encoded += len(texts)
        return self.encode(texts)


def write_corpus(path: Path, count: int) -> Path:
    stream = np.random.default_rng(0)
    with path.open("w") as file:
        for row in range(count):
            text = " ".join(stream.choice(WORDS, 6))
            file.write(json.dumps({"id": str(row), "contents": f'"page {row}"\n{text}'}) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", 300)


def built(corpus: Path, factory: str = "Flat", **options: object) -> Path:
    folder = corpus.parent / "index"
    build_index(corpus, Bags(), factory, folder, shard_size=64, **options)
    return folder


# --- factory strings -----------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_of_any_factory_string_finds_its_own_passages(corpus: Path, factory: str) -> None:
    folder, encoder = built(corpus, factory), Bags()
    passages, index, manifest = load_index(folder, encoder, parameters="")
    texts = [contents_of(passage) for passage in passages]
    found = Retriever(passages, encoder, index).search(texts, 5)
    first = [hits[0].position for hits in found]
    own = np.mean([row in [hit.position for hit in hits] for row, hits in enumerate(found)])
    assert (first == list(range(300))) if factory == "Flat" else own > 0.5
    for hits in found:
        assert all(0 <= hit.position < 300 for hit in hits)
        assert len({hit.position for hit in hits}) == len(hits)
        assert [hit.score for hit in hits] == sorted((h.score for h in hits), reverse=True)
    assert manifest["factory"] == factory and manifest["count"] == 300


@pytest.mark.parametrize("factory", FACTORIES)
def test_memory_of_a_vector_is_that_of_the_file(factory: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((2000, 64), dtype=np.float32)
    index = new_index(64, factory)
    if not index.is_trained:
        index.train(vectors)
    empty = len(faiss.serialize_index(index))
    index.add(vectors)
    grown = (len(faiss.serialize_index(index)) - empty) / len(vectors)
    assert bytes_per_vector(index) == pytest.approx(grown, rel=0.08)


def test_a_flat_index_from_a_file_is_the_exact_one_and_copies_nothing() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 8), dtype=np.float32)
    index = new_index(8, "Flat")
    index.add(vectors)
    flat = on_device(index, "cpu")
    assert flat.search(vectors, 3) == FlatIndex(vectors).search(vectors, 3)
    assert flat.vectors.ctypes.data == int(index.get_xb())


def test_vectors_outlive_their_index() -> None:
    vectors = np.random.default_rng(0).standard_normal((20_000, 64), dtype=np.float32)
    kept = FlatIndex(vectors).vectors
    [bytearray(1 << 20) for _ in range(32)]  # would be written over memory that was given back
    np.testing.assert_array_equal(kept, vectors)


def test_fewer_than_asked_for_and_an_empty_index() -> None:
    index = new_index(4, "HNSW8")
    assert FaissIndex(index).search(np.eye(4), 5) == [[]] * 4
    index.add(np.eye(4, dtype=np.float32)[:3])
    assert sorted(hit.position for hit in FaissIndex(index).search(np.ones((1, 4)), 9)[0]) == [
        0,
        1,
        2,
    ]


def test_a_flat_index_of_distances_is_refused() -> None:
    with pytest.raises(ValueError, match="inner products"):
        FlatIndex.over(faiss.IndexFlatL2(4))


@pytest.mark.parametrize("factory", ["Nonsense", "", "IVF,Flat"])
def test_an_unknown_factory_string_costs_no_encoding(corpus: Path, factory: str) -> None:
    encoder = Bags()
    with pytest.raises(ValueError, match=f"index '{factory}' for dimension 16: "):
        build_index(corpus, encoder, factory, corpus.parent / "index")
    assert encoder.encoded == 0


def test_too_few_passages_to_train_on_are_a_sentence(corpus: Path) -> None:
    with pytest.raises(ValueError, match=r"index 'IVF400,Flat' over 300 passages: .*training"):
        built(corpus, "IVF400,Flat")


def test_search_parameters_reach_the_index(corpus: Path) -> None:
    folder = built(corpus, "IVF8,Flat")
    everywhere = load_index(folder, Bags(), parameters="nprobe=8").index
    exact = load_index(built_flat(corpus), Bags()).index
    queries = Bags().encode(["birch kelp", "page 17"])
    assert [[h.position for h in hits] for hits in everywhere.search(queries, 9)] == [
        [h.position for h in hits] for hits in exact.search(queries, 9)
    ]


KINDS = {
    "Flat": "none",
    "HNSW8": "efSearch",
    "IVF8,Flat": "nprobe",
    "IVF8_HNSW8,Flat": "nprobe, quantizer_efSearch",
    "PCA16,HNSW8": "efSearch",
}


@pytest.mark.parametrize("factory", KINDS)
def test_a_parameter_that_an_index_has_not_is_refused_naming_both(factory: str) -> None:
    index, names = new_index(32, factory), KINDS[factory].split(", ")
    for name in ("nprobe", "efSearch", "quantizer_efSearch", "verbose", "nonsense", ""):
        if name in names:
            check_parameters(index, f"{name}=7", factory)
            continue
        with pytest.raises(ValueError) as caught:
            check_parameters(index, f"{name}=7", factory)
        assert str(caught.value) == (
            f"search parameter '{name}=7': index {factory!r} has {KINDS[factory]}"
        )


@pytest.mark.parametrize("value", ["0", "-1", "2.7", "nan", "1e30", "x", "", " 2", str(2**31)])
@pytest.mark.parametrize(("factory", "name"), [("HNSW8", "efSearch"), ("IVF8,Flat", "nprobe")])
def test_a_parameter_is_a_whole_number_from_1(factory: str, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}={value}': give {name} a whole number from 1"):
        check_parameters(new_index(32, factory), f"{name}={value}", factory)


def test_a_wrong_parameter_is_refused_before_the_index_is_read(corpus: Path) -> None:
    folder = built(corpus, "IVF8,Flat")
    size = (folder / "index.faiss").stat().st_size
    (folder / "index.faiss").write_bytes(bytes(size))
    with pytest.raises(ValueError, match="'efSearch=64': index 'IVF8,Flat' has nprobe"):
        load_index(folder, Bags(), parameters="efSearch=64")
    with pytest.raises(ValueError, match="nprobe comes twice"):
        load_index(folder, Bags(), parameters="nprobe=2,nprobe=3")
    with pytest.raises(ValueError, match="search parameter '': index"):
        load_index(folder, Bags(), parameters="nprobe=2,")


def built_flat(corpus: Path) -> Path:
    folder = corpus.parent / "flat"
    build_index(corpus, Bags(), "Flat", folder)
    return folder


@pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this faiss has GPU support")
def test_gpu_without_faiss_gpu_is_a_sentence_with_the_command(corpus: Path) -> None:
    with pytest.raises(RuntimeError, match="has no GPU support: pip install faiss-gpu"):
        load_index(built(corpus), Bags(), device="cuda")


@pytest.mark.gpu
def test_gpu_and_cpu_find_the_same(corpus: Path) -> None:
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        pytest.skip("needs faiss-gpu and a GPU")
    folder = built(corpus)
    on_cpu, on_gpu = (load_index(folder, Bags(), device=name).index for name in ("cpu", "cuda"))
    queries = Bags().encode(["birch kelp", "page 17"])
    for one, other in zip(on_cpu.search(queries, 1), on_gpu.search(queries, 1), strict=True):
        assert one[0].score == pytest.approx(other[0].score, abs=1e-2)


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device 'tpu' is neither cpu nor cuda"):
        on_device(new_index(4, "HNSW8"), "tpu")


# --- the folder ----------------------------------------------------------------------------------


def test_the_manifest_says_what_position_relies_on(corpus: Path) -> None:
    folder = built(corpus)
    manifest = read_manifest(folder)
    assert manifest["corpus_sha256"] == PassageFile(corpus).sha256
    assert manifest["index_bytes"] == (folder / "index.faiss").stat().st_size
    expected = {"count": 300, "encoder": "bags", "dimension": 16, "metric": "inner_product"}
    expected |= {"factory": "Flat", "faiss_version": faiss.__version__}
    assert {key: manifest[key] for key in expected} == expected
    assert sorted(path.name for path in folder.iterdir()) == [
        "build.lock",
        "index.faiss",
        "manifest.json",
    ]


def test_a_changed_corpus_is_refused_naming_both_sides(corpus: Path) -> None:
    folder = built(corpus)
    text = corpus.read_text()
    for changed in (text.replace("kelp", "kemp", 1), "\n".join(text.splitlines()[::-1]) + "\n"):
        corpus.write_text(changed)
        with pytest.raises(ValueError, match=r"corpus_sha256 '[0-9a-f]{64}', .*'[0-9a-f]{64}'"):
            load_index(folder, Bags())


def test_another_encoder_is_refused_naming_both_sides(corpus: Path) -> None:
    folder = built(corpus)
    for encoder, sides in (
        (Bags("other"), "encoder 'bags', .*corpus.jsonl with other has 'other'"),
        (Bags(dimension=8), "dimension 16, .* has 8"),
    ):
        with pytest.raises(ValueError, match=f"manifest.json: the index has {sides}"):
            load_index(folder, encoder)


def test_a_corpus_that_was_moved_is_given(corpus: Path) -> None:
    folder = built(corpus)
    moved = corpus.rename(corpus.parent / "moved.jsonl")
    with pytest.raises(FileNotFoundError, match=r"corpus\.jsonl"):
        load_index(folder, Bags())
    assert load_index(folder, Bags(), corpus=moved).passages[0].title == "page 0"


def test_memory_is_asked_before_anything_is_read(corpus: Path) -> None:
    folder = built(corpus)
    size = read_manifest(folder)["index_bytes"]
    (folder / "index.faiss").unlink()  # not even looked for
    with pytest.raises(MemoryError, match=r"index\.faiss needs 0\.00 GiB, 0\.00 GiB are"):
        load_index(folder, Bags(), available=size - 1)
    with pytest.raises(FileNotFoundError):
        load_index(folder, Bags(), available=size)


def test_an_index_that_will_not_fit_is_not_built(corpus: Path, monkeypatch) -> None:
    monkeypatch.setattr("turncredit.retrieval.memory.available_bytes", lambda: 300 * 64 - 1)
    with pytest.raises(MemoryError, match="building 'Flat' over 300 passages needs"):
        built(corpus)


@pytest.mark.parametrize("damage", ["bit", "short", "gone", "manifest"])
def test_a_damaged_index_is_refused(corpus: Path, damage: str) -> None:
    folder = built(corpus)
    path = folder / ("manifest.json" if damage == "manifest" else "index.faiss")
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "bit":
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    else:
        path.write_bytes(content[:-9])
    with pytest.raises((ValueError, FileNotFoundError), match=f"{path.name}"):
        load_index(folder, Bags())


MANIFEST_DAMAGE = {
    "a text for bytes": {"index_bytes": "685"},
    "a fraction of bytes": {"index_bytes": 685.0},
    "true for bytes": {"index_bytes": True},
    "no bytes": {"index_bytes": None},
    "no corpus": {"corpus": None},
    "a number for the corpus": {"corpus": 3},
    "no factory": {"factory": None},
}


@pytest.mark.parametrize("change", MANIFEST_DAMAGE.values(), ids=MANIFEST_DAMAGE)
def test_an_edited_manifest_is_refused(corpus: Path, change: dict) -> None:
    folder = built(corpus)
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | change))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged: "):
        load_index(folder, Bags())


@pytest.mark.parametrize("content", ["", "{", "null", "[1]", "[" * 100_000], ids=len)
@pytest.mark.parametrize("name", ["manifest.json", "plan.json"])
def test_a_file_that_is_no_object_is_named(corpus: Path, name: str, content: str) -> None:
    folder = built(corpus)
    if name == "plan.json":
        (folder / "manifest.json").unlink()
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged: "):
        if name == "plan.json":
            built(corpus)
        else:
            load_index(folder, Bags())


def test_a_file_that_faiss_cannot_read_is_named(corpus: Path) -> None:
    folder = built(corpus)
    (folder / "index.faiss").write_bytes(b"junk" * 9)
    hashes = {"index_bytes": 36, "index_sha256": sha256_file(folder / "index.faiss")}
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | hashes))
    with pytest.raises(ValueError, match=r"index\.faiss is no index of this FAISS: "):
        load_index(folder, Bags())


def test_a_corpus_that_is_gone_is_named_with_its_index(corpus: Path) -> None:
    folder = built(corpus)
    corpus.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{corpus}: the corpus of {folder} is not there"):
        load_index(folder, Bags())


# --- building ------------------------------------------------------------------------------------


def test_a_finished_index_is_not_built_again(corpus: Path) -> None:
    folder, encoder = built(corpus), Bags()
    before = (folder / "index.faiss").stat().st_mtime_ns
    build_index(corpus, encoder, "Flat", folder)
    assert encoder.encoded == 0
    assert (folder / "index.faiss").stat().st_mtime_ns == before


def test_kept_vectors_serve_another_factory_string(corpus: Path) -> None:
    folder, encoder = built(corpus, keep_vectors=True), Bags()
    build_index(corpus, encoder, "HNSW8", folder, shard_size=64)
    assert encoder.encoded == 0
    assert read_manifest(folder)["factory"] == "HNSW8"


def test_a_folder_with_another_index_is_left_alone(corpus: Path) -> None:
    folder = built(corpus)
    with pytest.raises(ValueError, match=r"manifest\.json: another index is in this folder"):
        build_index(corpus, Bags("other"), "Flat", folder)
    assert read_manifest(folder)["encoder"] == "bags"


class Dies(Bags):
    """Fails after some passages, as a full disk or a killed process would end the work."""

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        if self.encoded >= 128:
            raise RuntimeError("died")
        return super().encode_passages(texts)


def test_shards_of_something_else_are_refused_naming_both_sides(corpus: Path) -> None:
    folder = corpus.parent / "index"
    with pytest.raises(RuntimeError, match="died"):
        build_index(corpus, Dies(), "Flat", folder, shard_size=64)
    with pytest.raises(ValueError, match="begun with encoder 'bags', this call has 'other'"):
        build_index(corpus, Bags("other"), "Flat", folder, shard_size=64)
    with pytest.raises(ValueError, match="begun with shard_size 64, this call has 32"):
        build_index(corpus, Bags(), "Flat", folder, shard_size=32)
    corpus.write_text(corpus.read_text().replace("kelp", "kemp", 1))
    with pytest.raises(ValueError, match="begun with corpus_sha256 '"):
        build_index(corpus, Bags(), "Flat", folder, shard_size=64)


def test_only_missing_or_broken_shards_are_encoded_again(corpus: Path) -> None:
    folder, encoder = corpus.parent / "index", Bags()
    with pytest.raises(RuntimeError, match="died"):
        build_index(corpus, Dies(), "Flat", folder, shard_size=64)
    first = folder / "shards" / "00000.npy"
    first.write_bytes(first.read_bytes()[:200])
    build_index(corpus, encoder, "Flat", folder, shard_size=64)
    assert encoder.encoded == 300 - 64
    build_index(corpus, Bags(), "Flat", corpus.parent / "whole")
    whole = corpus.parent / "whole" / "index.faiss"
    assert (folder / "index.faiss").read_bytes() == whole.read_bytes()


def test_a_malformed_row_is_named_before_anything_is_encoded(corpus: Path) -> None:
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join([*lines[:250], '{"id": "x"}', *lines[250:]]))
    encoder = Bags()
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 251: not a passage \(title is None"):
        build_index(corpus, encoder, "Flat", corpus.parent / "index")
    assert encoder.encoded == 0


def test_an_id_that_comes_twice_costs_no_encoding(corpus: Path) -> None:
    corpus.write_text(corpus.read_text() + '{"id": "7", "contents": "other"}\n')
    encoder = Bags()
    with pytest.raises(ValueError, match=r"corpus\.jsonl, lines 8 and 301: both have the id '7'"):
        build_index(corpus, encoder, "Flat", corpus.parent / "index")
    assert encoder.encoded == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_size_below_one_is_refused(corpus: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"shard_size must be at least 1, got {size}"):
        build_index(corpus, Bags(), "Flat", corpus.parent / "index", shard_size=size)


def test_a_full_disk_is_a_sentence_and_leaves_nothing_that_looks_complete(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(index: object, name: str) -> None:
        Path(name).write_bytes(b"half")
        raise RuntimeError("Error in write_index at a.cpp:1: Error: 4 != 9 (No space left)")

    monkeypatch.setattr(faiss, "write_index", fill)
    folder = corpus.parent / "index"
    with pytest.raises(OSError, match=rf"^cannot write {folder}/index\.faiss: 4 != 9 \(No space"):
        built(corpus)
    assert not list(folder.glob("*index.faiss*")) and not (folder / "manifest.json").exists()


def test_half_an_index_that_a_kill_left_is_removed(corpus: Path) -> None:
    folder = corpus.parent / "index"
    folder.mkdir()
    (folder / ".index.faiss.abcd.faiss").write_bytes(b"half")
    built(corpus)
    left = {path.name for path in folder.iterdir()}
    assert left == {"build.lock", "index.faiss", "manifest.json"}


def test_a_corpus_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl has no rows"):
        build_index(tmp_path / "empty.jsonl", Bags(), "Flat", tmp_path / "index")


class Overflows(Bags):
    """Half precision may overflow on one passage."""

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        vectors = super().encode_passages(texts)
        vectors[["page 70" in text for text in texts]] = np.nan
        return vectors


def test_a_vector_that_is_not_finite_is_named_by_its_line(corpus: Path) -> None:
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 71: bags gives a vector that is"):
        build_index(corpus, Overflows(), "Flat", corpus.parent / "index", shard_size=64)


# --- encoders ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer with random weights, in the Hugging Face layout."""
    transformers = pytest.importorskip("transformers", reason="encoders need transformers")
    import torch

    folder = tmp_path_factory.mktemp("model")
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    prefixes = "query passage page : represent this sentence for searching relevant".split()
    words = [*marks, *WORDS, *prefixes, "passages", '"', *map(str, range(10))]
    (folder / "words.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(vocab={word: n for n, word in enumerate(words)})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_and_pooling_are_those_of_the_family(model: Path, family: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    query, passage = {
        "e5": ("query: amber birch", "passage: amber birch"),
        "bge": (
            "Represent this sentence for searching relevant passages: amber birch",
            "amber birch",
        ),
        "minilm": ("amber birch", "amber birch"),
    }[family]
    network, tokenizer = (kind.from_pretrained(model) for kind in (AutoModel, AutoTokenizer))
    encoder = encoder_from_name(f"{family}:{model}")
    for text, encode in ((query, encoder.encode), (passage, encoder.encode_passages)):
        with torch.inference_mode():
            states = network(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
        pooled = states[0] if family == "bge" else states.mean(0)
        expected = (pooled / pooled.norm()).numpy()
        alone, *_ = encode(["amber birch", "kelp " * 40])  # beside a longer text: padded
        np.testing.assert_allclose(alone, expected, atol=1e-6)


def test_an_encoder_is_known_by_what_it_computes(model: Path, tmp_path: Path) -> None:
    first = TransformerEncoder(model, "e5")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert TransformerEncoder(copy, "e5").id == first.id
    assert first.id != TransformerEncoder(model, "minilm").id
    assert first.id != TransformerEncoder(model, "e5", max_length=128).id
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    assert TransformerEncoder(copy, "e5").id != first.id


def test_low_precision_is_near_full_precision(model: Path) -> None:
    texts = ["amber birch", "kelp larch grove"]
    full, low = (
        TransformerEncoder(model, "e5", precision=name).encode(texts)
        for name in ("float32", "bfloat16")
    )
    assert low.dtype == np.float32
    assert (full * low).sum(1).min() > 0.999


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("e5", ValueError, "encoder 'e5' is neither all_minilm nor one of e5:FOLDER"),
        ("e5:", ValueError, "encoder 'e5:' is neither"),
        ("gte:folder", ValueError, "encoder family 'gte' is unknown; known: e5, bge, minilm"),
        ("e5:nowhere", FileNotFoundError, "nowhere/config.json: no encoder in this folder"),
    ],
)
def test_a_wrong_encoder_name_is_a_sentence(name: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        encoder_from_name(name)


def test_an_unknown_precision_is_refused(model: Path) -> None:
    with pytest.raises(ValueError, match="precision 'int8' is none of"):
        TransformerEncoder(model, "e5", precision="int8")


# --- the command ---------------------------------------------------------------------------------


def command(corpus: Path, model: Path, out: Path) -> list[str]:
    arguments = ["build", "--corpus", str(corpus), "--encoder", f"e5:{model}", "--index", "Flat"]
    return [*arguments, "--out", str(out), "--shard-size", "16"]


@pytest.mark.slow
def test_killed_at_some_shard_the_command_goes_on_and_ends_in_equal_bytes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", 1200), tmp_path / "killed"
    run = [sys.executable, "-m", "turncredit.retrieval", *command(corpus, model, out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(run, env=environment, stderr=subprocess.DEVNULL)
    while len(list(out.glob("shards/0*.npy"))) < 7 and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the build was over before it was killed"
    assert not (out / "manifest.json").exists()
    dated = {path: path.stat().st_mtime_ns for path in out.glob("shards/0*.npy")}
    assert main([*command(corpus, model, out), "--keep-vectors"]) == 0
    assert {path: path.stat().st_mtime_ns for path in dated} == dated
    shown = capsys.readouterr()
    assert f"{len(dated) * 16}/1200" in shown.err  # the bar starts where the kill left off
    assert "1200 passages" in shown.out
    assert main(command(corpus, model, tmp_path / "whole")) == 0
    whole, killed = (folder / "index.faiss" for folder in (tmp_path / "whole", out))
    assert whole.read_bytes() == killed.read_bytes()


def test_what_is_wrong_is_one_sentence_and_a_status(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, empty = write_corpus(tmp_path / "corpus.jsonl", 3), tmp_path / "empty.jsonl"
    corpus.write_text(corpus.read_text() + corpus.read_text().split("\n")[0] + "\n")
    assert main(command(corpus, model, tmp_path / "index")) == 1
    assert "lines 1 and 4: both have the id" in capsys.readouterr().err
    empty.touch()
    assert main(command(empty, model, tmp_path / "index")) == 1
    assert "empty.jsonl has no rows" in capsys.readouterr().err
    corpus = write_corpus(tmp_path / "corpus.jsonl", 3)
    corpus.write_text(corpus.read_text() + "[]\n")
    assert main(command(corpus, model, tmp_path / "index")) == 1
    expected = f"build: {corpus}, line 4: not a passage (a list, not an object)"
    assert capsys.readouterr().err.strip().splitlines()[-1] == expected
    encoder = ["--encoder", f"e5:{model}"]
    for unusable in (
        [*command(tmp_path / "nowhere", model, tmp_path / "index")],
        [*command(corpus, model, tmp_path / "index"), "--index", "HNWS32"],
        [*command(corpus, model, tmp_path / "index"), "--shard-size", "0"],
        ["serve", str(tmp_path / "nowhere"), *encoder, "--port", str(free_port())],
        ["serve", str(tmp_path / "nowhere"), "--encoder", "gte:folder"],
        ["serve", str(tmp_path / "nowhere"), *encoder, "--host", "no such host"],
    ):
        assert main(unusable) == 2, unusable
        assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"{unusable[0]}: ")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_in_use_is_a_sentence_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path / "nowhere"), "--port", str(port)]) == 2
    assert f"serve: cannot listen on host '127.0.0.1', port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "", "9" * 5000])
def test_a_port_that_is_none_is_a_sentence(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "folder", f"--port={port}"])
    assert ended.value.code == 2
    assert f"{port!r} is not from 1 to 65535" in capsys.readouterr().err


def test_what_was_built_is_served_on_this_machine_with_its_manifest(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out, served = write_corpus(tmp_path / "corpus.jsonl", 40), tmp_path / "index", []
    port = free_port()
    monkeypatch.setattr(
        "turncredit.retrieval.__main__.serve",
        lambda retriever, **options: served.append((retriever, options)),
    )
    assert main(command(corpus, model, out)) == 0
    assert main(["serve", str(out), "--encoder", f"e5:{model}", "--port", str(port)]) == 0
    [(retriever, options)] = served
    assert options["host"] == "127.0.0.1" and options["port"] == port
    assert options["manifest"] == read_manifest(out)
    [hits] = retriever.search(["amber birch"], 3)
    assert len(hits) == 3 and retriever.documents[hits[0].position].title.startswith("page ")


# --- BM25 and fusion -----------------------------------------------------------------------------

DOCUMENTS = [
    Document("a", "Andorra", "A small country between France and Spain. France borders it."),
    Document("f", "France", "Its capital is Paris and it borders Spain and Andorra."),
    Document("p", "Paris", "The capital of France, on the river Seine."),
]


def test_bm25_finds_titles_and_nothing_for_unknown_words() -> None:
    retriever = bm25_retriever(DOCUMENTS)
    found = retriever.search(["andorra", "Seine!", "xylophone", ""], 5)
    assert [hit.position for hit in found[0]] == [0, 1]
    assert [hit.position for hit in found[1]] == [2]
    assert found[2:] == [[], []]
    assert bm25_retriever([]).search(["x"], 3) == [[]]
    with pytest.raises(ValueError, match="k must be at least 1"):
        retriever.search(["x"], 0)


def test_bm25_score_by_hand() -> None:
    documents = [Document("1", "red", "blue blue"), Document("2", "grey", "green")]
    [[hit]] = bm25_retriever(documents).search(["blue"], 5)
    idf = np.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    frequency = 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 3 / 2.5))  # three words, 2.5 on average
    assert hit.position == 0
    assert hit.score == pytest.approx(idf * frequency, rel=1e-5)


class Fixed:
    """A retriever with one ranking for every query."""

    def __init__(self, ranking: list[int], count: int = 5) -> None:
        self.documents, self.ranking = tuple(range(count)), ranking

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        return [[Hit(row, 9.0 - row) for row in self.ranking][:k] for _ in queries]


def test_reciprocal_ranks_by_hand() -> None:
    fused = FusedRetriever([Fixed([3, 1, 4]), Fixed([1, 0, 3])], constant=1.0)
    [hits] = fused.search(["any"], 4)
    expected = {1: 1 / 3 + 1 / 2, 3: 1 / 2 + 1 / 4, 0: 1 / 3, 4: 1 / 4}
    assert [hit.position for hit in hits] == [1, 3, 0, 4]
    assert [hit.score for hit in hits] == pytest.approx(list(expected.values()))
    assert fused.search(["any"], 2) == [hits[:2]]


def test_a_fusion_of_a_retriever_with_itself_ranks_as_it_does() -> None:
    single = lexical_retriever(DOCUMENTS)
    queries = ["capital of France", "Andorra Spain"]
    fused = FusedRetriever([single, single]).search(queries, 3)
    assert [[hit.position for hit in hits] for hits in fused] == [
        [hit.position for hit in hits] for hits in single.search(queries, 3)
    ]


def test_retrievers_of_two_corpora_are_not_fused() -> None:
    with pytest.raises(ValueError, match=r"these hold \[5, 4\] documents"):
        FusedRetriever([Fixed([0]), Fixed([0], count=4)])
