"""Step time under settings of the memory allocator, beside none; they must be set before a start.

    OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/allocation.py [--width 128] [--steps 8]

One process for each setting; all are asked for one training step in turn, so that none runs beside
another.  A printed line is a row of Markdown: CPU seconds of the median step (of the fastest), the
ratio to the process without settings (below 1 is faster) and the page faults of a step.  glibc
gives large blocks back to the system when they are freed, and gets new, zeroed pages at the next
step; the MALLOC settings keep them.  THP_MEM_ALLOC_ENABLE lets torch ask for pages of 2 MB.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from statistics import median

import torch
from fixed_lengths import Shape, Size, new_policy, parameters, training_steps

HUGE = {"THP_MEM_ALLOC_ENABLE": "1"}
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
SETTINGS = {"none": {}, "huge pages": HUGE, "keep freed memory": KEEP, "both": HUGE | KEEP}
NAMES = tuple(HUGE | KEEP)


def serve(size: Size, shape: Shape) -> None:
    """In a process of its own: one training step for each line read."""
    torch.set_num_threads(1)
    loop = training_steps(new_policy(size, shape), size, shape, 2**31)
    for _ in sys.stdin:
        faults, begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        next(loop)
        seconds = time.process_time() - begun
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        print(json.dumps([seconds, faults]), flush=True)


def start(setting: dict[str, str]) -> subprocess.Popen:
    """This script as a server under a setting."""
    plain = {name: value for name, value in os.environ.items() if name not in NAMES}
    return subprocess.Popen(
        [sys.executable, *sys.argv, "--serve"],
        env=plain | setting,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(server: subprocess.Popen) -> list[float]:
    """Seconds and page faults of one step."""
    server.stdin.write("step\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


def compare(size: Size, shape: Shape, steps: int) -> None:
    """All settings, step by step, and the rows."""
    servers = {name: start(setting) for name, setting in SETTINGS.items()}
    answers: dict[str, list[list[float]]] = {name: [] for name in servers}
    for _ in range(1 + steps):
        for name, server in servers.items():
            answers[name].append(ask(server))
    for server in servers.values():
        server.stdin.close()
        server.wait()
    print(f"{parameters(new_policy(size, shape)):,} parameters, {shape.trajectories} trajectories")
    print("\n| setting | step (fastest) | ratio (of fastest) | page faults |\n|---|---|---|---|")
    times = {name: [seconds for seconds, _ in rows[1:]] for name, rows in answers.items()}
    for name, own in times.items():
        ratio, best = median(own) / median(times["none"]), min(own) / min(times["none"])
        faults = median(faults for _, faults in answers[name][1:])
        print(
            f"| {name} | {median(own):.3f} s ({min(own):.3f}) | {ratio:.2f} ({best:.2f}) "
            f"| {faults:,.0f} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = Size(options.width, options.layers)
    shape = Shape(options.trajectories, turns=12, sampled=4, observed=4)
    if options.serve:
        serve(size, shape)
    else:
        compare(size, shape, options.steps)


if __name__ == "__main__":
    main()
