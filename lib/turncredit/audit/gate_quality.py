"""Does an entropy gate find the decision?  Its turn against the first wrong turn of the oracle."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from turncredit.audit.recordings import Recording
from turncredit.audit.stages import Row, share, stages_of
from turncredit.batching import TurnBatch
from turncredit.credit.gates import decision_turns, update_reference

FIRST = "turn_0"
"""A rule to beat: always the first turn, whatever its entropy."""


def gate_counts(batch: TurnBatch, gates: Tensor) -> dict[str, float]:
    """How gates [B] int64, -1 for none, meet `batch.oracle_turn`; failed trajectories alone.

    A trajectory whose reward is missing has not failed.

    `failed` their number; `wrong` those with a wrong turn; `fired` those with a gate; of these
    `hits` at the first wrong turn, `early` before it, `late` after it, `idle` where no turn was
    wrong; `chance`: the hits that gates at even random among the same rows' turns would have.
    Raises ValueError for a batch without `oracle_turn`.
    """
    if batch.oracle_turn is None:
        raise ValueError("gate_counts needs TurnBatch.oracle_turn, and this batch has none")
    failed, true = ~batch.success & ~batch.rewards.isnan(), batch.oracle_turn
    fired, wrong = failed & (gates >= 0), failed & (true >= 0)
    both = fired & wrong
    turns = (batch.turn_lengths() > 0).sum(dim=1)
    counts = {
        "failed": failed.sum(), "wrong": wrong.sum(), "fired": fired.sum(),
        "hits": (both & (gates == true)).sum(), "early": (both & (gates < true)).sum(),
        "late": (both & (gates > true)).sum(), "idle": (fired & ~wrong).sum(),
        "chance": (1 / turns[both].double()).sum(),
    }  # fmt: skip
    return {name: float(count) for name, count in counts.items()}


def gate_rows(
    recording: Recording,
    rules: Mapping[str, Mapping[str, Any]],
    ks: Sequence[int],
    edges: Sequence[int],
) -> list[Row]:
    """How well each rule finds the first wrong turn, by k and training stage: tidy rows.

    rules: name to options of `decision_turns`, whose k gives way to each of `ks`; FIRST is added.
    `measure`: `precision` hits / fired, `recall` hits / wrong, `chance` the precision of gates at
    even random, `fired` fired / failed, `early`, `late` and `idle` / fired, `failed` the number of
    failed trajectories.  Rule `running` sees the steps in order, as in training.
    """
    counts: dict[tuple[str, str, int], Counter[str]] = {}
    references = {k: torch.empty(0, dtype=torch.float64) for k in ks}
    for played in recording.read():
        for k in ks:
            for rule, gates in _gates(played.batch, rules, k, references[k]).items():
                found = gate_counts(played.batch, gates)
                for stage in stages_of(played.step, edges):
                    counts.setdefault((stage, rule, k), Counter()).update(found)
            references[k] = update_reference(references[k], played.batch, k=k)
    run = {"seed": recording.seed, "block": recording.block}
    return [
        run | {"stage": stage, "rule": rule, "k": k, "measure": measure, "value": value}
        for (stage, rule, k), counted in counts.items()
        for measure, value in _measures(counted).items()
    ]


def _gates(
    batch: TurnBatch, rules: Mapping[str, Mapping[str, Any]], k: int, reference: Tensor
) -> dict[str, Tensor]:
    given = {
        name: decision_turns(batch, **{**options, "k": k, "reference": reference})
        for name, options in rules.items()
    }
    return given | {FIRST: torch.zeros_like(batch.group_ids)}


def _measures(counted: Mapping[str, float]) -> dict[str, float]:
    fired = counted["fired"]
    return {
        "precision": share(counted["hits"], fired),
        "recall": share(counted["hits"], counted["wrong"]),
        "fired": share(fired, counted["failed"]),
        **{name: share(counted[name], fired) for name in ("chance", "early", "late", "idle")},
        "failed": counted["failed"],
    }
