"""Runs that a tripwire ended are drawn to their end, marked, counted, and never dropped."""

import gzip
import json
import math

import pytest

from turncredit import plots, results

ARMS = ("grpo", "suffix_mask")
SETTINGS = plots.FigureParams(
    tier="smoke",
    experiments=("10_try",),
    tasks=("tiny",),
    arms=ARMS,
    reference_arm="grpo",
    smoothing=0.0,
    shift_threshold=0.5,
    shift_window=2,
    comparison_window=3,
    first_k=16,
    turns_shown=2,
    confidence_level=0.95,
)
COLLAPSE = {"stop_reason": "reward_collapse", "stop_step": 6, "evaluated_at": 7}
LOST = {"stop_reason": "non_finite", "stop_step": 6, "evaluated_at": None}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    return tmp_path


def write_run(root, arm: str, seed: int, *, steps: int = 12, ending: dict | None = None, exact=0.5):
    """A finished run of `steps` of 12 steps whose reward is the step; evaluated at 0 and at 6."""
    folder = root / "10_try" / "tiny" / arm / f"seed_{seed}"
    same = {"missing_rewards": 0, "clip_fraction": 0.0, "turns": 2.0, "search_first": 1.0}
    rows = [{"step": s, "reward": float(s), "entropy": 0.1} | same for s in range(steps)]
    results.write_table(folder / "metrics.csv", rows)
    entropies = {f"entropy_k{k}": 0.2 / min(k, 4) for k in plots.FIRST_K}
    counts = {"trajectories": 10, "answered": 1, "answered_correct": 1}
    turns = [{"step": s, "turn": t} | entropies | counts for s in range(steps) for t in range(2)]
    results.write_table(folder / "turns.csv.gz", turns)
    packed = folder / "turns.csv.gz"
    packed.write_bytes(gzip.compress(packed.read_bytes(), mtime=0))
    shared = {"turns": 2.0, "search_first": 1.0, "grounded": 0.5, "questions": 8}
    lost = (ending or {}).get("stop_reason") == "non_finite"
    evaluations = [(0, 0.0), (6, 0.9)] + ([] if lost else [(steps, exact)])
    results.write_table(
        folder / "eval.csv",
        [{"step": s, "hops": "all", "exact_match": e} | shared for s, e in evaluations],
    )
    manifest = {"seed": seed, "steps": 12, "steps_done": steps, "stop_reason": "finished"}
    (folder / "manifest.json").write_text(json.dumps(manifest | (ending or {})))


def crosses(figure) -> list[tuple[float, float]]:
    """Where the marks of stopped seeds are."""
    lines = [line for axis in figure.axes for line in axis.lines if line.get_marker() == "X"]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def legend_texts(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def curve_figures(runs, shifts) -> dict:
    grid = (SETTINGS.tasks, SETTINGS.arms)
    entropies, look = plots.turn_entropies(runs, SETTINGS), {"k": 16, "weight": 0.0}

    def curve(column: str):
        return plots.smoothed(runs.metrics, column, 0.0)

    return {
        "training_reward": plots.training_reward(curve("reward"), *grid, weight=0.0),
        "total_entropy": plots.total_entropy(curve("entropy"), *grid, weight=0.0),
        "clip_fraction": plots.clip_fraction(curve("clip_fraction"), *grid, weight=0.0),
        "turns": plots.turns(curve("turns"), *grid, weight=0.0),
        "search_first": plots.search_first(runs.metrics, shifts, *grid, threshold=0.5),
        "turn_entropy": plots.turn_entropy(entropies, *grid, turns=range(2), **look),
        "decision_vs_execution": plots.decision_vs_execution(entropies, shifts, *grid, **look),
    }


def captions(runs, shifts) -> dict[str, str]:
    return plots.captions(runs, shifts, plots.turn_accuracies(runs, shifts, SETTINGS), SETTINGS)


def test_a_stopped_seed_ends_in_a_cross_on_every_curve_and_captions_count_it(root):
    for seed in range(3):
        write_run(root, "grpo", seed, **({"steps": 7, "ending": COLLAPSE} if seed == 1 else {}))
        write_run(root, "suffix_mask", seed)
    runs = plots.read_runs(SETTINGS)
    shifts = plots.shift_table(runs, SETTINGS)
    figures, texts = curve_figures(runs, shifts), captions(runs, shifts)
    per_turn = {"turn_entropy": 2, "decision_vs_execution": 2}
    for name, figure in figures.items():
        marks = crosses(figure)
        assert [x for x, _ in marks] == [6.0] * per_turn.get(name, 1), name
        assert "stopped by a tripwire" in legend_texts(figure), name
        assert "marked by a cross where they end: 1, " in texts[name], name
    assert crosses(figures["training_reward"]) == [(6.0, 6.0)]
    for name in plots.FIGURES:
        assert "1, tiny GRPO seed 1 (reward collapse, step 6)." in texts[name], name
        assert ("by a cross" in texts[name]) == (name in figures), name


def test_without_a_stopped_run_nothing_speaks_of_tripwires(root):
    write_run(root, "grpo", 0)
    runs = plots.read_runs(SETTINGS)
    shifts = plots.shift_table(runs, SETTINGS)
    for name, figure in curve_figures(runs, shifts).items():
        assert crosses(figure) == [], name
        assert "stopped by a tripwire" not in legend_texts(figure), name
    assert not any("tripwire" in text for text in captions(runs, shifts).values())


def test_a_stopped_run_counts_with_the_evaluation_where_it_stopped(root):
    write_run(root, "grpo", 0, exact=0.5)
    write_run(root, "grpo", 1, steps=7, ending=COLLAPSE, exact=0.0)
    runs = plots.read_runs(SETTINGS)
    row = plots.summary_rows(runs, plots.shift_table(runs, SETTINGS), SETTINGS)[0]
    assert (row["runs"], row["finished"]) == (2, 2)
    assert (row["exact_match"], row["exact_match_missing"]) == (0.25, 0)


def test_a_lost_policy_has_a_missing_final_result_and_not_an_earlier_one(root):
    """0.9 at step 6, just before the update that was lost, would flatter its arm."""
    write_run(root, "grpo", 0, exact=0.5)
    write_run(root, "grpo", 1, steps=7, ending=LOST)
    write_run(root, "suffix_mask", 0, exact=0.75)
    write_run(root, "suffix_mask", 1, exact=0.75)
    runs = plots.read_runs(SETTINGS)
    shifts = plots.shift_table(runs, SETTINGS)
    assert len(plots.final_evaluations(runs)) == 4, "a run that is over, missing or not"
    baseline, masked = plots.summary_rows(runs, shifts, SETTINGS)
    assert (baseline["exact_match"], baseline["exact_match_seeds"]) == (0.5, 1)
    assert baseline["exact_match_missing"] == 1
    assert baseline["search_first"] == 1.0 and not math.isnan(baseline["grounded"])
    assert (masked["difference"], masked["difference_seeds"]) == (0.25, 1)
    caption = captions(runs, shifts)["results_table"]
    assert "without a final evaluation, since an update was not finite: 1." in caption
    plots.results_table(plots.summary_rows(runs, shifts, SETTINGS), reference_arm="grpo")
