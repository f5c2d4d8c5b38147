"""The notebook runner is all or nothing: a target exists only after a complete, valid run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import psutil
import pytest

from turncredit import notebook_runner, paths

PARAMETERS = 'tier = "smoke"\nsteps = 3\nrate = 0.5\nname = "a"\nflag = True\nseeds = [0, 1]'
READ_ALL = "print(tier, steps, rate, name, flag, seeds)"
PARAMS = "tier: smoke\nsteps: 4\nrate: 0.25\nname: b\nflag: false\nseeds: [5]\n"
KILL_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
HANG = "import subprocess\nsubprocess.run(['sleep', '301'])"


def write_notebook(path: Path, *cells: str, parameters: str = PARAMETERS, tags=("parameters",)):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = v4.new_notebook(metadata={"kernelspec": kernel})
    document.cells = [
        v4.new_markdown_cell("# A title"),
        v4.new_code_cell(parameters, metadata={"tags": list(tags)} if tags else {}),
        *(v4.new_code_cell(source) for source in (READ_ALL, *cells)),
    ]
    nbformat.write(document, path)
    return path


def edit(notebook: Path, change) -> Path:
    document = nbformat.read(notebook, as_version=4)
    change(document)
    nbformat.write(document, notebook)
    return notebook


@pytest.fixture
def params_file(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path / "params.yaml"


def command(notebook, params_file, results, *options, **kwargs) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)}
    arguments = [notebook, "--params", params_file, "--results", results, *options]
    return subprocess.Popen(
        [sys.executable, "-m", "turncredit.notebook_runner", *map(str, arguments)],
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


def run(*arguments, **kwargs):
    process = command(*arguments, **kwargs)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def run_here(capfd, monkeypatch):
    """The command line in this process, several seconds faster than a new interpreter."""
    monkeypatch.setattr(notebook_runner.signal, "signal", lambda *_: None)

    def call(notebook, params_file, results, *options):
        arguments = [notebook, "--params", params_file, "--results", results, *options]
        code = notebook_runner.main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return call


def refusal(notebook, params_file, results) -> str:
    with pytest.raises(notebook_runner.ContractError) as caught:
        notebook_runner.run_notebook(notebook, params_file=params_file, results=results)
    assert not results.exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- the contract, before anything runs ----------------------------------------------------------


@pytest.mark.parametrize("tags", [(), ("parameter",)])
def test_a_missing_parameters_tag_is_refused(tmp_path, params_file, tags):
    notebook = write_notebook(tmp_path / "n.ipynb", tags=tags)
    if tags:
        edit(notebook, lambda document: document.cells[1].metadata.pop("tags"))
    assert "exactly one code cell tagged `parameters`, not 0" in refusal(
        notebook, params_file, tmp_path / "results"
    )


def test_two_parameters_cells_are_refused(tmp_path, params_file):
    notebook = write_notebook(tmp_path / "n.ipynb")
    edit(notebook, lambda document: document.cells[2].metadata.update(tags=["parameters"]))
    assert "not 2" in refusal(notebook, params_file, tmp_path / "results")


@pytest.mark.parametrize(
    "line",
    [
        "double = 2 * steps",
        "other = steps",
        "import os",
        "a = b = 1",
        "a, b = (1, 2)",
        "nothing = None",
        "table = {1, 2}",
        "steps += 1",
        "a: int = 1",
    ],
)
def test_only_literals_in_the_parameters_cell(tmp_path, params_file, line):
    notebook = write_notebook(tmp_path / "n.ipynb", parameters=f"{PARAMETERS}\n{line}")
    message = refusal(notebook, params_file, tmp_path / "results")
    assert "n.ipynb" in message
    assert f"not `{line}`" in message


def test_negative_numbers_and_nested_lists_are_literals(tmp_path):
    extra = f"{PARAMETERS}\nlow = -0.5\npairs = [[1, 2], [3]]"
    notebook = write_notebook(tmp_path / "n.ipynb", "print(low, pairs)", parameters=extra)
    literals = notebook_runner.check_notebook(notebook)
    assert literals["low"] == -0.5
    assert literals["pairs"] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("extra", "cell"),
    [
        ("unread = 1", "unread = 2"),  # assigned, not read
        ("unread = 1", "'unread'"),  # a text, not a name
        ("unread = 1", "# unread"),
    ],
)
def test_a_parameter_nobody_reads_is_refused(tmp_path, params_file, extra, cell):
    notebook = write_notebook(tmp_path / "n.ipynb", cell, parameters=f"{PARAMETERS}\n{extra}")
    assert "parameter unread is never read" in refusal(notebook, params_file, tmp_path / "results")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.cells[2].update(execution_count=1), "outputs or a count"),
        (
            lambda d: d.cells[2].update(outputs=[v4.new_output("stream", text="x")]),
            "outputs or a count",
        ),
        (lambda d: d.cells[2].metadata.update(execution={"t": 1}), "metadata 'execution'"),
        (lambda d: d.cells[2].metadata.update(tags=["raises-exception"]), "raises-exception"),
        (lambda d: d.metadata.update(papermill={"input_path": "x"}), "metadata 'papermill'"),
        (lambda d: d.metadata.kernelspec.update(name="myenv"), "kernel 'myenv'"),
    ],
)
def test_a_notebook_not_stored_clean_is_refused(tmp_path, params_file, change, words):
    notebook = edit(write_notebook(tmp_path / "n.ipynb"), change)
    message = refusal(notebook, params_file, tmp_path / "results")
    assert words in message
    assert "n.ipynb" in message


def test_something_that_is_no_notebook_is_refused(tmp_path, params_file):
    (tmp_path / "n.ipynb").write_text("not json")
    assert "n.ipynb cannot be read" in refusal(
        tmp_path / "n.ipynb", params_file, tmp_path / "results"
    )


def test_magics_do_not_break_the_contract_check(tmp_path):
    notebook = write_notebook(tmp_path / "n.ipynb", "%matplotlib inline\n!true\nsteps")
    assert notebook_runner.check_notebook(notebook)["steps"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PARAMS + "unknown: 1\n", ("params.yaml", "no parameter unknown")),
        (PARAMS.replace("steps: 4\n", ""), ("params.yaml", "lacks the parameter steps")),
        (PARAMS + "steps: 5\n", ("params.yaml", "steps")),
        (PARAMS.replace("0.25", "1e-6"), ("params.yaml", "rate is '1e-6'", "a float")),
        (PARAMS.replace("steps: 4", "steps: 4.0"), ("params.yaml", "steps is 4.0", "an integer")),
        (PARAMS.replace("steps: 4", "steps: true"), ("params.yaml", "steps is True")),
        (PARAMS.replace("flag: false", "flag: no"), ("params.yaml", "flag is 'no'", "true")),
        (PARAMS.replace("name: b", "name: 12"), ("params.yaml", "name is 12", "a text")),
        (PARAMS.replace("[5]", "'[5]'"), ("params.yaml", "seeds is '[5]'", "a list")),
        (PARAMS.replace("[5]", "[5, x]"), ("params.yaml", "seeds is [5, 'x']")),
        (PARAMS.replace("flag: false", "flag: 0"), ("params.yaml", "flag is 0", "true or false")),
        ("- 1\n", ("params.yaml",)),
        ("a: [\n", ("params.yaml",)),
    ],
)
def test_wrong_params_files_are_refused_naming_file_and_key(tmp_path, params_file, text, words):
    params_file.write_text(text)
    message = refusal(write_notebook(tmp_path / "n.ipynb"), params_file, tmp_path / "results")
    for word in words:
        assert word in message


def test_a_missing_params_file_is_refused(tmp_path):
    notebook = write_notebook(tmp_path / "n.ipynb")
    assert "absent.yaml" in refusal(notebook, tmp_path / "absent.yaml", tmp_path / "results")


def test_the_command_line_says_one_sentence_and_exits_with_2(tmp_path, params_file, run_here):
    params_file.write_text(PARAMS + "unknown: 1\n")
    code, _, err = run_here(write_notebook(tmp_path / "n.ipynb"), params_file, tmp_path / "results")
    assert code == 2
    assert "no parameter unknown" in err
    assert "Traceback" not in err


# ---- running ------------------------------------------------------------------------------------


def test_success_from_another_folder_renames_a_clean_executed_copy(tmp_path, params_file):
    report = (
        "import json, os, sys, turncredit\n"
        "from turncredit import paths\n"
        "print(json.dumps([sys.executable, turncredit.__file__, os.getcwd(),"
        " str(paths.results(tier)), os.environ['TURNCREDIT_TIER']]))"
    )
    notebook = write_notebook(tmp_path / "n.ipynb", report)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code, out, err = run(notebook, params_file, "results", cwd=elsewhere)
    assert code == 0, err
    results = elsewhere / "results"
    assert [path.name for path in (results / "notebooks").iterdir()] == ["n.ipynb"]
    assert "smoke 4 0.25 b False [5]" in out  # the file's values, seen while it runs
    here = [sys.executable, str(paths.PACKAGE / "__init__.py"), str(tmp_path), str(results)]
    assert str([*here, "smoke"]).replace("'", '"') in out
    executed = nbformat.read(results / "notebooks" / "n.ipynb", as_version=4)
    code_cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code_cells] == [1, 2, 3, 4]
    assert set(executed.metadata) == {"kernelspec", "language_info"}
    assert all(set(cell.metadata) <= {"tags"} for cell in executed.cells)


def test_a_failing_cell_leaves_no_target_and_the_next_success_clears_the_failed_copy(
    tmp_path, params_file, run_here
):
    notebook = write_notebook(tmp_path / "n.ipynb", "1 / 0", "print('after')")
    results = tmp_path / "results"
    code, out, err = run_here(notebook, params_file, results)
    assert code == 1
    assert "n.ipynb failed in cell [4] with ZeroDivisionError" in err
    assert "division by zero" in err
    assert "after" not in out
    assert [path.name for path in (results / "notebooks").iterdir()] == ["n.failed.ipynb"]
    write_notebook(notebook)
    assert run_here(notebook, params_file, results)[0] == 0
    assert [path.name for path in (results / "notebooks").iterdir()] == ["n.ipynb"]


def test_a_failure_keeps_the_target_of_an_earlier_success(tmp_path, params_file):
    target = tmp_path / "results" / "notebooks" / "n.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text("earlier")
    notebook = write_notebook(tmp_path / "n.ipynb", "raise SystemExit(3)")
    with pytest.raises(notebook_runner.NotebookFailed):
        notebook_runner.run_notebook(
            notebook, params_file=params_file, results=tmp_path / "results"
        )
    assert target.read_text() == "earlier"


def test_a_kernel_killed_as_for_memory_is_a_failure(tmp_path, params_file, run_here):
    notebook = write_notebook(tmp_path / "n.ipynb", KILL_ITSELF)
    start = time.monotonic()
    code, _, err = run_here(notebook, params_file, tmp_path / "results", "--deadline", "60")
    assert code == 1
    assert time.monotonic() - start < 60
    assert "n.ipynb failed, its kernel died" in err
    assert not (tmp_path / "results" / "notebooks" / "n.ipynb").exists()


def test_a_hanging_cell_ends_at_the_deadline_with_its_children(tmp_path, params_file, run_here):
    notebook = write_notebook(tmp_path / "n.ipynb", HANG)
    code, _, err = run_here(notebook, params_file, tmp_path / "results", "--deadline", "6")
    assert code == 124
    assert "n.ipynb passed its deadline of 6 s" in err
    assert not (tmp_path / "results" / "notebooks" / "n.ipynb").exists()
    assert not sleepers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_the_runner_ends_the_kernel_and_leaves_nothing(tmp_path, params_file, number):
    marker = tmp_path / "running"
    cell = f"open({str(marker)!r}, 'w').close()\n{HANG}"
    process = command(write_notebook(tmp_path / "n.ipynb", cell), params_file, tmp_path / "results")
    wait_until(marker.exists)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].endswith("n.ipynb was interrupted")
    assert not (tmp_path / "results" / "notebooks" / "n.ipynb").exists()
    assert not sleepers()


@pytest.mark.parametrize("results", ["file", "file/below"])
def test_an_unwritable_results_folder_is_one_sentence(tmp_path, params_file, run_here, results):
    (tmp_path / "file").write_text("in the way")
    code, _, err = run_here(write_notebook(tmp_path / "n.ipynb"), params_file, tmp_path / results)
    assert code == 2
    assert "notebook_runner: cannot write" in err
    assert "n.ipynb" in err
    assert "Traceback" not in err


def test_the_environment_is_restored(tmp_path, params_file):
    before = dict(os.environ)
    with notebook_runner._environment("smoke", tmp_path):
        assert os.environ["TURNCREDIT_RESULTS"] == str(tmp_path.resolve())
    assert dict(os.environ) == before


def test_a_kernel_of_another_python_is_refused(tmp_path, params_file, monkeypatch):
    class Spec:
        argv = ("/somewhere/else/bin/python", "-m", "ipykernel_launcher")
        resource_dir = "/somewhere/kernels/python3"

    monkeypatch.setattr(notebook_runner, "get_kernel_spec", lambda name: Spec)
    message = refusal(write_notebook(tmp_path / "n.ipynb"), params_file, tmp_path / "results")
    assert "/somewhere/kernels/python3 starts /somewhere/else/bin/python" in message


def test_a_user_kernel_of_the_same_name_does_not_win(tmp_path, params_file):
    spec = tmp_path / "home" / ".local/share/jupyter/kernels/python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        '{"argv": ["/nowhere/python"], "display_name": "x", "language": "python"}'
    )
    script = "from turncredit import notebook_runner; notebook_runner._check_kernel()"
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "JUPYTER_PATH": str(spec.parents[1]),
        "PYTHONPATH": str(paths.PACKAGE.parent),
    }
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def sleepers() -> list[int]:
    """Processes started by the hanging cell that are still alive shortly after."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        alive = [
            p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == HANG_COMMAND
        ]
        if not alive:
            return []
        time.sleep(0.1)
    return alive


HANG_COMMAND = ["sleep", "301"]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.05)


def test_the_runner_starts_without_compiling_a_grammar():
    """lark's, which jsonschema would have compiled to check URIs, in every notebook's runner."""
    look = (
        "import sys, turncredit.notebook_runner; print('jsonschema' in sys.modules, *sys.modules)"
    )
    variables = {**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)}
    command = [sys.executable, "-c", look]
    checks, *loaded = subprocess.check_output(command, env=variables, text=True).split()
    assert checks == "True"  # what it would compile the grammar for
    assert "lark" not in loaded
