"""What our command refuses before verl starts, with verl's own configuration and validation.

Runs only where verl is installed: `make test-verl`.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import tiny_run
import yaml

pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from omegaconf import OmegaConf

from turncredit.verl_plugin import train
from turncredit.worlds.question_files.files import read_records

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def params(tmp_path):
    """Files of a run whose retrieval server is not there."""
    return tiny_run.write_params(tmp_path / "params", NOBODY)


@pytest.fixture
def started(monkeypatch):
    """What was given to verl's own entry, which does not run."""
    calls = []
    monkeypatch.setattr(train, "_start", lambda *given: calls.append(given))
    return calls


def command(params, *more):
    names = ["tiny", "search_r1", "cpu", "aem", *more]
    return train.main([*names, "--params", str(params), "--runs", str(params / "runs")])


def altered(params, kind, name, **changes):
    """Change keys of `verl` in one of the files; a dotted key is written with two underscores."""
    file = params / kind / f"{name}.yaml"
    values = yaml.safe_load(file.read_text())
    for key, value in changes.items():
        *nodes, last = key.split("__")
        node = values["verl"]
        for one in nodes:
            node = node.setdefault(one, {})
        node[last] = value
    file.write_text(yaml.safe_dump(values))


def test_a_sound_run_is_started_with_its_log_in_its_folder(params, started):
    with tiny_run.tool_server() as url:
        agent = params / "agents" / "search_r1.yaml"
        agent.write_text(agent.read_text().replace(NOBODY, url))
        assert command(params) == 0
    ((config, variables),) = started
    (place,) = (params / "runs").iterdir()
    for key in ("train_files", "val_files"):
        assert all(Path(file).is_absolute() and Path(file).is_file() for file in config.data[key])
    assert config.trainer.default_local_dir == str(place / "checkpoints")
    assert [Path(path).parent for path in variables.values()] == [place]


def test_question_files_are_found_from_wherever_a_node_starts_a_process(params, monkeypatch):
    monkeypatch.chdir(params)
    told = OmegaConf.create({"data": {"train_files": "train.parquet", "val_files": ["~/a", "b"]}})
    found = train.with_whole_paths(told).data
    assert list(found.train_files) == [str(params.resolve() / "train.parquet")]
    assert list(found.val_files) == [str(Path.home() / "a"), str(params.resolve() / "b")]


def test_servers_are_asked_where_the_command_says(params, started, capsys):
    custom = {"head": "nobody.invalid"}
    altered(params, "machines", "cpu", actor_rollout_ref__rollout__custom=custom)
    url = "http://${actor_rollout_ref.rollout.custom.head}:"
    agent = params / "agents" / "search_r1.yaml"
    with tiny_run.tool_server() as address:
        agent.write_text(agent.read_text().replace(NOBODY, url + address.rpartition(":")[2]))
        assert command(params) == 1
        assert "http://nobody.invalid:" in capsys.readouterr().err
        assert command(params, "--head", "127.0.0.1") == 0
    assert len(started) == 1
    facts = json.loads(next((params / "runs").glob("*/run.json")).read_text())
    assert "head" not in facts["overrides"]["actor_rollout_ref"]["rollout"]["custom"]


def lack_answers(params):
    """Write the training file anew without the gold answers."""
    records = [record for _, record in read_records(params / "train.parquet")]
    lines = [json.dumps({k: v for k, v in r.items() if k != "reward_model"}) for r in records]
    (params / "train.jsonl").write_text("\n".join(lines))
    altered(params, "agents", "search_r1", data__train_files=str(params / "train.jsonl"))


def name_another_loop(params):
    """Write the training file anew with a column that verl takes for the agent loop's name."""
    records = [record for _, record in read_records(params / "train.parquet")]
    lines = [json.dumps(record | {"agent_name": "tool_agent"}) for record in records]
    (params / "train.jsonl").write_text("\n".join(lines))
    altered(params, "agents", "search_r1", data__train_files=str(params / "train.jsonl"))


BAD = {
    "a row of another agent loop": (name_another_loop, "row 1 has agent_name 'tool_agent'"),
    "a server that does not answer": (lambda params: None, "start the server first"),
    "a column that is not there": (lack_answers, "lacks reward_model"),
    "a file that is not there": (
        lambda params: altered(params, "agents", "search_r1", data__val_files="gone.parquet"),
        "gone.parquet is no file",
    ),
    "an engine that is not installed": (
        lambda params: altered(params, "machines", "cpu", actor_rollout_ref__rollout__name="vllm"),
        "rollout.name = 'vllm' is not installed",
    ),
    "a logger that is not installed": (
        lambda params: altered(params, "machines", "cpu", trainer__logger=["console", "swanlab"]),
        "pip install swanlab",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_the_remedy_before_anything_is_made(
    what, params, started, capsys
):
    assert not any(map(importlib.util.find_spec, ("vllm", "swanlab")))
    spoil, complaint = BAD[what]
    spoil(params)
    assert command(params) == 1
    assert complaint in capsys.readouterr().err
    assert not started
    assert not (params / "runs").exists()
