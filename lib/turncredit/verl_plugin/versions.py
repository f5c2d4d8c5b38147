"""Is there the verl that this plugin was written for, with all that its trainer imports?"""

from collections.abc import Callable
from importlib import metadata

VERL = "0.9.1"
"""Trainer, agent loop and registries are verl's inner parts, which every release may change."""

UNDECLARED = ("cachetools", "uvicorn", "fastapi", "TransferQueue")
"""What verl's trainer imports and its own requirements leave out."""


def require_verl(version: Callable[[str], str] = metadata.version) -> None:
    """Raise ImportError with the remedy unless verl 0.9.1 and its helpers are installed.

    version: name of a distribution -> its version, or `PackageNotFoundError`.
    """
    found = _version_of("verl", version)
    remedy = f'pip install "verl=={VERL}" {" ".join(UNDECLARED)}, or `make env-verl`'
    if found is None:
        raise ImportError(f"verl is not installed; {remedy}")
    if found.split("+")[0] != VERL:
        raise ImportError(f"verl {found} is installed, this plugin is for {VERL}; {remedy}")
    missing = [name for name in UNDECLARED if _version_of(name, version) is None]
    if missing:
        raise ImportError(f"verl's trainer needs {', '.join(missing)}, not installed; {remedy}")


def _version_of(name: str, version: Callable[[str], str]) -> str | None:
    try:
        return version(name)
    except metadata.PackageNotFoundError:
        return None
