"""How long a target takes is measured once: no page says another number than REPRODUCING.md."""

import json
import re

import pytest

from turncredit import paths

ROOT = paths.PACKAGE.parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("0*.ipynb"))
PAGES = ["README.md", "docs/quick-start.md"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("target", ["smoke", "reproduce"])
def test_the_minutes_of_a_target_are_those_that_were_measured(page, target):
    table = (ROOT / "REPRODUCING.md").read_text(encoding="utf-8")
    (measured,) = re.findall(rf"\| `make {target}` \|[^|]+\| (\d+) min", table)
    text = (ROOT / page).read_text(encoding="utf-8")
    said = re.findall(rf"`make {target}`[^`.]*?(?:about (\w+)|(\d+)\s+min)", text)
    assert said
    assert {"".join(number) for number in said} == {measured}


def learns(lesson) -> bool:
    """Whether it uses a policy that has to learn, once, before it can play."""
    return any(
        name in lesson.read_text("utf-8") for name in ("warm_started_policy", "run_experiment")
    )


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_says_how_long_it_takes_and_what_its_first_run_adds(lesson):
    (first, *_) = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    found = re.search(r"\| Minutes \| smoke: (\d+), cpu: (\d+)(.*) \|", "".join(first["source"]))
    assert max(int(found[1]), int(found[2])) <= 2
    added = re.findall(r"the first run adds (\d+): .*`\.cache/warm_starts`", found[3])
    assert added == (["2"] if learns(lesson) else [])


def test_the_lesson_plan_names_the_lessons_whose_first_run_takes_longer():
    text = " ".join((ROOT / "docs" / "teaching.md").read_text(encoding="utf-8").split())
    one, other, last = (lesson.name[:2] for lesson in LESSONS if learns(lesson))
    assert f"The first run of one of {one}, {other} and {last} adds 2 minutes" in text
