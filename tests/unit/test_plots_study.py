"""A study reads an experiment beside its baseline; every figure of the gallery draws from it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import pandas as pd
import pytest

from turncredit import plots
from turncredit.plans import Experiment, Plan, named_methods
from turncredit.plots.behaviour_rows import MEASURES, behaviour_rows
from turncredit.plots.gallery import CAPTIONS, EXHIBITS, GALLERY
from turncredit.results import write_table
from turncredit.storage import write_json
from turncredit.training import FIRST_K, Method

AEM = Method("grpo", {}, "aem", {}, "ppo_clip", {})
STEPS = 30


def methods(*arms: str) -> dict[str, Method]:
    return {arm: Method(**values) for arm, values in named_methods(arms).items()}


def write_run(
    root,
    task: str,
    arm: str,
    seed: int,
    *,
    grounded: float = 0.5,
    gain: float = 0.0,
    clips: float = 0.01,
    updates: int = 2,
) -> None:
    """A finished run whose numbers follow from its seed; its policy ends with `grounded`.

    `gain` adds to exact match and to the largest turn weight; `clips`: its clip fraction at even
    steps, 0 at odd ones.
    """
    folder = root / task / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    shares = {"search_first": 0.9, "missing_rewards": 0, "mean_abs_prob_diff": 1e-7}
    shares |= {"weight_min": 0.8, "weight_max": 1.3 + gain + 0.1 * seed}
    shares |= {"turn_ratio_max": 1.1, "divergence_k3": 0.0, "malformed": 0.0, "masked_share": 0.0}
    metrics = [
        {"step": s, "reward": 0.5 + 0.01 * seed, "entropy": 0.3, "grounded": grounded} | shares
        | {"clip_fraction": clips * (s % 2 == 0), "turns": 4 + 2 * (s % 2)}
        for s in range(STEPS)
    ]  # fmt: skip
    write_table(folder / "metrics.csv", metrics)
    turn = {"trajectories": 8, "answered": 2, "answered_correct": 1}
    turn |= {f"entropy_k{k}": 0.2 for k in FIRST_K}
    turns = [{"step": s, "turn": t} | turn for s in range(STEPS) for t in range(3)]
    pd.DataFrame(turns).to_csv(folder / "turns.csv.gz", index=False)
    ends = {"hops": "all", "questions": 8, "turns": 5.0, "search_first": 0.9, "grounded": grounded}
    ends |= {"exact_match": 0.5 + gain + 0.02 * seed, "answer_first": 0.0, "guess_first": 0.1}
    write_table(folder / "eval.csv", [{"step": STEPS} | ends | {"malformed": 0.0}])
    timing = {"rollout": 0.1, "logprobs": 0.05, "credit": 0.01, "update": 0.1, "metrics": 0.01}
    found = {"questions": 8, "missing_rewards": 0, "success": 0.5}
    bins = [{"factor": "hops", "bin": "2 hops"}, {"factor": "search", "bin": "plain"}]
    write_table(folder / "difficulty.csv", [row | found for row in bins])
    facts = {"seconds_of_a_step": timing, "steps_done": STEPS, "evaluated_at": STEPS}
    made_with = {"seed": seed, "warm_start_seed": seed % 2, "method": asdict(methods(arm)[arm])}
    made_with["task"] = {"prior": task.split("-")[0], "training": {"updates_per_batch": updates}}
    facts |= {"params": made_with}
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
    write_run(baseline, "trap", "dapo", 0)
    for task, arm in (("trap", "aem"), ("map", "aem"), ("trap", "aem_shuffle")):
        for seed in range(4):
            write_run(own, task, arm, seed)
    seeds = (0, 1, 2, 3)
    further = (Plan(("trap",), {}, {"aem_shuffle": AEM}, seeds),)
    arms = {"aem": AEM}
    return Experiment("smoke", "12_own", ("trap", "map"), {}, arms, seeds, further, (0, 1))


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


def test_a_plan_is_compared_with_the_seeds_of_the_reference_that_it_has_itself(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    missing = (study.outcomes["arm"] == "aem_shuffle") & (study.outcomes["seed"] < 2)
    study = replace(study, outcomes=study.outcomes[~missing])
    (few,) = (replace(plan, seeds=(2, 3)) for plan in experiment.further)
    headline, ablations = plots.plan_studies(study, replace(experiment, further=(few,)))
    assert set(headline.outcomes["seed"]) == {0, 1, 2, 3}
    for table in (ablations.outcomes, *vars(ablations.runs).values()):
        assert set(table["seed"]) == {2, 3}
    (row,) = ablations.comparisons()
    assert (row["reference_collapsed"], row["reference_of"]) == (0, 2)


def test_a_plan_holds_the_seeds_that_its_arms_have_beside(experiment):
    study = plots.open_study(experiment, beside=["10_base"])
    more = replace(experiment, seeds=(2, 3), further=())
    (headline,) = plots.plan_studies(study, more)
    assert set(headline.outcomes["seed"]) == {0, 1, 2, 3}
    assert {row["seeds"] for row in headline.comparisons()} == {4}


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


def experiment_of(notebook: str, arms: Sequence[str], variants=(), further=()) -> Experiment:
    """An experiment on the trap with one seed and two warm starts, and its further plans."""
    changes = {variant: {"world": {"people": 3}} for variant in variants}
    plans = tuple(Plan(("trap",), {v: {}}, methods(*others), (0,)) for v, others in further)
    return Experiment("smoke", notebook, ("trap",), changes, methods(*arms), (0,), plans, (0, 1))


STRENGTHS = {
    "aem_no_guard": ("no guard", 1.0),
    "aem_relative_guard": ("guard 2 × mean", 1.0),
    "aem_half": ("guard 0.1 nats", 0.5),
    "aem": ("guard 0.1 nats", 1.0),
    "aem_double": ("guard 0.1 nats", 2.0),
    "aem_strict_guard": ("guard 0.5 nats", 1.0),
}


@pytest.fixture
def strengths(tmp_path, monkeypatch):
    """AEM at three temperatures, at two other guards, and beside it; AEM itself lies elsewhere.

    Arm number i gains i / 100 over the baseline.  A second plan runs AEM and GRPO on a variant.
    """
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    own, variant = tmp_path / "15_what_is_missing", "trap-stochastic"
    for number, arm in enumerate(STRENGTHS):
        root = tmp_path / "12_aem" if arm == "aem" else own
        write_run(root, "trap", arm, 0, gain=0.01 * number)
        write_run(root, "trap", arm, 1, gain=0.01 * number)
    for task, arm in (("trap", "gigpo"), ("trap", "aem_shuffle"), ("trap", "gspo_aem"),
                      (variant, "grpo"), (variant, "aem")):  # fmt: skip
        write_run(own, task, arm, 0)
    for seed in range(3):
        write_run(tmp_path / "10_grpo_baseline", "trap", "grpo", seed)
    arms = [*(arm for arm in STRENGTHS if arm != "aem"), "gigpo", "aem_shuffle", "gspo_aem"]
    return experiment_of("15_what_is_missing", arms, further=[("stochastic", ["grpo", "aem"])])


BESIDE = ["10_grpo_baseline", "12_aem"]


def test_the_sweep_holds_the_arms_that_differ_in_the_coefficient_alone(strengths):
    rows = plots.sweep_rows(plots.open_study(strengths, beside=BESIDE))
    points = rows.drop_duplicates("arm").set_index("arm")[["guard", "temperature"]]
    assert dict(zip(points.index, points.itertuples(index=False, name=None), strict=True)) == (
        STRENGTHS
    )
    assert list(points.index) == list(STRENGTHS), "guards ascend, and temperatures in them"
    assert set(rows["task"]) == {"trap"}, "one arm of AEM on the variant is no sweep"
    found = rows.set_index(["arm", "seed"])
    for number, arm in enumerate(STRENGTHS):
        for seed in range(2):
            row = found.loc[(arm, seed)]
            assert row["exact_match"] == pytest.approx(0.5 + 0.01 * number + 0.02 * seed)
            assert row["alpha_spread"] == pytest.approx(0.5 + 0.01 * number + 0.1 * seed)


def test_a_planned_arm_without_runs_keeps_its_place_in_the_sweep(strengths):
    arms = strengths.arms | methods("aem_fivefold")
    study = plots.open_study(replace(strengths, arms=arms), beside=BESIDE)
    missing = plots.sweep_rows(study).set_index("arm").loc["aem_fivefold"]
    assert (missing["guard"], missing["temperature"]) == ("guard 0.1 nats", 5.0)
    assert missing[["task", "seed", "exact_match"]].isna().all()
    axis, below = plots.draw(study, "lambda_sweep").axes
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["0.5", "1", "2", "5"]
    means = axis.lines[2].get_ydata()
    assert means[:3] == pytest.approx([0.53, 0.54, 0.55]) and math.isnan(means[3])


def test_of_one_strength_the_sweep_shows_every_task(experiment):
    rows = plots.sweep_rows(plots.open_study(experiment, beside=["10_base"]))
    assert set(zip(rows["task"], rows["arm"], strict=True)) == {("trap", "aem"), ("map", "aem")}


def test_runs_of_one_arm_with_two_methods_are_refused_by_the_sweep(strengths, tmp_path):
    manifest = tmp_path / "12_aem" / "trap" / "aem" / "seed_1" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["params"]["method"]["weight_options"]["temperature"] = 3.0
    write_json(manifest, facts)
    with pytest.raises(ValueError, match=r"/aem/seed_\d: other runs of aem have another method"):
        plots.sweep_rows(plots.open_study(strengths, beside=BESIDE))


def test_behaviour_is_the_mean_over_steps_of_each_measure(strengths, tmp_path):
    run = tmp_path / "15_what_is_missing" / "trap" / "aem_half" / "seed_1"
    metrics = pd.read_csv(run / "metrics.csv").head(3)
    metrics.assign(distinct_actions=[0.5, 1.0, math.nan]).to_csv(run / "metrics.csv", index=False)
    study = plots.open_study(strengths, beside=BESIDE)
    for tasks, prefix in ((["trap"], ""), (["trap", "trap-stochastic"], "trap: ")):
        table, panels = behaviour_rows(study.only(tasks, ["aem_half"]))
        assert len(panels) == len(tasks) * len(MEASURES)
        panel = prefix + MEASURES["distinct_actions"]
        found = table[(table["task"] == panel) & (table["arm"] == "aem_half")]
        assert dict(zip(found["seed"], found["value"].fillna(-1), strict=True)) == {0: -1, 1: 0.75}
    figure = plots.draw(study.only(["trap"], ["aem_half"]), "behaviour")
    assert [axis.get_title(loc="left").replace("\n", " ") for axis in figure.axes] == [
        *MEASURES.values()
    ]


CLIPS = {
    "token_tight": ("token", "0.02"),
    "grpo": ("token", "0.2"),
    "turn_published": ("turn", "−0.003, +0.004"),
    "gspo": ("sequence", "−0.0003, +0.0004"),
}


@pytest.fixture
def clipping(tmp_path, monkeypatch):
    """Four ranges and a turn weight after four updates on a batch, GRPO after two as well."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    own = tmp_path / "13_is_clipping"
    for number, arm in enumerate([*CLIPS, "high_is_turns"], start=1):
        for seed in range(2):
            write_run(own, "trap-four", arm, seed, clips=0.1 * number, updates=4)
    write_run(own, "trap-two", "grpo", 0, clips=0.01, updates=2)
    arms = [*CLIPS, "high_is_turns"]
    return experiment_of("13_is_clipping", arms, ["four"], [("two", ["grpo"])])


def test_the_clip_grid_holds_the_arms_that_differ_in_the_objective_alone(clipping):
    rows = plots.clip_rows(plots.open_study(clipping))
    assert len(rows) == 2 * len(CLIPS) + 1
    points = rows.drop_duplicates("arm").set_index("arm")[["level", "clip_range"]]
    assert {arm: (level, text) for arm, level, text in points.itertuples(name=None)} == CLIPS
    token = rows[rows["level"] == "token"]
    assert list(dict.fromkeys(token["clip_range"])) == ["0.02", "0.2"], "ranges ascend"
    found = rows.set_index(["arm", "updates", "seed"])
    for number, arm in enumerate(CLIPS, start=1):
        assert found.loc[(arm, 4, 1), "clip_fraction"] == pytest.approx(0.05 * number)
        assert found.loc[(arm, 4, 1), "exact_match"] == pytest.approx(0.52)
        assert found.loc[(arm, 4, 1), "turns_sd"] == pytest.approx(math.sqrt(30 / 29))
    assert found.loc[("grpo", 2, 0), "clip_fraction"] == pytest.approx(0.005)


def test_a_clip_range_without_runs_keeps_its_place(clipping):
    arms = clipping.arms | methods("sequence_wide")
    study = plots.open_study(replace(clipping, arms=arms))
    missing = plots.clip_rows(study).set_index("arm").loc["sequence_wide"]
    assert (missing["level"], missing["clip_range"]) == ("sequence", "−0.003, +0.004")
    assert missing[["task", "seed", "updates", "clip_fraction"]].isna().all()
    axis = plots.draw(study, "clip_grid").axes[2]
    assert len(axis.get_xticks()) == 2 and axis.get_title(loc="right") == "seeds per point: 0–2"


def test_a_task_that_differs_in_more_than_the_updates_is_not_in_the_clip_grid(clipping, tmp_path):
    write_run(tmp_path / "13_is_clipping", "map", "gspo", 0)
    study = plots.open_study(
        replace(clipping, further=(Plan(("map",), {}, methods("gspo"), (0,)),))
    )
    assert "map" in set(study.outcomes["task"])
    assert set(plots.clip_rows(study)["task"]) == {"trap-four"}


def test_figures_of_a_factor_are_kept_once_and_count_the_runs_they_show(strengths, clipping):
    for experiment, beside, name, runs in (
        (strengths, BESIDE, "lambda_sweep", 2 * len(STRENGTHS) + 3),
        (clipping, [], "clip_grid", 2 * len(CLIPS) + 1),
    ):
        study = plots.open_study(experiment, beside=beside)
        kept = [(f, c) for f, _, c in plots.exhibits(study, experiment) if name in f]
        assert [file for file, _ in kept] == [f"{experiment.notebook}_{name}"]
        assert f"{runs} runs, from 2 warm starts" in kept[0][1]


def test_without_an_arm_beside_the_reference_no_figure_of_a_factor_is_kept(strengths):
    without = replace(strengths, arms=methods("gigpo"), further=())
    study = plots.open_study(without, beside=BESIDE)
    names = [name for name, _, _ in plots.exhibits(study, without)]
    assert names and not any("lambda_sweep" in name for name in names)
    assert plots.draw(study, "lambda_sweep").axes
