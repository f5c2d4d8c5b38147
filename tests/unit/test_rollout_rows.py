"""measures.csv: what rollouts cost and bring, from tables written by hand; figures of it."""

import json
import math

import pandas as pd
import pytest

from turncredit import plots
from turncredit.plans import Experiment, named_methods
from turncredit.plots.rollout_figures import FIGURES
from turncredit.plots.rollout_rows import BRANCHING, ROLLBACK, panel_rows, pass_rows
from turncredit.results import read_table, write_table
from turncredit.rollout_measures import ALONE, OWN, TABLE
from turncredit.storage import write_json
from turncredit.training import FIRST_K, Method

STEPS, SEEDS = 12, (0, 1, 2, 3)
METHODS = {name: Method(**values) for name, values in named_methods(["grpo", "aepo"]).items()}


def write_run(root, arm: str, seed: int, *, played: bool = True) -> None:
    """A finished run of four questions in groups of two; those of `aepo` share some turns."""
    folder = root / "16_own" / "map" / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    row = {"reward": 0.5, "search_first": 0.9, "missing_rewards": 0, "clip_fraction": 0.0}
    row |= {"grounded": 0.5, "mean_abs_prob_diff": 0.0, "masked_share": 0.0, "turns": 5.0}
    if arm == "aepo":
        row |= {"rollout_tool_calls": 16, "rollout_trajectories": 8}
        row |= {"rollout_branches": 4, "rollout_branches_of_three": 3}
    write_table(
        folder / "metrics.csv",
        [{"step": s, "entropy": 0.1 * (s % 2)} | row for s in range(STEPS)],
    )
    turn = {"trajectories": 8, "answered": 2, "answered_correct": 1}
    turn |= {f"entropy_k{k}": 0.2 for k in FIRST_K}
    rows = [{"step": s, "turn": 0} | turn for s in range(STEPS)]
    pd.DataFrame(rows).to_csv(folder / "turns.csv.gz", index=False)
    ends = {"hops": "all", "questions": 8, "turns": 5.0, "search_first": 0.9, "grounded": 0.5}
    gain = 0.1 * (arm == "aepo") + 0.01 * seed
    evaluations = [{"step": s, "exact_match": 0.2 + s * 0.04 + gain} for s in (0, 6, STEPS)]
    write_table(folder / "eval.csv", [row | ends for row in evaluations])
    training = {"questions_per_step": 4, "group_size": 2}
    made_with = {"seed": seed, "warm_start_seed": seed % 2, "task": {"training": training}}
    made_with["method"] = METHODS[arm].values
    facts = {"params": made_with, "code_hash": "c", "params_hash": f"{arm}{seed}", "seconds": 3.0}
    facts |= {"stop_reason": "finished", "seed": seed, "steps_done": STEPS, "evaluated_at": STEPS}
    write_json(folder / "manifest.json", facts)
    if played:
        write_table(folder / TABLE, after_rows(arm, seed))


def after_rows(arm: str, seed: int) -> list[dict]:
    row = {"trajectories": 8, "pass_1": 0.4, "pass_2": 0.6, "tool_calls": 3.0, "error_share": 0.2}
    row |= {"clusters": 5, "clusters_of_a_question": 1.5, "unlike": 0.1, "high_turns": 0.3}
    row |= {"high_in_rows": 0.25, "longest_row": 2, "made_of": "h"}
    own = row | {"play": OWN, "pass_1": 0.5, "clusters": 7 + seed, "high_in_rows": 0.75}
    return [{"play": ALONE} | row, *([own] if arm == "aepo" else [])]


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Two arms with four seeds from two warm starts; nothing is written yet."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path / "results"))
    return Experiment("smoke", "16_own", ("map",), {}, dict(METHODS), SEEDS, (), (0, 1))


@pytest.fixture
def study(experiment):
    for arm in METHODS:
        for seed in SEEDS:
            write_run(experiment.folder.parent, arm, seed)
    return plots.open_study(experiment)


def test_a_row_holds_what_a_run_spent_played_and_was_compared_at(study):
    table = plots.measure_rows(study).set_index(["arm", "seed"])
    assert len(table) == 8 and set(table["block"]) == {0.0, 1.0}
    own, base = table.loc[("aepo", 1)], table.loc[("grpo", 1)]
    assert (own["environment_steps"], base["environment_steps"]) == (24 * STEPS, 40 * STEPS)
    assert (own["spent_calls"], base["spent_calls"]) == (2.0, 4.0)
    assert own["branch_concentration"] == 0.75 and math.isnan(base["branch_concentration"])
    assert own["exact_match_at_budget"] == pytest.approx(0.2 + STEPS * 0.04 + 0.11)
    assert base["exact_match_at_budget"] == pytest.approx(0.2 + 0.6 * STEPS * 0.04 + 0.01)
    assert own["match_share"] == 1.0  # between the last two evaluations, seen at the last
    assert own["entropy_sd"] == pytest.approx(pd.Series([0.0, 0.1] * 6).std())


def test_an_arm_without_a_rollout_has_clusters_and_rows_of_independent_trajectories_alone(study):
    table = plots.measure_rows(study).set_index(["arm", "seed"])
    assert table.loc[("grpo", 0), ["pass_1", "own_clusters", "high_in_rows"]].tolist() == [
        0.4, 5, 0.25
    ]  # fmt: skip
    assert table.loc[("grpo", 0), ["own_pass_1", "own_error_share"]].isna().all()
    names = ["pass_1", "own_pass_1", "own_clusters", "high_in_rows"]
    assert table.loc[("aepo", 2), names].tolist() == [0.4, 0.5, 9, 0.75]


def test_measures_and_the_comparison_at_equal_budget_are_saved(study, experiment):
    plots.save_measures(study)
    saved = pd.read_csv(experiment.folder / "measures.csv")
    assert saved["arm"].value_counts().to_dict() == {"grpo": 4, "aepo": 4}
    (row,) = pd.read_csv(experiment.folder / "comparisons_at_budget.csv").to_dict("records")
    assert (row["arm"], row["reference_arm"], row["seeds"]) == ("aepo", "grpo", 4)
    assert row["difference"] == pytest.approx(0.1 + 0.4 * STEPS * 0.04)
    assert list(read_table(experiment.folder, TABLE)["play"].unique()) == [ALONE, OWN]


def test_runs_that_were_not_played_afterwards_lack_those_numbers_alone(experiment):
    for arm in METHODS:
        write_run(experiment.folder.parent, arm, 0, played=False)
    table = plots.measure_rows(plots.open_study(experiment))
    assert "pass_1" not in table and table["spent_calls"].notna().all()
    write_table(experiment.folder / "map" / "grpo" / "seed_0" / TABLE, after_rows("grpo", 0))
    table = plots.measure_rows(plots.open_study(experiment)).set_index("arm")
    assert table["pass_1"].isna().to_dict() == {"grpo": False, "aepo": True}


def test_panels_and_passes_have_one_value_for_each_run(study):
    table = plots.measure_rows(study)
    for named in (BRANCHING, ROLLBACK):
        rows, panels = panel_rows(study, table, named)
        assert panels == list(named.values())
        assert rows.groupby("task").size().to_dict() == dict.fromkeys(panels, 8)
    rows = pass_rows(table)
    assert rows.groupby("k")["pass_at"].mean().to_dict() == pytest.approx({1: 0.4, 2: 0.6})


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_with_runs_and_without(name, study, experiment, tmp_path):
    figure = plots.draw(study, name)
    assert any(axis.has_data() for axis in figure.axes)
    nothing = study.only(["map"], ["grpo"], seeds=[])
    assert plots.draw(nothing, name).axes


def test_the_table_of_runs_of_the_report_has_the_measures(study, experiment):
    from turncredit import claims, report

    plots.save_measures(study)
    table = report.run_table("smoke", ["map"])
    assert set(claims.MEASURED) - set(table) == {"pass_5", "pass_8"}
    assert table.set_index(["arm", "seed"]).loc[("aepo", 3), "own_clusters"] == 10
    assert json.loads(table.to_json())  # plain values alone
