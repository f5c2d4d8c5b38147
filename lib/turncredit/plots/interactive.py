"""Sliders over a figure where a kernel is live, the figure itself where none can be."""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

Range = tuple[float, float, float, float]
"""Value to begin with, least, largest, step."""


def sliders(draw: Callable[..., Figure], ranges: Mapping[str, Range]) -> Any:
    """A widget with one slider for each argument of `draw`, which is called after every move.

    Without ipywidgets the figure of the values to begin with.  A page without a kernel shows no
    widget, so draw that figure in a cell of its own too.  Raises ValueError for a value to begin
    with that its slider could not show.
    """
    for name, (value, least, largest, step) in ranges.items():
        if not least <= value <= largest or step <= 0:
            raise ValueError(f"{name}: {value} does not lie on a slider of {least} to {largest}")
    try:
        from ipywidgets import FloatSlider, interactive
    except ImportError:
        return draw(**{name: value for name, (value, *_) in ranges.items()})
    made = {
        name: FloatSlider(
            value=value, min=least, max=largest, step=step, continuous_update=False,
            readout_format=".4g",
        )
        for name, (value, least, largest, step) in ranges.items()
    }  # fmt: skip
    return interactive(draw, {"auto_display": True}, **made)  # the figure is drawn for no window
