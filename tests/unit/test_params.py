"""Parameter files: what YAML would read wrongly, or a reader would overlook, is refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from turncredit import params
from turncredit.tasks import TaskSettings

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


@pytest.mark.parametrize("path", TASK_FILES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_every_task_file_loads(path):
    settings = params.load(TaskSettings, path)
    assert (path.parent / f"{settings.warm_start_task}.yaml").exists()


def test_every_tier_has_the_same_task_files():
    by_tier = {}
    for path in TASK_FILES:
        by_tier.setdefault(path.parts[-3], set()).add(path.name)
    assert len(by_tier) >= 2
    assert len(set(map(frozenset, by_tier.values()))) == 1, by_tier


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
