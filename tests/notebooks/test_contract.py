"""Every notebook obeys the contract, statically: nothing is executed here."""

import ast
import re

import pytest

from turncredit import notebook_runner as runner
from turncredit import paths
from turncredit.tasks import task_values

FOLDER = paths.repository() / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIERS = sorted({path.parent.name for path in (paths.repository() / "params").glob("*/tasks")})
"""Those whose tasks notebooks train; the cluster's runs are verl's, and only drawn here."""
MAX_CELL_LINES = 15
MAX_FUNCTION_LINES = 5

# Numbers that name something and measure nothing: code, links, formulas, arXiv identifiers.
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\S*://\S*|\b\d{4}\.\d{4,5}\b", re.S
)
DECIMAL = re.compile(r"(?<![\w.])\d+[.,]\d+(?![\w.]*\d)")

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def is_teaching(notebook) -> bool:
    """Notebooks 00 to 09 build what the library holds, in the open."""
    return notebook.name.startswith("0")


def parsed(notebook):
    """(cell number, source, tree) of each code cell."""
    document = runner.read_notebook(notebook)
    for number, cell in enumerate(document.cells, start=1):
        if cell.cell_type == "code":
            yield number, cell.source, runner.cell_tree(cell)


def long_definitions(tree: ast.AST) -> list[str]:
    """Classes of any length and functions longer than MAX_FUNCTION_LINES, by name."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        or (isinstance(node, functions) and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES)
    ]


def typed_numbers(markdown: str) -> list[str]:
    """Decimal numbers typed in prose.

    >>> typed_numbers("clip at $0.2$, `lr=1.0e-6`, arXiv 2512.10739, about 3 minutes, Python 3")
    []
    >>> typed_numbers("accuracy rose to 0.83, then 91.5 %.")
    ['0.83', '91.5']
    """
    return DECIMAL.findall(NOT_PROSE.sub(" ", markdown))


def test_there_are_notebooks_and_parameters():
    assert NOTEBOOKS, f"no notebook in {FOLDER}"
    assert {"cpu", "smoke"} <= set(TIERS)


@each_notebook
def test_notebook_is_stored_stripped(notebook):
    runner.check_stripped(runner.read_notebook(notebook), notebook)


@each_notebook
def test_the_runner_accepts_the_notebook(notebook):
    assert "tier" in runner.check_notebook(notebook)


@each_notebook
def test_the_name_starts_with_two_digits(notebook):
    assert re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", notebook.name)


@each_notebook
def test_the_first_cell_is_the_title_and_says_what_to_expect(notebook):
    first = runner.read_notebook(notebook).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "?" in first.source, "the title cell states the question the notebook answers"
    for word in ("minute", "input", "output"):
        assert word in first.source.lower(), f"the title cell says nothing about {word}s"


@each_notebook
def test_only_imports_come_before_the_parameters(notebook):
    document = runner.read_notebook(notebook)
    before = runner.code_cells(document)[: runner.parameter_cell(document, notebook)]
    for cell in before:
        for node in runner.cell_tree(cell).body:
            assert isinstance(node, ast.Import | ast.ImportFrom | ast.Expr), ast.unparse(node)


@each_notebook
def test_the_last_code_cell_holds_the_closing_checks(notebook):
    *_, (number, _, tree) = parsed(notebook)
    kinds = {type(node) for node in ast.walk(tree)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    checks = [name for name in names | attributes if name.startswith(("check", "assert"))]
    assert ast.Assert in kinds or checks, f"cell {number} checks nothing"


@each_notebook
def test_a_figure_at_the_end_of_a_cell_is_shown_as_a_picture(notebook):
    """Without the inline backend a figure is displayed as the text `<Figure size ...>`."""
    drawn = [
        number
        for number, _, tree in parsed(notebook)
        if tree.body
        and isinstance(tree.body[-1], ast.Expr)
        and isinstance(tree.body[-1].value, ast.Call)
        and ast.unparse(tree.body[-1].value.func).startswith("plots.")
    ]
    inline = any(
        "%matplotlib inline" in cell.source for cell in runner.read_notebook(notebook).cells
    )
    assert inline or not drawn, f"cells {drawn} show figures; add %matplotlib inline to the imports"


@each_notebook
def test_cells_are_short(notebook):
    """All but the table of parameters, in which nothing happens."""
    document = runner.read_notebook(notebook)
    table = runner.parameter_cell(document, notebook)
    parameters = runner.code_cells(document)[table].source
    for number, source, _ in parsed(notebook):
        if source == parameters:
            continue
        lines = source.rstrip().count("\n") + 1
        assert lines <= MAX_CELL_LINES, f"cell {number} has {lines} lines"


@each_notebook
def test_definitions_belong_to_the_library(notebook):
    if is_teaching(notebook):
        pytest.skip("a teaching notebook defines what it explains")
    for number, _, tree in parsed(notebook):
        assert long_definitions(tree) == [], f"cell {number}"


@each_notebook
def test_a_definition_taught_is_compared_with_the_library(notebook):
    if not is_teaching(notebook):
        pytest.skip("not a teaching notebook")
    trees = [tree for _, _, tree in parsed(notebook)]
    last = max((i for i, tree in enumerate(trees) if long_definitions(tree)), default=None)
    if last is not None:
        after = [node for tree in trees[last:] for node in ast.walk(tree)]
        assert any(isinstance(node, ast.Assert) for node in after)


GOALS = re.compile(r"\*\*You will learn to\*\*\n\n((?:- .+\n){3,4})\n\| \| \|\n")
DRAWING = {"draw", "panels", "picture", "explore"}
"""Definitions that show what others compute."""

LESSONS = [notebook for notebook in NOTEBOOKS if is_teaching(notebook)]
each_lesson = pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)


@each_lesson
def test_a_lesson_says_in_the_same_few_lines_what_one_learns(notebook):
    first = runner.read_notebook(notebook).cells[0].source
    (goals,) = GOALS.findall(first)
    for goal in goals.splitlines():
        assert goal[2].islower() and not goal.endswith("."), goal


@each_lesson
def test_a_definition_is_tried_on_a_case_at_once(notebook):
    """An assertion in its own cell or one of the next two."""
    trees = [tree for _, _, tree in parsed(notebook)]
    for number, tree in enumerate(trees):
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - DRAWING
        near = [node for later in trees[number : number + 3] for node in ast.walk(later)]
        assert not names or any(isinstance(node, ast.Assert) for node in near), sorted(names)


@each_notebook
def test_no_measured_number_is_typed_in_prose(notebook):
    if is_teaching(notebook):
        pytest.skip("worked examples hold their numbers, and assert them")
    document = runner.read_notebook(notebook)
    tagged = [bool(cell.metadata.get("tags")) for cell in document.cells]
    for number, cell in enumerate(document.cells, start=1):
        if cell.cell_type == "markdown" and number > tagged.index(True):
            assert typed_numbers(cell.source) == [], f"cell {number}"


@each_notebook
def test_every_tier_has_a_params_file_with_the_notebooks_keys_and_types(notebook):
    literals = runner.check_notebook(notebook)
    drawn = (paths.repository() / "params").glob(f"*/{notebook.stem}.yaml")
    for tier in sorted({*TIERS, *(file.parent.name for file in drawn)}):
        file = paths.params(tier) / f"{notebook.stem}.yaml"
        values = runner.load_params(file)
        runner.check_params(literals, values, notebook=notebook, params_file=file)
        assert values["tier"] == tier, file


@pytest.mark.parametrize("tier", [*TIERS, "cluster"])
def test_every_params_file_has_a_notebook(tier):
    stems = {notebook.stem for notebook in NOTEBOOKS}
    assert {path.stem for path in paths.params(tier).glob("*.yaml")} <= stems


def test_task_files_have_the_same_names_and_keys_in_every_tier():
    """Whatever they write themselves or have from a task that they extend; gpu may have more."""
    keys = {
        tier: {
            path.stem: set(task_values(tier, path.stem))
            for path in sorted((paths.params(tier) / "tasks").glob("*.yaml"))
        }
        for tier in TIERS
    }
    for tier, files in keys.items():
        shared = {name: found for name, found in files.items() if name in keys["cpu"]}
        assert shared == keys["cpu"], tier
        assert tier == "gpu" or files == shared, tier


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A: pass", ["A"]),
        ("def f():\n" + "    x = 1\n" * 4, []),  # five lines
        ("def f():\n" + "    x = 1\n" * 5, ["f"]),
        ("f = lambda x: x", []),
    ],
)
def test_long_definitions_are_found(source, found):
    assert long_definitions(ast.parse(source)) == found
