"""Products of fp32 by oneDNN beside torch's own (MKL), in the shapes of the tiny policies' updates.

    OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/products.py [--rounds 30]

A printed line is a row of Markdown: tokens, the map's inputs and outputs, and for its value, the
gradient of the states and that of the weight GFLOP/s by torch, by `turncredit.policies.products`,
and their ratio (above 1 ours is faster).  The two take turns; medians of the rounds.  Small
products are torch's own in both columns (`WORTH_A_CALL`).
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from turncredit.policies.products import HAS_ONEDNN, linear

SHAPES = tuple(
    (tokens, read, made)
    for tokens in (64, 630, 2016)
    for read, made in ((64, 96), (64, 256), (256, 64), (128, 512), (512, 128))
)
"""64 tokens are a step of decoding, 630 and 2016 chunks of an update."""


def rates(works: dict[str, Callable[[], object]], flops: int, rounds: int) -> dict[str, float]:
    """GFLOP/s of each, median over the rounds in which they take turns, five calls at a time."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(2 + rounds):
        for name, work in works.items():
            begun = time.perf_counter()
            for _ in range(5):
                work()
            seconds[name].append((time.perf_counter() - begun) / 5)
    return {name: flops / median(times[2:]) / 1e9 for name, times in seconds.items()}


def compare(tokens: int, read: int, made: int, rounds: int) -> str:
    """One row."""
    cells = [f"{tokens} x {read} to {made}"]
    upstream = torch.randn(tokens, made)
    for wanted in ("value", "states", "weight"):
        states = torch.randn(tokens, read, requires_grad=wanted == "states")
        weight = torch.randn(made, read, requires_grad=wanted == "weight")

        def run(
            function: Callable, states: torch.Tensor = states, weight: torch.Tensor = weight
        ) -> Callable[[], object]:
            if not (states.requires_grad or weight.requires_grad):
                return lambda: function(states, weight)
            asked = states if states.requires_grad else weight
            made = function(states, weight)
            return lambda: torch.autograd.grad(made, asked, upstream, retain_graph=True)

        works = {"torch": run(F.linear), "ours": run(linear)}
        rate = rates(works, 2 * tokens * read * made, rounds)
        ratio = rate["ours"] / rate["torch"]
        cells.append(f"{rate['torch']:.0f} / {rate['ours']:.0f} ({ratio:.2f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"oneDNN: {'there' if HAS_ONEDNN else 'missing'}; {torch.backends.cpu.get_cpu_capability()}"
    )
    print("| product | value, torch / ours | gradient of the states | gradient of the weight |")
    print("|---|---|---|---|")
    for shape in SHAPES:
        print(compare(*shape, options.rounds), flush=True)


if __name__ == "__main__":
    main()
