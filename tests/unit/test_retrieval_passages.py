"""Rows of a corpus file: read where they lie, and every bad one named by file and line."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.retrieval import Passage, PassageFile, corpus_sha256
from turncredit.retrieval.memory import available_bytes, require_memory
from turncredit.retrieval.passages import check_passages, contents_of, parse_passage
from turncredit.storage import sha256_json
from turncredit.worlds.base import Document

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ONE_LINE = TEXT.filter(lambda title: title == " ".join(title.splitlines()))


def write_rows(path: Path, rows: list[object], end: str = "\n") -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + end, encoding="utf-8")
    return path


def rows(count: int) -> list[dict[str, str]]:
    return [{"id": f"p{n}", "contents": f'"Title {n}"\ntext\u2028 {n} é'} for n in range(count)]


@given(ONE_LINE, TEXT)
def test_contents_say_title_and_text_and_nothing_is_lost(title: str, text: str) -> None:
    passage = Passage("1", title, text)
    assert parse_passage({"id": "1", "contents": contents_of(passage)}) == passage


def test_line_ends_in_a_title_do_not_move_into_the_text() -> None:
    found = parse_passage({"id": "1", "contents": contents_of(Document("1", "a\r\nb", "c\nd"))})
    assert found == Passage("1", "a b", "c\nd")


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"A"\nb', "A", "b"),
        ("A\nb\nc", "A", "b\nc"),
        ('"A "B" C"\nd', 'A "B" C', "d"),
        ('"', '"', ""),
        ('""\nb', "", "b"),
        ("only a title", "only a title", ""),
        ("", "", ""),
    ],
)
def test_the_first_line_is_the_title(contents: str, title: str, text: str) -> None:
    assert parse_passage({"id": 3, "contents": contents}) == Passage("3", title, text)


def test_an_id_that_is_left_out_depends_on_the_contents() -> None:
    ids = [parse_passage({"contents": contents}).id for contents in ("a\nb", "a\nb", "a\nc")]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("end", ["\n", ""], ids=["ended", "not ended"])
def test_a_corpus_file_reads_the_same_in_order_by_position_and_in_threads(
    tmp_path: Path, end: str
) -> None:
    passages = PassageFile(write_rows(tmp_path / "corpus.jsonl", rows(200), end))
    expected = [Passage(f"p{n}", f"Title {n}", f"text\u2028 {n} é") for n in range(200)]
    assert list(passages) == expected and len(passages) == 200
    assert passages[-1] == expected[-1] and passages[3:9:2] == expected[3:9:2]
    order = list(range(200)) * 5
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(passages.__getitem__, order)) == [expected[n] for n in order]
    for position in (200, -201):
        with pytest.raises(IndexError, match=f"has 200 rows, no row {position}"):
            passages[position]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert list(PassageFile(tmp_path / "empty.jsonl")) == []


BAD_ROWS = {
    "not JSON": b"{",
    "not UTF-8": b'{"id": "1", "contents": "\xff"}',
    "blank": b"",
    "list": b"[]",
    "no id": b'{"contents": "a"}',
    "empty id": b'{"id": "", "contents": "a"}',
    "true as id": b'{"id": true, "contents": "a"}',
    "no contents": b'{"id": "1"}',
    "contents a number": b'{"id": "1", "contents": 4}',
    "contents null": b'{"id": "1", "contents": null}',
    "half a pair": b'{"id": "1", "contents": "\\ud800"}',
    "half a pair as id": b'{"id": "\\ud800", "contents": "a"}',
    "contents a long list": b'{"id": "1", "contents": [' + b"1, " * 100_000 + b"1]}",
    "id a long list": b'{"id": [' + b"1, " * 100_000 + b'1], "contents": "a"}',
    "nested": b"[" * 100_000,
    "a key twice": b'{"id": "1", "id": "2", "contents": "a"}',
    "a long key twice": b'{"id": "1", "contents": "a", "%s": 1, "%s": 1}' % ((b"x" * 999,) * 2),
    "a key twice, nested": b'{"id": "1", "contents": "a", "more": [{"x": 1, "x": 1}]}',
    "NaN": b'{"id": "1", "contents": "a", "score": NaN}',
    "Infinity": b'{"id": "1", "contents": "a", "score": Infinity}',
    "-Infinity": b'{"id": "1", "contents": "a", "score": [-Infinity]}',
    "a number too large": b'{"id": "1", "contents": "a", "score": 1e999}',
    "a number of many digits": b'{"id": "1", "contents": "a", "score": ' + b"9" * 9999 + b"}",
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    good = b'{"id": "0", "contents": "a"}'
    path.write_bytes(b"\n".join([good, good, bad, good, b""]))
    passages = PassageFile(path)
    for read in (list, lambda them: them[2]):
        with pytest.raises(ValueError, match=r"corpus\.jsonl, line 3: not a passage \(") as caught:
            read(passages)
        assert len(str(caught.value)) < len(str(path)) + 200
    assert passages[3].id == "0"


def test_what_json_allows_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id": "1", "contents": "NaN", "a": {"x": 1}, "b": {"x": -1.5e300}}\r\n')
    assert list(PassageFile(path)) == [Passage("1", "NaN", "")]


def test_a_gzipped_corpus_is_told_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "0", "contents": "a"}\n'))
    with pytest.raises(ValueError, match=r"corpus\.jsonl\.gz is gzipped.* unpack it"):
        PassageFile(path)


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (["0", "1", "2"], None),
        (["0", "1", "0"], "lines 1 and 3: both have the id '0'"),
        (["0", "1", 1, "1"], "lines 2 and 3: both have the id '1'"),
    ],
)
def test_an_id_that_comes_twice_is_named_with_both_lines(
    ids: list, complaint: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": each, "contents": "a"}) + "\n" for each in ids))
    rows: list[int] = []
    with pytest.raises(ValueError, match=complaint) if complaint else nullcontext():
        check_passages(PassageFile(path), lambda: rows.append(1))
    assert len(rows) == len(ids)


def test_the_corpus_hash_is_that_of_the_whole_list() -> None:
    documents = [Document("1", "é", 'a"b'), Document("2", "x\ny", "")]
    for count in range(3):
        rows = [[each.id, each.title, each.text] for each in documents[:count]]
        assert corpus_sha256(documents[:count]) == sha256_json(rows)


# --- memory --------------------------------------------------------------------------------------


def fake_system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"}
GROUP = {
    "sys/fs/cgroup/memory.max": "3000000\n",
    "sys/fs/cgroup/memory.current": "2500000\n",
    "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 1000000\n",
}
OLD_GROUP = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "700\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "500\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 40\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MEMINFO, 4_096_000),
        (MEMINFO | GROUP, 1_500_000),
        (MEMINFO | GROUP | {"sys/fs/cgroup/memory.max": "max\n"}, 4_096_000),
        (MEMINFO | OLD_GROUP, 240),
        (MEMINFO | {"sys/fs/cgroup/memory.max": "junk"}, 4_096_000),
    ],
    ids=["none", "machine", "group", "no limit", "old group", "junk"],
)
def test_available_memory_is_the_smaller_of_machine_and_group(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    assert available_bytes(fake_system(tmp_path, files)) == expected


def test_too_little_memory_is_refused_with_both_numbers() -> None:
    gib = 1 << 30
    require_memory(2 * gib, "the index", available=2 * gib)
    with pytest.raises(MemoryError, match=r"the index needs 60\.00 GiB, 2\.00 GiB are available"):
        require_memory(60 * gib, "the index", available=2 * gib)
