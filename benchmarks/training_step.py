"""CPU seconds of one training step (rollout, log-probs, credit, update), one thread.

Command: `OMP_NUM_THREADS=1 python benchmarks/training_step.py [--task informative_guess]`.
Prints the median over steps of CPU time, in all and by part, the tokens per trajectory, and the
step's time scaled to 56 tokens per trajectory.  CPU time, since machines are shared; on a loaded
machine it still rises by half or more, because cores share caches, so the fastest step is given
too.
"""

import argparse
import statistics
import time

import torch

from turncredit.code_version import code_hash
from turncredit.tasks import open_task, warm_started_policy
from turncredit.training import Method, Stopwatch, new_optimiser, train


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", default="cpu")
    parser.add_argument("--task", default="informative_guess")
    parser.add_argument("--steps", type=int, default=30)
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
    logs = [next(steps) for _ in range(options.steps)][3:]
    tokens = statistics.fmean(len(t.token_ids) for log in logs for t in log.trajectories)
    totals = [sum(log.seconds.values()) for log in logs]
    parts = {name: statistics.median(log.seconds[name] for log in logs) for name in logs[0].seconds}
    size = sum(parameter.numel() for parameter in policy.parameters())
    print(f"{size} parameters, {len(logs[0].trajectories)} trajectories of {tokens:.1f} tokens")
    print(
        f"step: median {statistics.median(totals):.3f} s, fastest {min(totals):.3f} s of CPU time"
    )
    print("parts (medians): " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    print(f"scaled to 56 tokens: median {statistics.median(totals) * 56 / tokens:.3f} s")


if __name__ == "__main__":
    main()
