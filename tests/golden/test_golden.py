"""Worked numbers of spec/algorithms.md, appendix A (`vectors.json`, rounded to four decimals)."""

import json
from pathlib import Path

import pytest
import torch
from batches import make_batch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.objectives import OBJECTIVES, aggregate
from turncredit.signals import first_k_entropies, mismatch, turn_ratios

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-4


def near(expected: float | list) -> object:
    return pytest.approx(expected, abs=TOLERANCE)


def out(name: str) -> dict:
    return VECTORS[name]["out"]


def batch_of_tokens(mask: Tensor) -> TurnBatch:
    """One turn a row, the sampled tokens of `mask` and old log-probs of -1."""
    turn_ids = torch.where(mask, 0, -1)
    rows = torch.arange(len(mask))
    return TurnBatch.checked(
        token_ids=torch.zeros_like(turn_ids),
        response_mask=mask,
        turn_ids=turn_ids,
        old_logprobs=torch.full(mask.shape, -1.0),
        entropies=torch.zeros(mask.shape),
        rewards=torch.zeros(len(mask)),
        success=torch.zeros(len(mask), dtype=torch.bool),
        group_ids=rows,
    )


def toy_data() -> tuple[TurnBatch, Tensor, Tensor]:
    """D0 of the specification: batch, current log-probs and advantages."""
    given = VECTORS["pg_grpo_sym0.2"]["in"]
    mask = torch.tensor(given["mask"]).bool()
    batch = batch_of_tokens(mask)
    advantages = torch.tensor(given["A"], dtype=torch.float32)[:, None].expand(mask.shape)
    return batch, batch.old_logprobs + torch.tensor(given["log_ratio"]), advantages


def token_losses(batch: TurnBatch, logprobs: Tensor, advantages: Tensor, **options) -> list:
    """Loss of each token alone, through the objective's own denominators; 0 outside the mask."""
    losses = torch.zeros(logprobs.shape)
    for row, column in batch.response_mask.nonzero().tolist():
        mask = torch.zeros_like(batch.response_mask)
        mask[row, column] = True
        alone = batch.replace(response_mask=mask, turn_ids=torch.where(mask, 0, -1))
        losses[row, column], _ = OBJECTIVES["ppo_clip"](logprobs, alone, advantages, **options)
    return losses.tolist()


@pytest.mark.parametrize(
    ("aggregation", "key", "options"),
    [
        ("token_mean", "token_mean", {}),
        ("seq_mean_token_mean", "seq_mean_token_mean", {}),
        ("seq_mean_token_sum", "seq_mean_token_sum", {}),
        ("seq_mean_token_sum_norm", "seq_mean_token_sum_norm_L4", {"max_length": 4}),
    ],
)
def test_grpo_loss_in_every_aggregation(aggregation, key, options):
    loss, metrics = OBJECTIVES["ppo_clip"](
        *toy_data_arguments(), aggregation=aggregation, **options
    )
    expected = out("pg_grpo_sym0.2")
    assert loss.item() == near(expected[key])
    assert metrics["clip_fraction"] == near(expected["clip_frac"])
    assert metrics["ppo_kl"] == near(expected["ppo_kl"])
    assert metrics["response_tokens"] == 6


def toy_data_arguments() -> tuple[Tensor, TurnBatch, Tensor]:
    batch, logprobs, advantages = toy_data()
    return logprobs, batch, advantages


def test_grpo_and_dapo_token_losses():
    batch, logprobs, advantages = toy_data()
    for name, options in [("pg_grpo_sym0.2", {}), ("pg_dapo_0.2_0.28", {"clip_high": 0.28})]:
        losses = token_losses(batch, logprobs, advantages, **options)
        assert losses == [near(row) for row in out(name)["loss_tok"]]


def test_dapo_clip_higher():
    loss, metrics = OBJECTIVES["ppo_clip"](*toy_data_arguments(), clip_low=0.2, clip_high=0.28)
    assert loss.item() == near(out("pg_dapo_0.2_0.28")["token_mean"])
    assert metrics["clip_fraction"] == near(out("pg_dapo_0.2_0.28")["clip_frac"])


def test_gradient_coefficients_of_the_clipped_surrogate():
    logprobs, batch, advantages = toy_data_arguments()
    logprobs.requires_grad_()
    loss, _ = OBJECTIVES["ppo_clip"](logprobs, batch, advantages, clip_high=0.28, total_tokens=1)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    coefficients = (-gradient / advantages).tolist()
    assert coefficients == [near(row) for row in out("grad_coeff_F")["PPO_DAPO"]]


def test_dual_clip():
    given = VECTORS["dual_clip"]["in"]
    batch = batch_of_tokens(torch.tensor([[True]]))
    logprobs = batch.old_logprobs + torch.tensor(float(given["ratio"])).log()
    advantages = torch.tensor([[float(given["A"])]])
    loss, metrics = OBJECTIVES["ppo_clip"](logprobs, batch, advantages, dual_clip=given["c"])
    assert loss.item() == near(out("dual_clip")["loss"])
    assert metrics["dual_clip_fraction"] == 1.0
    assert metrics["ratio_max"] == near(given["ratio"])


def per_trajectory(rewards: list[float], **options) -> list[float]:
    """Advantage of each trajectory: one token each, first prompt columns left out."""
    batch = make_batch([[1]] * len(rewards), rewards=rewards)
    return BASES["grpo"](batch, **options)[batch.response_mask].tolist()


def test_grpo_advantages():
    rewards, expected = VECTORS["adv_grpo"]["in"]["R"], out("adv_grpo")
    assert per_trajectory(rewards) == near(expected["sample_std"])
    assert per_trajectory(rewards, std="population") == near(expected["pop_std"])
    assert per_trajectory(rewards, eps=1e-4) == near(expected["trl_eps1e4"])


def test_all_fail_group_has_advantage_exactly_zero():
    assert per_trajectory(VECTORS["adv_allfail"]["in"]["R"]) == out("adv_allfail")["A"]


def gate_weights(profile: str, *, success: bool = False, **options) -> list[float]:
    entropies = VECTORS["suffix_mask"]["in"][profile]
    batch = make_batch([[2] * len(entropies)], success=[success], entropies=[entropies])
    base = torch.where(batch.response_mask, -1.0, 0.0)
    weights = TURN_WEIGHTS["suffix_mask"](batch, base, k=16, **options)
    return weights[0].tolist()


Z, RATIO, LEAVE_ONE_OUT = (
    {"rule": "zscore", "c": 1.0, "floor": 0.0},
    {"rule": "ratio", "c": 2.0},
    {"rule": "leave_one_out", "c": 2.0},
)


@pytest.mark.parametrize(
    ("key", "profile", "options"),
    [
        ("wA_z1", "hA", Z),
        ("wA_success", "hA", {**Z, "success": True}),
        ("wB_z1", "hB", Z),
        ("wB_ratio2", "hB", RATIO),
        ("wB_loo2", "hB", LEAVE_ONE_OUT),
        ("wC_z1", "hC", Z),
        ("wC_ratio2", "hC", RATIO),
        ("wD_z1", "hD", Z),
        ("wD_ratio2", "hD", RATIO),
        ("wD_loo2", "hD", LEAVE_ONE_OUT),
    ],
)
def test_suffix_mask_weights(key, profile, options):
    assert gate_weights(profile, **options) == out("suffix_mask")[key]


@pytest.mark.parametrize("profile", "ABCD")
def test_suffix_mask_z_scores_bracket_the_threshold(profile):
    """A threshold just under a turn's z-score lets that turn pass; one just above does not."""
    for turn, z in enumerate(out("suffix_mask")[f"z{profile}"][:-1]):
        earlier = out("suffix_mask")[f"z{profile}"][:turn]
        if any(other >= z for other in earlier):
            continue  # the first qualifying turn is another one
        options = {"rule": "zscore", "floor": 0.0}
        passes = gate_weights(f"h{profile}", c=z - 2 * TOLERANCE, **options)
        assert passes[: turn + 2] == [1.0] * (turn + 1) + [0.0]
        fails = gate_weights(f"h{profile}", c=z + 2 * TOLERANCE, **options)
        assert fails[turn + 1] == 1.0


def test_suffix_mask_loss_keeps_the_original_denominator():
    given, expected = VECTORS["suffix_mask_loss"]["in"], out("suffix_mask_loss")
    batch = make_batch([given["turn_lens"]], success=[False])
    mask, weights = batch.response_mask, torch.tensor([given["w"]], dtype=torch.float32)
    base = torch.where(mask, float(given["A"]), 0.0)
    masked = base * batch.gather_turns(weights)
    objective, logprobs = OBJECTIVES["ppo_clip"], batch.old_logprobs
    assert objective(logprobs, batch, masked)[0].item() == near(expected["norm_all_tokens"])
    assert objective(logprobs, batch, base)[0].item() == near(expected["no_mask"])
    kept = mask & (batch.turn_ids == 0)
    assert aggregate(-masked, kept).item() == near(expected["norm_kept_tokens"])


def test_suffix_mask_through_the_composition():
    """hA in a group of one failure and one success: A = -+0.7071, three turns are kept out."""
    quiet = [0.001] * 4
    batch = make_batch(
        [[2] * 4] * 2,
        rewards=[0.0, 1.0],
        entropies=[VECTORS["suffix_mask"]["in"]["hA"], quiet],
    )
    advantages = token_advantages(batch, "grpo", "suffix_mask")[batch.response_mask]
    assert advantages.tolist() == near([-0.7071] * 2 + [0.0] * 6 + [0.7071] * 8)


def test_first_k_entropy():
    given, expected = VECTORS["first_k_entropy"]["in"], out("first_k_entropy")
    batch = make_batch([[len(given["ent"])]])
    entropies = batch.entropies.masked_scatter(batch.response_mask, torch.tensor(given["ent"]))
    found = first_k_entropies(batch.replace(entropies=entropies), [given["k"], 16])
    assert found[0, 0].tolist() == near([expected["h"], expected["h_k16_len5"]])


def test_turn_importance_ratios():
    given, expected = VECTORS["turn_is"]["in"], out("turn_is")
    log_ratios = given["log_ratio_turns"]
    batch = make_batch([[len(turn) for turn in log_ratios]])
    shift = torch.tensor([value for turn in log_ratios for value in turn])
    logprobs = batch.old_logprobs.clone()
    logprobs[batch.response_mask] += shift
    ratios = turn_ratios(batch, logprobs)
    assert ratios[0].tolist() == near(expected["s_turn"])
    assert ((ratios - 1).abs() <= given["eps"]).float()[0].tolist() == expected["w_mask"]
    one_turn = batch.replace(
        turn_ids=batch.turn_ids.clamp(max=0), turn_rewards=None, anchor_ids=None
    )
    assert turn_ratios(one_turn, logprobs)[0].tolist() == near([expected["seq_ratio"]])
    _, metrics = OBJECTIVES["ppo_clip"](logprobs, batch, torch.ones_like(logprobs))
    assert metrics["ratio_max"] == near(expected["max_tok_ratio"])


def test_train_inference_mismatch():
    given, expected = VECTORS["mismatch"]["in"], out("mismatch")
    batch = batch_of_tokens(torch.tensor([[True, True]])).replace(
        rollout_logprobs=torch.tensor([given["rollout_logp"]]),
        old_logprobs=torch.tensor([given["train_logp"]]),
    )
    found = mismatch(batch)
    assert found["mean_abs_prob_diff"] == near(expected["mean_abs_prob_diff"])
    assert found["mean_abs_logprob_diff"] == near(expected["mean_abs_logp_diff"])
