"""One look for all figures, and files whose bytes depend on the data alone."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec

import matplotlib
from matplotlib.figure import Figure

from turncredit.storage import atomic_path

P = ParamSpec("P")

WIDTH = 9.0
"""Inches; 1800 pixels in the PNG, so that text of 8 points is legible at 1200 pixels."""

RC = {
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same on every machine
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "turncredit",
    "svg.fonttype": "path",
}

# Okabe and Ito's palette: told apart with every common colour vision.  An arm keeps its colour.
ARM_COLOURS = {
    "grpo": "#0072B2",
    "suffix_mask": "#D55E00",
    "random_suffix": "#009E73",
    "drop_failed": "#CC79A7",
    "aem": "#E69F00",
    "high_entropy_turns": "#56B4E9",
}
_SPARE_COLOURS = ("#000000", "#999999", "#7A4FA3", "#8C6D31")

_ARM_NAMES = {"grpo": "GRPO", "aem": "AEM"}


def arm_colours(arms: Sequence[str]) -> dict[str, str]:
    """Colour of each arm: its own if it has one, otherwise a spare one in the order of `arms`."""
    unknown = [arm for arm in arms if arm not in ARM_COLOURS]
    if len(unknown) > len(_SPARE_COLOURS):
        raise ValueError(f"no colour left for the arms {', '.join(unknown[len(_SPARE_COLOURS) :])}")
    spare = dict(zip(unknown, _SPARE_COLOURS, strict=False))
    return {arm: ARM_COLOURS.get(arm) or spare[arm] for arm in arms}


def arm_label(arm: str) -> str:
    """An arm's name as a reader sees it.

    >>> arm_label("grpo"), arm_label("suffix_mask")
    ('GRPO', 'suffix mask')
    """
    return _ARM_NAMES.get(arm, arm.replace("_", " "))


def task_label(task: str) -> str:
    """A task's name as a reader sees it."""
    return task.replace("_", " ")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`draw` under this style, whatever the caller's settings; they are restored afterwards."""

    @functools.wraps(draw)
    def under_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return under_style


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """This style alone: what the caller or a matplotlibrc file has set would change the bytes."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `folder`/`name`.png and .svg atomically; equal figures give equal bytes.

    No date and no program version are stored.  Raises OSError naming the file it cannot write.
    """
    with _style():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once: both files, and a second saving, are alike
    written = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        target = folder / f"{name}.{suffix}"
        with _style(), atomic_path(target) as temporary:
            figure.savefig(temporary, format=suffix, metadata=metadata)
        written.append(target)
    return written
