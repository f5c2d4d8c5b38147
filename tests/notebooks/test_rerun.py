"""Cells of a lesson are run again, as readers do: twice each, the whole twice, and from the end."""

import nbformat
import pytest

from turncredit import notebook_runner as runner
from turncredit import paths

pytestmark = pytest.mark.slow
nbclient = pytest.importorskip("nbclient", reason="comes with the notebooks extra")
LESSONS = sorted((paths.repository() / "notebooks").glob("0*.ipynb"))
ORDERS = {
    "each cell twice": lambda cells: [cell for cell in cells for _ in range(2)],
    "all cells twice": lambda cells: [*cells, *cells],
    "any cell after the last": lambda cells: [*cells, *reversed(cells)],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One place for all, so that small policies learn once."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(autouse=True)
def kernels_environment(home, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_TIER", "smoke")
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(home))
    monkeypatch.setenv("PYTHONPATH", str(paths.PACKAGE.parent))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")


def with_smoke_values(lesson):
    """The code cells, the values of tier smoke in the parameters cell."""
    document = runner.read_notebook(lesson)
    cells = runner.code_cells(document)
    values = runner.load_params(paths.params("smoke") / f"{lesson.stem}.yaml")
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    cells[runner.parameter_cell(document, lesson)].source = "\n".join(lines)
    return [cell.source for cell in cells]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_cells_may_be_run_again(lesson, order):
    sources = ORDERS[order](with_smoke_values(lesson))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    inside = {"metadata": {"path": str(lesson.parent)}}
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name=runner.KERNEL, resources=inside
    )
    client.execute()
    assert [cell.execution_count for cell in notebook.cells] == list(range(1, len(sources) + 1))
