"""The outcomes table and the numbers that figures of arms are drawn from, by hand."""

import gzip
import json
import math

import pandas as pd
import pytest

from turncredit import plots, results

KEY = {"task": "tiny", "arm": "grpo", "seed": 0}


def run_rows(seed: int, grounded: list[float], *, arm: str = "grpo", **columns) -> list[dict]:
    """Rows of metrics.csv whose reward is the step."""
    key = KEY | {"arm": arm, "seed": seed}
    return [
        key | {"step": step, "reward": float(step), "search_first": 1.0, "grounded": share}
        | {name: values[step] for name, values in columns.items()}
        for step, share in enumerate(grounded)
    ]  # fmt: skip


def evaluation(seed: int, step: int, *, arm: str = "grpo", exact=0.5, grounded=0.5) -> dict:
    shares = {"search_first": 0.9, "answer_first": 0.1, "guess_first": 0.2, "malformed": 0.3}
    final = {"exact_match": exact, "grounded": grounded, "turns": 4.0, "questions": 8}
    return KEY | {"arm": arm, "seed": seed, "step": step, "hops": "all"} | shares | final


def ending(seed: int, block: float, *, arm: str = "grpo", reason: str = "finished") -> dict:
    stop = {"stop_reason": reason, "stop_step": math.nan, "seconds": 7.0, "warm_start_seed": block}
    return KEY | {"arm": arm, "seed": seed} | stop


def runs_of(metrics: list[dict], evaluations: list[dict], endings: list[dict]) -> plots.Runs:
    tables = (pd.DataFrame(rows) for rows in (metrics, evaluations, endings))
    metrics, evaluations, finished = tables
    return plots.Runs(metrics, pd.DataFrame(), evaluations, finished)


def outcome(runs: plots.Runs, **options) -> dict:
    (row,) = plots.outcome_rows(runs, **options).to_dict("records")
    return row


def test_a_run_becomes_one_row_by_hand():
    metrics = run_rows(
        5, [0.5, 0.5, 0.0, 0.0], entropy=[4.0, 3.0, 2.0, 1.0], clip_fraction=[0, 0.2, 0.1, 0],
        mean_abs_prob_diff=[0.3, 0, 0, 0], masked_share=[0, 0.1, 0.2, 0.1],
    )  # fmt: skip
    evaluations = [evaluation(5, 0, exact=0.9), evaluation(5, 4, exact=0.25, grounded=0.05)]
    row = outcome(runs_of(metrics, evaluations, [ending(5, 1.0)]), window=2, last=2)
    assert (row["seed"], row["block"], row["finished"], row["seconds"]) == (5, 1.0, True, 7.0)
    assert (row["exact_match"], row["grounded"], row["malformed"]) == (0.25, 0.05, 0.3)
    assert row["collapsed"] == 1.0
    assert row["collapse_step"] == 3.0, "the window of steps 2 and 3 is the first below 0.1"
    assert math.isnan(row["shift_step"])
    assert (row["reward_last"], row["entropy_mean_last"]) == (2.5, 1.5)
    assert (row["clip_fraction_max"], row["mismatch_max"]) == (0.2, 0.3)
    assert row["masked_share"] == pytest.approx(0.1)


@pytest.mark.parametrize(("grounded", "collapsed"), [(0.0999, 1.0), (0.1, 0.0)])
def test_collapse_is_below_the_threshold_not_at_it(grounded, collapsed):
    final = evaluation(0, 2, grounded=grounded)
    assert (
        outcome(runs_of(run_rows(0, [1.0, 1.0]), [final], [ending(0, 0)]))["collapsed"] == collapsed
    )


def test_what_is_not_known_is_missing_and_not_zero():
    """No grounding, no such column, not over, policy lost: each leaves NaN and the row stays."""
    blind = evaluation(0, 2, grounded=math.nan)
    row = outcome(runs_of(run_rows(0, [math.nan] * 2), [blind], [ending(0, math.nan)]), window=1)
    assert row["exact_match"] == 0.5
    for name in ("collapsed", "collapse_step", "masked_share", "mismatch_max", "block"):
        assert math.isnan(row[name]), name
    lost = [evaluation(0, 0, exact=0.9), evaluation(0, 1, exact=0.8)]
    row = outcome(runs_of(run_rows(0, [0.5] * 2), lost, [ending(0, 0, reason="non_finite")]))
    for name in ("exact_match", "malformed", "answer_first", "collapsed"):
        assert math.isnan(row[name]), name
    assert row["finished"]
    open_run = runs_of(run_rows(1, [0.5] * 2) + run_rows(0, [0.5] * 2), [evaluation(0, 2)],
                       [ending(0, 0)])  # fmt: skip
    table = plots.outcome_rows(open_run)
    assert table["seed"].tolist() == [0, 1] and table["finished"].tolist() == [True, False]
    assert math.isnan(table["exact_match"][1])


def test_no_runs_make_no_rows_and_all_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    table = plots.outcome_rows(plots.read_runs(figure_params()))
    assert table.empty and {"block", "collapsed", "collapse_step", "seconds"} <= {*table}
    derived = [plots.outcome_intervals(table), plots.rate_rows(table)]
    derived += [plots.difference_rows(table, "grpo"), plots.spread_rows(table, "grpo")]
    assert all(rows.empty for rows in derived)


def figure_params() -> plots.FigureParams:
    return plots.FigureParams(
        tier="smoke", experiments=("10_try",), tasks=("tiny",), arms=("grpo",),
        reference_arm="grpo", smoothing=0.0, shift_threshold=0.5, shift_window=2,
        comparison_window=2, first_k=16, turns_shown=2, confidence_level=0.95,
    )  # fmt: skip


def test_read_runs_keeps_every_column_and_the_warm_start(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    folder = tmp_path / "10_try" / "tiny" / "grpo" / "seed_3"
    same = {"entropy": 0.1, "clip_fraction": 0.0, "turns": 2.0, "missing_rewards": 0}
    metrics = [{k: v for k, v in row.items() if k not in KEY} for row in run_rows(3, [0.5] * 4)]
    results.write_table(folder / "metrics.csv", [same | row for row in metrics])
    entropies = {f"entropy_k{k}": 0.2 for k in plots.FIRST_K}
    entropies["entropy"] = 9.0  # of whole turns: no figure of first tokens may show it
    counts = {"turn": 0, "trajectories": 8, "answered": 1, "answered_correct": 1, "search": 6}
    turns = folder / "turns.csv.gz"
    results.write_table(turns, [{"step": step} | counts | entropies for step in range(4)])
    turns.write_bytes(gzip.compress(turns.read_bytes(), mtime=0))
    final = {k: v for k, v in evaluation(3, 4).items() if k not in KEY}
    results.write_table(folder / "eval.csv", [final])
    facts = {"params": {"warm_start_seed": 1}, "stop_reason": "finished", "seconds": 2.5}
    (folder / "manifest.json").write_text(json.dumps(facts))
    runs = plots.read_runs(figure_params())
    assert runs.metrics["grounded"].tolist() == [0.5] * 4 and runs.turns["search"].eq(6).all()
    assert plots.turn_entropies(runs, figure_params())["entropy"].tolist() == [0.2] * 4
    assert set(plots.entropies_by_k(runs, figure_params())["entropy"]) == {0.2}
    row = outcome(runs)
    assert (row["block"], row["seconds"], row["answer_first"]) == (1, 2.5, 0.1)


def outcomes(arm: str, values: list[float], *, column: str = "exact_match") -> pd.DataFrame:
    """Seeds 0, 1, ... of two warm starts in turn."""
    rows = [
        {"task": "tiny", "arm": arm, "seed": s, "block": s % 2, column: v}
        for s, v in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_differences_are_paired_by_seed():
    table = pd.concat([outcomes("grpo", [0.1, 0.2, 0.6]), outcomes("aem", [0.2, 0.3, math.nan])])
    (row,) = plots.difference_rows(table, "grpo").to_dict("records")
    assert (row["arm"], row["n"]) == ("aem", 2)
    assert row["difference"] == pytest.approx(0.1) and row["low"] == pytest.approx(row["high"])


def test_rates_have_wilsons_interval_and_leave_the_unknown_out():
    table = outcomes("grpo", [1.0, 0.0, math.nan, 1.0, 0.0], column="collapsed")
    (row,) = plots.rate_rows(table).to_dict("records")
    assert (row["rate"], row["count"], row["n"]) == (0.5, 2, 4)
    # By hand: (p + z2 / 2n -+ z sqrt(pq / n + z2 / 4n2)) / (1 + z2 / n) with z2 = 3.841459, n = 4.
    assert (row["low"], row["high"]) == pytest.approx((0.150039, 0.849961), abs=1e-6)


def test_spread_is_over_all_seeds_and_its_ratio_within_warm_starts():
    calm, wide = [0.5, 0.7, 0.52, 0.72], [0.5, 0.7, 0.6, 0.8]
    table = pd.concat([outcomes("grpo", calm), outcomes("aem", wide)])
    rows = {row["arm"]: row for row in plots.spread_rows(table, "grpo").to_dict("records")}
    assert rows["aem"]["sd"] == pytest.approx(pd.Series(wide).std())
    assert rows["aem"]["ratio"] == pytest.approx(0.1 / 0.02), (
        "the warm starts lie 0.2 apart in both"
    )
    assert math.isnan(rows["grpo"]["ratio"])
    assert math.isnan(rows["aem"]["low"]), "pairs say nothing of the error of their spread"


def test_a_ratio_of_spreads_has_an_interval_with_three_seeds_of_each_warm_start():
    calm, wide = [0.5, 0.7, 0.52, 0.72, 0.55, 0.76], [0.5, 0.7, 0.6, 0.8, 0.9, 0.75]
    table = pd.concat([outcomes("grpo", calm), outcomes("aem", wide)])
    aem = plots.spread_rows(table, "grpo").set_index("arm").loc["aem"]
    assert aem["low"] < aem["ratio"] < aem["high"]


def test_steps_to_reach_need_a_whole_window_at_the_level():
    metrics = run_rows(0, [0.5] * 6) + run_rows(1, [0.5] * 3)
    table = plots.reach_rows(runs_of(metrics, [], []), "reward", 2.5, window=2)
    assert table["steps"].tolist()[0] == 3.0, "mean of rewards 2 and 3"
    assert math.isnan(table["steps"][1]) and table["last"].tolist() == [5, 2]
