"""The report's training curves: every run is in them, by the numbers of its table."""

import itertools
import json
import math
import re

import pandas as pd
import pytest

from turncredit import report, stats
from turncredit.plots.sources import FigureParams
from turncredit.report import curve_picture
from turncredit.report.blocks import Curves, markdown, page
from turncredit.report.curves import METRICS, curve_chart, packed, unpacked
from turncredit.results import write_table
from turncredit.storage import write_json

SETTINGS = FigureParams(
    tier="smoke",
    experiments=("10_base",),
    tasks=("trap", "other"),
    arms=("grpo", "suffix_mask"),
    reference_arm="grpo",
    smoothing=0.9,
    shift_threshold=0.5,
    shift_window=10,
    comparison_window=20,
    first_k=16,
    turns_shown=2,
    confidence_level=0.95,
)


def write_run(root, notebook, task, arm, seed, *, steps=6, over=True):
    folder = root / notebook / task / arm / f"seed_{seed}"
    folder.mkdir(parents=True)
    rows = [
        {"step": s, "reward": 0.1 * s + 0.01 * seed, "search_first": 0.5, "entropy": 2.0 - 0.1 * s}
        | {"grounded": math.nan if s == 2 else 0.25}
        for s in range(steps)
    ]
    write_table(folder / "metrics.csv", rows)
    if over:
        write_json(folder / "manifest.json", {"params": {"seed": seed}, "code_hash": "c"})


@pytest.fixture
def root(tmp_path, monkeypatch):
    found = tmp_path / "results"
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(found))
    for seed in range(3):
        write_run(found, "10_base", "trap", "grpo", seed)
        write_run(found, "11_mask", "trap", "suffix_mask", seed, steps=6 - seed)
    write_run(found, "11_mask", "other", "mine", 0, steps=9)
    return found


NOTEBOOKS = ["10_base", "11_mask"]


def test_every_finished_run_is_in_the_chart_once(root):
    write_run(root, "11_mask", "trap", "grpo", 2)  # 10_base holds it already
    write_run(root, "11_mask", "trap", "grpo", 7, over=False)
    chart = curve_chart(SETTINGS, NOTEBOOKS)
    runs = {
        (task, arm, seed)
        for task, found in chart["tasks"].items()
        for arm, seeds in found["runs"].items()
        for seed in seeds
    }
    trap = {("trap", arm, str(s)) for arm in ("grpo", "suffix_mask") for s in range(3)}
    assert runs == trap | {("other", "mine", "0")}
    assert chart["first"] == {"task": "trap", "metric": "reward", "arms": ["grpo", "suffix_mask"]}
    assert list(chart["arms"]) == ["grpo", "suffix_mask", "mine"]
    assert json.loads(json.dumps(chart)) == chart


def test_the_numbers_are_those_of_the_table(root):
    run = curve_chart(SETTINGS, NOTEBOOKS)["tasks"]["trap"]["runs"]["grpo"]["2"]
    assert set(run) == set(METRICS)
    table = pd.read_csv(root / "10_base" / "trap" / "grpo" / "seed_2" / "metrics.csv")
    for name in METRICS:
        assert unpacked(run[name]) == pytest.approx(table[name].tolist(), abs=5e-4, nan_ok=True)
    assert run["grounded"] == "250 250 . 250 250 250"
    assert packed([]) == ""


def test_more_arms_of_ones_own_than_spare_colours_are_drawn(root):
    for number in range(9):
        write_run(root, "11_mask", "trap", f"mine_{number}", 0)
    chart = curve_chart(SETTINGS, NOTEBOOKS)
    assert all(re.fullmatch(r"#[0-9A-Fa-f]{6}", arm["colour"]) for arm in chart["arms"].values())
    assert len(chart["arms"]) == 12


def points(svg, kind):
    found = re.findall(rf'<polyline class="{kind}" stroke="[^"]*" points="([^"]*)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in found]


def test_the_picture_without_a_script_has_every_run_of_what_is_shown_first(root):
    svg = curve_picture.picture(curve_chart(SETTINGS, NOTEBOOKS))
    runs, means = points(svg, "run"), points(svg, "mean")
    assert [len(line) for line in runs] == [6, 6, 6, 6, 5, 4]
    assert [len(line) for line in means] == [6, 6]
    assert {round(line[0][0], 1) for line in runs} == {float(curve_picture.LEFT)}
    assert max(x for line in runs for x, _ in line) == curve_picture.WIDTH - curve_picture.RIGHT
    # Heights are linear in the smoothed values: two of them tell where the third must be.
    smooth = stats.ema([0.1 * s for s in range(6)], 0.9)
    (_, a), (_, b), (_, c) = runs[0][0], runs[0][5], runs[0][3]
    share = (smooth[3] - smooth[0]) / (smooth[5] - smooth[0])
    assert c == pytest.approx(a + share * (b - a), abs=0.11)
    assert ">GRPO</text>" in svg and ">suffix mask</text>" in svg


def test_a_mean_is_over_the_runs_that_go_on():
    assert curve_picture.mean_line([[1.0, 2.0], [3.0]]) == [2.0, 2.0]
    assert math.isnan(curve_picture.mean_line([[math.nan], [math.nan]])[0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 250.0), (0.4999, 0.5001)])
def test_ticks_are_few_round_and_inside(low, high):
    found = curve_picture.ticks(low, high, 6)
    assert 2 <= len(found) <= 8
    assert all(low <= value <= high for value in found)
    gaps = {round(b - a, 9) for a, b in itertools.pairwise(found)}
    assert len(gaps) == 1


def test_labels_keep_their_distance_and_stay_inside():
    placed = curve_picture.spread({str(n): 370.0 for n in range(5)})
    heights = sorted(placed.values())
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 15
    assert heights[-1] <= curve_picture.HEIGHT - curve_picture.BOTTOM


def test_the_page_is_self_contained_and_says_what_is_missing_without_a_script(root):
    text = page("t", [Curves(curve_chart(SETTINGS, NOTEBOOKS))])
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.S)
    assert [kind for kind, _ in scripts] == [' type="application/json"', ""]
    assert json.loads(scripts[0][1]) == curve_chart(SETTINGS, NOTEBOOKS)
    assert not re.search(r"(?:src|href)=|@import|fetch\(|XMLHttp|import\(", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "Without JavaScript only GRPO, suffix mask on trap are shown" in text
    told = markdown([Curves(curve_chart(SETTINGS, NOTEBOOKS))])
    assert "7 runs" in told and "<script" not in told


def test_what_runs_are_called_cannot_become_markup(root):
    chart = curve_chart(SETTINGS, NOTEBOOKS)
    hostile = "</script><script>x</script>\"'&"
    chart["arms"]["grpo"]["label"] = chart["tasks"]["trap"]["label"] = hostile
    text = page("t", [Curves(chart)])
    assert text.count("<script") == 2
    assert "<script>x" not in text


def test_the_report_has_the_curves_and_goes_without_where_there_is_no_run(root, monkeypatch):
    settings = report.ReportParams("smoke", 0.95, 0.8)
    assert curve_chart(SETTINGS, []) is None
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(root / "nothing"))
    findings = report.find(settings)
    assert findings.curves is None
    assert not [block for block in report.report_blocks(findings) if block.KIND == "curves"]
