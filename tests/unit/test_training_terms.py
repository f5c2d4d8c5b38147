"""What a loss or a reward can hold beside the objective, and gradients in parts."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from play import PLAIN, SMALL, TRAINING, coin_environment, policy, questions, vocabulary

from turncredit.batching import from_trajectories
from turncredit.checkpoints import load_checkpoint, save_checkpoint
from turncredit.credit import assign_credit
from turncredit.objectives import OBJECTIVES, kl_penalty
from turncredit.rollout import roll_out
from turncredit.training import (
    KlSettings,
    Method,
    OverlongSettings,
    ResamplingSettings,
    accumulate_gradient,
    new_optimiser,
    rescore,
    train,
)
from turncredit.training.loop import shape_rewards

WORDS = vocabulary()
RUNNING = Method("grpo", {}, "suffix_mask", {"rule": "running", "k": 2, "c": 1.0}, "ppo_clip", {})
PULLS = [KlSettings("loss", 0.5, name) for name in ("k2", "k3", "k1+", "k3+")]


def rolled(model, environment=None, *, rows=12, size=4):
    asked = [question for question in questions(rows // size) for _ in range(size)]
    environment = environment or coin_environment()
    trajectories = roll_out(model, WORDS, environment, asked, seed=0, step=0, max_turn_tokens=5)
    return from_trajectories(trajectories, group_ids=[row // size for row in range(rows)])


def moved(model, amount: float = 0.05):
    """Another policy near `model`: ratios and divergence are then not those of one policy."""
    other, stream = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += amount * torch.randn(parameter.shape, generator=stream)
    return other


def gradient(model, batch, advantages, method, settings):
    model.zero_grad()
    metrics = accumulate_gradient(model, batch, advantages, method, settings)
    return [parameter.grad.clone() for parameter in model.parameters()], metrics


def trained(method=PLAIN, *, start=0, model=None, optimiser=None, memory=None, **changes):
    settings = replace(TRAINING, **changes)
    model = model or policy()
    optimiser = optimiser or new_optimiser(model, settings)
    logs = train(
        model, optimiser, WORDS, coin_environment(), SMALL, method, settings, seed=0, start=start,
        reference=copy.deepcopy(policy()), memory=memory,
    )  # fmt: skip
    return model, logs


def divergence(model) -> float:
    """Mean k3 estimate of KL(model, the policy that training began with) on fresh rollouts."""
    batch, _ = rescore(model, rolled(model, rows=48), reference=policy())
    return kl_penalty(batch.old_logprobs, batch, estimator="k3")[1]["kl"]


# --- micro-batches


@pytest.mark.parametrize("micro_batch", [1, 5])
@pytest.mark.parametrize(
    "terms", [{}, {"kl": PULLS[2], "entropy_bonus": 0.1}], ids=["plain", "terms"]
)
@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("ppo_clip", {}),
        ("ppo_clip", {"aggregation": "seq_mean_token_mean"}),
        ("gspo", {}),
        ("turn_gspo", {}),
    ],
)
def test_parts_add_up_to_the_gradient_loss_and_metrics_of_the_whole(
    micro_batch, terms, objective, options
):
    before = policy()
    batch, _ = rescore(before, rolled(before), reference=moved(before, 0.1))
    advantages = assign_credit(batch, weight="none").advantages
    method = replace(PLAIN, objective=objective, objective_options=options)
    model = moved(before)
    whole, expected = gradient(model, batch, advantages, method, replace(TRAINING, **terms))
    parts, found = gradient(
        model, batch, advantages, method, replace(TRAINING, micro_batch=micro_batch, **terms)
    )
    assert max(part.abs().max().item() for part in whole) > 1e-3
    for left, right in zip(whole, parts, strict=True):
        assert torch.allclose(left, right, atol=2e-6, rtol=1e-4)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5, rel=1e-4, nan_ok=True), name


def test_a_run_in_micro_batches_follows_the_same_path():
    whole, logs = trained()
    entropies = [log.metrics["entropy"] for log in logs]
    parts, logs = trained(micro_batch=5)
    assert [log.metrics["entropy"] for log in logs] == pytest.approx(entropies, rel=1e-3)
    for left, right in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-3)


# --- entropy bonus


def test_the_entropy_bonus_adds_the_gradient_of_the_mean_token_entropy():
    model = policy()
    batch, _ = rescore(model, rolled(model))
    advantages = assign_credit(batch, weight="none").advantages
    plain, _ = gradient(model, batch, advantages, PLAIN, TRAINING)
    with_bonus, _ = gradient(model, batch, advantages, PLAIN, replace(TRAINING, entropy_bonus=0.25))
    model.zero_grad()
    _, entropies = model.score(batch.token_ids, batch.response_mask)
    entropies[batch.response_mask].mean().backward()
    for left, right, parameter in zip(with_bonus, plain, model.parameters(), strict=True):
        assert torch.allclose(left, right - 0.25 * parameter.grad, atol=1e-6)


# --- divergence from a reference


@pytest.mark.parametrize("kl", PULLS, ids=lambda kl: kl.estimator)
def test_a_pull_in_the_loss_keeps_the_policy_nearer_to_its_reference(kl):
    free, logs = trained()
    list(logs)
    held, logs = trained(kl=replace(kl, coefficient=5.0))
    list(logs)
    assert divergence(held) < 0.5 * divergence(free)


def test_a_pull_in_the_reward_changes_the_credit_but_neither_success_nor_the_logged_reward():
    model = policy()
    batch, _ = rescore(model, rolled(model), reference=moved(model, 0.2))
    settings = replace(TRAINING, kl=KlSettings("reward", 0.5, "k1"))
    shaped = shape_rewards(batch, settings)
    gap = (batch.old_logprobs - batch.ref_logprobs).masked_fill(~batch.response_mask, 0.0)
    assert torch.allclose(shaped.rewards, batch.rewards - 0.5 * gap.sum(1), atol=1e-5)
    assert torch.equal(shaped.success, batch.success)
    _, logs = trained(kl=KlSettings("reward", 0.5, "k1"))
    for log in logs:
        assert log.metrics["reward"] == pytest.approx(
            sum(t.reward for t in log.trajectories) / len(log.trajectories)
        )


def test_without_a_reference_there_is_nothing_to_pull_towards():
    model, settings = policy(), replace(TRAINING, kl=PULLS[0])
    logs = train(
        model, new_optimiser(model, settings), WORDS, coin_environment(), SMALL, PLAIN, settings,
        seed=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="kl: there is no reference"):
        next(logs)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"coefficient": -0.1}, "coefficient"),
        ({"estimator": "k4"}, "estimator = 'k4'"),
        ({"estimator": "k1"}, "no gradient"),
    ],
)
def test_settings_of_a_pull_that_mean_nothing_are_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        replace(PULLS[0], **wrong)


# --- penalty on length


def test_long_trajectories_lose_reward_for_credit_alone():
    batch, _ = rescore(policy(), rolled(policy()))
    lengths = batch.response_mask.sum(1)
    longest = int(lengths.max())
    settings = replace(TRAINING, overlong=OverlongSettings(longest, longest))
    shaped = shape_rewards(batch, settings)
    assert torch.allclose(shaped.rewards, batch.rewards - lengths / longest)
    with pytest.raises(ValueError, match="cache_length = 9"):
        OverlongSettings(8, 9)


# --- dynamic sampling


def test_resampling_keeps_groups_that_teach_and_counts_the_rest():
    _, plain = trained(steps=3)
    _, again = trained(steps=3)
    _, logs = trained(steps=3, resampling=ResamplingSettings(8))
    assert repr([log.metrics for log in plain]) == repr([log.metrics for log in again])
    more = 0
    for log in logs:
        counts = {name: log.metrics[name] for name in ("groups_drawn", "groups_kept")}
        assert counts["groups_kept"] == TRAINING.questions_per_step
        assert log.metrics["zero_variance_groups"] == 0.0
        assert counts["groups_drawn"] == log.metrics["sampling_rounds"] * 3
        more += log.metrics["sampling_rounds"] > 1
        assert len({t.question_id for t in log.trajectories}) == 3
    assert more, "every first round taught: the test says nothing"


def test_if_nothing_teaches_the_first_round_stays_and_all_is_counted(monkeypatch):
    monkeypatch.setattr("turncredit.training.collect._teaches", lambda group: False)
    _, plain = trained(steps=1)
    _, logs = trained(steps=1, resampling=ResamplingSettings(2))
    (first,), (log,) = plain, logs
    assert log.trajectories == first.trajectories
    assert (log.metrics["groups_unusable"], log.metrics["groups_short"]) == (6, 3)


# --- what a method remembers


def test_rule_running_compares_with_earlier_steps_and_resumes_to_the_bit(tmp_path):
    memory: dict[str, torch.Tensor] = {}
    whole, logs = trained(RUNNING, memory=memory)
    logs = list(logs)
    assert logs[0].metrics["masked_share"] == 0.0, "before the first step nothing has been seen"
    assert any(log.metrics["masked_share"] > 0 for log in logs)

    first, optimiser, kept = policy(), None, {}
    optimiser = new_optimiser(first, TRAINING)
    begun = []
    _, some = trained(RUNNING, model=first, optimiser=optimiser, memory=kept)
    for log in some:
        begun.append(log.metrics)
        if log.step == 2:
            break
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, first, optimiser, 3, extra=kept)
    second = policy(seed=99)
    optimiser = new_optimiser(second, TRAINING)
    recalled: dict[str, torch.Tensor] = {}
    start = load_checkpoint(path, second, optimiser, extra=recalled)
    _, rest = trained(RUNNING, model=second, optimiser=optimiser, start=start, memory=recalled)
    ours = begun + [log.metrics for log in rest]
    assert repr(ours) == repr([log.metrics for log in logs])
    assert torch.equal(recalled["reference"], memory["reference"])
    pairs = zip(second.parameters(), whole.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


# --- updates that go wrong, and weights that follow the policy


def test_an_update_that_is_not_finite_is_the_last_of_its_step_for_every_weight():
    """A weight that follows the policy must not meet a lost one: the tripwire is to see it."""
    for weight, options in (("none", {}), ("high_is_turns", {"limit": 1e-3})):
        method = Method("grpo", {}, weight, options, "ppo_clip", {})
        _, logs = trained(method, learning_rate=1e38, warmup_steps=0, updates_per_batch=3, steps=1)
        (log,) = logs
        assert not all(math.isfinite(log.metrics[name]) for name in ("loss", "gradient_norm"))


def test_statistics_of_a_following_weight_count_each_trajectory_once():
    method = Method("grpo", {}, "high_is_turns", {"limit": 1e-3}, "ppo_clip", {})
    _, logs = trained(method)
    for log in logs:
        assert log.metrics["failed"] == sum(not t.success for t in log.trajectories)
        assert not math.isnan(log.metrics["masked_share"])


def test_an_objective_without_a_clip_range_trains_and_clips_nothing(monkeypatch):
    def plain(logprobs, batch, advantages, *, total_tokens=None, total_sequences=None):
        mask = batch.response_mask
        loss = -(logprobs * advantages).masked_fill(~mask, 0.0).sum() / total_tokens
        metrics = {"response_tokens": float(mask.sum()), "clip_fraction": 0.0}
        return loss, metrics

    monkeypatch.setitem(OBJECTIVES, "plain", plain)
    _, logs = trained(replace(PLAIN, objective="plain", objective_options={}))
    for log in logs:
        assert all(row["clip_fraction"] == 0.0 for row in log.turns)


def test_equal_rewards_stay_equal_under_a_pull_in_the_reward_before_the_first_update():
    """The reference is the policy then; the std of a group would blow up a rounding apart."""
    model = policy()
    batch = rolled(model, rows=48)
    scored, _ = rescore(model, batch, reference=copy.deepcopy(model), first=torch.arange(8, 28))
    assert torch.equal(scored.old_logprobs, scored.ref_logprobs)
    shaped = shape_rewards(scored, replace(TRAINING, kl=KlSettings("reward", 0.1, "k1")))
    assert torch.equal(shaped.rewards, scored.rewards)


def test_a_pull_of_0_measures_the_divergence_and_changes_nothing_else():
    measured, plain = policy(), policy()
    reference = measured.frozen_copy()
    kl = KlSettings("loss", 0.0, "k3")
    logs = [
        list(
            train(
                model, new_optimiser(model, TRAINING), WORDS, coin_environment(), SMALL, PLAIN,
                replace(TRAINING, kl=pull), seed=0, reference=reference if pull else None,
            )
        )
        for model, pull in ((measured, kl), (plain, None))
    ]  # fmt: skip
    for name, value in measured.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    found = [log.metrics["divergence_k3"] for log in logs[0]]
    assert found[0] == 0
    assert found[-1] > 0
    assert all(math.isnan(log.metrics["divergence_k3"]) for log in logs[1])


@pytest.mark.parametrize("change", [{"temperature": 0.7}, {"top_p": 0.9}])
def test_training_on_a_distribution_that_is_not_the_policys_is_refused(change):
    (name,) = change
    with pytest.raises(ValueError, match=rf"{name} = 0\.\d .*ratios"):
        replace(TRAINING, **change)
