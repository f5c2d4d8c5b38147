"""One look for all figures, and files whose bytes depend on the data alone."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec

import matplotlib
from matplotlib.figure import Figure

from turncredit.storage import atomic_path, sha256_text

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

# One look per arm, colour and marker, in every figure.  The first six colours are Okabe and Ito's;
# no palette keeps this many apart, so arms of one marker differ in colour for every common colour
# vision, and arms of nearly one colour differ in marker (test_plots_looks states by how much).
ARM_LOOKS = {
    "grpo": ("#0072B2", "o"),
    "dr_grpo": ("#730000", "o"),
    "dapo": ("#BF4C4C", "o"),
    "rloo": ("#BF994C", "o"),
    "reinforce_pp": ("#4C4C73", "o"),
    "gae": ("#99BF99", "o"),
    "suffix_mask": ("#D55E00", "s"),
    "random_suffix": ("#009E73", "s"),
    "drop_failed": ("#CC79A7", "^"),
    "high_entropy_turns": ("#56B4E9", "^"),
    "oracle_suffix": ("#990000", "s"),
    "scale_failed": ("#4C4CBF", "^"),
    "scale_ungrounded": ("#7300E6", "^"),
    "high_is_turns": ("#730073", "^"),
    "aem": ("#E69F00", "D"),
    "aem_shuffle": ("#BF0000", "D"),
    "aem_reverse": ("#BF73BF", "D"),
    "aem_traj_norm": ("#7300BF", "D"),
    "aem_batch_norm": ("#004C4C", "D"),
    "aem_corrected": ("#0000F2", "D"),
    "keep_entropy_up": ("#73BF73", "D"),
    "keep_entropy_down": ("#9973E6", "D"),
    "gspo": ("#732699", "v"),
    "turn_gspo": ("#BF734C", "v"),
    "cispo": ("#2699BF", "v"),
    "gppo": ("#4C4C26", "v"),
    "gigpo": ("#73734C", "P"),
    "empg": ("#4C9926", "P"),
    "igpo": ("#E699BF", "P"),
    "mt_grpo": ("#734CE6", "P"),
    "true_advantage": ("#000066", "P"),
    "vineppo": ("#66EE00", "P"),
    "vineppo_lean": ("#551111", "P"),
    "turn_returns": ("#994C73", "P"),
    "adrs": ("#99004C", "p"),
    "adrs_turns": ("#008866", "d"),
    "adrs_repaired": ("#880066", "d"),
    "arpo": ("#E64C73", "p"),
    "aepo": ("#BF4C99", "p"),
    "cleaner": ("#262699", "p"),
    "cleaner_part": ("#3C0C0C", "d"),
    "actguide": ("#7399E6", "p"),
    "actguide_whole": ("#EE6688", "8"),
    "arpo_hard": ("#88EE66", "p"),
    "aepo_update": ("#886622", "p"),
    "aepo_one_symbol": ("#220000", "p"),
    "mask_zscore": ("#AA44BB", "X"),
    "mask_leave_one_out": ("#66CC11", "X"),
    "mask_margin": ("#224433", "X"),
    "mask_mad": ("#CCBBBB", "X"),
    "mask_quantile": ("#330044", "X"),
    "mask_running": ("#8833FF", "X"),
    "mask_argmax": ("#FF99FF", "X"),
    "mask_last": ("#EE8866", "X"),
    "mask_absolute": ("#665522", "X"),
    "aem_quarter": ("#99CCEE", "H"),
    "aem_half": ("#442222", "H"),
    "aem_double": ("#1111CC", "H"),
    "aem_fivefold": ("#CCBB44", "H"),
    "aem_no_guard": ("#AA0088", "H"),
    "aem_strict_guard": ("#AA66FF", "H"),
    "aem_relative_guard": ("#000022", "H"),
    "dapo_aem": ("#8877AA", "d"),
    "gspo_aem": ("#00DD77", "d"),
    "token_tight": ("#22CCCC", "8"),
    "turn_published": ("#551144", "8"),
    "turn_wide": ("#DD1100", "8"),
    "sequence_wide": ("#8855DD", "8"),
}
ARM_COLOURS = {arm: colour for arm, (colour, _) in ARM_LOOKS.items()}
SPARE_LOOKS = (
    ("#999999", ">"), ("#7A4FA3", "h"), ("#66DD66", "<"), ("#112233", "*"), ("#000044", ">"),
    ("#FF2233", "h"), ("#EE66DD", "<"), ("#AADD00", "*"), ("#550000", ">"), ("#771133", "h"),
    ("#116655", "<"), ("#CC4488", "*"), ("#BB00CC", ">"), ("#BBCC99", "h"), ("#550077", "<"),
    ("#AA88FF", "*"), ("#DDAA55", ">"), ("#110088", "h"), ("#99AA99", "<"), ("#335588", ">"),
)  # fmt: skip
"""For arms that the library does not know, of a user's own; their markers are no one else's."""

_ACRONYMS = (
    "GRPO DAPO RLOO GAE AEM GSPO CISPO GPPO GiGPO EMPG IGPO MT ADRS ARPO AEPO CLEANER ActGuide IS"
)
_WORDS = {word.lower(): word for word in (*_ACRONYMS.split(), "REINFORCE", "VinePPO")}
_WORDS |= {"dr": "Dr.", "pp": "++"}


def arm_looks(arms: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each arm: its own, or a spare one if the library does not know it.

    Which spare one follows from its name, in any order of `arms`; only where two names come to the
    same does the company matter.  Raises ValueError for more unknown arms than spare looks.
    """
    unknown = sorted({arm for arm in arms if arm not in ARM_LOOKS})
    if len(unknown) > len(SPARE_LOOKS):
        raise ValueError(f"no colour left for the arms {', '.join(unknown[len(SPARE_LOOKS) :])}")
    spare: dict[str, tuple[str, str]] = {}
    for arm in unknown:
        first = int(sha256_text(arm), 16) % len(SPARE_LOOKS)
        order = [*SPARE_LOOKS[first:], *SPARE_LOOKS[:first]]
        spare[arm] = next(look for look in order if look not in spare.values())
    return {arm: ARM_LOOKS.get(arm) or spare[arm] for arm in arms}


def arm_colours(arms: Sequence[str]) -> dict[str, str]:
    """Colour of each arm, as in `arm_looks`."""
    return {arm: colour for arm, (colour, _) in arm_looks(arms).items()}


def arm_label(arm: str) -> str:
    """An arm's name as a reader sees it.

    >>> arm_label("grpo"), arm_label("suffix_mask"), arm_label("reinforce_pp")
    ('GRPO', 'suffix mask', 'REINFORCE++')
    """
    words = [_WORDS.get(word, word) for word in arm.split("_")]
    return " ".join(words).replace(" ++", "++")


def task_label(task: str) -> str:
    """A task's name as a reader sees it."""
    return task.replace("-", ", ").replace("_", " ")


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
