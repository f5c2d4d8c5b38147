"""The environment variables that a command runs under, as the Makefile sets them."""

import contextlib
import os
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from turncredit import paths
from turncredit.cli.output import note_warning

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""One thread a process, as under make: sums in another order would be other numbers.  A variable
that is set already stays; it must be set before torch is imported."""


@contextlib.contextmanager
def surroundings(options: Namespace) -> Iterator[None]:
    """Set what the options ask for, restore it afterwards; warnings become notes meanwhile."""
    wanted = dict.fromkeys((name for name in THREADS if name not in os.environ), "1")
    if options.results is not None:
        wanted["TURNCREDIT_RESULTS"] = str(options.results.resolve())
    if getattr(options, "jobs", None):
        wanted["TURNCREDIT_JOBS"] = str(options.jobs)
    if home := home_of(options.params):
        wanted["TURNCREDIT_HOME"] = str(home)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = note_warning
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def home_of(params_file: Path) -> Path | None:
    """The folder above params/<tier>/FILE where the package is installed without a checkout.

    It comes before a checkout around the current folder: it was named.
    """
    if "TURNCREDIT_HOME" in os.environ or (paths.PACKAGE.parents[1] / "params").is_dir():
        return None
    folder = params_file.resolve().parents[1]
    return folder.parent if folder.name == "params" else None
