"""Equal budgets of environment steps, by hand and against rollouts that count themselves."""

import math

import pandas as pd
import pytest
from play import PLAIN, coin_environment, policy, questions, vocabulary

from turncredit.budgets import at_budget, budget_rows, environment_steps, steps_to_match
from turncredit.rollout.protocol import Asked
from turncredit.rollout.strategies import STRATEGIES
from turncredit.signals import outcome_shares

RUN = ["task", "arm", "seed"]


def asked(environment) -> Asked:
    setting = {"group_size": 8, "seed": 0, "step": 0, "max_turn_tokens": 5}
    return Asked(policy(), vocabulary(), environment, questions(4), **setting)


def test_turns_that_branches_share_are_spent_once():
    """Every trajectory of the coin environment ends by its own last message."""
    environment = coin_environment(0.15)
    drawn = STRATEGIES["arpo"](k=1, alpha=0.55).draw(asked(environment))
    trajectories = [t for group in drawn.groups for t in group]
    turns = sum(len(t.turns) for t in trajectories) - sum(fork.turn for fork in drawn.forks)
    cut = sum(t.stop_reason == "max_tokens" for t in trajectories)
    metrics = pd.DataFrame([drawn.counts | outcome_shares(trajectories)])
    (spent,) = environment_steps(metrics, len(trajectories))
    assert drawn.forks
    assert abs(spent - turns) <= cut


def test_independent_trajectories_spend_their_turns_and_rollbacks_what_they_took_back():
    metrics = pd.DataFrame({"turns": [2.5, 3.0], "retries": [math.nan, 4.0]})
    assert environment_steps(metrics, 8).tolist() == [20.0, 28.0]
    assert environment_steps(metrics[["turns"]], 8).tolist() == [20.0, 24.0]
    assert PLAIN.rollout == "independent"


def test_a_budget_is_read_between_evaluations_and_never_beyond_the_run():
    steps, values, spent = [0, 2, 4], [0.2, 0.6, 0.4], [5.0, 5.0, 10.0, 10.0]
    assert at_budget(steps, values, spent, 0.0) == 0.2
    assert at_budget(steps, values, spent, 5.0) == pytest.approx(0.4)
    assert at_budget(steps, values, spent, 10.0) == pytest.approx(0.6)
    assert at_budget(steps, values, spent, 20.0) == pytest.approx(0.5)
    assert at_budget(steps, values, spent, 30.0) == 0.4
    assert math.isnan(at_budget(steps, values, spent, 30.1))
    assert math.isnan(at_budget(steps, [0.2, math.nan, 0.4], spent, 20.0))


def test_steps_to_match_is_the_first_evaluation_that_reaches_the_level():
    assert steps_to_match([0, 5, 10], [0.1, 0.3, 0.2], 0.2) == 5.0
    assert steps_to_match([0, 5], [0.1, 0.2], 0.1) == 0.0
    assert steps_to_match([0, 5], [0.1, 0.2], 0.3) == math.inf
    assert steps_to_match([0, 5], [0.1, 0.2], math.nan) == math.inf


def tables(turns: dict[str, float], ends: dict[str, float], steps: int = 4):
    """Two evaluations of each arm on one task with one seed, 0 before training; constant turns."""
    metrics = pd.DataFrame(
        {"task": "t", "arm": arm, "seed": 0, "step": s, "turns": n, "entropy": float(s)}
        for arm, n in turns.items()
        for s in range(steps)
    )
    evaluations = pd.DataFrame(
        {"task": "t", "arm": arm, "seed": 0, "step": s, "exact_match": value}
        for arm, end in ends.items()
        for s, value in ((0, 0.0), (steps, end))
    )
    return metrics, evaluations, {("t", arm, 0): 10 for arm in turns}


def test_arms_are_compared_where_both_have_spent_what_the_cheaper_one_has():
    rows = budget_rows(*tables({"grpo": 4.0, "arpo": 3.0}, {"grpo": 0.8, "arpo": 0.6}),
                       reference_arm="grpo")  # fmt: skip
    found = rows.set_index("arm")
    assert found["environment_steps"].to_dict() == {"grpo": 160.0, "arpo": 120.0}
    assert set(found["budget"]) == {120.0}
    assert found.loc["grpo", "exact_match_at_budget"] == pytest.approx(0.6)
    assert found.loc["arpo", "exact_match_at_budget"] == pytest.approx(0.6)
    assert found["spent_calls"].to_dict() == {"grpo": 3.0, "arpo": 2.0}
    assert found["entropy_sd"].tolist() == pytest.approx([pd.Series(range(4)).std()] * 2)


def test_a_run_that_never_matches_counts_as_all_its_steps():
    rows = budget_rows(*tables({"grpo": 4.0, "low": 4.0}, {"grpo": 0.8, "low": 0.6}),
                       reference_arm="grpo")  # fmt: skip
    assert rows.set_index("arm")["match_share"].to_dict() == {"grpo": 1.0, "low": 1.0}
    metrics, evaluations, sizes = tables({"grpo": 4.0, "fast": 4.0}, {"grpo": 0.8, "fast": 0.9})
    early = pd.DataFrame([{"task": "t", "arm": "fast", "seed": 0, "step": 1, "exact_match": 0.85}])
    rows = budget_rows(metrics, pd.concat([evaluations, early]), sizes, reference_arm="grpo")
    assert rows.set_index("arm").loc["fast", "match_share"] == 0.25


def test_runs_of_unknown_size_or_without_evaluation_are_left_out_and_set_no_budget():
    metrics, evaluations, sizes = tables({"grpo": 4.0, "cheap": 1.0}, {"grpo": 0.8, "cheap": 0.6})
    del sizes["t", "cheap", 0]
    rows = budget_rows(metrics, evaluations, sizes, reference_arm="grpo")
    assert rows["arm"].tolist() == ["grpo"] and rows["budget"].tolist() == [160.0]
    assert budget_rows(metrics, evaluations, {}, reference_arm="grpo").empty
    rows = budget_rows(metrics, evaluations, sizes, reference_arm="absent")
    assert rows["match_share"].isna().all()
