"""docs/retrieval.md says what the code does: its tables, options, commands and links."""

import re
from dataclasses import asdict

import pytest

from turncredit import paths
from turncredit.retrieval.__main__ import main as retrieval
from turncredit.retrieval.client import OUTCOMES
from turncredit.retrieval.server import Limits
from turncredit.worlds.question_files.__main__ import main as question_files

DOCS = paths.PACKAGE.parents[1] / "docs"
TEXT = (DOCS / "retrieval.md").read_text(encoding="utf-8")


def part_of(title: str) -> str:
    """The text below the heading `## title`."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part_of(title), flags=re.MULTILINE))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_the_outcomes_are_those_of_the_client():
    assert table("Search") == OUTCOMES


def test_the_limits_are_those_of_the_server():
    assert table("Limits") == {name: str(value) for name, value in asdict(Limits()).items()}


@pytest.mark.parametrize(
    ("command", "main", "titles"),
    [
        ("build", retrieval, ["Build"]),
        ("serve", retrieval, ["Serve"]),
        ("convert", question_files, ["Question files"]),
    ],
)
def test_every_option_is_one_of_its_command(command, main, titles, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    offered = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    said = {option for title in titles for option in re.findall(r"--[a-z-]+", part_of(title))}
    assert said and said <= offered


def test_every_python_block_compiles_and_imports_what_is_there():
    assert blocks("python")
    for block in blocks("python"):
        compile(block, "docs/retrieval.md", "exec")
        imports = [line for line in block.splitlines() if line.startswith(("from ", "import "))]
        exec("\n".join(imports), {})


def test_links_lead_somewhere():
    anchors = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", TEXT, re.M)}
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", TEXT)
    assert {anchor for path, anchor in links if not path} == anchors
    for path in {path for path, _ in links if path}:
        assert (DOCS / path).is_file(), path
