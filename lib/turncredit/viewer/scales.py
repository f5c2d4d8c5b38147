"""From a signal's value to a colour class, a number to read, and a legend."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SIGNALS = {
    "entropy": ("sequential", "nats"),
    "advantage": ("diverging", ""),
    "ratio": ("ratio", ""),
    "probability ratio": ("ratio", ""),
}
"""Scale and unit of the signals that have a name of their own; any other is `diverging`."""

SCALES = ("sequential", "diverging", "ratio")
SEQUENTIAL_STEPS = 8
DIVERGING_STEPS = 5
"""Shades beside the neutral one, on each side."""

MISSING = "na"
"""Colour class of a value that is None, NaN or infinite."""

_SMALLEST_LIMIT = 0.01
"""A signal that never exceeds this (a ratio's logarithm likewise) is rounding, not colour."""

_ROUNDING = 1e-3


@dataclass(frozen=True)
class Scale:
    """Colours of one signal: `sequential` from 0, `diverging` around 0, `ratio` around 1 in logs.

    A value at `limit` or beyond has the strongest colour.
    """

    signal: str
    kind: str
    unit: str
    limit: float

    def colour(self, value: float | None) -> str:
        """The class of a value: e0 .. e8, or n5 .. n1, z0, p1 .. p5; `na` if missing.

        >>> entropy = Scale("entropy", "sequential", "nats", 2.0)
        >>> entropy.colour(0.0), entropy.colour(1.0), entropy.colour(9.0), entropy.colour(None)
        ('e0', 'e4', 'e8', 'na')
        >>> ratio = Scale("ratio", "ratio", "", 4.0)
        >>> ratio.colour(0.25), ratio.colour(1.0), ratio.colour(4.0)
        ('n5', 'z0', 'p5')
        """
        if is_missing(value):
            return MISSING
        position = self._position(value)
        if self.kind == "sequential":
            return f"e{round(max(position, 0.0) * SEQUENTIAL_STEPS)}"
        step = round(position * DIVERGING_STEPS)
        return f"p{step}" if step > 0 else f"n{-step}" if step < 0 else "z0"

    def number(self, value: float | None) -> str:
        """The value to four digits, with sign or unit.

        >>> Scale("advantage", "diverging", "", 1.0).number(0.70710678)
        '+0.7071'
        """
        if is_missing(value):
            return "missing"
        digits = format(value, "+.4g" if self.kind == "diverging" and value else ".4g")
        return f"{digits} {self.unit}".rstrip()

    def legend(self) -> list[tuple[str, float]]:
        """(colour class, value) of every shade, from the lowest to the highest."""
        steps = SEQUENTIAL_STEPS if self.kind == "sequential" else DIVERGING_STEPS
        lowest = 0 if self.kind == "sequential" else -steps
        shares = [step / steps for step in range(lowest, steps + 1)]
        values = [self.limit**s if self.kind == "ratio" else self.limit * s for s in shares]
        return [(self.colour(value), value) for value in values]

    def _position(self, value: float) -> float:
        """-1 .. 1; 0 is the neutral colour."""
        if self.kind == "ratio":
            share = math.log(value) / math.log(self.limit) if value > 0 else -1.0
        else:
            share = value / self.limit
        return min(max(share, -1.0), 1.0)


def is_missing(value: float | None) -> bool:
    """None, NaN and infinities are missing: none of them has a place on a scale."""
    return value is None or not math.isfinite(value)


def signal_scale(
    signal: str,
    values: Iterable[float | None],
    *,
    scale: str | None = None,
    limit: float | None = None,
) -> Scale:
    """The scale of `signal` over `values`, its limit the largest of them unless one is given.

    Raises ValueError for an unknown scale, for a limit that is none (positive; above 1 for a
    ratio) and for a value the scale has no place for: negative on `sequential` and `ratio`.
    """
    usual, unit = SIGNALS.get(signal, ("diverging", ""))
    kind = scale or usual
    if kind not in SCALES:
        raise ValueError(f"unknown scale {kind!r}; there are: {', '.join(SCALES)}")
    known = [value for value in values if not is_missing(value)]
    _check_values(signal, kind, known)
    lowest = 1.0 if kind == "ratio" else 0.0
    if limit is not None and not lowest < limit < math.inf:
        raise ValueError(f"limit: {limit} for a {kind} scale; it must be finite and > {lowest:g}")
    return Scale(signal, kind, unit, _largest(kind, known) if limit is None else limit)


def _check_values(signal: str, kind: str, known: Sequence[float]) -> None:
    allowed = {"sequential": -_ROUNDING, "ratio": 0.0, "diverging": -math.inf}[kind]
    wrong = [value for value in known if value < allowed]
    if wrong:
        raise ValueError(f"{signal}: {wrong[0]} is negative, a {kind} scale has no place for it")


def _largest(kind: str, known: Sequence[float]) -> float:
    if kind == "ratio":
        logs = [abs(math.log(value)) for value in known if value > 0]
        return math.exp(min(max([*logs, _SMALLEST_LIMIT]), 700.0))
    return max([*map(abs, known), _SMALLEST_LIMIT])
