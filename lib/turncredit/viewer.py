"""Trajectories for the eye: every token coloured by who wrote it, and a table of turns.

All text is escaped: what a model or a document says can never become markup.
"""

import html
import math
from collections.abc import Iterator, Sequence
from statistics import fmean

import pandas as pd

from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory

COLOURS = {"prompt": "#e4e4e4", "policy": "#bcd7f5", "environment": "#f8e2b0"}
"""Background by author: question, policy, environment."""

_TOKEN = (
    "<span title='{title}' style='background:{colour};color:#111;padding:1px 4px;margin:1px;"
    "border-radius:3px;display:inline-block;{extra}'>{text}</span>"
)
_PAGE = "<div style='font-family:monospace;font-size:13px;line-height:1.9'>{rows}{legend}</div>"
_SIGNAL = "border-bottom:4px solid rgba(192,32,32,{strength:.2f})"


def authored_tokens(trajectory: Trajectory) -> Iterator[tuple[int, str, int]]:
    """(token id, author, turn) of every token in order; the prompt belongs to turn -1."""
    yield from ((token, "prompt", -1) for token in trajectory.prompt_ids)
    for index, turn in enumerate(trajectory.turns):
        yield from ((token, "policy", index) for token in turn.sampled_ids)
        yield from ((token, "environment", index) for token in turn.observation_ids)


def trajectory_html(
    trajectory: Trajectory,
    vocabulary: Vocabulary,
    *,
    signal: Sequence[float] | None = None,
    signal_name: str = "entropy",
) -> str:
    """One line per turn, tokens coloured by author.

    `signal` has one value per sampled token, in order (default: its entropy, nats); the larger its
    size relative to the trajectory's largest, the redder the bar under the token.
    """
    values = list(signal) if signal is not None else _entropies(trajectory)
    count = sum(len(turn.sampled_ids) for turn in trajectory.turns)
    if len(values) != count:
        raise ValueError(f"signal has {len(values)} values for {count} sampled tokens")
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0
    upcoming = iter(values)
    lines: dict[int, list[str]] = {}
    for token, author, turn in authored_tokens(trajectory):
        title, extra = author, ""
        if author == "policy":
            value = next(upcoming)
            title = f"{signal_name} {value:.4f}"
            extra = (
                _SIGNAL.format(strength=min(abs(value) / largest, 1.0)) if value == value else ""
            )
        text = html.escape(vocabulary.decode([token]))
        lines.setdefault(turn, []).append(
            _TOKEN.format(
                title=html.escape(title, quote=True), colour=COLOURS[author], extra=extra, text=text
            )
        )
    rows = [
        _row("question" if turn < 0 else f"turn {turn}", tokens) for turn, tokens in lines.items()
    ]
    return _PAGE.format(rows="".join(rows), legend=_legend())


def _row(label: str, tokens: Sequence[str]) -> str:
    name = f"<span style='display:inline-block;width:5.5em;color:#666'>{label}</span>"
    return f"<div>{name}{''.join(tokens)}</div>"


def _legend() -> str:
    parts = (
        _TOKEN.format(title=name, colour=colour, extra="", text=name)
        for name, colour in COLOURS.items()
    )
    return f"<div style='margin-top:6px;color:#666'>written by: {''.join(parts)}</div>"


def _entropies(trajectory: Trajectory) -> list[float]:
    return [value for turn in trajectory.turns for value in turn.sampled_entropies]


def turn_table(
    trajectory: Trajectory,
    vocabulary: Vocabulary,
    columns: dict[str, Sequence[float]] | None = None,
) -> pd.DataFrame:
    """One row per turn: action, texts, mean entropy (nats), and `columns` given per turn."""
    rows = [
        {
            "turn": index,
            "action": turn.action,
            "message": vocabulary.decode(turn.sampled_ids),
            "observation": vocabulary.decode(turn.observation_ids),
            "mean entropy": fmean(turn.sampled_entropies or (math.nan,)),
        }
        for index, turn in enumerate(trajectory.turns)
    ]
    extra = {name: list(values)[: len(rows)] for name, values in (columns or {}).items()}
    names = ["turn", "action", "message", "observation", "mean entropy"]
    return pd.DataFrame(rows, columns=names).assign(**extra).set_index("turn")
