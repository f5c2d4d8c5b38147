"""The hash of the code: what a run can reach counts; the rest, and what is no code, does not."""

import shutil
import subprocess
import sys

import pytest

from turncredit import paths
from turncredit.code_version import code_hash, reached_modules


@pytest.fixture
def package(tmp_path, monkeypatch):
    copy = tmp_path / "turncredit"
    shutil.copytree(paths.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paths, "PACKAGE", copy)
    return copy


def edit(path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_comments_docstrings_layout_and_presentation_do_not_change_the_hash(package):
    before = code_hash()
    edit(package / "seeding.py", '"""A 63-bit', '"""Another docstring: a 63-bit')
    edit(package / "seeding.py", "import hashlib", "# a comment\n\n\nimport hashlib")
    edit(
        package / "records.py", '"""() after the last turn."""', '"""Empty after the last turn."""'
    )
    edit(package / "evaluation.py", ": fmean(known)", ": (\n        fmean)(known)")
    edit(package / "plots" / "style.py", "WIDTH = 9.0", "WIDTH = 8.0")
    assert code_hash() == before


def test_further_modules_count_where_a_result_depends_on_them(package):
    run, probe = code_hash(), code_hash("turncredit.probe")
    assert run != probe
    edit(package / "probe" / "states.py", "import", "import math\nimport")
    assert code_hash() == run
    assert code_hash("turncredit.probe") != probe


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("seeding.py", ">> 1", ">> 2"),
        ("training/settings.py", "group_size < 2", "group_size < 1"),
        ("environments/judges/rule.py", '"UNCERTAIN"', '"WRONG"'),
        ("policies/tiny.py", "10000.0", "20000.0"),
        ("records.py", "mtime=0", "mtime=1"),
    ],
)
def test_any_change_of_code_changes_the_hash(package, module, old, new):
    before = code_hash()
    edit(package / module, old, new)
    assert code_hash() != before


@pytest.mark.parametrize(
    "line",
    ["import turncredit.extra", "from turncredit import extra", "from turncredit.extra import x"],
)
@pytest.mark.parametrize("indent", ["", "def late():\n    "])
def test_a_module_counts_from_the_moment_that_something_reached_imports_it(package, line, indent):
    before = code_hash()
    (package / "extra.py").write_text("x = 1\n", encoding="utf-8")
    assert code_hash() == before
    with (package / "seeding.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{indent}{line}\n")
    imported = code_hash()
    edit(package / "extra.py", "1", "2")
    assert len({before, imported, code_hash()}) == 3


def test_a_package_counts_where_one_of_its_modules_does(package):
    before = code_hash()
    edit(package / "worlds" / "__init__.py", '"""', 'x = 1\n"""')
    assert code_hash() != before


def test_what_runs_is_what_is_hashed():
    """Every library module that is loaded once an experiment was imported has been counted."""
    program = (
        "import sys, turncredit.experiment;"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'turncredit'))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    counted = reached_modules("turncredit.experiment")
    assert set(loaded.stdout.split()) <= counted.keys()
    assert "turncredit.training" in counted
    assert "turncredit.plots" not in counted


@pytest.mark.parametrize("line", ["from . import extra", "from .extra import x"])
def test_a_relative_import_is_refused_since_it_would_be_overlooked(package, line):
    (package / "extra.py").write_text("x = 1\n", encoding="utf-8")
    edit(package / "seeding.py", "import hashlib", f"import hashlib\n{line}")
    with pytest.raises(ValueError, match="relative"):
        code_hash()
