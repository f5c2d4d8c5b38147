"""What `turncredit.verl_plugin.train` refuses before anything starts, and the remedy it names."""

import json
import socket
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from answering import json_server

from turncredit.environments.judges import EndpointSettings
from turncredit.verl_plugin import train, versions
from turncredit.verl_plugin.train import require_judge, require_questions, require_retrieval
from turncredit.worlds.files import IndexSettings, ServerSettings
from turncredit.worlds.question_files.files import write_rows
from turncredit.worlds.question_files.rows import QuestionRow, to_record, with_prompts

NAMES = ["qwen3_8b", "search_r1", "1x8", "suffix_mask"]
ROWS = with_prompts(
    [QuestionRow("nq", "train", n, f"train_{n}", f"who wrote {n}?", ("Ann",)) for n in range(4)],
    str,
)


def data(path, **changes):
    return {"train_files": str(path), "val_files": [str(path)], "train_batch_size": 4} | changes


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def sound(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    path = tmp_path / "sound.parquet"
    write_rows(path, ROWS)
    return path


def test_sound_files_pass(sound):
    assert require_questions(data(sound)) == 4
    twice = [str(sound)] * 2
    assert require_questions(data(sound, train_files=twice, train_batch_size=8)) == 4
    assert require_questions(data(sound, val_files=twice)) == 8


def test_a_file_that_is_not_there_is_named_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"train_files: .*gone\.parquet is no file; .*convert"):
        require_questions(data(tmp_path / "gone.parquet"))


@pytest.mark.parametrize("column", train.COLUMNS)
def test_a_file_without_a_needed_column_is_refused(tmp_path, sound, column):
    records = [{k: v for k, v in to_record(row).items() if k != column} for row in ROWS]
    path = written(tmp_path / "lacking.jsonl", *records)
    with pytest.raises(ValueError, match=rf"val_files: .*lacks {column}; .*convert"):
        require_questions(data(sound, val_files=[str(path)]))


def test_rows_without_a_prompt_or_with_an_unknown_source_are_refused(tmp_path):
    records = [to_record(row) for row in ROWS]
    path = written(tmp_path / "rows.jsonl", *(r | {"prompt": []} for r in records))
    with pytest.raises(ValueError, match="lacks prompt"):
        require_questions(data(path))
    path = written(tmp_path / "rows.jsonl", *records, records[0] | {"data_source": "mine"})
    with pytest.raises(ValueError, match=r"(?s)data_source 'mine'.*convert"):
        require_questions(data(path))


def test_what_is_no_question_file_is_refused(tmp_path):
    path = tmp_path / "junk.jsonl"
    path.write_text("junk\n")
    with pytest.raises(ValueError, match=r"train_files: .*junk\.jsonl.*convert"):
        require_questions(data(path))


def test_fewer_questions_than_a_step_takes_are_refused(tmp_path, sound):
    with pytest.raises(ValueError, match="train_files: 4 rows, a step takes 5"):
        require_questions(data(sound, train_batch_size=5))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"val_files: .*empty\.jsonl: 0 rows"):
        require_questions(data(sound, val_files=str(tmp_path / "empty.jsonl")))


def settings(retriever, judge=None, environment=None):
    return SimpleNamespace(retriever=retriever, judge=judge, environment=environment)


def test_a_retrieval_server_that_does_not_answer_is_named_with_the_remedy():
    pytest.importorskip("httpx", reason="the client needs httpx")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"(?s){url}.*start the server first: .*serve INDEX"):
            require_retrieval(settings(ServerSettings(url, 2.0, 3, True)))


def test_an_index_of_ones_own_needs_no_server():
    require_retrieval(settings(IndexSettings("nowhere", "all_minilm", None, "cpu", "")))


def judged(url, environment="deep_research"):
    judge = EndpointSettings(base_url=url, model="tiny", deadline_seconds=5.0)
    return settings(None, judge, SimpleNamespace(KIND=environment))


def test_a_judge_that_does_not_answer_is_named_with_the_remedy():
    pytest.importorskip("httpx", reason="the judge needs httpx")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ValueError, match=rf"{url}: refused; .*vllm serve tiny"):
            require_judge(judged(url))
        require_judge(judged(url, "search_r1"))  # which asks none


def test_a_judge_has_to_answer_but_not_to_agree():
    pytest.importorskip("httpx", reason="the judge needs httpx")
    for reply in ("CORRECT", "WRONG", "UNCERTAIN"):
        with answering(reply) as url:
            require_judge(judged(url))
    for reply in ("well", "<think> Let me see what the context"):
        with answering(reply) as url, pytest.raises(ValueError, match="thinks first needs more"):
            require_judge(judged(url))
    with answering(None) as url, pytest.raises(ValueError, match="http_503"):
        require_judge(judged(url))


@contextmanager
def answering(reply):
    """A chat server whose model says `reply`; one that is overloaded for None."""
    said = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
    with json_server(lambda asked: said, status=503 if reply is None else 200) as url:
        yield f"{url}/v1"


@pytest.mark.parametrize(
    ("lacking", "complaint"),
    [
        ("vllm", r"rollout\.name = 'vllm' is not installed; environment\.yml"),
        ("tensorboard", "pip install tensorboard, or leave it out of trainer.logger"),
    ],
)
def test_an_engine_or_a_logger_that_is_not_installed_is_named_with_the_remedy(lacking, complaint):
    rollout = {"name": "vllm"}
    config = {
        "actor_rollout_ref": {"rollout": rollout},
        "trainer": {"logger": ["console", "tensorboard"]},
    }
    versions.require_modules(config, lambda name: True)
    with pytest.raises(ImportError, match=complaint):
        versions.require_modules(config, lambda name: name != lacking)
    with pytest.raises(ImportError, match="pip install flash-attn"):
        versions.require_modules(config | {"critic": {"enable": True}}, lambda n: n != "flash_attn")
    rollout["name"] = "one_of_ones_own"
    versions.require_modules(config, lambda name: name == "tensorboard")


@pytest.mark.parametrize(
    ("installed", "complaint"),
    [
        ({}, "verl is not installed"),
        ({"verl": "0.8.0"}, "verl 0.8.0 is installed, this plugin is for 0.9.1"),
        ({"verl": "0.9.1", "cachetools": "7"}, "needs uvicorn, fastapi, TransferQueue"),
    ],
)
def test_the_command_refuses_another_verl_before_it_imports_it(
    installed, complaint, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(versions, "_version_of", lambda name, _: installed.get(name))
    monkeypatch.setattr(train, "_start", lambda *_: pytest.fail("it was started"))
    monkeypatch.setitem(sys.modules, "verl", None)  # importing it would raise
    assert train.main([*NAMES, "--runs", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert "make env-verl" in said
    assert not (tmp_path / "runs").exists()


def test_the_command_names_the_parts_that_there_are(capsys, tmp_path):
    assert train.main(["qwen9", *NAMES[1:]]) == 1
    assert "models: 'qwen9' is not one of qwen2_5_7b, qwen3_8b" in capsys.readouterr().err
    assert train.main([*NAMES, "--params", str(tmp_path)]) == 1
    assert f"the files of {tmp_path / 'models'}, which has none" in capsys.readouterr().err
