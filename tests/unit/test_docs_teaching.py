"""The lesson plan fits into its ninety minutes and sends nobody to a heading that is not there."""

import itertools
import json
import re

from turncredit import paths
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.exercises import EXERCISES

ROOT = paths.PACKAGE.parents[1]
TEXT = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
LESSONS = sorted((ROOT / "notebooks").glob("0*.ipynb"))


def headings(notebook) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"^#+ (.+)$", "\n".join(texts), re.MULTILINE)


def test_the_plan_is_ninety_minutes_without_a_gap():
    spans = [tuple(map(int, pair)) for pair in re.findall(r"^\| (\d+)–(\d+) \|", TEXT, re.M)]
    assert [spans[0][0], spans[-1][1]] == [0, 90]
    assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_every_lesson_is_named_and_has_a_task_for_afterwards():
    assert {lesson.name for lesson in LESSONS} <= set(re.findall(r"notebooks/(\w+\.ipynb)", TEXT))
    assert re.findall(r"^\| (\d\d) \|", TEXT, re.M) == [lesson.name[:2] for lesson in LESSONS]


def test_the_places_that_the_plan_names_are_there():
    """*Heading* behind the link to its notebook, in the same row."""
    named = re.findall(r"notebooks/(\w+)\.ipynb\), (?:to )?\*([^*]+)\*", TEXT)
    assert len(named) >= 3
    for stem, heading in named:
        assert heading in headings(ROOT / "notebooks" / f"{stem}.ipynb"), (stem, heading)


def test_exercises_that_the_plan_counts_exist():
    """By their number in the notebook: of 01 the first three have nothing to check."""
    unchecked = {"01": 3}
    for exercise, lesson in re.findall(r"exercises? (\d)(?: and \d)? of (\d\d)", TEXT):
        number = int(exercise) - unchecked.get(lesson, 0)
        assert f"{lesson}.{number}" in EXERCISES


def test_every_method_of_a_lesson_is_defined_there():
    """Tried by its table and name, or linked to its formula; in 01 as in every lesson after it."""
    for lesson in LESSONS:
        text = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in text)
        named = set(re.findall(r'\("(\w+)", "(\w+)", [{\w]', text))
        for name in {name for pair in named for name in pair} & {*BASES, *TURN_WEIGHTS} - {"none"}:
            tried = f'BASES["{name}"]' in text or f'TURN_WEIGHTS["{name}"]' in text
            assert tried or f"estimators.md#{name})" in text, (lesson.name, name)
