"""Parameter files: what YAML would read wrongly, or a reader would overlook, is refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from turncredit import params
from turncredit.policies import model_sources
from turncredit.tasks import TaskSettings, open_task, task_values

REPOSITORY = Path(__file__).resolve().parents[2]
TASK_FILES = sorted((REPOSITORY / "params").glob("*/tasks/*.yaml"))


@dataclass(frozen=True)
class Apple:
    KIND: ClassVar[str] = "apple"
    weight: float


@dataclass(frozen=True)
class Pear:
    KIND: ClassVar[str] = "pear"
    count: int


@dataclass(frozen=True)
class Basket:
    rate: float
    count: int
    name: str
    dry: bool
    sizes: tuple[int, ...]
    fruit: Apple | Pear
    spare: int | None
    options: dict[str, Any]


GOOD = {
    "rate": "1.0e-6",
    "count": "3",
    "name": "x",
    "dry": "true",
    "sizes": "[1, 2]",
    "fruit": "{kind: pear, count: 2}",
    "spare": "null",
    "options": "{floor: 0.5}",
}


def load(tmp_path: Path, text: str | None = None, **changes: str) -> Basket:
    path = tmp_path / "basket.yaml"
    lines = (f"{key}: {value}\n" for key, value in (GOOD | changes).items())
    path.write_text("".join(lines) if text is None else text, encoding="utf-8")
    return params.load(Basket, path)


def test_a_good_file_becomes_typed_values(tmp_path):
    expected = Basket(1e-6, 3, "x", True, (1, 2), Pear(2), None, {"floor": 0.5})
    assert load(tmp_path) == expected
    assert type(load(tmp_path, rate="3").rate) is float, "a whole number is a fine float"
    assert load(tmp_path, spare="4").spare == 4
    assert load(tmp_path, rate="-2.5e+3").rate == -2500.0
    assert load(tmp_path, fruit="{kind: apple, weight: 1.5}").fruit == Apple(1.5)
    assert load(tmp_path, name="no").name == "no", "no stays text"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "1e-6"),
        ("rate", "'0.5'"),
        ("rate", "true"),
        ("rate", "null"),
        ("rate", ".nan"),
        ("rate", ".inf"),
        ("rate", ""),
        ("rate", "1.0e400"),
        ("rate", "1_000.0"),
        ("rate", "[0.1]"),
        ("count", "010"),
        ("count", "0x10"),
        ("count", "12:30"),
        ("count", "1_000"),
        ("count", "true"),
        ("count", "3.0"),
        ("count", "null"),
        ("name", "3"),
        ("name", "true"),
        ("name", "null"),
        ("dry", "no"),
        ("dry", "yes"),
        ("dry", "on"),
        ("dry", "1"),
        ("dry", "True"),
        ("sizes", "3"),
        ("sizes", "'1, 2'"),
        ("sizes", "[1, two]"),
        ("sizes", "{a: 1}"),
        ("fruit", "{kind: plum, count: 2}"),
        ("fruit", "{kind: [pear], count: 2}"),
        ("fruit", "{count: 2}"),
        ("fruit", "{kind: apple, count: 2}"),
        ("fruit", "pear"),
        ("spare", "'4'"),
        ("spare", "{}"),
        ("options", "[]"),
        ("options", "{1: a, '1': b}"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_file_and_key(tmp_path, key, value):
    with pytest.raises(ValueError, match=rf"basket\.yaml: .*{key}") as caught:
        load(tmp_path, **{key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(tmp_path, key):
    text = "".join(f"{name}: {value}\n" for name, value in GOOD.items() if name != key)
    with pytest.raises(ValueError, match=rf"basket\.yaml: key '{key}' is missing"):
        load(tmp_path, text)


@pytest.mark.parametrize("key", ["raet", "Rate", "1", "true", "null"])
def test_an_unknown_key_is_named(tmp_path, key):
    with pytest.raises(ValueError, match=r"basket\.yaml: .*unknown key"):
        load(tmp_path, **{key: "1"})


def test_a_key_given_twice_is_named_also_below_the_top(tmp_path):
    text = "".join(f"{name}: {value}\n" for name, value in GOOD.items())
    with pytest.raises(ValueError, match=r"basket\.yaml: .*'rate' is given twice"):
        load(tmp_path, text + "rate: 2.0\n")
    with pytest.raises(ValueError, match=r"basket\.yaml: .*'count' is given twice"):
        load(tmp_path, fruit="{kind: pear, count: 2, count: 3}")
    with pytest.raises(ValueError, match=r"basket\.yaml: .*'floor' is given twice"):
        load(tmp_path, options="{deep: [{floor: 1, 'floor': 1}]}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "- a\n- b\n",
        "text",
        "3",
        "a: [1",
        "\tx: 1",
        "? [a, b]\n: 1\n",
        "a: !!python/name:os.system x",
        "a: !!timestamp x",
        "a: !!bool maybe",
        "a: !!int x",
    ],
)
def test_what_is_no_mapping_is_refused_by_file(tmp_path, text):
    with pytest.raises(ValueError, match=r"basket\.yaml"):
        load(tmp_path, text)


def test_a_file_that_is_not_there_or_not_utf8_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.yaml: no such params file"):
        params.load(Basket, tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.yaml"):
        params.load(Basket, tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "line", "column", "what"),
    [
        ("a: 1\nb: [1\n", 3, 1, "expected ',' or ']'"),
        ("a: 1\n\tb: 1\n", 2, 1, r"character '\\t' that cannot start"),
        ("a: 1\nb: c: 2\n", 2, 5, "mapping values are not allowed here"),
        ("a: 'open\n", 2, 1, "end of stream"),
        ("a: 1\nb: *ghost\n", 2, 4, "undefined alias 'ghost'"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, 4, "constructor for the tag"),
        ("a: 1\n b: 2\n", 2, 3, "mapping values"),
        ("a: 1\nb: x\x00y\n", 2, 5, "character #x0000"),
        ("a: 1\n---\nb: 2\n", 2, 1, "another document"),
    ],
)
def test_what_yaml_cannot_read_is_one_line_with_file_line_column_and_what(
    tmp_path, text, line, column, what
):
    with pytest.raises(ValueError, match=what) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'basket.yaml'}: line {line}, column {column}: "), said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["[" * 600, "a: &x [*x]\n", "a: &x {b: *x}\n"])
def test_what_is_nested_without_end_is_refused_by_file(tmp_path, text):
    with pytest.raises(ValueError, match=r"basket\.yaml: .*nested"):
        load(tmp_path, text)


LARGE = ["1.0e400", "-1.0e400", "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5000, str(2**63)]


@pytest.mark.parametrize("number", LARGE, ids=lambda text: f"{text[:9]} ({len(text)})")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "{}"),
        ("count", "{}"),
        ("spare", "{}"),
        ("sizes", "[1, {}]"),
        ("fruit", "{{kind: apple, weight: {}}}"),
        ("options", "{{floor: {}}}"),
        ("options", "{{floor: [0, {{deep: {}}}]}}"),
    ],
)
def test_a_number_that_no_computation_can_hold_is_refused_by_file_and_key(
    tmp_path, number, key, value
):
    """Also where anything may stand, such as the options of a method."""
    with pytest.raises(ValueError, match=rf"basket\.yaml: {key}.* too large") as caught:
        load(tmp_path, **{key: value.format(number)})
    assert len(str(caught.value)) < 300


def test_a_whole_number_of_a_caller_that_no_float_can_hold_is_refused_by_key():
    with pytest.raises(ValueError, match=r"here: weight.* too large"):
        params.build(Apple, {"weight": 10**5000}, "here")


@pytest.mark.parametrize("path", TASK_FILES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_every_task_file_loads(path, monkeypatch):
    monkeypatch.delenv("TURNCREDIT_HOME", raising=False)
    values = task_values(path.parts[-3], path.stem)
    values.pop("tripwires", None)
    settings = params.build(TaskSettings, values, str(path))
    assert (path.parent / f"{settings.warm_start_task}.yaml").exists()


def test_every_tier_has_the_same_task_files():
    """Tier gpu has more: one whose questions a reader has to bring, and one that vLLM samples."""
    by_tier = {}
    for path in TASK_FILES:
        by_tier.setdefault(path.parts[-3], set()).add(path.name)
    assert by_tier.keys() >= {"smoke", "cpu", "gpu"}
    further = {"nq.yaml", "tempting_guess_vllm.yaml"}
    assert by_tier["gpu"] - by_tier["cpu"] == further
    by_tier["gpu"] -= further
    assert len(set(map(frozenset, by_tier.values()))) == 1, by_tier


@pytest.mark.parametrize("tier", ["smoke", "cpu", "gpu"])
def test_what_an_experiment_names_is_a_task_of_its_tier(tier):
    tasks = {path.stem for path in TASK_FILES if path.parts[-3] == tier}
    for path in sorted((REPOSITORY / "params" / tier).glob("*.yaml")):
        values = params.read_yaml(path)
        plans = [values, *values.get("further", [])]
        named = {task for plan in plans for task in plan.get("tasks", [])}
        named |= {values[key] for key in ("task", "task_name") if key in values}
        assert named <= tasks, path


def test_a_task_of_tier_gpu_is_one_of_a_language_model_that_fits_its_file():
    for path in TASK_FILES:
        if path.parts[-3] == "gpu":
            values = task_values("gpu", path.stem)
            values.pop("tripwires", None)
            task = params.build(TaskSettings, values, str(path))
            kind = "vllm" if path.stem.endswith("_vllm") else "huggingface"
            assert (task.policy.KIND, task.policy.device) == (kind, "cuda"), path
            assert task.wording == task.environment.KIND, f"{path}: a model is told its tools"
            assert task.warm_start.swap_names == 0, path
            named = [task.world.train, task.world.evaluation] if path.stem == "nq" else []
            assert all(name.startswith("data/") for name in named), path


@pytest.mark.parametrize("name", ["nq", "factbook", "tempting_guess", "tempting_guess_vllm"])
def test_what_tier_gpu_lacks_here_is_one_sentence_before_any_work(name, tmp_path, monkeypatch):
    """Question files and a GPU; a model of the hub is not asked for."""
    if torch.cuda.is_available() and name != "nq":
        pytest.skip("this machine has a GPU")
    (tmp_path / "params").symlink_to(REPOSITORY / "params")
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    monkeypatch.setattr(model_sources, "_hub", lambda name: pytest.fail(f"asked for {name}"))
    usual = r"needs vllm: pip install" if name.endswith("_vllm") else "policy.device"
    missing = r"train = 'data/nq/train.parquet': .*no file" if name == "nq" else usual
    with pytest.raises(ValueError, match=rf"gpu/tasks/{name}\.yaml: .*{missing}") as caught:
        open_task("gpu", name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "section",
    ["training", "evaluation", "policy", "world", "judge", "demonstrations", "environment"],
)
@pytest.mark.parametrize("value", [-1, 0])
def test_a_number_that_makes_no_sense_is_refused_when_the_file_is_read(section, value):
    """Not hours later by a division by zero, or never: one count or share of each section."""
    senseless = {
        "training": ("checkpoint_every", value),
        "evaluation": ("every", value),
        "policy": ("layers", value),
        "world": ("people", value),
        "judge": ("knowledge", value - 0.5),
        "demonstrations": ("error", value - 0.5),
        "environment": ("max_turns", value),
    }
    path = REPOSITORY / "params" / "smoke" / "tasks" / "costly_guess.yaml"
    values = params.read_yaml(path)
    name, number = senseless[section]
    values[section][name] = number
    with pytest.raises(ValueError, match=name):
        params.build(TaskSettings, values, "costly_guess.yaml")
