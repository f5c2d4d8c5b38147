"""The columns of a step agree with each other, whatever the objective clips."""

import math
from dataclasses import replace

import pytest
from play import SMALL, TRAINING, coin_environment, policy, vocabulary

from turncredit.objectives import OBJECTIVES
from turncredit.training import Method, new_optimiser, train

TIGHT = {"clip_low": 0.02, "clip_high": 0.03}
CASES = [(name, TIGHT) for name in OBJECTIVES] + [("cispo", {"upper_cap": 1.03})]


def logs(objective: str, options: dict, weight: str = "none"):
    """Three steps of three updates each, in parts, large enough to move the ratios."""
    settings = replace(TRAINING, steps=3, updates_per_batch=3, micro_batch=3)
    model = policy()
    parts = (model, new_optimiser(model, settings), vocabulary(), coin_environment(), SMALL)
    method = Method("grpo", {}, weight, {}, objective, options)
    return list(train(*parts, method, settings, seed=0))


@pytest.mark.parametrize("weight", ["none", "aem", "high_entropy_turns"])
@pytest.mark.parametrize(("objective", "options"), CASES, ids=[f"{n} {o}" for n, o in CASES])
def test_clip_fractions_by_turn_add_up_to_that_of_the_objective(objective, options, weight):
    """With a turn weight too, which `gspo` averages over the trajectory before it clips."""
    clipped = 0.0
    for log in logs(objective, options, weight):
        by_turn = sum(row["clip_fraction"] * row["tokens"] for row in log.turns)
        total = log.metrics["clip_fraction"] * log.metrics["response_tokens"]
        assert by_turn == pytest.approx(total, abs=1e-3)
        shares = [log.metrics[f"clip_fraction_{sign}"] for sign in ("positive", "negative")]
        known = [share for share in shares if not math.isnan(share)]
        if total:  # tokens of either sign make up no more than all that are clipped
            assert max(known) >= log.metrics["clip_fraction"] - 1e-9
        assert sum(row["tokens"] for row in log.turns) == log.metrics["tokens"]
        clipped += total
    assert clipped > 0, "nothing was clipped, so nothing was tested"


@pytest.mark.parametrize("weight", ["none", "high_is_turns"])
def test_clip_fractions_by_sign_and_extreme_turn_ratios(weight):
    """Tokens without advantage are never clipped, so signs bracket the fraction of all."""
    for log in logs("ppo_clip", TIGHT, weight):
        signs = [log.metrics[f"clip_fraction_{sign}"] for sign in ("positive", "negative")]
        known = [share for share in signs if not math.isnan(share)]
        assert log.metrics["clip_fraction"] <= max(known, default=0.0) + 1e-9
        largest = max(row["turn_ratio_max"] for row in log.turns)
        assert largest == pytest.approx(log.metrics["turn_ratio_max"])
        means = [row["turn_ratio_mean"] for row in log.turns]
        assert all(mean <= largest + 1e-6 for mean in means)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_clip_of_an_objective_is_its_default_or_what_was_asked(objective):
    methods = [Method("grpo", {}, "none", {}, objective, options) for options in ({}, TIGHT)]
    default, asked = (method.clip for method in methods)
    assert (asked["clip_low"], asked["clip_high"]) == (0.02, 0.03)
    assert 0 < default["clip_low"] < 1 and default["level"] == asked["level"]
