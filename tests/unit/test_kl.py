"""KL estimators by enumeration: their mean, and the mean of their gradient as a loss.

Every check must also refuse the same estimator with its sign, or its ratio, turned round.
"""

import math

import pytest
import torch
from batches import make_batch, poison
from torch import Tensor

from turncredit.objectives import (
    AGGREGATIONS,
    KL_ESTIMATORS,
    aggregate,
    batch_totals,
    kl_estimates,
    kl_in_rewards,
    kl_penalty,
)

LOGITS = torch.tensor([0.7, -0.4, 0.1, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([-0.3, 0.9, 0.2, -0.5], dtype=torch.float64), 0)


def divergence(logprobs: Tensor, other: Tensor) -> Tensor:
    return (logprobs.exp() * (logprobs - other)).sum()


def expectations(estimate) -> tuple[float, Tensor]:
    """Mean over all outcomes, and mean of the gradient with respect to the logits.

    The outcome is given: as in a training loop, no gradient passes through the sampling.
    """
    logits = LOGITS.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    loss = (logprobs.detach().exp() * estimate(logprobs, REFERENCE)).sum()
    return loss.item(), torch.autograd.grad(loss, logits)[0]


def gradient_of(function) -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(function(torch.log_softmax(logits, 0)), logits)[0]


TRUE_KL = divergence(torch.log_softmax(LOGITS, 0), REFERENCE).item()
TOWARDS = gradient_of(lambda logprobs: divergence(logprobs, REFERENCE))
REVERSED = gradient_of(lambda logprobs: divergence(REFERENCE, logprobs))
NOTHING = torch.zeros_like(LOGITS)


def named(estimator: str, **options):
    return lambda logprobs, other: kl_estimates(logprobs, other, estimator=estimator, **options)


def swapped(estimator: str):
    """The classic mistake: d = log p - log ref."""
    return lambda logprobs, other: kl_estimates(other, logprobs, estimator=estimator)


def mean_is_right(estimate) -> bool:
    return math.isclose(expectations(estimate)[0], TRUE_KL, rel_tol=1e-10)


def gradient_is(estimate, expected: Tensor) -> bool:
    return torch.allclose(expectations(estimate)[1], expected, rtol=1e-10, atol=1e-12)


def test_the_example_tells_the_directions_apart():
    assert 0.2 < TRUE_KL < 1
    assert not torch.allclose(TOWARDS, REVERSED, rtol=0.1)
    assert TOWARDS.abs().max() > 0.1


@pytest.mark.parametrize("estimator", ["k1", "k3", "k1+", "k3+"])
def test_the_mean_is_the_divergence(estimator):
    assert mean_is_right(named(estimator))
    assert not mean_is_right(swapped(estimator))
    assert not mean_is_right(lambda *logprobs: -named(estimator)(*logprobs))


def test_k2_is_biased_and_close_for_close_policies():
    value, _ = expectations(named("k2"))
    assert not math.isclose(value, TRUE_KL, rel_tol=1e-3)
    near = torch.log_softmax(LOGITS + 0.01 * torch.tensor([1.0, -1.0, 0.5, 0.0]), 0)
    logprobs = torch.log_softmax(LOGITS, 0)
    mean = (logprobs.exp() * kl_estimates(logprobs, near, estimator="k2")).sum()
    assert mean.item() == pytest.approx(divergence(logprobs, near).item(), rel=0.02)


@pytest.mark.parametrize("estimator", ["k2", "k1+", "k3+"])
def test_the_gradient_as_a_loss_is_that_of_the_divergence(estimator):
    assert gradient_is(named(estimator), TOWARDS)
    assert not gradient_is(lambda *logprobs: -named(estimator)(*logprobs), TOWARDS)


def test_k1_as_a_loss_pulls_nowhere_and_k3_in_the_other_direction():
    assert gradient_is(named("k1"), NOTHING)
    assert gradient_is(named("k3"), REVERSED)
    assert not gradient_is(named("k3"), TOWARDS)
    assert not gradient_is(swapped("k3"), REVERSED)


@pytest.mark.parametrize(("plus", "plain"), [("k1+", "k1"), ("k3+", "k3")])
def test_plus_has_the_value_of_one_and_the_gradient_of_k2(plus, plain):
    gaps = torch.linspace(-30, 30, 121, dtype=torch.float64)
    logprobs = (-gaps).requires_grad_()
    values = kl_estimates(logprobs, torch.zeros_like(gaps), estimator=plus)
    expected = kl_estimates(logprobs, torch.zeros_like(gaps), estimator=plain)
    torch.testing.assert_close(values, expected)
    slopes = torch.autograd.grad(values.sum(), logprobs)[0]
    square = kl_estimates(logprobs, torch.zeros_like(gaps), estimator="k2")
    torch.testing.assert_close(slopes, torch.autograd.grad(square.sum(), logprobs)[0])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_k2_and_k3_are_never_negative_and_0_at_0(estimator):
    gaps = torch.linspace(-5, 5, 101)
    values = kl_estimates(-gaps, torch.zeros_like(gaps), estimator=estimator)
    assert (values >= 0).all()
    assert kl_estimates(torch.zeros(1), torch.zeros(1), estimator=estimator) == 0


def test_k3_keeps_its_digits_for_close_policies():
    """exp(d) - d - 1 in float32 is 0 or rounding noise at d = 1e-4."""
    found = kl_estimates(torch.tensor([-1e-4]), torch.zeros(1))
    assert found.item() == pytest.approx(5e-9, rel=1e-1)


def test_k3_is_bounded_by_its_limit_and_the_gap_by_20():
    logprobs = torch.tensor([-5.0, -50.0, -math.inf, 3.0], requires_grad=True)
    values = kl_estimates(logprobs, torch.zeros(4))
    assert values.tolist()[:3] == [10, 10, 10]
    values.sum().backward()
    assert logprobs.grad.tolist()[:3] == [0, 0, 0]
    assert logprobs.grad[3] > 0
    unbounded = kl_estimates(torch.tensor([-5.0]), torch.zeros(1), limit=math.inf)
    assert unbounded.item() == pytest.approx(math.exp(5) - 6, rel=1e-5)
    for estimator, bound in (("k1", 20), ("k1+", 20), ("k2", 200)):
        found = kl_estimates(torch.tensor([50.0]), torch.zeros(1), estimator=estimator)
        assert found.item() == pytest.approx(bound)


def test_unknown_estimators_and_limits_are_named():
    with pytest.raises(ValueError, match=r"kl_estimates: unknown estimator 'k4'; there are: k1"):
        kl_estimates(torch.zeros(1), torch.zeros(1), estimator="k4")
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(
            ValueError, match=f"kl_estimates: limit is {limit}; it must be a number above 0"
        ):
            kl_estimates(torch.zeros(1), torch.zeros(1), limit=limit)


# on a batch


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_the_penalty_ignores_what_was_not_sampled(estimator, mode):
    batch = make_batch([[2, 1], [0], [3]])
    options = {"estimator": estimator, "aggregation": mode, "max_length": 8}
    outcomes = []
    for given, logprobs in ((batch, batch.old_logprobs), poison(batch, batch.old_logprobs)):
        leaf = logprobs.clone().requires_grad_()
        loss, metrics = kl_penalty(leaf, given, **options)
        loss.backward()
        outcomes.append((loss.detach(), leaf.grad, torch.tensor(metrics["kl"])))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)
    assert (outcomes[0][1][~batch.response_mask] == 0).all()
    assert (outcomes[0][1][batch.response_mask] != 0).all()


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_penalties_of_micro_batches_add_up(mode):
    batch = make_batch([[2, 1], [0], [3], [1]])
    options = {"aggregation": mode, "max_length": 8, **batch_totals(batch)}
    whole = kl_penalty(batch.old_logprobs, batch, **options)[0]
    parts = [
        kl_penalty(batch.old_logprobs[rows], batch.select(rows), **options)[0]
        for rows in torch.arange(4).split([2, 1, 1])
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_the_penalty_of_nothing_is_0_and_its_mean_missing():
    batch = make_batch([[0]])
    loss, metrics = kl_penalty(batch.old_logprobs, batch)
    assert loss == 0
    assert math.isnan(metrics["kl"])


def test_rewards_lose_the_summed_estimates_of_their_trajectory():
    batch = make_batch([[2, 1], [0], [3]], rewards=[1.0, 0.5, math.nan])
    batch = poison(batch)[0]
    shaped = kl_in_rewards(batch, coefficient=0.1)
    gap = (batch.old_logprobs - batch.ref_logprobs)[0][batch.response_mask[0]].sum()
    assert shaped[0].item() == pytest.approx(1 - 0.1 * gap.item())
    assert shaped[1] == 0.5
    assert shaped[2].isnan()
    assert torch.equal(batch.rewards[:2], torch.tensor([1.0, 0.5]))
    assert kl_in_rewards(batch, coefficient=0.0)[:2].tolist() == [1.0, 0.5]


def test_the_token_mean_metric_is_the_token_mean_loss():
    batch = make_batch([[2, 1], [4]])
    loss, metrics = kl_penalty(batch.old_logprobs, batch)
    assert metrics["kl"] == pytest.approx(loss.item())
    estimates = kl_estimates(batch.old_logprobs, batch.ref_logprobs)
    assert loss == aggregate(estimates, batch.response_mask)


@pytest.mark.parametrize("function", [kl_penalty, kl_in_rewards])
def test_a_batch_without_a_reference_is_an_error(function):
    batch = make_batch([[1]]).replace(ref_logprobs=None)
    arguments = (batch.old_logprobs, batch) if function is kl_penalty else (batch,)
    with pytest.raises(ValueError, match="needs ref_logprobs, and this batch has none"):
        function(*arguments)


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs"])
def test_a_nan_logprob_does_not_pass_for_a_missing_reward(field):
    """At an observation it means nothing; a reward that was missing stays so."""
    batch = make_batch([[1], [2], [1]], rewards=[math.nan, 1.0, 0.0])
    for place, shown in ((batch.response_mask, True), (~batch.response_mask, False)):
        spoilt = getattr(batch, field).clone()
        spoilt[1, place[1]] = math.nan
        changed = batch.replace(**{field: spoilt})
        if shown:
            with pytest.raises(ValueError, match="kl_in_rewards: row 1 has a NaN log-prob"):
                kl_in_rewards(changed)
        else:
            assert kl_in_rewards(changed).isnan().tolist() == [True, False, False]
