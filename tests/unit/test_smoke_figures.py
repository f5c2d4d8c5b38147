"""The smoke tier draws every figure of the gallery and every figure of the figure notebook."""

import ast

import nbformat
import pytest

from turncredit import params, paths, plots
from turncredit.notebook_runner import cell_tree, code_cells

NOTEBOOKS = sorted((paths.repository() / "notebooks").glob("*.ipynb"))
SMOKE = paths.params("smoke")


def calls(notebook) -> list[ast.Call]:
    """Every call in the code of a notebook."""
    document = nbformat.read(notebook, as_version=4)
    trees = [cell_tree(cell) for cell in code_cells(document)]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]


def drawn(notebook) -> set[str]:
    """Figures that a notebook draws: by name from the gallery, or by their function."""
    found = set()
    for call in calls(notebook):
        match call:
            case ast.Call(func=ast.Attribute(attr="draw"), args=[_, ast.Constant(value=str(name))]):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="plots"), attr=name)):
                found.add(name)
    return found


def test_every_figure_of_the_gallery_is_drawn_by_a_notebook_that_smoke_runs():
    ran = [notebook for notebook in NOTEBOOKS if (SMOKE / f"{notebook.stem}.yaml").exists()]
    found = set().union(*map(drawn, ran))
    assert sorted(set(plots.GALLERY) - found) == []


def test_the_figure_notebook_draws_all_its_figures_in_every_tier():
    (notebook,) = (path for path in NOTEBOOKS if path.stem == "90_figures")
    assert sorted(set(plots.FIGURES) - drawn(notebook)) == []


@pytest.mark.parametrize("key", ["experiments", "studies", "tasks"])
def test_the_figures_of_smoke_show_what_smoke_runs(key):
    """A panel that says `not run yet` would try no figure."""
    asked = params.read_yaml(SMOKE / "90_figures.yaml")[key]
    held = {path.stem for path in SMOKE.glob("[12]*.yaml")}
    if key == "tasks":
        plans = params.read_yaml(SMOKE / "10_grpo_baseline.yaml")
        held = {task for plan in (plans, *plans["further"]) for task in plan["tasks"]}
    assert asked
    assert set(asked) <= held
