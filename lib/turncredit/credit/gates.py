"""Which turn of a trajectory stands out by the entropy of its first tokens, under ten rules."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batching import TurnBatch
from turncredit.option_ranges import check_choice, check_range, plain
from turncredit.signals import first_k_entropies

MAD_TO_STD = 1.4826
"""Times the median absolute deviation: the standard deviation of a normal distribution."""


def decision_turns(
    batch: TurnBatch,
    *,
    k: int = 16,
    rule: str = "ratio",
    c: float = 2.0,
    floor: float = 0.01,
    reference: Tensor | None = None,
) -> Tensor:
    """[B] int64: the turn whose opening entropy stands out, -1 where none does, of *every* row.

    h_t is the mean entropy of turn t's first min(k, length) tokens; mean, std and median below
    run over the trajectory's non-empty turns, t included.  A turn qualifies when h_t >= `floor`
    (nats) and `rule` holds; the first such turn is taken, but for `argmax` and `last`:

    `ratio`          h_t > c * mean.  Cannot exceed T * mean: c = 2 never fires on two turns.
    `zscore`         h_t > mean + c * population std.  Cannot exceed sqrt(T - 1) stds.
    `leave_one_out`  h_t > c * mean of the other turns; the choice for two turns.
    `margin`         h_t > mean + c, c in nats (0.02 is a start).
    `mad`            h_t > median + c * 1.4826 * median absolute deviation.
    `quantile`       h_t >= the (1 - c) quantile of all turns of the batch, 0 < c < 1, e.g. 0.2.
    `running`        h_t > c * reference[t], a running mean over training steps; `reference` [T']
                     is required; a turn where it is NaN, or beyond its end, never qualifies.
    `argmax`         the turn of largest h_t (first if tied), when it passes `ratio`.
    `last`           the last turn that passes `ratio`.
    `absolute`       `floor` alone; c is not used.

    Raises ValueError for an unknown rule, k < 1, a negative floor, c that is not finite, or not in
    (0, 1) for `quantile`, a reference that is missing or infinite, and an entropy that was not
    computed (NaN) or is infinite among the first k tokens of a turn.
    """
    check_choice("decision_turns", "rule", rule, tuple(RULES))
    check_range("decision_turns", "number", c=c)
    check_range("decision_turns", "threshold", floor=floor)
    h, real = opening_entropies(batch, k)
    if not batch.num_turns:
        return torch.full_like(batch.group_ids, -1)
    passed = real & (h.to(batch.entropies.dtype) >= floor)  # the floor is rounded as h is
    c = plain(c)
    passed &= RULES[rule](h, real, c) if rule != "running" else _running(h, real, c, reference)
    return (last_true if rule == "last" else first_true)(passed)


def opening_entropies(batch: TurnBatch, k: int) -> tuple[Tensor, Tensor]:
    """Mean entropy of each turn's first min(k, length) tokens, and which turns have any token.

    [B, T] float64, nats, 0 for an empty turn; [B, T] bool.  Raises ValueError for k < 1, and what
    `refuse_unknown` raises.

    >>> from turncredit.batching import two_turns_and_one
    >>> opening_entropies(two_turns_and_one(), 1)[0]
    tensor([[0.4000, 0.1000],
            [0.3000, 0.0000]], dtype=torch.float64)
    """
    check_range("opening_entropies", "count", k=k)
    return known_entropies(batch, first_k_entropies(batch, [k])[:, :, 0])


def known_entropies(batch: TurnBatch, entropies: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T], NaN for an empty turn, to float64 with 0 there, and which turns have any token.

    Raises what `refuse_unknown` raises.
    """
    real = batch.turn_lengths() > 0
    refuse_unknown(entropies, real)
    return torch.where(real, entropies.detach(), 0.0).double(), real


def refuse_unknown(entropies: Tensor, read: Tensor) -> None:
    """ValueError naming row and turn of the first entropy [B, T] that is NaN or infinite.

    read: [B, T] bool: turns to look at.
    """
    unknown = read & ~entropies.isfinite()
    if unknown.any():
        row, turn = unknown.nonzero()[0].tolist()
        raise ValueError(
            f"TurnBatch.entropies: row {row}, turn {turn} has entropies not computed (NaN) or"
            " infinite; rescore the batch with the training engine"
        )


def update_reference(
    reference: Tensor, batch: TurnBatch, *, k: int = 16, momentum: float = 0.9
) -> Tensor:
    """The running mean for rule `running` after one more batch: [T'] float64, nats, by turn index.

    reference: [T''] of the steps before, `torch.empty(0)` at the start.  At each turn index
    momentum * reference + (1 - momentum) * mean of h over the trajectories that have the turn;
    the first mean seen stands as it is, a turn no trajectory has keeps its value (NaN if never
    seen).  T' is the larger of T'' and T.  Raises ValueError for momentum outside [0, 1), and
    what `opening_entropies` raises.

    >>> from turncredit.batching import two_turns_and_one
    >>> update_reference(torch.tensor([0.15]), two_turns_and_one(), k=1, momentum=0.5)
    tensor([0.2500, 0.1000], dtype=torch.float64)
    """
    check_range("update_reference", "decay", momentum=momentum)
    h, real = opening_entropies(batch, k)
    size = max(len(reference), batch.num_turns)
    before, mean = (h.new_full((size,), math.nan) for _ in range(2))
    before[: len(reference)] = reference.to(h)
    # Sorted and one after the other, so that neither order nor number of rows change a bit.
    sums = torch.cat([h.new_zeros(1, h.shape[1]), h.sort(dim=0).values]).cumsum(dim=0)[-1]
    mean[: batch.num_turns] = sums / real.sum(dim=0)  # 0 / 0 is NaN: no trajectory has the turn
    momentum = plain(momentum)
    mixed = momentum * before + (1 - momentum) * mean
    return torch.where(before.isnan(), mean, torch.where(mean.isnan(), before, mixed))


def _ratio(h: Tensor, real: Tensor, c: float) -> Tensor:
    return h > c * _mean(h, real)


def _zscore(h: Tensor, real: Tensor, c: float) -> Tensor:
    mean = _mean(h, real)
    return h > mean + c * _mean((h - mean).square(), real).sqrt()


def _leave_one_out(h: Tensor, real: Tensor, c: float) -> Tensor:
    others = real.sum(dim=1, keepdim=True) - 1
    return (others > 0) & (h > c * (_sum(h, real) - h) / others.clamp(min=1))


def _margin(h: Tensor, real: Tensor, c: float) -> Tensor:
    return h > _mean(h, real) + c


def _mad(h: Tensor, real: Tensor, c: float) -> Tensor:
    median = _median(h, real)
    return h > median + c * MAD_TO_STD * _median((h - median).abs(), real)


def _quantile(h: Tensor, real: Tensor, c: float) -> Tensor:
    if not 0 < c < 1:
        raise ValueError(
            f"decision_turns: c is {c}; rule 'quantile' takes the top share, 0 < c < 1"
        )
    return h >= h[real].quantile(1 - c) if real.any() else real


def _argmax(h: Tensor, real: Tensor, c: float) -> Tensor:
    largest = torch.where(real, h, -torch.inf).amax(dim=1, keepdim=True)
    return (h == largest) & _ratio(h, real, c)


def _absolute(h: Tensor, real: Tensor, c: float) -> Tensor:
    return real


def _running(h: Tensor, real: Tensor, c: float, reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError("decision_turns: rule 'running' needs reference=, mean entropies by turn")
    if not isinstance(reference, Tensor) or reference.dim() != 1 or reference.isinf().any():
        raise ValueError(f"decision_turns: reference is not [T'] of finite or NaN: {reference}")
    expected = h.new_full((h.shape[1],), torch.nan)
    known = min(len(reference), h.shape[1])
    expected[:known] = reference[:known].to(expected)
    return h > c * expected  # a comparison with NaN is False


RULES: dict[str, Callable[..., Tensor]] = {
    "ratio": _ratio,
    "zscore": _zscore,
    "leave_one_out": _leave_one_out,
    "margin": _margin,
    "mad": _mad,
    "quantile": _quantile,
    "running": _running,
    "argmax": _argmax,
    "last": _ratio,
    "absolute": _absolute,
}


def _sum(values: Tensor, real: Tensor) -> Tensor:
    """[B, 1]: sum over real turns, one after the other, so that padding T cannot change a bit."""
    rows = real.nonzero()[:, 0]
    return values.new_zeros(len(values)).index_add(0, rows, values[real])[:, None]


def _mean(values: Tensor, real: Tensor) -> Tensor:
    return _sum(values, real) / real.sum(dim=1, keepdim=True).clamp(min=1)


def _median(values: Tensor, real: Tensor) -> Tensor:
    """[B, 1]: median over real turns, the mean of the two middle ones if their number is even."""
    ordered = torch.where(real, values, torch.inf).sort(dim=1).values
    count = real.sum(dim=1, keepdim=True)
    lower = ordered.gather(1, (count - 1).clamp(min=0) // 2)
    upper = ordered.gather(1, (count // 2).clamp(max=values.shape[1] - 1))
    return torch.where(count > 0, (lower + upper) / 2, 0.0)


def first_true(passed: Tensor) -> Tensor:
    """[B, T] bool to [B] int64: index of the first True, -1 without one."""
    return pad(passed.long(), (1, 0)).argmax(dim=1) - 1  # argmax takes the first of equals


def last_true(passed: Tensor) -> Tensor:
    """[B, T] bool to [B] int64: index of the last True, -1 without one."""
    positions = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    return pad(passed * positions, (1, 0)).amax(dim=1) - 1
