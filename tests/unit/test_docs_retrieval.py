"""docs/retrieval.md says what the code does: its tables, options, commands and links."""

import re
import shlex
from dataclasses import asdict

import pytest

from turncredit import paths
from turncredit.retrieval.__main__ import main as retrieval
from turncredit.retrieval.ann import check_parameters, new_index
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


def test_a_packages_name_that_the_lock_has_not_comes_with_its_command():
    """`pip install` of what is in the lock would be a lie, and so would silence on the rest."""
    requirements = DOCS.parent / "requirements"
    names = [path.read_text(encoding="utf-8") for path in requirements.glob("cpu-*.txt")]
    locked = {line.split("==")[0].lower() for text in names for line in text.splitlines()}
    benchmark = (DOCS.parent / "benchmarks" / "retrieval_recall.py").read_text(encoding="utf-8")
    wanted = re.findall(r"`(\w+)`", benchmark.split("With the pip packages")[1].split("\n\n")[0])
    wanted = {name for name in wanted if name.lower() not in locked}
    assert wanted == set(re.findall(r"pip install (?:--no-deps )?(\w+)", part_of("Figures")))


def test_the_page_reads_what_it_wrote_and_validates_last():
    """Every file that a command or a block reads was written by one before it, or is raw."""
    commands = [part for text in blocks("bash") for part in text.replace("\\\n", " ").splitlines()]
    files = [shlex.split(part) for part in commands if "question_files" in part]
    written = {line[line.index("convert") + 2] for line in files if "convert" in line}
    assert files[-1][3] == "validate" and set(files[-1][4:]) == written
    assert set(re.findall(r"[\w/]+\.parquet", TEXT)) == written
    built = {line.split("--out ")[1] for line in commands if " build " in line}
    served = {shlex.split(line)[4] for line in commands if " serve " in line}
    assert built == served == set(re.findall(r"^ +folder: (\S+)", TEXT, re.M))


def test_the_search_parameters_are_those_of_the_index_that_is_built():
    [factory] = set(re.findall(r"--index (\S+)", part_of("Build")))
    said = re.findall(r"`(\w+=\d+)`\s+of (?:an )?(\w+)", part_of("Serve"))
    kinds = {"HNSW": factory, "one": "IVF8,Flat"}
    assert {kind for _, kind in said} == set(kinds)
    for parameter, kind in said:
        check_parameters(new_index(32, kinds[kind]), parameter, kinds[kind])


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
