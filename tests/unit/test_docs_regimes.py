"""docs/regimes.md says what its table of runs says, and the tasks are the ones it froze."""

import csv
import re
from statistics import mean

from turncredit import paths, stats
from turncredit.tasks import open_task

PAGE = (paths.repository() / "docs" / "regimes.md").read_text(encoding="utf-8")
RUNS = paths.repository() / "results" / "cpu" / "regime_search.csv"
KEYS = (
    "start", "prior", "knowledge", "max_turns", "questions_per_step", "learning_rate", "steps",
)  # fmt: skip


def tables() -> list[list[list[str]]]:
    """Every table of the page as rows of cells, headers left out."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", PAGE, flags=re.M)
    return [[row.strip("| ").split(" | ") for row in block.splitlines()[2:]] for block in blocks]


def row_of(key: tuple[str, ...], runs: list[dict[str, str]]) -> list[str]:
    """What the page has to say of the runs of one regime."""
    collapsed = [run for run in runs if float(run["grounded"]) < 0.1]
    others = [run for run in runs if float(run["grounded"]) >= 0.1]
    scores = [
        f"{mean(float(run['exact_match']) for run in part):.3f}" if part else "–"
        for part in (collapsed, others)
    ]
    shifted = sum(run["shift_step"] != "" for run in runs)
    counts = [str(len(runs)), str(len(collapsed))]
    return [key[0].replace("_", " "), *key[1:], *counts, *scores, str(shifted)]


def test_the_table_is_that_of_the_recorded_runs():
    regimes: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with RUNS.open(encoding="utf-8") as file:
        for run in csv.DictReader(file):
            regimes.setdefault(tuple(run[key] for key in KEYS), []).append(run)
    assert tables()[0] == [row_of(key, runs) for key, runs in regimes.items()]


def test_the_household_table_is_that_of_the_recorded_runs_and_what_was_frozen_is_the_task():
    with (RUNS.parent / "household_search.csv").open(encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    numbers = ("success_before", "success_after")
    keys = [key for key in runs[0] if key not in numbers and not key.startswith("malformed")]
    rows = [
        [*(run[key] for key in keys), *(f"{float(run[name]):.3f}" for name in numbers)]
        for run in runs
    ]
    assert tables()[-1] == rows
    assert {int(run["seed"]) // 1000 for run in runs} == {1}
    settings = open_task("cpu", "household").settings
    training = settings.training
    assert settings.environment.max_turns == 12
    assert (training.questions_per_step, training.updates_per_batch) == (8, 2)
    assert (training.learning_rate, training.steps) == (2.0e-4, 60)


def test_no_run_of_the_search_used_a_seed_of_the_experiments():
    with RUNS.open(encoding="utf-8") as file:
        assert {int(run["seed"]) // 1000 for run in csv.DictReader(file)} == {1}


def test_the_tasks_are_those_that_were_frozen():
    for name, _, prior, knowledge, turns, rate in tables()[1]:
        settings = open_task("cpu", name.strip("`")).settings
        assert settings.environment.max_turns == int(turns), name
        if prior != "–":
            assert settings.world.prior == float(prior), name
        if knowledge != "–":
            assert settings.judge.knowledge == float(knowledge), name
        assert settings.training.learning_rate == float(rate), name


def test_the_numbers_of_seeds_follow_from_the_power_calculation():
    assert "takes 44 seeds" in PAGE and stats.seeds_for_rates(0.5, 0.2) == 44
    assert "(39 by" in PAGE and stats.seeds_for_rates(0.5, 0.2, test="normal") == 39
    assert stats.fisher_power(0.5, 1 / 30, 16) >= 0.8 > stats.fisher_power(0.5, 0.05, 16)
