"""How step time grows with trajectories, what bookkeeping costs, how near the update is to torch.

    OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/scaling.py [--size large] [--rounds 5] \
        [--figure docs/step_time]

CPU seconds of the library's training loop on trajectories of 12 turns and 100 tokens (4 tokens a
message, 4 an observation).  Prints rows of Markdown:

- trajectories and step time: all numbers of trajectories take turns, one step each a round; the
  fastest of the rounds.  Below, the line a + b n fitted to them by least squares of the relative
  errors, and the largest error; "linear" if that is under 10 %.  --figure draws every step of the
  rounds and the line, as PNG and SVG.
- bookkeeping: the share of a step of 64 trajectories that its statistics take, wherever they are
  computed, and writing them as an experiment does.
- update: the matrix products of one update, forward and backward, are recorded with shapes and
  strides and repeated bare (`torch.mm`, `bmm`, `addmm`, and oneDNN's for those that
  `policies.products` gives it) on operands of their own; the share is their time over the
  update's, which is its rate over theirs.  Fastest of the rounds.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from fixed_lengths import (
    GRPO,
    LARGE,
    SMALL,
    Shape,
    Size,
    new_policy,
    parameters,
    training_settings,
    training_steps,
)
from matplotlib.figure import Figure
from torch.utils._python_dispatch import TorchDispatchMode

from turncredit.batching import from_trajectories
from turncredit.objectives import table
from turncredit.plots.style import save_figure, styled
from turncredit.results import RunDirectory
from turncredit.seeding import torch_stream
from turncredit.training import (
    Stopwatch,
    new_optimiser,
    rescore,
    split_updates,
    update,
    updates,
)

COUNTS = (16, 32, 64, 128, 256, 512)
LONGEST = 2**31
BY_ONEDNN = torch.ops.mkldnn._linear_pointwise.default
"""[m, k] times the transpose of [n, k]."""
PRODUCTS = (
    *(getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm")),
    BY_ONEDNN,
)
STATISTICS = ((table, "ratio_metrics"), (updates, "turn_ratios"), (updates, "merge_metrics"))
"""What the update computes for the tables alone."""

clock = time.process_time


def shape_of(trajectories: int) -> Shape:
    """Trajectories like those of the tasks of tier cpu."""
    return Shape(trajectories, turns=12, sampled=4, observed=4)


def step_times(size: Size, rounds: int) -> dict[int, list[float]]:
    """CPU seconds of every step of the rounds for each number of trajectories."""
    loops = {
        n: training_steps(new_policy(size, shape_of(n)), size, shape_of(n), LONGEST) for n in COUNTS
    }
    seconds: dict[int, list[float]] = {n: [] for n in COUNTS}
    for _ in range(1 + rounds):
        for count, loop in loops.items():
            begun = clock()
            next(loop)
            seconds[count].append(clock() - begun)
    return {count: times[1:] for count, times in seconds.items()}


def print_scaling(size: Size, rounds: int, figure: Path | None) -> None:
    """The table of step times and the line through them; drawn too if `figure` names a file."""
    times = step_times(size, rounds)
    counts, seconds = np.array(list(times)), np.array([min(all_) for all_ in times.values()])
    design = np.stack([np.ones(len(counts)), counts], axis=1) / seconds[:, None]
    (fixed, slope), *_ = np.linalg.lstsq(design, np.ones(len(counts)), rcond=None)
    errors = (fixed + slope * counts) / seconds - 1
    print("| trajectories | step | a trajectory | the line |\n|---|---|---|---|")
    for count, time_, error in zip(counts, seconds, errors, strict=True):
        print(f"| {count} | {time_:.3f} s | {time_ / count * 1e3:.2f} ms | {error:+.1%} |")
    worst = np.abs(errors).max()
    print(
        f"\n{fixed * 1e3:.0f} ms + {slope * 1e3:.2f} ms a trajectory, largest error {worst:.1%}: "
        f"{'linear' if worst < 0.1 else 'not linear'}\n"
    )
    if figure is not None:
        save_figure(drawn(times, fixed, slope), figure.parent, figure.name)


@styled
def drawn(times: dict[int, list[float]], fixed: float, slope: float) -> Figure:
    """Every step as a dot over its trajectories, and the line fitted to the fastest."""
    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axis = figure.add_subplot()
    for count, seconds in times.items():
        axis.plot([count] * len(seconds), seconds, "o", color="black", alpha=0.4, markersize=4)
    ends = np.array([min(times), max(times)])
    axis.plot(ends, fixed + slope * ends, color="black", linewidth=1.2)
    axis.annotate(
        f"{fixed * 1e3:.0f} ms + {slope * 1e3:.2f} ms a trajectory",
        (ends[-1], fixed + slope * ends[-1]),
        xytext=(-8, 0), textcoords="offset points", ha="right",
    )  # fmt: skip
    axis.set(xlabel="trajectories of a step", ylabel="CPU seconds of a step", xlim=0, ylim=0)
    return figure


@contextmanager
def booked(book: list[float], *places: tuple[Any, str]) -> Iterator[None]:
    """Book the seconds spent in the named functions of modules."""
    originals = [(module, name, getattr(module, name)) for module, name in places]

    def timed(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            begun = clock()
            result = function(*arguments, **options)
            book.append(clock() - begun)
            return result

        return call

    for module, name, function in originals:
        setattr(module, name, timed(function))
    try:
        yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def print_bookkeeping(size: Size, steps: int) -> None:
    """The share of statistics and tables in the time of a step of 64 trajectories."""
    shares, writes = [], []
    loop = training_steps(new_policy(size, shape_of(64)), size, shape_of(64), LONGEST)
    with tempfile.TemporaryDirectory() as folder:
        directory, inside = RunDirectory(Path(folder)), []
        with booked(inside, *STATISTICS):
            for _ in range(1 + steps):
                inside.clear()
                begun = clock()
                log = next(loop)
                stepped = clock()
                step = {"step": log.step}
                directory.append("turns.csv", [step | row for row in log.turns])
                directory.append("timings.csv", [step | log.seconds])
                directory.append("metrics.csv", [step | log.metrics])
                whole = clock() - begun
                work = sum(log.seconds.values()) - log.seconds["metrics"] - sum(inside)
                shares.append(1 - work / whole)
                writes.append((begun + whole - stepped) / whole)
    print(
        f"bookkeeping of a step of 64 trajectories: {median(shares[1:]):.1%} of its time, of which "
        f"writing the tables {median(writes[1:]):.1%}\n"
    )


class Products(TorchDispatchMode):
    """Counts the matrix products made under it, by operation, shapes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter = Counter()

    def __torch_dispatch__(
        self, call: Any, types: Any, given: tuple = (), named: Any = None
    ) -> Any:
        if call in PRODUCTS:
            operands = tuple(operand_of(value) for value in given)
            self.seen[call, operands] += 1
        return call(*given, **(named or {}))


def operand_of(value: Any) -> Any:
    """Shape and stride of a tensor; anything else, as lists cannot be counted, as a tuple or so."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride()
    return tuple(value) if isinstance(value, list) else value


def flops(call: Any, given: tuple) -> int:
    """Multiplications and additions of a product."""
    if call is BY_ONEDNN:
        (left, _), (right, _) = given[:2]
        return 2 * int(np.prod(left)) * right[0]
    (left, _), (right, _) = given[-2:]
    return 2 * int(np.prod(left)) * right[-1]


def operand(value: Any) -> Any:
    """What `operand_of` was told of, with numbers of its own."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return torch.empty_strided(*value).uniform_()
    return list(value) if isinstance(value, tuple) else value


def replay(products: Counter) -> Callable[[], None]:
    """All the products counted, one after another, on operands of their own."""
    made = [
        (call, [operand(value) for value in given], count)
        for (call, given), count in products.items()
    ]

    def once() -> None:
        for call, operands, count in made:
            for _ in range(count):
                call(*operands)

    return once


def seconds_of(*works: Callable[[], Any], rounds: int) -> list[float]:
    """CPU seconds of the fastest run of each, all taking turns."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(1 + rounds):
        for work, times in zip(works, seconds, strict=True):
            begun = clock()
            work()
            times.append(clock() - begun)
    return [min(times[1:]) for times in seconds]


def print_update(size: Size, rounds: int) -> None:
    """The update's rate and that of its matrix products alone."""
    shape = shape_of(64)
    policy = new_policy(size, shape)
    settings = training_settings(shape, LONGEST)
    optimiser = new_optimiser(policy, settings)
    log = next(training_steps(policy, size, shape, LONGEST))
    groups = [row // shape.group_size for row in range(shape.trajectories)]
    batch, _ = rescore(policy, from_trajectories(log.trajectories, group_ids=groups))
    credit = GRPO.credit(batch, logprobs=batch.old_logprobs)
    parts = split_updates(batch, settings.updates_per_batch, torch_stream(0, "updates", 0))

    def once() -> None:
        update(policy, optimiser, batch, credit, GRPO, settings, parts)

    with Products() as products:
        once()
    whole, bare = seconds_of(once, replay(products.seen), rounds=4 * rounds)
    work = sum(n * flops(*product) for product, n in products.seen.items())
    print(
        f"update of 64 trajectories: {work / 1e9:.2f} GFLOP in {whole * 1e3:.0f} ms, "
        f"{work / whole / 1e9:.1f} GFLOP/s; its products alone {bare * 1e3:.0f} ms, "
        f"{work / bare / 1e9:.1f} GFLOP/s; share {bare / whole:.0%}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=("small", "large"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--figure", type=Path, help="file to draw to, without its ending")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Stopwatch.clock = staticmethod(clock)
    size = {"small": SMALL, "large": LARGE}[options.size]
    print(f"{parameters(new_policy(size, shape_of(64))):,} parameters, one thread\n")
    print_scaling(size, options.rounds, options.figure)
    print_bookkeeping(size, 4 * options.rounds)
    print_update(size, options.rounds)


if __name__ == "__main__":
    main()
