"""Bases with a signal for each turn: anchor states (GiGPO), entropies (EMPG), information (IGPO).

Step rewards, empty turns and missing rewards are treated as in `returns`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batch_contract import check_floats
from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.gates import refuse_unknown
from turncredit.credit.groups import SCALES, group_numbers, numbers_of_pairs, standardised
from turncredit.credit.returns import discounted_sums, real_turns, require, step_rewards
from turncredit.option_ranges import check_choice, check_range

GAINS = ("log_probability", "probability")


@BASES.add
def gigpo(
    batch: TurnBatch,
    *,
    omega: float = 1.0,
    gamma: float = 0.95,
    episode_scale: str = "std",
    step_scale: str = "mean",
    episode_over: str = "trajectories",
    eps: float = 1e-6,
    allow_singleton: bool = False,
) -> Tensor:
    """Episode advantage plus omega times the advantage among turns taken from the same state.

    [B, L], constant over a turn (GiGPO, arXiv 2505.10978).  Episode: the sum R of all rewards
    against its group.  Step: the discounted return-to-go against all turns of the group, own ones
    included, with the same `anchor_ids` (the state *before* the turn; cluster similar states
    before filling them in).  A state seen once gives 0, so without repeated states the result is
    the episode part, and without `turn_rewards`, which are optional, that is `grpo`.

    `episode_scale`, `step_scale`: "std" (over sample std + eps) or "mean" (subtract only).  The
    published code has both "std" or both "mean" by task.  `episode_over`: statistics of the
    episode part over "trajectories" (the paper) or over "steps" (the code's default: each turn
    counts its trajectory's R, so longer trajectories weigh more).

    Biased: both means contain the own return, how many turns share a state depends on the actions
    before it, and omega adds a second estimate of one gradient.  All-fail groups give 0.
    An allowed group of one still has a step part where it visits a state twice.
    Raises ValueError for a batch without `anchor_ids`.
    """
    require(batch, "gigpo", "anchor_ids")
    check_choice("gigpo", "episode_scale", episode_scale, SCALES)
    check_choice("gigpo", "step_scale", step_scale, SCALES)
    check_choice("gigpo", "episode_over", episode_over, ("steps", "trajectories"))
    check_range("gigpo", "share", gamma=gamma)
    check_range("gigpo", "number", omega=omega)
    check_range("gigpo", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    turns = real_turns(batch)
    known = turns.present & ~turns.missing[:, None]
    totals = discounted_sums(turns.rewards, 1.0)[:, :1].expand_as(turns.rewards)
    counted = known if episode_over == "steps" else (turns.indices == 0) & ~turns.missing[:, None]
    wide = groups[:, None].expand_as(totals)
    episode = _scaled(totals, wide, counted, episode_scale, eps)
    if episode_over == "trajectories":
        episode = episode[:, :1]
    anchors = batch.anchor_ids.gather(1, turns.order)
    states = numbers_of_pairs(wide, anchors)
    step = _scaled(discounted_sums(turns.rewards, gamma), states, known, step_scale, eps)
    return turns.over_tokens(batch, episode + omega * step)


@BASES.add
def empg(
    batch: TurnBatch,
    *,
    base: str = "grpo",
    base_options: Mapping[str, Any] | None = None,
    k: float = 1.0,
    k_next: float = 1.0,
    zeta: float = 0.05,
    centre_over: str = "turns",
    eps: float = 1e-8,
) -> Tensor:
    """A base advantage, damped at uncertain turns, plus a bonus for a certain next turn, centred.

    [B, L] (EMPG, arXiv 2509.09265): A * g(H_t) + zeta * f(H_{t+1}), minus its mean over the batch.
    H_t is the mean token entropy of turn t, min-max scaled over all turns of the batch; g =
    exp(-k H) over its own batch mean, f = exp(-k_next H); the last turn has no bonus.  `base` is
    any other base.  `centre_over`: the mean runs over "turns" (public re-implementations) or
    "tokens".  The paper's k, k_next and zeta are not known to us: the defaults are those of a
    public re-implementation.

    Biased: the bonus rewards certainty whatever the outcome, so all-fail groups do not give 0, and
    with equal entropies all turns but the last gain zeta.  A trajectory with a missing reward gives
    0 and its turns are left out of every statistic.
    Raises ValueError for an entropy that was not computed, and for k, k_next or zeta below 0.
    """
    check_choice("empg", "centre_over", centre_over, ("tokens", "turns"))
    check_range("empg", "scale", k=k, k_next=k_next, zeta=zeta, eps=eps)
    advantages = BASES[base](batch, **(base_options or {}))
    check_floats(f"base {base!r} returned", advantages, "[B, L]", tuple(batch.token_ids.shape))
    lengths = batch.turn_lengths()
    real = lengths > 0
    known = real & ~step_rewards(batch, real)[1][:, None]
    if not known.any():
        return torch.zeros_like(advantages)
    entropies = _scaled_entropies(batch, lengths, known, eps)
    damping = torch.where(known, (-k * entropies).exp(), 0.0)
    damping = damping * (known.sum() / damping.sum())
    bonus = torch.where(known, zeta * _next_turn((-k_next * entropies).exp(), real), 0.0)
    shaped = damping * (batch.turn_sums(advantages) / lengths.clamp(min=1)) + bonus
    counts = known if centre_over == "turns" else known * lengths
    mean = (shaped * counts).sum() / counts.sum()
    shift = torch.where(known, bonus - mean, 0.0).to(advantages.dtype)
    return advantages * batch.gather_turns(damping.to(advantages.dtype)) + batch.gather_turns(shift)


@BASES.add
def igpo(
    batch: TurnBatch,
    *,
    gamma: float = 1.0,
    std: str = "sample",
    eps: float = 1e-6,
    allow_singleton: bool = False,
) -> Tensor:
    """Discounted sum of standardised information gains and the standardised outcome.

    [B, L], constant over a turn (IGPO, arXiv 2510.14967, the paper's form).  `turn_rewards` hold
    the information gain of each turn (`information_gains` makes them from the probabilities of
    the gold answer); the last turn's is not used: the outcome `rewards` takes its place.  Gains of
    all turns of a group are standardised together, outcomes apart, then
    A_t = sum over k >= t of gamma^(k - t) * z_k.  The authors' code of November 2025 differs: no
    std, means by token position, and sums that restart after each observation.

    Biased: standardised by statistics that contain the own gains, and rewarded for information
    rather than outcome, so all-fail groups do not give 0 (unless their gains are all equal).
    A single-turn trajectory gets the advantage of `grpo`.
    Raises ValueError for a batch without `turn_rewards`.
    """
    require(batch, "igpo", "turn_rewards")
    check_choice("igpo", "std", std, ("population", "sample"))
    check_range("igpo", "share", gamma=gamma)
    check_range("igpo", "scale", eps=eps)
    groups = group_numbers(batch, allow_singleton=allow_singleton)
    turns = real_turns(batch, last_step=False)
    options = {"std": std, "eps": eps}
    outcomes = standardised(batch.rewards, groups, ~turns.missing, **options)
    gained = (turns.indices < turns.last[:, None]) & ~turns.missing[:, None]
    wide = groups[:, None].expand_as(gained)
    gains = _scaled(turns.rewards, wide, gained, "std", **options)
    ends = turns.indices == turns.last[:, None]
    return turns.over_tokens(
        batch, discounted_sums(torch.where(ends, outcomes[:, None], gains), gamma)
    )


def information_gains(
    batch: TurnBatch, probabilities: Tensor, *, gain: str = "probability"
) -> Tensor:
    """[B, T]: how much each turn raised the probability of the gold answer; 0 at the last turn.

    probabilities [B, T]: the policy's (length-normalised) probability of the gold answer, given
    everything *before* turn t.  `gain`: "probability", p(t + 1) - p(t) (the first version and the
    code), or "log_probability", the difference of logarithms (a later version).  Empty turns
    are skipped.  Give the result to `igpo` as `turn_rewards`.
    Raises ValueError for another shape or type, and naming row and turn for a value that is not a
    probability above 0.

    >>> from turncredit.batching import two_turns_and_one
    >>> information_gains(two_turns_and_one(), torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    check_choice("information_gains", "gain", gain, GAINS)
    real = batch.turn_lengths() > 0
    check_floats("information_gains: probabilities are", probabilities, "[B, T]", tuple(real.shape))
    wrong = real & ~((probabilities > 0) & (probabilities <= 1))
    if wrong.any():
        row, turn = wrong.nonzero()[0].tolist()
        value = probabilities[row, turn].item()
        raise ValueError(
            f"information_gains: probabilities, row {row}, turn {turn}: {value} is not in (0, 1]"
        )
    levels = torch.where(real, probabilities, 1.0).double()
    levels = levels.log() if gain == "log_probability" else levels
    following = _next_turn(levels, real, missing=torch.nan)
    gains = torch.where(real & ~following.isnan(), following - levels, 0.0)
    return gains.to(probabilities.dtype)


def _scaled(
    values: Tensor, groups: Tensor, known: Tensor, scale: str, eps: float, std: str = "sample"
) -> Tensor:
    """`standardised` for [B, T] values."""
    flat = (tensor.flatten() for tensor in (values, groups, known))
    return standardised(*flat, scale=scale, std=std, eps=eps).view_as(values)


def _scaled_entropies(batch: TurnBatch, lengths: Tensor, known: Tensor, eps: float) -> Tensor:
    """[B, T] float64: turn entropies, min-max scaled over the known turns; 0 elsewhere."""
    entropies = batch.turn_sums(batch.entropies) / lengths.clamp(min=1)
    refuse_unknown(entropies, known)
    low, high = entropies[known].min(), entropies[known].max()
    return torch.where(known, (entropies - low) / (high - low + eps), 0.0)


def _next_turn(values: Tensor, real: Tensor, missing: float = 0.0) -> Tensor:
    """[B, T]: the value of the next non-empty turn, `missing` where there is none."""
    columns = torch.arange(real.shape[1], device=real.device)
    after = torch.where(real, columns, real.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    after = pad(after[:, 1:], (0, 1), value=real.shape[1])
    return pad(values, (0, 1), value=missing).gather(1, after)
