"""Figures from fabricated runs: what is drawn, what is said where nothing is, and equal bytes."""

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from turncredit import notebook_runner, paths, plots, results
from turncredit.plots.panels import seed_mean
from turncredit.plots.style import ARM_COLOURS, SPARE_LOOKS

TASKS, ARMS = ("informative_guess", "costly_guess", "factbook"), ("grpo", "suffix_mask")
FOLDERS = {"grpo": "10_grpo_baseline", "suffix_mask": "11_suffix_masking"}
NOTEBOOK = paths.PACKAGE.parents[1] / "notebooks" / "90_figures.ipynb"
CURVES = ("training_reward", "total_entropy", "clip_fraction", "turns", "search_first")


def settings_for(**changes) -> plots.FigureParams:
    values = {
        "tier": "smoke",
        "experiments": tuple(FOLDERS.values()),
        "tasks": TASKS,
        "arms": ARMS,
        "reference_arm": "grpo",
        "smoothing": 0.5,
        "shift_threshold": 0.5,
        "shift_window": 2,
        "comparison_window": 3,
        "first_k": 16,
        "turns_shown": 3,
        "confidence_level": 0.95,
    }
    return plots.FigureParams(**(values | changes))


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """An empty results folder of the tier."""
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def write_run(
    root: Path, task: str, arm: str, seed: int, *, steps=12, shift_at=None, exact=0.5, finished=True
) -> Path:
    """A run that searches first until `shift_at`; its reward is the seed, then one more a step."""
    folder = root / FOLDERS[arm] / task / arm / f"seed_{seed}"
    metrics = [
        {
            "step": step,
            "reward": float(seed + step),
            "missing_rewards": 1,
            "entropy": 0.1 + seed,
            "clip_fraction": 0.002,
            "turns": 4.0,
            "search_first": 0.0 if shift_at is not None and step >= shift_at else 1.0,
        }
        for step in range(steps)
    ]
    results.write_table(folder / "metrics.csv", metrics)
    turns = [turn_row(step, turn) for step in range(steps) for turn in range(4)]
    results.write_table(folder / ("turns.csv.gz" if finished else "turns.csv"), turns)
    if finished:
        compress(folder / "turns.csv.gz")
        manifest = {"seed": seed, "steps": steps, "code_hash": "c", "params": {"method": arm}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    shared = {"turns": 4.0, "search_first": 0.25, "grounded": 0.75, "questions": 8}
    evaluations = [(0, "all", 0.0), (steps, "all", exact), (steps, "2", 0.0)]
    results.write_table(
        folder / "eval.csv",
        [{"step": s, "hops": hops, "exact_match": e} | shared for s, hops, e in evaluations],
    )
    return folder


def turn_row(step: int, turn: int) -> dict:
    """Ten trajectories; at turn 0 nobody answers, then `turn` do, right only from step 6 on."""
    entropies = {f"entropy_k{k}": 0.2 / min(k, 4) / (turn + 1) for k in plots.FIRST_K}
    answered = {"answered": turn, "answered_correct": turn if step >= 6 else 0}
    return {"step": step, "turn": turn, "trajectories": 10} | entropies | answered


def compress(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def draw(settings: plots.FigureParams) -> dict[str, Figure]:
    """Every figure, by name."""
    runs = plots.read_runs(settings)
    shifts = plots.shift_table(runs, settings)
    entropies = plots.turn_entropies(runs, settings)
    grid, ema = (settings.tasks, settings.arms), {"weight": settings.smoothing}
    turns, look = range(settings.turns_shown), {"k": settings.first_k} | ema

    def curve(column: str) -> pd.DataFrame:
        return plots.smoothed(runs.metrics, column, settings.smoothing)

    by_k, accuracies = (
        plots.entropies_by_k(runs, settings),
        plots.turn_accuracies(runs, shifts, settings),
    )
    summary = plots.summary_rows(runs, shifts, settings)
    return {
        "training_reward": plots.training_reward(curve("reward"), *grid, **ema),
        "total_entropy": plots.total_entropy(curve("entropy"), *grid, **ema),
        "clip_fraction": plots.clip_fraction(curve("clip_fraction"), *grid, **ema),
        "turns": plots.turns(curve("turns"), *grid, **ema),
        "search_first": plots.search_first(runs.metrics, shifts, *grid, threshold=0.5),
        "turn_entropy": plots.turn_entropy(entropies, *grid, turns=turns, **look),
        "decision_vs_execution": plots.decision_vs_execution(entropies, shifts, *grid, **look),
        "entropy_k": plots.entropy_k(by_k, *grid, ks=plots.FIRST_K, **ema),
        "turn_accuracy": plots.turn_accuracy(accuracies, *grid, turns=turns),
        "results_table": plots.results_table(summary, reference_arm="grpo"),
    }


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def data_lines(axis) -> list:
    """The curves of a panel, without thresholds and marks."""
    return [line for line in axis.lines if len(line.get_xdata()) > 2]


def test_without_any_results_every_panel_says_so(root):
    figures = draw(settings_for())
    assert set(figures) == set(plots.FIGURES)
    for name, figure in figures.items():
        if name != "results_table":
            assert texts(figure).count("no runs") == len(figure.axes), name
            assert not any(axis.has_data() for axis in figure.axes), name
    assert texts(figures["results_table"]).count("no runs") == len(TASKS) * len(ARMS)


def test_an_absent_arm_or_task_is_named_and_the_rest_is_drawn(root):
    write_run(root, "informative_guess", "grpo", 0)
    figures = draw(settings_for())
    for name in CURVES:
        assert "no runs: suffix mask" in texts(figures[name]), name
        assert texts(figures[name]).count("no runs") == 2, name
        assert figures[name].axes[0].get_title(loc="left") == "informative guess"
    for name in ("turn_entropy", "decision_vs_execution", "entropy_k"):
        assert texts(figures[name]).count("no runs") == 5, name
    assert texts(figures["results_table"]).count("no runs") == 5


def test_each_seed_is_a_line_to_its_end_and_the_mean_ends_with_the_shortest(root):
    write_run(root, "factbook", "grpo", 0, steps=12)
    write_run(root, "factbook", "grpo", 1, steps=7, finished=False)
    axis = draw(settings_for(smoothing=0.0))["training_reward"].axes[TASKS.index("factbook")]
    long, short, mean = data_lines(axis)
    assert list(long.get_ydata()) == [float(step) for step in range(12)]
    assert list(short.get_xdata()) == list(range(7))
    drawn = [y for y in mean.get_ydata() if not math.isnan(y)]
    assert drawn == [step + 0.5 for step in range(7)]
    assert mean.get_linewidth() > 2 * long.get_linewidth()


def test_a_missing_value_is_a_gap_in_the_mean():
    runs = pd.DataFrame({"seed": [0, 0, 1, 1], "step": [0, 1, 0, 1], "reward": [1, 2, 3, math.nan]})
    assert seed_mean(runs, "reward").tolist() == pytest.approx([2, math.nan], nan_ok=True)


@pytest.mark.parametrize("arms", [ARMS, ARMS[::-1]])
def test_an_arm_keeps_its_colour_whatever_the_order(root, arms):
    for arm in ARMS:
        write_run(root, "factbook", arm, 0)
    figure = draw(settings_for(arms=arms))["total_entropy"]
    colours = [to_hex(line.get_color()).upper() for line in data_lines(figure.axes[2])]
    assert colours == [ARM_COLOURS[arm].upper() for arm in arms for _ in range(2)]


def test_arms_without_a_colour_of_their_own_are_told_apart_or_refused():
    known = plots.arm_colours(["a", "grpo", "b"])
    assert len(set(known.values())) == 3 and known["grpo"] == ARM_COLOURS["grpo"]
    many = [f"own_{number:02}" for number in range(len(SPARE_LOOKS))]
    looks = plots.arm_looks([*many, "grpo"])
    assert len(set(looks.values())) == len(many) + 1
    with pytest.raises(ValueError, match="no colour left for the arms own_20"):
        plots.arm_colours([*many, "own_20"])


def test_shift_steps_are_marked_per_seed(root):
    write_run(root, "factbook", "grpo", 0, shift_at=5)
    write_run(root, "factbook", "grpo", 1)
    write_run(root, "factbook", "grpo", 2, shift_at=8)
    for name, panel in (("search_first", 2), ("decision_vs_execution", 2)):
        axis = draw(settings_for())[name].axes[panel]
        marks = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "^"]
        assert marks == [6, 9], name  # the second low step makes the mean of two fall below 0.5


def test_turn_accuracies_by_hand(root):
    # Searches first up to step 4: the windows of two are low from step 6 on.
    write_run(root, "factbook", "grpo", 0, shift_at=5)
    settings = settings_for()
    runs = plots.read_runs(settings)
    table = plots.turn_accuracies(runs, plots.shift_table(runs, settings), settings)
    before, after = (table[table["period"] == period] for period in ("before", "after"))
    assert before["shifted"].all() and len(before) == len(after) == 4
    assert before["trajectories"].tolist() == [30] * 4  # steps 2, 3, 4
    assert before["answered"].tolist() == [0, 3, 6, 9]
    assert before["share"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3])
    assert before["accuracy"].tolist() == pytest.approx([math.nan, 0, 0, 0], nan_ok=True)
    assert after["accuracy"].tolist() == pytest.approx([math.nan, 1, 1, 1], nan_ok=True)


def test_summary_by_hand(root):
    for seed, exact in enumerate([0.25, 0.5, 0.75]):
        write_run(root, "factbook", "grpo", seed, exact=exact)
        write_run(root, "factbook", "suffix_mask", seed, exact=exact + 0.125, shift_at=5)
    write_run(root, "factbook", "suffix_mask", 3, exact=0.0, finished=False)
    settings = settings_for()
    runs = plots.read_runs(settings)
    rows = plots.summary_rows(runs, plots.shift_table(runs, settings), settings)
    assert [(row["task"], row["arm"]) for row in rows] == [(t, a) for t in TASKS for a in ARMS]
    baseline, masked = rows[-2:]
    assert baseline["exact_match"] == 0.5
    assert baseline["exact_match_high"] == pytest.approx(0.5 + 0.25 * 4.302653 / math.sqrt(3))
    assert math.isnan(baseline["difference"]) and baseline["shift_steps"] == "never never never"
    assert (masked["runs"], masked["finished"]) == (4, 3)  # the unfinished run gives no result
    assert masked["exact_match"] == 0.625
    assert masked["difference"] == masked["difference_low"] == masked["difference_high"] == 0.125
    assert (masked["difference_seeds"], masked["difference_missing"]) == (3, 0)
    assert masked["shift_steps"] == "6 6 6 never" and masked["grounded"] == 0.75


def test_a_run_that_has_only_begun_is_no_error(root):
    folder = write_run(root, "factbook", "grpo", 0, finished=False)
    (folder / "metrics.csv").unlink()
    write_run(root, "costly_guess", "grpo", 0, steps=1, finished=False)
    assert set(draw(settings_for())) == set(plots.FIGURES)


def test_turns_of_a_step_without_metrics_are_left_out(root):
    folder = write_run(root, "factbook", "grpo", 0, finished=False)
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(lines[:-1]))
    assert plots.read_runs(settings_for()).turns["step"].max() == 10


def test_results_that_no_figure_would_show_are_refused(root):
    write_run(root, "factbook", "grpo", 0)
    with pytest.raises(ValueError, match="'factbook'"):
        plots.read_runs(settings_for(tasks=TASKS[:2]))
    with pytest.raises(ValueError, match="'grpo'"):
        plots.read_runs(settings_for(arms=("suffix_mask",), reference_arm="suffix_mask"))


def test_one_run_in_two_experiments_is_refused(root):
    write_run(root, "factbook", "grpo", 0)
    (root / "12_again").symlink_to(root / FOLDERS["grpo"])
    with pytest.raises(ValueError, match="factbook/grpo/seed_0"):
        plots.read_runs(settings_for(experiments=(FOLDERS["grpo"], "12_again")))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tasks": ()}, "tasks"),
        ({"reference_arm": "aem"}, "aem"),
        ({"first_k": 3}, "3"),
        ({"turns_shown": 1}, "turns_shown"),
    ],
)
def test_parameters_that_make_no_figure_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        settings_for(**changes)


def test_ks_longer_than_every_first_turn_are_one_curve(root):
    write_run(root, "factbook", "grpo", 0)  # fabricated turns have four tokens
    settings = settings_for()
    runs = plots.read_runs(settings)
    assert sorted(plots.entropies_by_k(runs, settings)["k"].unique()) == [1, 2, 4]
    figure = draw(settings)["entropy_k"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["k = 1", "k = 2", "k = 4 to 128 (equal)"]


def test_smoothing_does_not_cross_runs(root):
    for seed in (0, 5):
        write_run(root, "factbook", "grpo", seed, steps=2)
    table = plots.smoothed(plots.read_runs(settings_for()).metrics, "reward", 0.5)
    assert table["reward"].tolist() == pytest.approx([0, 1 / 1.5, 5, 8.5 / 1.5])


def test_captions_render_their_numbers_from_the_tables(root):
    for seed in range(3):
        write_run(root, "factbook", "grpo", seed, shift_at=5 if seed else None)
    settings = settings_for()
    runs = plots.read_runs(settings)
    shifts = plots.shift_table(runs, settings)
    accuracies = plots.turn_accuracies(runs, shifts, settings)
    captions = plots.captions(runs, shifts, accuracies, settings)
    assert tuple(captions) == plots.FIGURES
    assert "weight 0.5" in captions["training_reward"]
    assert "factbook: GRPO 11.00, suffix mask no runs" in captions["training_reward"]
    assert "out of the mean: 36." in captions["training_reward"]
    assert "informative guess: no runs" in captions["search_first"]
    assert "GRPO 2 of 3" in captions["search_first"]
    assert "mean 0.200 %, largest value 0.20 %" in captions["clip_fraction"]
    assert "answered there: 6 of 18" in captions["turn_accuracy"]
    assert "behind an accuracy: 3." in captions["turn_accuracy"]
    assert "From k = 4 on" in captions["entropy_k"]


def test_only_the_reference_tier_writes_to_the_committed_figures(root, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_HOME", str(root / "home"))
    assert plots.figure_folder(settings_for(tier="cpu")) == root / "home" / "figures"
    assert plots.figure_folder(settings_for()) == root / "figures"


def test_saved_figures_hold_no_date_or_version_and_are_equal_under_any_settings(root, tmp_path):
    write_run(root, "factbook", "grpo", 0)
    figure = draw(settings_for())["turns"]
    first = plots.save_figure(figure, tmp_path / "a", "turns")
    again = plots.save_figure(figure, tmp_path / "again", "turns")
    with matplotlib.rc_context({"font.size": 20, "path.simplify": False, "svg.fonttype": "none"}):
        before = dict(matplotlib.rcParams)
        second = plots.save_figure(draw(settings_for())["turns"], tmp_path / "b", "turns")
        assert dict(matplotlib.rcParams) == before
    assert [path.name for path in first] == ["turns.png", "turns.svg"]
    for one, *others in zip(first, again, second, strict=True):
        assert all(one.read_bytes() == other.read_bytes() for other in others), one.name
        for word in (b"Matplotlib", b"matplotlib.org", b"dc:date"):
            assert word not in one.read_bytes(), (one.name, word)


def test_a_figure_that_cannot_be_written_names_its_file(root, tmp_path):
    (tmp_path / "figures").write_text("a file, not a folder")
    with pytest.raises(OSError, match=r"turns\.png"):
        plots.save_figure(Figure(), tmp_path / "figures", "turns")


CELLS = """
import pathlib, sys
from turncredit import notebook_runner
path = pathlib.Path(sys.argv[1])
for cell in notebook_runner.code_cells(notebook_runner.read_notebook(path)):
    exec(cell.source, globals())
    if "parameters" in cell.metadata.get("tags", []):
        tier, studies = "smoke", []  # of whole runs, which test_plots_study draws
"""


@pytest.mark.slow
def test_two_runs_of_the_notebook_give_equal_bytes(root, tmp_path):
    write_run(root, "informative_guess", "grpo", 0, shift_at=5, steps=40)
    write_run(root, "informative_guess", "suffix_mask", 0, steps=30, finished=False)
    contents = []
    for hash_seed in ("1", "2"):
        environment = {"PYTHONPATH": str(paths.PACKAGE.parent), "PYTHONHASHSEED": hash_seed}
        subprocess.run(
            [sys.executable, "-c", CELLS, str(NOTEBOOK)],
            check=True,
            capture_output=True,
            cwd=tmp_path,
            env=os.environ | environment,
        )
        written = [*(root / "figures").iterdir(), root / "90_figures" / "summary.csv"]
        contents.append({path.name: path.read_bytes() for path in written})
        for path in written:
            path.unlink()
    names = {f"{name}.{end}" for name in plots.FIGURES for end in ("png", "svg")}
    assert set(contents[0]) == names | {"captions.json", "summary.csv"}
    assert contents[0] == contents[1]


def test_the_notebook_shows_every_figure():
    cells = notebook_runner.code_cells(notebook_runner.read_notebook(NOTEBOOK))
    source = "\n".join(cell.source for cell in cells)
    for name in plots.FIGURES:
        assert f'"{name}")' in source, name
