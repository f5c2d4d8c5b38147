"""Modules of one's own: entered by name from params, part of an identity, refused by name."""

import pickle
import re
import sys

import pytest
import torch
import yaml
from batches import make_batch

from turncredit import paths
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.laws import check
from turncredit.laws.__main__ import main
from turncredit.params import build, convert
from turncredit.plans import Plan, named_methods
from turncredit.training import Method
from turncredit.training.extensions import OPEN, enter, source_sha256

TEXT = (paths.PACKAGE.parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
HALF = """
import torch
from turncredit.credit import TURN_WEIGHTS

@TURN_WEIGHTS.add
def half(batch, base, *, share: float = 0.5):
    return torch.full(batch.turn_lengths().shape, share, dtype=base.dtype)
"""
PLAIN = {
    "base": "grpo", "base_options": {}, "weight": "none", "weight_options": {},
    "objective": "ppo_clip", "objective_options": {},
}  # fmt: skip
OWN = PLAIN | {"weight": "half", "module": "own.py"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder that stands for the repository; tables and loaded modules are restored."""
    before = [dict(table) for table in OPEN]
    loaded = set(sys.modules)
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "own.py").write_text(HALF)
    yield tmp_path
    for table, methods in zip(OPEN, before, strict=True):
        table.clear()
        table.update(methods)
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


def tables() -> list[dict]:
    return [dict(table) for table in OPEN]


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# by name from params


def test_an_arm_names_a_module_and_gets_its_weight(home):
    methods = home / "params" / "methods.yaml"
    text = yaml.safe_dump({"grpo": PLAIN})
    write(methods, text + "half: {extends: grpo, module: own.py, weight: half}\n")
    method = convert(named_methods(["half"]), dict[str, Method], "methods")["half"]
    batch = make_batch([[2, 1], [1, 3]])
    assert torch.equal(method.credit(batch).advantages, BASES["grpo"](batch) / 2)
    assert method.values == OWN
    method.require_source()
    method.rehearse()


def test_a_path_may_be_absolute_and_a_name_dotted(home):
    (home / "elsewhere.py").write_text(HALF)
    assert enter(str(home / "elsewhere.py")) == [("turn weight", "half")]
    write(home / "site" / "ownpack" / "__init__.py", "")
    write(home / "site" / "ownpack" / "weights.py", HALF.replace("def half", "def third"))
    assert enter("ownpack.weights") == [("turn weight", "third")]
    assert Method(**PLAIN | {"weight": "third", "module": "ownpack.weights"}).weight == "third"


def test_entered_once_however_often_it_is_named():
    enter("own.py")
    function = TURN_WEIGHTS["half"]
    enter("own.py")
    Method(**OWN)
    assert TURN_WEIGHTS["half"] is function


@pytest.mark.parametrize("spelt", ["{home}/own.py", "./own.py", "x/../own.py", "link.py"])
def test_spellings_of_one_file_are_one_module(home, spelt):
    (home / "x").mkdir()
    (home / "link.py").symlink_to(home / "own.py")
    enter("own.py")
    function = TURN_WEIGHTS["half"]
    Method(**OWN | {"module": spelt.format(home=home)})
    assert TURN_WEIGHTS["half"] is function


def test_another_process_enters_it_from_the_pickled_method():
    method = pickle.loads(pickle.dumps(Method(**OWN)))
    del TURN_WEIGHTS["half"]
    for name in [name for name in sys.modules if name.startswith("turncredit_own_")]:
        del sys.modules[name]
    method.enter()
    assert "half" in TURN_WEIGHTS


@pytest.mark.parametrize("times", [1, 3])
def test_an_edited_file_takes_its_own_place(home, times):
    enter("own.py")
    for round_ in range(times):
        other = HALF.replace("0.5", f"0.{round_ + 1}").replace("def half", "def other")
        (home / "own.py").write_text(other)
        assert enter("own.py") == [("turn weight", "other")]
        assert "half" not in TURN_WEIGHTS
        batch = make_batch([[1], [1]])
        found = TURN_WEIGHTS["other"](batch, BASES["grpo"](batch))
        assert found[0, 0].item() == pytest.approx(0.1 * (round_ + 1))


# identity


def test_the_source_is_part_of_the_identity(home):
    before = Method(**OWN).contents
    assert before == {"module": source_sha256("own.py")}
    (home / "own.py").write_text(HALF + "# another\n")
    assert Method(**OWN).contents != before


def test_of_a_package_every_file_counts(home):
    write(home / "site" / "wide" / "__init__.py", "")
    write(home / "site" / "wide" / "weights.py", "from wide.numbers import SHARE\n" + HALF)
    write(home / "site" / "wide" / "numbers.py", "SHARE = 0.5\n")
    enter("wide.weights")
    before = source_sha256("wide.weights")
    write(home / "site" / "wide" / "numbers.py", "SHARE = 0.25\n")
    assert source_sha256("wide.weights") != before
    enter("wide.weights")
    assert sys.modules["wide.numbers"].SHARE == 0.25


def test_a_method_without_a_module_is_what_it_was():
    method = Method(**PLAIN)
    assert method.values == PLAIN and method.contents == {}


# refusals


FAULTS = {
    "absent": (None, "there is no file"),
    "syntax": ("def half(:\n", r"SyntaxError.*own\.py, line 1"),
    "raises": ("1 / 0\n", "ZeroDivisionError"),
    "imports": ("import no_such_package\n", "No module named 'no_such_package'"),
    "empty": ("x = 1\n", "enters nothing in the tables"),
    "taken": (HALF.replace("def half", "def aem"), "turn weight 'aem' is defined twice"),
    "replaces": (
        HALF.replace(".add", ".add(replace=True)").replace("def half", "def aem"),
        r"its own turn weight 'aem' in the place of that of turncredit\.credit\.aem",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_module_is_refused_by_name_and_leaves_nothing(home, text, complaint):
    (home / "own.py").unlink()
    if text is not None:
        (home / "own.py").write_text(text)
    before = tables()
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"module 'own\.py'.*{complaint}") as caught:
            build(Method, OWN, "params")
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("params")
    assert tables() == before


@pytest.mark.parametrize("name", ["no_such_package", "no_such.one", "", "a b", "turncredit.credit"])
def test_a_dotted_name_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match=f"module {name!r}"):
        enter(name)


def test_a_fault_in_an_edit_keeps_what_ran_before(home):
    enter("own.py")
    (home / "own.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        enter("own.py")
    assert "half" in TURN_WEIGHTS


def test_two_modules_cannot_share_a_name(home):
    enter("own.py")
    (home / "other.py").write_text(HALF.replace(".add", ".add(replace=True)"))
    with pytest.raises(ValueError, match=r"module 'other\.py' .*'half' in the place of that of"):
        enter("other.py")


def test_a_function_of_a_notebooks_cell_is_refused_with_its_arm():
    """The processes that make the runs would not know it, and its edits would go unseen."""

    @TURN_WEIGHTS.add
    def mine(batch, base):
        return base.new_ones(batch.turn_lengths().shape)

    arms = {"own": Method(**PLAIN | {"weight": "mine"})}
    with pytest.raises(ValueError, match=r"arms\.own: weight = 'mine' was entered by .*no run"):
        Plan(("tiny",), {}, arms, (0,))


# the page


def test_the_page_leads_from_the_file_to_the_arm(home, capsys):
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (entry,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    write(home / "my_weights.py", source)
    assert main(["early_blame", "--module", "my_weights.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["holds"] * len(check("early_blame"))
    assert lines[-1].startswith("measured")
    write(home / "params" / "methods.yaml", yaml.safe_dump({"grpo": PLAIN}) + entry)
    method = build(Method, named_methods(["early_blame"])["early_blame"], "methods")
    batch = make_batch([[1, 2, 1], [1, 1]], rewards=[0.0, 1.0])
    weights = method.credit(batch).weights
    assert weights.tolist() == [[1.0, 0.5, 0.25], [1.0, 1.0, 1.0]]
