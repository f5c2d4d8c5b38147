"""CPU milliseconds of the credit stage beside verl's estimators, one thread, same tensors.

Command: `OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/credit.py [--rounds 100]`.
128 trajectories of 4,096 tokens in groups of 8, 20 turns, 40 % of the tokens sampled.  All
candidates take turns in each round, so that a busy machine slows them alike, and each is called
once untimed before it is timed.  Printed are the fastest and the median round (CPU time) and the
ratio of the medians to the first line.  verl gets what its trainer holds: token rewards [B, L]
and an int64 response mask (and, as a second line, a float32 one).  Ours gets a fresh `TurnBatch`
at every call: nothing is kept from the call before.  Without verl its lines are missing, and the
output says so: they are never imitated.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages

TRAJECTORIES, TOKENS, TURNS, GROUP_SIZE, SAMPLED = 128, 4096, 20, 8, 0.4
STAGES = ("none", "suffix_mask", "aem", "high_entropy_turns")
Candidate = Callable[[], object]


def example() -> TurnBatch:
    """Turns of equal length, each an observation and then the sampled tokens; rewards 0 or 1."""
    stream = torch.Generator().manual_seed(0)
    length = TOKENS // TURNS
    place = torch.arange(TOKENS)
    turn = place // length
    sampled = (turn < TURNS) & (place % length >= length - round(SAMPLED * length))
    mask = sampled.expand(TRAJECTORIES, TOKENS).contiguous()
    rewards = (torch.rand(TRAJECTORIES, generator=stream) < 0.4).float()
    shape = (TRAJECTORIES, TOKENS)
    return TurnBatch.checked(
        token_ids=torch.zeros(shape, dtype=torch.int64),
        response_mask=mask,
        turn_ids=torch.where(mask, turn, -1),
        old_logprobs=-torch.rand(shape, generator=stream),
        entropies=torch.rand(shape, generator=stream) ** 4,
        rewards=rewards,
        success=rewards > 0,
        group_ids=torch.arange(TRAJECTORIES) // GROUP_SIZE,
        values=torch.rand(shape, generator=stream),
        turn_rewards=torch.rand(TRAJECTORIES, TURNS, generator=stream),
        anchor_ids=torch.randint(0, 5, (TRAJECTORIES, TURNS), generator=stream),
    )


def of_verl(batch: TurnBatch) -> dict[str, Candidate]:
    """verl's GRPO and GAE estimators on the tensors of the batch; empty without verl."""
    if importlib.util.find_spec("verl") is None:
        return {}
    from verl.trainer.ppo import core_algos

    rewards = torch.zeros(batch.token_ids.shape)
    rewards[:, -1] = batch.rewards
    index = batch.group_ids.numpy()
    mask, float_mask = batch.response_mask.long(), batch.response_mask.float()
    vectorized = core_algos.compute_grpo_vectorized_outcome_advantage
    return {
        "verl grpo_vectorized": lambda: vectorized(rewards, mask, index),
        "verl grpo_vectorized, float32 mask": lambda: vectorized(rewards, float_mask, index),
        "verl grpo (its default)": lambda: core_algos.compute_grpo_outcome_advantage(
            rewards, mask, index
        ),
        "verl gae": lambda: core_algos.compute_gae_advantage_return(
            rewards, batch.values, mask, 1.0, 1.0
        ),
    }


def of_ours(batch: TurnBatch) -> dict[str, Candidate]:
    """Every base alone, then the whole stage of grpo with some weights."""
    known = [weight for weight in STAGES if weight in TURN_WEIGHTS]
    bases = {f"base {name}": lambda n=name: BASES[n](batch.replace()) for name in BASES}
    stages = {
        f"stage grpo + {weight}": lambda w=weight: token_advantages(batch.replace(), "grpo", w)
        for weight in known
    }
    return bases | stages


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = example()
    theirs = of_verl(batch)
    if not theirs:
        print("verl is not installed: no comparison with it, our own times only")
    seconds = measure(theirs | of_ours(batch), options.rounds)
    first = statistics.median(next(iter(seconds.values())))
    print(f"{'':36s} {'fastest':>9s} {'median':>9s} {'ratio':>6s}")
    for name, times in seconds.items():
        fastest, median = min(times) * 1e3, statistics.median(times) * 1e3
        print(f"{name:36s} {fastest:6.3f} ms {median:6.3f} ms {median / first / 1e3:6.2f}")


def measure(candidates: dict[str, Candidate], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each candidate in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            candidate()
            start = time.thread_time()
            candidate()
            seconds[name].append(time.thread_time() - start)
    return seconds


if __name__ == "__main__":
    main()
