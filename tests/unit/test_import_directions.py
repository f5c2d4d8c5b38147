"""Modules import from lower levels only (docs: "Modules and levels"); credit needs torch alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import turncredit

PACKAGE = Path(turncredit.__file__).parent
LEVELS = {
    0: "paths params seeding storage announcements parallel coroutines option_ranges row_checks "
    "run_ledger",
    1: "records answers checkpoints spans logprobs methods batch_contract stats task_checks",
    2: "retrieval worlds",
    3: "environments table_demonstrations household_demonstrations",
    4: "policies",
    5: "batching signals demonstrations contents decisions",
    6: "credit objectives reward_shaping dynamic_sampling expert_actions rollout",
    7: "training tripwires evaluation warm_start probe audit rollout_measures plans_shown",
    8: "results loggers tasks code_version plans first_evaluations laws",
    9: "runs estimates comparisons budgets claims warm_starts verl_plugin action_logs exercises",
    10: "experiment run_checks after_training plan_following probed_runs credit_audits plots "
    "viewer notebook_runner",
    11: "report teacher_audits engine_games",
    12: "cli",
    13: "__main__",
}
LEVEL = {name: level for level, names in LEVELS.items() for name in names.split()}
SIDEWAYS = {
    ("worlds", "retrieval"),
    ("rollout", "expert_actions"),
    ("signals", "batching"),
    ("run_checks", "experiment"),
    ("after_training", "experiment"),
    ("run_ledger", "storage"),
    ("training", "audit"),
}
"""(importer, imported) pairs of one level that are allowed: the table has them on two lines."""

TORCH_ONLY = (
    "spans", "logprobs", "batching", "signals", "credit", "objectives", "methods",
    "reward_shaping", "dynamic_sampling", "option_ranges", "batch_contract",
)  # fmt: skip
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def component(path: Path) -> str:
    """The part of the package a file belongs to: its folder below the package, or its own name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import that runs; of `from turncredit import x`, x.

    Imports under `if TYPE_CHECKING:` are for annotations and do not run.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node) for block in filter(_is_typing_block, ast.walk(tree)) for node in block.body
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = path.relative_to(PACKAGE.parent).parts[: -node.level] if node.level else ()
            origin = ".".join([*folder, *([node.module] if node.module else [])])
            below = [f"{origin}.{alias.name}" for alias in node.names]
            found += [
                (node.lineno, name) for name in (below if origin == "turncredit" else [origin])
            ]
    return found


def _is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def allowed(importer: str, imported: str) -> bool:
    return (
        importer == imported
        or LEVEL[imported] < LEVEL[importer]
        or (importer, imported) in SIDEWAYS
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    importer = component(path)
    assert importer in LEVEL, f"{path}: place {importer!r} in LEVELS, and in the design's table"
    for line, name in imports(path):
        root, _, rest = name.partition(".")
        if root != "turncredit" or rest.startswith("__"):
            continue
        imported = rest.split(".")[0]
        assert imported in LEVEL, f"{path}:{line}: place {imported!r} in LEVELS"
        message = f"{path}:{line}: {importer} (level {LEVEL[importer]}) must not import {imported}"
        assert allowed(importer, imported), f"{message} (level {LEVEL[imported]})"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if component(path) in TORCH_ONLY],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_credit_code_imports_torch_and_the_standard_library_only(path):
    for _, name in imports(path):
        root, _, rest = name.partition(".")
        if root == "turncredit":
            assert rest.split(".")[0] in TORCH_ONLY, f"{path} imports {name}"
        else:
            assert root == "torch" or root in sys.stdlib_module_names, f"{path} imports {name}"


def test_importing_credit_loads_nothing_else_of_the_package():
    code = "import sys, turncredit.credit, turncredit.objectives; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    ours = {name.split(".")[1] for name in run.stdout.split() if name.startswith("turncredit.")}
    assert ours <= set(TORCH_ONLY)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import turncredit.training", ["turncredit.training"]),
        ("from turncredit import training, paths", ["turncredit.training", "turncredit.paths"]),
        ("from turncredit.credit.bases import grpo", ["turncredit.credit.bases"]),
        ("from . import bases", ["turncredit.credit"]),
        ("from ..training import run", ["turncredit.training"]),
        ("from .. import training", ["turncredit.training"]),
        ("def f():\n    import verl.trainer", ["verl.trainer"]),
        ("if TYPE_CHECKING:\n    import turncredit.training\nimport os", ["os"]),
    ],
)
def test_the_reader_sees_every_form_of_import(source, expected, tmp_path, monkeypatch):
    path = tmp_path / "turncredit" / "credit" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "turncredit")
    assert [name for _, name in imports(path)] == expected


def test_the_rule_refuses_upward_and_sideways_imports():
    assert not allowed("records", "training")
    assert not allowed("credit", "objectives")
    assert not allowed("policies", "rollout")
    assert allowed("worlds", "retrieval")
    assert not allowed("retrieval", "worlds")
    assert allowed("training", "credit")
    assert allowed("environments", "environments")
