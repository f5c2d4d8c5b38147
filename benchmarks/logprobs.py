"""CPU seconds and extra memory of log-probs with entropies, beside log-probs alone; one thread.

Command: `OMP_NUM_THREADS=1 PYTHONPATH=lib python benchmarks/logprobs.py [--tokens 4096]`.
Logits of a vocabulary of 151,936 words (2.5 GB in float32, to which the plain formula adds 7 GB;
`--tokens 256` needs a sixteenth).  All candidates take turns in each round, so that a busy machine
slows them alike; printed are the fastest and the median round (CPU time) and the ratios of the
fastest rounds to both ways of computing log-probs alone: torch.logsumexp on chunks of 256 tokens,
and our own blocks without what the entropy needs.  Extra memory is the peak of resident memory
during the call beyond what was resident before (Linux).  Errors are against float64, of the first
64 tokens.

How memory is allocated changes the picture: the plain formula, the chunks and logsumexp allocate
on every call, and page faults are part of their time.  Run it once more with
`THP_MEM_ALLOC_ENABLE=1` (huge pages for PyTorch's larger tensors); the setting is printed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from turncredit.logprobs import BLOCK_COLUMNS, BLOCK_SIZE, logprobs_and_entropies

WORDS, CHUNK, EXACT_TOKENS = 151_936, 256, 64
Results = tuple[Tensor, ...]
Candidate = Callable[[Tensor, Tensor], Results]


def chosen(logits: Tensor, token_ids: Tensor) -> Tensor:
    """The logit of each token, float32."""
    return logits.gather(1, token_ids[:, None])[:, 0].float()


def alone_by_chunks(logits: Tensor, token_ids: Tensor) -> Results:
    """Log-probs alone: logsumexp in float32 of 256 tokens at a time."""
    normalisers = torch.cat([part.float().logsumexp(dim=1) for part in logits.split(CHUNK)])
    return (chosen(logits, token_ids) - normalisers,)


def alone_by_blocks(logits: Tensor, token_ids: Tensor) -> Results:
    """Log-probs alone: the library's blocks, without product and second sum."""
    rows, buffer = BLOCK_SIZE // BLOCK_COLUMNS, torch.empty(BLOCK_SIZE)
    maxima, sums = torch.empty(len(logits)), torch.zeros(len(logits), dtype=torch.float64)
    for part, most, mass in zip(
        logits.split(rows), maxima.split(rows), sums.split(rows), strict=True
    ):
        most.copy_(part.amax(dim=1))
        for block in part.split(BLOCK_COLUMNS, dim=1):
            values = buffer[: block.numel()].view(block.shape)
            source = block if block.dtype == torch.float32 else values.copy_(block)
            mass += torch.sub(source, most[:, None], out=values).exp_().sum(dim=1)
    return (chosen(logits, token_ids) - maxima - sums.log().float(),)


def plain(logits: Tensor, token_ids: Tensor) -> Results:
    """The textbook formulas in float32."""
    logs = logits.float().log_softmax(dim=1)
    return chosen(logs, token_ids), -(logs.exp() * logs).sum(dim=1)


def plain_by_chunks(logits: Tensor, token_ids: Tensor) -> Results:
    """The same for 256 tokens at a time, with the product in place."""
    parts = []
    for part, ids in zip(logits.split(CHUNK), token_ids.split(CHUNK), strict=True):
        logs = part.float().log_softmax(dim=1)
        parts.append((chosen(logs, ids), -logs.exp().mul_(logs).sum(dim=1)))
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


CANDIDATES: dict[str, Candidate] = {
    "log-probs alone, logsumexp by chunks": alone_by_chunks,
    "log-probs alone, our blocks": alone_by_blocks,
    "both, plain": plain,
    "both, chunks, product in place": plain_by_chunks,
    "both, ours": logprobs_and_entropies,
}


def resident(key: str) -> float:
    """MiB of resident memory: VmRSS now, VmHWM at its peak since the last reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(key)) / 1024


def extra_memory(candidate: Candidate, *given: Tensor) -> float:
    """MiB at the peak of one call beyond those before it."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    before = resident("VmRSS")
    candidate(*given)
    return resident("VmHWM") - before


def error(candidate: Candidate, logits: Tensor, token_ids: Tensor) -> float:
    """Nats: the largest difference from float64 of the results there are, on the same logits."""
    logits, token_ids = logits[:EXACT_TOKENS], token_ids[:EXACT_TOKENS]
    logs = logits.double().log_softmax(dim=1)
    exact = (logs.gather(1, token_ids[:, None])[:, 0], -(logs.exp() * logs).sum(dim=1))
    found = candidate(logits, token_ids)
    return max((a - b).abs().max().item() for a, b in zip(found, exact, strict=False))


def measure(logits: Tensor, token_ids: Tensor, rounds: int) -> None:
    """Time the candidates in turns and print a row for each."""
    memory = {name: extra_memory(run, logits, token_ids) for name, run in CANDIDATES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        for name, run in CANDIDATES.items():
            start = time.thread_time()
            run(logits, token_ids)
            seconds[name].append(time.thread_time() - start)
    chunks, blocks, *_ = (min(times) for times in seconds.values())
    heading = ("fastest s", "median s", "/ chunks", "/ blocks", "extra MiB", "error nat")
    print(f"{logits.dtype!s:38s}" + "".join(f"{title:>11s}" for title in heading))
    for name, times in seconds.items():
        best, median = min(times), statistics.median(times)
        wrong = error(CANDIDATES[name], logits, token_ids)
        print(
            f"{name:38s}{best:11.3f}{median:11.3f}{best / chunks:11.2f}{best / blocks:11.2f}"
            f"{memory[name]:11.1f}{wrong:11.1e}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii").strip()
    setting = os.environ.get("THP_MEM_ALLOC_ENABLE", "unset")
    print(f"{options.tokens} tokens, {WORDS} words; huge pages: {pages}; of PyTorch: {setting}")
    stream = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, WORDS, (options.tokens,), generator=stream)
    drawn = 2 * torch.randn(WORDS, generator=stream)
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.empty(options.tokens, WORDS, dtype=dtype)
        for number, row in enumerate(logits):  # as many fresh draws would take minutes
            row.copy_(drawn.roll(37 * number))
        measure(logits, token_ids, options.rounds)
        del logits


if __name__ == "__main__":
    main()
