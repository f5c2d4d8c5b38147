"""Whom methods blame and credit: shares on turns that were right and wrong by the oracle.

Blame is what a method's token advantages below 0 sum to, credit those above: what an objective that
averages over tokens multiplies the gradients with.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.audit.labels import label_numbers
from turncredit.audit.recordings import PlayedStep, Recording
from turncredit.audit.stages import Row, share, stages_of
from turncredit.credit import BASES, TURN_WEIGHTS, weigh
from turncredit.environments.oracle import FOLLOWS, LABELS, RIGHT, UNJUDGED, WRONG

NEEDS = {
    "adrs": "a teacher's log-probs",
    "gae": "the values of a critic",
    "mt_grpo": "rewards of turns",
    "turn_returns": "rewards of turns",
    "igpo": "information gains",
    "true_advantage": "true advantages of turns",
    "vineppo": "values of states",
    "high_is_turns": "log-probs of a policy that has moved on",
}
"""Bases and weights that trajectories alone do not feed, and what they want."""

Method = tuple[str, str]
"""Names of base and weight."""


def audited(
    bases: Sequence[str] | None = None, weights: Sequence[str] | None = None
) -> list[Method]:
    """Every base with every weight that trajectories with an oracle feed; or those of the names."""
    chosen = BASES if bases is None else bases, TURN_WEIGHTS if weights is None else weights
    fed = [[name for name in names if name not in NEEDS] for names in chosen]
    return [(base, weight) for base in fed[0] for weight in fed[1]]


def credits(played: PlayedStep, methods: Sequence[Method]) -> dict[Method, Tensor]:
    """[B, L] token advantages of each method, every option at its default."""
    bases = {base: BASES[base](played.batch) for base, _ in dict.fromkeys(methods)}
    return {
        (base, weight): weigh(played.batch, bases[base], weight).advantages
        for base, weight in methods
    }


def ledger(played: PlayedStep, methods: Sequence[Method]) -> dict[Method, Tensor]:
    """[2, B, T] float64 of each method: blame and credit, both 0 or above, of every turn."""
    return {
        method: torch.stack(
            [played.batch.turn_sums((sign * advantages).clamp(min=0)) for sign in (-1, 1)]
        )
        for method, advantages in credits(played, methods).items()
    }


def blame_rows(
    recording: Recording, methods: Sequence[Method], edges: Sequence[int], *, every: int = 1
) -> list[Row]:
    """Where a run's methods put blame and credit, by training stage: tidy rows.

    `measure`: `blame_on_right`, on turns that are right or follow / all blame; `blame_on_follows`
    the latter alone; `blame_on_unjudged`; `credit_on_wrong` and `credit_on_unjudged` / all credit;
    `blame_kept` and `credit_kept`: / those of the same base without a weight, NaN unless `methods`
    holds it.  every: audit each step that it divides.
    """
    sums: dict[tuple[str, Method], Tensor] = {}
    for played in recording.read():
        if played.step % every:
            continue
        labels = label_numbers(played)
        for method, turns in ledger(played, methods).items():
            found = torch.stack(
                [(turns * (labels == n)).sum(dim=(1, 2)) for n in range(len(LABELS))], dim=1
            )
            for stage in stages_of(played.step, edges):
                sums[stage, method] = sums.get((stage, method), 0) + found
    return [
        {"seed": recording.seed, "block": recording.block, "stage": stage}
        | {"base": method[0], "weight": method[1], "measure": measure, "value": value}
        for (stage, method), found in sums.items()
        for measure, value in _measures(found, sums.get((stage, (method[0], "none")))).items()
    ]


def turn_rows(
    recording: Recording, methods: Sequence[Method], *, last: int, every: int = 1
) -> list[Row]:
    """Share of all blame in failed trajectories by turn index, over a run: tidy rows.

    Turns from `last` on are one.  A method called "the oracle" with no weight blames every token of
    the wrong turns of the same trajectories alike: where blame would belong.
    """
    sums: dict[Method, Tensor] = {}
    for played in recording.read():
        if played.step % every:
            continue
        failed = ~played.batch.success & ~played.batch.rewards.isnan()
        lengths = played.batch.turn_lengths()
        found = {m: turns[0] for m, turns in ledger(played, methods).items()}
        found[ORACLE] = lengths * (label_numbers(played) == LABELS.index(WRONG))
        for method, turns in found.items():
            sums[method] = sums.get(method, 0) + _up_to(turns[failed].sum(dim=0).double(), last)
    return [
        {"seed": recording.seed, "block": recording.block, "base": base, "weight": weight}
        | {"turn": turn, "value": share(value, by_turn.sum().item())}
        for (base, weight), by_turn in sums.items()
        for turn, value in enumerate(by_turn.tolist())
    ]


ORACLE: Method = ("the oracle", "none")


def _measures(found: Tensor, unweighted: Tensor | None) -> dict[str, float]:
    """found, unweighted: [2, labels], sums of blame and of credit."""
    blame, credit = (dict(zip(LABELS, line, strict=True)) for line in found.tolist())
    totals = found.sum(dim=1).tolist()
    before = [0.0, 0.0] if unweighted is None else unweighted.sum(dim=1).tolist()
    return {
        "blame_on_right": share(blame[RIGHT] + blame[FOLLOWS], totals[0]),
        "blame_on_follows": share(blame[FOLLOWS], totals[0]),
        "blame_on_unjudged": share(blame[UNJUDGED], totals[0]),
        "credit_on_wrong": share(credit[WRONG], totals[1]),
        "credit_on_unjudged": share(credit[UNJUDGED], totals[1]),
        "blame_kept": share(totals[0], before[0]),
        "credit_kept": share(totals[1], before[1]),
    }


def _up_to(by_turn: Tensor, last: int) -> Tensor:
    """[T] to [last + 1]: what comes after turn `last` counts there."""
    wide = torch.zeros(last + 1, dtype=by_turn.dtype)
    places = torch.arange(len(by_turn)).clamp(max=last)
    return wide.index_add(0, places, by_turn)
