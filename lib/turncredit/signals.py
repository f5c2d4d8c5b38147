"""Per-turn and per-batch measurements: entropies, surprisals, importance ratios, divergences.

[B, T] is by trajectory and turn; `turn_index_means` makes of it one number per turn index, as the
slides plot.  A turn without sampled tokens has no value: NaN, never 0; so has one with a NaN at a
sampled token.  The slides give no formulas; the definitions are this project's reading.  Natural
logarithms.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batching import TurnBatch

if TYPE_CHECKING:  # signals must be importable with torch alone
    from turncredit.records import Trajectory

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clipped to +-20 before exp, as verl does; no gradient passes beyond."""
DIVERGENCES = ("k1", "k3")
LEVELS = ("token", "turn")


def turn_means(batch: TurnBatch, values: Tensor) -> Tensor:
    """[B, L] to [B, T]: mean over the sampled tokens of each turn, NaN for an empty turn.

    Differentiable.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> turn_means(batch, batch.entropies)
    tensor([[0.3000, 0.1000],
            [0.3000,    nan]])
    """
    lengths = batch.turn_lengths()
    means = batch.turn_sums(values) / lengths.clamp(min=1)
    return torch.where(lengths > 0, means, torch.nan).to(values.dtype)


def turn_index_means(values: Tensor) -> Tensor:
    """[B, T] to [T]: mean over the trajectories that have a value at a turn, NaN without any.

    >>> turn_index_means(torch.tensor([[0.3, 0.1, torch.nan], [0.5, torch.nan, torch.nan]]))
    tensor([0.4000, 0.1000,    nan])
    """
    return values.nanmean(dim=0)


def turn_entropies(batch: TurnBatch) -> Tensor:
    """[B, T], nats: response entropy, the mean token entropy of each whole turn."""
    return turn_means(batch, batch.entropies)


def first_k_entropies(batch: TurnBatch, ks: Sequence[int]) -> Tensor:
    """[B, T, K], nats: mean entropy of each turn's first min(k, length) tokens, for k in `ks`.

    Only the first max(ks) tokens of each turn are read.  NaN where the turn is empty or has an
    entropy not computed among them.  Raises ValueError for a k below 1.

    >>> from turncredit.batching import two_turns_and_one
    >>> first_k_entropies(two_turns_and_one(), [1, 2])[0]
    tensor([[0.4000, 0.3000],
            [0.1000, 0.1000]])
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"first_k_entropies: ks are {list(ks)}; need at least one k, each >= 1")
    lengths = batch.turn_lengths()
    sums = _opening_sums(batch, lengths.flatten(), max(ks))
    counts = torch.minimum(lengths.view(-1, 1), torch.tensor(list(ks), device=lengths.device))
    means = sums.gather(1, counts) / counts  # 0 / 0, an empty turn, is NaN
    return means.view(*lengths.shape, len(ks)).to(batch.entropies.dtype)


def _opening_sums(batch: TurnBatch, lengths: Tensor, k: int) -> Tensor:
    """[B * T, w + 1] float64: sums of the first 0, 1, ... w entropies of each turn, w <= k."""
    width = min(k, int(lengths.max())) if lengths.numel() else 0
    ranks = torch.arange(width, device=lengths.device)
    firsts = (lengths.cumsum(0) - lengths)[:, None]
    places = batch.spans.places
    chosen = places[(firsts + ranks).clamp(max=len(places) - 1)]
    entropies = torch.where(ranks < lengths[:, None], batch.entropies.flatten()[chosen], 0.0)
    return pad(entropies.double().cumsum(1), (1, 0))


def total_entropy(batch: TurnBatch) -> float:
    """Nats: mean entropy over all sampled tokens of the batch (token mean); NaN without any."""
    return _sampled_mean(batch, batch.entropies)


def turn_surprisals(
    batch: TurnBatch, logprobs: Tensor | None = None, *, per_token: bool = False
) -> Tensor:
    """[B, T], nats: minus the log-prob of each turn's sampled tokens, NaN where empty.

    AEM's response surprisal, the sum over the tokens; with `per_token` their mean.  logprobs:
    [B, L], `batch.old_logprobs` unless given; differentiable in them.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_surprisals(two_turns_and_one())
    tensor([[2., 1.],
            [1., nan]])
    """
    chosen = batch.old_logprobs if logprobs is None else _checked("logprobs", logprobs, batch)
    if per_token:
        return turn_means(batch, -chosen)
    sums = batch.turn_sums(-chosen)
    return torch.where(batch.turn_lengths() > 0, sums, torch.nan).to(chosen.dtype)


def turn_divergences(
    batch: TurnBatch, logprobs: Tensor | None = None, *, estimator: str = "k1"
) -> Tensor:
    """[B, T], nats: divergence of the policy from the reference, mean over each turn's tokens.

    With d = log ref - log p of a token, clipped to +-20: "k1" is -d, "k3" is exp(d) - d - 1
    (Schulman, "Approximating KL divergence"); no limit on k3, unlike in a loss.  logprobs:
    [B, L], `batch.old_logprobs` unless given; differentiable in them.  NaN where empty.
    Raises ValueError for another estimator, or when the batch has no `ref_logprobs`.
    """
    if estimator not in DIVERGENCES:
        raise ValueError(f"estimator is {estimator!r}; need one of {', '.join(DIVERGENCES)}")
    reference = _field(batch, "ref_logprobs", "turn_divergences")
    chosen = batch.old_logprobs if logprobs is None else _checked("logprobs", logprobs, batch)
    gap = (reference - chosen).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return turn_means(batch, -gap if estimator == "k1" else torch.expm1(gap) - gap)


def turn_ratios(batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """[B, T]: exp of the mean token log-ratio of each turn, NaN where empty.

    logprobs: [B, L] under the current policy; differentiable in it.  The mean log-ratio is
    clipped to +-20.

    >>> from turncredit.batching import two_turns_and_one
    >>> turn_ratios(two_turns_and_one(), torch.full((2, 4), -0.5))
    tensor([[1.6487, 1.6487],
            [1.6487,    nan]])
    """
    means = turn_means(batch, _checked("logprobs", logprobs, batch) - batch.old_logprobs)
    return means.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def turn_outside_shares(
    batch: TurnBatch, logprobs: Tensor, *, eps: float = 0.2, level: str = "token"
) -> Tensor:
    """[B, T]: share of each turn's tokens whose ratio lies outside 1 +- eps, NaN where empty.

    At level "turn" it is the turn's own ratio that lies outside (1) or not (0), so that
    `turn_index_means` gives the share of trajectories.  logprobs: [B, L] under the current policy.
    Raises ValueError for another level or a negative eps.

    >>> from turncredit.batching import two_turns_and_one
    >>> logprobs = torch.tensor([[-0.5, -1.0, 0.0, -1.1], [-1.3, 0.0, 0.0, 0.0]])
    >>> turn_outside_shares(two_turns_and_one(), logprobs)
    tensor([[0.5000, 0.0000],
            [1.0000,    nan]])
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}; need one of {', '.join(LEVELS)}")
    _check_range("eps", eps)
    of_turns = level == "turn"
    ratios = turn_ratios(batch, logprobs) if of_turns else _token_ratios(batch, logprobs)
    outside = ((ratios < 1 - eps) | (ratios > 1 + eps)).to(ratios.dtype)
    outside = outside.masked_fill(ratios.isnan(), torch.nan)
    return outside if of_turns else turn_means(batch, outside)


def turn_clip_fractions(
    batch: TurnBatch,
    logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """[B, T]: share of each turn's tokens whose loss the clip of PPO raises, NaN where empty.

    Only the pessimistic side counts, as in verl: a ratio above 1 + clip_high with a positive
    advantage, or below 1 - clip_low with a negative one.  logprobs, advantages: [B, L].
    Raises ValueError for a negative clip range.

    >>> from turncredit.batching import two_turns_and_one
    >>> logprobs = torch.tensor([[-0.5, -1.5, 0.0, -1.1], [-1.3, 0.0, 0.0, 0.0]])
    >>> turn_clip_fractions(two_turns_and_one(), logprobs, torch.ones(2, 4))
    tensor([[0.5000, 0.0000],
            [0.0000,    nan]])
    """
    _check_range("clip_low", clip_low)
    _check_range("clip_high", clip_high)
    credit = _checked("advantages", advantages, batch)
    ratios = _token_ratios(batch, logprobs)
    above, below = (ratios > 1 + clip_high) & (credit > 0), (ratios < 1 - clip_low) & (credit < 0)
    clipped = (above | below).to(ratios.dtype)
    return turn_means(batch, clipped.masked_fill((ratios * credit).isnan(), torch.nan))


def _token_ratios(batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """[B, L], without gradient: what is measured from it is counted."""
    log_ratio = _checked("logprobs", logprobs, batch).detach() - batch.old_logprobs
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _check_range(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} is {value}; need a number of at least 0")


def _checked(name: str, values: Tensor, batch: TurnBatch) -> Tensor:
    """`values` if they are [B, L]; a [B] or [B, 1] tensor would broadcast in silence."""
    wanted = tuple(batch.response_mask.shape)
    if values.shape != wanted:
        raise ValueError(f"{name} have shape {tuple(values.shape)}, not [B, L] = {wanted}")
    return values


def _field(batch: TurnBatch, name: str, owner: str) -> Tensor:
    value = getattr(batch, name)
    if value is None:
        raise ValueError(f"{owner} needs {name}, and this batch has none")
    return value


def mismatch(batch: TurnBatch) -> dict[str, float]:
    """How far the sampling engine is from the training engine, over all sampled tokens.

    `mean_abs_prob_diff`: mean of abs(exp(rollout) - exp(old)), verl's rollout_probs_diff_mean.
    `mean_abs_logprob_diff`: mean of abs(rollout - old).  `k3_kl`: mean of exp(d) - d - 1 with
    d = old - rollout, estimating KL(rollout, old).  All NaN without sampled tokens.
    Raises ValueError when the batch has no `rollout_logprobs`.
    """
    sampling, mask = _field(batch, "rollout_logprobs", "mismatch"), batch.response_mask
    old = torch.where(mask, batch.old_logprobs, 0.0).double()
    rollout = torch.where(mask, sampling, 0.0).double()
    gap = old - rollout
    return {
        "mean_abs_prob_diff": _sampled_mean(batch, (rollout.exp() - old.exp()).abs()),
        "mean_abs_logprob_diff": _sampled_mean(batch, gap.abs()),
        "k3_kl": _sampled_mean(batch, torch.expm1(gap.clamp(max=LOG_RATIO_LIMIT)) - gap),
    }


def _sampled_mean(batch: TurnBatch, values: Tensor) -> float:
    return values.masked_select(batch.response_mask).double().mean().item()


def outcome_shares(trajectories: Sequence["Trajectory"]) -> dict[str, float]:
    """Behaviour of a set of trajectories, as means over trajectories.

    turns; first-turn actions (`search_first`, `guess_first`: verifying or answering at turn 0,
    `answer_first`); `grounded`: the evidence was read; `answered`: ended by an answer;
    `malformed`: has a malformed message; `truncated`: ended by the cap on turns or tokens.
    """
    first = [t.turns[0].action if t.turns else "invalid" for t in trajectories]
    return {
        "turns": fmean(len(t.turns) for t in trajectories),
        "search_first": fmean(action == "search" for action in first),
        "guess_first": fmean(action in ("external_verify", "answer") for action in first),
        "answer_first": fmean(action == "answer" for action in first),
        "grounded": fmean(math.nan if t.grounded is None else t.grounded for t in trajectories),
        "answered": fmean(t.stop_reason == "answer" for t in trajectories),
        "malformed": fmean(any(u.action == "invalid" for u in t.turns) for t in trajectories),
        "truncated": fmean(t.stop_reason in ("max_turns", "max_tokens") for t in trajectories),
    }
