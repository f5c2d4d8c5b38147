"""docs/probe.md says what the code does: examples are run, numbers are the committed ones."""

import csv
import inspect
import re

import pytest

from turncredit import paths
from turncredit.probe import PROXIES, Responder
from turncredit.probe.decomposition import STEPS

ROOT = paths.PACKAGE.parents[1]
TEXT = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")
PROXY_TABLE = ROOT / "results" / "cpu" / "14_surprisal_probe" / "proxies.csv"


@pytest.fixture(scope="module")
def page() -> dict:
    """What the examples define."""
    names: dict = {}
    for block in re.findall(r"^```python\n(.+?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/probe.md", "exec"), names)
    return names


def test_the_examples_measure_and_choose(page):
    assert page["measures"].surprisals.shape == (6, 8)
    assert page["measures"].relative.mean(1).abs().max() < 1e-9
    assert {row["step"] for row in page["rows"]} == {0, 20}
    (choice,) = page["choice"]
    assert choice["proxy"] in PROXIES


def test_the_served_model_is_a_responder_whose_end_is_the_environment_s(page):
    served = page["served"]
    asked, answered = (inspect.signature(kind.respond) for kind in (Responder, type(served)))
    assert list(asked.parameters) == list(answered.parameters)
    closing = page["task"].vocabulary.id(served.stop[0])
    assert served.ended([closing])


def test_the_steps_are_those_of_the_code():
    part = TEXT.split("## The exact case")[1].split("## Stand-ins")[0]
    assert re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE) == list(STEPS)
    assert set(STEPS) <= set(re.findall(r"`(\w+)`", part))


def test_every_proxy_is_named():
    part = TEXT.split("## Stand-ins")[1]
    assert set(PROXIES) <= set(re.findall(r"`(\w+)`", part))


def test_the_numbers_are_those_of_the_reference_run():
    with PROXY_TABLE.open(encoding="utf-8", newline="") as file:
        halves = [row for row in csv.DictReader(file) if row["silent"] == "half"]
    known = {(row["world"], row["proxy"]): row for row in halves}
    shown = re.findall(r"^\| ([\w ]+) \| (\w+) \| (\S+) % \[(\S+), (\S+)\] \|$", TEXT, re.MULTILINE)
    assert len(shown) == 7
    for world, proxy, *numbers in shown:
        row = known[world, proxy]
        assert numbers == [f"{float(row[name]):.1%}"[:-1] for name in ("value", "low", "high")]
