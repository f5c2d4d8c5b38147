"""Figures of arms, factors and claims: every seed drawn, every missing one said, equal bytes."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from turncredit import plots
from turncredit.plots.collapse_figures import WARNINGS

TASKS, ARMS = ("costly_guess", "factbook"), ("grpo", "aem", "gigpo")
SEEDS, STEPS = 3, 6
GRID = (TASKS, ARMS)
KEY = ["task", "arm", "seed"]


def runs_table(rows: Callable[[str, int], dict], *, steps: int = 1) -> pd.DataFrame:
    """Rows of two arms on the first task; the third arm and the second task have no runs."""
    keys = [
        {"task": TASKS[0], "arm": arm, "seed": seed, "step": step}
        for arm in ARMS[:2]
        for seed in range(SEEDS)
        for step in range(steps)
    ]
    return pd.DataFrame([key | rows(key["arm"], key["seed"] + 10 * key["step"]) for key in keys])


def outcomes() -> pd.DataFrame:
    """Seed 1 of each arm collapses, at step 3; seed s starts from warm start s modulo 2."""

    def row(arm: str, seed: int) -> dict:
        collapsed = float(seed == 1)
        return {"block": seed % 2, "exact_match": 0.7 - 0.1 * seed, "collapsed": collapsed,
                "collapse_step": 3.0 if collapsed else math.nan}  # fmt: skip

    return runs_table(row)


def curves(**columns: float) -> pd.DataFrame:
    return runs_table(lambda arm, n: {c: v + 0.01 * n for c, v in columns.items()}, steps=STEPS)


def actions() -> pd.DataFrame:
    names = {"turn": 0, "trajectories": 8, "search": 6, "answer": 2, "reward_search": 0.5,
             "reward_answer": 0.25, "entropy_k16": 0.1, "entropy": 9.0}  # fmt: skip
    table = runs_table(lambda arm, n: names, steps=STEPS)
    return pd.concat([table, table.assign(turn=1)], ignore_index=True)


def warnings_of(table: pd.DataFrame) -> pd.DataFrame:
    metrics = curves(clip_fraction=0.1, mean_abs_prob_diff=0.1, turn_ratio_max=1.0)
    metrics["divergence_k3"] = math.nan
    runs = plots.Runs(metrics, actions(), pd.DataFrame(), pd.DataFrame())
    return plots.warning_rows(runs, table, before=2, after=2)


def sweep() -> pd.DataFrame:
    factors = [(g, t) for g in ("absolute", "none") for t in (0.5, 1.0)]
    rows = [
        {"task": TASKS[0], "guard": guard, "temperature": t, "seed": s, "exact_match": 0.5 + s,
         "alpha_spread": t}
        for guard, t in factors for s in range(SEEDS)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def clips() -> pd.DataFrame:
    rows = [
        {"level": "token", "clip_range": r, "updates": u, "seed": s, "clip_fraction": 0.1,
         "turns_sd": 1.0, "exact_match": 0.5 + s}
        for r in (0.1, 0.2) for u in (1, 2) for s in range(SEEDS)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def bins() -> pd.DataFrame:
    plain = runs_table(lambda arm, seed: {"bin": "plain", "questions": 6, "success": 0.5 + seed})
    return pd.concat([plain, plain.assign(bin="hard")], ignore_index=True)


def reached() -> pd.DataFrame:
    return runs_table(lambda arm, s: {"steps": math.nan if s == 1 else 10.0 * s, "last": 50})


def seconds() -> pd.DataFrame:
    return runs_table(lambda arm, s: dict.fromkeys(("rollout", "logprobs", "credit"), 1.0)
                      | {"update": 2.0, "metrics": 0.0})  # fmt: skip


def figures(*, empty: bool = False) -> dict[str, Figure]:
    """Every figure with a panel for each task or arm, from tables with or without rows."""
    cut = (lambda table: table.iloc[:0]) if empty else (lambda table: table)
    table, flat = cut(outcomes()), curves(entropy=0.1, reward=0.5, weight_min=0.5, weight_max=2.0)
    base, level = {"reference_arm": "grpo"}, {"level": 0.95}
    nowhere = pd.DataFrame(columns=["task", "mean", "low", "high", "n"])
    runs = plots.Runs(cut(flat), cut(actions()), pd.DataFrame(), pd.DataFrame())
    chosen = plots.action_rows(runs, [0, 1], weight=0.0)
    grounded = cut(curves(grounded=0.5))
    rates, differences = plots.rate_rows(table), plots.difference_rows(table, "grpo")
    return {
        "arm_outcomes": plots.arm_outcomes(table, plots.outcome_intervals(table), *GRID),
        "arm_differences": plots.arm_differences(differences, rates, *GRID, **base, **level),
        "variance_over_seeds": plots.variance_over_seeds(
            table, plots.spread_rows(table, "grpo"), *GRID, **base
        ),
        "steps_to_reach": plots.steps_to_reach(cut(reached()), *GRID, label="a reward of 0.6"),
        "collapse_curves": plots.collapse_curves(grounded, table, *GRID, threshold=0.1),
        "early_warnings": plots.early_warnings(cut(warnings_of(outcomes())), table, *GRID),
        "turn_panel": plots.turn_panel(chosen, *GRID, turns=[0, 1], weight=0.0),
        "entropy_divergence": plots.entropy_divergence(cut(flat), *GRID, **base, weight=0.0),
        "exploration": plots.exploration(*[cut(flat)] * 3, *GRID, weight=0.0),
        "lambda_sweep": plots.lambda_sweep(cut(sweep()), nowhere, TASKS, ("absolute", "none")),
        "time_breakdown": plots.time_breakdown(cut(seconds()), *GRID),
        "clip_grid": plots.clip_grid(cut(clips())),
        "difficulty_bins": plots.difficulty_bins(cut(bins()), *GRID),
    }


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return figures()


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def dots(figure: Figure) -> int:
    """Number of points of all scatters."""
    offsets = [c.get_offsets() for axis in figure.axes for c in axis.collections]
    filled = [np.ma.filled(points.astype(float), np.nan) for points in offsets]
    return sum(int(np.isfinite(points).all(axis=1).sum()) for points in filled)


def test_without_any_rows_every_panel_of_every_figure_says_so():
    for name, figure in figures(empty=True).items():
        assert texts(figure).count("no runs") == len(figure.axes), name
        assert not any(axis.has_data() for axis in figure.axes), name


def test_a_task_and_an_arm_without_runs_are_named_beside_those_that_have_some(drawn):
    for name, figure in drawn.items():
        said = [text for text in texts(figure) if "no runs" in text]
        expected = {"lambda_sweep": 2, "clip_grid": 6}.get(name)
        if name == "early_warnings":
            assert "GiGPO: no runs" in figure.axes[0].get_title(loc="right")
            continue
        assert said, name
        if expected is not None:
            assert said == ["no runs"] * expected, name
        elif name in ("entropy_divergence", "exploration", "difficulty_bins"):
            assert "no runs: GiGPO" in said, name
        else:
            assert len(said) >= 2, name


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("arm_outcomes", 2 * SEEDS),
        ("variance_over_seeds", 2 * SEEDS),
        ("steps_to_reach", 2 * SEEDS),  # those that never arrive stand together
        ("lambda_sweep", 2 * 4 * SEEDS),
        ("clip_grid", 3 * 4 * SEEDS),
        ("difficulty_bins", 4 * SEEDS),
    ],
)
def test_every_seed_is_a_dot(drawn, name, count):
    assert dots(drawn[name]) == count


@pytest.mark.parametrize(
    "name", ["collapse_curves", "entropy_divergence", "exploration", "turn_panel"]
)
def test_every_seed_is_a_line_in_the_first_panel(drawn, name):
    lines = [line for line in drawn[name].axes[0].lines if len(line.get_xdata()) == STEPS]
    thin = [line for line in lines if line.get_linewidth() < 1]
    arms_or_actions = 1 if name == "collapse_curves" else 2
    assert len(thin) == SEEDS * arms_or_actions


def test_a_mean_alone_is_seen_and_a_missing_one_parts_its_line():
    table = sweep()
    table = table[(table["guard"] == "absolute") | (table["temperature"] == 1.0)]
    nowhere = pd.DataFrame(columns=["task", "mean", "low", "high", "n"])
    figure = plots.lambda_sweep(table, nowhere, TASKS[:1], ("absolute", "none"))
    whole, alone = figure.axes[0].lines
    assert list(whole.get_ydata()) == [1.5, 1.5]
    assert math.isnan(alone.get_ydata()[0]) and alone.get_ydata()[1] == 1.5
    assert alone.get_marker() not in ("", "None", None)


def test_one_seed_of_the_baseline_has_a_mean_and_no_band():
    found = {"task": TASKS[0], "mean": 0.5, "low": math.nan, "high": math.nan, "n": 1}
    figure = plots.lambda_sweep(sweep(), pd.DataFrame([found]), TASKS[:1], ("absolute", "none"))
    assert not figure.axes[0].patches
    assert [0.5, 0.5] in [list(line.get_ydata()) for line in figure.axes[0].lines]
    figure.draw_without_rendering()


def test_a_clip_range_without_runs_has_a_place_and_no_dot():
    waiting = {"level": "token", "clip_range": 0.3, "updates": math.nan, "seed": math.nan}
    alone = waiting | {"level": "turn"}
    figure = plots.clip_grid(pd.concat([clips(), pd.DataFrame([waiting, alone])]))
    axis = figure.axes[0]
    ticks = figure.axes[6].get_xticklabels()  # of the last row
    assert [tick.get_text() for tick in ticks] == ["0.1", "0.2", "0.3"]
    assert axis.get_title(loc="right") == "seeds per point: 0–3"
    assert dots(figure) == 3 * 4 * SEEDS
    assert [text.get_text() for text in figure.axes[1].texts] == ["no runs"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["1 update per batch", "2 updates per batch"]


def test_collapsed_seeds_are_hollow_and_shapes_are_warm_starts(drawn):
    axis = drawn["arm_outcomes"].axes[0]
    hollow = [c for c in axis.collections if to_hex(c.get_facecolor()[0]) == "#ffffff"]
    assert [len(c.get_offsets()) for c in hollow] == [1, 1]
    assert [round(float(c.get_offsets()[0][0]), 6) for c in hollow] == [0.6, 0.6]
    labels = [text.get_text() for text in drawn["arm_outcomes"].legends[0].get_texts()]
    assert labels[:3] == ["warm start 0", "warm start 1", "collapsed seed"]


def test_seeds_without_a_result_are_counted():
    table = outcomes()
    table.loc[table["seed"] == 2, "exact_match"] = math.nan
    figure = plots.arm_outcomes(table, plots.outcome_intervals(table), *GRID)
    assert texts(figure).count("2 of 3") == 2 and dots(figure) == 2 * 2


def test_seeds_that_never_arrive_count_against_their_arm(drawn):
    figure = drawn["steps_to_reach"]
    assert texts(figure).count("2 of 3") == 2 and texts(figure).count("1") == 2


def test_an_endless_interval_ends_in_an_arrow_at_the_edge():
    row = {"task": TASKS[0], "arm": "aem", "difference": 0.1, "low": -0.2, "high": math.inf, "n": 3}
    rates = plots.rate_rows(outcomes())
    figure = plots.arm_differences(
        pd.DataFrame([row]), rates, TASKS[:1], ARMS, reference_arm="grpo", level=0.9
    )
    axis = figure.axes[0]
    arrows = [line for line in axis.lines if line.get_marker() in "<>" and line.get_marker()]
    assert [line.get_marker() for line in arrows] == [">"]
    assert arrows[0].get_xdata()[0] == axis.get_xlim()[1]
    figure.draw_without_rendering()


def test_collapses_are_dated_and_counted(drawn):
    axis = drawn["collapse_curves"].axes[0]
    assert [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "^"] == [3.0]
    assert axis.get_title(loc="right") == "1 of 3 seeds"


def test_warnings_are_aligned_at_the_event_of_the_seeds_that_have_it(drawn):
    table = warnings_of(outcomes())
    assert set(table["seed"]) == {1} and sorted(set(table["step"])) == [-2, -1, 0, 1, 2]
    at_event = table[(table["arm"] == "grpo") & (table["step"] == 0)]
    assert at_event["clip_fraction"].item() == pytest.approx(0.1 + 0.01 * (1 + 10 * 3))
    assert at_event["entropy_turn_0"].item() == 0.1
    figure = drawn["early_warnings"]
    measured = [name for name in WARNINGS if table[name].notna().any()]
    assert len(measured) == len(WARNINGS) - 1 == len(figure.axes)  # of the task with an event
    never = outcomes().assign(collapse_step=math.nan)
    figure = plots.early_warnings(warnings_of(never), never, *GRID)
    assert texts(figure).count("no collapse") == len(WARNINGS)


def test_actions_are_weighed_by_how_many_took_them():
    rows = [
        {"search": 8, "reward_search": 0.25, "answer": 0, "reward_answer": math.nan},
        {"search": 2, "reward_search": 1.0, "answer": 6, "reward_answer": 0.5},
    ]
    key = {"task": "t", "arm": "grpo", "seed": 0, "turn": 0, "trajectories": 8}
    turns = pd.DataFrame([key | {"step": step} | row for step, row in enumerate(rows)])
    runs = plots.Runs(pd.DataFrame(), turns, pd.DataFrame(), pd.DataFrame())
    table = plots.action_rows(runs, [0], weight=0.5).set_index(["action", "step"])
    assert table.loc[("search", 1), "share"] == pytest.approx((0.5 * 8 + 2) / (0.5 * 8 + 8))
    assert table.loc[("search", 1), "reward"] == pytest.approx((0.5 * 2 + 2) / (0.5 * 8 + 2))
    assert math.isnan(table.loc[("answer", 0), "reward"])
    assert table.loc[("answer", 1), "reward"] == 0.5


def test_entropy_differences_pair_the_seeds(drawn):
    axis = drawn["entropy_divergence"].axes[len(TASKS)]
    assert all(np.allclose(line.get_ydata(), 0) for line in axis.lines), "the arms are equal here"
    assert "AEM: 0 of 3 end above" in axis.get_title(loc="right")


def cells(**changes: float) -> pd.DataFrame:
    rows = [
        {"prior": p, "knowledge": k, "cap": c, "value": 0.1, "low": 0.05, "high": 0.15, "n": 4}
        for p in (0.5, 0.6) for k in (0.2, 0.8) for c in (6, 8)
    ]  # fmt: skip
    return pd.DataFrame([rows[0] | changes, *rows[1:]])


def regime_map(table: pd.DataFrame, **options) -> Figure:
    return plots.regime_map(table, x="knowledge", y="prior", column="cap", label="gain", **options)


def hatched(figure: Figure) -> list:
    return [patch for axis in figure.axes[:2] for patch in axis.patches if patch.get_hatch()]


def test_cells_whose_interval_holds_zero_are_hatched_where_the_number_is_a_gain():
    assert not hatched(regime_map(cells(), gain=True))
    assert len(hatched(regime_map(cells(low=-0.01), gain=True))) == 1
    assert not hatched(regime_map(cells(low=-0.01)))


def test_cells_say_their_seeds_and_empty_ones_that_they_are():
    said = texts(regime_map(cells(value=-0.001, n=7), gain=True))
    assert "+0.00\nn = 7" in said and said.count("+0.10\nn = 4") == 7
    assert texts(regime_map(cells(n=0))).count("–") == 1
    assert texts(regime_map(cells().iloc[1:])).count("–") == 1
    assert texts(regime_map(cells(value=math.nan))).count("–") == 1


CLAIM = {"claim": "masking helps", "source": "slides", "published": 0.036, "ours": -0.019,
         "low": -0.056, "high": 0.016, "seeds": 16, "verdict": "not reproduced"}  # fmt: skip


def test_claims_are_written_with_their_intervals_and_dashes():
    figure = plots.claims_table([CLAIM, CLAIM | {"ours": math.nan, "published": None}])
    assert {"−0.019 [−0.056, 0.016]", "0.036", "16", "not reproduced"} <= {*texts(figure)}
    assert texts(figure).count("–") == 2
    alone = plots.claims_table([CLAIM | {"low": None, "high": None}])
    assert "−0.019" in texts(alone)
    with pytest.raises(ValueError, match="no rows"):
        plots.claims_table([])


def test_long_claims_wrap_and_stay_apart():
    figure = plots.claims_table([CLAIM | {"claim": "a long claim " * 12}, CLAIM])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for i, one in enumerate(boxes):
        assert one.x1 <= figure.bbox.x1
        for other in boxes[i + 1 :]:
            assert not one.overlaps(other)


def test_equal_tables_give_equal_bytes_in_any_order_of_rows(tmp_path):
    table = outcomes()
    for folder, rows in (("a", table), ("b", table.sample(frac=1, random_state=1))):
        figure = plots.arm_outcomes(rows, plots.outcome_intervals(table), TASKS[:1], ARMS)
        plots.save_figure(figure, tmp_path / folder, "arm_outcomes")
        plots.save_figure(regime_map(cells(low=-0.01), gain=True), tmp_path / folder, "map")
    for name in ("arm_outcomes.png", "arm_outcomes.svg", "map.png", "map.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
