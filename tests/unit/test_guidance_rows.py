"""What guidance came to, from tables written by hand; the figures of it."""

import math

import pandas as pd
import pytest

from turncredit import plots
from turncredit.plans import Experiment, named_methods
from turncredit.plots.rollout_figures import FIGURES
from turncredit.plots.rollout_rows import GUIDANCE, guidance_rows, reach_rows
from turncredit.results import write_table
from turncredit.storage import write_json
from turncredit.training import FIRST_K, Method

NAMES = ["grpo", "actguide", "actguide_whole"]
METHODS = {name: Method(**values) for name, values in named_methods(NAMES).items()}
SEEDS, TASKS, STEPS, EVERY = (0, 1, 2, 3), ("far", "near"), 8, 4
GROUPS, SIZE = 4, 2


def guided_step(step: int, *, probes: int) -> dict[str, float]:
    """Every group fails in the first half of training, and half of them are rescued."""
    hard = GROUPS if step < STEPS / 2 else 0
    tried = probes * hard
    played = GROUPS * SIZE + tried + hard * SIZE
    row = {"hard_groups": hard, "rescued_groups": hard / 2, "guidance_actions": 3 * hard}
    row |= {"probe_trajectories": tried, "rollout_trajectories": played}
    row |= {"rollout_tool_calls": 2 * played, "guided_trajectories": SIZE * hard}
    ratios = {"guided_log_ratio": -step - 1.0, "guided_far_tokens": 0.25}
    return row | (ratios if hard else dict.fromkeys(ratios, math.nan))


def write_run(folder, task: str, arm: str, seed: int) -> None:
    """A finished run; guiding arms gain on the task `far`."""
    folder = folder / task / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    row = {"reward": 0.5, "entropy": 0.1, "search_first": 0.9, "missing_rewards": 0}
    row |= {"clip_fraction": 0.0, "grounded": 0.5, "turns": 3.0}
    own = {"actguide": 4, "actguide_whole": 0}
    steps = range(STEPS if task == "far" else STEPS // 2)
    write_table(
        folder / "metrics.csv",
        [
            {"step": s}
            | row
            | (guided_step(s + STEPS * (task == "near"), probes=own[arm]) if arm in own else {})
            for s in steps
        ],
    )
    turn = {"trajectories": 8, "answered": 2, "answered_correct": 1}
    turn |= {f"entropy_k{k}": 0.2 for k in FIRST_K}
    pd.DataFrame([{"step": s, "turn": 0} | turn for s in steps]).to_csv(
        folder / "turns.csv.gz", index=False
    )
    ends = {"hops": "all", "questions": 8, "turns": 3.0, "search_first": 0.9, "grounded": 0.5}
    gain = 0.05 * (arm in own and task == "far") + 0.002 * seed
    done = len(steps)
    write_table(
        folder / "eval.csv",
        [{"step": s, "exact_match": 0.1 + gain * s} | ends for s in range(0, done + 1, EVERY)],
    )
    made_with = {"seed": seed, "warm_start_seed": seed % 2, "method": METHODS[arm].values}
    made_with["task"] = {"training": {"questions_per_step": GROUPS, "group_size": SIZE}}
    facts = {"params": made_with, "code_hash": "c", "params_hash": f"{task}{arm}{seed}"}
    facts |= {"seconds": 3.0, "stop_reason": "finished", "seed": seed}
    write_json(folder / "manifest.json", facts | {"steps_done": done, "evaluated_at": done})


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Three arms on two tasks, four seeds from two warm starts."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path / "results"))
    experiment = Experiment("smoke", "18_own", TASKS, {}, dict(METHODS), SEEDS, (), (0, 1))
    for task in TASKS:
        for arm in METHODS:
            for seed in SEEDS:
                write_run(experiment.folder, task, arm, seed)
    return plots.open_study(experiment)


def test_shares_are_of_the_groups_that_were_asked_and_of_those_that_failed(study):
    table = plots.measure_rows(study).set_index(["task", "arm", "seed"])
    own = table.loc[("far", "actguide", 1)]
    assert own["hard_share"] == 0.5 and own["rescued_share"] == 0.5
    assert own["actions_given"] == 3.0
    played = GROUPS * STEPS / 2 * (SIZE + SIZE + 4) + GROUPS * STEPS / 2 * SIZE
    assert own["probe_share"] == pytest.approx(GROUPS * STEPS / 2 * 4 / played)
    assert own["log_ratio"] == pytest.approx(-(1 + 2 + 3 + 4) / 4)
    assert own["far_tokens"] == 0.25
    assert table.loc[("far", "actguide_whole", 0), "probe_share"] == 0.0


def test_an_arm_that_never_looks_has_no_number_and_one_that_finds_none_has_no_share(study):
    table = plots.measure_rows(study).set_index(["task", "arm", "seed"])
    assert table.loc[("far", "grpo", 0), list(GUIDANCE)].isna().all()
    near = table.loc[("near", "actguide", 0), list(GUIDANCE)]
    assert near["hard_share"] == near["probe_share"] == 0.0
    assert near[["rescued_share", "actions_given", "log_ratio", "far_tokens"]].isna().all()


def test_ratios_weigh_a_step_by_its_guided_trajectories():
    steps = [guided_step(0, probes=0) | {"guided_trajectories": 9}, guided_step(1, probes=0)]
    keys = {"task": "far", "arm": "actguide", "seed": 0}
    steps[1]["guided_trajectories"] = 1
    table = pd.DataFrame([keys | {"step": n} | row for n, row in enumerate(steps)])
    (row,) = guidance_rows(table, {("far", "actguide", 0): SIZE}).to_dict("records")
    assert row["log_ratio"] == pytest.approx((-1 * 9 - 2) / 10)
    assert guidance_rows(table, {}).empty


def test_evaluations_stand_where_training_had_spent_so_much(study):
    table = reach_rows(study).set_index(["task", "arm", "seed", "step"])["spent"]
    assert table.loc[("far", "grpo", 0)].tolist() == [0.0, 8 * 3.0 * 4, 8 * 3.0 * 8]
    hard, easy = (
        row["rollout_tool_calls"] + row["rollout_trajectories"]
        for row in (guided_step(0, probes=4), guided_step(STEPS, probes=4))
    )
    assert table.loc[("far", "actguide", 0)].tolist() == [0.0, 4 * hard, 4 * hard + 4 * easy]
    assert hard > easy == 8 * 3.0


def test_a_budget_is_compared_before_the_gains_that_cost_more(study):
    table = plots.measure_rows(study).set_index(["task", "arm", "seed"])
    own, base = (table.loc[("far", arm, 0)] for arm in ("actguide", "grpo"))
    assert own["budget"] == base["environment_steps"] < own["environment_steps"]
    assert base["exact_match_at_budget"] < own["exact_match_at_budget"] < 0.1 + 0.05 * STEPS


def test_guidance_is_drawn_of_the_arms_that_guide_on_the_first_task(study):
    figure = FIGURES["guidance"](study)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["ActGuide", "ActGuide whole"]
    assert len(figure.axes) == len(GUIDANCE)
    dots = [
        point
        for axis in figure.axes[:1]
        for part in axis.collections
        for point in part.get_offsets()
    ]
    assert [float(x) for x, _ in dots] == [0.5] * 8


def test_lines_of_reach_are_seeds_and_their_mean(study):
    figure = FIGURES["reached"](study)
    far, near = figure.axes
    assert len(far.lines) == len(near.lines) == 3 * (len(SEEDS) + 1)
    assert max(line.get_xdata()[-1] for line in far.lines) > 0.19


def test_figures_without_runs_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    experiment = Experiment("smoke", "18_own", TASKS, {}, dict(METHODS), SEEDS, (), (0, 1))
    empty = plots.open_study(experiment)
    for name in ("guidance", "reached"):
        figure = FIGURES[name](empty)
        assert {axis.texts[0].get_text() for axis in figure.axes if axis.texts} == {"no runs"}, name
