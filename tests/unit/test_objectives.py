"""Objectives against independent autograd, and the four ways to turn token losses into one."""

import inspect
import math

import pytest
import torch
from batches import current_logprobs, make_batch, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import TURN_WEIGHTS
from turncredit.methods import option_names
from turncredit.objectives import (
    AGGREGATIONS,
    OBJECTIVES,
    aggregate,
    batch_totals,
    cispo,
    gspo,
    gspo_token,
    kl_estimates,
    kl_penalty,
    merge_metrics,
    turn_gspo,
)

PPO = OBJECTIVES["ppo_clip"]
NAN = math.nan
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def moved(batch: TurnBatch, log_ratio: Tensor) -> tuple[Tensor, TurnBatch]:
    """Log-probs with these log-ratios [B, L] to the old ones, which make room for them below 0."""
    batch = batch.replace(old_logprobs=batch.old_logprobs - log_ratio.clamp(min=0))
    return batch.old_logprobs + log_ratio, batch


def one_token(
    log_ratio: float, advantage: float, name: str = "ppo_clip", **options
) -> tuple[float, float, dict]:
    """Loss, gradient with respect to the log-prob, and metrics of a single sampled token."""
    logprobs, batch = moved(make_batch([[1]]), torch.tensor(log_ratio))
    logprobs.requires_grad_()
    credit = torch.full_like(logprobs, advantage)
    loss, metrics = OBJECTIVES[name](logprobs, batch, credit, **options)
    loss.backward()
    return loss.item(), logprobs.grad[batch.response_mask].item(), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 1.0, -1.0, -1.0, 0),
        (1.5, 1.0, -1.2, 0.0, 1),  # too good already: clipped, no gradient
        (0.5, 1.0, -0.5, -0.5, 0),  # the optimistic side is not clipped
        (1.5, -1.0, 1.5, 1.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),
        (1.1, 2.0, -2.2, -2.2, 0),
        (1.5, 0.0, 0.0, 0.0, 0),
    ],
)
def test_clipped_surrogate_table(ratio, advantage, loss, gradient, clipped):
    found = one_token(math.log(ratio), advantage)
    assert found[:2] == pytest.approx((loss, gradient), abs=1e-5)
    assert found[2]["clip_fraction"] == clipped
    assert found[2]["ratio_max"] == pytest.approx(ratio)
    assert found[2]["ppo_kl"] == pytest.approx(-math.log(ratio), abs=1e-6)


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    assert one_token(math.log(5), -2.0, dual_clip=3.0)[:2] == pytest.approx((6.0, 0.0))
    assert one_token(math.log(2), -2.0, dual_clip=3.0)[:2] == pytest.approx((4.0, 4.0))
    assert one_token(math.log(5), 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)
    assert one_token(math.log(5), -2.0, dual_clip=3.0)[2]["dual_clip_fraction"] == 1
    assert one_token(math.log(5), -2.0)[2]["dual_clip_fraction"] == 0
    for bad in (1.0, 0.5):
        with pytest.raises(ValueError, match=f"dual_clip is {bad}; it must be a finite number"):
            one_token(0.0, 1.0, dual_clip=bad)


def test_log_ratio_guard():
    loss, gradient, metrics = one_token(50.0, -1.0)
    assert loss == pytest.approx(math.exp(20), rel=1e-4)
    assert gradient == 0
    assert metrics["ratio_guarded"] == 1
    assert one_token(19.0, -1.0)[2]["ratio_guarded"] == 0


def test_asymmetric_clip_range():
    assert one_token(math.log(1.27), 1.0, clip_high=0.28)[0] == pytest.approx(-1.27, abs=1e-5)
    assert one_token(math.log(1.50), 1.0, clip_high=0.28)[0] == pytest.approx(-1.28, abs=1e-5)
    assert one_token(math.log(0.50), -1.0, clip_low=0.1)[0] == pytest.approx(0.9, abs=1e-5)


LOSSES = torch.tensor([[1.0, 3.0, NAN, NAN], [2.0, 4.0, 6.0, 8.0], [NAN] * 4])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", 24 / 6),
        ("seq_mean_token_mean", (2 + 5) / 2),  # the empty row does not count
        ("seq_mean_token_sum", (4 + 20) / 2),
        ("seq_mean_token_sum_norm", (4 + 20) / 2 / 8),
    ],
)
def test_aggregation_table(mode, expected):
    assert aggregate(LOSSES, MASK, mode=mode, max_length=8).item() == pytest.approx(expected)
    nothing = aggregate(LOSSES, torch.zeros_like(MASK), mode=mode, max_length=8)
    assert nothing.item() == 0.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_losses_are_summed_in_float64(mode):
    """A float32 sum would lose the ones; one row, so every mode divides the same sum of 2."""
    losses = torch.tensor([[1e9, 1.0, 1.0, -1e9]])
    found = aggregate(losses, torch.ones(1, 4).bool(), mode=mode, max_length=2)
    expected = {"token_mean": 0.5, "seq_mean_token_mean": 0.5, "seq_mean_token_sum": 2.0}
    assert found.item() == expected.get(mode, 1.0)


def test_explicit_totals_replace_those_of_the_mask():
    assert aggregate(LOSSES, MASK, total_tokens=12).item() == pytest.approx(2.0)
    found = aggregate(LOSSES, MASK, mode="seq_mean_token_sum", total_sequences=4)
    assert found.item() == pytest.approx(6.0)


def test_unknown_modes_and_a_missing_length_are_errors():
    with pytest.raises(ValueError, match="unknown aggregation 'mean'; there are: token_mean"):
        aggregate(LOSSES, MASK, mode="mean")
    with pytest.raises(ValueError, match="needs max_length >= 1, and it is None"):
        aggregate(LOSSES, MASK, mode="seq_mean_token_sum_norm")
    with pytest.raises(ValueError, match="aggregate: max_length is 0; it must be a finite"):
        aggregate(LOSSES, MASK, mode="seq_mean_token_sum_norm", max_length=0)
    batch = make_batch([[1]])
    with pytest.raises(
        ValueError, match="objective 'ppo_clip' has no option 'clip'; it has: clip_"
    ):
        PPO(batch.old_logprobs, batch, batch.old_logprobs, clip=0.2)
    with pytest.raises(ValueError, match=r"unknown objective 'ppo'; there are: .*ppo_clip"):
        OBJECTIVES["ppo"]
    length = batch.old_logprobs.shape[1]
    with pytest.raises(ValueError, match=r"ppo_clip: logprobs are torch.float32 of shape \(1, 1\)"):
        PPO(torch.zeros(1, 1), batch, batch.old_logprobs)
    with pytest.raises(ValueError, match=rf"ppo_clip: advantages are .* of shape \({length},\)"):
        PPO(batch.old_logprobs, batch, torch.zeros(length))


def ragged() -> tuple[Tensor, object, Tensor]:
    batch = make_batch([[2, 1], [5], [0, 0], [1, 3, 2], [4, 4]])
    advantages = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(3))
    return current_logprobs(batch), batch, advantages


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [[5], [2, 3], [1, 1, 1, 1, 1], [4, 1]])
def test_gradients_of_micro_batches_add_up_to_the_full_gradient(mode, sizes):
    """With a parameter shared by all tokens as in a policy."""
    logprobs, batch, advantages = ragged()
    options = {"aggregation": mode, "max_length": 16}

    def gradient(pieces: list[Tensor], **totals) -> float:
        shift = torch.zeros((), requires_grad=True)
        for rows in pieces:
            part = batch.select(rows)
            PPO(logprobs[rows] + shift, part, advantages[rows], **options, **totals)[0].backward()
        return shift.grad.item()

    full = gradient([torch.arange(5)])
    parts = gradient(list(torch.arange(5).split(sizes)), **batch_totals(batch))
    assert parts == pytest.approx(full, rel=1e-5)
    assert full != 0


def test_batch_totals_leave_out_empty_rows():
    assert batch_totals(ragged()[1]) == {"total_tokens": 22, "total_sequences": 4}


@every_objective
def test_metrics_of_a_batch_without_sampled_tokens_are_missing(name):
    batch = make_batch([[0]])
    loss, metrics = OBJECTIVES[name](batch.old_logprobs, batch, torch.ones(1, 3))
    assert loss.item() == 0
    assert {key for key in metrics if key.startswith("response_")} >= {"response_tokens"}
    for key, value in metrics.items():
        assert value == 0 if key.startswith("response_") else math.isnan(value), key
    assert set(metrics) == set(one_token(0.0, 1.0, name)[2])


# every objective against the published formula, differentiated by autograd


def naive_losses(
    name: str, logprobs: Tensor, old: Tensor, advantages: Tensor, turns: Tensor
) -> Tensor:
    """Token losses [n] of one trajectory, written with sg(.) as the papers do; narrow ranges."""
    ratio = (logprobs - old).exp()
    held = ratio / ratio.detach()  # value 1, gradient of the log-prob
    low, high = 0.99, 1.01

    def surrogate(ratio: Tensor, credit: Tensor) -> Tensor:
        return -torch.minimum(ratio * credit, ratio.clamp(low, high) * credit)

    if name == "ppo_clip":
        return surrogate(ratio, advantages)
    if name == "gspo":  # through the mean itself
        shared = (logprobs - old).mean().exp()
        return surrogate(shared, advantages.mean()).expand(len(old))
    if name == "gspo_token":
        return surrogate((logprobs - old).mean().exp().detach() * held, advantages)
    if name == "turn_gspo":
        shared = torch.stack([(logprobs - old)[turns == turn].mean().exp() for turn in turns])
        return surrogate(shared.detach() * held, advantages)
    if name == "cispo":
        return -ratio.clamp(low, high).detach() * advantages * logprobs
    upper = torch.minimum(ratio, high * held)
    lower = low * held if name == "gppo" else torch.full_like(held, low)
    return -torch.minimum(ratio * advantages, torch.maximum(upper, lower) * advantages)


def naive(name: str, logprobs: Tensor, batch: TurnBatch, advantages: Tensor, mode: str) -> Tensor:
    """The loss, row by row."""
    rows = []
    for row, mask in enumerate(batch.response_mask):
        if mask.any():
            parts = (logprobs, batch.old_logprobs, advantages, batch.turn_ids)
            rows.append(naive_losses(name, *(part[row][mask] for part in parts)))
    if mode == "token_mean":
        return torch.cat(rows).mean()
    over = torch.Tensor.mean if mode == "seq_mean_token_mean" else torch.Tensor.sum
    scale = 16 if mode.endswith("norm") else 1
    return torch.stack([over(losses) for losses in rows]).mean() / scale


def loss_and_gradient(function, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logprobs.detach().clone().requires_grad_()
    loss = function(leaf)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@every_objective
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("constant", [True, False], ids=["trajectory", "token"])
def test_value_and_gradient_are_those_of_the_published_formula(name, mode, constant):
    """In float64, with clip ranges that leave every branch with some tokens."""
    logprobs, batch, advantages = ragged()
    advantages = advantages[:, :1].expand_as(advantages) if constant else advantages
    logprobs, advantages = logprobs.double(), advantages.double()
    batch = batch.replace(old_logprobs=batch.old_logprobs.double())
    options = {"clip_low": 0.01, "clip_high": 0.01, "aggregation": mode, "max_length": 16}
    found = loss_and_gradient(
        lambda leaf: OBJECTIVES[name](leaf, batch, advantages, **options)[0], logprobs
    )
    expected = loss_and_gradient(lambda leaf: naive(name, leaf, batch, advantages, mode), logprobs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    metrics = OBJECTIVES[name](logprobs, batch, advantages, **options)[1]
    assert 0 < metrics["clip_fraction"] < 1


@pytest.mark.parametrize(
    ("name", "coefficients"),
    [  # ratio 0.5 and 2, each with advantage -1 and +1, and a ratio inside the range
        ("ppo_clip", (0.0, 0.5, 2.0, 0.0, 1.1)),
        ("gppo", (0.8, 0.5, 2.0, 1.28, 1.1)),
        ("cispo", (0.8, 0.8, 1.28, 1.28, 1.1)),
        ("aepo", (0.0, 0.5, 2.0, 1.28, 1.1)),
        ("gspo", (0.0, 0.5, 2.0, 0.0, 1.1)),  # one token is its own trajectory, and turn
        ("gspo_token", (0.0, 0.5, 2.0, 0.0, 1.1)),
        ("turn_gspo", (0.0, 0.5, 2.0, 0.0, 1.1)),
    ],
)
def test_gradient_coefficients(name, coefficients):
    """What separates the objectives: -gradient / advantage in each corner."""
    corners = [(0.5, -1.0), (0.5, 1.0), (2.0, -1.0), (2.0, 1.0), (1.1, -1.0)]
    options = {"clip_low": 0.2, "clip_high": 0.28}
    found = [one_token(math.log(r), a, name, **options)[1] / -a for r, a in corners]
    assert found == pytest.approx(coefficients, abs=1e-5)


def test_the_table_of_coefficients_names_every_objective():
    (mark,) = test_gradient_coefficients.pytestmark
    assert {name for name, _ in mark.args[1]} == set(OBJECTIVES)


@pytest.mark.parametrize("name", ["gppo", "aepo", "ppo_clip"])
def test_clipped_surrogates_of_tokens_share_their_value(name):
    for ratio, advantage in ((0.5, -1.0), (2.0, 1.0), (0.5, 1.0), (1.1, -2.0)):
        options = {"clip_low": 0.2, "clip_high": 0.28}
        value, _, metrics = one_token(math.log(ratio), advantage, name, **options)
        expected, _, reference = one_token(math.log(ratio), advantage, **options)
        assert value == pytest.approx(expected, abs=1e-6)
        assert metrics["clip_fraction"] == reference["clip_fraction"]


@pytest.mark.parametrize("name", ["gppo", "aepo"])
def test_dual_clip_ends_what_a_kept_gradient_would_do(name):
    assert one_token(math.log(5), -2.0, name)[:2] == pytest.approx((10.0, 10.0))
    found = one_token(math.log(5), -2.0, name, dual_clip=3.0)
    assert found[:2] == pytest.approx((6.0, 0.0))
    assert found[2]["dual_clip_fraction"] == 1


def test_gppo_betas_scale_the_bounds_and_nothing_else():
    betas = {"beta_low": 0.25, "beta_high": 0.5}
    assert one_token(math.log(0.5), -1.0, "gppo", **betas)[:2] == pytest.approx((0.2, 0.2))
    assert one_token(math.log(2), 1.0, "gppo", **betas)[:2] == pytest.approx((-0.64, -0.64))
    for ratio, advantage in ((0.5, 1.0), (2.0, -1.0), (1.1, 1.0)):
        inside = one_token(math.log(ratio), advantage, "gppo", **betas)[:2]
        assert inside == pytest.approx((-ratio * advantage,) * 2, abs=1e-6)


def test_cispo_upper_cap_is_absolute_and_alone():
    for ratio, weight in ((0.01, 0.01), (2.0, 2.0), (5.5, 5.0), (100.0, 5.0)):
        for advantage in (-2.0, 2.0):
            found = one_token(math.log(ratio), advantage, "cispo", upper_cap=5.0)
            assert found[1] == pytest.approx(-weight * advantage, rel=1e-4)
            assert found[2]["weight_clip_fraction"] == (ratio > 5)
            assert found[2]["clip_fraction"] == (ratio > 5 and advantage > 0)


def test_cispo_counts_both_sides_as_weights_and_one_as_clipped():
    found = [one_token(math.log(2), sign, "cispo")[2] for sign in (-1.0, 1.0)]
    assert [m["weight_clip_fraction"] for m in found] == [1, 1]
    assert [m["clip_fraction"] for m in found] == [0, 1]


def test_cispo_value_is_the_weighted_log_probability():
    batch = make_batch([[1]])
    logprobs = batch.old_logprobs - 0.05
    loss, _ = cispo(logprobs, batch, torch.full_like(logprobs, 3.0))
    expected = -math.exp(-0.05) * 3 * logprobs[batch.response_mask].item()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


# trajectory and turn ratios


@given(ragged_batches(), st.sampled_from(AGGREGATIONS))
def test_gspo_token_with_trajectory_advantages_is_gspo(batch, mode):
    logprobs = current_logprobs(batch, scale=0.02)
    advantages = torch.where(batch.success, 1.0, -0.5)[:, None].expand(logprobs.shape)
    options = {"aggregation": mode, "max_length": 8}
    both = [
        loss_and_gradient(lambda leaf, f=f: f(leaf, batch, advantages, **options)[0], logprobs)
        for f in (gspo, gspo_token)
    ]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_turn_gspo_of_single_turns_is_gspo_token(mode):
    batch = make_batch([[3], [1], [5], [0]])
    logprobs, options = current_logprobs(batch), {"aggregation": mode, "max_length": 8}
    options |= {"clip_low": 0.1, "clip_high": 0.1}
    advantages = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(0))
    both = [
        loss_and_gradient(lambda leaf, f=f: f(leaf, batch, advantages, **options)[0], logprobs)
        for f in (turn_gspo, gspo_token)
    ]
    torch.testing.assert_close(*both, rtol=0, atol=0)


def test_the_turn_is_what_turn_ids_say():
    """Two turns of equal advantage keep two ratios: ratio 2 is clipped, ratio 1 is not."""
    batch = make_batch([[2, 2]])
    shift = torch.where(batch.turn_ids == 0, math.log(2), 0.0)
    options = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean"}
    ones = torch.ones_like(shift)
    loss, metrics = turn_gspo(*moved(batch, shift), ones, **options)
    assert loss.item() == pytest.approx(-(1.2 + 1.0) / 2)
    assert metrics["turn_clip_fraction"] == metrics["clip_fraction"] == 0.5
    assert (metrics["turn_ratio_min"], metrics["turn_ratio_max"]) == pytest.approx((1, 2))


def test_clip_fractions_of_trajectories_and_turns_by_hand():
    """Rows: ratio 2 over both turns, ratio 1, nothing sampled.  Only the first can be clipped."""
    batch = make_batch([[1, 3], [2, 0], [0, 0]])
    logprobs, batch = moved(batch, torch.tensor([math.log(2), 0.0, 0.0])[:, None])
    advantages = torch.ones_like(logprobs)
    for objective in (gspo, gspo_token):
        metrics = objective(logprobs, batch, advantages)[1]
        assert (metrics["clip_fraction"], metrics["sequence_clip_fraction"]) == (4 / 6, 1 / 2)
        assert metrics["response_sequences"] == 2
        extremes = metrics["sequence_ratio_min"], metrics["sequence_ratio_max"]
        assert extremes == pytest.approx((1, 2))
    metrics = turn_gspo(logprobs, batch, advantages)[1]
    assert (metrics["turn_clip_fraction"], metrics["response_turns"]) == (2 / 3, 3)
    # a turn counts as clipped when one of its tokens is: here the only one with credit
    advantages[0, 3:] = -1.0
    metrics = gspo_token(logprobs, batch, advantages)[1]
    assert (metrics["clip_fraction"], metrics["sequence_clip_fraction"]) == (1 / 6, 1 / 2)


# what no objective may do


@every_objective
@pytest.mark.parametrize("extreme", [50.0, -50.0, -math.inf])
def test_extreme_log_ratios_stay_finite_and_pass_no_gradient(name, extreme):
    """The neighbours of an extreme token keep their gradient, in its trajectory as elsewhere."""
    batch = make_batch([[2, 1], [3]])
    options = {"clip_low": 0.99, "clip_high": 1e30, "aggregation": "token_mean"}
    places = batch.response_mask.nonzero().tolist()
    for sign in (-1.0, 1.0):
        row, column = places[1]
        shift = torch.zeros(batch.token_ids.shape)
        shift[row, column] = extreme
        logprobs, lower = moved(batch, shift)
        leaf = logprobs.requires_grad_()
        loss, metrics = OBJECTIVES[name](leaf, lower, torch.full_like(leaf, sign), **options)
        loss.backward()
        assert loss.isfinite()
        assert leaf.grad.isfinite().all()
        assert leaf.grad[row, column] == 0
        assert metrics["ratio_guarded"] == pytest.approx(1 / 6)
        assert all(math.isfinite(value) for value in metrics.values())
        others = [leaf.grad[place].item() for place in map(tuple, places) if place != (row, column)]
        if sign > 0 or extreme > 0:  # otherwise a shared ratio of 1e-3 is clipped, as it should
            assert all(others)


@every_objective
@pytest.mark.parametrize("field", ["logprobs", "old_logprobs", "advantages"])
def test_nan_at_a_sampled_token_stays_visible(name, field):
    batch = make_batch([[2, 1], [3]])
    tensors = {"logprobs": current_logprobs(batch), "old_logprobs": batch.old_logprobs.clone()}
    tensors["advantages"] = torch.ones_like(tensors["logprobs"])
    tensors[field][tuple(batch.response_mask.nonzero()[0])] = NAN
    batch = batch.replace(old_logprobs=tensors["old_logprobs"])
    loss, metrics = OBJECTIVES[name](tensors["logprobs"], batch, tensors["advantages"])
    assert loss.isnan()
    names = ("ppo_kl", "ratio_min", "ratio_max")
    assert all(math.isnan(metrics[key]) == (field != "advantages") for key in names)


@every_objective
def test_zero_advantages_give_exactly_no_gradient(name):
    logprobs, batch, advantages = ragged()
    found = loss_and_gradient(
        lambda leaf: OBJECTIVES[name](leaf, batch, torch.zeros_like(advantages))[0], logprobs
    )
    assert found[0] == 0
    assert (found[1] == 0).all()


@every_objective
def test_inputs_are_left_as_they_were(name):
    logprobs, batch, advantages = ragged()
    before = logprobs.clone(), advantages.clone(), batch.old_logprobs.clone()
    OBJECTIVES[name](logprobs, batch, advantages)
    assert all(map(torch.equal, before, (logprobs, advantages, batch.old_logprobs)))


WRONG_TYPES = [torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.complex64]


@every_objective
@pytest.mark.parametrize("argument", ["logprobs", "advantages"])
def test_arguments_of_another_type_are_named(name, argument):
    """Flags and whole numbers would be taken for advantages, half precision for a ratio."""
    batch = make_batch([[2, 1], [3]])
    given = {"logprobs": current_logprobs(batch), "advantages": torch.ones(batch.token_ids.shape)}
    for dtype in WRONG_TYPES:
        wrong = given | {argument: given[argument].to(dtype)}
        with pytest.raises(ValueError, match=rf"^{name}: {argument} are {dtype} of shape .*, not"):
            OBJECTIVES[name](wrong["logprobs"], batch, wrong["advantages"])
    for value in (None, 1.0, given[argument].tolist()):
        wrong = given | {argument: value}
        kind = type(value).__name__
        with pytest.raises(ValueError, match=rf"^{name}: {argument} are {kind}, not float32"):
            OBJECTIVES[name](wrong["logprobs"], batch, wrong["advantages"])


@every_objective
def test_what_is_given_in_the_place_of_logprobs_is_found_out(name):
    """Advantages, logits and probabilities have the shape and type of log-probs."""
    logprobs, batch, advantages = ragged()
    row, column = (batch.response_mask & (advantages > 1e-3)).nonzero()[0].tolist()
    said = rf"^{name}: logprobs are .* at row {row}, token {column}, above 0 .* advantages, logits"
    with pytest.raises(ValueError, match=said):
        OBJECTIVES[name](advantages, batch, logprobs)
    for wrong in (-logprobs, logprobs.exp(), torch.full_like(logprobs, math.inf)):
        with pytest.raises(ValueError, match=f"^{name}: logprobs are .*, above 0"):
            OBJECTIVES[name](wrong, batch, advantages)


@every_objective
def test_rounding_above_zero_and_junk_outside_the_mask_are_no_fault(name):
    logprobs, batch, advantages = ragged()
    given = torch.where(batch.response_mask, torch.full_like(logprobs, 1e-4), 7.0)
    batch = batch.replace(old_logprobs=torch.zeros_like(logprobs))
    assert OBJECTIVES[name](given, batch, advantages)[0].isfinite()


def test_other_functions_of_logprobs_name_them_too():
    logprobs, batch, advantages = ragged()
    with pytest.raises(ValueError, match=r"^kl_penalty: logprobs are .*, above 0"):
        kl_penalty(advantages, batch)
    with pytest.raises(ValueError, match=r"^high_is_turns: logprobs are .*, above 0"):
        TURN_WEIGHTS["high_is_turns"](batch, advantages, logprobs=advantages)
    with pytest.raises(ValueError, match="high_is_turns: logprobs is None; it needs those"):
        TURN_WEIGHTS["high_is_turns"](batch, advantages, logprobs=None)
    for dtype in WRONG_TYPES:
        spoilt = logprobs.to(dtype)
        with pytest.raises(ValueError, match=f"^kl_penalty: logprobs are {dtype}"):
            kl_penalty(spoilt, batch)
        with pytest.raises(ValueError, match=f"^high_is_turns: logprobs are {dtype}"):
            TURN_WEIGHTS["high_is_turns"](batch, advantages, logprobs=spoilt)
        for name, pair in (
            ("logprobs", (spoilt, logprobs)),
            ("ref_logprobs", (logprobs, spoilt)),
        ):
            with pytest.raises(ValueError, match=f"^kl_estimates: {name} are {dtype}"):
                kl_estimates(*pair)
        with pytest.raises(ValueError, match=f"^aggregate: losses are {dtype}"):
            aggregate(spoilt, batch.response_mask)
        if dtype != torch.bool:
            with pytest.raises(ValueError, match=f"^aggregate: mask is {dtype}, not bool"):
                aggregate(logprobs, batch.response_mask.to(dtype))


BAD_VALUES = {
    "clip_low": (-0.1, 1.0, NAN, "0.2", None, True, False),
    "clip_high": (-0.1, NAN, "0.2", None, True),
    "dual_clip": (1.0, 0.5, NAN, math.inf, "3", True),
    "beta_low": (-0.1, NAN, math.inf, None, True),
    "beta_high": (-0.1, NAN, math.inf, None, True),
    "upper_cap": (0.0, -1.0, NAN, "5", True),
    "max_length": (0, -3, math.inf, NAN, "8", True),
    "total_tokens": (-1, math.inf, NAN, "8", True),
    "total_sequences": (-1, math.inf, NAN, "8", True),
}


@every_objective
def test_values_out_of_range_are_named(name):
    batch = make_batch([[1]])
    known = set(option_names(OBJECTIVES[name])) - {"aggregation"}
    assert known <= set(BAD_VALUES)
    for option in known:
        for value in BAD_VALUES[option]:
            with pytest.raises(ValueError, match=f"^{name}: {option} is {value!r}; it must "):
                one_token(0.0, 1.0, name, **{option: value})
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        OBJECTIVES[name](batch.old_logprobs, batch, torch.ones(1, 4), aggregation="mean")


@every_objective
def test_values_at_the_edge_of_a_range_are_taken(name):
    edges = {"clip_low": 0, "clip_high": 0.0, "dual_clip": 1.01, "beta_low": 0, "upper_cap": 0.01}
    known = option_names(OBJECTIVES[name])
    options = {option: value for option, value in edges.items() if option in known}
    loss, gradient, _ = one_token(0.3, 1.0, name, **options, max_length=1)
    assert math.isfinite(loss)
    assert math.isfinite(gradient)


@every_objective
def test_every_objective_takes_the_shared_options(name):
    shared = {
        "clip_low",
        "clip_high",
        "aggregation",
        "max_length",
        *batch_totals(make_batch([[1]])),
    }
    assert shared <= set(option_names(OBJECTIVES[name]))
    signature = inspect.signature(OBJECTIVES[name])
    assert list(signature.parameters)[:3] == ["logprobs", "batch", "advantages"]
    assert signature.return_annotation == tuple[Tensor, dict[str, float]]
    unannotated = [p for p in signature.parameters.values() if p.annotation is p.empty]
    assert unannotated == []
    assert "aggregation" in list(signature.parameters)[-4:]
    assert OBJECTIVES[name].__doc__


# metrics of parts


@every_objective
@pytest.mark.parametrize("sizes", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_metrics_of_micro_batches_merge_to_those_of_the_batch(name, sizes):
    """One part has no sampled token at all: it must not count, nor hide the others."""
    logprobs, batch, advantages = ragged()
    options = {"clip_low": 0.1, "clip_high": 0.1}
    whole = OBJECTIVES[name](logprobs, batch, advantages, **options)[1]
    parts = [
        OBJECTIVES[name](logprobs[rows], batch.select(rows), advantages[rows], **options)[1]
        for rows in torch.arange(5).split(sizes)
    ]
    assert merge_metrics(parts) == pytest.approx(whole, rel=1e-6)
    assert list(merge_metrics(parts)) == list(whole)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_merging_hides_no_nan_whatever_the_order(order):
    """Python's max of 1 and NaN depends on which comes first."""
    parts = [
        {"ratio_max": 1.0, "ppo_kl": 1.0, "response_tokens": 1.0},
        {"ratio_max": NAN, "ppo_kl": NAN, "response_tokens": 1.0},
    ]
    merged = merge_metrics([parts[index] for index in order])
    assert math.isnan(merged["ratio_max"])
    assert math.isnan(merged["ppo_kl"])


def test_merging_takes_plain_means_of_other_numbers():
    assert merge_metrics([{"loss": 1.0}, {"loss": 2.0}]) == {"loss": 1.5}
    assert merge_metrics([]) == {}


@pytest.mark.parametrize("shape", [(2, 1), (1, 5), (5,), (1,), (5, 2)])
def test_nothing_broadcasts_in_silence(shape):
    batch = make_batch([[1, 1], [2]])
    mask, other = batch.response_mask[:, :5], torch.zeros(shape)
    assert mask.shape == (2, 5)
    with pytest.raises(ValueError, match=r"aggregate: losses are .* as the mask = \(2, 5\)"):
        aggregate(other, mask)
    with pytest.raises(ValueError, match=r"kl_estimates: ref_logprobs are .*\(2, 5\)"):
        kl_estimates(other, torch.zeros(2, 5))
