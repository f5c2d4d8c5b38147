"""Absolute paths, so that code runs from any folder."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
METHODS = Path("params") / "methods.yaml"
"""What a checkout is known by."""


def repository() -> Path:
    """Root of the checkout: `TURNCREDIT_HOME` if set, otherwise two folders above the package.

    Of a package that is installed without its checkout, the nearest folder above the current one
    that holds params/methods.yaml, as of a notebook opened in a clone.
    """
    home = os.environ.get("TURNCREDIT_HOME")
    if home:
        return Path(home).resolve()
    own, here = PACKAGE.parents[1], Path.cwd()
    around = () if (own / "params").is_dir() else (here, *here.parents)
    return next((folder for folder in around if (folder / METHODS).is_file()), own)


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
