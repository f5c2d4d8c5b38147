"""CPU seconds of K responses in one state: prefix read once and copied, against K whole prompts.

Command: `OMP_NUM_THREADS=1 python benchmarks/probe_prefix.py [--responses 64] [--prefix 128]`.
Both sample the same tokens from the same random numbers, with the same blocks of rows, in turns, in
one run; printed are the fastest and the median time of each, their ratios, and the largest
difference of log-probs.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.probe import TinyResponder
from turncredit.records import Turn
from turncredit.seeding import torch_stream

WORDS = 500


class SeparatePrompts(TinyResponder):
    """The same responder without sharing: every row reads the whole prefix."""

    def respond(self, prefix_ids: list[int], count: int, *, seed: int) -> list[Turn]:
        """See `TinyResponder`."""
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


def seconds(respond: Callable[..., list[Turn]], *given: object, seed: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    respond(*given, seed=seed)
    return time.process_time() - start


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = TinyPolicy(TinySettings(64, 2, 4, options.prefix + 16), WORDS, 0)
    prefix = torch.randint(
        1, WORDS, (options.prefix,), generator=torch_stream(0, "prefix")
    ).tolist()
    # Hardly any closing tags: all responses have about the same length.
    shared, separate = (
        kind(policy, frozenset({1}), 12) for kind in (TinyResponder, SeparatePrompts)
    )
    pair = [each.respond(prefix, options.responses, seed=0) for each in (shared, separate)]
    assert [t.sampled_ids for t in pair[0]] == [t.sampled_ids for t in pair[1]]
    times: list[list[float]] = [[], []]
    for number in range(options.rounds):
        for kept, each in zip(times, (shared, separate), strict=True):
            kept.append(seconds(each.respond, prefix, options.responses, seed=number))
    worst = max(
        abs(a - b)
        for left, right in zip(*pair, strict=True)
        for a, b in zip(left.sampled_logprobs, right.sampled_logprobs, strict=True)
    )
    print(f"{options.responses} responses of up to 12 tokens after {options.prefix} ids")
    for name, summary in (("fastest", min), ("median", statistics.median)):
        one, many = (summary(kept) for kept in times)
        print(f"{name}: shared {one:.4f} s, separate {many:.4f} s, ratio {many / one:.1f}")
    print(f"log-probs differ by {worst:.1e} nats at most")


if __name__ == "__main__":
    main()
