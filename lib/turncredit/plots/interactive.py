"""Sliders over a figure where a kernel is live, the figure itself where none can be."""

import io
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
        from ipywidgets import FloatSlider, Image, VBox
    except ImportError:
        return draw(**{name: value for name, (value, *_) in ranges.items()})
    made = {
        name: FloatSlider(
            value=value, min=least, max=largest, step=step, description=name.replace("_", " "),
            continuous_update=False, readout_format=".4g", style={"description_width": "10em"},
        )
        for name, (value, least, largest, step) in ranges.items()
    }  # fmt: skip
    picture = Image(format="png", layout={"max_width": "100%"})

    def redraw(_: Any = None) -> None:
        picture.value = _png(draw(**{name: slider.value for name, slider in made.items()}))

    for slider in made.values():
        slider.observe(redraw, "value")
    redraw()
    return VBox([*made.values(), picture])


def _png(figure: Figure) -> bytes:
    """A picture, and no display within an output widget: nbclient 0.11 would wait for ever."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()
