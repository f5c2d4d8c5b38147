"""Notebooks as people open them without make: in an editor, or with an environment of their own.

No papermill and no runner: nbclient alone, from the folder that the editor takes, with the values
that stand in the notebook.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.version import Version

from turncredit import paths

pytestmark = pytest.mark.slow
pytest.importorskip("nbclient", reason="comes with the notebooks extra")
REPOSITORY = paths.PACKAGE.parents[1]
NOTEBOOKS = ["00_first_trajectory", "01_credit_by_hand", "05_build_your_own_estimator"]

EXECUTE = """
import sys, nbformat, nbclient
path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
inside = {"metadata": {"path": folder}}
nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3", resources=inside).execute()
nbformat.write(notebook, path + ".executed")
"""
"""What an editor does: a kernel in `folder`, and all cells of `path` in order."""


def clone(folder: Path) -> Path:
    """What of a checkout a notebook needs, and what pip installs."""
    folder.mkdir(exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    for name in ("params", "notebooks", "lib"):
        left = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=left)
    return folder


def variables(**more: str) -> dict[str, str]:
    """Of a shell in which nothing was set up: only how the machine shares its cores is kept."""
    unset = ("PYTHON", "TURNCREDIT", "JUPYTER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    return {**kept, "OMP_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1", **more}


def quick(notebook: Path) -> None:
    """Take the policy that learns in seconds: what else a reader may leave as it stands."""
    text = notebook.read_text(encoding="utf-8")
    assert text.count('tier = \\"cpu\\"') == 1
    notebook.write_text(text.replace('tier = \\"cpu\\"', 'tier = \\"smoke\\"'), encoding="utf-8")


def executed(python: Path | str, notebook: Path, folder: Path, **more: str) -> str:
    """Run a notebook with a kernel in `folder`; returns its outputs as JSON."""
    outcome = subprocess.run(
        [python, "-c", EXECUTE, str(notebook), str(folder)],
        env=variables(**more), cwd=folder, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    cells = json.loads(Path(f"{notebook}.executed").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    return json.dumps([cell["outputs"] for cell in code])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return clone(tmp_path_factory.mktemp("clone"))


@pytest.mark.parametrize("place", ["notebooks", "."], ids=["its-folder", "the-root"])
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_editor_runs_a_notebook_from_its_folder_or_from_the_root(name, place, checkout):
    """As VS Code does, whose setting `jupyter.notebookFileRoot` says which of the two."""
    notebook = checkout / "notebooks" / f"{name}.ipynb"
    if name != "01_credit_by_hand" and '\\"cpu\\"' in notebook.read_text(encoding="utf-8"):
        quick(notebook)
    outputs = executed(sys.executable, notebook, checkout / place, PYTHONPATH=str(checkout / "lib"))
    assert "open (put your answer in the place of ...)" in outputs
    stray = {path.name for path in checkout.iterdir()} - {
        path.name for path in REPOSITORY.iterdir()
    }
    assert stray <= {"results", ".cache"}
    assert not list((checkout / "notebooks").glob("results"))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """An environment as of a hosted notebook: torch and Jupyter are there, no lock, no package."""
    pytest.importorskip("pip", reason="environments of uv hold none")
    if Version(importlib.metadata.version("setuptools")) < Version("77"):
        pytest.skip("the build needs setuptools 77, and here nothing can be fetched")
    folder = tmp_path_factory.mktemp("hosted")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    there = Path(told.stdout.strip())
    (there / "preinstalled.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    kernel = {"argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    spec = folder / "env" / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({**kernel, "display_name": "Python 3", "language": "python"}))
    return python


@pytest.fixture(scope="module")
def installed(hosted, tmp_path_factory):
    """`git clone` and `pip install './turncredit[notebooks]'`, as a cell of a notebook has it."""
    cloned = clone(tmp_path_factory.mktemp("content") / "turncredit")
    command = [hosted, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--quiet"]
    outcome = subprocess.run(
        [*command, f"{cloned}[notebooks]"],
        env=variables(), cwd=cloned.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return cloned


TOLD = """
import torch, turncredit
print(turncredit.__file__)
print(torch.__file__)
"""


def test_pip_brings_the_package_and_leaves_the_torch_that_is_there(hosted, installed):
    told = subprocess.run(
        [hosted, "-c", TOLD], env=variables(), cwd="/", capture_output=True, text=True, check=True
    )
    package, torch = map(Path, told.stdout.split())
    own = hosted.parents[1]
    assert package.is_relative_to(own)
    assert not torch.is_relative_to(own)
    brought = {path.name.partition("-")[0] for path in package.parents[1].glob("*.dist-info")}
    assert brought == {"turncredit"}


def test_the_first_notebook_of_the_clone_runs_with_the_installed_package(hosted, installed):
    first = installed / "notebooks" / "00_first_trajectory.ipynb"
    quick(first)
    shutil.rmtree(installed / "lib")  # nothing of it is imported
    outputs = executed(hosted, first, installed / "notebooks")
    assert 'class=\\"tc' in outputs.replace("\\\\", "\\"), "a view of a trajectory"
    assert (installed / "results" / "smoke" / "00_first_trajectory" / "turns.csv").is_file()
