"""Turn weights of 0 and 1 that choose the turns to train on, in every trajectory."""

import torch
from torch import Tensor

from turncredit.batch_contract import check_logprobs
from turncredit.batching import TurnBatch
from turncredit.credit.gates import opening_entropies
from turncredit.credit.weights import TURN_WEIGHTS
from turncredit.option_ranges import check_choice, check_range
from turncredit.signals import turn_ratios

SCOPES = ("batch", "group", "trajectory")


@TURN_WEIGHTS.add
def high_entropy_turns(
    batch: TurnBatch, base: Tensor, *, k: int = 16, fraction: float = 0.2, scope: str = "batch"
) -> Tensor:
    """Train on the turns whose first k tokens have the highest mean entropy; 0 for the others.

    [B, T].  A turn counts from the (1 - `fraction`) quantile, linearly interpolated, of all
    non-empty turns of the `scope`: "batch", "group" or "trajectory".  Ties at the quantile are
    all kept, so a scope of equal entropies keeps every turn; the highest turn is always kept.
    Successes and failures alike; a trajectory may keep no turn.  Source: the slides, which do
    not define it; it is the top-20 % rule for tokens (arXiv 2506.01939) applied to turns.

    Raises ValueError for k < 1, fraction outside (0, 1], an unknown scope and unknown entropies.

    >>> from turncredit.batching import two_turns_and_one
    >>> high_entropy_turns(two_turns_and_one(), torch.zeros(2, 4), k=1)
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_range("high_entropy_turns", "part", fraction=fraction)
    h, real = opening_entropies(batch, k)
    scopes = scope_numbers(batch, scope)[:, None].expand_as(h)[real].unique(return_inverse=True)[1]
    chosen = h[real] >= quantiles(h[real], scopes, 1 - fraction)[scopes]
    return torch.ones_like(real).masked_scatter(real, chosen).to(base.dtype)


@TURN_WEIGHTS.add
def high_is_turns(
    batch: TurnBatch,
    base: Tensor,
    *,
    limit: float = 0.02,
    side: str = "both",
    logprobs: Tensor | None = None,
) -> Tensor:
    """No gradient from turns whose importance ratio has left 1 by more than `limit`.

    [B, T] of 0 and 1.  The ratio s is exp of the turn's mean log-ratio (`turn_ratios`); `side`
    "both" keeps |s - 1| <= limit, "above" keeps s <= 1 + limit.  logprobs: [B, L] under the
    current policy: compute the weight anew before every update; before the first one nothing is
    masked.  Source: the slides, which give neither formula nor bound; the default is this
    project's, an order above the clip ranges in use for sequence ratios (3e-4).

    Raises ValueError without logprobs, for a NaN or a number above 0 among them, a negative limit,
    an unknown side.

    >>> from turncredit.batching import two_turns_and_one
    >>> moved = torch.tensor([[-1.0, -0.9, 0.0, -1.0], [-1.0, 0.0, 0.0, 0.0]])
    >>> high_is_turns(two_turns_and_one(), torch.zeros(2, 4), logprobs=moved)
    tensor([[0., 1.],
            [1., 1.]])
    """
    check_choice("high_is_turns", "side", side, ("both", "above"))
    check_range("high_is_turns", "threshold", limit=limit)
    if logprobs is None:
        raise ValueError(
            "high_is_turns: logprobs is None; it needs those of the current policy, [B, L], anew"
            " before every update"
        )
    check_logprobs("high_is_turns: logprobs are", logprobs, batch.response_mask)
    ratios, real = turn_ratios(batch, logprobs.detach()), batch.turn_lengths() > 0
    if (ratios.isnan() & real).any():
        row, turn = (ratios.isnan() & real).nonzero()[0].tolist()
        raise ValueError(f"high_is_turns: logprobs of row {row}, turn {turn} hold NaN")
    distance = ratios - 1 if side == "above" else (ratios - 1).abs()
    return (~real | (distance <= limit)).to(base.dtype)


def scope_numbers(batch: TurnBatch, scope: str) -> Tensor:
    """[B] int64: which "batch", "group" or "trajectory" a row is compared within, from 0 on."""
    check_choice("turn weight", "scope", scope, SCOPES)
    if scope == "group":
        return batch.group_ids.unique(return_inverse=True)[1]
    rows = torch.arange(len(batch.group_ids), device=batch.group_ids.device)
    return rows if scope == "trajectory" else torch.zeros_like(rows)


def quantiles(values: Tensor, scopes: Tensor, share: float) -> Tensor:
    """[S] float64: quantile `share` of each scope's values, linearly interpolated.

    values: [N] float64; scopes: [N] int64, from 0 to S - 1, none of them empty.

    >>> scopes = torch.tensor([0, 1, 0, 0])
    >>> quantiles(torch.tensor([4.0, 1.0, 3.0, 2.0]).double(), scopes, 0.75)
    tensor([3.5000, 1.0000], dtype=torch.float64)
    """
    order = values.argsort()
    ordered = values[order[scopes[order].argsort(stable=True)]]  # ascending within each scope
    counts = torch.bincount(scopes)
    ranks = (share * (counts - 1).double()).round(decimals=9)  # 0.9 * 10 is rank 9, not below
    firsts = counts.cumsum(0) - counts
    lower, upper = ordered[firsts + ranks.long()], ordered[firsts + ranks.ceil().long()]
    return torch.lerp(lower, upper, ranks.frac())
