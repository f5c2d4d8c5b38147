"""The package, its environments and its locks agree with each other and with what verl accepts."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from further_packages import PACKAGES
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import turncredit
from turncredit import paths

REPOSITORY = paths.PACKAGE.parents[1]
REQUIREMENTS = REPOSITORY / "requirements"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")

# Asked for by name.
BRIEF = "jupyterlab papermill torch verl vllm matplotlib seaborn pandas faiss-gpu scipy".split()

# What verl 0.9.1's metadata declares.
VERL = {
    "transformers": ">=5.5.3,!=5.6.0,<5.11",
    "tensordict": ">=0.8.0,!=0.9.0,<=0.10.0",
    "numpy": ">=2.0.0",
    "pyarrow": ">=19.0.0",
    "ray": ">=2.41.0",
    "packaging": ">=20.0",
}
VERL_PYTHON = ">=3.10,<3.13"
# The vllm extra of verl pins these, and numba caps numpy below.
GPU_PINS = {"verl": "0.9.1", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0"}
# Imported by verl's trainer and missing from its base requirements.
VERL_UNDECLARED = ["cachetools", "uvicorn", "fastapi", "transferqueue"]


def requirement_lines(lines) -> dict[str, Requirement]:
    """Requirements by canonical name; comments and pip options are skipped."""
    texts = (line.split(" #")[0].strip() for line in lines)
    found = [Requirement(text) for text in texts if text and text[0] not in "#-"]
    names = [canonicalize_name(requirement.name) for requirement in found]
    assert len(names) == len(set(names)), "a name appears twice"
    return dict(zip(names, found, strict=True))


def read(name: str) -> dict[str, Requirement]:
    return requirement_lines((REQUIREMENTS / name).read_text(encoding="utf-8").splitlines())


def environment(name: str) -> tuple[list[str], list[str]]:
    """(conda entries, pip entries) of an environment file."""
    document = yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8"))
    conda = [entry for entry in document["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in document["dependencies"] if isinstance(entry, dict)]
    return conda, pip


def exact(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    assert "*" not in specifier.version
    return Version(specifier.version)


LOCK = read("cpu-lock.txt")
CONSTRAINTS = {v: read(f"constraints-gpu-py{v}.txt") for v in ("3.11", "3.12")}
ENVIRONMENTS = {"environment.yml": "3.12", "environment-cpu.yml": "3.11"}


# ---- the package ---------------------------------------------------------------------------------


def test_the_version_is_declared_once():
    assert "version" in PROJECT["dynamic"]
    assert str(Version(turncredit.__version__)) == turncredit.__version__
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {turncredit.__version__}" in changelog


def test_setuptools_reads_the_version_of_the_package(tmp_path):
    pytest.importorskip("setuptools")
    script = (
        "from setuptools.config.pyprojecttoml import read_configuration as read;"
        f"print(read({str(REPOSITORY / 'pyproject.toml')!r})['project']['version'])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.split()[-1] == turncredit.__version__


@pytest.mark.parametrize("path", ["lib/turncredit/__init__.py", "lib/turncredit/worlds/base.py"])
def test_the_library_is_not_ignored_by_git(path):
    if not (REPOSITORY / ".git").exists():
        pytest.skip("no git checkout")
    outcome = subprocess.run(
        ["git", "check-ignore", "--no-index", path], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert outcome.returncode == 1, f"ignored: {outcome.stdout}{outcome.stderr}"


def test_every_folder_of_the_library_with_modules_is_a_package():
    """setuptools and pytest's importlib mode then agree on module names."""
    folders = {path.parent for path in paths.PACKAGE.rglob("*.py")}
    assert sorted(str(f) for f in folders if not (f / "__init__.py").exists()) == []


@pytest.mark.parametrize("module", ["credit", "signals", "objectives"])
def test_the_credit_core_imports_with_torch_alone(module):
    """verl, TRL or anybody's loop can import it: no other third-party package is loaded."""
    others = (
        "numpy pandas scipy matplotlib seaborn yaml safetensors tqdm transformers faiss".split()
    )
    script = (
        "import sys, torch\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {others!r} and 'turncredit' in sys.modules:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"import turncredit.{module}\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(paths.PACKAGE.parent), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr


def test_core_dependencies_are_what_the_library_imports():
    """Every third-party import at the top of a module is declared, in the core or an extra."""
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    for extra in EXTRAS.values():
        declared |= {canonicalize_name(Requirement(text).name) for text in extra}
    distribution = {"yaml": "pyyaml", "faiss": "faiss-cpu"}
    brought = {"nbformat", "nbclient", "jupyter-client", "psutil", "ipython"}  # by papermill
    known = declared | brought | set(read("cpu-nodeps.txt")) | {"turncredit"}
    for path in paths.PACKAGE.rglob("*.py"):
        for name in top_level_imports(path):
            wanted = canonicalize_name(distribution.get(name, name))
            assert name in sys.stdlib_module_names or wanted in known, f"{path}: {name}"


def top_level_imports(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


# ---- the CPU lock --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cpu-lock.txt", "cpu-nodeps.txt", "lm-lock.txt", "verl-lock.txt", "docs.txt"]
)
def test_pins_are_exact_and_name_no_place(name):
    text = (REQUIREMENTS / name).read_text(encoding="utf-8")
    for requirement in read(name).values():
        exact(requirement)
    assert not re.search(r"://| @ |^-", text, re.MULTILINE)
    assert "+" not in re.sub(r"#.*", "", text), "a local version exists in one place only"


def test_the_lock_satisfies_what_it_was_made_from():
    for name, requirement in read("cpu.in").items():
        assert exact(LOCK[name]) in requirement.specifier, name


@pytest.mark.parametrize("extra", ["core", "experiments", "notebooks", "data", "dev"])
def test_the_lock_satisfies_the_package(extra):
    texts = PROJECT["dependencies"] if extra == "core" else EXTRAS[extra]
    for name, requirement in requirement_lines(texts).items():
        if name == "turncredit":  # another extra, tested by itself
            continue
        assert exact(LOCK[name]) in requirement.specifier, name


def test_the_lock_is_what_is_installed():
    """Tests that pass here passed with the locked versions (a local suffix may differ)."""
    from importlib.metadata import version

    if sys.version_info[:2] != (3, 11):
        pytest.skip("the lock is made for Python 3.11")
    for name, requirement in {**LOCK, **read("cpu-nodeps.txt")}.items():
        assert Version(Version(version(name)).public) == exact(requirement), name


# ---- packages upon the lock ----------------------------------------------------------------------


def test_packages_upon_the_lock_are_pinned_beside_it_and_repeat_nothing_of_it():
    further = read("lm-lock.txt")
    assert {canonicalize_name(name) for name in PACKAGES} <= further.keys()
    assert further.keys() & LOCK.keys() == set(), "the layer would hide what the lock pins"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_test_skips_itself_for_a_package_that_make_test_lm_would_have(name):
    """`needs` marks them all, and so `make test-lm` runs them all."""
    by_itself = rf"""(skipif|find_spec|importorskip)\([^\n]*["']{name}["']"""
    found = {
        path.name
        for path in (REPOSITORY / "tests" / "unit").glob("*.py")
        if re.search(by_itself, path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_make_test_lm_runs_the_files_whose_tests_need_it():
    (recipe,) = re.findall(r"^test-lm:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert all(re.search(rf"\b{name}\b", recipe) for name in PACKAGES)
    assert "-m lm $$(grep -l '^@needs(' tests/unit/*.py)" in recipe
    used = {
        path.name
        for path in (REPOSITORY / "tests" / "unit").glob("*.py")
        if re.search(r"^@needs\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert used == {"test_estimates.py", "test_loggers.py", "test_policies_huggingface.py"}


# ---- verl's rules and the environments -----------------------------------------------------------


@pytest.mark.parametrize("pins", [LOCK, *CONSTRAINTS.values()], ids=["cpu", "gpu-3.11", "gpu-3.12"])
def test_pins_are_inside_verls_ranges(pins):
    for name, range_ in VERL.items():
        if name in pins:
            assert exact(pins[name]) in SpecifierSet(range_), name


@pytest.mark.parametrize("python", CONSTRAINTS)
def test_gpu_constraints_hold_the_pins_of_verls_vllm_extra(python):
    pins = CONSTRAINTS[python]
    for name, version in GPU_PINS.items():
        assert exact(pins[name]) == Version(version)
    assert exact(pins["transferqueue"]) >= Version("0.1.10")
    assert set(VERL_UNDECLARED) <= set(pins)
    assert "faiss-gpu" in pins
    assert "faiss-cpu" not in pins
    assert "flash-attn" not in pins
    assert exact(pins["numba"]) != Version("0.65.0") or exact(pins["numpy"]) < Version("2.4")


def test_the_gpu_environment_names_the_ten_packages_of_the_brief():
    _, pip = environment("environment.yml")
    assert set(BRIEF) <= set(requirement_lines(pip))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_pin_exactly_and_agree_with_their_constraints(name):
    conda, pip = environment(name)
    (python,) = [entry for entry in conda if entry.startswith("python=")]
    assert python == f"python={ENVIRONMENTS[name]}"
    (constraints,) = [entry.split()[1] for entry in pip if entry.startswith("-c ")]
    pins = read(Path(constraints).name)
    assert (REPOSITORY / constraints).exists()
    for package, requirement in requirement_lines(pip).items():
        assert exact(requirement) == exact(pins[package]), package


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_install_existing_extras_and_one_faiss(name):
    _, pip = environment(name)
    (editable,) = [entry for entry in pip if entry.startswith("-e ")]
    extras = re.fullmatch(r"-e \.\[(.*)\]", editable)[1].split(",")
    assert set(extras) <= set(EXTRAS)
    assert len({"faiss-cpu", "faiss-gpu"} & set(requirement_lines(pip))) == 1
    assert not {"gpu", "retrieval"} <= set(extras)


def test_extras_hold_what_verl_needs_and_omits():
    assert set(VERL_UNDECLARED) <= set(requirement_lines(EXTRAS["verl"]))
    gpu = requirement_lines(EXTRAS["gpu"])
    for name, version in GPU_PINS.items():
        if name != "verl":
            assert exact(gpu[name]) == Version(version)
    assert gpu["turncredit"].extras == {"verl"}


def test_the_package_alone_brings_torch_and_numpy():
    assert set(requirement_lines(PROJECT["dependencies"])) == {"torch", "numpy"}


@pytest.mark.slow
def test_pip_installs_the_package_beside_what_is_there_and_nothing_else(tmp_path):
    """An environment with a torch of its own keeps it; no index is asked, nothing is installed."""
    pytest.importorskip("pip", reason="environments of uv hold none")
    if Version(importlib.metadata.version("setuptools")) < Version("77"):
        pytest.skip("the build needs setuptools 77, and here nothing can be fetched")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(paths.PACKAGE, tmp_path / "lib" / "turncredit")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet"]
    command += ["--no-build-isolation", "--report", str(report), str(tmp_path)]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    assert [entry["metadata"]["name"] for entry in chosen] == ["turncredit"]


@pytest.mark.parametrize("extra", ["notebooks", "verl", "gpu"])
def test_who_runs_experiments_gets_what_they_need(extra):
    """The extra of that name, directly or by way of another one."""
    found, waiting = set(), [extra]
    while waiting:
        found |= {name := waiting.pop()}
        own = requirement_lines(EXTRAS[name]).get("turncredit")
        waiting += own.extras if own else ()
    assert "experiments" in found


def test_commands_of_the_package_can_be_called():
    for place in PROJECT["scripts"].values():
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_what_the_library_reads_is_packaged():
    """Every kind of file beside the modules has a pattern in package-data."""
    tool = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    patterns = set(tool["setuptools"]["package-data"]["*"])
    kinds = {f"*{path.suffix}" for path in paths.PACKAGE.rglob("*.*") if path.is_file()}
    assert kinds - {"*.py", "*.pyc"} <= patterns


def test_python_versions_are_those_verl_supports():
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(VERL_PYTHON)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("python", CONSTRAINTS)
def test_a_resolver_accepts_the_gpu_environment(python, tmp_path):
    """Metadata only, nothing is installed.  Needs uv and a package index."""
    _, pip = environment("environment.yml")
    wanted = tmp_path / "wanted.in"
    names = list(requirement_lines(pip))
    wanted.write_text("\n".join(names) + "\n")
    constraints = REQUIREMENTS / f"constraints-gpu-py{python}.txt"
    command = ["uv", "pip", "compile", str(wanted), "-c", str(constraints)]
    target = ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    outcome = subprocess.run([*command, *target], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("package", ["vllm", "trl", "peft", "wandb", "tensorboard", "flash_attn"])
def test_no_folder_of_tests_passes_for_a_package_that_is_not_installed(package):
    """tests/ is on the path, and a folder there would be found as a package without a version."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    assert not [
        place for place in places if Path(place).is_relative_to(paths.repository() / "tests")
    ]
