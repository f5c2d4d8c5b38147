"""What verl logged of a cluster run, as the rows of our tables."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.verl_plugin.places import Place

Row = dict[str, Any]

OURS, EVALUATION, LOSS = "turncredit/", "turncredit_eval/", "actor/"
"""Before our names in verl's log: of the trainer, of an evaluation, of the objective."""

UPDATE = {
    name: name
    for name in (
        "clip_fraction", "dual_clip_fraction", "weight_clip_fraction", "sequence_clip_fraction",
        "turn_clip_fraction", "ppo_kl", "ratio_min", "ratio_max", "ratio_guarded",
        "turn_ratio_min", "turn_ratio_max", "kl",
    )
} | {"pg_loss": "loss", "grad_norm": "gradient_norm", "kl_loss": "kl"}  # fmt: skip
"""Metrics of the update behind `LOSS` in verl's log, by what they are called in metrics.csv."""

PARTS = {
    "rollout": ("gen",),
    "logprobs": ("old_log_prob", "ref", "values"),
    "credit": ("adv",),
    "update": ("update_actor", "update_critic"),
}
"""Parts of a step by the names of timings.csv, to verl's names; the part `metrics` is the rest."""

_TURN = re.compile(r"turn_(\d+)/(.+)")


@dataclass(frozen=True)
class RunLog:
    """Rows of our tables, in order of steps, all with the same columns."""

    metrics: list[Row]
    turns: list[Row]
    evaluations: list[Row]
    timings: list[Row]


def read_log(place: Place) -> RunLog:
    """All starts of a run as one: what a later start did anew takes the place of what was lost.

    Steps count from 0, as in our loop; an evaluation's step is the number of steps done before it.
    Raises ValueError naming the folder if nothing of ours is in its log, and a line that is none.
    """
    kept: list[tuple[int, Row]] = []
    for file in place.logs():
        lines = list(_lines(file))
        first = min((step for step, data in lines if _trained(data)), default=None)
        if first is not None:
            kept = [(step, data) for step, data in kept if step < first]
        kept += lines
    steps = {step: data for step, data in kept if _trained(data)}
    if not steps:
        raise ValueError(
            f"{place.path}: no step of ours in log-*.jsonl; turncredit.verl_plugin.train, "
            "with this folder's parent as --runs, writes a line after each step"
        )
    evaluated = {step: data for step, data in kept if f"{EVALUATION}questions" in data}
    return RunLog(
        metrics=filled({"step": step - 1} | _metrics(data) for step, data in steps.items()),
        turns=filled(row for step, data in steps.items() for row in _turns(step - 1, data)),
        evaluations=filled(
            {"step": step, "hops": "all"} | _behind(EVALUATION, data)
            for step, data in sorted(evaluated.items())
        ),
        timings=filled({"step": step - 1} | _timings(data) for step, data in steps.items()),
    )


def _lines(file: Path) -> Iterable[tuple[int, Row]]:
    """(verl's step, what it logged) of each line; one without an end was cut by a kill."""
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            logged = json.loads(line)
            yield int(logged["step"]), dict(logged["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}, line {number}: not a line of verl's log ({error})"
            ) from error


def _trained(data: Mapping[str, Any]) -> bool:
    return f"{OURS}tokens" in data


def _metrics(data: Mapping[str, Any]) -> Row:
    """The columns of metrics.csv: those of the trainer, then those of the update."""
    named = {name: v for name, v in _behind(OURS, data).items() if not _TURN.fullmatch(name)}
    return named | {
        ours: data[f"{LOSS}{theirs}"]
        for theirs, ours in UPDATE.items()
        if f"{LOSS}{theirs}" in data
    }


def _turns(step: int, data: Mapping[str, Any]) -> list[Row]:
    """The rows of turns.csv of one step."""
    rows: dict[int, Row] = {}
    for name, value in _behind(OURS, data).items():
        found = _TURN.fullmatch(name)
        if found:
            turn = int(found[1])
            rows.setdefault(turn, {"step": step, "turn": turn})[found[2]] = value
    return [rows[turn] for turn in sorted(rows)]


def _timings(data: Mapping[str, Any]) -> Row:
    """Seconds of the parts of a step; `metrics` is the rest, the transfer of weights among it."""
    seconds = _behind("timing_s/", data)
    parts = {part: sum(seconds.get(name) or 0.0 for name in names) for part, names in PARTS.items()}
    return parts | {"metrics": max(0.0, seconds.get("step", 0.0) - sum(parts.values()))}


def _behind(prefix: str, data: Mapping[str, Any]) -> Row:
    return {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}


def filled(rows: Iterable[Row]) -> list[Row]:
    """Rows that all have every column, in order of first appearance; None where missing."""
    rows = list(rows)
    columns: Sequence[str] = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in columns} for row in rows]
