"""Question files, corpora, FanOutQA and the world over files: what goes in comes out, or is named.

All texts in `tests/fixtures` are invented.
"""

import gzip
import json
import logging
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.answers import exact_match, normalise_answer
from turncredit.environments import (
    DeepResearch,
    DeepResearchSettings,
    SearchR1,
    SearchR1Settings,
)
from turncredit.environments.judges import RuleJudge
from turncredit.retrieval import Passage, corpus_sha256, lexical_retriever
from turncredit.retrieval.client import OUTCOMES, Answer, Found, RetrievalClient, RetrievalError
from turncredit.storage import sha256_file
from turncredit.worlds import Document, Question
from turncredit.worlds.corpora import JsonlCorpus, read_documents, write_documents
from turncredit.worlds.fanoutqa import flatten, load_dev, loose_accuracy, reference_texts
from turncredit.worlds.files import FileWorld, open_file_world
from turncredit.worlds.jsonl import read_lines
from turncredit.worlds.question_files import (
    SOURCES,
    QuestionRow,
    asked,
    describe,
    read_rows,
    rows_from_questions,
    rows_sha256,
    shared_questions,
    to_question,
    validate,
    with_prompts,
    write_rows,
)
from turncredit.worlds.question_files.__main__ import main
from turncredit.worlds.question_files.rows import from_record, gold_answers, to_record

FIXTURES = Path(__file__).parents[1] / "fixtures"
CORPUS, RAW, BAD = (
    FIXTURES / f"{name}.jsonl" for name in ("corpus", "raw_questions", "bad_questions")
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
NAME = TEXT.filter(bool)
ROWS = st.lists(
    st.builds(
        QuestionRow,
        data_source=st.sampled_from(SOURCES),
        split=NAME,
        index=st.integers(0, 2**63 - 1),
        id=NAME,
        question=TEXT.filter(str.strip).map(asked),
        answers=st.lists(TEXT).map(tuple),
        prompt=st.lists(st.tuples(TEXT, TEXT)).map(tuple),
        ability=NAME,
        agent_name=TEXT,
    ),
    max_size=4,
)
DOCUMENTS = st.lists(
    st.builds(
        Document, id=NAME, title=TEXT.map(lambda text: " ".join(text.splitlines())), text=TEXT
    ),
    max_size=5,
)


def row(number: int = 0, **changes: object) -> QuestionRow:
    first = QuestionRow("nq", "test", number, f"test_{number}", f"question {number}?", ("yes",))
    return replace(first, **changes)


# ---- question files ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@given(rows=ROWS)
def test_any_rows_come_back_equal(rows, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / f"rows{suffix}"
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert rows_sha256(read_rows(path)) == rows_sha256(rows)


def test_written_parquet_has_the_columns_of_the_published_files(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "test.parquet"
    write_rows(path, with_prompts([row(3, answers=("a", "b"))], "Answer this. Question: {}".format))
    assert parquet.read_table(path).to_pylist() == [
        {
            "id": "test_3",
            "question": "question 3?",
            "golden_answers": ["a", "b"],
            "data_source": "nq",
            "prompt": [{"role": "user", "content": "Answer this. Question: question 3?"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["a", "b"]}},
            "extra_info": {"split": "test", "index": 3},
        }
    ]
    write_rows(path, with_prompts([row()], str, agent_name="search_agent"))
    assert parquet.read_table(path).column("agent_name").to_pylist() == ["search_agent"]


def test_pandas_reads_what_verl_reads(tmp_path):
    """verl's reward manager takes `reward_model["ground_truth"]` and `extra_info["index"]`."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    write_rows(tmp_path / "a.parquet", with_prompts([row(0), row(1)], str))
    table = pandas.read_parquet(tmp_path / "a.parquet")
    assert [list(cell["ground_truth"]["target"]) for cell in table.reward_model] == [["yes"]] * 2
    assert [cell["index"] for cell in table.extra_info] == [0, 1]
    assert table.prompt[0][0]["role"] == "user"


def test_a_published_row_without_raw_columns_takes_its_question_from_the_prompt():
    record = to_record(with_prompts([row()], "Reason first. Question: {}\n".format)[0])
    for column in ("id", "question", "golden_answers"):
        del record[column]
    read = from_record(record, 0)
    assert (read.question, read.answers, read.id) == ("question 0?", ("yes",), "0")


def test_raw_rows_are_stripped_asked_and_indexed():
    rows = read_rows(RAW, data_source="hotpotqa", split="train")
    assert [r.question for r in rows] == [
        "who is mayor of quince harbour?",
        "Where was Ada Moss born?",
        "how many people live in Lower Fennel?",
    ]
    assert rows[2].answers == ("1204",) and rows[1].answers == ("Lower Fennel", "Fennel")
    assert [(r.id, r.index, r.split) for r in rows] == [
        (f"train_{number}", number, "train") for number in range(3)
    ]
    assert to_question(rows[0]) == Question(
        "hotpotqa-train-train_0", rows[0].question, ("Ada Moss",), (), "hotpotqa", ""
    )


@given(text=TEXT.filter(str.strip))
def test_asking_twice_adds_nothing(text):
    once = asked(text)
    assert asked(once) == once and once.endswith("?") and once == once.strip()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [(name, True) for name in SOURCES]
    + [("searchR1_nq", True), ("NQ", False), ("natural", False), ("", False), ("searchR1_", False)],
)
def test_sources_are_checked_both_ways(name, allowed, tmp_path):
    made = row(data_source=name or "x")
    record = to_record(made) | {"data_source": name}
    if allowed:
        write_rows(tmp_path / "a.jsonl", [made])
        assert from_record(record, 0) == made
        return
    with pytest.raises(ValueError, match="row 1: data_source"):
        write_rows(tmp_path / "a.jsonl", [made])
    with pytest.raises(ValueError, match="data_source"):
        from_record(record, 0)
    assert not (tmp_path / "a.jsonl").exists()
    write_rows(tmp_path / "b.jsonl", [made], sources=[made.data_source])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("question", "no mark"),
        ("question", " blank?"),
        ("index", -1),
        ("index", 2**63),
        ("id", ""),
        ("split", ""),
        ("answers", ("\ud800",)),
        ("prompt", (("user", "\udfff"),)),
    ],
)
def test_a_row_that_could_not_be_stored_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}|surrogate"):
        row(**{field: value})


@pytest.mark.parametrize(
    ("columns", "answers", "complaint"),
    [
        ({"golden_answers": ["x", "b"]}, ("x", "b"), ""),
        ({"golden_answers": "x"}, ("x",), ""),
        ({"golden_answers": [1990, 2.5]}, ("1990", "2.5"), ""),
        ({"golden_answers": ["", "x"]}, ("", "x"), ""),
        ({"reward_model": {"ground_truth": "x"}}, ("x",), ""),
        ({"reward_model": {"ground_truth": {"target": ["x"]}}}, ("x",), ""),
        ({}, (), "no gold answer"),
        ({"golden_answers": None}, (), "no gold answer"),
        ({"golden_answers": []}, (), "no gold answer"),
        ({"reward_model": None}, (), "no gold answer"),
        ({"reward_model": "junk"}, (), "no gold answer"),
        ({"golden_answers": ["...", "the"]}, ("...", "the"), "empty"),
        ({"golden_answers": ["x", None]}, (), "unparseable gold answer: None"),
        ({"golden_answers": [True]}, (), "unparseable gold answer: True"),
        ({"golden_answers": [float("nan")]}, (), "unparseable gold answer: nan"),
        ({"golden_answers": [float("inf")]}, (), "unparseable gold answer: inf"),
        ({"golden_answers": {"x": 1}}, (), "unparseable gold answer: {'x': 1}"),
        ({"golden_answers": [["x"]]}, (), "unparseable gold answer: ['x']"),
        (
            {"golden_answers": ["x"], "reward_model": {"ground_truth": {"target": ["b"]}}},
            ("b",),
            "golden_answers differ from reward_model",
        ),
    ],
)
def test_gold_answers_are_read_or_named(columns, answers, complaint):
    found, said = gold_answers(columns)
    assert found == answers
    assert said.startswith(complaint) and bool(said) == bool(complaint)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
COLUMNS = [*to_record(with_prompts([row()], str, agent_name="x")[0])]


@given(junk=st.dictionaries(st.sampled_from(COLUMNS), JSON))
def test_junk_in_any_column_is_a_row_or_a_named_refusal(junk):
    record = to_record(row()) | junk
    try:
        made = from_record(record, 0)
    except ValueError:
        return
    assert from_record(to_record(made), 0) == made


@pytest.mark.parametrize("answers", [(), ("...",), ("", "the")])
def test_unusable_gold_is_missing_and_never_zero(answers, tmp_path):
    write_rows(tmp_path / "a.parquet", [row(answers=answers), row(1)])
    unusable, sound = read_rows(tmp_path / "a.parquet")
    assert unusable.missing and not sound.missing
    world = FileWorld([], [to_question(unusable), to_question(sound)], Finder([]))
    assert world.missing == 1
    environment = DeepResearch(world, RuleJudge(0.0, 0.0), DeepResearchSettings())
    rewards = []
    for question in world.evaluation:
        episode = environment.reset(question, random.Random(0))
        episode.step("<answer> no </answer>")
        rewards.append(episode.reward)
    assert rewards == [None, 0.0]


def test_the_report_counts_and_names_every_bad_row():
    report = validate(BAD)
    assert report.rows == 8 and not report.sound  # the ninth line is no JSON
    assert report.counts == {"gold": 4, "broken": 3, "duplicate": 1}
    named = {(problem.kind, problem.row, problem.id) for problem in report.problems}
    assert named == {
        ("gold", 2, "b"),
        ("gold", 3, "c"),
        ("gold", 4, "d"),
        ("gold", 9, "h"),
        ("duplicate", 5, "a"),
        ("broken", 6, "e"),
        ("broken", 7, "f"),
        ("broken", 8, ""),
    }
    assert report.sources == {"nq/test": 6} and report.repeated_questions == 1
    text = describe(report)
    for part in (report.sha256, report.content_sha256, "row 3, id c", "'natural'", "line 8"):
        assert part in text


def test_the_report_names_ten_and_counts_all(tmp_path):
    write_rows(tmp_path / "a.jsonl", [row(number, answers=()) for number in range(25)])
    text = describe(validate(tmp_path / "a.jsonl"))
    assert "gold: 25" in text and text.count("no gold answer") == 10
    assert "row 10, id test_9:" in text and "row 11" not in text


def test_the_content_hash_is_that_of_either_form_and_of_any_change(tmp_path):
    rows = [row(0), row(1)]
    for name in ("a.parquet", "a.jsonl"):
        write_rows(tmp_path / name, rows)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    hashes = {validate(tmp_path / name).content_sha256 for name in ("a.parquet", "a.jsonl")}
    assert hashes == {rows_sha256(rows), validate(packed).content_sha256}
    assert len(hashes) == 1
    assert rows_sha256([row(0, answers=("no",)), row(1)]) not in hashes
    assert rows_sha256(rows[::-1]) not in hashes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 junk PAR1"),
        ("a.parquet", b""),
        ("a.jsonl", b"[1]\n"),
        ("a.jsonl", b'{"id": "\xff"}\n'),
        ("a.jsonl", b"[" * 100_000 + b"\n"),
        ("a.jsonl", b"\n"),
        ("a.jsonl", b'{"id": "1", "question": "a", "question": "b"}\n'),
        ("a.jsonl", b'{"id": "1", "question": "a", "extra_info": {"index": 1, "index": 2}}\n'),
        ("a.jsonl", b'{"id": "1", "question": "a", "score": NaN}\n'),
        ("a.jsonl", b'{"id": "1", "question": "a", "score": [-Infinity]}\n'),
        ("a.jsonl", b'{"id": "1", "question": "a", "score": 1e999}\n'),
        ("a.jsonl.gz", b"no gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"id": "1"}\n' * 999, mtime=0)[:-20]),
        ("a.csv", b"id,question\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_reported(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name):
        read_rows(path, data_source="nq", split="test")
    report = validate(path, data_source="nq", split="test")
    rows_are_bad = name == "a.jsonl"
    assert ("broken" if rows_are_bad else "unreadable") in report.counts
    assert report.status == (1 if rows_are_bad else 2) and name in describe(report)


UNREADABLE = {
    "bytes for text": lambda arrow: arrow.StringArray.from_buffers(
        1, arrow.py_buffer(np.array([0, 1], dtype=np.int32)), arrow.py_buffer(b"\xff")
    ),
    "a time that is none": lambda arrow: arrow.array([2**62], arrow.timestamp("us")),
    "an endless duration": lambda arrow: arrow.array([2**62], arrow.duration("s")),
}


@pytest.mark.parametrize("column", UNREADABLE.values(), ids=UNREADABLE)
def test_a_parquet_column_that_cannot_be_read_is_named_and_reported(column, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"id": ["a"], "question": column(arrow)}), path)
    with pytest.raises(ValueError, match=r"a\.parquet: not a sound Parquet file"):
        read_rows(path, data_source="nq", split="test")
    assert validate(path).counts == {"unreadable": 1}


def test_a_parquet_column_that_comes_twice_is_named_and_reported(tmp_path):
    """Read row by row, the last would win."""
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    columns = {"id": ["a"], "question": ["who"], "golden_answers": [["x"]]}
    for twice in columns:
        names = [*columns, twice]
        table = arrow.Table.from_arrays([arrow.array(columns[name]) for name in names], names)
        path = tmp_path / "a.parquet"
        parquet.write_table(table, path)
        with pytest.raises(ValueError, match=rf"a\.parquet: .*column '{twice}' comes 2 times"):
            read_rows(path, data_source="nq", split="test")
        assert validate(path, data_source="nq", split="test").status == 2


@pytest.mark.parametrize("value", [0, False, 0.0, [], {}], ids=repr)
@pytest.mark.parametrize(
    "field", ["data_source", "ability", "agent_name", "prompt", "extra_info", "split"]
)
def test_a_value_of_another_type_is_not_taken_for_none(field, value):
    record = {"id": "a", "question": "who", "golden_answers": ["x"]}
    record |= {"extra_info": {"split": value}} if field == "split" else {field: value}
    if (field, value) in (("prompt", []), ("extra_info", {})):
        assert from_record(record, 0, data_source="nq", split="test").id == "a"
        return
    with pytest.raises(ValueError, match=field):
        from_record(record, 0, data_source="nq", split="test")


def test_a_parquet_file_cut_short_is_reported(tmp_path):
    path = tmp_path / "a.parquet"
    write_rows(path, [row(number) for number in range(50)])
    path.write_bytes(path.read_bytes()[:-30])
    assert validate(path).counts == {"unreadable": 1}


def test_repeated_and_shared_questions():
    train, test = [row(0), row(1), row(2)], [row(0), row(1, question="Question, 1?"), row(5)]
    assert shared_questions([train, test]) == 2
    assert shared_questions([train]) == 0


def test_rows_of_another_world_are_fit_for_verl(tmp_path):
    question = Question("q7", "capital of Chad", ("N'Djamena", "Ndjamena"), (), "capital", "")
    rows = rows_from_questions([question], data_source="factbook", split="test")
    write_rows(tmp_path / "a.parquet", rows, sources=["factbook"])
    assert read_rows(tmp_path / "a.parquet", sources=["factbook"]) == rows
    assert rows[0].question == "capital of Chad?" and rows[0].answers == question.answers


def test_the_command_validates_with_an_exit_code(tmp_path, capsys):
    write_rows(tmp_path / "a.parquet", [row(0), row(1)])
    write_rows(tmp_path / "b.jsonl", [row(1, split="train")])
    assert main(["validate", str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl")]) == 0
    assert "questions in more than one file: 1" in capsys.readouterr().out
    assert main(["validate", str(BAD)]) == 1
    assert "row 2, id b: no gold answer" in capsys.readouterr().out
    assert main(["validate", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    write_rows(tmp_path / "empty.parquet", [])
    assert main(["validate", str(tmp_path / "empty.parquet")]) == 1  # an empty file is a mistake
    assert "empty.parquet: 0 rows" in capsys.readouterr().out


def test_the_command_converts_raw_rows_and_runs_as_a_module(tmp_path, capsys):
    template, target = tmp_path / "prompt.txt", tmp_path / "train.parquet"
    template.write_text("Use {braces}. Question: {question}\n", encoding="utf-8")
    options = f"--data-source nq --split train --template {template} --agent-name turns".split()
    code = [sys.executable, "-m", "turncredit.worlds.question_files", "convert"]
    lib = str(Path(__file__).parents[2] / "lib")
    run = subprocess.run(
        [*code, str(RAW), str(target), *options],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": lib, "OMP_NUM_THREADS": "1"},
    )
    assert "3 rows, 0 without gold" in run.stdout
    rows = read_rows(target)
    assert rows[1].prompt == (("user", "Use {braces}. Question: Where was Ada Moss born?\n"),)
    assert {r.agent_name for r in rows} == {"turns"}
    written = target.read_bytes()
    assert main(["convert", str(RAW), str(target), *options]) == 2, "it is not ours to overwrite"
    assert "train.parquet exists already; --force overwrites it" in capsys.readouterr().err
    assert target.read_bytes() == written
    options = [*options, "--force"]
    assert main(["convert", str(RAW), str(target), *options]) == 0
    for unfit in (b"no place", b"\xe9 {question}", b""):
        template.write_bytes(unfit)
        assert main(["convert", str(RAW), str(target), *options]) == 2
        assert "prompt.txt: holds no {question}, or is not UTF-8" in capsys.readouterr().err


GOOD = b'{"id": "a", "question": "who", "golden_answers": ["x"]}\n'
SOURCES_OF_A_COMMAND = {
    "sound": (0, True, "a.jsonl", GOOD),
    "no rows": (1, False, "a.jsonl", b""),
    "an id twice": (1, False, "a.jsonl", GOOD * 2),
    "a row without gold": (1, True, "a.jsonl", GOOD + b'{"id": "b", "question": "who"}\n'),
    "a broken row": (1, False, "a.jsonl", GOOD + b'{"id": "b", "question": 3}\n'),
    "a line that is no JSON": (1, False, "a.jsonl", GOOD + b"{\n"),
    "a key twice": (1, False, "a.jsonl", GOOD.replace(b"{", b'{"id": "b", ')),
    "cut short": (2, False, "a.jsonl.gz", gzip.compress(GOOD * 99, mtime=0)[:-20]),
    "a broken row, cut short": (
        *(2, False, "a.jsonl.gz"),
        gzip.compress(b"{}\n" + GOOD * 99, mtime=0)[:-20],
    ),
    "no Parquet": (2, False, "a.parquet", b"PAR1 junk PAR1"),
    "another form": (2, False, "a.csv", GOOD),
    "not there": (2, False, "a.jsonl", None),
}


@pytest.mark.parametrize(
    ("status", "writes", "name", "content"), SOURCES_OF_A_COMMAND.values(), ids=SOURCES_OF_A_COMMAND
)
def test_both_commands_end_alike_and_as_the_page_says(status, writes, name, content, tmp_path):
    """0: all rows are sound; 1: some are bad or there are none; 2: the file cannot be used."""
    source, target = tmp_path / name, tmp_path / "target.jsonl"
    if content is not None:
        source.write_bytes(content)
    named = ["--data-source", "nq", "--split", "train"]
    assert main(["validate", str(source), *named]) == status
    assert main(["convert", str(source), str(target), *named]) == status
    assert target.exists() == writes
    if writes:
        assert validate(target).status == status


def test_the_worst_of_several_files_decides_and_a_wrong_option_is_no_row(tmp_path, capsys):
    good, bad, none = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz"))
    good.write_bytes(GOOD)
    bad.write_bytes(GOOD * 2)
    none.write_bytes(b"no gzip")
    named = ["--data-source", "nq", "--split", "train"]
    assert main(["validate", str(good), str(bad), *named]) == 1
    assert main(["validate", str(none), str(bad), str(good), *named]) == 2
    capsys.readouterr()
    for command in (["validate", str(good)], ["convert", str(good), str(tmp_path / "d.jsonl")]):
        assert main([*command, "--data-source", "natural", "--split", "train"]) == 2
        assert capsys.readouterr().err.startswith("data_source 'natural' is none of nq, ")
    for command in (["convert", str(good)], ["validate"], ["repair", str(good)], []):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2


def test_json_lines_need_no_pyarrow(tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from turncredit.worlds.question_files import read_rows\n"
        f"print(len(read_rows(Path({str(RAW)!r}), data_source='nq', split='train')))"
    )
    lib = str(Path(__file__).parents[2] / "lib")
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": lib}
    )
    assert run.stdout.strip() == "3", run.stderr


# ---- corpora -----------------------------------------------------------------------------------


def test_the_fixture_reads_as_written_by_hand():
    documents = list(read_documents(CORPUS))
    assert documents[0] == Document(
        "0", "Quince Harbour", "Quince Harbour is an invented port.\n\nIts mayor is Ada Moss."
    )
    assert [d.title for d in documents] == [
        "Quince Harbour",
        "Ada Moss",
        '"Salt" (song)',
        "Lower Fennel",
        "Upper Fennel",
        "no quotes",
    ]
    assert [d.id for d in documents] == list("012345")


@given(documents=DOCUMENTS)
def test_any_documents_come_back_by_stream_and_by_position(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_documents(path, documents)
    assert list(read_documents(path)) == documents
    corpus = JsonlCorpus(path)
    assert len(corpus) == len(documents) and list(corpus) == documents
    assert [corpus[position] for position in range(-len(documents), 0)] == documents
    assert corpus[1:3] == documents[1:3] and corpus[::-1] == documents[::-1]
    assert corpus.sha256() == corpus_sha256(documents)


@given(document=st.builds(Document, id=NAME, title=TEXT, text=TEXT))
def test_a_written_document_comes_back_or_is_refused(document, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    if document.title != " ".join(document.title.splitlines()):
        with pytest.raises(ValueError, match="line end"):
            write_documents(path, [document])
        assert not path.exists()
        return
    write_documents(path, [document])
    assert list(read_documents(path)) == [document]
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record == {"id": document.id, "contents": f'"{document.title}"\n{document.text}'}


def test_gzipped_and_plain_are_one_corpus(tmp_path):
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(CORPUS.read_bytes()))
    plain, unpacked = JsonlCorpus(CORPUS), JsonlCorpus(packed, cache=tmp_path / "cache")
    assert list(read_documents(packed)) == list(plain) == list(unpacked)
    assert [unpacked[position] for position in (4, 0, -1)] == [plain[4], plain[0], plain[5]]
    assert plain.sha256() == unpacked.sha256() == corpus_sha256(list(read_documents(packed)))
    assert plain.file_sha256 == unpacked.file_sha256 == sha256_file(CORPUS)
    made = [path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.jsonl")]
    JsonlCorpus(packed, cache=tmp_path / "cache")
    assert [path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.jsonl")] == made


def test_a_last_line_without_its_end_counts(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(CORPUS.read_bytes().removesuffix(b"\n"))
    assert list(JsonlCorpus(path)) == list(JsonlCorpus(CORPUS))
    assert JsonlCorpus(path)[-1] == JsonlCorpus(CORPUS)[-1]
    path.write_bytes(b"")
    assert len(JsonlCorpus(path)) == 0 and JsonlCorpus(path).sha256() == corpus_sha256([])


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"contents": "\\"a\\"\\nb"}',
        b'{"id": null, "contents": "a"}',
        b'{"id": true, "contents": "a"}',
        b'{"id": "", "contents": "a"}',
        b'{"id": "1"}',
        b'{"id": "1", "title": "a"}',
        b'{"id": "1", "contents": 5}',
        b'{"id": "1", "id": "2", "contents": "a"}',
        b'{"id": "1", "contents": "a", "score": NaN}',
        b'{"id": "1", "contents": "a", "score": -1e999}',
        b'{"id": "1", "contents": "\\ud800"}',
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(bad, tmp_path):
    good = b'{"id": "1", "contents": "\\"a\\"\\nb"}'
    path, packed = tmp_path / "corpus.jsonl", tmp_path / "corpus.jsonl.gz"
    path.write_bytes(b"\n".join([good, good, bad, good]) + b"\n")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for corpus in (JsonlCorpus(path), JsonlCorpus(packed, cache=tmp_path / "cache")):
        assert len(corpus) == 4 and corpus[3].text == "b"  # the sound rows stay in reach
        for read in (lambda c: c[2], list, JsonlCorpus.sha256):
            with pytest.raises(ValueError, match=r"corpus\.jsonl, line 3"):
                read(corpus)
    with pytest.raises(ValueError, match="line 3"):
        list(read_documents(path))


def test_damage_to_the_file_is_an_error_and_not_another_document(tmp_path):
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes(gzip.compress(CORPUS.read_bytes())[:-9])
    with pytest.raises(ValueError, match=r"cut\.jsonl\.gz"):
        list(read_documents(packed))
    with pytest.raises(ValueError, match=r"cut\.jsonl\.gz"):
        JsonlCorpus(packed, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.jsonl"))
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(CORPUS.read_bytes())
    corpus = JsonlCorpus(path)
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match="line 6"):
        corpus[5]


@pytest.mark.parametrize("position", [6, -7, 10**9])
def test_a_position_outside_is_an_index_error(position):
    with pytest.raises(IndexError, match=str(position)):
        JsonlCorpus(CORPUS)[position]


def test_threads_may_read_a_corpus_at_the_same_time():
    corpus = JsonlCorpus(CORPUS)
    positions = [number % 6 for number in range(300)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(corpus.__getitem__, positions))
    assert found == [corpus[position] for position in positions]


def test_opening_and_reading_a_corpus_takes_little_memory(tmp_path):
    """30 MB of text: nothing near that may be held."""
    path = tmp_path / "corpus.jsonl"
    text = "word " * 3000
    write_documents(path, (Document(str(n), f"title {n}", text) for n in range(2000)))
    tracemalloc.start()
    corpus = JsonlCorpus(path)
    corpus.sha256()
    assert corpus[1999].title == "title 1999"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 30_000_000 and peak < 16_000_000


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "x\u2028y\x85z\x0b"}\r\n{}\n', encoding="utf-8", newline="")
    assert [number for number, _ in read_lines(path)] == [1, 2]


# ---- FanOutQA ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fanout():
    try:
        metadata.version("fanoutqa")
    except metadata.PackageNotFoundError:
        pytest.skip("fanoutqa is not installed (pip install --no-deps fanoutqa==1.1.1)")
    return load_dev()


def test_the_development_set_is_the_published_one(fanout):
    assert fanout.sha256.startswith("359300b029c68915")
    assert len(fanout.questions) == 310 == len({q.id for q in fanout.questions})
    assert Counter(q.kind for q in fanout.questions) == {"dict": 274, "list": 12, "single": 24}
    assert len({hop.title for hops in fanout.hops.values() for hop in hops}) == 1594
    assert all(q.text and q.text == q.text.strip() and fanout.hops[q.id] for q in fanout.questions)
    assert "fanoutqa" not in sys.modules  # its code wants packages that are not needed to read


def test_one_question_read_by_hand(fanout):
    question = fanout.questions[0]
    assert question.id == "7dcbbbdc7f1120cd" and question.kind == "dict"
    assert question.answers == (
        "Pat Burrell: Right; Mark Mulder: Left; Corey Patterson: Left; "
        "Jeff Austin: Right; JD Drew: Left",
    )
    hops = fanout.hops[question.id]
    assert [hop.title for hop in hops] == [
        "1998 Major League Baseball draft",
        "Pat Burrell",
        "Mark Mulder",
        "Corey Patterson",
        "Jeff Austin (baseball)",
        "J. D. Drew",
    ]
    assert (hops[1].relation, hops[1].value, hops[1].paragraph) == (
        "What is the batting hand of Pat Burrell?",
        "Right",
        "",
    )
    text = "Burrell and Austin bat right. Pat Burrell, Mark Mulder (left)."
    # found: Pat Burrell, Right (twice), Mark Mulder, Left (three times)
    assert loose_accuracy(text, fanout.references[question.id]) == 7 / 10


def test_a_flat_answer_holds_all_its_references(fanout):
    for question in fanout.questions:
        references = fanout.references[question.id]
        assert references and all(map(normalise_answer, references))
        assert loose_accuracy(question.answers[0], references) == 1.0
        assert exact_match(question.answers[0], question.answers)
        assert loose_accuracy("zzz", references) == 0.0


@pytest.mark.parametrize(
    ("answer", "flat", "references"),
    [
        ("Spain", "Spain", ["Spain"]),
        (1604898, "1604898", ["1604898"]),
        (49.0, "49", ["49"]),
        (False, "no", ["no"]),
        ([2006, "x"], "2006; x", ["2006", "x"]),
        ({"a": True, "b": ["c", 2]}, "a: yes; b: c, 2", ["a", "yes", "b", "c", "2"]),
        ("", "", []),
    ],
)
def test_answers_are_flattened_as_stated(answer, flat, references):
    assert flatten(answer) == flat and reference_texts(answer) == references


def test_loose_accuracy_counts_whole_words_and_knows_missing():
    assert loose_accuracy("1,604,898 people in 1,20", ("1604898", "1604", "898", "120")) == 0.25
    assert loose_accuracy("Yorkshire", ("York",)) == 0.0
    assert loose_accuracy("anything", ()) is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "null",
        "{}",
        "3",
        "[{}]",
        "[3]",
        "[" * 100_000,
        '[{"id": "a", "question": "q", "answer": null, "decomposition": []}]',
        '[{"id": "a", "question": 3, "answer": "x", "decomposition": []}]',
        '[{"id": "a", "question": "q", "answer": "x", "decomposition": [3]}]',
    ],
    ids=lambda content: content[:60],
)
def test_a_damaged_fanout_file_is_named(content, tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"dev\.json"):
        load_dev(path)


# ---- the world over files ----------------------------------------------------------------------


class Finder:
    """A stand-in for a retriever: gives what it was told to, or raises it."""

    def __init__(self, reply: object) -> None:
        self.reply = reply

    def search(self, queries: list[str], k: int) -> object:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply(queries, k) if callable(self.reply) else [self.reply] * len(queries)


def question(number: int, text: str = "", answer: str = "yes") -> Question:
    return Question(f"q{number}", text or f"question {number}?", (answer,), (), "nq", "")


def hits(*positions: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(position=position, score=1.0) for position in positions]


def search(world: FileWorld, k: int = 3) -> list[Document]:
    return world.search(world.evaluation[0], "moss", k, random.Random(0))


def test_files_and_a_real_retriever_make_a_world(tmp_path):
    write_rows(tmp_path / "train.parquet", read_rows(RAW, data_source="nq", split="train"))
    write_rows(tmp_path / "test.jsonl", [row(0, question="who was born in Lower Fennel?")])
    corpus = JsonlCorpus(CORPUS)
    world = open_file_world(
        tmp_path / "train.parquet", tmp_path / "test.jsonl", lexical_retriever(corpus)
    )
    assert len(world.train) == 3 and [q.id for q in world.evaluation] == ["nq-test-test_0"]
    found = world.search(world.evaluation[0], "Lower Fennel", 2, random.Random(0))
    assert found[0] == corpus[3] and len(found) == 2
    assert world.search(world.evaluation[0], "zzzz", 2, random.Random(0)) == []
    assert world.outcomes == {"ok": 1, "short": 1}
    assert (world.words, world.names) == ((), ())


def test_an_episode_of_deep_research_runs_over_files():
    asked_for = question(0, "who is mayor of Quince Harbour?", "Ada Moss")
    world = FileWorld([], [asked_for], lexical_retriever(list(read_documents(CORPUS))))
    settings = DeepResearchSettings(minimum_paragraph=5)
    environment = DeepResearch(world, RuleJudge(0.0, 0.0), settings)
    episode = environment.reset(asked_for, random.Random(0))
    assert "Quince Harbour" in episode.step("<search> quince harbour </search>").observation
    assert "mayor is Ada Moss" in episode.step("<read_chunk> mayor </read_chunk>").observation
    assert episode.step("<answer> ada moss </answer>").stop_reason == "answer"
    assert episode.reward == 1.0 and episode.grounded is None


DOCUMENT = Document("1", "Ada Moss", "text")


@pytest.mark.parametrize(
    "reply",
    [
        [DOCUMENT],
        [SimpleNamespace(document=DOCUMENT, score=0.5)],
        [{"document": {"id": "1", "contents": '"Ada Moss"\ntext'}, "score": 0.5}],
        [{"id": "1", "contents": '"Ada Moss"\ntext'}],
    ],
)
def test_all_forms_of_hits_are_documents(reply):
    world = FileWorld([], [question(0)], Finder(reply))
    assert search(world) == [DOCUMENT] and world.outcomes == {"short": 1}


@pytest.mark.parametrize(
    "error", [ConnectionError("refused"), TimeoutError("slow"), RuntimeError("500"), OSError("x")]
)
def test_an_error_of_the_retriever_is_counted_and_passed_on(error):
    world = FileWorld([], [question(0)], Finder(error))
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            search(world)
    assert world.outcomes == {type(error).__name__: 2}


def test_outcomes_of_a_client_keep_their_names():
    """Nothing listens on port 9 (discard): by default no results, and raised under `strict`."""
    client = RetrievalClient("http://127.0.0.1:9", retries=0, timeout=5)
    world = FileWorld([], [question(0)], client)
    assert search(world) == [] and world.outcomes == client.counts == {"unreachable": 1}
    strict = RetrievalClient("http://127.0.0.1:9", retries=0, timeout=5, strict=True)
    world = FileWorld([], [question(0)], strict)
    with pytest.raises(RetrievalError, match="unreachable"):
        search(world)
    assert world.outcomes == {"unreachable": 1}


def found(outcome: str) -> Answer:
    """What a client says of a search for one query with this outcome."""
    results = [[Found(Passage("1", "Ada Moss", "text"), 0.5)]]
    return Answer(results if outcome in ("ok", "short", "long") else [[]], outcome)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_search_with_results_is_no_failure_and_one_without_is(outcome):
    finder = SimpleNamespace(ask=lambda queries, k: found(outcome))
    world = FileWorld([], [question(0)], finder)
    for environment in (
        SearchR1(world, SearchR1Settings()),
        DeepResearch(world, RuleJudge(0.0, 0.0), DeepResearchSettings()),
    ):
        world.outcomes.clear()
        step = environment.reset(question(0), random.Random(0)).step("<search> moss </search>")
        assert step.stop_reason is None and world.outcomes == {outcome: 1}
        kept = bool(found(outcome).results[0])
        assert ("Ada Moss" in step.observation) == kept
        assert environment.failures == ({} if kept else {f"search_{outcome}": 1})


@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if not found(name).results[0]])
def test_a_strict_client_ends_the_step_by_the_outcome_and_it_is_counted(outcome, monkeypatch):
    client = RetrievalClient("http://127.0.0.1:9", retries=0, strict=True)
    monkeypatch.setattr(client, "_attempt", lambda queries, k: Answer([], outcome, "told so"))
    environment = SearchR1(FileWorld([], [question(0)], client), SearchR1Settings())
    with pytest.raises(RetrievalError, match=f"^{outcome}: told so$") as caught:
        environment.reset(question(0), random.Random(0)).step("<search> moss </search>")
    assert (caught.value.outcome, caught.value.detail) == (outcome, "told so")
    assert client.counts == {outcome: 1} and environment.failures == {f"search_{outcome}": 1}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (hits(6), "position 6 of 6"),
        (hits(-1), "position -1 of 6"),
        (hits(0, 1, 2, 3), "4 hits, 3 were wanted"),
        ([{"document": {"id": "1"}}], "title is None"),
        (lambda queries, k: [], "0 lists of hits"),
        (lambda queries, k: [[], []], "2 lists of hits"),
    ],
)
def test_a_reply_that_cannot_be_one_is_refused_and_counted(reply, message):
    world = FileWorld([], [question(0)], Finder(reply), corpus=JsonlCorpus(CORPUS))
    with pytest.raises(ValueError, match=message):
        search(world)
    assert world.outcomes == {"ValueError": 1}


def test_positions_without_a_corpus_are_refused():
    with pytest.raises(ValueError, match="position 0 of 0"):
        search(FileWorld([], [question(0)], Finder(hits(0))))


def test_a_retriever_over_another_corpus_is_refused_naming_both_sides():
    documents = list(read_documents(CORPUS))
    with pytest.raises(ValueError, match="5 documents, the corpus has 6"):
        FileWorld([], [question(0)], lexical_retriever(documents[:5]), corpus=documents)
    swapped = [*documents[1:], documents[0]]
    with pytest.raises(ValueError, match=r"'Ada Moss' \(id 1\).*'Quince Harbour' \(id 0\)"):
        FileWorld([], [question(0)], lexical_retriever(swapped), corpus=documents)
    FileWorld([], [question(0)], lexical_retriever(documents), corpus=JsonlCorpus(CORPUS))


def test_training_and_evaluation_stay_apart(caplog):
    train = [question(0), question(1, "Who is it?"), question(2)]
    with caplog.at_level(logging.WARNING):
        world = FileWorld(train, [question(9, "who is IT")], Finder([]))
    assert [q.id for q in world.train] == ["q0", "q2"] and world.dropped == 1
    assert "1 training question" in caplog.text
    with pytest.raises(ValueError, match="'q0' comes 2 times"):
        FileWorld([question(0)], [question(0, "another?")], Finder([]))


def test_files_of_one_split_are_refused(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write_rows(tmp_path / name, [row(ord(name[0]))])
    with pytest.raises(ValueError, match=r"a\.jsonl and .*b\.jsonl both hold rows of nq/test"):
        open_file_world(tmp_path / "a.jsonl", tmp_path / "b.jsonl", Finder([]))


def test_questions_are_drawn_without_repeats_and_evaluation_is_fixed():
    world = FileWorld(
        [question(n) for n in range(10)], [question(n) for n in range(10, 30)], Finder([])
    )
    drawn = world.train_questions(25, random.Random(3))
    assert sorted(Counter(q.id for q in drawn).values()) == [2] * 5 + [3] * 5
    assert drawn == world.train_questions(25, random.Random(3))
    fixed = world.evaluation_questions(8)
    assert fixed == world.evaluation_questions(8) != world.evaluation_questions(8, seed=1)
    assert len({q.id for q in fixed}) == 8
    with pytest.raises(ValueError, match="21 evaluation questions wanted, there are 20"):
        world.evaluation_questions(21)
    with pytest.raises(ValueError, match="there are none"):
        FileWorld([], [question(0)], Finder([])).train_questions(1, random.Random(0))


def test_fixtures_are_json_lines():
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        assert json.loads(line)


def test_an_id_that_cannot_be_printed_loses_no_report(tmp_path):
    good, odd = tmp_path / "good.jsonl", tmp_path / "odd.jsonl"
    good.write_text('{"id": "ok", "question": "q?", "golden_answers": ["x"]}\n')
    odd.write_text('{"id": "\\ud800", "question": "q?", "golden_answers": ["x"]}\n')
    command = [sys.executable, "-m", "turncredit.worlds.question_files", "validate"]
    named = ["--data-source", "nq", "--split", "test"]
    run = subprocess.run([*command, good, odd, *named], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "good.jsonl" in run.stdout
    assert "odd.jsonl" in run.stdout
