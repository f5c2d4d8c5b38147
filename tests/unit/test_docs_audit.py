"""docs/audit.md says what the code does: its examples are run, its columns are the code's."""

import re

import pytest

from turncredit import paths
from turncredit.audit import AuditSettings, continuations_for
from turncredit.plans import named_methods

TEXT = (paths.PACKAGE.parents[1] / "docs" / "audit.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> dict:
    """What the examples define."""
    names: dict = {}
    for block in re.findall(r"^```python\n(.+?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/audit.md", "exec"), names)
    return names


def test_the_examples_audit_every_turn(page):
    lengths = page["batch"].turn_lengths()
    assert page["audit"].advantages.shape == lengths.shape
    assert (page["audit"].advantages.isfinite() == (lengths > 0)).all()
    assert page["audit"].cost["continuations"] > 0
    assert [row["action"] for row in page["ledger"]] == page["actions"]


def test_the_columns_are_those_of_the_table(page):
    columns = re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE)
    assert columns == [name for name in page["table"][0] if name not in ("method", "by", "bin")]
    assert {row["method"] for row in page["table"]} == set(page["credit"])


def test_numbers_of_the_budget_are_the_code_s():
    assert f"`continuations_for(0.05)` is {continuations_for(0.05)}" in TEXT
    assert f"default of {AuditSettings().continuations}" in TEXT


def test_the_continuations_are_those_of_the_arms():
    methods = named_methods(["true_advantage", "vineppo"]).values()
    own, peer = (method["base_options"]["continuations"] for method in methods)
    assert f"the arm `true_advantage` takes {own}." in TEXT
    assert f"notebook 20 take {own} and {peer} of them" in TEXT
