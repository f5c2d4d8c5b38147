"""Which range each numeric option of an objective has."""

from typing import Any

from turncredit.option_ranges import check_range

KINDS = {
    "clip_low": "decay",
    "clip_high": "threshold",
    "dual_clip": "above_one",
    "beta_low": "scale",
    "beta_high": "scale",
    "upper_cap": "positive",
    "total_tokens": "scale",
    "total_sequences": "scale",
    "max_length": "length",
}
UNUSED = ("dual_clip", "upper_cap", "total_tokens", "total_sequences", "max_length")
"""Options that may be None: not used."""


def check_options(owner: str, **options: Any) -> None:
    """Raise ValueError for the first option of `KINDS` that is out of range; others are not read.

    >>> check_options("gspo", clip_low=3.0e-4, aggregation="token_mean", max_length=None)
    >>> check_options("gspo", clip_low=1.0)
    Traceback (most recent call last):
    ValueError: gspo: clip_low is 1.0; it must be a number in 0 .. 1, 1 excluded
    """
    for name, value in options.items():
        if name in KINDS and not (value is None and name in UNUSED):
            check_range(owner, KINDS[name], **{name: value})
