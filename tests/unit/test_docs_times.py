"""How long a target takes is measured once: no page says another number than REPRODUCING.md."""

import re

import pytest

from turncredit import paths

ROOT = paths.PACKAGE.parents[1]
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
