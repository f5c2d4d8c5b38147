"""Tripwires: each fires on its own fault at the step worked out by hand, and on nothing else."""

import math
import random
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit import params
from turncredit.records import Trajectory, Turn
from turncredit.results import RunDirectory, stored
from turncredit.tasks import task_values
from turncredit.tripwires import Stop, Tripwires, TripwireSettings, repeated_turns

REPOSITORY = Path(__file__).resolve().parents[2]
OFF = TripwireSettings(
    window=3,
    entropy_low=None,
    entropy_high=None,
    repetition=None,
    truncated=None,
    zero_variance=None,
    reward_collapse=None,
    patience=2,
)
USUAL = TripwireSettings(
    window=10,
    entropy_low=0.02,
    entropy_high=1.5,
    repetition=None,
    truncated=0.5,
    zero_variance=0.95,
    reward_collapse=0.5,
    patience=10,
)
"""What a run of this size could be given; the committed runs that touch a wire had failed."""

HEALTHY = {
    "loss": 0.01,
    "gradient_norm": 0.4,
    "entropy": 0.3,
    "repeated_turns": 0.1,
    "truncated": 0.1,
    "zero_variance_groups": 0.25,
    "reward": 0.5,
}


def first_stop(settings: TripwireSettings | None, rows) -> tuple[int, Stop] | None:
    """The step at which the wires stop a run with these metrics, and why."""
    wires = Tripwires(settings)
    for step, row in enumerate(rows):
        stop = wires.see(HEALTHY | row)
        if stop:
            return step, stop
    return None


def column(name: str, values) -> list[dict[str, float]]:
    return [{name: value} for value in values]


# --- one fault, one wire


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("settings", [None, OFF, USUAL])
def test_an_update_that_is_not_finite_always_stops_at_once(name, value, settings):
    step, stop = first_stop(settings, column(name, [0.1, value, 0.1]))
    assert (step, stop.reason) == (1, "non_finite")
    assert name in stop.detail and str(value) in stop.detail


BANDS = [
    # Means of three: 0.2, 0.2, 0.1333, 0.0667.
    ("entropy", {"entropy_low": 0.1}, "entropy", [0.2, 0.2, 0.2, 0.2, 0.0, 0.0], 5),
    # Means of three: 1, 1.3333, 1.6667.
    ("entropy", {"entropy_high": 1.5}, "entropy", [1.0, 1.0, 1.0, 2.0, 2.0], 4),
    ("repetition", {"repetition": 0.5}, "repeated_turns", [0.0, 0.5, 1.0, 0.5], 3),
    ("truncated", {"truncated": 0.3}, "truncated", [0.9, 0.0, 0.0, 0.9, 0.9], 4),
    ("zero_variance", {"zero_variance": 0.9}, "zero_variance_groups", [1.0, 1.0, 1.0], 2),
]


@pytest.mark.parametrize(("reason", "changes", "metric", "values", "step"), BANDS)
def test_a_mean_outside_its_band_stops_the_run_at_the_step_worked_out(
    reason, changes, metric, values, step
):
    settings = replace(OFF, **changes)
    found, stop = first_stop(settings, column(metric, values))
    assert (found, stop.reason) == (step, reason)
    assert metric in stop.detail
    assert first_stop(settings, column(metric, values[:step])) is None
    assert first_stop(OFF, column(metric, values)) is None, "a wire that is off"


def test_one_step_outside_the_band_is_not_a_breakdown():
    settings = replace(OFF, truncated=0.5, zero_variance=0.9)
    rows = column("truncated", [0, 0, 1.0, 0, 0, 1.0, 0]) + column("zero_variance_groups", [1, 1])
    assert first_stop(settings, rows) is None


def test_reward_collapse_by_hand():
    """Means of three: 0.6 (best), 0.4, 0.2 < 0.3, 0 < 0.3: the second in a row is at step 5."""
    settings = replace(OFF, reward_collapse=0.5)
    step, stop = first_stop(settings, column("reward", [0.6, 0.6, 0.6, 0.0, 0.0, 0.0, 0.0]))
    assert (step, stop.reason) == (5, "reward_collapse")
    assert "0.5 of its best, 0.6, for 2 steps" in stop.detail


def test_a_reward_that_recovers_is_counted_anew():
    """Means of three are below half of the best, 0.3, at steps 4 (0.2) and 9 (0.13) alone."""
    rows = column("reward", [0.6, 0.6, 0.6, 0.0, 0.0, 1.0, 0.6, 0.1, 0.3, 0.0, 0.9, 0.6])
    settings = replace(OFF, reward_collapse=0.5)
    assert first_stop(settings, rows) is None
    assert first_stop(replace(settings, patience=1), rows)[0] == 4


def test_missing_rewards_are_no_collapse_and_a_best_below_zero_says_nothing():
    settings = replace(OFF, reward_collapse=0.5)
    assert first_stop(settings, column("reward", [0.6] * 3 + [math.nan] * 20)) is None
    assert first_stop(settings, column("reward", [-0.1] * 3 + [-0.9] * 20)) is None


def test_a_metric_that_the_run_does_not_record_is_named():
    wires = Tripwires(replace(OFF, repetition=0.5))
    metrics = {name: value for name, value in HEALTHY.items() if name != "repeated_turns"}
    with pytest.raises(ValueError, match="tripwire repetition needs the metric 'repeated_turns'"):
        wires.see(metrics)


# --- curves


def search_r1_like(seed: int, steps: int = 300) -> list[float]:
    """SYNTHETIC: the published curve was not digitised.  What is published of Search-R1's GRPO run
    is that its reward rises, levels off, and falls to 0 near step 230.
    """
    stream = random.Random(seed)
    curve = []
    for step in range(steps):
        level = 0.15 + 0.3 * (1 - math.exp(-step / 40))
        fall = 1 / (1 + math.exp((step - 225) / 3))
        curve.append(max(0.0, level * fall + stream.gauss(0, 0.03) * (fall > 0.05)))
    return curve


@pytest.mark.parametrize("seed", range(5))
def test_a_curve_like_search_r1s_collapse_is_recognised_soon_after_it_and_not_before(seed):
    settings = replace(USUAL, entropy_low=None, zero_variance=None)
    step, stop = first_stop(settings, column("reward", search_r1_like(seed)))
    assert stop.reason == "reward_collapse"
    assert 225 <= step <= 250
    assert first_stop(settings, column("reward", search_r1_like(seed, steps=215))) is None


def committed() -> list[Path]:
    """Runs over a long horizon: a short search that is learnt has no contrast left either.

    Without those of ActGuide, whose training rewards fall where a plan is no longer needed.
    """
    paths = sorted((REPOSITORY / "results" / "cpu").glob("*/*/*/seed_*/metrics.csv"))
    return [
        path
        for path in paths
        if path.parts[-4] != "short_search" and not path.parts[-3].startswith("actguide")
    ]


TIERS = {
    tier: sorted((REPOSITORY / "params" / tier / "tasks").glob("*.yaml"))
    for tier in ("smoke", "cpu", "gpu")
}


@pytest.mark.parametrize("path", TIERS["gpu"], ids=lambda path: path.stem)
def test_every_task_of_tier_gpu_watches_for_what_can_break_down_there(path):
    wires = task_values("gpu", path.stem)["tripwires"]
    settings = params.build(TripwireSettings, wires, f"{path}: tripwires")
    assert None not in (settings.entropy_low, settings.entropy_high, settings.repetition)
    off = {name for name, value in wires.items() if value is None}
    assert off < {"truncated", "zero_variance", "reward_collapse"}
    assert Tripwires(settings).see(HEALTHY) is None


@pytest.mark.parametrize("tier", ["smoke", "cpu"])
def test_arms_that_are_compared_are_not_stopped(tier):
    """One that ends early has fewer steps than its neighbour; docs/training.md says so."""
    assert [path.stem for path in TIERS[tier] if "tripwires" in task_values(tier, path.stem)] == []


def test_the_wires_of_tier_gpu_end_no_committed_run_that_had_not_failed():
    """Those of tier cpu, by the wires of the task's namesake; turns are not compared there."""
    stopped = []
    for path in sorted((REPOSITORY / "results" / "cpu").glob("*/*/*/seed_*/metrics.csv")):
        wires = task_values("gpu", path.parts[-4].split("-")[0])["tripwires"]
        settings = replace(params.build(TripwireSettings, wires, "gpu"), repetition=None)
        found = first_stop(settings, RunDirectory(path.parent).read("metrics.csv"))
        stopped += [(found[1].reason, path.parent)] if found else []
    assert stopped, "of the committed runs some collapse, and no wire sees any of them"
    assert [run for _, run in stopped if not failed(run)] == []


def failed(run: Path) -> bool:
    """Whether a run ended without reading the evidence, or below the warm start it came from."""
    evaluations = pd.read_csv(run / "eval.csv").query("hops == 'all'")
    first, last = evaluations.iloc[0], evaluations.iloc[-1]
    return last["grounded"] < 0.1 or last["exact_match"] < first["exact_match"]


def test_a_committed_run_that_touches_a_wire_had_failed():
    touched = []
    for path in committed():
        rows = RunDirectory(path.parent).read("metrics.csv")
        assert len(rows) > USUAL.window + USUAL.patience
        if first_stop(USUAL, rows) is not None:
            touched.append(path.parent)
    assert touched, "of the committed runs some collapse, and no wire sees any of them"
    assert [run for run in touched if not failed(run)] == []


@pytest.mark.parametrize("at", [40, 70])
@pytest.mark.parametrize("task", ["costly_guess", "factbook", "informative_guess"])
def test_a_committed_run_with_a_collapse_put_into_it_is_stopped(task, at):
    run = REPOSITORY / "results" / "cpu" / "10_grpo_baseline" / task / "grpo" / "seed_0"
    rows = RunDirectory(run).read("metrics.csv")
    at = min(at, len(rows) - 2 * USUAL.patience)
    for row in rows[at:]:
        row["reward"] = 0.0
    step, stop = first_stop(USUAL, rows)
    assert stop.reason == "reward_collapse"
    assert at + USUAL.patience <= step < at + USUAL.window + USUAL.patience


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_a_reward_that_never_falls_never_collapses(rewards, share):
    settings = replace(OFF, reward_collapse=share)
    assert first_stop(settings, column("reward", sorted(rewards))) is None


# --- resumed runs


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.integers(0, 30),
)
def test_a_resumed_run_that_shows_its_table_again_stops_at_the_same_step(values, resumed_at):
    """The wires read what the table holds, so 7 digits on disk decide like the run itself."""
    settings = replace(OFF, entropy_low=0.4, reward_collapse=0.8, truncated=0.6)
    rows = [HEALTHY | dict.fromkeys(("entropy", "reward", "truncated"), v) for v in values]
    table = [stored(row) for row in rows]
    unbroken, continued = Tripwires(settings), Tripwires(settings)
    whole = [unbroken.see(row) for row in table]
    before = [continued.see(row) for row in map(stored, table[:resumed_at])]
    assert before + [continued.see(row) for row in table[resumed_at:]] == whole


# --- settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"window": 0}, "window = 0"),
        ({"patience": -1}, "patience = -1"),
        ({"truncated": 1.5}, "truncated = 1.5"),
        ({"repetition": -0.1}, "repetition = -0.1"),
        ({"zero_variance": 2.0}, "zero_variance = 2.0"),
        ({"reward_collapse": 3.0}, "reward_collapse = 3.0"),
        ({"entropy_low": 2.0, "entropy_high": 1.0}, "entropy_low = 2.0 must be below"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        replace(OFF, **changes)


def test_every_wire_may_be_null_in_a_file_and_none_may_be_left_out():
    values = dict.fromkeys((field.name for field in fields(TripwireSettings)), None)
    values |= {"window": 3, "patience": 2}
    assert params.build(TripwireSettings, values, "f.yaml") == OFF
    del values["truncated"]
    with pytest.raises(ValueError, match=r"f\.yaml: key 'truncated' is missing"):
        params.build(TripwireSettings, values, "f.yaml")


# --- repetition


def trajectory(*turns: tuple[int, ...]) -> Trajectory:
    def turn(ids: tuple[int, ...]) -> Turn:
        numbers = (0.0,) * len(ids)
        return Turn(ids, numbers, numbers, observation_ids=(9,), action="search")

    return Trajectory("q", (1,), tuple(turn(ids) for ids in turns), 0.0, False, "max_turns")


def test_repeated_turns_by_hand():
    """Of the turns after a first one: 2 of 3 repeat, 0 of 1, none to count; together 2 of 4."""
    stuck = trajectory((5, 6), (5, 6), (5, 6), (5,))
    moving = trajectory((5, 6), (6, 5))
    assert repeated_turns([stuck]) == pytest.approx(2 / 3)
    assert repeated_turns([stuck, moving, trajectory((5,))]) == 0.5
    assert repeated_turns([trajectory((5,), (6,), (5,))]) == 0.0, "an earlier turn is not the last"


def test_turns_without_tokens_do_not_count_and_without_a_second_turn_the_share_is_missing():
    assert math.isnan(repeated_turns([trajectory((5,)), trajectory()]))
    assert math.isnan(repeated_turns([trajectory((), ())]))
    assert repeated_turns([trajectory((), (5,), (5,))]) == 0.5
