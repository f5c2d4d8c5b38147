"""Teaching notebooks in JupyterLab, opened and run from its menu in a real browser."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import yaml
from browser import BROWSER, NO_BROWSER, browsing

from turncredit import paths

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)]
pytest.importorskip("jupyterlab", reason="comes with the notebooks extra")
pytest.importorskip("websocket", reason="comes with the notebooks extra")
REPOSITORY = paths.PACKAGE.parents[1]
SECONDS = 300
"""For what takes half a minute on a machine that has nothing else to do."""

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false"},
}
"""Of JupyterLab: cells out of sight are on the page too, and no question covers a corner of it."""
WINDOW = (1300, 1000)
TOKEN = secrets.token_hex()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A checkout to write to: the notebooks with smoke values, and the parameter files."""
    home = tmp_path_factory.mktemp("checkout")
    shutil.copytree(REPOSITORY / "params", home / "params")
    (home / "notebooks").mkdir()
    for stored in (REPOSITORY / "notebooks").glob("0*.ipynb"):
        document = json.loads(stored.read_text(encoding="utf-8"))
        values = (paths.params("smoke") / f"{stored.stem}.yaml").read_text(encoding="utf-8")
        for cell in document["cells"]:
            if "parameters" in cell["metadata"].get("tags", []):
                pairs = yaml.safe_load(values).items()
                cell["source"] = "\n".join(f"{name} = {value!r}" for name, value in pairs)
        (home / "notebooks" / stored.name).write_text(json.dumps(document), encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def lab(home, tmp_path_factory):
    """Address of a JupyterLab of that checkout, with settings and a state of its own."""
    own = tmp_path_factory.mktemp("jupyter")
    for place, values in SETTINGS.items():
        file = own / "settings" / "@jupyterlab" / f"{place}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = os.environ | {
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "TURNCREDIT_HOME": str(home),
        "PYTHONPATH": str(paths.PACKAGE.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={home}"]
    with (own / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, env=variables, cwd=home, stdout=log, stderr=log)
        try:
            yield answering(f"http://127.0.0.1:{port}", process, own / "log")
        finally:
            process.terminate()
            process.wait(timeout=60)


def answering(address: str, process: subprocess.Popen, log) -> str:
    """The address once the server answers; AssertionError with its log if it does not."""
    last = time.monotonic() + SECONDS
    while time.monotonic() < last and process.poll() is None:
        try:
            asked(address, "status")
            return address
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"JupyterLab does not answer: {log.read_text('utf-8')[-2000:]}")


@pytest.fixture
def tab(tmp_path, lab):
    with browsing(tmp_path, width=WINDOW[0], height=WINDOW[1]) as tab:
        tab.resize(*WINDOW)
        yield tab
    for kernel in kernels(lab):
        asked(lab, f"kernels/{kernel['id']}", method="DELETE")


def asked(lab: str, path: str, *, method: str = "GET") -> bytes:
    """What the server answers to a request of its API."""
    head = {"Authorization": f"token {TOKEN}"}
    request = urllib.request.Request(f"{lab}/api/{path}", headers=head, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def kernels(lab: str) -> list[dict]:
    return json.loads(asked(lab, "kernels"))


def labelled(kind: str, text: str) -> str:
    """An element of the menu by what stands on it."""
    return f"[...document.querySelectorAll('{kind}')].find(e => e.textContent === '{text}')"


def choose(tab, *way: str) -> None:
    """Click through the menu bar."""
    kind = ".lm-MenuBar-itemLabel"
    for text in way:
        tab.wait(f"!!({labelled(kind, text)})", seconds=SECONDS, what=f"the menu {text}")
        tab.click(labelled(kind, text))
        kind = ".lm-Menu-itemLabel"


def wait_for_the_kernel(lab: str) -> None:
    """Until it has been idle and connected for some seconds: what is run before is lost."""
    last, seen = time.monotonic() + SECONDS, 0
    while seen < 5:
        assert time.monotonic() < last, "no kernel is ready"
        ready = [(k["execution_state"], k["connections"] > 0) for k in kernels(lab)]
        seen = seen + 1 if ready == [("idle", True)] else 0
        time.sleep(1)


def saved(home, name: str) -> list[dict]:
    """The code cells with something in them, as the file has them."""
    text = (home / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    return [c for c in json.loads(text)["cells"] if c["cell_type"] == "code" and c["source"]]


def run_all(tab, lab: str, home, name: str) -> list[dict]:
    """Open a notebook, run it from the menu and save it; returns its code cells."""
    tab.open(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset&token={TOKEN}")  # nothing else open
    ready = "document.querySelectorAll('.jp-Notebook .jp-CodeCell').length > 3"
    tab.wait(ready, seconds=SECONDS, what=f"{name} on the screen")
    wait_for_the_kernel(lab)
    choose(tab, "Run", "Run All Cells")
    prompts = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
    done = f"{prompts}.every(prompt => /^\\[\\d+\\]:$/.test(prompt.textContent))"
    failed = "!!document.querySelector('[data-mime-type=\"application/vnd.jupyter.error\"]')"
    tab.wait(f"({done}) || {failed}", seconds=SECONDS, what=f"{name}, run to its end")
    choose(tab, "File", "Save Notebook")
    clean = "!document.querySelector('.jp-mod-dirty')"
    tab.wait(clean, seconds=SECONDS, what="the notebook, saved")
    tab.picture(f"lab-{name}-end")
    return saved(home, name)


def errors(cells: list[dict]) -> list[str]:
    outputs = (output for cell in cells for output in cell["outputs"])
    return [output["evalue"] for output in outputs if output["output_type"] == "error"]


def move_a_slider(tab, name: str) -> None:
    """Three steps to the right: the figure below is another one."""
    image = "document.querySelector('.jp-OutputArea .widget-image')"
    tab.wait(f"{image}?.complete", seconds=SECONDS, what="sliders with a figure")
    widget = f"{image}.parentElement"
    tab.value(f"{widget}.scrollIntoView({{block: 'center'}})")
    before = tab.value(f"{image}.src")
    assert tab.value(f"{image}.getBoundingClientRect().width") > 400
    number = f"{widget}.querySelector('.widget-readout').textContent"
    began = tab.value(number)
    tab.picture(f"lab-{name}-slider-before")
    tab.click(f"{widget}.querySelector('.noUi-handle')")
    for _ in range(3):
        tab.key("ArrowRight", "ArrowRight", 39)
    changed = f"{image}.src !== {json.dumps(before)} && {image}.complete"
    tab.wait(changed, seconds=SECONDS, what="another figure")
    time.sleep(2)  # for the last of the three
    tab.picture(f"lab-{name}-slider-after")
    assert tab.value(number) != began


@pytest.mark.parametrize("name", ["00_first_trajectory", "01_credit_by_hand"])
def test_a_notebook_runs_from_top_to_bottom(name, tab, lab, home):
    cells = run_all(tab, lab, home, name)
    assert errors(cells) == []
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    view = "document.querySelector('.jp-OutputArea .tc')"
    assert tab.value(f"{view}.getBoundingClientRect().height") > 100, "a view of trajectories"
    tab.value(f"{view}.scrollIntoView()")
    tab.picture(f"lab-{name}-view")
    exercises = [cell for cell in cells if "exercises.check(" in "".join(cell["source"])]
    assert exercises
    assert "open" in json.dumps([cell["outputs"] for cell in exercises])
    if any("sliders(" in "".join(cell["source"]) for cell in cells):
        move_a_slider(tab, name)


@pytest.mark.parametrize("name", ["02_entropy_drift", "03_ratios_and_clipping"])
def test_a_slider_moves_and_its_figure_changes(name, tab, lab, home):
    assert errors(run_all(tab, lab, home, name)) == []
    move_a_slider(tab, name)
