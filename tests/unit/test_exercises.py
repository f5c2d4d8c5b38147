"""Every exercise is asked in its notebook, solved by its solution, and refuses a wrong answer."""

import ast
import json
import re
from pathlib import Path

import pytest

from turncredit.exercises import EXERCISES, check

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TAUGHT = sorted(NOTEBOOKS.glob("0*.ipynb"))
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.ipynb"))
ASKED = re.compile(r'exercises\.check\("(\d\d\.\d)", \w+\)')


def sources(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_teaching_notebook_asks_its_exercises_and_has_solutions():
    asked = {
        number: notebook.stem
        for notebook in TAUGHT
        for source in sources(notebook)
        for number in ASKED.findall(source)
    }
    assert asked.keys() == EXERCISES.keys()
    assert all(stem.startswith(number[:2]) for number, stem in asked.items())
    assert [path.name for path in SOLUTIONS] == [path.name for path in TAUGHT]


@pytest.mark.parametrize("notebook", SOLUTIONS, ids=lambda path: path.stem)
def test_solutions_are_right(notebook):
    names: dict = {}
    found = []
    for source in sources(notebook):
        *body, last = ast.parse(source).body
        exec(compile(ast.Module(body, []), notebook.name, "exec"), names)
        if "exercises.check(" in ast.unparse(last):
            found.append(eval(ast.unparse(last), names))
        else:
            exec(ast.unparse(last), names)
    asked = [number for number in EXERCISES if number.startswith(notebook.stem[:2])]
    assert [(feedback.exercise, feedback.state) for feedback in found] == [
        (number, "right") for number in asked
    ]


@pytest.mark.parametrize("notebook", [*TAUGHT, *SOLUTIONS], ids=lambda path: str(path.name))
def test_no_answer_is_stored_in_a_notebook(notebook):
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and not cell.get("execution_count")


@pytest.mark.parametrize("notebook", [*TAUGHT, *SOLUTIONS], ids=lambda path: str(path.name))
def test_every_check_is_given_an_answer(notebook):
    """Without one it is always open, so that nothing is checked."""
    calls = [
        node
        for source in sources(notebook)
        for node in ast.walk(ast.parse(re.sub(r"^%.*", "", source, flags=re.M)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "exercises.check"
    ]
    assert calls and all(len(call.args) == 2 for call in calls)


WRONG = [0.123, "the laws", None, [], [1.0, 2.0, 3.0], lambda *given: 0.123, lambda: None, object()]


@pytest.mark.parametrize("number", EXERCISES)
def test_a_wrong_answer_is_not_right_and_is_no_error(number):
    for answer in WRONG:
        feedback = check(number, answer)
        assert feedback.state == "not yet" and feedback.hint, answer
        assert not re.search(r"\d\.\d{3}", feedback.hint.replace("0.123", "")), "a hint tells it"


def test_a_question_that_nobody_has_answered_is_open():
    assert {check(number).state for number in EXERCISES} == {"open"}
    with pytest.raises(ValueError, match=r"no exercise '9\.9'; there are: 00\.1"):
        check("9.9", 1.0)
