"""Make targets are files: failures leave none behind, and only what is missing or stale reruns.

Most tests replace the notebook runner by a stub that writes down its calls, so they are about the
Makefile alone; the last ones run real notebooks.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest

from turncredit import paths

REPOSITORY = paths.PACKAGE.parents[1]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
CORE, MORE, FIGURES, REPORT = (
    re.search(rf"^{name} := (.*)$", MAKEFILE.replace("\\\n", ""), re.MULTILINE)[1].split()
    for name in ("CORE", "MORE", "FIGURES", "REPORT")
)
EXPERIMENTS = [name for name in CORE if name.startswith("1")]
TEACHING = next(name for name in CORE if name.startswith("0"))
BESIDE_THE_BASELINE = [n for n in EXPERIMENTS if n[:2] in ("10", "11", "12", "14", "15")]
"""The baseline's notebook and those that read its runs."""
LAST = [*FIGURES, *REPORT]

STUB_RUNNER = """
import argparse, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("notebook", type=pathlib.Path)
for option in ("--params", "--results", "--deadline"):
    parser.add_argument(option, type=pathlib.Path)
options = parser.parse_args()
text = options.notebook.read_text()
target = options.results / "notebooks" / options.notebook.name
with open("calls.log", "a") as log:
    log.write(f"{options.notebook.stem} {options.params} jobs={os.environ['TURNCREDIT_JOBS']}\\n")
if "FAIL" in text:
    target.write_text("half")
    sys.exit("the stub fails")
if "KILLED" in text:
    target.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
target.write_text("done")
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile, stub notebooks and their parameter files."""
    for name in ("Makefile", "requirements"):
        source = REPOSITORY / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    for name in [*CORE, *MORE, *LAST]:
        write(tmp_path / "notebooks" / f"{name}.ipynb", "fine")
        for tier in ("cpu", "smoke"):
            write(tmp_path / "params" / tier / f"{name}.yaml", "x: 1\n")
    write(tmp_path / "params" / "cpu" / "tasks" / "synthetic.yaml", "x: 1\n")
    write(tmp_path / "params" / "methods.yaml", "x: 1\n")
    write(tmp_path / "lib" / "turncredit" / "__init__.py", "")
    write(tmp_path / "lib" / "turncredit" / "notebook_runner.py", STUB_RUNNER)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def make(folder: Path, *arguments: str, own_environment: bool = False):
    """Run make without what an outer `make test` exports."""
    outer = ("MAKE", "MFLAGS", "TIER", "PYTHONPATH", "TURNCREDIT", "VENV", "DEADLINE", "JOBS")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    venv = [] if own_environment else [f"VENV={sys.prefix}"]
    return subprocess.run(
        ["make", *venv, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def calls(folder: Path) -> list[str]:
    """Names of the notebooks run since the last look."""
    return [line.split()[0] for line in call_lines(folder)]


def call_lines(folder: Path) -> list[str]:
    log = folder / "calls.log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def done(folder: Path, tier: str = "cpu") -> set[str]:
    return {path.stem for path in (folder / "results" / tier / "notebooks").iterdir()}


# ---- the graph -----------------------------------------------------------------------------------


def test_reproduce_runs_each_notebook_once_and_the_figures_last(checkout):
    outcome = make(checkout, "reproduce")
    assert outcome.returncode == 0, outcome.stderr
    assert calls(checkout) == [*CORE, *LAST]
    assert done(checkout) == {*CORE, *LAST}
    assert make(checkout, "reproduce").returncode == 0
    assert calls(checkout) == []


@pytest.mark.parametrize("tier", ["smoke", "cpu"])
def test_a_second_reproduce_starts_no_notebook_and_no_python(checkout, tier):
    """So that it is over as soon as make has looked at the files."""
    python = checkout / "venv" / "bin" / "python"
    write(python, f'#!/bin/sh\necho "$@" >> started.log\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    asked = ["reproduce", f"TIER={tier}", "VENV=venv"]
    assert make(checkout, *asked, own_environment=True).returncode == 0
    started = checkout / "started.log"
    assert started.read_text().count("turncredit.notebook_runner") == len([*CORE, *LAST])
    started.unlink()
    again = make(checkout, *asked, own_environment=True)
    assert again.returncode == 0 and f"tier {tier} is complete" in again.stdout
    assert not started.exists(), started.read_text()


def test_reproduce_all_adds_the_rest_and_draws_the_figures_after_it(checkout):
    outcome = make(checkout, "reproduce-all")
    assert outcome.returncode == 0, outcome.stderr
    ran = calls(checkout)
    assert sorted(ran) == sorted([*CORE, *MORE, *LAST])
    assert ran[-2:] == LAST
    for earlier, later in (("10_", "11_"), ("10_", "12_"), ("12_", "15_"), ("10_", "14_")):
        places = [next(i for i, n in enumerate(ran) if n.startswith(p)) for p in (earlier, later)]
        assert places[0] < places[1]
    assert make(checkout, "reproduce-all").returncode == 0
    assert calls(checkout) == []
    time.sleep(0.02)
    (checkout / "params" / "cpu" / f"{MORE[0]}.yaml").touch()
    assert make(checkout, "reproduce-all").returncode == 0
    assert calls(checkout) == [MORE[0], *LAST]


@pytest.mark.parametrize("how", ["FAIL", "KILLED"])
def test_a_failure_is_non_zero_leaves_no_target_and_only_the_missing_reruns(checkout, how):
    write(checkout / "notebooks" / f"{CORE[1]}.ipynb", how)
    outcome = make(checkout, "reproduce")
    assert outcome.returncode != 0
    assert CORE[1] not in done(checkout)
    assert not {*LAST} & done(checkout)
    ran = calls(checkout)
    write(checkout / "notebooks" / f"{CORE[1]}.ipynb", "fine")
    assert make(checkout, "reproduce").returncode == 0
    finished_before = [name for name in ran if name != CORE[1]]
    assert calls(checkout) == [
        *(name for name in CORE if name not in finished_before),
        *LAST,
    ]


@pytest.mark.parametrize(
    ("changed", "reruns"),
    [
        (f"params/cpu/{TEACHING}.yaml", [TEACHING, *LAST]),
        (f"notebooks/{CORE[0]}.ipynb", [*BESIDE_THE_BASELINE, *LAST]),
        ("params/cpu/12_aem.yaml", ["12_aem", "15_what_is_missing", *LAST]),
        (f"params/cpu/{FIGURES[0]}.yaml", [*EXPERIMENTS, *LAST]),
        (f"params/cpu/{REPORT[0]}.yaml", REPORT),
        ("params/cpu/tasks/synthetic.yaml", [*CORE, *LAST]),
        ("params/methods.yaml", [*CORE, *LAST]),
        ("lib/turncredit/__init__.py", [*CORE, *LAST]),
        (f"params/smoke/{TEACHING}.yaml", []),
    ],
)
def test_a_change_reruns_what_depends_on_it(checkout, changed, reruns):
    make(checkout, "reproduce")
    calls(checkout)
    time.sleep(0.02)
    (checkout / changed).touch()
    assert make(checkout, "reproduce").returncode == 0
    assert calls(checkout) == reruns


def test_smoke_is_everything_with_the_smoke_parameters(checkout):
    outcome = make(checkout, "smoke")
    assert outcome.returncode == 0, outcome.stderr
    assert done(checkout, "smoke") == {*CORE, *MORE, *LAST}
    assert not (checkout / "results" / "cpu").exists()
    assert all("params/smoke/" in line for line in call_lines(checkout))


def test_parallel_notebooks_get_one_core_each_and_a_lone_one_all(checkout):
    make(checkout, "-j2", "reproduce")
    parallel = call_lines(checkout)
    assert sorted(line.split()[0] for line in parallel) == sorted([*CORE, *LAST])
    assert [line.split()[0] for line in parallel[-2:]] == LAST
    assert all(line.endswith(" jobs=1") for line in parallel)
    cores = len(os.sched_getaffinity(0))
    for target, jobs in (("reproduce", cores), ("reproduce-all", cores), ("smoke", 1)):
        shutil.rmtree(checkout / "results")
        make(checkout, target)
        ran = call_lines(checkout)
        assert ran
        assert [line for line in ran if not line.endswith(f" jobs={jobs}")] == []


def test_figures_need_no_training_artefacts_and_always_run(checkout):
    for _ in range(2):
        outcome = make(checkout, "figures")
        assert outcome.returncode == 0, outcome.stderr
        assert calls(checkout) == FIGURES


def test_a_results_folder_that_cannot_be_written_is_one_sentence(checkout):
    write(checkout / "results", "a file in the way")
    outcome = make(checkout, "reproduce")
    assert outcome.returncode != 0
    assert "make: cannot write to results/cpu/notebooks" in outcome.stderr
    assert calls(checkout) == []


def test_verify_passes_on_equal_bytes_and_fails_on_others(checkout):
    write(checkout / "figures" / "one.svg", "drawn")
    assert make(checkout, "verify").returncode == 0
    redraw = "\npathlib.Path('figures/one.svg').write_text('other')\n"
    write(checkout / "lib" / "turncredit" / "notebook_runner.py", STUB_RUNNER + redraw)
    outcome = make(checkout, "verify")
    assert outcome.returncode != 0
    assert "figures differ" in outcome.stderr


def test_verify_without_figures_fails(checkout):
    outcome = make(checkout, "verify")
    assert outcome.returncode != 0
    assert "holds no figures" in outcome.stderr


def test_help_names_every_target(checkout):
    listed = make(checkout).stdout
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    for target in set(phony) - {"writable"}:
        assert re.search(rf"^  {target} +\w", listed, re.MULTILINE), target


def test_clean_keeps_the_reference_results(checkout):
    make(checkout, "reproduce")
    make(checkout, "smoke")
    write(checkout / "results/cpu/notebooks/a.failed.ipynb", "")
    assert make(checkout, "clean").returncode == 0
    assert done(checkout) == {*CORE, *LAST}
    assert not (checkout / "results" / "smoke").exists()


# ---- the environment -----------------------------------------------------------------------------

FAKE_PYTHON = """#!/bin/sh
# A Python 3.11 whose environments hold a python that writes down what is installed.
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"; cp fake_venv_python "$3/bin/python"; echo venv >> calls.log
fi
"""
FAKE_VENV_PYTHON = """#!/bin/sh
if [ "$2" = pip ]; then
    for last; do :; done
    echo "install $last" >> calls.log
    [ ! -e broken ] || { touch .venv/half; exit 1; }
fi
"""
INSTALL = ["venv", "install", "install"]


@pytest.fixture
def with_fake_python(checkout):
    for name, text in (("fake_python", FAKE_PYTHON), ("fake_venv_python", FAKE_VENV_PYTHON)):
        write(checkout / name, text)
        (checkout / name).chmod(0o755)
    return checkout


def make_env(folder: Path):
    return make(folder, "env", f"PYTHON={folder / 'fake_python'}", own_environment=True)


def stamps(folder: Path) -> list[Path]:
    return list((folder / ".venv").glob(".complete-*"))


def test_a_complete_environment_is_made_once(with_fake_python):
    assert make_env(with_fake_python).returncode == 0
    assert calls(with_fake_python) == INSTALL
    assert len(stamps(with_fake_python)) == 1
    assert make_env(with_fake_python).returncode == 0
    assert calls(with_fake_python) == []


def test_a_half_made_environment_is_never_taken_for_complete(with_fake_python):
    (with_fake_python / "broken").touch()
    assert make_env(with_fake_python).returncode != 0
    assert stamps(with_fake_python) == []
    calls(with_fake_python)
    (with_fake_python / "broken").unlink()
    assert make_env(with_fake_python).returncode == 0
    assert calls(with_fake_python) == INSTALL
    assert not (with_fake_python / ".venv" / "half").exists()


@pytest.mark.parametrize("lock", ["cpu-lock.txt", "cpu-nodeps.txt"])
def test_a_changed_lock_reinstalls(with_fake_python, lock):
    make_env(with_fake_python)
    calls(with_fake_python)
    with (with_fake_python / "requirements" / lock).open("a") as handle:
        handle.write("# another\n")
    assert make_env(with_fake_python).returncode == 0
    assert calls(with_fake_python) == INSTALL
    assert len(stamps(with_fake_python)) == 1


def test_the_layer_of_a_language_model_lies_upon_the_environment(with_fake_python):
    fake = f"PYTHON={with_fake_python / 'fake_python'}"
    assert make(with_fake_python, "env-lm", fake, own_environment=True).returncode == 0
    lines = call_lines(with_fake_python)
    assert [line.split()[0] for line in lines] == [*INSTALL, "venv", "install"]
    assert lines[-1] == "install requirements/lm-lock.txt"
    assert len(list((with_fake_python / ".venv-lm").glob(".complete-*"))) == 1
    assert make(with_fake_python, "env-lm", fake, own_environment=True).returncode == 0
    assert calls(with_fake_python) == []
    with (with_fake_python / "requirements" / "cpu-lock.txt").open("a") as handle:
        handle.write("# another\n")
    assert make(with_fake_python, "env-lm", fake, own_environment=True).returncode == 0
    assert calls(with_fake_python) == [*INSTALL, "venv", "install"], "a layer upon another one"


def test_another_python_is_refused_by_version(checkout):
    other = '#!/bin/sh\ncase "$2" in *print*) echo 3.13 ;; *) exit 1 ;; esac\n'
    write(checkout / "other_python", other)
    (checkout / "other_python").chmod(0o755)
    outcome = make(checkout, "env", f"PYTHON={checkout / 'other_python'}", own_environment=True)
    assert outcome.returncode != 0
    assert "other_python is 3.13" in outcome.stderr
    assert "PYTHON=/path/to/python3.11" in outcome.stderr
    assert "environment-cpu.yml" in outcome.stderr
    assert not (checkout / ".venv").exists()


def test_an_environment_of_ones_own_must_exist(checkout):
    outcome = make(checkout, "VENV=absent", "test", own_environment=True)
    assert outcome.returncode != 0
    assert "VENV=absent holds no bin/python" in outcome.stderr


# ---- with the real runner ------------------------------------------------------------------------


@pytest.fixture
def real_checkout(checkout):
    for name in ("__init__", "paths", "params", "storage", "notebook_runner"):
        shutil.copy(REPOSITORY / f"lib/turncredit/{name}.py", checkout / "lib" / "turncredit")
    write(checkout / "params" / "cpu" / f"{CORE[0]}.yaml", "tier: cpu\n")
    return checkout


def write_notebook(path: Path, source: str) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = v4.new_notebook(metadata={"kernelspec": kernel})
    document.cells = [
        v4.new_code_cell('tier = "cpu"', metadata={"tags": ["parameters"]}),
        v4.new_code_cell(source),
    ]
    nbformat.write(document, path)


def test_a_real_failing_notebook_is_repaired_by_the_next_call(real_checkout):
    target = f"results/cpu/notebooks/{CORE[0]}.ipynb"
    notebook = real_checkout / "notebooks" / f"{CORE[0]}.ipynb"
    write_notebook(notebook, "assert tier == 'gpu', 'a closing check'")
    outcome = make(real_checkout, target)
    assert outcome.returncode != 0
    assert "a closing check" in outcome.stderr
    assert not (real_checkout / target).exists()
    write_notebook(notebook, "import turncredit\nprint(tier, turncredit.__file__)")
    outcome = make(real_checkout, target)
    assert outcome.returncode == 0, outcome.stderr
    assert f"cpu {real_checkout}/lib/turncredit" in (real_checkout / target).read_text()
    finished = (real_checkout / target).stat().st_mtime_ns
    assert make(real_checkout, target).returncode == 0
    assert (real_checkout / target).stat().st_mtime_ns == finished


# ---- continuous integration ----------------------------------------------------------------------

FAKE_MAKE = """#!/bin/sh
echo "$1" >> calls.log
cat > /dev/null   # stdin must be closed, or this waits for ever
[ "$1" = test-lm ] && exit $LM_CODE
[ "$1" = test-verl ] && exit $VERL_CODE
[ "$1" = cluster-check ] && exit $CLUSTER_CODE
[ "$1" = smoke ] && exit $SMOKE_CODE
[ "$1" = docs ] && exit $DOCS_CODE
[ "$1" = test-browser ] && exit $CLICKS_CODE
mkdir -p screenshots
for name in viewer curves lab-00_first_trajectory-view lab-01_credit_by_hand-slider-after \\
    lab-02_entropy_drift-slider-after $PICTURE; do echo > screenshots/$name.png; done
echo "===== 3 passed in 0.10s ====="
exit $TEST_CODE
"""
TOOLS = "bash sh cat dirname grep mkdir mktemp rm tail tee"
"""All that .ci/run and the make above ask for; a real browser is not among them."""


def run_ci(checkout, failing, *, browser, picture="site-phone-index-dark"):
    """Run .ci/run where make only notes what it is asked, and fails at one target."""
    folder = checkout / "bin"
    write(folder / "make", FAKE_MAKE)
    for name in TOOLS.split():
        (folder / name).symlink_to(shutil.which(name))
    if browser:
        write(folder / "chromium", "#!/bin/sh\n")
        (folder / "chromium").chmod(0o755)
    (folder / "make").chmod(0o755)
    (checkout / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", checkout / ".ci" / "run")
    names = ("TEST", "LM", "VERL", "CLUSTER", "SMOKE", "DOCS", "CLICKS")
    codes = {f"{name}_CODE": str(int(name == failing)) for name in names}
    return subprocess.run(
        [shutil.which("bash"), checkout / ".ci" / "run"],
        cwd="/",
        env={**os.environ, **codes, "PICTURE": picture, "PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("browser", [False, True])
@pytest.mark.parametrize(
    "failing", [None, "TEST", "LM", "VERL", "CLUSTER", "SMOKE", "DOCS", "CLICKS"]
)
def test_ci_fails_when_anything_fails(checkout, failing, browser):
    last, other = ("CLICKS", "DOCS") if browser else ("DOCS", "CLICKS")
    if failing == other:
        pytest.skip("not asked for")
    outcome = run_ci(checkout, failing, browser=browser)
    order = ["TEST", "LM", "VERL", "CLUSTER", "SMOKE", last]
    asked = ["test", "test-lm", "test-verl", "cluster-check", "smoke"]
    asked += ["test-browser" if browser else "docs"]
    assert calls(checkout) == asked[: order.index(failing) + 1 if failing else None]
    assert (outcome.returncode == 0) == (failing is None), outcome.stderr
    if failing is None:
        assert outcome.stdout.splitlines()[-1] == "===== 3 passed in 0.10s ====="
        assert browser or "nothing was clicked" in outcome.stdout


def test_ci_fails_when_a_browser_is_there_and_nothing_was_clicked(checkout):
    outcome = run_ci(checkout, None, browser=True, picture="another")
    assert outcome.returncode == 1
    assert "took no picture of site-phone-index-dark" in outcome.stderr
