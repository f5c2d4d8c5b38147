"""Base advantages from the outcome alone: one number per trajectory, before any turn weight.

Each function takes a batch and returns [B, L], 0 outside `response_mask`.  A new one needs
`@BASES.add` above it and nothing else.  Bases with step rewards or a critic: `returns`; with
anchor states, entropies or information gains: `steps`.

Rules of every group method: a group of equal rewards gets exactly 0.  A missing reward (NaN)
stays out of its group's statistics and gets 0; so does whoever is left alone.  A group of one
trajectory is a ValueError unless `allow_singleton`, then it gets 0, as in TRL (verl's `grpo` would
return the raw reward).  An infinite reward is a ValueError.  `success` and `turn_rewards` are not
read.
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.groups import (
    centred,
    group_numbers,
    known_rewards,
    standardised,
    whitened,
)
from turncredit.credit.tokens import over_tokens, sampled_tokens
from turncredit.methods import Methods
from turncredit.option_ranges import check_choice, check_range

BASES = Methods("base")
DIVISORS = ("population", "sample")


@BASES.add
def grpo(
    batch: TurnBatch, *, std: str = "sample", eps: float = 1e-6, allow_singleton: bool = False
) -> Tensor:
    """Reward minus group mean, over the group's standard deviation + eps (GRPO, arXiv 2402.03300).

    [B, L], constant over each trajectory, zero-sum in each group.  `std`: "sample" (n - 1, verl
    and TRL) or "population" (n, Klear-Reasoner's eq. 4).  eps is verl's; TRL adds 1e-4.

    Biased: the division weights groups by their inverse spread, and the own reward in the mean
    shrinks the rest by (n - 1) / n.

    >>> from turncredit.batching import two_turns_and_one
    >>> grpo(two_turns_and_one(), std="population")
    tensor([[-1.0000, -1.0000,  0.0000, -1.0000],
            [ 1.0000,  0.0000,  0.0000,  0.0000]])
    """
    check_choice("grpo", "std", std, DIVISORS)
    check_range("grpo", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    known = known_rewards(batch)
    return over_tokens(batch, standardised(batch.rewards, groups, known, std=std, eps=eps))


@BASES.add
def dr_grpo(batch: TurnBatch, *, allow_singleton: bool = False) -> Tensor:
    """Reward minus group mean, not divided by anything (Dr. GRPO, arXiv 2503.20783).

    [B, L], constant over each trajectory, zero-sum in each group.  The method's other half, a
    constant denominator, is the aggregation `seq_mean_token_sum_norm`.

    Expectation: (n - 1) / n times the policy gradient, for n known rewards in each group.

    >>> from turncredit.batching import two_turns_and_one
    >>> dr_grpo(two_turns_and_one())
    tensor([[-0.5000, -0.5000,  0.0000, -0.5000],
            [ 0.5000,  0.0000,  0.0000,  0.0000]])
    """
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    deviations, _, _ = centred(batch.rewards, groups, known_rewards(batch))
    return over_tokens(batch, deviations)


@BASES.add
def dapo(
    batch: TurnBatch, *, std: str = "sample", eps: float = 1e-6, allow_singleton: bool = False
) -> Tensor:
    """The advantage of `grpo`: DAPO (arXiv 2503.14476) changes what stands around it.

    That is: clip-higher (`ppo_clip(clip_high=0.28)`), the aggregation `token_mean`, dynamic
    sampling and the soft overlong penalty.  Options and result as for `grpo`, bit for bit.
    """
    return grpo(batch, std=std, eps=eps, allow_singleton=allow_singleton)


@BASES.add
def rloo(batch: TurnBatch, *, allow_singleton: bool = False) -> Tensor:
    """Reward minus the mean reward of the *other* trajectories of the group (arXiv 2402.14740).

    [B, L], constant over each trajectory: (R - group mean) * n / (n - 1), n known rewards.

    Unbiased: the baseline does not contain the own reward, so the expectation of
    sum(A * grad log pi) is the exact policy gradient.

    >>> from turncredit.batching import two_turns_and_one
    >>> rloo(two_turns_and_one())
    tensor([[-1., -1.,  0., -1.],
            [ 1.,  0.,  0.,  0.]])
    """
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    deviations, counts, _ = centred(batch.rewards, groups, known_rewards(batch))
    factors = counts / (counts - 1).clamp(min=1)
    return over_tokens(batch, deviations * factors[groups])


@BASES.add
def reinforce_pp(batch: TurnBatch, *, gamma: float = 1.0, eps: float = 1e-8) -> Tensor:
    """Discounted outcome at each token, whitened over all sampled tokens of the batch.

    [B, L]: gamma^(sampled tokens that follow) * R, then (x - mean) / sqrt(variance + eps), the
    variance with n - 1 (REINFORCE++, arXiv 2501.03262, as in verl).  Observations do not count as
    time.  Token-weighted: long trajectories weigh more.  Zero only when all outcomes of the
    *batch* are equal (and gamma is 1); groups play no part.  The original also puts a
    per-token KL penalty into the reward: that belongs to the caller.

    Biased: mean and scale of the batch contain the own return.

    >>> from turncredit.batching import two_turns_and_one
    >>> reinforce_pp(two_turns_and_one())
    tensor([[-0.5000, -0.5000,  0.0000, -0.5000],
            [ 1.5000,  0.0000,  0.0000,  0.0000]])
    """
    check_range("reinforce_pp", "share", gamma=gamma)
    check_range("reinforce_pp", "scale", eps=eps)
    outcomes = torch.where(known_rewards(batch), batch.rewards.double(), torch.nan)
    return _whitened_returns(batch, outcomes, gamma=gamma, eps=eps)


@BASES.add
def reinforce_pp_baseline(
    batch: TurnBatch, *, eps: float = 1e-8, allow_singleton: bool = False
) -> Tensor:
    """Reward minus group mean, whitened over all sampled tokens of the batch (as in verl).

    [B, L], constant over each trajectory.  A group of equal rewards gets the batch's common
    shift, which is 0 only when the token-weighted mean is; so does an allowed group of one.

    >>> from turncredit.batching import two_turns_and_one
    >>> reinforce_pp_baseline(two_turns_and_one())
    tensor([[-0.5000, -0.5000,  0.0000, -0.5000],
            [ 1.5000,  0.0000,  0.0000,  0.0000]])
    """
    check_range("reinforce_pp_baseline", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    known = known_rewards(batch)
    deviations, _, _ = centred(batch.rewards, groups, known)
    return _whitened_returns(batch, torch.where(known, deviations, torch.nan), gamma=1.0, eps=eps)


def _whitened_returns(batch: TurnBatch, outcomes: Tensor, *, gamma: float, eps: float) -> Tensor:
    """Outcomes [B], NaN where missing, to whitened token returns [B, L]."""
    tokens = sampled_tokens(batch)
    returns = outcomes.index_select(0, tokens.rows)
    if gamma != 1:
        following = tokens.counts.index_select(0, tokens.rows) - 1 - tokens.ranks
        exponents = torch.arange(batch.response_mask.shape[1], device=returns.device)
        returns = returns * torch.pow(gamma, exponents.double()).index_select(0, following)
    return tokens.scatter(batch, whitened(returns, ~returns.isnan(), eps=eps))
