"""Absolute paths, so that code runs from any folder."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def repository() -> Path:
    """Root of the checkout: `TURNCREDIT_HOME` if set, otherwise two folders above the package."""
    home = os.environ.get("TURNCREDIT_HOME")
    return Path(home).resolve() if home else PACKAGE.parents[1]


def params(tier: str) -> Path:
    """Folder with the parameter files of a tier."""
    return repository() / "params" / tier


def results(tier: str) -> Path:
    """Folder with the results of a tier; the notebook runner sets `TURNCREDIT_RESULTS` to it."""
    override = os.environ.get("TURNCREDIT_RESULTS")
    return Path(override).resolve() if override else repository() / "results" / tier


def cache() -> Path:
    """Folder for data derived from packages; safe to delete.  `TURNCREDIT_CACHE` overrides it."""
    override = os.environ.get("TURNCREDIT_CACHE")
    return Path(override).resolve() if override else repository() / ".cache"
