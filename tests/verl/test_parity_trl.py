"""Law 5: the same tensors through TRL's trainers give the same numbers, values and gradients.

TRL keeps advantages and losses inside methods of its trainers.  They are called here unbound, on a
stub that stands for the model's answers: sampled ids, log-probs, rewards.  All arithmetic between
is TRL's.  Deviations as in `test_parity.py`.  Runs only where TRL 1.16.0 is installed:
`make test-verl`.
"""

import math
from collections import defaultdict
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from batches import current_logprobs, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import CLOSE, at_sampled, equal_groups, example, in_type, without_observations
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.objectives import OBJECTIVES, batch_totals, kl_estimates, kl_in_rewards, kl_penalty

pytest.importorskip("trl", reason="TRL is not installed here; `make test-verl` has it")
from trl import GRPOTrainer, RLOOTrainer

every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
few = settings(max_examples=12)

QUARTERS = (0.0, 0.25, 0.75, 1.0)


def test_the_version_is_the_one_the_docs_name():
    assert version("trl") == "1.16.0"


def one_process() -> SimpleNamespace:
    """An accelerator with nobody else to talk to."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        gather=lambda values: values,
        gather_for_metrics=lambda values: values,
        reduce=lambda values, reduction: values,
        pad_across_processes=lambda values, dim, pad_index: values,
    )


# advantages


def trainer_before_the_update(batch: TurnBatch, size: int, **overrides: object) -> SimpleNamespace:
    """What `_generate_and_score_completions` asks of its trainer; it answers with the batch."""
    count = len(batch.rewards)
    no_logprobs = torch.zeros(count, batch.response_mask.shape[1])
    given = {
        "_calculate_rewards": lambda *_: batch.rewards[:, None],
        "_get_per_token_logps_and_entropies": lambda *_, **__: (no_logprobs, None, None),
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "accelerator": one_process(),
        "args": SimpleNamespace(
            per_device_train_batch_size=count,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
            report_to=[],
        ),
        "num_generations": size,
        "num_iterations": 1,
        "beta": 0.0,
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "normalize_advantages": False,
        "reward_clip_range": None,
        "reward_weights": torch.ones(1, dtype=batch.rewards.dtype),
        "reward_funcs": [None],
        "reward_func_names": ["outcome"],
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "use_vllm": False,
        "mask_truncated_completions": False,
        "pad_to_multiple_of": None,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_logs": defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "log_multimodal": False,
    }
    return SimpleNamespace(**given | overrides)


def theirs(trainer: type, batch: TurnBatch, size: int, **overrides: object) -> Tensor:
    """[B]: advantages of `GRPOTrainer` or `RLOOTrainer` for groups of `size` neighbours."""
    stub = trainer_before_the_update(batch, size, **overrides)
    count, length = batch.response_mask.shape
    ids, texts = ([[1]] * count, [[1] * length] * count), [""] * count
    generated = (
        (*ids, texts) if trainer is RLOOTrainer else (*ids, None, texts, None, {}, None, None)
    )
    stub._generate = lambda prompts: generated
    prompts = [{"prompt": "question"}] * count
    return unwrapped(trainer._generate_and_score_completions)(stub, prompts)["advantages"]


def unwrapped(method):
    """The method itself, without the profiler around it."""
    return getattr(method, "__wrapped__", method)


ESTIMATORS = {
    "grpo": (GRPOTrainer, {}, "grpo", {"eps": 1e-4}),
    "dr_grpo": (GRPOTrainer, {"scale_rewards": "none"}, "dr_grpo", {}),
    "rloo": (RLOOTrainer, {}, "rloo", {}),
}


@every_type
@pytest.mark.parametrize("names", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("size", [2, 3, 4])
@given(data=st.data())
@few
def test_advantages(names, size, dtype, data):
    """With missing rewards: both leave them out of the group's statistics and give them 0."""
    trainer, options, base, ours = names
    batch = in_type(data.draw(equal_groups(size, [*QUARTERS, math.nan])), dtype)
    found = BASES[base](batch, **ours)
    expected = at_sampled(batch, theirs(trainer, batch, size, **options)[:, None])
    torch.testing.assert_close(found, expected, **CLOSE[dtype])


@pytest.mark.parametrize("names", ESTIMATORS.values(), ids=ESTIMATORS)
def test_a_group_of_one_gets_nothing_if_it_is_allowed(names):
    trainer, options, base, ours = names
    batch = make_batch([[2, 1], [3]], rewards=[1.0, 0.5], groups=[0, 1])
    assert (theirs(trainer, batch, 1, **options) == 0).all()
    assert (BASES[base](batch, allow_singleton=True, **ours) == 0).all()
    with pytest.raises(ValueError, match="single trajectory"):
        BASES[base](batch, **ours)


def test_their_epsilon_is_100_times_ours():
    """1e-4 against verl's 1e-6: 1.4997 and 1.5 for one success in four; an option of ours."""
    batch = make_batch([[1]] * 4, rewards=[1.0, 0.0, 0.0, 0.0])
    assert float(theirs(GRPOTrainer, batch, 4)[0]) == pytest.approx(1.4997, abs=1e-5)
    assert float(BASES["grpo"](batch)[0, 2]) == pytest.approx(1.5, abs=1e-5)


def test_equal_rewards_give_exactly_nothing():
    batch = make_batch([[2, 1]] * 7, rewards=[0.7] * 7)
    assert (theirs(GRPOTrainer, batch, 7).abs() > 1e-4).all()
    assert (BASES["grpo"](batch) == 0).all()


@pytest.mark.parametrize("tools", [False, True])
def test_kl_in_the_reward_of_rloo(tools):
    """RLOOTrainer knows no tool mask: its KL sums over what the tools wrote, too; ours does not."""
    batch = example()
    scored = batch if tools else without_observations(batch)
    answers = {"policy": scored.old_logprobs, "reference": scored.ref_logprobs}
    expected = theirs(
        RLOOTrainer,
        batch,
        4,
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False, name="policy"),
        ref_model=SimpleNamespace(name="reference"),
        _get_per_token_logps_and_entropies=lambda m, *_, **__: (answers[m.name], None, None),
        beta=0.03,
    )
    found = BASES["rloo"](batch.replace(rewards=kl_in_rewards(scored)))
    apart = (found - at_sampled(batch, expected[:, None])).abs().max()
    assert apart > 0.01 if tools else apart < 1e-6


# losses


def their_loss(
    batch: TurnBatch, logprobs: Tensor, advantages: Tensor, *, steps: int = 1, **overrides: object
) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    """Loss, gradient in the log-probs [B, L] and metrics of `GRPOTrainer._compute_loss`.

    The whole row is the completion, and `tool_mask` is what tells observations apart.  `steps`
    micro-batches make one update.
    """
    leaf = logprobs.clone().requires_grad_()
    metrics = {"train": defaultdict(list)}
    options = {
        "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "delta": None,
        "importance_sampling_level": "token", "max_completion_length": 40,
        "num_items_in_batch": batch.response_mask.sum(), "top_entropy_quantile": 1.0,
    } | overrides  # fmt: skip
    stub = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, batch.entropies, None),
        args=SimpleNamespace(
            delta=options.pop("delta"), use_bias_correction_kl=False, steps_per_generation=steps
        ),
        accelerator=one_process(),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=steps,
        get_high_entropy_mask=lambda *a: GRPOTrainer.get_high_entropy_mask(stub, *a),
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=metrics,
        **options,
    )
    empty = torch.zeros(len(batch.rewards), 0, dtype=torch.int64)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": batch.token_ids,
        "completion_mask": torch.ones_like(batch.token_ids),
        "tool_mask": batch.response_mask.long(),
        "advantages": advantages,
        "old_per_token_logps": batch.old_logprobs,
        "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": options["num_items_in_batch"],
    }
    loss = unwrapped(GRPOTrainer._compute_loss)(stub, None, inputs)
    loss.backward()
    return loss.detach(), leaf.grad, metrics["train"]


def our_loss(
    name: str, batch: TurnBatch, logprobs: Tensor, advantages: Tensor, **options: object
) -> tuple[Tensor, Tensor, dict[str, float]]:
    leaf = logprobs.clone().requires_grad_()
    loss, metrics = OBJECTIVES[name](leaf, batch, advantages, **options)
    loss.backward()
    return loss.detach(), leaf.grad, metrics


def moved(batch: TurnBatch, scale: float = 0.3) -> Tensor:
    return current_logprobs(batch, scale).to(batch.old_logprobs.dtype)


def drawn_advantages(batch: TurnBatch, *, per_token: bool) -> Tensor:
    """[B, L] at sampled tokens, or constant over a trajectory."""
    stream = torch.Generator().manual_seed(3)
    shape = batch.response_mask.shape if per_token else (len(batch.rewards), 1)
    drawn = torch.randn(shape, generator=stream).to(batch.rewards.dtype)
    return at_sampled(batch, drawn.expand(batch.response_mask.shape))


LOSSES = {
    "grpo": ({}, "ppo_clip", {"aggregation": "seq_mean_token_mean"}),
    "bnpo": ({"loss_type": "bnpo"}, "ppo_clip", {}),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, "ppo_clip", {"clip_high": 0.28}),
    "dr_grpo": (
        {"loss_type": "dr_grpo"},
        "ppo_clip",
        {"aggregation": "seq_mean_token_sum_norm", "max_length": 40},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.3}, "cispo", {"upper_cap": 1.3}),
    "gspo": (
        {"importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.1},
        "gspo",
        {"clip_low": 0.05, "clip_high": 0.1},
    ),
}
"""Their settings; our objective and its options."""

every_loss = pytest.mark.parametrize("case", LOSSES)
FULL = [[[3, 2, 4], [1], [2, 0, 3]], [[4, 1], [0, 2, 2], [1, 1, 1]], [[2, 5], [6]]]


@every_type
@every_loss
@pytest.mark.parametrize("scale", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("lengths", FULL, ids=str)
def test_losses_and_gradients(case, scale, lengths, dtype):
    batch = in_type(make_batch(lengths, seed=len(lengths)), dtype)
    overrides, objective, ours = LOSSES[case]
    logprobs = moved(batch, scale)
    advantages = drawn_advantages(batch, per_token=objective != "gspo")
    one_each = advantages.sum(dim=1) / batch.response_mask.sum(dim=1)  # as their sequence level has
    given = one_each if objective == "gspo" else advantages
    expected = their_loss(batch, logprobs, given, **overrides)
    found = our_loss(objective, batch, logprobs, advantages, **ours)
    torch.testing.assert_close(found[:2], expected[:2], **CLOSE[dtype])


@every_loss
def test_metrics(case):
    batch = example(torch.float64)
    overrides, objective, ours = LOSSES[case]
    logprobs, advantages = moved(batch), drawn_advantages(batch, per_token=True)
    if objective == "gspo":
        advantages = drawn_advantages(batch, per_token=False)
        given = advantages.sum(dim=1) / batch.response_mask.sum(dim=1)
    else:
        given = advantages
    *_, expected = their_loss(batch, logprobs, given, **overrides)
    *_, found = our_loss(objective, batch, logprobs, advantages, **ours)
    name = "cispo_clip_ratio" if objective == "cispo" else "clip_ratio/region_mean"
    ours_name = "sequence_clip_fraction" if objective == "gspo" else "clip_fraction"
    assert found[ours_name] == pytest.approx(expected[name][0], abs=1e-6)
    assert found[ours_name] > 0


@every_type
@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_kl_in_the_loss(scale, dtype):
    batch = in_type(example(), dtype)
    batch = batch.replace(ref_logprobs=moved(batch, scale))
    logprobs, advantages = batch.old_logprobs.clone(), drawn_advantages(batch, per_token=True)
    expected = their_loss(batch, logprobs, advantages, loss_type="bnpo", beta=0.04)
    leaf = logprobs.clone().requires_grad_()
    loss, _ = OBJECTIVES["ppo_clip"](leaf, batch, advantages)
    penalty, metrics = kl_penalty(leaf, batch)
    total = loss + 0.04 * penalty
    total.backward()
    torch.testing.assert_close((total.detach(), leaf.grad), expected[:2], **CLOSE[dtype])
    assert metrics["kl"] == pytest.approx(expected[2]["kl"][0], rel=1e-5)


@every_type
@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_turns_of_one_token_make_their_high_entropy_tokens_our_high_entropy_turns(fraction, dtype):
    """The 80/20 rule for tokens; kept tokens keep the denominator of all tokens in both."""
    batch = in_type(make_batch([[1] * 9, [1] * 7, [1] * 4, [1] * 6], seed=2), dtype)
    advantages = drawn_advantages(batch, per_token=True)
    weights = TURN_WEIGHTS["high_entropy_turns"](batch, advantages, fraction=fraction)
    kept = batch.gather_turns(weights)
    stub = SimpleNamespace(accelerator=one_process())
    mask = batch.response_mask.long()
    expected = GRPOTrainer.get_high_entropy_mask(stub, batch.entropies, mask, 1 - fraction)
    assert torch.equal(kept.bool(), expected)
    assert 0 < int(expected.sum()) < int(mask.sum())
    theirs_ = their_loss(
        batch, moved(batch), advantages, loss_type="bnpo", top_entropy_quantile=fraction
    )
    ours = our_loss("ppo_clip", batch, moved(batch), advantages * kept)
    torch.testing.assert_close(ours[:2], theirs_[:2], **CLOSE[dtype])


# losses: deviations


@pytest.mark.parametrize("case", ["grpo", "dr_grpo", "gspo", "bnpo", "dapo", "cispo"])
def test_a_trajectory_without_a_sampled_token_does_not_dilute_the_loss(case):
    """It counts in their mean over trajectories, as a loss of 0, and not in ours."""
    overrides, objective, ours = LOSSES[case]
    batch = in_type(make_batch([[2, 1], [1, 2], [0]]), torch.float64)
    advantages = drawn_advantages(batch, per_token=False)
    given = advantages.amax(dim=1) + advantages.amin(dim=1) if objective == "gspo" else advantages
    expected = their_loss(batch, moved(batch), given, **overrides)
    found = our_loss(objective, batch, moved(batch), advantages, **ours)
    share = 2 / 3 if case in ("grpo", "dr_grpo", "gspo") else 1.0
    torch.testing.assert_close(found[0] * share, expected[0], **CLOSE[torch.float64])
    torch.testing.assert_close(found[1] * share, expected[1], **CLOSE[torch.float64])
    assert expected[0].abs() > 1e-3


@pytest.mark.parametrize("case", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
def test_micro_batches_of_unequal_length(case):
    """`bnpo` averages each micro-batch by itself, so two of them are not the batch; ours are.

    The others agree when the micro-batches have as many trajectories.
    """
    overrides, objective, ours = LOSSES[case]
    batch = example(torch.float64)
    logprobs, advantages = moved(batch), drawn_advantages(batch, per_token=True)
    halves, totals = ([0, 1, 2, 6], [3, 4, 5, 7]), batch_totals(batch)  # 22 and 18 tokens
    whole = our_loss(objective, batch, logprobs, advantages, **ours)[0]
    parts = [
        our_loss(objective, batch.select(h), logprobs[h], advantages[h], **ours, **totals)[0]
        for h in halves
    ]
    torch.testing.assert_close(sum(parts), whole)
    tokens = batch.response_mask.sum()
    their_parts = [
        their_loss(
            batch.select(h), logprobs[h], advantages[h], steps=2, num_items_in_batch=tokens,
            **overrides,
        )[0]
        for h in halves
    ]  # fmt: skip
    assert torch.isclose(sum(their_parts), whole, rtol=1e-7) == (case != "bnpo")


@pytest.mark.parametrize("case", ["bnpo", "cispo"])
@pytest.mark.parametrize("gap", [-30.0, 30.0])
def test_no_gradient_beyond_a_log_ratio_of_20(case, gap):
    """TRL has no guard: a ratio of e^30, and its gradient, goes straight into the update."""
    overrides, objective, ours = LOSSES[case]
    batch = in_type(make_batch([[2], [2]], seed=1), torch.float64)
    batch = batch.replace(old_logprobs=torch.full_like(batch.old_logprobs, -45.0))
    logprobs = batch.old_logprobs.clone()
    logprobs[0, 2] += gap
    advantages = at_sampled(batch, -torch.ones_like(logprobs))
    if gap < 0 and case == "bnpo":
        advantages = -advantages
    _, expected, _ = their_loss(batch, logprobs, advantages, **overrides)
    _, found, _ = our_loss(objective, batch, logprobs, advantages, **ours)
    assert expected[0, 2] != 0
    assert found[0, 2] == 0


def test_their_kl_has_no_limit():
    """exp(d) - d - 1 at d = 5 is 142; verl and we stop at 10."""
    batch = in_type(make_batch([[2], [1]]), torch.float64)
    batch = batch.replace(ref_logprobs=batch.old_logprobs + 5)
    zero = torch.zeros_like(batch.old_logprobs)
    expected, _, _ = their_loss(batch, batch.old_logprobs, zero, loss_type="bnpo", beta=1.0)
    assert float(expected) == pytest.approx(math.exp(5) - 6)
    assert float(kl_penalty(batch.old_logprobs, batch)[0]) == 10
    free = kl_estimates(batch.old_logprobs, batch.ref_logprobs, limit=math.inf)
    torch.testing.assert_close(free, torch.full_like(free, math.exp(5) - 6))


@pytest.mark.parametrize("case", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
def test_nothing_sampled_is_no_loss_in_either(case):
    overrides, objective, ours = LOSSES[case]
    batch = make_batch([[0], [0]])
    advantages = torch.zeros_like(batch.old_logprobs)
    assert their_loss(batch, moved(batch), advantages, **overrides)[0] == 0
    assert our_loss(objective, batch, moved(batch), advantages, **ours)[0] == 0


@pytest.mark.parametrize("case", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
def test_junk_at_observations_does_not_reach_the_loss(case):
    """Theirs: NaN times a mask of 0 is NaN."""
    overrides, objective, ours = LOSSES[case]
    batch = example()
    logprobs, advantages = moved(batch), drawn_advantages(batch, per_token=True)
    junk = logprobs.masked_fill(~batch.response_mask, math.nan)
    assert their_loss(batch, junk, advantages, **overrides)[0].isnan()
    found = our_loss(objective, batch, junk, advantages, **ours)
    torch.testing.assert_close(
        found[:2], our_loss(objective, batch, logprobs, advantages, **ours)[:2]
    )
