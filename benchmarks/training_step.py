"""CPU seconds of one training step (rollout, log-probs, credit, update), one thread.

Command: `OMP_NUM_THREADS=1 python benchmarks/training_step.py [--task informative_guess]`.
Prints the median over steps of CPU time, in all and by part, the tokens per trajectory, and the
step's time scaled to 56 tokens per trajectory.  CPU time, since machines are shared; where cores
share caches and clock with strangers, it still rises by half or more.  Therefore a fixed piece of
work (a Python loop and small products) is timed right before and after every step, and the median
is given a second time, over the undisturbed steps: those around which that work took at most 1.15
times its fastest time.
"""

import argparse
import statistics
import time

import torch

from turncredit.code_version import code_hash
from turncredit.tasks import open_task
from turncredit.training import Method, Stopwatch, new_optimiser, train
from turncredit.warm_starts import warm_started_policy


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", default="cpu")
    parser.add_argument("--task", default="informative_guess")
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Stopwatch.clock = staticmethod(time.process_time)
    task = open_task(options.tier, options.task)
    policy = warm_started_policy(task, 0, code_hash(), lambda step, loss: None)
    settings = task.settings.training
    method = Method("grpo", {}, "suffix_mask", {}, "ppo_clip", {})
    steps = train(
        policy,
        new_optimiser(policy, settings),
        task.vocabulary,
        task.environment,
        task.world,
        method,
        settings,
        seed=0,
    )
    logs, paces = [], [pace()]
    for _ in range(options.steps):
        logs.append(next(steps))
        paces.append(pace())
    logs, paces = logs[3:], paces[3:]
    tokens = statistics.fmean(len(t.token_ids) for log in logs for t in log.trajectories)
    totals = [sum(log.seconds.values()) for log in logs]
    parts = {name: statistics.median(log.seconds[name] for log in logs) for name in logs[0].seconds}
    size = sum(parameter.numel() for parameter in policy.parameters())
    print(f"{size} parameters, {len(logs[0].trajectories)} trajectories of {tokens:.1f} tokens")
    print(
        f"step: median {statistics.median(totals):.3f} s, fastest {min(totals):.3f} s of CPU time"
    )
    limit = 1.15 * min(paces)
    around = zip(totals, paces, paces[1:], strict=False)
    quiet = [total for total, before, after in around if max(before, after) <= limit]
    slowdown = statistics.median(paces) / min(paces)
    print(f"pace of the machine: median {slowdown:.2f} times its fastest")
    if quiet:
        median = statistics.median(quiet)
        scaled = median * 56 / tokens
        count = f"{len(quiet)} undisturbed of {len(totals)} steps"
        print(f"{count}: median {median:.3f} s, scaled to 56 tokens {scaled:.3f} s")
    print("parts (medians): " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    print(f"scaled to 56 tokens: median {statistics.median(totals) * 56 / tokens:.3f} s")


def pace() -> float:
    """CPU seconds of a fixed piece of work, the shortest of three."""
    left, right = torch.ones(64, 64), torch.ones(64, 256)

    def once() -> float:
        start = time.process_time()
        total = 0
        for number in range(20_000):
            total += number
        for _ in range(50):
            torch.mm(left, right)
        return time.process_time() - start

    return min(once() for _ in range(3))


if __name__ == "__main__":
    main()
