"""Arms that are told what turns were worth: the measure is right, counted, resumable, refused."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from arms import home_with_task, parameters
from play import PLAIN, SMALL, TRAINING, coin_environment, policy, vocabulary
from trees import TREE, TURN_TOKENS, WORDS, WORLD, taught_policy

from turncredit import experiment
from turncredit.audit import exact_audit, state_values
from turncredit.batching import from_trajectories, two_turns_and_one
from turncredit.credit import BASES
from turncredit.training import ResamplingSettings, new_optimiser, train
from turncredit.training.audited import turn_starts
from turncredit.training.collect import collect

COUNTED = {"audit_continuations", "audit_turns", "audit_tokens"}
ON_TREE = replace(TRAINING, questions_per_step=16, group_size=2, max_turn_tokens=TURN_TOKENS)


def arm(base: str, continuations: int = 4):
    return replace(PLAIN, base=base, base_options={"continuations": continuations})


@pytest.fixture(scope="module")
def on_tree():
    """A step in the tree: policy, what was drawn, its batch and the exact truth of its turns."""
    model = taught_policy()
    drawn = collect(model, WORDS, WORLD, SMALL, ON_TREE, seed=3, step=5)
    batch = from_trajectories(drawn.trajectories, group_ids=drawn.group_ids)
    starts = turn_starts(WORDS, drawn)
    shape = tuple(batch.turn_lengths().shape)
    return model, drawn, batch, exact_audit(
        model, WORDS, TREE, starts, max_turn_tokens=TURN_TOKENS, shape=shape
    )  # fmt: skip


# --- what the loop fills in


def test_the_ceiling_is_the_exact_advantage_within_its_error(on_tree):
    """Each turn within 5 of its standard errors, the mean of all within 3, on the tokens."""
    model, drawn, batch, exact = on_tree
    filled, counts = arm("true_advantage", 64).fill(batch, model, WORDS, drawn)
    real = batch.turn_lengths() > 0
    assert real.sum() > 40 and exact.advantages[real].std() > 0.05
    off = (filled.turn_rewards.double() - exact.advantages)[real]
    assert off.square().mean().sqrt().item() == pytest.approx(counts["audit_error"], rel=0.4)
    assert abs(off.mean()) <= 3 * off.std() / math.sqrt(len(off))
    assert off.abs().max() <= 5 * 1 / math.sqrt(2 * 64)
    given = arm("true_advantage", 64).credit(filled).advantages
    assert torch.equal(given, batch.gather_turns(filled.turn_rewards.nan_to_num()))


def test_the_peer_has_the_exact_values_within_their_error(on_tree):
    """A mean of 64 rewards in [0, 1] is off by 1/16 at the most, as standard errors go."""
    model, drawn, batch, exact = on_tree
    filled, _ = arm("vineppo", 64).fill(batch, model, WORDS, drawn)
    real = batch.turn_lengths() > 0
    found = batch.turn_sums(filled.values) / batch.turn_lengths()
    off = (found - exact.values)[real]
    assert 0 < off.abs().max() <= 5 / 16
    later = real & (torch.arange(batch.num_turns) > 0)  # first states are one for a question
    rest = (found - exact.values)[later]
    assert abs(rest.mean()) <= 3 * rest.std() / math.sqrt(len(rest))
    gains = arm("vineppo", 64).credit(filled).advantages
    known = batch.turn_sums(gains)[real] / batch.turn_lengths()[real]
    assert torch.corrcoef(torch.stack([known, exact.advantages[real]]))[0, 1] > 0.5


def test_what_the_first_continuations_cost_is_counted(on_tree):
    """Distinct states of the step times their number; every turn that is made has tokens."""
    model, drawn, batch, _ = on_tree
    _, counts = arm("vineppo", 2).fill(batch, model, WORDS, drawn)
    later = sum(len(trajectory.turns) - 1 for trajectory in drawn.trajectories)
    assert counts["audit_continuations"] == 2 * (ON_TREE.questions_per_step + later)
    assert counts["audit_continuations"] <= counts["audit_turns"] <= counts["audit_tokens"]
    _, more = arm("true_advantage", 2).fill(batch, model, WORDS, drawn)
    assert counts["audit_continuations"] < more["audit_continuations"]


# --- the bases


def test_a_value_that_nobody_knows_takes_its_trajectory_out():
    values = torch.tensor([[0.5, math.nan, math.nan, math.nan], [0.25, 9.0, 9.0, 9.0]])
    found = BASES["vineppo"](two_turns_and_one().replace(values=values))
    assert found.tolist() == [[0.0] * 4, [0.75, 0.0, 0.0, 0.0]]
    values[0, 3] = math.inf
    with pytest.raises(ValueError, match=r"TurnBatch\.values: row 0 is infinite"):
        BASES["vineppo"](two_turns_and_one().replace(values=values))


def test_only_the_value_where_a_turn_begins_is_read():
    values = torch.tensor([[0.5, 0.0, 0.0, 0.25], [0.5, 0.0, 0.0, 0.0]])
    other = torch.where(values == 0, math.nan, values)
    found = [BASES["vineppo"](two_turns_and_one().replace(values=v)) for v in (values, other)]
    assert torch.equal(*found)


def test_the_gains_of_a_trajectory_add_up_to_its_reward_minus_its_first_value(on_tree):
    model, drawn, batch, _ = on_tree
    filled, _ = arm("vineppo", 3).fill(batch, model, WORDS, drawn)
    gains = batch.turn_sums(BASES["vineppo"](filled)) / batch.turn_lengths().clamp(min=1)
    first = batch.turn_sums(filled.values)[:, 0] / batch.turn_lengths()[:, 0]
    assert torch.allclose(gains.sum(dim=1), batch.rewards.double() - first, atol=1e-6)


# --- in the loop


def steps_of(model, method, settings, *, start=0, optimiser=None):
    optimiser = optimiser or new_optimiser(model, settings)
    parts = (model, optimiser, vocabulary(), coin_environment(), SMALL)
    return list(train(*parts, method, settings, seed=0, start=start)), optimiser


@pytest.mark.parametrize("base", ["true_advantage", "vineppo"])
def test_a_resumed_run_is_the_unbroken_one(base):
    """Metrics, costs and weights after a break equal those without one, bit for bit."""
    settings = replace(TRAINING, steps=3, questions_per_step=2)
    whole = policy()
    logs, _ = steps_of(whole, arm(base, 2), settings)
    broken = policy()
    _, optimiser = steps_of(broken, arm(base, 2), replace(settings, steps=2))
    again = policy()
    again.load_state_dict(copy.deepcopy(broken.state_dict()))
    fresh = new_optimiser(again, settings)
    fresh.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    (last,), _ = steps_of(again, arm(base, 2), settings, start=2, optimiser=fresh)
    assert repr(last.metrics) == repr(logs[-1].metrics)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_the_columns_appear_for_these_arms_only_and_rollouts_stay_as_they_were():
    """The first step's trajectories are those of GRPO: playing on draws from streams of its own."""
    settings = replace(TRAINING, steps=1, questions_per_step=2)
    plain = steps_of(policy(), PLAIN, settings)[0][0]
    for base, more in (("true_advantage", {"audit_error"}), ("vineppo", set())):
        log = steps_of(policy(), arm(base, 2), settings)[0][0]
        assert set(log.metrics) - set(plain.metrics) == COUNTED | more
        assert log.trajectories == plain.trajectories
        assert log.metrics["tokens"] == plain.metrics["tokens"]


def test_groups_of_any_round_of_resampling_can_be_played_again():
    rounds = ResamplingSettings(max_rounds=4)
    settings = replace(TRAINING, questions_per_step=8, group_size=2, resampling=rounds)
    drawn = collect(policy(), vocabulary(), coin_environment(), SMALL, settings, seed=0, step=0)
    assert len({origin.seed for origin in drawn.origins}) > 1, "no second round proves nothing"
    starts = turn_starts(vocabulary(), drawn)
    assert len(starts) == sum(len(trajectory.turns) for trajectory in drawn.trajectories)


# --- wrong use


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": "vineppo", "base_options": {"continuations": 0}}, "continuations is 0"),
        ({"base": "true_advantage", "base_options": {"continuations": 1}}, "of at least 2"),
        ({"base": "vineppo", "base_options": {"continuations": "9"}}, "continuations is '9'"),
        ({"base": "grpo", "base_options": {"continuations": 9}}, "no option 'continuations'"),
        ({"base": "vineppo", "rollout": "arpo"}, "'vineppo' plays trajectories again"),
    ],
)
def test_wrong_use_is_one_error_before_anything_runs(tmp_path, monkeypatch, changes, words):
    home_with_task(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=words):
        experiment.experiment_from(parameters(x=changes))


def test_values_of_no_continuations_are_refused(on_tree):
    model, drawn, _, _ = on_tree
    options = {"seed": 0, "max_turn_tokens": TURN_TOKENS, "shape": (32, 3)}
    with pytest.raises(ValueError, match="continuations = 0"):
        state_values(model, WORDS, WORLD, turn_starts(WORDS, drawn), continuations=0, **options)
