"""What this machine has and does: memory left, operations per second."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from turncredit.estimates.sizes import Sizes


@dataclass(frozen=True)
class Rates:
    """Floating-point operations per second, measured on products of the policy's own shapes."""

    reading: float
    """Many tokens at once, as in scoring and training."""
    speaking: float
    """One token of each trajectory at a time, as in the rollout."""


def available_memory(device: str) -> int:
    """Bytes that the device has left: of the GPU, or of machine and control group for `cpu`."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":") for line in lines)
    return min([int(fields["MemAvailable"].split()[0]) * 1024, *group_memory()])


_GROUPS = Path("/sys/fs/cgroup")


def group_memory() -> list[int]:
    """Bytes that the control group has left, of version 2 or 1; nothing where nothing limits it."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (_GROUPS / limit).is_file() and (_GROUPS / used).is_file():
            allowed = (_GROUPS / limit).read_text(encoding="ascii").strip()
            taken = int((_GROUPS / used).read_text(encoding="ascii"))
            return [] if allowed == "max" else [int(allowed) - taken]
    return []


def measure_rates(
    sizes: Sizes,
    device: str,
    dtype: str,
    *,
    reading_rows: int,
    speaking_rows: int,
    seconds: float = 0.2,
) -> Rates:
    """Rates of a device on products of so many rows, `seconds` for each.

    One product of the MLP, which has most of the operations, stands for all of them.
    """
    shape = {"dtype": getattr(torch, dtype), "device": device}
    weight = torch.ones(sizes.inner, sizes.width, **shape)

    def rate(rows: int) -> float:
        states = torch.ones(rows, sizes.width, **shape)
        return 2 * rows * weight.numel() / _shortest(lambda: states @ weight.t(), seconds)

    return Rates(reading=rate(reading_rows), speaking=rate(speaking_rows))


def _shortest(work: Callable[[], Tensor], seconds: float) -> float:
    """Seconds of one call of `work` on its device: the least over `seconds` of calls."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        result = work()
        if result.is_cuda:
            torch.cuda.synchronize(result.device)
        times.append(time.perf_counter() - begun)
    return min(times)
