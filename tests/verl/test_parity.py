"""Law 5: the same tensors through verl's own functions give the same numbers, values and gradients.

Where the two part on purpose, a test states how; `docs/estimators.md` says why.  Runs only where
verl 0.9.1 is installed: `make test-verl`.
"""

import math
from importlib.metadata import version

import numpy as np
import pytest
import torch
from batches import current_logprobs, make_batch, poison
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import (
    CLOSE,
    at_sampled,
    example,
    in_type,
    last_sampled,
    outcome_at,
    scored_batches,
    without_observations,
)
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES
from turncredit.objectives import (
    AGGREGATIONS,
    KL_ESTIMATORS,
    OBJECTIVES,
    aggregate,
    batch_totals,
    kl_estimates,
    kl_in_rewards,
)

# Not "verl": where it is not installed, this folder would answer to that name.
algorithms = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed here; `make test-verl` has it"
)
from verl.protocol import DataProto  # noqa: E402
from verl.trainer.config import AlgoConfig  # noqa: E402
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
few = settings(max_examples=12)


def test_the_version_is_the_one_the_docs_name():
    assert version("verl") == "0.9.1"


# advantages


ESTIMATORS = {
    "grpo": ("grpo", {}, "grpo", {}),
    "grpo_vectorized": ("grpo_vectorized", {}, "grpo", {}),
    "dapo": ("grpo", {}, "dapo", {}),
    "dr_grpo": ("grpo", {"norm_adv_by_std_in_grpo": False}, "dr_grpo", {}),
    "rloo": ("rloo", {}, "rloo", {}),
    "rloo_vectorized": ("rloo_vectorized", {}, "rloo", {}),
    "reinforce_pp": ("reinforce_plus_plus", {}, "reinforce_pp", {}),
    "reinforce_pp, discounted": (
        "reinforce_plus_plus",
        {"gamma": 0.9},
        "reinforce_pp",
        {"gamma": 0.9},
    ),
    "reinforce_pp_baseline": ("reinforce_plus_plus_baseline", {}, "reinforce_pp_baseline", {}),
    "gae": ("gae", {}, "gae", {}),
    "gae, discounted": ("gae", {"gamma": 0.9, "lam": 0.7}, "gae", {"gamma": 0.9, "lam": 0.7}),
}
"""Their name and options, our name and options."""

SINGLE = {"grpo_vectorized"}
"""Theirs computes in float32 whatever it is given."""

every_estimator = pytest.mark.parametrize("names", ESTIMATORS.values(), ids=ESTIMATORS)


def theirs(
    batch: TurnBatch,
    estimator: str,
    *,
    rewards: Tensor | None = None,
    gamma: float = 1.0,
    **options: object,
) -> Tensor:
    """[B, L]: advantages by verl's `compute_advantage`, with the reward at the last sampled token.

    rewards: [B, L] in its place.
    """
    given = {"response_mask": batch.response_mask.long()}
    given["token_level_rewards"] = (
        outcome_at(batch, last_sampled(batch)) if rewards is None else rewards
    )
    given["values"] = torch.nan_to_num(batch.values)
    labels = np.array([f"question {number}" for number in batch.group_ids.tolist()], dtype=object)
    data = DataProto.from_dict(tensors=given, non_tensors={"uid": labels})
    data = compute_advantage(
        data, estimator, gamma=gamma, config=AlgoConfig(gamma=gamma), **options
    )
    return data.batch["advantages"]


def paid_along_the_way(batch: TurnBatch) -> Tensor:
    """[B, L]: the outcome at the last sampled token, step rewards at the last one of each turn."""
    turns = batch.turn_ids
    later = (turns[:, :, None] == turns[:, None, :]) & batch.response_mask[:, None, :]
    ends = batch.response_mask & ~later.triu(1).any(dim=2)
    steps = at_sampled(batch, batch.gather_turns(batch.turn_rewards)) * ends
    return steps + outcome_at(batch, last_sampled(batch))


@every_type
@every_estimator
@given(batch=scored_batches())
@few
def test_advantages(names, dtype, batch):
    estimator, options, base, ours = names
    batch = in_type(batch, dtype)
    found = BASES[base](batch.replace(turn_rewards=None), **ours)
    if int(batch.response_mask.sum()) < 2 and base.startswith(("reinforce", "gae")):
        with pytest.raises(ValueError, match="mask"):  # see test_nothing_to_whiten
            theirs(batch, estimator, **options)
        return
    expected = at_sampled(batch, theirs(batch, estimator, **options))
    torch.testing.assert_close(
        found, expected, **CLOSE[torch.float32 if estimator in SINGLE else dtype]
    )


@every_type
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.95, 0.8), (1.0, 0.0)])
def test_gae_with_step_rewards(gamma, lam, dtype):
    batch = example(dtype)
    found = BASES["gae"](batch, gamma=gamma, lam=lam)
    expected = theirs(batch, "gae", rewards=paid_along_the_way(batch), gamma=gamma, lam=lam)
    torch.testing.assert_close(found, at_sampled(batch, expected), **CLOSE[dtype])
    assert (found != BASES["gae"](batch.replace(turn_rewards=None), gamma=gamma, lam=lam)).any()


@every_type
def test_gae_without_whitening_is_their_return_minus_the_value(dtype):
    batch = in_type(without_observations(example()), dtype).replace(turn_rewards=None)
    rewards = outcome_at(batch, last_sampled(batch))
    mask = batch.response_mask.to(dtype)
    _, returns = algorithms.compute_gae_advantage_return(rewards, batch.values, mask, 0.9, 0.7)
    found = BASES["gae"](batch, gamma=0.9, lam=0.7, whiten=False)
    expected = at_sampled(batch, returns - batch.values)
    torch.testing.assert_close(found, expected, **CLOSE[dtype])


@every_type
def test_gpg_is_dr_grpo_over_the_share_of_rewards_that_are_not_zero(dtype):
    batch = example(dtype)
    share = float((batch.rewards != 0).double().mean())
    found = BASES["dr_grpo"](batch) / share
    torch.testing.assert_close(found, theirs(batch, "gpg"), **CLOSE[dtype])


@every_type
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward(estimator, dtype):
    """Of outcome estimators: theirs subtracts token by token and then sums, ours sums at once."""
    batch = example(dtype)
    tensors = {
        "response_mask": batch.response_mask.long(),
        "token_level_scores": outcome_at(batch, last_sampled(batch)),
        "old_log_probs": batch.old_logprobs,
        "ref_log_prob": batch.ref_logprobs,
    }
    data = DataProto.from_dict(tensors=tensors)
    controller = algorithms.FixedKLController(0.03)
    data, _ = apply_kl_penalty(data, controller, kl_penalty=estimator)
    given = data.batch["token_level_rewards"]
    rewards = kl_in_rewards(batch, coefficient=0.03, estimator=estimator)
    torch.testing.assert_close(rewards, given.sum(dim=1), **CLOSE[dtype])
    found = BASES["grpo"](batch.replace(rewards=rewards))
    torch.testing.assert_close(found, theirs(batch, "grpo", rewards=given), **CLOSE[dtype])
    found = BASES["reinforce_pp"](batch.replace(rewards=rewards))
    apart = found - theirs(batch, "reinforce_plus_plus", rewards=given)
    assert apart.abs().max() > 1e-3, "theirs leaves out the KL of tokens before; say so no more"


# advantages: deviations


def lonely() -> TurnBatch:
    """A group of two, and one trajectory alone in its group."""
    return make_batch([[2, 1], [1, 2], [2]], rewards=[0.0, 1.0, 0.75], groups=[0, 0, 1])


@pytest.mark.parametrize(
    ("estimator", "base", "alone"),
    [
        ("grpo", "grpo", 0.75),
        ("grpo_vectorized", "grpo", 0.75),
        ("rloo", "rloo", 0.75),
        ("rloo_vectorized", "rloo", 0.0),
    ],
)
def test_a_group_of_one_is_refused(estimator, base, alone):
    """Theirs: the raw reward, a policy gradient without a baseline, or 0, by implementation."""
    batch = lonely()
    expected = theirs(batch, estimator)
    assert expected[2][batch.response_mask[2]].tolist() == pytest.approx([alone] * 2, rel=1e-5)
    with pytest.raises(ValueError, match="single trajectory"):
        BASES[base](batch)
    found = BASES[base](batch, allow_singleton=True)
    assert (found[2] == 0).all()
    torch.testing.assert_close(found[:2], expected[:2], **CLOSE[torch.float32])


def test_a_group_of_one_shifts_their_whitened_baseline():
    """The raw reward of the lonely row enters the mean and scale of the whole batch."""
    batch = lonely()
    found = BASES["reinforce_pp_baseline"](batch, allow_singleton=True)
    expected = theirs(batch, "reinforce_plus_plus_baseline")
    assert ((found - expected)[batch.response_mask].abs() > 0.1).all()
    without = batch.select([0, 1])
    apart = theirs(without, "reinforce_plus_plus_baseline")
    torch.testing.assert_close(BASES["reinforce_pp_baseline"](without), apart)


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized"])
def test_equal_rewards_give_exactly_nothing(estimator):
    """Theirs divides the rounding of the mean by an epsilon: 0.056 for seven rewards of 0.7."""
    batch = make_batch([[2, 1]] * 7, rewards=[0.7] * 7)
    noise = theirs(batch, estimator)[batch.response_mask]
    assert (noise.abs() > 0.01).all()
    assert (BASES["grpo"](batch) == 0).all()


def test_whitened_equal_rewards_give_exactly_nothing():
    batch = make_batch([[2, 1]] * 7, rewards=[0.7] * 7)
    assert (theirs(batch, "reinforce_plus_plus")[batch.response_mask] != 0).any()
    assert (BASES["reinforce_pp"](batch) == 0).all()


@pytest.mark.parametrize(
    ("estimator", "base"), [("reinforce_plus_plus", "reinforce_pp"), ("gae", "gae")]
)
@pytest.mark.parametrize("lengths", [[[0], [1]], [[0], [0]]])
def test_nothing_to_whiten(lengths, estimator, base):
    """Fewer than two sampled tokens in a batch, or micro-batch: an error of theirs, 0 of ours."""
    batch = make_batch(lengths)
    with pytest.raises(ValueError, match="mask"):
        theirs(batch, estimator)
    assert (BASES[base](batch) == 0).all()


@pytest.mark.parametrize(
    ("estimator", "base"), [("reinforce_plus_plus", "reinforce_pp"), ("gae", "gae")]
)
def test_the_reward_of_a_trajectory_that_ends_in_an_observation_is_not_lost(estimator, base):
    """verl puts the reward at the last token of the response, tool output included.

    There its recursions over tokens, which skip observations, never see it; those that sum do.
    """
    batch = make_batch([[2, 1], [1, 2]], rewards=[0.0, 1.0]).replace(turn_rewards=None)
    end = torch.tensor([batch.response_mask.shape[1] - 1] * 2)
    assert not batch.response_mask[:, end].any()
    at_end = outcome_at(batch, end)
    lost = theirs(batch, estimator, rewards=at_end)
    nothing = theirs(batch, estimator, rewards=torch.zeros_like(at_end))
    assert torch.equal(at_sampled(batch, lost), at_sampled(batch, nothing))
    paid = at_sampled(batch, theirs(batch, estimator))
    torch.testing.assert_close(BASES[base](batch), paid, **CLOSE[torch.float32])
    summed = theirs(batch, "grpo", rewards=at_end)
    torch.testing.assert_close(BASES["grpo"](batch), summed, **CLOSE[torch.float32])


def test_observations_get_no_advantage():
    """Theirs carries GAE through observations and whitens them too; the loss then masks them."""
    batch = example()
    assert (theirs(batch, "gae")[~batch.response_mask] != 0).any()
    assert (BASES["gae"](batch)[~batch.response_mask] == 0).all()


@pytest.mark.parametrize("estimator", ["grpo", "grpo_vectorized", "rloo", "rloo_vectorized"])
def test_a_missing_reward_stays_with_its_trajectory(estimator):
    """Theirs makes the whole group NaN; ours is theirs on the batch without that trajectory."""
    batch = example()
    missing = batch.replace(rewards=batch.rewards.index_fill(0, torch.tensor(2), math.nan))
    spoilt = theirs(missing, estimator)
    assert spoilt[:4][batch.response_mask[:4]].isnan().all()
    found = BASES[estimator.removesuffix("_vectorized")](missing)
    rest = [0, 1, 3, 4, 5, 6, 7]
    assert (found[2] == 0).all()
    expected = theirs(batch.select(rest), estimator)
    torch.testing.assert_close(found[rest], expected, **CLOSE[torch.float32])


# policy losses


MODES = dict(
    zip(
        AGGREGATIONS,
        ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"],
        strict=True,
    )
)
LOSSES = {
    "ppo_clip": ("vanilla", {"dual_clip": 3.0}, {}),
    "ppo_clip, clip-higher": (
        "vanilla",
        {"clip_high": 0.28, "dual_clip": 10.0},
        {"clip_ratio_high": 0.28, "clip_ratio_c": 10.0},
    ),
    "ppo_clip, dual clip at work": (
        "vanilla",
        {"clip_low": 0.1, "dual_clip": 1.1},
        {"clip_ratio_low": 0.1, "clip_ratio_c": 1.1},
    ),
    "gspo": ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, {}),
    "gspo, published": ("gspo", {}, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "gspo_token": (
        "gspo",
        {"clip_low": 0.05, "clip_high": 0.1},
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1},
    ),
    "cispo": ("cispo", {}, {"clip_ratio_high": 0.28}),
}
"""Ours (the name ends at a comma): theirs, our options, their options."""

every_loss = pytest.mark.parametrize("case", LOSSES)
every_mode = pytest.mark.parametrize("mode", MODES)


def advantages_of(batch: TurnBatch, objective: str, seed: int = 3) -> Tensor:
    """[B, L]: both signs and some zeros; constant over a trajectory for `gspo`, else free."""
    stream = torch.Generator().manual_seed(seed)
    shape = (len(batch.rewards), 1) if objective == "gspo" else batch.response_mask.shape
    drawn = torch.randn(shape, generator=stream).to(batch.rewards.dtype)
    drawn = torch.where(drawn.abs() < 0.1, 0.0, drawn)
    return at_sampled(batch, drawn.expand(batch.response_mask.shape))


def their_loss(
    name: str,
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    mode: str,
    options: dict | None = None,
    **totals: object,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Loss, gradient in the log-probs [B, L] and metrics of one of verl's policy losses."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **(options or {})
    )
    config.global_batch_info.update(totals)
    leaf = logprobs.clone().requires_grad_()
    loss, metrics = algorithms.get_policy_loss_fn(name)(
        old_log_prob=batch.old_logprobs,
        log_prob=leaf,
        advantages=advantages,
        response_mask=batch.response_mask,
        loss_agg_mode=MODES.get(mode, mode),
        config=config,
    )
    loss.backward()
    return loss.detach(), leaf.grad, metrics


def our_loss(
    name: str, batch: TurnBatch, logprobs: Tensor, advantages: Tensor, **options: object
) -> tuple[Tensor, Tensor, dict[str, float]]:
    leaf = logprobs.clone().requires_grad_()
    loss, metrics = OBJECTIVES[name](leaf, batch, advantages, **options)
    loss.backward()
    return loss.detach(), leaf.grad, metrics


def moved(batch: TurnBatch, scale: float = 0.3, seed: int = 1) -> Tensor:
    """[B, L]: log-probs of the policy after some updates, in the type of the batch."""
    return current_logprobs(batch, scale, seed).to(batch.old_logprobs.dtype)


@every_type
@every_mode
@every_loss
@given(batch=scored_batches(), scale=st.sampled_from([0.0, 0.01, 0.3, 2.0]))
@few
def test_losses_and_gradients(case, mode, dtype, batch, scale):
    batch = in_type(batch, dtype)
    if not batch.response_mask.any():
        return  # see test_nothing_sampled
    objective = case.split(",")[0]
    name, ours, options = LOSSES[case]
    logprobs, advantages = moved(batch, scale), advantages_of(batch, objective)
    expected = their_loss(name, batch, logprobs, advantages, mode, options)
    length = {"max_length": batch.response_mask.shape[1]}
    found = our_loss(objective, batch, logprobs, advantages, aggregation=mode, **ours, **length)
    torch.testing.assert_close(found[0], expected[0], **CLOSE[dtype])
    torch.testing.assert_close(found[1], expected[1], **CLOSE[dtype])


@every_loss
def test_metrics(case):
    """Clip fractions are counts: equal, not close."""
    batch = example(torch.float64)
    objective = case.split(",")[0]
    name, ours, options = LOSSES[case]
    logprobs, advantages = moved(batch, 0.5), advantages_of(batch, objective)
    *_, expected = their_loss(name, batch, logprobs, advantages, "token_mean", options)
    *_, found = our_loss(objective, batch, logprobs, advantages, **ours)
    clipped = "weight_clip_fraction" if objective == "cispo" else "clip_fraction"
    assert found[clipped] == pytest.approx(expected["actor/pg_clipfrac"], abs=1e-7)
    assert found[clipped] > 0
    assert found["ppo_kl"] == pytest.approx(expected["actor/ppo_kl"], abs=1e-8)
    lower = found.get("dual_clip_fraction", 0.0)
    assert lower == pytest.approx(expected["actor/pg_clipfrac_lower"], abs=1e-7)
    assert (lower > 0) == ("at work" in case)


@every_mode
def test_gpg_is_every_surrogate_on_policy(mode):
    """-A log p has the gradient that the ratios have where the policy has not moved."""
    batch = example(torch.float64)
    logprobs, advantages = batch.old_logprobs.clone(), advantages_of(batch, "gspo")
    _, expected, _ = their_loss("gpg", batch, logprobs, advantages, mode)
    length = {"max_length": batch.response_mask.shape[1]}
    for objective in OBJECTIVES:
        _, found, _ = our_loss(objective, batch, logprobs, advantages, aggregation=mode, **length)
        torch.testing.assert_close(found, expected, **CLOSE[torch.float64])


@every_type
@every_mode
@given(batch=scored_batches())
@few
def test_aggregations(mode, dtype, batch):
    batch = in_type(batch, dtype)
    if not batch.response_mask.any():
        return
    losses = batch.old_logprobs
    options = {"loss_scale_factor": 50} if mode == "seq_mean_token_sum_norm" else {}
    expected = algorithms.agg_loss(losses, batch.response_mask, MODES[mode], **options)
    found = aggregate(losses, batch.response_mask, mode=mode, max_length=50)
    torch.testing.assert_close(found, expected, **CLOSE[dtype])


def test_token_sum_is_the_token_mean_of_one_token():
    batch = example(torch.float64)
    expected = algorithms.agg_loss(batch.old_logprobs, batch.response_mask, "token-sum")
    found = aggregate(batch.old_logprobs, batch.response_mask, total_tokens=1)
    torch.testing.assert_close(found, expected, **CLOSE[torch.float64])


@every_mode
@every_loss
def test_micro_batches_with_the_totals_of_the_batch(case, mode):
    batch = example(torch.float64)
    objective = case.split(",")[0]
    name, ours, options = LOSSES[case]
    logprobs, advantages = moved(batch), advantages_of(batch, objective)
    totals = batch_totals(batch)
    named = {
        "batch_num_tokens": totals["total_tokens"],
        "global_batch_size": totals["total_sequences"],
        "loss_scale_factor": 40,
        "dp_size": 1,
    }
    for rows in ([0, 1, 2], [3, 4, 5, 6], [7]):
        given = batch.select(rows), logprobs[rows], advantages[rows]
        expected = their_loss(name, *given, mode, options, **named)
        found = our_loss(objective, *given, aggregation=mode, max_length=40, **ours, **totals)
        torch.testing.assert_close(found[:2], expected[:2], **CLOSE[torch.float64])


@every_type
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0])
def test_kl_estimators(estimator, scale, dtype):
    """Up to |d| = 20; at scale 3 some k3 are beyond their and our limit of 10."""
    stream = torch.Generator().manual_seed(7)
    reference = -3 * torch.rand(200, generator=stream).to(dtype)
    gap = (scale * torch.randn(200, generator=stream).to(dtype)).clamp(-19, 19)
    results = []
    for estimate in (
        lambda x: kl_estimates(x, reference, estimator=estimator),
        lambda x: algorithms.kl_penalty(x, reference, estimator),
    ):
        leaf = (reference - gap).requires_grad_()
        values = estimate(leaf)
        values.sum().backward()
        results.append((values.detach(), leaf.grad))
    torch.testing.assert_close(*results, **CLOSE[dtype])
    if scale == 3.0 and estimator == "k3":
        assert (results[0][0] == 10).any()


# policy losses: deviations


def test_dual_clip_is_off_unless_asked_for():
    """verl has it at 3 and cannot turn it off; the papers of GRPO and DAPO do not have it."""
    batch = example(torch.float64)
    logprobs, advantages = moved(batch, 2.0), advantages_of(batch, "ppo_clip")
    expected = their_loss("vanilla", batch, logprobs, advantages, "token_mean")
    given = "ppo_clip", batch, logprobs, advantages
    torch.testing.assert_close(our_loss(*given, dual_clip=3.0)[:2], expected[:2])
    assert float(our_loss(*given)[0]) > float(expected[0]) + 0.01


def far_away(gap: float) -> tuple[TurnBatch, Tensor, Tensor]:
    """A token with a log-ratio of `gap` beside one of 0; advantages 1."""
    batch = in_type(make_batch([[2], [2]], seed=1), torch.float64)
    batch = batch.replace(old_logprobs=torch.full_like(batch.old_logprobs, -45.0))
    logprobs = batch.old_logprobs.clone()
    logprobs[0, 2] += gap
    return batch, logprobs, at_sampled(batch, torch.ones_like(logprobs))


@pytest.mark.parametrize("gap", [-30.0, 30.0])
def test_no_gradient_beyond_a_log_ratio_of_20_in_any_objective(gap):
    """verl guards `vanilla` so; `cispo` keeps a gradient there, `gspo` has no guard on tokens."""
    batch, logprobs, advantages = far_away(gap)
    for name, objective in (("vanilla", "ppo_clip"), ("cispo", "cispo"), ("gspo", "gspo_token")):
        _, expected, _ = their_loss(
            name, batch, logprobs, advantages, "token_mean", {"clip_ratio_high": 1e9}
        )
        _, found, metrics = our_loss(objective, batch, logprobs, advantages, clip_high=1e9)
        assert found[0, 2] == 0
        assert metrics["ratio_guarded"] == 0.25
        assert (expected[0, 2] != 0) == (name == "cispo" or (name == "gspo" and gap < 0))


def test_a_sequence_ratio_has_no_bound_of_its_own():
    """Theirs stops at e^10 without a gradient; ours has the bound of its tokens, e^20."""
    batch, logprobs, advantages = far_away(0.0)
    logprobs = at_sampled(batch, logprobs + 12.0)
    wide = {"clip_high": 1e9, "aggregation": "token_mean"}
    expected = their_loss(
        "gspo", batch, logprobs, advantages, "token_mean", {"clip_ratio_high": 1e9}
    )
    found = our_loss("gspo_token", batch, logprobs, advantages, **wide)
    assert float(-expected[0]) == pytest.approx(math.exp(10))
    assert (expected[1] == 0).all()
    assert float(-found[0]) == pytest.approx(math.exp(12))
    assert (found[1] != 0).any()


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_every_kl_estimator_is_clipped_at_20(estimator):
    """verl clips the gap of k3 alone: its k1 and k2, and the gradient of its k3+, are free."""
    logprobs, reference = torch.tensor([-30.0, -1.0]), torch.tensor([-1.0, -30.0])
    found = kl_estimates(logprobs, reference, estimator=estimator)
    expected = algorithms.kl_penalty(logprobs, reference, estimator)
    if estimator.startswith("k3"):
        torch.testing.assert_close(found, expected)
    else:
        assert torch.equal(expected.abs() > found.abs(), torch.tensor([True, True]))
    leaf = logprobs.clone().requires_grad_()
    algorithms.kl_penalty(leaf, reference, estimator).sum().backward()
    assert (leaf.grad == 0).all() == (estimator == "k3")


@every_mode
def test_nothing_sampled(mode):
    """A micro-batch without a sampled token: 0 / 0 is NaN there and 0 here."""
    mask = torch.zeros(2, 3, dtype=torch.bool)
    expected = algorithms.agg_loss(torch.ones(2, 3), mask, MODES[mode])
    assert expected.isnan()
    assert aggregate(torch.ones(2, 3), mask, mode=mode, max_length=3) == 0


@every_mode
def test_junk_at_observations_does_not_reach_the_loss(mode):
    """Theirs: NaN times a mask of 0 is NaN, but for `token-mean`."""
    batch = example()
    junk, losses = poison(batch, batch.old_logprobs)
    mask = junk.response_mask
    expected = algorithms.agg_loss(losses, mask, MODES[mode])
    assert expected.isnan() == (mode != "token_mean")
    found = aggregate(losses, mask, mode=mode, max_length=10)
    assert torch.equal(found, aggregate(batch.old_logprobs, mask, mode=mode, max_length=10))


def test_the_constant_length_does_not_follow_the_padding():
    """Theirs falls back on the padded length, so that a longer neighbour shrinks every loss."""
    losses, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    wide = torch.nn.functional.pad(losses, (0, 3)), torch.nn.functional.pad(mask, (0, 3))
    name = MODES["seq_mean_token_sum_norm"]
    assert algorithms.agg_loss(*wide, name) == algorithms.agg_loss(losses, mask, name) / 2
    with pytest.raises(ValueError, match="max_length"):
        aggregate(losses, mask, mode="seq_mean_token_sum_norm")


def test_their_gspo_is_our_gspo_token():
    """Turn weights stay apart in it; `gspo` proper has one advantage per trajectory."""
    batch = example(torch.float64)
    logprobs, advantages = moved(batch, 0.01), advantages_of(batch, "gspo_token")
    wide = {"clip_low": 0.2, "clip_high": 0.2}
    expected = their_loss("gspo", batch, logprobs, advantages, "seq_mean_token_mean")
    found = our_loss("gspo_token", batch, logprobs, advantages, **wide)
    torch.testing.assert_close(found[:2], expected[:2], **CLOSE[torch.float64])
    averaged = our_loss("gspo", batch, logprobs, advantages, **wide)
    torch.testing.assert_close(averaged[0], expected[0], **CLOSE[torch.float64])
    assert (averaged[1] - expected[1]).abs().max() > 1e-3
