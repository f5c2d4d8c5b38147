"""One trajectory: its tokens with their authors, as HTML, and as a table of turns."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import pandas as pd

from turncredit.records import Trajectory
from turncredit.viewer import parts
from turncredit.viewer.scales import Scale, signal_scale
from turncredit.viewer.text import Decoder, decoded, markup, readable


def authored_tokens(trajectory: Trajectory) -> Iterator[tuple[int, str, int]]:
    """(token id, author, turn) of every token in order; the prompt belongs to turn -1."""
    yield from ((token, "prompt", -1) for token in trajectory.prompt_ids)
    for index, turn in enumerate(trajectory.turns):
        yield from ((token, "policy", index) for token in turn.sampled_ids)
        yield from ((token, "environment", index) for token in turn.observation_ids)


def trajectory_html(
    trajectory: Trajectory,
    vocabulary: Decoder,
    *,
    signal: Sequence[float | None] | None = None,
    signal_name: str = "entropy",
    scale: str | None = None,
    limit: float | None = None,
) -> str:
    """The question, one block per turn, and the outcome; sampled tokens coloured by a signal.

    `signal` has one value per sampled token, in order (default: its sampled entropy, nats); None,
    NaN and infinities are shown as missing.  `signal_name` chooses the colours: `entropy` rises
    from 0, `advantage` diverges around 0, `ratio` around 1 in logs, any other name diverges
    around 0 unless `scale` (sequential, diverging, ratio) says otherwise.  The strongest colour
    stands for `limit`, by default the largest value of this trajectory.

    Raises ValueError for another number of values, for one the scale has no place for, and for
    ids the vocabulary does not know.
    """
    by_turn = split_by_turn(trajectory, signal, "signal")
    values = [value for turn in by_turn for value in turn]
    colours = signal_scale(signal_name, values, scale=scale, limit=limit)
    blocks = "".join(
        _block(trajectory, index, by_turn[index], vocabulary, colours)
        for index in range(len(trajectory.turns))
    )
    name = f'<span class="name">question {markup(trajectory.question_id)}</span>'
    counts = ("turns", str(len(trajectory.turns))), ("sampled tokens", str(len(values)))
    top = f'<div class="top">{name}{parts.facts([*parts.outcome(trajectory), *counts])}</div>'
    asked = f'<div class="card">{parts.question(trajectory, vocabulary)}</div>'
    blocks = blocks or '<p class="quiet">no turns</p>'
    body = f"{top}{parts.legend(colours)}<div>{asked}{blocks}</div>"
    return parts.view(f"trajectory of question {trajectory.question_id}", body)


def _block(
    trajectory: Trajectory,
    index: int,
    values: Sequence[float | None],
    vocabulary: Decoder,
    scale: Scale,
) -> str:
    turn = trajectory.turns[index]
    where = f"{trajectory.question_id}, turn {index}"
    head = parts.headline(f"turn {index} ", turn, values, scale)
    return (
        f'<details class="card" open><summary>{head}'
        f"</summary>{parts.body(where, turn, values, vocabulary, scale)}</details>"
    )


def split_by_turn(
    trajectory: Trajectory, signal: Sequence[float | None] | None, name: str
) -> list[list[float | None]]:
    """The signal's values of each turn (default: the sampled entropies), as Python floats.

    Raises ValueError naming `name` unless there is one value per sampled token.
    """
    if signal is None:
        return [list(turn.sampled_entropies) for turn in trajectory.turns]
    values = [None if value is None else float(value) for value in signal]
    count = sum(len(turn.sampled_ids) for turn in trajectory.turns)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} sampled tokens")
    upcoming = iter(values)
    return [[next(upcoming) for _ in turn.sampled_ids] for turn in trajectory.turns]


def turn_table(
    trajectory: Trajectory,
    vocabulary: Decoder,
    columns: Mapping[str, Sequence[float]] | None = None,
) -> pd.DataFrame:
    """One row per turn: action, texts, mean entropy (nats), and `columns` given per turn.

    A column may be a row of a padded [B, T] tensor: what follows the last turn is left out.
    Hidden characters are written as their numbers.  Raises ValueError for a column too short.
    """
    rows = [
        {
            "turn": index,
            "action": turn.action,
            "message": _text(vocabulary, turn.sampled_ids, trajectory, index, "sampled_ids"),
            "observation": _text(
                vocabulary, turn.observation_ids, trajectory, index, "observation_ids"
            ),
            "mean entropy": fmean(turn.sampled_entropies or (math.nan,)),
        }
        for index, turn in enumerate(trajectory.turns)
    ]
    for name, values in (columns or {}).items():
        if len(values) < len(rows):
            raise ValueError(f"column {name!r} has {len(values)} values for {len(rows)} turns")
    extra = {name: list(values)[: len(rows)] for name, values in (columns or {}).items()}
    names = ["turn", "action", "message", "observation", "mean entropy"]
    return pd.DataFrame(rows, columns=names).assign(**extra).set_index("turn")


def _text(
    vocabulary: Decoder, ids: Sequence[int], trajectory: Trajectory, turn: int, field: str
) -> str:
    return readable(decoded(vocabulary, ids, f"{trajectory.question_id}, turn {turn}, {field}"))
