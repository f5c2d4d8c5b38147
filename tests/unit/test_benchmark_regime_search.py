"""The search for regimes trains what its table says, and its rows say what became of the runs."""

import csv
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pipeline.tiny_runs import environment, task_values

from turncredit import experiment, paths
from turncredit.experiment import jobs_of
from turncredit.tasks import open_task

sys.path.append(str(paths.repository() / "benchmarks"))
import regime_search
from regime_search import REGIMES, outcome, search, search_of

RECORDED = paths.repository() / "results" / "cpu" / "regime_search.csv"


def read(table: Path) -> list[dict[str, str]]:
    with table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_regimes_are_those_of_the_recorded_runs_row_by_row():
    jobs = jobs_of(search_of(REGIMES))
    settings = [regime.settings for regime in REGIMES for _ in regime.seeds]
    asked = [
        {name: str(value) for name, value in one.items()}
        | {"seed": str(job.seed), "warm_start": str(job.warm_start_seed)}
        for one, job in zip(settings, jobs, strict=True)
    ]
    recorded = read(RECORDED)
    assert asked == [{name: row[name] for name in asked[0]} for row in recorded]
    assert len({job.label for job in jobs}) == len(recorded)


@pytest.mark.parametrize("regime", REGIMES, ids=lambda regime: regime.variant)
def test_a_task_of_a_regime_has_the_settings_that_the_row_names(regime):
    settings = open_task("cpu", regime.start, regime.changes(smoke=False)).settings
    found = [settings.world.prior, settings.judge.knowledge, settings.world.unsolvable_share]
    found += [settings.environment.max_turns, settings.training.questions_per_step]
    found += [settings.training.learning_rate, settings.training.steps]
    assert [settings.warm_start_task, *found] == [*regime.settings.values()]
    assert (settings.training.group_size, settings.evaluation.every) == (8, regime.steps)


def test_the_outcome_of_a_run_by_hand(tmp_path):
    grounded, searching = [0.9] * 5 + [0.0] * 15, [1.0] * 10 + [0.0] * 10
    clipped = [0.0] * 19 + [0.125]
    columns = {"grounded": grounded, "search_first": searching, "clip_fraction": clipped}
    pd.DataFrame(columns).to_csv(tmp_path / "metrics.csv", index=False)
    shares = {"grounded": 0.00001, "search_first": 1.0, "turns": 2.34567, "malformed": 0.25}
    found = [("all", 0.512345), ("2", 0.1), ("all", 0.6), ("2", 0.2)]
    rows = [{"hops": hops, "exact_match": exact} | shares for hops, exact in found]
    pd.DataFrame(rows).to_csv(tmp_path / "eval.csv", index=False)
    assert outcome(tmp_path) == {
        "exact_match_before": 0.5123,
        "exact_match": 0.6,
        "grounded": 0.0,
        "search_first": 1.0,
        "turns": 2.346,
        "malformed": 0.25,
        "collapse_step": 13,  # the mean of steps 4 to 13 is 0.09
        "shift_step": 15,  # that of steps 6 to 15 is 0.4, of those before it 0.5
        "clip_fraction_max": 0.125,
    }


def test_a_smoke_search_leaves_a_row_of_the_recorded_columns(tmp_path, monkeypatch):
    for name, path in environment(tmp_path).items():
        monkeypatch.setenv(name, path)
    task = tmp_path / "params" / "smoke" / "tasks" / "informative_guess.yaml"
    task.parent.mkdir(parents=True)
    task.write_text(yaml.safe_dump(task_values() | {"warm_start_task": "informative_guess"}))

    def in_turn(work, calls, workers, title):
        for call in calls:
            work(*call, lambda *shown: None)

    monkeypatch.setattr(experiment, "in_parallel", in_turn)
    chosen = tuple(regime for regime in REGIMES if regime.max_turns == 10)
    search(chosen, tmp_path / "table.csv", smoke=True)
    (row,) = read(tmp_path / "table.csv")
    (regime,) = chosen
    assert list(row) == list(read(RECORDED)[0])
    assert (row["start"], row["prior"], row["seed"]) == (regime.start, str(regime.prior), "1000")
    assert (row["collapse_step"], row["shift_step"]) == ("", ""), "two steps are no window"
    (folder,) = (tmp_path / "results" / "regime_search").glob("*/grpo/seed_*")
    assert len((folder / "metrics.csv").read_text().splitlines()) == 1 + 2
    last = pd.read_csv(folder / "eval.csv").iloc[-1]
    assert float(row["exact_match"]) == round(last["exact_match"], 4)


def test_without_an_option_nothing_is_trained(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regime_search.py"])
    monkeypatch.setattr(regime_search, "search", lambda *given, **options: pytest.fail("trained"))
    monkeypatch.setenv("TURNCREDIT_RESULTS", "as it was")
    regime_search.main()
    assert len(capsys.readouterr().out.splitlines()) == len(REGIMES)
