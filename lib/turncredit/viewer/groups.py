"""A group: the trajectories of one question side by side, turns in line."""

from collections.abc import Sequence

from turncredit.records import Trajectory
from turncredit.viewer import parts
from turncredit.viewer.scales import Scale, is_missing, signal_scale
from turncredit.viewer.text import Decoder, markup
from turncredit.viewer.trajectories import split_by_turn

Values = list[list[float | None]]
"""A signal by turn, by token."""


def group_html(
    trajectories: Sequence[Trajectory],
    vocabulary: Decoder,
    *,
    advantages: Sequence[float | None] | None = None,
    signals: Sequence[Sequence[float | None]] | None = None,
    signal_name: str = "entropy",
    scale: str | None = None,
    limit: float | None = None,
) -> str:
    """The trajectories of one question as columns, their turns as rows, on one colour scale.

    `advantages` has one value per trajectory (not given, None or NaN: shown as missing).
    `signals` has for each trajectory what `trajectory_html` calls `signal`; the other options are
    those of `trajectory_html`, and the default `limit` is the largest value of the whole group.

    Raises ValueError for no trajectories, for more than one question, for wrong numbers of
    advantages or signals, and for what `trajectory_html` refuses.
    """
    _check(trajectories, advantages, signals)
    given = [None] * len(trajectories) if signals is None else signals
    values = [
        split_by_turn(trajectory, signal, f"signals[{row}]")
        for row, (trajectory, signal) in enumerate(zip(trajectories, given, strict=True))
    ]
    every = [value for by_turn in values for turn in by_turn for value in turn]
    colours = signal_scale(signal_name, every, scale=scale, limit=limit)
    name = trajectories[0].question_id
    top = (
        f'<div class="top"><span class="name">question {markup(name)}</span>'
        f"{parts.facts(_summary(trajectories))}</div>"
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="trajectories side by side">'
        f'<table class="group"><thead>{_head(trajectories, advantages)}</thead>'
        f"<tbody>{_rows(trajectories, values, vocabulary, colours)}</tbody></table></div>"
    )
    shared = _shared_question(trajectories, vocabulary)
    return parts.view(f"group of question {name}", top + parts.legend(colours) + shared + table)


def _check(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | None] | None,
    signals: Sequence[Sequence[float | None]] | None,
) -> None:
    if not trajectories:
        raise ValueError("group_html: no trajectories")
    names = sorted({t.question_id for t in trajectories})
    if len(names) > 1:
        raise ValueError(f"a group has one question, not {names[0]} and {names[1]}")
    for name, given in (("advantages", advantages), ("signals", signals)):
        if given is not None and len(given) != len(trajectories):
            raise ValueError(f"{name} has {len(given)} values for {len(trajectories)} trajectories")


def _summary(trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    mean = parts.number(sum(rewards) / len(rewards) if rewards else None)
    gone = len(trajectories) - len(rewards)
    note = f' <span class="gone">{gone} missing</span>' if gone and rewards else ""
    return [
        ("trajectories", str(len(trajectories))),
        ("successes", str(sum(t.success for t in trajectories))),
        ("mean reward", mean + note),
    ]


def _shared_question(trajectories: Sequence[Trajectory], vocabulary: Decoder) -> str:
    """The question once, or nothing when prompts differ: then each column begins with its own."""
    if _one_prompt(trajectories):
        return f'<div class="card">{parts.question(trajectories[0], vocabulary)}</div>'
    return ""


def _one_prompt(trajectories: Sequence[Trajectory]) -> bool:
    return len({t.prompt_ids for t in trajectories}) == 1


def _head(trajectories: Sequence[Trajectory], advantages: Sequence[float | None] | None) -> str:
    given = [None] * len(trajectories) if advantages is None else list(advantages)
    values = [None if value is None else float(value) for value in given]
    scale = signal_scale("advantage", values)
    cells = "".join(
        f'<th class="cell" scope="col"><span class="name">trajectory {row}</span>'
        f"{parts.facts(_facts(trajectory, value, scale))}</th>"
        for row, (trajectory, value) in enumerate(zip(trajectories, values, strict=True))
    )
    return f'<tr><th class="side" scope="col">turn</th>{cells}</tr>'


def _facts(trajectory: Trajectory, advantage: float | None, scale: Scale) -> list[tuple[str, str]]:
    reward, *others = parts.outcome(trajectory)
    shown = f'<span class="s {scale.colour(advantage)}">{scale.number(advantage)}</span>'
    return [reward, ("advantage", parts.missing() if is_missing(advantage) else shown), *others]


def _rows(
    trajectories: Sequence[Trajectory],
    values: Sequence[Values],
    vocabulary: Decoder,
    scale: Scale,
) -> str:
    rows = []
    if not _one_prompt(trajectories):
        rows.append(_row("question", [parts.question(t, vocabulary) for t in trajectories]))
    for index in range(max(len(t.turns) for t in trajectories)):
        cells = [
            _cell(index, row, trajectory, by_turn, vocabulary, scale)
            for row, (trajectory, by_turn) in enumerate(zip(trajectories, values, strict=True))
        ]
        rows.append(_row(str(index), cells))
    return "".join(rows)


def _row(label: str, cells: Sequence[str]) -> str:
    columns = "".join(f'<td class="cell">{cell}</td>' for cell in cells)
    return f'<tr><th class="side" scope="row">{label}</th>{columns}</tr>'


def _cell(
    index: int,
    row: int,
    trajectory: Trajectory,
    values: Values,
    vocabulary: Decoder,
    scale: Scale,
) -> str:
    if index >= len(trajectory.turns):
        return '<span class="quiet">over</span>' if index == len(trajectory.turns) else ""
    turn = trajectory.turns[index]
    where = f"trajectory {row} of {trajectory.question_id}, turn {index}"
    head = parts.headline("", turn, values[index], scale)
    return (
        f"<details open><summary>{head}</summary>"
        f"{parts.body(where, turn, values[index], vocabulary, scale)}</details>"
    )
