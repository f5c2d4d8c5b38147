"""Exact expected gradient of bases, by enumeration, where the policy decides when to stop.

Two turns, three trajectories, every group of 2 to 4: expected sum(A * grad log pi) against the
exact gradient, or the stated bias.
"""

import math
from itertools import product

import pytest
import torch
from batches import make_batch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES

TRAJECTORIES = ((0,), (1, 0), (1, 1))
"""Actions: turn 0 stops (0) or goes on (1); turn 1 chooses between two endings."""

STEP_REWARDS = ((0.3,), (-0.5, 0.2), (-0.5, -0.1))
OUTCOMES = (0.1, 1.0, -0.7)


def to_go(rewards: list[float], gamma: float) -> list[float]:
    return [
        sum(gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))
        for t in range(len(rewards))
    ]


def log_probability(logits: Tensor, trajectory: tuple[int, ...]) -> Tensor:
    """[turns]: log pi of each action; a logit for each of the two decisions."""
    signs = torch.tensor([2.0 * action - 1 for action in trajectory])
    return torch.nn.functional.logsigmoid(signs * logits[: len(trajectory)])


def exact_gradient(
    logits: Tensor, gamma: float = 1.0, outcomes: tuple[float, ...] = OUTCOMES
) -> Tensor:
    """Sum over trajectories of p * sum_t (return-to-go at t) * grad log pi(action t).

    For gamma = 1 the gradient of the expected sum of rewards, which `test_exact_gradient` checks.
    """
    logits = logits.clone().requires_grad_()
    surrogate = 0.0
    for trajectory, steps, outcome in zip(TRAJECTORIES, STEP_REWARDS, outcomes, strict=True):
        logp = log_probability(logits, trajectory)
        rewards = [*steps[:-1], steps[-1] + outcome]
        returns = torch.tensor(to_go(rewards, gamma))
        surrogate = surrogate + logp.sum().exp().detach() * (returns * logp).sum()
    return torch.autograd.grad(surrogate, logits)[0]


def expected_gradient(
    base: str,
    logits: Tensor,
    size: int,
    outcomes: tuple[float, ...] = OUTCOMES,
    values: tuple[float, float] = (0.0, 0.0),
    **options,
) -> Tensor:
    """E over all groups of `size` of mean_i sum_t A(i, t) * grad log pi."""
    logits = logits.clone().requires_grad_()
    rows = torch.tensor(list(product(range(3), repeat=size))).flatten()
    batch = every_group(rows, size, outcomes, values)
    credit = torch.zeros(len(rows), 2)
    credit[batch.turn_lengths() > 0] = BASES[base](batch, **options)[batch.response_mask]
    table = torch.zeros(3, 2)
    for number, trajectory in enumerate(TRAJECTORIES):
        table[number, : len(trajectory)] = log_probability(logits, trajectory)
    chances = table.sum(dim=1).exp().detach()[rows].view(-1, size).prod(dim=1)
    assert chances.sum().item() == pytest.approx(1)
    surrogate = chances.repeat_interleave(size) * (credit * table[rows]).sum(dim=1) / size
    return torch.autograd.grad(surrogate.sum(), logits)[0]


def every_group(
    rows: Tensor, size: int, outcomes: tuple[float, ...], values: tuple[float, float]
) -> TurnBatch:
    """The trajectories `rows` in groups of `size`, one token a turn."""
    batch = make_batch(
        [[1] * len(TRAJECTORIES[row]) for row in rows],
        rewards=[0.0] * len(rows),
        groups=(torch.arange(len(rows)) // size).tolist(),
    )
    steps = torch.zeros(3, 2)
    for number, rewards in enumerate(STEP_REWARDS):
        steps[number, : len(rewards)] = torch.tensor(rewards)
    return batch.replace(
        turn_rewards=steps[rows],
        rewards=torch.tensor(outcomes)[rows],
        values=batch.gather_turns(torch.tensor(values).expand(len(rows), 2)),
    )


@pytest.fixture
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=1e-12)


LOGITS = [(0.4, -0.9), (-1.5, 0.7), (2.0, 0.0)]
every_policy = pytest.mark.parametrize("logits", LOGITS)


@pytest.mark.usefixtures("double_precision")
@every_policy
def test_exact_gradient(logits):
    logits = torch.tensor(logits).requires_grad_()
    value = sum(
        log_probability(logits, trajectory).sum().exp() * (sum(steps) + outcome)
        for trajectory, steps, outcome in zip(TRAJECTORIES, STEP_REWARDS, OUTCOMES, strict=True)
    )
    (gradient,) = torch.autograd.grad(value, logits)
    assert close(exact_gradient(logits.detach()), gradient)


@pytest.mark.usefixtures("double_precision")
@every_policy
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("stopped", ["last", "zero"])
@pytest.mark.parametrize("gamma", [1.0, 0.6])
def test_turn_returns_is_unbiased_although_the_policy_decides_when_to_stop(
    logits, size, stopped, gamma
):
    """gamma = 1: the exact gradient.  gamma < 1: the baseline still adds no bias."""
    logits = torch.tensor(logits)
    found = expected_gradient("turn_returns", logits, size, stopped=stopped, gamma=gamma)
    assert close(found, exact_gradient(logits, gamma))


@pytest.mark.usefixtures("double_precision")
@every_policy
@pytest.mark.parametrize("size", [2, 3, 4])
def test_mt_grpo_shrinks_each_turn_by_how_many_get_there(logits, size):
    """Given the own arrival, n_t - 1 is binomial: the factor is E[(n_t - 1) / n_t]."""
    logits = torch.tensor(logits)
    go = torch.sigmoid(logits[0]).item()
    chances = [math.comb(size - 1, k) * go**k * (1 - go) ** (size - 1 - k) for k in range(size)]
    late = sum(chance * k / (k + 1) for k, chance in enumerate(chances))
    factors = torch.tensor([(size - 1) / size, late])
    assert factors[1] < factors[0]
    found = expected_gradient("mt_grpo", logits, size, scale="mean")
    assert close(found, factors * exact_gradient(logits))


@pytest.mark.usefixtures("double_precision")
def test_mt_grpo_can_point_the_wrong_way_where_turn_returns_does_not():
    """One logit for both decisions: turn 0 says less, turn 1 says more, and turn 1 is damped."""
    logits, outcomes = torch.tensor([-1.0, -1.0]), (0.9, 0.0, 4.0)
    exact = exact_gradient(logits, outcomes=outcomes)
    biased = expected_gradient("mt_grpo", logits, 2, outcomes, scale="mean")
    unbiased = expected_gradient("turn_returns", logits, 2, outcomes)
    assert exact.prod() < 0  # the turns disagree
    assert close(unbiased, exact)
    assert exact.sum() > 0 > biased.sum()


@pytest.mark.usefixtures("double_precision")
@every_policy
@pytest.mark.parametrize("size", [2, 3])
def test_rloo_is_unbiased_and_dr_grpo_shrinks_by_one_over_n(logits, size):
    """Outcomes alone: the step rewards of the problem are moved into them."""
    logits = torch.tensor(logits)
    sums = tuple(
        sum(steps) + outcome for steps, outcome in zip(STEP_REWARDS, OUTCOMES, strict=True)
    )
    assert close(expected_gradient("rloo", logits, size, sums), exact_gradient(logits))
    shrunk = (size - 1) / size * exact_gradient(logits)
    assert close(expected_gradient("dr_grpo", logits, size, sums), shrunk)


@pytest.mark.usefixtures("double_precision")
@every_policy
def test_gae_is_unbiased_with_any_critic_at_lambda_one_and_with_the_true_one_always(logits):
    logits = torch.tensor(logits)
    anything = (0.37, -1.9)
    found = expected_gradient("gae", logits, 2, values=anything, whiten=False)
    assert close(found, exact_gradient(logits))
    first, second = torch.sigmoid(logits).tolist()
    late = second * (-0.1 - 0.7) + (1 - second) * (0.2 + 1.0)
    true = ((1 - first) * (0.3 + 0.1) + first * (-0.5 + late), late)
    for lam in (0.0, 0.5, 1.0):
        found = expected_gradient("gae", logits, 2, values=true, lam=lam, whiten=False)
        assert close(found, exact_gradient(logits))
    wrong = expected_gradient("gae", logits, 2, values=anything, lam=0.5, whiten=False)
    assert not close(wrong, exact_gradient(logits))
