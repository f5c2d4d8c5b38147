"""Bases with rewards along the way: step rewards, returns and a critic's values.

`batch.turn_rewards` [B, T] are the rewards of the turns *besides* the outcome in `batch.rewards`,
which is paid at the trajectory's last turn.  Turns without sampled tokens do not exist here:
their step rewards are ignored, they take no time, and later turns move up by one.  A trajectory
with a missing outcome, or a missing (NaN) reward at one of its turns, is left out of every
statistic and gets advantage 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.groups import (
    SCALES,
    centred,
    group_numbers,
    known_rewards,
    standardised,
    whitened,
)
from turncredit.credit.tokens import SampledTokens, sampled_tokens
from turncredit.option_ranges import check_choice, check_range


@BASES.add
def gae(batch: TurnBatch, *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> Tensor:
    """Generalised advantage estimation over sampled tokens (PPO; arXiv 1506.02438 eq. 16).

    [B, L], free per token: delta = r + gamma * V(next) - V, A = delta + gamma * lam * A(next).
    "Next" is the next *sampled* token: observations are skipped and discount nothing.  Rewards:
    the outcome at the last sampled token, and `turn_rewards`, if the batch has them, at the last
    token of their turns.  `whiten`: subtract mean, divide by std over all sampled tokens of the
    batch (variance with n - 1 and + 1e-8, as verl does).  Groups play no part.

    Expectation: with lam = 1, gamma = 1 and no whitening the values are a baseline of the state
    before the token, hence unbiased; lam < 1 leans on the critic, whitening mixes in the own
    return.  Raises ValueError for a batch without `values`, and for one that is not finite.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> gae(batch.replace(values=torch.full((2, 4), 0.25)), lam=0.5, whiten=False)
    tensor([[-0.0625, -0.1250,  0.0000, -0.2500],
            [ 0.7500,  0.0000,  0.0000,  0.0000]])
    """
    require(batch, "gae", "values")
    check_range("gae", "share", gamma=gamma, lam=lam)
    check_range("gae", "flag", whiten=whiten)
    tokens = sampled_tokens(batch)
    rewards, missing = _token_rewards(batch, tokens.rows)
    known = ~missing.index_select(0, tokens.rows)
    dense = rewards.new_zeros(2, len(missing), int(tokens.counts.amax()) if len(missing) else 0)
    cells = tokens.rows * dense.shape[2] + tokens.ranks
    given = torch.stack([rewards, _token_values(batch, tokens, known)])
    paid, values = dense.view(2, -1).index_copy_(1, cells, given).view_as(dense)
    deltas = paid - values + gamma * pad(values, (0, 1))[:, 1:]
    advantages = discounted_sums(deltas, gamma * lam).flatten().index_select(0, cells)
    if whiten:
        advantages = whitened(advantages, known)
    return tokens.scatter(batch, torch.where(known, advantages, 0.0))


@BASES.add
def mt_grpo(
    batch: TurnBatch,
    *,
    gamma: float = 1.0,
    scale: str = "std",
    std: str = "sample",
    eps: float = 1e-6,
    allow_singleton: bool = False,
) -> Tensor:
    """Return-to-go of each turn, normalised among the group's trajectories that have that turn.

    [B, L], constant over a turn, zero-sum at every turn index of a group: the step-reward form of
    GRPO that users of verl, NeMo-RL and prime-rl ask for.  `scale`: "std" or "mean" (subtract
    only); `std`: "sample" or "population".  A turn that only one trajectory has gets 0.

    Biased when the policy chooses when to stop: the mean at turn t has as many terms n_t as
    trajectories get there, so with `scale="mean"` and gamma 1 the gradient of turn t is shrunk by
    E[(n_t - 1) / n_t], more for rarely reached turns.  `turn_returns` is not.
    Raises ValueError for a batch without `turn_rewards`.
    """
    require(batch, "mt_grpo", "turn_rewards")
    check_choice("mt_grpo", "scale", scale, SCALES)
    check_choice("mt_grpo", "std", std, ("population", "sample"))
    check_range("mt_grpo", "share", gamma=gamma)
    check_range("mt_grpo", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    turns = real_turns(batch)
    known = turns.present & ~turns.missing[:, None]
    returns = discounted_sums(turns.rewards, gamma)
    peers = groups[:, None] * returns.shape[1] + turns.indices
    flat = standardised(
        returns.flatten(), peers.flatten(), known.flatten(), scale=scale, std=std, eps=eps
    )
    return turns.over_tokens(batch, flat.view_as(returns))


@BASES.add
def turn_returns(
    batch: TurnBatch, *, gamma: float = 1.0, stopped: str = "last", allow_singleton: bool = False
) -> Tensor:
    """Return-to-go of each turn minus the mean over the *other* trajectories of the group.

    [B, L], constant over a turn.  Every other trajectory counts at every turn index, also beyond
    its own end: with `stopped` "last" by the return of its last turn, with "zero" by 0.

    Unbiased although the policy chooses when to stop: the baseline of turn t is a function of t
    and of other, independently sampled trajectories, and whether the own turn t exists is settled
    before its tokens are drawn.  With gamma = 1 the expectation of sum(A * grad log pi) is the
    exact gradient of the expected sum of rewards; with gamma < 1 that of the usual surrogate, the
    discounted return-to-go without gamma^t in front.  "last" has less variance: without step
    rewards and with gamma = 1 it is `rloo`, so that all-fail and all-success groups give 0 (with
    "zero", an all-success group of unequal lengths does not).  Not zero-sum.

    Raises ValueError for a batch without `turn_rewards`.
    """
    require(batch, "turn_returns", "turn_rewards")
    check_choice("turn_returns", "stopped", stopped, ("last", "zero"))
    check_range("turn_returns", "share", gamma=gamma)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    turns = real_turns(batch)
    returns = discounted_sums(turns.rewards, gamma)
    if stopped == "last" and returns.numel():
        returns = returns.gather(1, torch.minimum(turns.indices, turns.last[:, None]))
    peers = (groups[:, None] * returns.shape[1] + turns.indices).flatten()
    known = ~turns.missing[:, None].expand_as(returns)
    deviations, counts, _ = centred(returns.flatten(), peers, known.flatten())
    factors = counts / (counts - 1).clamp(min=1)
    return turns.over_tokens(batch, (deviations * factors[peers]).view_as(returns))


class RealTurns(NamedTuple):
    """The non-empty turns of each trajectory, moved to the left: T columns, the rest padding."""

    order: Tensor
    """[B, T] int64: the turn that stands in each column."""
    indices: Tensor
    """[B, T] int64: 0 .. T - 1 in every row."""
    present: Tensor
    """[B, T] bool: False in the padding."""
    last: Tensor
    """[B] int64: column of the last turn, 0 without any."""
    rewards: Tensor
    """[B, T] float64: step rewards plus the outcome in column `last`; 0 in padding and missing."""
    missing: Tensor
    """[B] bool: the outcome or one of the step rewards is NaN."""

    def over_tokens(self, batch: TurnBatch, values: Tensor) -> Tensor:
        """[B, T] in these columns to [B, L]; 0 at missing trajectories and outside the mask."""
        values = torch.where(self.missing[:, None], 0.0, values).to(batch.rewards.dtype)
        return batch.gather_turns(torch.zeros_like(values).scatter(1, self.order, values))


def real_turns(batch: TurnBatch, *, last_step: bool = True) -> RealTurns:
    """The batch's non-empty turns with their rewards; ValueError for an infinite step reward.

    A batch without `turn_rewards` has the outcome alone.  `last_step` False: the step reward of
    the last turn is not read, whatever it is.
    """
    real = batch.turn_lengths() > 0
    order = (~real).to(torch.int8).argsort(dim=1, stable=True)
    indices = torch.arange(real.shape[1], device=real.device).expand_as(real)
    count = real.sum(dim=1)
    last = (count - 1).clamp(min=0)
    later = real.flip(1).cumsum(dim=1).flip(1)  # non-empty turns from this one on
    steps, missing = step_rewards(batch, real if last_step else real & (later > 1))
    outcome = torch.where(missing, 0.0, batch.rewards.double())
    rewards = torch.where(missing[:, None], 0.0, steps).gather(1, order)
    rewards = torch.where(indices == last[:, None], rewards + outcome[:, None], rewards)
    return RealTurns(order, indices, indices < count[:, None], last, rewards, missing)


def step_rewards(batch: TurnBatch, read: Tensor) -> tuple[Tensor, Tensor]:
    """`turn_rewards` [B, T] float64, 0 where `read` is False; missing trajectories [B]."""
    missing = ~known_rewards(batch)
    if batch.turn_rewards is None:
        return torch.zeros(read.shape, dtype=torch.float64, device=read.device), missing
    steps = torch.where(read, batch.turn_rewards, 0.0).double()
    if steps.isinf().any():
        row, turn = steps.isinf().nonzero()[0].tolist()
        raise ValueError(f"TurnBatch.turn_rewards: row {row}, turn {turn} is infinite")
    return steps, missing | steps.isnan().any(dim=1)


def discounted_sums(values: Tensor, discount: float) -> Tensor:
    """[B, N] to [B, N]: sum over k >= t of discount^(k - t) * values[:, k], in log2(N) passes.

    Each pass doubles the reach of the sums; zeros on the right change no bit of the result.

    >>> discounted_sums(torch.tensor([[4.0, 2.0, 8.0]]), 0.5)
    tensor([[7., 6., 8.]])
    """
    reach = 1
    while reach < values.shape[1]:
        values = values + discount**reach * pad(values[:, reach:], (0, reach))
        reach *= 2
    return values


def require(batch: TurnBatch, method: str, *names: str) -> None:
    """ValueError naming the first of the optional fields `names` that the batch does not have."""
    for name in names:
        if getattr(batch, name) is None:
            raise ValueError(f"{method} needs TurnBatch.{name}, and this batch has none")


def _token_values(batch: TurnBatch, tokens: SampledTokens, known: Tensor) -> Tensor:
    """The critic's value before each sampled token [N], float64; finite where `known` [N]."""
    values = tokens.gather(batch.values).double()
    wrong = known & ~values.isfinite()
    if wrong.any():
        row = int(tokens.rows[wrong][0])
        raise ValueError(f"TurnBatch.values: row {row} is not finite at a sampled token")
    return values


def _token_rewards(batch: TurnBatch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Reward of each sampled token [N] float64 in row order, and missing trajectories [B]."""
    slots = batch.turn_slots
    ends_turn = slots != pad(slots, (0, 1), value=-1)[1:]
    ends_row = rows != pad(rows, (0, 1), value=-1)[1:]
    steps, missing = step_rewards(batch, batch.turn_lengths() > 0)
    outcome = torch.where(missing, 0.0, batch.rewards.double())
    paid = torch.where(ends_turn, torch.where(missing[:, None], 0.0, steps).flatten()[slots], 0.0)
    return torch.where(ends_row, paid + outcome[rows], paid), missing
