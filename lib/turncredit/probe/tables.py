"""Tidy tables of finished probes: agreement by where a response stands, and of every proxy.

Signals and targets are alpha - 1 and minus the relative surprisal, as the paper compares them.
"recorded" are the responses that the trajectories hold, one a state, as in the published probe;
"fresh" are the drawn ones, each in the place of the recorded one (`fresh_alphas`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turncredit.probe.agreement import SILENT, Estimate, compare
from turncredit.probe.exact import ExactTurns
from turncredit.probe.measures import (
    fresh_alphas,
    training_alphas,
    training_relative,
)
from turncredit.probe.proxies import PROXIES
from turncredit.probe.runs import Probed
from turncredit.probe.states import State, held_out

Row = dict[str, float | int | str]
LENGTH_BINS = ((1, 2), (3, 4), (5, 8), (9, 16), (17, 1_000_000))
"""Tokens of a response, both ends included."""


def response_table(probes: Sequence[Probed], *, min_spread: float) -> list[Row]:
    """One row per response: where it stands, its alpha - 1 and minus its relative surprisal.

    The recorded response of a state has number -1, the fresh ones 0 to K - 1.
    """
    rows: list[Row] = []
    for probe in probes:
        recorded, fresh = _pairs(probe, min_spread)
        signals, targets = (
            torch.cat([left[:, None], right], 1).tolist()
            for left, right in zip(recorded, fresh, strict=True)
        )
        tokens = torch.cat([_recorded_tokens(probe)[:, None], probe.measures.lengths], 1).tolist()
        for number, state in enumerate(probe.states):
            place = {"step": probe.step, "state": number, "question_id": state.question_id}
            place |= {"turn": state.turn, "prefix_tokens": len(state.prefix_ids)}
            rows += [
                place | {"response": k - 1, "tokens": tokens[number][k]}
                | {"signal": signals[number][k], "target": targets[number][k]}
                for k in range(len(signals[number]))
            ]  # fmt: skip
    return rows


def agreement_table(
    rows: Sequence[Row],
    difficulties: Mapping[str, str],
    *,
    turns_apart: int = 3,
    level: float = 0.95,
    seed: int = 0,
) -> list[Row]:
    """Agreement of the responses of `response_table`, in all and by step, turn, difficulty, length.

    difficulties: bin of each question.  Turns from `turns_apart` on share a bin.  Columns:
    responses (recorded or fresh), by, bin, then those of `estimate_rows`.
    """
    grid = _Grid(rows)
    return [
        {"responses": kind, "by": by, "bin": name} | row
        for kind, part in (("recorded", slice(0, 1)), ("fresh", slice(1, None)))
        for by, name, chosen in grid.bins(difficulties, turns_apart)
        for row in estimate_rows(
            np.where(chosen, grid.signal, np.nan)[:, part],
            np.where(chosen, grid.target, np.nan)[:, part],
            level=level,
            seed=seed,
        )
    ]


def proxy_table(
    probes: Sequence[Probed],
    *,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    share: float = 0.5,
    judged_on: str = "held_out",
    level: float = 0.95,
    seed: int = 0,
) -> list[Row]:
    """How each proxy agrees with S - H_resp of the recorded responses, on questions held out.

    `first_k` takes the k that does best on the other questions (ties: the smallest).  Columns:
    proxy, options, then those of `estimate_rows`; "half" alone counts a proxy that hardly acts.
    judged_on: "held_out", or "fitting" for the numbers by which to choose a proxy (`best_proxy`);
    ValueError for anything else.
    """
    everywhere = [state for probe in probes for state in probe.states]
    fitting, judging = map(set, held_out(everywhere, share=share, seed=seed))
    parts = {"held_out": judging, "fitting": fitting}
    if judged_on not in parts:
        raise ValueError(f"judged_on is {judged_on!r}; need one of {', '.join(parts)}")

    def on(chosen: set[State]) -> Callable[..., list[Row]]:
        def judge(name: str, **options: Any) -> list[Row]:
            signals, targets = _proxy_pairs(probes, chosen, name, **options)
            return estimate_rows(signals, targets, level=level, seed=seed)

        return judge

    return _proxy_rows(on(fitting), on(parts[judged_on]), ks)


def exact_proxy_table(
    fitting: Sequence[ExactTurns],
    judging: Sequence[ExactTurns],
    *,
    ks: Sequence[int] = (1, 2, 3),
    level: float = 0.95,
    seed: int = 0,
) -> list[Row]:
    """`proxy_table` against exact relative surprisals; a batch, not a state, is what is drawn.

    fitting, judging: batches of different policies.  Numbers within 1e-9 of 0 are silent.
    """

    def on(worlds: Sequence[ExactTurns]) -> Callable[..., list[Row]]:
        targets = _padded([turns.relative for turns in worlds])

        def judge(name: str, **options: Any) -> list[Row]:
            signals = _padded([PROXIES[name](turns.batch, **options) for turns in worlds])
            given = {"level": level, "seed": seed, "tolerance": 1e-9}
            return estimate_rows(signals, targets, **given)

        return judge

    return _proxy_rows(on(fitting), on(judging), ks)


def _proxy_rows(
    fitted: Callable[..., list[Row]], judged: Callable[..., list[Row]], ks: Sequence[int]
) -> list[Row]:
    """Every proxy as `judged` finds it, `first_k` with the k that `fitted` likes best."""
    k = max(ks, key=lambda k: _sign(fitted("first_k", k=k)))
    given = {name: {"k": k} if name == "first_k" else {} for name in PROXIES}
    return [
        {"proxy": name, "options": " ".join(f"{n}={v}" for n, v in options.items())} | row
        for name, options in given.items()
        for row in judged(name, **options)
    ]


def _padded(tables: Sequence[Tensor]) -> np.ndarray:
    """[B, T] each to one line each, NaN behind the shorter ones."""
    width = max(table.numel() for table in tables)
    lines = [
        np.pad(t.flatten().numpy(), (0, width - t.numel()), constant_values=np.nan) for t in tables
    ]
    return np.stack(lines)


def estimate_rows(
    signals: np.ndarray, targets: np.ndarray, *, level: float, seed: int, tolerance: float = 0.0
) -> list[Row]:
    """One row per measure of [N, K] pairs: measure, silent, value, low, high and what was counted.

    The sign agreement comes twice: silent pairs (alpha = 1) left out, and counted half.
    """
    rows = []
    for silent in SILENT:
        estimates = compare(
            signals, targets, silent=silent, tolerance=tolerance, level=level, seed=seed
        )
        for name, estimate in estimates.items():
            if name == "sign_agreement" or silent == SILENT[0]:
                shown = silent if name == "sign_agreement" else ""
                rows.append({"measure": name, "silent": shown} | _columns(estimate))
    return rows


def _columns(estimate: Estimate) -> Row:
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "pairs": estimate.compared,
        "silent_pairs": estimate.silent,
    }


def _sign(rows: Sequence[Row]) -> float:
    (value,) = [row["value"] for row in rows if row["silent"] == "half"]
    return float(value)


def _pairs(probe: Probed, min_spread: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Signals and targets of the recorded responses, [N] each, and of the fresh ones, [N, K]."""
    given = (probe.batch, probe.states)
    recorded = training_alphas(*given, min_spread=min_spread) - 1
    fresh = fresh_alphas(probe.measures, *given, min_spread=min_spread) - 1
    return (
        (recorded, -training_relative(probe.measures, *given)),
        (fresh, -probe.measures.relative),
    )


def _recorded_tokens(probe: Probed) -> Tensor:
    lengths = probe.batch.turn_lengths()
    return lengths[[s.row for s in probe.states], [s.turn for s in probe.states]]


def _proxy_pairs(
    probes: Sequence[Probed], chosen: set[State], name: str, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Proxy and S - H_resp of the recorded responses in the chosen states, [N, 1] each."""
    signals, targets = [], []
    for probe in probes:
        values = PROXIES[name](probe.batch, **options)
        relative = training_relative(probe.measures, probe.batch, probe.states)
        for state, target in zip(probe.states, relative.tolist(), strict=True):
            if state in chosen:
                signals.append([float(values[state.row, state.turn])])
                targets.append([target])
    return np.array(signals), np.array(targets)


class _Grid:
    """The rows of `response_table` as [N, 1 + K] arrays, one line per state of a step."""

    def __init__(self, rows: Sequence[Row]) -> None:
        width = 1 + max(int(row["response"]) for row in rows) + 1

        def table(name: str) -> np.ndarray:
            return np.array([row[name] for row in rows]).reshape(-1, width)

        self.signal, self.target = table("signal"), table("target")
        self.step, self.turn, self.tokens = table("step"), table("turn"), table("tokens")
        self.question = table("question_id")

    def bins(
        self, difficulties: Mapping[str, str], turns_apart: int
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """What the responses are divided by, the bin's name, and who is in it, [N, 1 + K] bool."""
        yield "all", "all", np.ones(self.step.shape, dtype=bool)
        for step in sorted(set(self.step.flat)):
            yield "step", str(step), self.step == step
        for turn in sorted(set(np.minimum(self.turn, turns_apart).flat)):
            later = " or later" if turn == turns_apart else ""
            yield "turn", f"{turn}{later}", np.minimum(self.turn, turns_apart) == turn
        bins = np.vectorize(lambda question: difficulties[str(question)])(self.question)
        for name in sorted(set(bins.flat)):
            yield "difficulty", str(name), bins == name
        for low, high in LENGTH_BINS:
            chosen = (low <= self.tokens) & (self.tokens <= high)
            if chosen.any():
                name = f"{low} to {high}" if high < LENGTH_BINS[-1][1] else f"{low} or more"
                yield "tokens", name, chosen
