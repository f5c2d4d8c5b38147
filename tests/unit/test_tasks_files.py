"""Tasks over files: questions, corpus and retriever of one's own, named in a task's params."""

import json
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pipeline.tiny_runs import parameters

from turncredit import params, paths
from turncredit.contents import content_hashes, content_stamps
from turncredit.experiment import Job, _identity_values, experiment_from, identity
from turncredit.tasks import Task, open_task
from turncredit.worlds.files import FileSettings
from turncredit.worlds.question_files import read_rows, write_rows

SMOKE = paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks"
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SERVER = {"kind": "server", "url": "http://127.0.0.1:9", "timeout": 1.0, "retries": 0}
INDEX = {"kind": "index", "folder": "index", "corpus": None, "device": "cpu", "parameters": ""}
PLACES = ("amber birch", "cedar delta", "ember flint")


class Home:
    """A repository with question files, where a task's params can be written and opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tasks = folder / "params" / "smoke" / "tasks"
        tasks.mkdir(parents=True)
        self.params = tasks / "nq.yaml"
        self.warm_start_steps = 0
        rows = read_rows(FIXTURES / "raw_questions.jsonl", data_source="nq", split="train")
        write_rows(folder / "train.parquet", rows)
        raw = {"id": "test_0", "question": "where is ember?", "golden_answers": ["flint"]}
        (folder / "test.jsonl").write_text(json.dumps(raw) + "\n", encoding="utf-8")
        self.world = {
            "kind": "files",
            "train": "train.parquet",
            "evaluation": "test.jsonl",
            "data_source": "nq",
            "retriever": SERVER | {"strict": False},
        }

    def open(self, *, retriever: dict | None = None, **changes: object) -> Task:
        values = params.read_yaml(SMOKE / "factbook.yaml")
        values["world"] = self.world | changes
        values["world"]["retriever"] = self.world["retriever"] | (retriever or {})
        values["evaluation"]["questions"] = 1
        values["warm_start"]["steps"] = self.warm_start_steps
        values["warm_start_task"] = "nq"
        self.params.write_text(yaml.safe_dump(values), encoding="utf-8")
        return open_task("smoke", "nq")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    return Home(tmp_path)


@pytest.fixture
def index(home: Home) -> dict:
    """Params of an index over three passages, by an encoder with random weights."""
    pytest.importorskip("faiss", reason="index files need faiss")
    transformers = pytest.importorskip("transformers", reason="encoders need transformers")
    from turncredit.retrieval import encoder_from_name
    from turncredit.retrieval.build import build_index

    model = home.folder / "model"
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*marks, *" ".join(PLACES).split()]
    vocabulary = {word: number for number, word in enumerate(words)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(model)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(model)
    rows = [{"id": str(n), "contents": f'"{place}"\n{place}'} for n, place in enumerate(PLACES)]
    corpus = home.folder / "corpus.jsonl"
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    name = f"minilm:{model}"
    build_index(corpus, encoder_from_name(name), "Flat", home.folder / "index")
    return INDEX | {"encoder": name}


def test_questions_come_from_the_files_and_documents_from_the_index(home, index):
    home.world["retriever"] = index
    task = home.open()
    assert {q.text for q in task.world.train_questions(3, random.Random(0))} == {
        q.text for q in task.world.train
    }
    (asked,) = task.world.evaluation_questions(1)
    assert (asked.text, asked.answers) == ("where is ember?", ("flint",))
    found = task.world.search(asked, "ember flint ember flint", 1, random.Random(0))
    assert [document.title for document in found] == ["ember flint"]
    episode = task.environment.reset(asked, random.Random(0))
    assert "ember flint" in episode.step("<search> ember flint ember flint </search>").observation
    assert episode.step("<answer> Flint </answer>").stop_reason == "answer"
    assert episode.success


def test_a_corpus_that_was_moved_is_named_in_the_params(home, index):
    home.world["retriever"] = index
    (home.folder / "corpus.jsonl").rename(home.folder / "moved.jsonl")
    with pytest.raises(ValueError, match=r"nq\.yaml: world: retriever: .*corpus\.jsonl"):
        home.open()
    assert len(home.open(retriever={"corpus": "moved.jsonl"}).world.corpus) == len(PLACES)


def test_an_index_of_another_encoder_is_refused_with_the_key(home, index):
    home.world["retriever"] = index
    family, _, folder = index["encoder"].partition(":")
    with pytest.raises(ValueError, match=r"nq\.yaml: world: retriever: .*encoder"):
        home.open(retriever={"encoder": f"{'bge' if family == 'minilm' else 'minilm'}:{folder}"})


def test_a_server_is_asked_when_searched_and_its_failure_is_counted(home):
    """Nothing listens on port 9 (discard)."""
    world = home.open().world
    (asked,) = world.evaluation_questions(1)
    assert world.search(asked, "ember", 3, random.Random(0)) == []
    assert world.outcomes == {"unreachable": 1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": "absent.parquet"}, r"world: train = 'absent\.parquet'.* is no file"),
        ({"evaluation": "absent.jsonl"}, r"world: evaluation = 'absent\.jsonl'.* is no file"),
        ({"train": "test.jsonl", "evaluation": "train.parquet"}, r"world: .*both hold rows of nq"),
        ({"data_source": ""}, r"world: .*test\.jsonl, row 1"),
        ({"data_source": 3}, r"world: data_source = 3"),
        ({"retriever": {"kind": "wiki"}}, r"world: retriever\.kind = 'wiki'"),
        ({"retriever": {"url": "here"}}, r"world: retriever: .*'here'"),
        ({"retriever": {"timeout": 0.0}}, r"world: retriever: timeout 0\.0"),
        ({"retriever": {"strict": "yes"}}, r"world: retriever: strict = 'yes'"),
        ({"retriever": {"folder": "x"}}, r"world: retriever: unknown key 'folder'"),
    ],
)
def test_what_no_world_can_be_made_of_is_one_sentence_with_file_and_key(home, changes, named):
    with pytest.raises(ValueError, match=rf"nq\.yaml: {named}") as refused:
        home.open(**changes)
    assert "\n" not in str(refused.value)


def test_an_index_that_is_not_there_is_named(home, index):
    home.world["retriever"] = index
    with pytest.raises(ValueError, match=r"nq\.yaml: world: retriever: .*elsewhere"):
        home.open(retriever={"folder": "elsewhere"})
    with pytest.raises(ValueError, match=r"nq\.yaml: world: retriever: encoder 'e6'"):
        home.open(retriever={"encoder": "e6"})


def test_files_without_a_question_to_train_on_are_refused(home):
    """All of them are also asked in the evaluation."""
    rows = read_rows(home.folder / "test.jsonl", data_source="nq", split="train")
    write_rows(home.folder / "train.parquet", rows)
    with pytest.raises(ValueError, match=r"nq\.yaml: world: train = 'train\.parquet' has no"):
        home.open()


def test_a_tiny_policy_is_refused_since_it_cannot_spell_the_questions(home):
    with pytest.raises(ValueError, match=r"nq\.yaml: world\.kind = 'files' has no list of words"):
        home.open().new_policy(0)


def test_edited_question_files_make_another_task_and_unchanged_ones_the_same(home):
    task = home.open()
    assert home.open() is task
    raw = {"id": "test_0", "question": "where is it now?", "golden_answers": ["here"]}
    (home.folder / "test.jsonl").write_text(json.dumps(raw) + "\n", encoding="utf-8")
    (asked,) = home.open().world.evaluation_questions(1)
    assert asked.text == "where is it now?"


# --- what makes a run this run: the contents of files, not their names


def hashes(home: Home) -> dict[str, str]:
    """The identity of a run on the task, whose params lie there."""
    return identity(Job(experiment_from(parameters(tasks=["nq"])), "nq", "grpo", 0), "code")


def edited(text: str) -> str:
    """Another text of the same length."""
    return text.replace("ember", "umber")


@pytest.mark.parametrize("name", ["train.jsonl", "test.jsonl"])
def test_an_edited_question_file_makes_another_run_and_a_touched_one_does_not(home, name):
    """With the same name and size, so that nothing but its bytes tells it from the old one."""
    rows = read_rows(FIXTURES / "raw_questions.jsonl", data_source="nq", split="train")
    write_rows(home.folder / "train.jsonl", rows)
    file = home.folder / name
    file.write_text(file.read_text().replace("Ada", "ember"))
    home.open(train="train.jsonl")
    before, text = hashes(home), file.read_text()
    assert hashes(home) == before
    file.touch()
    assert hashes(home) == before, "no other bytes, no other run"
    file.write_text(edited(text))
    assert edited(text) != text
    assert hashes(home)["params_hash"] != before["params_hash"]
    file.write_text(text)
    assert hashes(home) == before, "the old run, again"


def test_an_index_that_was_built_anew_over_an_edited_corpus_makes_another_run(home, index):
    from turncredit.retrieval import encoder_from_name
    from turncredit.retrieval.build import build_index

    home.world["retriever"] = index
    home.open()
    before, corpus = hashes(home), home.folder / "corpus.jsonl"
    corpus.write_text(edited(corpus.read_text()))
    with pytest.raises(ValueError, match="corpus_sha256"):  # in this process too
        hashes(home)
    shutil.rmtree(home.folder / "index")
    build_index(corpus, encoder_from_name(index["encoder"]), "Flat", home.folder / "index")
    assert hashes(home)["params_hash"] != before["params_hash"]


def test_where_files_lie_does_not_change_their_hashes(home, index):
    home.world["retriever"] = index
    here = home.open().contents
    assert set(here) == {
        "world.train",
        "world.evaluation",
        "world.retriever.corpus_sha256",
        "world.retriever.index_sha256",
        "world.retriever.encoder",
    }
    (home.folder / "corpus.jsonl").rename(home.folder / "moved.jsonl")
    (home.folder / "train.parquet").rename(home.folder / "other.parquet")
    there = home.open(train="other.parquet", retriever={"corpus": "moved.jsonl"}).contents
    assert there == here


@pytest.mark.parametrize("part", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_edited_model_folder_has_another_hash(home, part):
    folder = home.folder / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (folder / name).write_text("{}")
    settings = SimpleNamespace(
        world=SimpleNamespace(KIND="synthetic"),
        policy=SimpleNamespace(KIND="huggingface", model="model"),
        judge=SimpleNamespace(KIND="local", folder=str(folder)),
    )
    before, stamps = content_hashes(settings), content_stamps(settings)
    assert before.keys() == {"policy.model", "judge.folder"}
    (folder / "README.md").write_text("read me")
    assert content_hashes(settings) == before
    (folder / part).write_text("[]")
    after = content_hashes(settings)
    assert all(after[key] != value for key, value in before.items())
    assert content_stamps(settings) != stamps, "an open task is opened anew"
    (folder / part).write_text("{}")
    (folder / part).rename(folder / f"more_{part}")
    (folder / "config.json").write_text("{}")
    assert content_hashes(settings) != before


def test_a_task_without_files_has_the_hashes_that_it_always_had(home):
    """No key is added, so that what was run before is still the same run."""
    values = params.read_yaml(SMOKE / "costly_guess.yaml") | {"warm_start_task": "nq"}
    home.params.write_text(yaml.safe_dump(values))
    task = open_task("smoke", "nq")
    job = Job(experiment_from(parameters(tasks=["nq"])), "nq", "grpo", 0)
    assert task.contents == {}
    values = _identity_values(job)
    assert "contents" not in values.keys() | values["warm_start_values"].keys()


# --- a warm start needs questions that tell their hops


def test_a_warm_start_on_files_is_refused_by_file_and_key_before_any_work(home):
    home.warm_start_steps = 5
    with pytest.raises(ValueError, match=r"nq\.yaml: warm_start\.steps = 5 must be 0") as refused:
        home.open()
    assert "\n" not in str(refused.value)


def test_so_is_one_on_another_task_over_files(home):
    home.warm_start_steps = 5
    with pytest.raises(ValueError, match=r"nq\.yaml: warm_start"):
        home.open()
    values = params.read_yaml(SMOKE / "costly_guess.yaml") | {"warm_start_task": "nq"}
    (home.params.parent / "other.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=r"nq\.yaml: warm_start\.steps = 5 must be 0"):
        experiment_from(parameters(tasks=["other"]))


def test_the_params_in_the_docs_are_complete(tmp_path):
    text = (paths.PACKAGE.parents[1] / "docs" / "retrieval.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "whole.yaml").write_text(blocks[0], encoding="utf-8")
    (tmp_path / "part.yaml").write_text("world:\n" + blocks[1], encoding="utf-8")
    whole, part = (params.read_yaml(tmp_path / f"{n}.yaml")["world"] for n in ("whole", "part"))
    kinds = [whole.pop("kind"), whole["retriever"]["kind"], part["retriever"]["kind"]]
    assert kinds == ["files", "server", "index"]
    for values in (whole, whole | part):
        params.build(FileSettings, values, "docs")
