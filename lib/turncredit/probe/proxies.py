"""Stand-ins for a response's relative surprisal S - H_resp, from the signals of a batch alone.

AEM (arXiv 2605.00425) reads the mean token entropy of a response against its group.  Doob's
decomposition (its appendix C.4) splits the surprisal into S = P + M: P sums the token entropies,
each known before its token is drawn; M, the martingale, has mean 0 in every state.  So P of any one
response is an unbiased estimate of H_resp, and M = S - P, which AEM drops, is most of S - H_resp
wherever the responses of a state have similar P.

Each function returns [B, T] float64, NaN for an empty turn, positive for a response held to be
more surprising than its state's average (where AEM would have alpha < 1).  `published` and
`corrected` are turn weights; AEM leaves M out to be stable, and a better sign of S - H_resp is not
yet better training.

Siblings are responses to the same context.  `states` [B, T] int64 says which turns share a state;
None: those of one group that had read exactly the same ids.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.aem import aem, aem_corrected
from turncredit.credit.gates import known_entropies, opening_entropies
from turncredit.option_ranges import check_range
from turncredit.signals import turn_entropies, turn_surprisals


def published(batch: TurnBatch, *, temperature: float = 1.0, min_spread: float = 0.1) -> Tensor:
    """[B, T]: 1 - alpha of `credit.aem`; no nats, the sign alone means something.

    >>> from turncredit.batching import two_turns_and_one
    >>> published(two_turns_and_one())
    tensor([[ 0.3642, -0.7284],
            [ 0.3642,     nan]], dtype=torch.float64)
    """
    base = torch.zeros(batch.response_mask.shape, dtype=torch.float64)
    alpha = aem(batch, base, temperature=temperature, min_spread=min_spread)
    return torch.where(batch.turn_lengths() > 0, 1 - alpha, torch.nan)


def corrected(
    batch: TurnBatch,
    *,
    temperature: float = 1.0,
    min_spread: float = 0.1,
    coefficient: float = 1.0,
) -> Tensor:
    """[B, T]: 1 - alpha of `credit.aem_corrected`; no nats, the sign alone means something."""
    base = torch.zeros(batch.response_mask.shape, dtype=torch.float64)
    options = {"temperature": temperature, "min_spread": min_spread, "coefficient": coefficient}
    alpha = aem_corrected(batch, base, **options)
    return torch.where(batch.turn_lengths() > 0, 1 - alpha, torch.nan)


def length_aware(batch: TurnBatch) -> Tensor:
    """[B, T], nats: P minus the group's mean P: the sum of token entropies, not their mean."""
    turns = _turns(batch)
    return _masked(turns.predictable - _means(turns.predictable, turns.groups, turns.real), turns)


def first_k(batch: TurnBatch, *, k: int = 16) -> Tensor:
    """[B, T], nats: mean entropy of the first min(k, length) tokens minus the group's mean of it.

    With k = 1 it is the same for all responses of a state: it compares states alone.
    """
    turns, (opening, _) = _turns(batch), opening_entropies(batch, k)
    return _masked(opening - _means(opening, turns.groups, turns.real), turns)


def state_baseline(batch: TurnBatch, *, states: Tensor | None = None) -> Tensor:
    """[B, T], nats: P minus the mean P of the siblings, itself included; 0 without siblings."""
    turns = _turns(batch, states)
    return _masked(turns.predictable - _means(turns.predictable, turns.states, turns.real), turns)


def martingale(batch: TurnBatch) -> Tensor:
    """[B, T], nats: M = S - P, the surprisal against the response's own expectation of it.

    Needs no other response.  Its error, P - H_resp, has mean 0; it is 0 where all responses of the
    state go through equal entropies.
    """
    turns = _turns(batch)
    return _masked(turns.surprisals - turns.predictable, turns)


def control_variate(
    batch: TurnBatch, *, states: Tensor | None = None, coefficient: float = 1.0
) -> Tensor:
    """[B, T], nats: S minus H, where H = mean S - coefficient * mean M over the siblings.

    M, whose mean is known to be 0, is the control variate of the mean surprisal; `coefficient` 0 is
    the plain mean, 1 the mean of P; `control_coefficient` has the least variance.  Alone in its
    state a response gets coefficient * M.
    """
    check_range("control_variate", "number", coefficient=coefficient)
    turns = _turns(batch, states)
    noise = turns.surprisals - turns.predictable
    baseline = _means(turns.surprisals - coefficient * noise, turns.states, turns.real)
    return _masked(turns.surprisals - baseline, turns)


def control_coefficient(batch: TurnBatch, *, states: Tensor | None = None) -> float:
    """cov(S, M) / var(M) within states, pooled over the batch; 1 if no state has two responses.

    Choose it on other states than those it is used on.
    """
    turns = _turns(batch, states)
    noise = turns.surprisals - turns.predictable
    within = [v - _means(v, turns.states, turns.real) for v in (turns.surprisals, noise)]
    spread = within[1][turns.real].square().sum()
    return float((within[0] * within[1])[turns.real].sum() / spread) if spread > 1e-12 else 1.0


def shrunk_baseline(batch: TurnBatch, *, states: Tensor | None = None) -> Tensor:
    """[B, T], nats: S minus a baseline between the siblings' mean P and the group's mean P.

    The weight of the siblings is t / (t + v / n): n of them, t the variance of H_resp between the
    states of the group, v the mean of M^2 in it.  The error of P as an estimate of H_resp cannot be
    seen from single responses; M^2 can, and stands for it.  t is the variance of the states' mean P
    minus what v / n explains, at least 0.  Few siblings and noisy surprisals shrink more.
    """
    turns = _turns(batch, states)
    noise = _means((turns.surprisals - turns.predictable).square(), turns.groups, turns.real)
    own = _means(turns.predictable, turns.states, turns.real)
    share = 1 / _counts(turns.states, turns.real)
    middle = _means(turns.predictable, turns.groups, turns.real)
    # Each state once: its responses share the weight of one.
    between = _means((own - middle).square(), turns.groups, turns.real, share)
    signal = (between - noise * _means(share, turns.groups, turns.real, share)).clamp(min=0)
    weight = torch.where(signal > 0, signal / (signal + noise * share), 0.0)
    return _masked(turns.surprisals - weight * own - (1 - weight) * middle, turns)


PROXIES: dict[str, Callable[..., Tensor]] = {
    "published": published,
    "corrected": corrected,
    "length_aware": length_aware,
    "first_k": first_k,
    "state_baseline": state_baseline,
    "martingale": martingale,
    "control_variate": control_variate,
    "shrunk_baseline": shrunk_baseline,
}


def context_numbers(batch: TurnBatch) -> Tensor:
    """[B, T] int64: equal for turns of one group that began after the same ids; -1 if empty.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> context_numbers(batch)
    tensor([[ 0,  1],
            [ 0, -1]])
    """
    numbers = torch.full(batch.turn_lengths().shape, -1)
    slots, first = batch.turn_slots.unique(return_inverse=True)
    places = batch.spans.places
    starts = places.new_full((len(slots),), batch.token_ids.numel())
    starts = starts.scatter_reduce(0, first, places, "amin")
    known: dict[tuple[int, bytes], int] = {}
    ids, groups = batch.token_ids.cpu().numpy(), batch.group_ids.tolist()
    for slot, start in zip(slots.tolist(), starts.tolist(), strict=True):
        row, column = divmod(start, ids.shape[1])
        key = groups[row], ids[row, :column].tobytes()
        numbers.view(-1)[slot] = known.setdefault(key, len(known))
    return numbers


def group_means(batch: TurnBatch, values: Tensor) -> Tensor:
    """[B, T] to [B, T]: mean of the values over all turns of the group; 0 for an empty turn."""
    real = batch.turn_lengths() > 0
    groups = batch.group_ids.unique(return_inverse=True)[1][:, None].expand_as(real)
    return _means(torch.where(real, values, 0.0), groups, real)


class _Turns(NamedTuple):
    """[B, T] each; what is not real holds 0."""

    surprisals: Tensor
    predictable: Tensor
    real: Tensor
    groups: Tensor
    states: Tensor


def _turns(batch: TurnBatch, states: Tensor | None = None) -> _Turns:
    means, real = known_entropies(batch, turn_entropies(batch))
    surprisals = torch.where(real, turn_surprisals(batch).double(), 0.0)
    groups = batch.group_ids.unique(return_inverse=True)[1][:, None].expand_as(real)
    if states is None:
        states = context_numbers(batch)
    elif states.shape != real.shape:
        raise ValueError(f"states have shape {tuple(states.shape)}, not {tuple(real.shape)}")
    return _Turns(surprisals, means * batch.turn_lengths(), real, groups, states)


def _means(values: Tensor, scopes: Tensor, real: Tensor, weights: Tensor | None = None) -> Tensor:
    """[B, T]: mean over the real turns of each one's scope, weighted; 0 where not real."""
    mass = torch.where(real, 1.0 if weights is None else weights, 0.0).double()
    _, places = scopes[real].unique(return_inverse=True)
    sums = values.new_zeros(2, int(real.sum())).index_add_(
        1, places, torch.stack([values * mass, mass])[:, real]
    )
    return torch.zeros_like(values).masked_scatter(real, (sums[0] / sums[1])[places])


def _counts(scopes: Tensor, real: Tensor) -> Tensor:
    """[B, T] float64: real turns in each one's scope, 1 where not real."""
    _, places, sizes = scopes[real].unique(return_inverse=True, return_counts=True)
    ones = torch.ones(scopes.shape, dtype=torch.float64)
    return ones.masked_scatter(real, sizes[places].double())


def _masked(values: Tensor, turns: _Turns) -> Tensor:
    return torch.where(turns.real, values, torch.nan)
