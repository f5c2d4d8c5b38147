"""The pieces a view is made of: facts, legend, question, messages, observations."""

from collections.abc import Sequence
from itertools import groupby

from turncredit.records import Trajectory, Turn
from turncredit.viewer.scales import Scale, is_missing
from turncredit.viewer.styles import STYLE
from turncredit.viewer.text import Decoder, attribute, decoded, markup, pieces

OPENING = '<section class="tc '
_LONG_OBSERVATION = 1200
"""Characters; a longer observation starts folded."""


def view(label: str, body: str) -> str:
    """A whole view with its style sheet; MathJax is told to leave the text of it alone."""
    start = f'{OPENING}mathjax_ignore tex2jax_ignore" aria-label="{attribute(label)}">'
    return f"{start}<style>{STYLE}</style>{body}</section>"


def facts(entries: Sequence[tuple[str, str]]) -> str:
    """A list of (name, markup of the value)."""
    rows = "".join(f"<div><dt>{markup(name)}</dt><dd>{value}</dd></div>" for name, value in entries)
    return f'<dl class="facts">{rows}</dl>'


def outcome(trajectory: Trajectory) -> list[tuple[str, str]]:
    """(name, markup) of reward, success, grounded and stop reason; what is missing says so."""
    return [
        ("reward", number(trajectory.reward)),
        ("success", yes_or_no(trajectory.success)),
        ("grounded", yes_or_no(trajectory.grounded)),
        ("stopped by", markup(trajectory.stop_reason)),
    ]


def number(value: float | None) -> str:
    """Four digits; missing is not 0."""
    return missing() if is_missing(value) else f"{value:.4g}"


def yes_or_no(value: bool | None) -> str:
    """A mark and a word, so that neither colour nor sign is needed to read it."""
    if value is None:
        return missing()
    return "\u2713 yes" if value else "\u2717 no"


def missing() -> str:
    """How a missing value looks everywhere."""
    return '<span class="gone">missing</span>'


def legend(scale: Scale) -> str:
    """Which shade is which value, who wrote what, and how to see the numbers."""
    shades = scale.legend()
    labelled = {0, len(shades) // 2, len(shades) - 1}
    swatches = "".join(
        f'<span class="{colour}">{format(value, ".3g") if i in labelled else "&nbsp;"}</span>'
        for i, (colour, value) in enumerate(shades)
    )
    title = markup(f"{scale.signal} ({scale.unit})" if scale.unit else scale.signal)
    edges = "".join(
        f'<span class="edge {author}">{word}</span>'
        for author, word in (
            ("prompt", "question"), ("policy", "policy"), ("environment", "observation")
        )
    )  # fmt: skip
    return (
        f'<div class="legend"><span>{title} <span class="bar">{swatches}</span></span>'
        f'<span class="s na">missing</span><span>written by:</span>{edges}</div>'
        f'<details class="numbers"><summary>Numbers beside the tokens</summary>'
        f"Each coloured token is followed by its {markup(scale.signal)}; neighbours with equal "
        "numbers share one.</details>"
    )


def question(trajectory: Trajectory, decoder: Decoder) -> str:
    """What the policy was asked."""
    text = decoded(decoder, trajectory.prompt_ids, f"{trajectory.question_id}, prompt_ids")
    return f'<div class="said asked">{markup(text)}</div>'


def headline(label: str, turn: Turn, values: Sequence[float | None], scale: Scale) -> str:
    """Label and action of a turn, the mean of its signal, and whether its guess was right."""
    known = [value for value in values if not is_missing(value)]
    notes = [_tokens(len(turn.sampled_ids))]
    if known:
        notes.append(f"mean {scale.number(sum(known) / len(known))}")
    if turn.correct is not None:
        notes.append("\u2713 correct" if turn.correct else "\u2717 wrong")
    action = f'<span class="act">{markup(turn.action)}</span>'
    return f'{label}{action}<span class="note">{" · ".join(notes)}</span>'


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def body(
    where: str, turn: Turn, values: Sequence[float | None], decoder: Decoder, scale: Scale
) -> str:
    """The message of a turn, token by token, and the observation it caused."""
    return message(where, turn, values, decoder, scale) + _observation(where, turn, decoder)


def message(
    where: str, turn: Turn, values: Sequence[float | None], decoder: Decoder, scale: Scale
) -> str:
    """The sampled tokens, neighbours with equal numbers in one run."""
    if not turn.sampled_ids:
        return '<div class="said quiet">(no tokens)</div>'
    texts = pieces(decoder, turn.sampled_ids, f"{where}, sampled_ids")
    shown = [text or f"⟨{index}⟩" for text, index in zip(texts, turn.sampled_ids, strict=True)]
    pairs = zip(shown, values, strict=True)
    labelled = ((text, (scale.colour(v), scale.number(v))) for text, v in pairs)
    runs = groupby(labelled, key=lambda pair: pair[1])
    return f'<div class="said">{"".join(_run([t for t, _ in r], *key) for key, r in runs)}</div>'


def _run(texts: Sequence[str], colour: str, label: str) -> str:
    """One coloured stretch; the space before it stays outside, so that tokens stand apart."""
    text = "".join(texts)
    inner = text.lstrip(" ")
    before = text[: len(text) - len(inner)] if inner else ""
    title = label if len(texts) == 1 else f"{label} · {_tokens(len(texts))}"
    shown = markup(inner or text, mark_lines=True)
    return f'{before}<span class="s {colour}" title="{title}">{shown}</span>'


def _observation(where: str, turn: Turn, decoder: Decoder) -> str:
    if not turn.observation_ids:
        return ""
    text = decoded(decoder, turn.observation_ids, f"{where}, observation_ids")
    state = "" if len(text) > _LONG_OBSERVATION else " open"
    return (
        f'<details class="observed"{state}><summary>observation, '
        f"{_tokens(len(turn.observation_ids))}</summary>"
        f'<div class="said seen">{markup(text)}</div></details>'
    )
