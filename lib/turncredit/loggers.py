"""Optional live logs beside the tables of a run: TensorBoard and Weights & Biases.

The CSV tables are always written and are what figures read; these writers only repeat numbers for
watching.  Neither package is needed unless its writer is asked for.
"""

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from turncredit.storage import sha256_json


class LogWriter(Protocol):
    """A place that numbers go to."""

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the numbers of a step; one that is missing (None or NaN) is left out."""

    def close(self) -> None:
        """Flush and end; may be called twice."""


def log_writers(
    names: Sequence[str], run_dir: Path, config: Mapping[str, Any]
) -> tuple[LogWriter, ...]:
    """Open the writers of these names, "tensorboard" or "wandb", for the run that lies in run_dir.

    config: what the run is made of, plain values.  Nothing is written before the first step.  A run
    that goes on from a checkpoint overwrites in TensorBoard what an interrupted one logged after
    it, and carries on in the same run of Weights & Biases.

    Raises ValueError for an unknown or repeated name, and ModuleNotFoundError naming the package
    that a writer needs and the environment lacks.

    >>> log_writers([], Path("run"), {})
    ()
    """
    for place, name in enumerate(names):
        if name not in WRITERS:
            raise ValueError(f"unknown log writer {name!r}; there are: {', '.join(WRITERS)}")
        if name in names[:place]:
            raise ValueError(f"log writers = {list(names)} repeats {name!r}")
    for name in names:
        _require(name)
    return tuple(WRITERS[name](run_dir, config) for name in names)


class TensorBoard:
    """Scalars in run_dir/tensorboard, the config as text at the first step."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._folder, self._config = run_dir / "tensorboard", dict(config)
        self._events: Any = None

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Add one scalar per number."""
        known = known_numbers(values)
        if self._events is None:
            module = importlib.import_module("torch.utils.tensorboard")
            # From this step on, hide what an interrupted run logged into the same folder.
            self._events = module.SummaryWriter(str(self._folder), purge_step=step)
            lines = [f"    {name}: {value}" for name, value in sorted(self._config.items())]
            self._events.add_text("config", "\n".join(lines), step)
        for name, value in known.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is still held back."""
        if self._events is not None:
            self._events.close()


class WeightsAndBiases:
    """A run named after the last three parts of run_dir: task/arm/seed_<s>.

    The project is WANDB_PROJECT or "turncredit"; mode, account and the rest are the package's own
    settings (WANDB_MODE=offline keeps everything on this machine, in run_dir/wandb).
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._folder, self._config = run_dir, dict(config)
        self._run: Any = None

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the numbers of a step at once."""
        known = known_numbers(values)
        if self._run is None:
            self._run = self._start()
        self._run.log(known, step=step)

    def _start(self) -> Any:
        name = "/".join(self._folder.parts[-3:])
        self._folder.mkdir(parents=True, exist_ok=True)
        return importlib.import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", "turncredit"),
            name=name,
            id=sha256_json([name, self._config])[:16],  # the same run again: the same page
            resume="allow",
            dir=str(self._folder),
            config=self._config,
        )

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


WRITERS: dict[str, Callable[[Path, Mapping[str, Any]], LogWriter]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
"""Writers by name; each needs the package of the same name."""


def known_numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """The values that are not missing, as floats; ValueError naming one that is no number.

    >>> known_numbers({"reward": 0.5, "gate_turn": math.nan, "grounded": None, "failed": 3})
    {'reward': 0.5, 'failed': 3.0}
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, (bool, int, float)):
            raise ValueError(f"log value {name} = {value!r} is not a number")
    known = {name: float(value) for name, value in values.items() if value is not None}
    return {name: value for name, value in known.items() if not math.isnan(value)}


def _require(package: str) -> None:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"log writer {package!r} needs the package {package}: pip install {package}, or leave"
            " the writer out (the CSV tables are written in any case)",
            name=package,
        ) from error
