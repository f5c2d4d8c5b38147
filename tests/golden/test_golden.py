"""Worked numbers of spec/algorithms.md, appendix A (`vectors.json`, rounded to four decimals)."""

import json
from pathlib import Path

import pytest
import torch
from batches import make_batch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.credit.returns import discounted_sums, real_turns
from turncredit.credit.steps import information_gains
from turncredit.credit.teacher import gates, heard, teacher_scores, usefulness
from turncredit.credit.turn_selection import quantiles
from turncredit.objectives import OBJECTIVES, aggregate, kl_estimates
from turncredit.reward_shaping import soft_overlong_penalty
from turncredit.rollout.actguide import smallest_guidance
from turncredit.rollout.branching import branch_score, global_samples, opening_entropy
from turncredit.signals import first_k_entropies, mismatch, turn_divergences, turn_ratios

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


def token_losses(
    batch: TurnBatch, logprobs: Tensor, advantages: Tensor, objective: str = "ppo_clip", **options
) -> list:
    """Loss of each token alone, through the objective's own denominators; 0 outside the mask."""
    losses = torch.zeros(logprobs.shape)
    for row, column in batch.response_mask.nonzero().tolist():
        mask = torch.zeros_like(batch.response_mask)
        mask[row, column] = True
        alone = batch.replace(response_mask=mask, turn_ids=torch.where(mask, 0, -1))
        losses[row, column], _ = OBJECTIVES[objective](logprobs, alone, advantages, **options)
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


@pytest.mark.parametrize(
    ("key", "objective", "options"),
    [
        ("PPO_DAPO", "ppo_clip", {"clip_low": 0.2, "clip_high": 0.28}),
        ("GPPO", "gppo", {"clip_low": 0.2, "clip_high": 0.28}),
        ("CISPO_two_sided", "cispo", {"clip_low": 0.2, "clip_high": 0.28}),
        ("CISPO_upper5", "cispo", {"upper_cap": 5.0}),
        ("AEPO", "aepo", {"clip_low": 0.2, "clip_high": 0.28}),
        ("GSPO_token", "gspo_token", {"clip_low": 0.2, "clip_high": 0.28}),
        ("GSPO_token", "gspo", {"clip_low": 0.2, "clip_high": 0.28}),
    ],
)
def test_gradient_coefficients(key, objective, options):
    """F of every objective: the gradient of a token's log-prob is -F A."""
    logprobs, batch, advantages = toy_data_arguments()
    logprobs.requires_grad_()
    options = options | {"aggregation": "token_mean", "total_tokens": 1}
    loss, _ = OBJECTIVES[objective](logprobs, batch, advantages, **options)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    coefficients = (-gradient / advantages).tolist()
    assert coefficients == [near(row) for row in out("grad_coeff_F")[key]]


@pytest.mark.parametrize("objective", ["gspo", "gspo_token"])
@pytest.mark.parametrize("key", ["gspo", "gspo_wide"])
def test_gspo(objective, key):
    given, expected = VECTORS[key]["in"], out(key)
    low = given.get("eps_low", given.get("eps"))
    options = {"clip_low": low, "clip_high": given.get("eps_high", low)}
    logprobs, batch, advantages = toy_data_arguments()
    loss, metrics = OBJECTIVES[objective](logprobs, batch, advantages, **options)
    assert loss.item() == near(expected["loss"])
    extremes = [metrics["sequence_ratio_min"], metrics["sequence_ratio_max"]]
    assert extremes == near(sorted(expected["s"]))
    for row, (value, ratio) in enumerate(zip(expected["loss_seq"], expected["s"], strict=True)):
        rows = [row]
        alone, metrics = OBJECTIVES[objective](
            logprobs[rows], batch.select(rows), advantages[rows], **options
        )
        assert alone.item() == near(value)
        assert metrics["sequence_ratio_max"] == near(ratio)
        if "clipped" in expected:
            assert metrics["sequence_clip_fraction"] == expected["clipped"][row]


def test_gspo_clips_a_trajectory_with_credit():
    """The second row with advantage +1: its ratio 1.0513 exceeds the published range."""
    batch, logprobs, advantages = toy_data()
    row = [1]
    loss, metrics = OBJECTIVES["gspo"](logprobs[row], batch.select(row), -advantages[row])
    assert loss.item() == near(-1.0004)
    assert metrics["sequence_clip_fraction"] == 1


def cispo_data() -> tuple[Tensor, TurnBatch, Tensor]:
    """D0 with the log-probs that the value of CISPO depends on."""
    batch, logprobs, advantages = toy_data()
    current = torch.tensor(VECTORS["cispo"]["in"]["logp_new"])
    old = current - (logprobs - batch.old_logprobs)
    return current, batch.replace(old_logprobs=old), advantages


def test_cispo():
    logprobs, batch, advantages = cispo_data()
    expected, options = out("cispo"), {"clip_low": 0.2, "clip_high": 0.28}
    loss, metrics = OBJECTIVES["cispo"](logprobs, batch, advantages, **options)
    assert loss.item() == near(expected["token_mean"])
    losses = token_losses(batch, logprobs, advantages, "cispo", **options)
    assert losses == [near(row) for row in expected["loss_tok"]]
    weights = (-torch.tensor(losses) / (advantages * logprobs)).nan_to_num().tolist()
    assert weights == [near(row) for row in expected["w"]]
    assert metrics["weight_clip_fraction"] == near(4 / 6)


def test_gppo():
    given, expected = VECTORS["gppo_beta"]["in"], out("gppo_beta")
    batch, logprobs, advantages = toy_data()
    objective = OBJECTIVES["gppo"]
    assert objective(logprobs, batch, advantages)[0].item() == near(expected["token_mean"])
    losses = token_losses(batch, logprobs, advantages, "gppo")
    assert losses == [near(row) for row in expected["fwd_loss_tok_beta1_1"]]
    betas = {"beta_low": given["beta1"], "beta_high": given["beta2"]}
    loss, _ = objective(logprobs, batch, advantages, **betas)
    assert loss.item() == near(expected["token_mean_beta025"])


def test_aepo_loss():
    loss, _ = OBJECTIVES["aepo"](*toy_data_arguments(), clip_low=0.2, clip_high=0.28)
    assert loss.item() == near(out("aepo_loss")["fwd_token_mean"])


def test_turn_gspo():
    log_ratios = VECTORS["turn_is"]["in"]["log_ratio_turns"]
    given, expected = VECTORS["turn_gspo"]["in"], out("turn_gspo")
    batch = make_batch([[len(turn) for turn in log_ratios]])
    logprobs = batch.old_logprobs.clone()
    logprobs[batch.response_mask] += torch.tensor([value for turn in log_ratios for value in turn])
    advantages = torch.full_like(logprobs, float(given["A"]))
    options = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean"}
    loss, metrics = OBJECTIVES["turn_gspo"](logprobs, batch, advantages, **options)
    assert loss.item() == near(expected["token_mean"])
    assert metrics["turn_clip_fraction"] == 0.5
    for turn, value in enumerate(expected["loss_turn"]):
        alone = advantages.masked_fill(batch.turn_ids != turn, 0.0)
        tokens = len(log_ratios[turn])
        loss, _ = OBJECTIVES["turn_gspo"](logprobs, batch, alone, total_tokens=tokens, **options)
        assert loss.item() == near(value)


def test_soft_overlong_penalty():
    given, expected = VECTORS["overlong"]["in"], out("overlong")
    lengths = torch.tensor(given["lens"])
    limits = {"max_length": given["L_max"], "cache_length": given["L_cache"]}
    assert soft_overlong_penalty(lengths, **limits).tolist() == near(expected["r"])


def test_kl_estimates_of_a_turn():
    given, expected = VECTORS["kl_turn"]["in"], out("kl_turn")
    logprobs, reference = torch.tensor(given["logp_old"]), torch.tensor(given["logp_ref"])
    for estimator in ("k1", "k3"):
        mean = kl_estimates(logprobs, reference, estimator=estimator).mean().item()
        assert mean == near(expected[estimator])


def test_dual_clip():
    given = VECTORS["dual_clip"]["in"]
    batch = batch_of_tokens(torch.tensor([[True]]))
    logprobs = batch.old_logprobs
    batch = batch.replace(old_logprobs=logprobs - torch.tensor(float(given["ratio"])).log())
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


def constant_by_turn(batch: TurnBatch, advantages: Tensor) -> list[float]:
    """The advantage of each non-empty turn, row by row, of a batch of one-token turns."""
    assert batch.turn_lengths().max() == 1
    return advantages[batch.response_mask].tolist()


def outcome_advantages(base: str, rewards: list[float]) -> list[float]:
    batch = make_batch([[1]] * len(rewards), rewards=rewards)
    return BASES[base](batch)[batch.response_mask].tolist()


@pytest.mark.parametrize(("base", "name"), [("dr_grpo", "adv_drgrpo"), ("rloo", "adv_rloo")])
def test_mean_only_advantages(base, name):
    assert outcome_advantages(base, VECTORS[name]["in"]["R"]) == near(out(name)["A"])


@pytest.mark.parametrize("base", ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp"])
def test_all_fail_is_exactly_zero_for_every_outcome_base(base):
    found = outcome_advantages(base, VECTORS["adv_allfail"]["in"]["R"])
    assert found == out("adv_allfail")["A"]


@pytest.mark.parametrize(
    ("base", "name", "options"),
    [
        ("reinforce_pp", "adv_reinforcepp", {"gamma": 1.0}),
        ("reinforce_pp_baseline", "adv_reinforcepp_baseline", {}),
    ],
)
def test_reinforce_pp(base, name, options):
    given, expected = VECTORS[name]["in"], out(name)
    batch = make_batch([[length] for length in given["lens"]], rewards=given["R"])
    found = BASES[base](batch, **options)
    expected_tokens = [
        value
        for row, length in zip(expected["A"], given["lens"], strict=True)
        for value in row[:length]
    ]
    assert found[batch.response_mask].tolist() == near(expected_tokens)


def with_values(turn_lengths: list[list[int]], reward: float, values: list[float]) -> TurnBatch:
    """One trajectory whose sampled tokens have these critic values; no step rewards."""
    batch = make_batch(turn_lengths, rewards=[reward])
    spread = batch.values.masked_scatter(batch.response_mask, torch.tensor(values))
    return batch.replace(values=spread, turn_rewards=None)


def test_gae():
    given, expected = VECTORS["gae"]["in"], out("gae")
    batch = with_values([[3]], given["r"][-1], given["V"])
    options = {"gamma": given["gamma"], "lam": given["lam"]}
    plain = BASES["gae"](batch, **options, whiten=False)[batch.response_mask]
    white = BASES["gae"](batch, **options)[batch.response_mask]
    assert plain.tolist() == near(expected["A"])
    assert (plain + torch.tensor(given["V"])).tolist() == near(expected["ret"])
    assert white.tolist() == near(expected["A_white"])


def test_gae_skips_observations():
    """Two turns with observations between them; the value given at the masked place is junk."""
    given, expected = VECTORS["gae_obs"]["in"], out("gae_obs")
    batch = with_values([[1, 1]], given["r"][-1], [given["V"][0], given["V"][2]])
    batch = batch.replace(values=batch.values.masked_fill(~batch.response_mask, given["V"][1]))
    found = BASES["gae"](batch, gamma=given["gamma"], lam=given["lam"], whiten=False)
    assert found[batch.response_mask].tolist() == near([expected["A_pos0"], expected["A_pos2"]])


def anchored() -> TurnBatch:
    """GiGPO's example: the one reward is the outcome of the first trajectory."""
    rows = [VECTORS["gigpo"]["in"][name] for name in ("traj1", "traj2")]
    numbers = {"s0": 0, "sA": 1, "sB": 2}
    states = [[numbers[state] for state in row["states"]] for row in rows]
    batch = make_batch([[1] * len(row) for row in states], rewards=[sum(row["r"]) for row in rows])
    padded = [row + [0] * (batch.num_turns - len(row)) for row in states]
    return batch.replace(
        anchor_ids=torch.tensor(padded), turn_rewards=torch.zeros_like(batch.turn_rewards)
    )


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("AE_traj_std", {"omega": 0.0}),
        ("AE_rows_std", {"omega": 0.0, "episode_over": "steps"}),
        ("AE_rows_mean", {"omega": 0.0, "episode_over": "steps", "episode_scale": "mean"}),
        ("A_mean_norm", {"episode_over": "steps", "episode_scale": "mean"}),
        ("A_mean_std_norm", {"episode_over": "steps", "step_scale": "std"}),
        ("A_paper_std", {"step_scale": "std"}),
    ],
)
def test_gigpo(key, options):
    batch = anchored()
    given = VECTORS["gigpo"]["in"]
    options = {"gamma": given["gamma"], "omega": given["omega"], **options}
    assert constant_by_turn(batch, BASES["gigpo"](batch, **options)) == near(out("gigpo")[key])


@pytest.mark.parametrize(("key", "scale"), [("AS_mean", "mean"), ("AS_std", "std")])
def test_gigpo_step_part(key, scale):
    batch = anchored()
    options = {"gamma": VECTORS["gigpo"]["in"]["gamma"], "step_scale": scale}
    parts = [BASES["gigpo"](batch, omega=omega, **options) for omega in (1.0, 0.0)]
    assert constant_by_turn(batch, parts[0] - parts[1]) == near(out("gigpo")[key])


def test_gigpo_step_returns():
    turns = real_turns(anchored())
    returns = discounted_sums(turns.rewards, VECTORS["gigpo"]["in"]["gamma"])
    assert returns[turns.present].tolist() == near(out("gigpo")["step_returns"])


def uncertain() -> TurnBatch:
    """EMPG's example; population std and no eps make the given advantages of its two rewards."""
    given = VECTORS["empg"]["in"]
    return make_batch(
        [[1] * len(row) for row in given["H"]],
        rewards=[float(advantage > 0) for advantage in given["A"]],
        entropies=given["H"],
    )


def test_empg():
    given, expected = VECTORS["empg"]["in"], out("empg")
    batch = uncertain()
    options = {"base_options": {"std": "population", "eps": 0.0}, "k": given["k"]}
    found = BASES["empg"](batch, k_next=given["k_f"], zeta=given["zeta"], **options)
    shaped = torch.tensor(expected["A_mod"])
    assert constant_by_turn(batch, found) == near(expected["A_final_zero_mean_over_steps"])
    assert constant_by_turn(batch, found + shaped.mean()) == near(expected["A_mod"])


def test_igpo():
    given, expected = VECTORS["igpo"]["in"], out("igpo")
    levels = torch.tensor(given["p_gt"])
    batch = make_batch([[1] * levels.shape[1]] * len(levels), rewards=given["F1"])
    gains = information_gains(batch, levels)
    assert gains[:, :-1].flatten().tolist() == near(expected["IG"])
    found = BASES["igpo"](batch.replace(turn_rewards=gains), gamma=given["gamma"])
    both = expected["A_turn1"] + expected["A_turn2"]
    assert constant_by_turn(batch, found) == near(both)
    assert found[batch.response_mask].view(levels.shape)[:, -1].tolist() == near(expected["z_out"])


def test_adrs_at_completion_level():
    """One turn a row; the inner eta and the gate are in `modulated` and in nothing beyond it."""
    given, expected = VECTORS["adrs_L2"]["in"], out("adrs_L2")
    teacher = torch.tensor(given["teacher_lp"])
    batch = batch_of_tokens(torch.ones(teacher.shape, dtype=torch.bool)).replace(
        teacher_logprobs=teacher,
        rewards=torch.tensor(given["R"], dtype=torch.float32),
        group_ids=torch.zeros(2, dtype=torch.int64),
    )
    said = heard(batch)
    scores = teacher_scores(batch, said, centre="turn", scale="completion", completion="turn")
    assert scores.view(teacher.shape).tolist() == [near(row) for row in expected["r_teacher"]]
    align = torch.sigmoid(teacher.mean(1) - teacher.mean()).double() / given["temp"]
    assert align.tolist() == near(expected["align"])
    everybody, known = batch.group_ids, torch.ones(2, dtype=torch.bool)
    value = usefulness(align, batch.rewards.double(), everybody, known)[0].item()
    assert value == near(expected["TVA"])
    options = {"temperature": given["temp"], "tau": given["tau"]}
    gate = gates(
        batch, said, level="completion", completion="turn", gamma=1.0, normalise=False, **options
    )
    assert gate.tolist() == near([expected["gate"]] * 6)
    modulated = (given["eta"] * gate * scores).view(teacher.shape)
    assert modulated.tolist() == [near(row) for row in expected["modulated"]]
    assert modulated.sum(1).tolist() == near(expected["row_sum"])
    assert modulated.std().item() == near(out("adrs_within_norm_scale")["std_of_injected"])
    assert BASES["grpo"](batch)[:, 0].tolist() == near(expected["A_grpo"])
    final = BASES["adrs"](batch, eta=given["eta"], **options)
    assert final.tolist() == [near(row) for row in expected["A_final"]]
    ungated = BASES["adrs"](batch, eta=given["eta"], level="none")
    assert ungated.tolist() == [near(row) for row in expected["A_final_gate_off"]]
    assert (final - ungated).abs().max().item() == near(expected["max_abs_diff_gate_on_off"])


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


def aem_batch(*profiles: list[float], base: list[float], groups: list[int]) -> tuple:
    """One row a profile of response entropies, ragged; base advantages by row."""
    batch = make_batch(
        [[2] * len(profile) for profile in profiles], entropies=profiles, groups=groups
    )
    return batch, torch.where(batch.response_mask, torch.tensor(base)[:, None], 0.0)


def of_responses(batch: TurnBatch, values: Tensor) -> list[float]:
    """[B, T] to a list: the non-empty turns, row by row."""
    return values[batch.turn_lengths() > 0].tolist()


@pytest.mark.parametrize(
    ("weight", "key"),
    [
        ("aem", "alpha"),
        ("aem_reverse", "alpha_reverse"),
        ("aem_traj_norm", "alpha_traj_norm"),
        ("aem_batch_norm", "alpha"),  # one group: the batch is the group
        ("keep_entropy_up", "mask_keep_entropy_up"),
        ("keep_entropy_down", "mask_keep_entropy_down"),
    ],
)
def test_aem(weight, key):
    given, expected = VECTORS["aem"]["in"], out("aem")
    batch, base = aem_batch(*given["H"], base=[float(a) for a in given["A_base"]], groups=[0, 0])
    options = {"temperature": given["lam"], "min_spread": given["min_spread"]}
    weights = TURN_WEIGHTS[weight](batch, base, **options)
    assert of_responses(batch, weights) == near(expected[key])
    if weight == "aem":
        assert of_responses(batch, batch.turn_sums(base) / 2 * weights) == near(expected["A_AEM"])
        assert weights[batch.turn_lengths() > 0].mean().item() == near(expected["mean_alpha"])


def test_aem_normalised_entropies():
    """H~ is what temperature 1 and 2 disagree by: alpha_1 / alpha_2 is proportional to exp(H~)."""
    given, expected = VECTORS["aem"]["in"], out("aem")
    batch, base = aem_batch(*given["H"], base=[1.0, -1.0], groups=[0, 0])
    one, two = (
        torch.tensor(of_responses(batch, TURN_WEIGHTS["aem"](batch, base, temperature=t)))
        for t in (1.0, 2.0)
    )
    logs = (one / two).log()
    assert (logs - logs.min()).tolist() == near(expected["H_tilde"])


def test_aem_shuffle():
    """The published permutation is one of those dealt; every deal holds the same numbers."""
    given, expected = VECTORS["aem"]["in"], out("aem")
    batch, base = aem_batch(*given["H"], base=[1.0, -1.0], groups=[0, 0])
    deals = [
        of_responses(batch, TURN_WEIGHTS["aem_shuffle"](batch, base, generator=generator))
        for generator in (torch.Generator().manual_seed(seed) for seed in range(300))
    ]
    assert all(sorted(deal) == near(sorted(expected["alpha"])) for deal in deals)
    assert any(deal == near(expected["alpha_shuffle_perm_2_0_1_4_3"]) for deal in deals)


def test_aem_small_spread():
    first, second = VECTORS["aem"]["in"]["H"], VECTORS["aem_small_spread"]["in"]["H"]
    batch, base = aem_batch(*first, second, base=[1.0, -1.0, 1.0], groups=[0, 0, 1])
    by_group = of_responses(batch, TURN_WEIGHTS["aem"](batch, base))
    assert by_group[5:] == out("aem_small_spread")["alpha_group"]
    assert by_group[:5] == near(out("aem")["alpha"])
    by_batch = of_responses(batch, TURN_WEIGHTS["aem_batch_norm"](batch, base))
    assert by_batch == near(out("aem_small_spread")["alpha_batch_norm_5plus3"])


@pytest.mark.parametrize("temperature", ["0", "0.5", "2"])
def test_aem_temperature(temperature):
    batch, base = aem_batch(VECTORS["aem_lambda"]["in"]["H"], base=[1.0], groups=[0])
    weights = TURN_WEIGHTS["aem"](batch, base, temperature=float(temperature))
    assert of_responses(batch, weights) == near(out("aem_lambda")[temperature])


def test_high_entropy_turn():
    given, expected = VECTORS["high_entropy_turn"]["in"], out("high_entropy_turn")
    batch, base = aem_batch(given["h"], base=[1.0], groups=[0])
    weights = TURN_WEIGHTS["high_entropy_turns"](batch, base, fraction=given["rho"])
    assert of_responses(batch, weights) == expected["w"] == expected["w_strict"]
    values = torch.tensor(given["h"], dtype=torch.float64)
    threshold = quantiles(values, torch.zeros(len(values), dtype=torch.int64), 1 - given["rho"])
    assert threshold.tolist() == near([expected["threshold"]])


def test_high_is_turns():
    given, expected = VECTORS["turn_is"]["in"], out("turn_is")
    batch = make_batch([[len(turn) for turn in given["log_ratio_turns"]]])
    logprobs = batch.old_logprobs.clone()
    shift = [value for turn in given["log_ratio_turns"] for value in turn]
    logprobs[batch.response_mask] += torch.tensor(shift)
    base = torch.ones_like(logprobs)
    function = TURN_WEIGHTS["high_is_turns"]
    weights = function(batch, base, limit=given["eps"], logprobs=logprobs)
    assert of_responses(batch, weights) == expected["w_mask"]


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


def test_divergence_from_the_reference_of_a_turn():
    given, expected = VECTORS["kl_turn"]["in"], out("kl_turn")
    batch = batch_of_tokens(torch.tensor([[True, True]])).replace(
        old_logprobs=torch.tensor([given["logp_old"]]),
        ref_logprobs=torch.tensor([given["logp_ref"]]),
    )
    for estimator in ("k1", "k3"):
        assert turn_divergences(batch, estimator=estimator).item() == near(expected[estimator])


def test_train_inference_mismatch():
    given, expected = VECTORS["mismatch"]["in"], out("mismatch")
    batch = batch_of_tokens(torch.tensor([[True, True]])).replace(
        rollout_logprobs=torch.tensor([given["rollout_logp"]]),
        old_logprobs=torch.tensor([given["train_logp"]]),
    )
    found = mismatch(batch)
    assert found["mean_abs_prob_diff"] == near(expected["mean_abs_prob_diff"])
    assert found["mean_abs_logprob_diff"] == near(expected["mean_abs_logp_diff"])


def test_aepo_budget():
    given, expected = VECTORS["aepo_budget"]["in"], out("aepo_budget")
    size, root, tools = given["k"], given["H_root"], given["H_tool"]
    for rounding, key in (("above", "m_fork_int_plus1"), ("nearest", "m_real")):
        found = global_samples(size, root, tools, beta=given["beta"], rounding=rounding)
        assert found == round(expected[key]) == 9
    assert global_samples(size, root, [root], beta=given["beta"]) == expected["m_equal"]
    assert global_samples(size, root, [root], beta=given["beta"], rounding="above") == 9


@pytest.mark.parametrize(
    ("slope", "scores", "branches"),
    [(0.05, "P_slope0_05", "branch"), (0.2, "P_slope_eq_gamma", "branch2")],
)
def test_aepo_branch(slope, scores, branches):
    given, expected = VECTORS["aepo_branch"]["in"], out("aepo_branch")
    found = [
        branch_score(
            given["alpha"], given["dH"], weight=given["gamma"], consecutive=before, slope=slope
        )
        for before in given["l"]
    ]
    assert found == near(expected[scores])
    assert [float(score > given["tau"]) for score in found] == expected[branches]


def test_arpo():
    given, expected = VECTORS["arpo"]["in"], out("arpo")
    found = [branch_score(given["alpha"], dh, weight=given["beta"]) for dh in given["dH"]]
    assert found == near(expected["P"])
    assert [score > given["tau"] for score in found] == [True, False]


def test_arpo_entropy_of_the_code():
    """Cut to the likeliest tokens and summed over tokens: here of two each."""
    given, expected = VECTORS["arpo_entropy_code"]["in"], out("arpo_entropy_code")
    entropies = [
        -(torch.tensor(p) * torch.tensor(p).log()).sum().item() for p in given["top_probs"]
    ]
    assert sum(entropies) == near(expected["sum_H"])
    found = opening_entropy(entropies, k=20, tokens=given["V"], form="sum")
    assert found == near(expected["norm"])


def test_arpo_hard_prefix():
    """Two of four trajectories, with advantages in the ratio of 1.2 to -0.6, share a turn."""
    batch = make_batch([[2, 1]] * 4, rewards=[1.2, -0.6, 0.3, -0.9])
    batch = batch.replace(anchor_ids=torch.tensor([[0, 1], [0, 2], [3, 4], [5, 6]]))
    first = batch.response_mask[0]
    scale = BASES["arpo"](batch)[0][first][0] / 1.2
    shared = BASES["arpo"](batch, sharing="hard")[0][first]
    assert (shared / scale).tolist() == near([out("arpo")["hard_prefix"]] * 2 + [1.2])


def test_aepo_advantage():
    """Base advantages 1 and -1: rewards 1 and 0 with population std and no eps."""
    given, expected = VECTORS["aepo_adv"]["in"], out("aepo_adv")
    mask = torch.tensor(given["mask"]).bool()
    batch = batch_of_tokens(mask).replace(
        entropies=torch.tensor(given["ent"]).masked_fill(~mask, 9.0),
        rewards=torch.tensor([1.0, 0.0]),
        group_ids=torch.zeros(2, dtype=torch.int64),
    )
    options = {"base_options": {"std": "population", "eps": 0.0}, "a": given["a"]}
    assert batch.entropies[mask].mean().item() == near(expected["mean"])
    assert batch.entropies[mask].std().item() == near(expected["std"])
    assert BASES["aepo"](batch, **options).tolist() == [near(row) for row in expected["A"]]


def test_actguide_search():
    given, expected = VECTORS["actguide_search"]["in"], out("actguide_search")

    def found(length: int, needed: int) -> tuple[int, list[int]]:
        tried: list[int] = []

        def solved(numbers: dict[str, int]) -> set[str]:
            tried.append(numbers["q"])
            return {"q"} if numbers["q"] >= needed else set()

        chosen = smallest_guidance({"q": length}, solved, max_probe_steps=given["max_probe"])
        return chosen["q"], tried

    assert found(given["K"], given["min_success_k"]) == (expected["k_star"], expected["probes"])
    assert found(10, 99)[0] == expected["K10_unsolvable"]
    assert found(40, 37)[0] == expected["K40_ok37_budget5"]


def test_actguide_ratio_of_the_plain_and_the_guided_prompt():
    given, expected = VECTORS["actguide_ratio"]["in"], out("actguide_ratio")
    batch = batch_of_tokens(torch.tensor([[True]]))
    batch = batch.replace(old_logprobs=torch.tensor([[float(given["logp_old_guided"])]]))
    logprobs = torch.tensor([[float(given["logp_new_unguided"])]])
    advantages = torch.tensor([[float(given["A"])]])
    options = {"clip_low": given["eps"], "clip_high": given["eps"]}
    loss, metrics = OBJECTIVES["ppo_clip"](logprobs, batch, advantages, **options)
    assert metrics["ratio_max"] == near(expected["r"])
    assert -loss.item() == near(expected["obj"])
