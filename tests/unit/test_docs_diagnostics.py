"""docs/diagnostics.md defines exactly the columns that the loop writes, and names their source."""

import csv
import gzip
import importlib
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from play import PLAIN, SMALL, TRAINING, coin_environment, policy, vocabulary

from turncredit import experiment, params, paths, tasks
from turncredit.code_version import code_hash
from turncredit.objectives import OBJECTIVES
from turncredit.training import Method, ResamplingSettings, new_optimiser, train

TEXT = (paths.PACKAGE.parents[1] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
TABLES = ("metrics.csv", "turns.csv", "timings.csv", "eval.csv", "questions.csv", "difficulty.csv")
SOME = "Of some runs only"


def part_of(title: str) -> str:
    """The text below the heading `## title`."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(text: str) -> list[dict[str, str]]:
    """The rows of all tables in a text, each by the heads of its own table."""
    found, heads = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| column"):
            heads = cells
        elif line.startswith("| `"):
            found.append(dict(zip(heads, cells, strict=True)))
    return found


def columns(table: str) -> dict[str, dict[str, str]]:
    """Every documented column of a table by name, in order."""
    listed = [(row["column"].strip("`"), row) for row in rows(part_of(table))]
    assert len(dict(listed)) == len(listed), "a column is defined twice"
    return dict(listed)


def in_every_run(table: str) -> list[str]:
    return [name for name, row in columns(table).items() if "with" not in row]


def of_some_runs(condition: str) -> set[str]:
    """The columns of metrics.csv that a run has because of this objective or tripwire."""
    conditional = rows(part_of("metrics.csv").split(f"### {SOME}")[1])
    return {r["column"].strip("`") for r in conditional if f"`{condition}`" in r["with"]}


# --- what the loop writes


def task_values() -> dict:
    """The smallest task of tier smoke in a second, with every tripwire that adds a column."""
    values = params.read_yaml(
        paths.repository() / "params" / "smoke" / "tasks" / "costly_guess.yaml"
    )
    values["environment"] |= {"invalid_ends": False, "invalid_penalty": 0.1, "max_turns": 12}
    values["policy"] |= {"width": 16, "layers": 1, "max_tokens": 48}
    values["warm_start"] |= {"steps": 2, "batch": 4}
    values["training"] |= {"steps": 3, "questions_per_step": 2, "checkpoint_every": 3}
    values["evaluation"] |= {"questions": 6, "every": 3}
    never = dict.fromkeys(
        ("entropy_low", "entropy_high", "truncated", "zero_variance", "reward_collapse")
    )
    wires = never | {"window": 9, "patience": 9, "repetition": 1.0}
    return values | {"warm_start_task": "tiny", "tripwires": wires}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """The folder of a finished run of three steps."""
    home = tmp_path_factory.mktemp("home")
    task = home / "params" / "smoke" / "tasks" / "tiny.yaml"
    task.parent.mkdir(parents=True)
    task.write_text(yaml.safe_dump(task_values()))
    values = {
        "tier": "smoke",
        "notebook": "10_try",
        "tasks": ["tiny"],
        "variants": {},
        "seeds": [0],
    }
    values |= {"arms": {"grpo": asdict(PLAIN)}, "further": [], "warm_start_seeds": [0]}
    with pytest.MonkeyPatch.context() as patch:
        for name, path in {"HOME": home, "RESULTS": home / "r", "CACHE": home / "c"}.items():
            patch.setenv(f"TURNCREDIT_{name}", str(path))
        job = experiment.Job(experiment.experiment_from(values), "tiny", "grpo", 0)
        experiment.run(job, code_hash(), lambda *shown: None)
        folder = job.experiment.folder / job.label
    getattr(tasks.open_task, "cache_clear", lambda: None)()
    return folder


def written(folder: Path, table: str) -> list[dict[str, str]]:
    """The rows of a table as it lies in a finished run, cells as texts."""
    packed = folder / f"{table}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / table).read_bytes()
    return list(csv.DictReader(raw.decode("utf-8").splitlines()))


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_columns_that_a_run_writes_and_no_other(run_folder, table):
    found = list(written(run_folder, table)[0])
    expected = set(in_every_run(table))
    if table == "metrics.csv":
        expected |= of_some_runs(PLAIN.objective) | of_some_runs("repetition")
    assert sorted(set(found) - expected) == [], "written, and not in docs/diagnostics.md"
    assert sorted(expected - set(found)) == [], "in docs/diagnostics.md, and not written"
    assert len(found) == len(set(found))


@pytest.mark.parametrize("table", TABLES)
def test_a_column_that_is_never_missing_has_a_value_in_every_row(run_folder, table):
    always = [name for name, row in columns(table).items() if row["missing when"] == "never"]
    for line in written(run_folder, table):
        assert [name for name in always if line.get(name) == ""] == []


def test_what_is_missing_is_an_empty_cell_and_not_a_zero(run_folder):
    """No arm without a reference has a divergence, and without a mask there is no gate."""
    for line in written(run_folder, "metrics.csv"):
        assert (line["gate_turn"], line["gate_at_0"], line["masked_share"]) == ("", "", "0")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_writes_what_the_page_says(objective):
    model, settings = policy(), replace(TRAINING, steps=1, questions_per_step=2)
    method = Method("grpo", {}, "none", {}, objective, {})
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(), SMALL)
    (log,) = train(*parts, method, settings, seed=0)
    expected = {*in_every_run("metrics.csv"), *of_some_runs(objective)} - {"step"}
    assert set(log.metrics) - {"repeated_turns"} == expected


def test_resampling_writes_what_the_page_says():
    settings = replace(TRAINING, steps=1, resampling=ResamplingSettings(max_rounds=2))
    model = policy()
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(), SMALL)
    (log,) = train(*parts, PLAIN, settings, seed=0)
    plain = {*in_every_run("metrics.csv"), *of_some_runs(PLAIN.objective), "repeated_turns"}
    assert set(log.metrics) - plain == of_some_runs("resampling")


def test_branching_writes_what_the_page_says():
    settings, model = replace(TRAINING, steps=1), policy()
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(), SMALL)
    (log,) = train(*parts, replace(PLAIN, base="arpo", rollout="arpo"), settings, seed=0)
    plain = {*in_every_run("metrics.csv"), *of_some_runs(PLAIN.objective), "repeated_turns"}
    assert set(log.metrics) - plain == of_some_runs("branching") | of_some_runs("arpo")


@pytest.mark.parametrize(
    "arm",
    [
        {"base": "adrs"},
        {"base": "true_advantage"},
        {"base": "vineppo"},
        {"rollout": "actguide"},
        {"rollout": "cleaner"},
    ],
    ids=str,
)
def test_bases_and_rollouts_write_what_the_page_says(arm):
    model, settings = policy(), replace(TRAINING, steps=1, questions_per_step=2)
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(), SMALL)
    (name,) = arm.values()
    few = {"base_options": {"continuations": 2}} if name in ("true_advantage", "vineppo") else {}
    (log,) = train(*parts, replace(PLAIN, **arm, **few), settings, seed=0)
    plain = {*in_every_run("metrics.csv"), *of_some_runs(PLAIN.objective), "repeated_turns"}
    assert set(log.metrics) - plain == of_some_runs(name)


# --- the page itself


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_definition_a_unit_a_condition_and_a_source(table):
    for name, row in columns(table).items():
        assert all(row.values()), f"{name} leaves a cell empty"
        *module, attribute = row["source"].strip("`").split(".")
        source = getattr(importlib.import_module(".".join(["turncredit", *module])), attribute)
        assert source.__doc__, name


def test_conditions_name_objectives_and_tripwires():
    conditions = "".join(row.get("with", "") for row in columns("metrics.csv").values())
    bases_and_rollouts = {"adrs", "arpo", "gigpo", "igpo", "branching", "cleaner", "actguide"}
    bases_and_rollouts |= {"true_advantage", "vineppo"}
    others = {"repetition", "resampling", *bases_and_rollouts}
    assert set(re.findall(r"`(\w+)`", conditions)) - set(OBJECTIVES) == others


def test_tables_are_all_described():
    assert [title for title in re.findall(r"^## (.+)$", TEXT, re.M) if ".csv" in title] == [*TABLES]


def test_functions_and_columns_named_in_the_text_exist():
    prose = "\n".join(line for line in TEXT.splitlines() if not line.startswith("|"))
    for module, name in re.findall(r"`(signals|stats|results|loggers)\.(\w+)", prose):
        assert hasattr(importlib.import_module(f"turncredit.{module}"), name), f"{module}.{name}"
    quotients = re.findall(r"`(\w+) / (\w+)`", prose)
    assert quotients and {name for pair in quotients for name in pair} <= set(columns("turns.csv"))


def test_the_example_runs():
    (example,) = re.findall(r"^```python\n(.+?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(example, "docs/diagnostics.md", "exec"), names)
    assert names["writers"] == ()
