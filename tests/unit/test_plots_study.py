"""A study reads an experiment beside its baseline; every figure of the gallery draws from it."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from turncredit import plots
from turncredit.plans import Experiment, Plan
from turncredit.plots.gallery import CAPTIONS, EXHIBITS, GALLERY
from turncredit.results import write_table
from turncredit.storage import write_json
from turncredit.training import FIRST_K, Method

GRPO = Method("grpo", {}, "none", {}, "ppo_clip", {})
AEM = Method("grpo", {}, "aem", {}, "ppo_clip", {})
STEPS = 30


def write_run(root, task: str, arm: str, seed: int, *, grounded: float = 0.5) -> None:
    """A finished run whose numbers follow from its seed; its policy ends with `grounded`."""
    folder = root / task / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    shares = {"search_first": 0.9, "clip_fraction": 0.01, "turns": 5.0, "missing_rewards": 0}
    shares |= {"weight_min": 0.8, "weight_max": 1.3, "mean_abs_prob_diff": 1e-7}
    shares |= {"turn_ratio_max": 1.1, "divergence_k3": 0.0, "malformed": 0.0, "masked_share": 0.0}
    metrics = [
        {"step": s, "reward": 0.5 + 0.01 * seed, "entropy": 0.3, "grounded": grounded} | shares
        for s in range(STEPS)
    ]
    write_table(folder / "metrics.csv", metrics)
    turn = {"trajectories": 8, "answered": 2, "answered_correct": 1}
    turn |= {f"entropy_k{k}": 0.2 for k in FIRST_K}
    turns = [{"step": s, "turn": t} | turn for s in range(STEPS) for t in range(3)]
    pd.DataFrame(turns).to_csv(folder / "turns.csv.gz", index=False)
    ends = {"hops": "all", "questions": 8, "turns": 5.0, "search_first": 0.9, "grounded": grounded}
    ends |= {"exact_match": 0.5 + 0.02 * seed, "answer_first": 0.0, "guess_first": 0.1}
    write_table(folder / "eval.csv", [{"step": STEPS} | ends | {"malformed": 0.0}])
    timing = {"rollout": 0.1, "logprobs": 0.05, "credit": 0.01, "update": 0.1, "metrics": 0.01}
    found = {"questions": 8, "missing_rewards": 0, "success": 0.5}
    bins = [{"factor": "hops", "bin": "2 hops"}, {"factor": "search", "bin": "plain"}]
    write_table(folder / "difficulty.csv", [row | found for row in bins])
    facts = {"seconds_of_a_step": timing, "steps_done": STEPS}
    facts |= {"params": {"seed": seed, "method": arm, "warm_start_seed": seed % 2}}
    facts |= {"code_hash": "c", "seconds": 3.0, "stop_reason": "finished", "seed": seed}
    write_json(folder / "manifest.json", facts)


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Two plans: AEM on two tasks, its shuffle on one; the baseline lies in another notebook."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path / "results"))
    baseline, own = tmp_path / "results" / "10_base", tmp_path / "results" / "12_own"
    for task in ("trap", "map", "unasked"):
        for seed in range(4):
            write_run(baseline, task, "grpo", seed, grounded=0.0 if seed == 1 else 0.5)
    write_run(baseline, "trap", "rloo", 0)
    for task, arm in (("trap", "aem"), ("map", "aem"), ("trap", "aem_shuffle")):
        for seed in range(4):
            write_run(own, task, arm, seed)
    further = (Plan(("trap",), {}, {"aem_shuffle": AEM}, (0, 1)),)
    arms = {"aem": AEM}
    return Experiment("smoke", "12_own", ("trap", "map"), {}, arms, (0, 1), further, (0, 1))


def test_a_study_holds_its_own_runs_and_of_the_others_those_on_its_tasks(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    assert study.grid == (("trap", "map"), ("grpo", "aem", "aem_shuffle"))
    counts = study.outcomes.groupby(["task", "arm"]).size().to_dict()
    assert counts == {
        ("trap", "grpo"): 4, ("map", "grpo"): 4, ("trap", "aem"): 4, ("map", "aem"): 4,
        ("trap", "aem_shuffle"): 4,
    }  # fmt: skip
    assert study.outcomes.groupby("arm")["collapsed"].sum().to_dict() == {
        "grpo": 2, "aem": 0, "aem_shuffle": 0,
    }  # fmt: skip


def test_each_plan_keeps_the_reference_on_its_tasks(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    headline, ablations = plots.plan_studies(study, experiment)
    assert headline.grid == (("trap", "map"), ("grpo", "aem"))
    assert ablations.grid == (("trap",), ("grpo", "aem_shuffle"))
    assert set(ablations.runs.metrics["task"]) == {"trap"}
    assert set(ablations.runs.turns["arm"]) == {"grpo", "aem_shuffle"}
    (row,) = ablations.comparisons()
    assert (row["arm"], row["seeds"], row["difference"]) == ("aem_shuffle", 4, 0.0)
    assert (row["collapsed"], row["reference_collapsed"]) == (0, 1)


def test_plans_of_the_same_arms_are_one_study(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    parts = replace(
        experiment, tasks=("trap",), further=(Plan(("map",), {}, {"aem": AEM}, (0, 1, 2, 3)),)
    )
    (both,) = plots.plan_studies(study, parts)
    assert both.grid == (("trap", "map"), ("grpo", "aem"))


def test_what_is_saved_can_be_read_back(experiment, tmp_path):
    study = plots.open_study(experiment, beside=["10_base"])
    study.save()
    folder = tmp_path / "results" / "12_own"
    saved = pd.read_csv(folder / "outcomes.csv")
    assert len(saved) == len(study.outcomes)
    assert saved["exact_match"].tolist() == pytest.approx(study.outcomes["exact_match"].tolist())
    assert len(pd.read_csv(folder / "comparisons.csv")) == len(study.comparisons())


def test_runs_of_other_code_are_refused(experiment, tmp_path):
    manifest = tmp_path / "results" / "12_own" / "map" / "aem" / "seed_1" / "manifest.json"
    write_json(manifest, json.loads(manifest.read_text()) | {"code_hash": "other"})
    with pytest.raises(ValueError, match="come from different code"):
        plots.open_study(experiment, beside=["10_base"])


@pytest.mark.parametrize("name", GALLERY)
def test_every_figure_of_the_gallery_draws(experiment, name):
    figure = plots.draw(plots.open_study(experiment, beside=["10_base"]), name)
    assert figure.axes


def test_exhibits_are_named_by_notebook_figure_and_plan(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    shown = list(plots.exhibits(study, experiment))
    names = ("outcomes", "differences", "outcomes_2", "differences_2")
    assert [name for name, _, _ in shown] == [f"12_own_{name}" for name in names]
    assert "16 runs, from 2 warm starts" in shown[0][2]
    assert "8 runs, from 2 warm starts" in shown[2][2]


def test_every_figure_of_the_gallery_has_a_caption():
    assert set(CAPTIONS) == set(GALLERY)
    assert {name for names in EXHIBITS.values() for name in names} <= set(GALLERY)


def test_an_unknown_figure_is_refused_by_name(experiment):
    with pytest.raises(ValueError, match=r"no figure 'pie'; there are: training_reward"):
        plots.draw(plots.open_study(experiment), "pie")
