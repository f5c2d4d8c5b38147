"""Assigned credit beside true turn advantages: agreement, sign errors, misplaced blame and credit.

A turn counts as right or wrong where its true advantage is further from 0 than `margin` standard
errors, and as neutral otherwise.  What a method assigns to a turn is the mean advantage of its
sampled tokens; credit is what is positive of that, blame what is negative, a turn as a turn,
however long.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from turncredit.audit.estimates import Audit
from turncredit.batching import TurnBatch

Row = dict[str, float | int | str]


class Outcomes(Protocol):
    """What has outcomes by trajectory, as a `TurnBatch` does."""

    @property
    def success(self) -> Tensor:
        """[B] bool."""

    @property
    def rewards(self) -> Tensor:
        """[B], NaN where missing: such a trajectory has neither failed nor succeeded."""


def has_failed(batch: Outcomes) -> Tensor:
    """[B] bool: trajectories with a known reward that are no success."""
    return ~batch.success & ~batch.rewards.isnan()


def turn_means(batch: TurnBatch, advantages: Tensor) -> Tensor:
    """[B, L] to [B, T] float64: mean over the sampled tokens of each turn, NaN for an empty one.

    >>> from turncredit.batching import two_turns_and_one
    >>> from turncredit.credit import token_advantages
    >>> batch = two_turns_and_one()
    >>> turn_means(batch, token_advantages(batch, weight="none"))
    tensor([[-0.7071, -0.7071],
            [ 0.7071,     nan]], dtype=torch.float64)
    """
    return batch.turn_sums(advantages) / batch.turn_lengths()


def comparison_table(
    audit: Audit,
    batch: Outcomes,
    assigned: Mapping[str, Tensor],
    *,
    difficulties: Sequence[Mapping[str, str]] = (),
    margin: float = 2.0,
) -> list[Row]:
    """One row per method and bin: "all", each turn index, outcome, and difficulty of the question.

    assigned: [B, T] by method, as `turn_means` gives them; difficulties: for each row of
    the batch its question's bins (`difficulty_bins`).  Turns without a true advantage are left
    out.  See `docs/audit.md` for the columns.  Raises ValueError for another shape than the
    audit's, and for another number of difficulties than of rows.
    """
    shape = audit.advantages.shape
    wrong = [name for name, values in assigned.items() if values.shape != shape]
    if wrong:
        found = tuple(assigned[wrong[0]].shape)
        raise ValueError(f"assigned[{wrong[0]!r}]: shape {found} is not {tuple(shape)}")
    if difficulties and len(difficulties) != shape[0]:
        raise ValueError(f"difficulties: {len(difficulties)} for {shape[0]} trajectories")
    known = ~audit.advantages.isnan()
    rows: list[Row] = []
    for method, values in assigned.items():
        for by, name, chosen in _bins(batch, known, difficulties):
            place: Row = {"method": method, "by": by, "bin": name}
            rows.append(place | _measures(audit, values, chosen, margin))
    return rows


def ledger_rows(
    audit: Audit, actions: Sequence[str], assigned: Mapping[str, Tensor], row: int
) -> list[Row]:
    """The turns of trajectory `row`: what each was worth, and what every method gave it.

    actions: of its turns, as the record has them.
    """
    return [
        {
            "turn": turn,
            "action": action,
            "value": audit.values[row, turn].item(),
            "action_value": audit.action_values[row, turn].item(),
            "advantage": audit.advantages[row, turn].item(),
            "standard_error": audit.errors[row, turn].item(),
            **{method: values[row, turn].item() for method, values in assigned.items()},
        }
        for turn, action in enumerate(actions)
    ]


def _bins(
    batch: Outcomes, known: Tensor, difficulties: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, str, Tensor]]:
    """Kind and name of each bin that holds a turn, and its turns, bool [B, T]."""
    yield "all", "all", known
    for turn in range(known.shape[1]):
        chosen = torch.zeros_like(known)
        chosen[:, turn] = known[:, turn]
        yield "turn", str(turn), chosen
    for name, outcome in (("failed", has_failed(batch)), ("succeeded", batch.success)):
        yield "outcome", name, known & outcome[:, None]
    for factor in difficulties[0] if difficulties else ():
        labels = [bins[factor] for bins in difficulties]
        for label in dict.fromkeys(labels):
            members = torch.tensor([found == label for found in labels])
            yield factor, label, known & members[:, None]


def _measures(audit: Audit, assigned: Tensor, chosen: Tensor, margin: float) -> Row:
    true, errors, given = (part[chosen] for part in (audit.advantages, audit.errors, assigned))
    right, wrong = true > margin * errors, true < -margin * errors
    decided = right | wrong
    blame, credit = (-given).clamp(min=0), given.clamp(min=0)
    return {
        "turns": len(true),
        "right": int(right.sum()),
        "wrong": int(wrong.sum()),
        "true_mean": _mean(true),
        "assigned_mean": _mean(given),
        "correlation": correlation(given, true),
        "reliability": _reliability(true, errors),
        "sign_errors": _mean(((given * true) < 0)[decided].double()),
        "silent": _mean((given == 0)[decided].double()),
        "blame_on_right": _mass(blame, right),
        "blame_on_neutral": _mass(blame, ~decided),
        "credit_on_wrong": _mass(credit, wrong),
        "credit_on_neutral": _mass(credit, ~decided),
    }


def correlation(left: Tensor, right: Tensor) -> float:
    """Pearson's of two [N]; NaN for fewer than two, and if one of them is constant."""
    if len(left) < 2 or left.max() == left.min() or right.max() == right.min():
        return math.nan
    return torch.corrcoef(torch.stack([left, right]))[0, 1].item()


def _reliability(true: Tensor, errors: Tensor) -> float:
    """Share of the variance of estimated advantages that is not their own error."""
    if len(true) < 2 or true.max() == true.min():
        return math.nan
    return max(0.0, 1 - (errors.square().mean() / true.var()).item())


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else math.nan


def _mass(values: Tensor, members: Tensor) -> float:
    """Share of all that is given which falls on the members; NaN if nothing is given."""
    total = values.sum().item()
    return values[members].sum().item() / total if total > 0 else math.nan
