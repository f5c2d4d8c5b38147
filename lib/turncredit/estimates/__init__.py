"""Memory and time of a training step, predicted before anything is loaded.

An upper bound from shapes: every trajectory is as long as `policy.max_tokens`, and every turn as
long as `training.max_turn_tokens`.  Time is work over a measured rate, never over a rate from a
data sheet.

    predicted = estimate(task)
    predicted.require_fits()
    print(predicted.sentence(measure_rates(predicted)))
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turncredit.estimates.machine import Rates, available_memory
from turncredit.estimates.machine import measure_rates as _measure_rates
from turncredit.estimates.parts import (
    Operations,
    Parts,
    model_parts,
    operations,
    tiny_parts,
    work_of,
)
from turncredit.estimates.sizes import Sizes, model_sizes, tiny_sizes

if TYPE_CHECKING:
    from turncredit.tasks import Task

PROCESS_BYTES = 2**29
"""What a process takes for its libraries, or for its context on a GPU."""


@dataclass(frozen=True)
class Estimate:
    """What a training step of a task takes at the most."""

    file: str
    """The params file of the task."""
    device: str
    dtype: str
    """Of the products."""
    sizes: Sizes
    trajectories: int
    """Of a step."""
    tokens: int
    """Of a trajectory."""
    parts: Parts
    operations: Operations

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment: rollout and backward are never alive together."""
        parts = self.parts
        resident = (
            parts.weights + parts.gradients + parts.optimiser + parts.reference + parts.engine
        )
        return resident + max(parts.activations + parts.logits, parts.rollout)

    def seconds(self, rates: Rates) -> float:
        """Seconds of a step, all trajectories as long as they may be; matrix products alone."""
        work = self.operations
        return work.reading / rates.reading + work.speaking / rates.speaking

    def sentence(self, rates: Rates | None = None) -> str:
        """One line for a notebook to print before it starts; with rates, also the time."""
        text = (
            f"{self.file}: {_count(self.sizes.parameters)} parameters "
            f"({_count(self.sizes.trained)} trained) on {self.device}; a step of "
            f"{self.trajectories} trajectories of up to {self.tokens} tokens takes up to "
            f"{_gib(self.peak)} ({self._listed()})"
        )
        return text if rates is None else f"{text}, and about {self.seconds(rates):.2g} s"

    def require_fits(self, available: int | None = None, *, processes: int = 1) -> None:
        """Raise ValueError naming file and keys unless `processes` such runs fit at a time.

        available: bytes; None for what the device has left now.
        """
        available = available_memory(self.device) if available is None else available
        needed = processes * (self.peak + PROCESS_BYTES)
        if needed <= available:
            return
        weighty = [name for name, size in self.parts._asdict().items() if 10 * size >= self.peak]
        keys = [key for name in weighty for key in _KEYS[name]]
        keys = [*(["TURNCREDIT_JOBS"] if processes > 1 else []), *dict.fromkeys(keys)]
        raise ValueError(
            f"{self.file}: {processes} run{'s' if processes > 1 else ''} at a time may take "
            f"{_gib(needed)} on {self.device}, which has {_gib(available)} left "
            f"({self._listed()}); change {', '.join(keys)}"
        )

    def _listed(self) -> str:
        parts = self.parts._asdict().items()
        return ", ".join(f"{name} {_gib(size)}" for name, size in parts if size)


def estimate(task: "Task") -> Estimate:
    """What a step of `task` takes; reads sizes alone.  Raises what opening its model raises."""
    settings, policy = task.settings, task.settings.policy
    work = work_of(settings)
    if policy.KIND == "tiny":
        device, dtype, count = "cpu", "float32", tiny_parts
        sizes = tiny_sizes(policy, len(task.vocabulary))
    else:
        device, dtype, count = policy.device, policy.dtype, model_parts
        sizes = model_sizes(policy)
    return Estimate(
        file=f"params/{task.tier}/tasks/{task.name}.yaml",
        device=device,
        dtype=dtype,
        sizes=sizes,
        trajectories=work.rows,
        tokens=work.tokens,
        parts=count(settings, sizes, work),
        operations=operations(settings, sizes, work),
    )


def measure_rates(predicted: Estimate) -> Rates:
    """Operations per second of the estimate's device on its own shapes; takes half a second."""
    tokens = predicted.tokens * predicted.trajectories
    return _measure_rates(
        predicted.sizes,
        predicted.device,
        predicted.dtype,
        reading_rows=min(2048, tokens),
        speaking_rows=predicted.trajectories,
    )


_MODEL = ("policy (a smaller model, its dtype, its lora)",)
_GROUPS = ("training.questions_per_step", "training.group_size")
_KEYS = {
    "weights": _MODEL,
    "gradients": _MODEL,
    "optimiser": _MODEL,
    "reference": ("training.kl", *_MODEL),
    "activations": ("training.micro_batch", "policy.micro_batch_rows",
                    "policy.gradient_checkpointing", "policy.max_tokens"),
    "logits": ("training.micro_batch", "policy.max_tokens"),
    "rollout": (*_GROUPS, "evaluation.questions", "policy.max_tokens"),
    "engine": ("policy.engine_cache_gib", "policy.engine_dtype"),
}  # fmt: skip
"""The parts of an estimate, and the keys that make each smaller."""


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _count(number: int) -> str:
    """A count of parameters.

    >>> _count(1_543_714_304), _count(18_464_768), _count(112_000)
    ('1.54 B', '18.5 M', '0.112 M')
    """
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"
