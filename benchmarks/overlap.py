"""How rollout and update share GPUs, from 8 to 1,024: throughput and staleness, by simulation.

    PYTHONPATH=lib python benchmarks/overlap.py [--gpus 8 64 1024] [--steps 4] [--weak]

Nothing here was measured: every number follows from `rollout_pool.Assumptions` and from the model,
agent and batch in params/cluster (Qwen3-8B, deep research).  Simulated is what a formula hides:
trajectories differ in turns and lengths, those of one GPU share its bandwidth and its cache, which
holds so many tokens and no more, tools keep them waiting, and an update waits for whole groups.
Prints rows of Markdown.

- together: all GPUs roll out, then all update, as in the runs of params/cluster (staleness 0), and
  the cache is what `gpu_memory_utilization` there leaves, or `--utilization`.
- one step off: a share of the GPUs rolls out batch n + 1 while the others update on batch n.
- open: a new question starts as soon as an old one ends, under the weights of the moment, with at
  most `--lead` batches begun beyond the one that is updated on.  A trajectory that is under way
  goes on under new weights, and a slow one is overtaken, so it may become older than that.

Of the last two, that quarter, half or three quarters of the GPUs roll out which give most tokens a
second.  `--weak`: 16 trajectories a GPU, where otherwise all have the same batch.
"""

import argparse
import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rollout_pool import Pool, Setting, Trajectory, draw

from turncredit.verl_plugin.cluster import read_run
from turncredit.verl_plugin.sizing import cached_tokens

GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
QUARTERS = (1, 2, 3)
ALONE = 0.9
"""Share of a GPU's memory for vLLM where no training state lies beside it."""
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Course:
    """What some steps came to."""

    seconds: float
    """Of a step, on average."""
    tokens: float
    """Of a step, on average, prompts and observations among them."""
    busy: float
    """Share of the GPUs' time in which they decode or update."""
    ages: tuple[int, ...]
    """Of each group, the updates between its start and the one that it goes into."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def work(setting: Setting, row: Trajectory) -> float:
    """GPU seconds of a row in an update, 12 FLOPs a parameter and token.

    2 + 2 for old and reference log-probs, 2 forward, 2 again (checkpoints), 4 backward.
    """
    return 12 * setting.shape.parameters * row.tokens / setting.assumed.flops


def update_seconds(setting: Setting, rows: Sequence[Trajectory], gpus: int) -> float:
    """Of a batch in mini-batches: a row lies on one GPU, and the slowest GPU ends a mini-batch.

    A row takes at least the time in which all layers are gathered five times.
    """
    total, size = 0.0, math.ceil(len(rows) / setting.mini_batches)
    least = 5 * sending(setting) if gpus > GPUS_PER_NODE else 0.0
    for start in range(0, len(rows), size):
        ends = [0.0] * gpus
        for row in sorted(rows[start : start + size], key=lambda row: -row.tokens):
            heapq.heapreplace(ends, ends[0] + max(work(setting, row), least))
        total += max(ends)
    return total


def sending(setting: Setting) -> float:
    """Seconds in which the weights, in bfloat16, come over the network."""
    return 2 * setting.shape.parameters / setting.assumed.network


def groups(setting: Setting, stream: random.Random) -> Iterator[list[Trajectory]]:
    """Questions without end, a group of trajectories each."""
    number = 0
    while True:
        yield [draw(setting, number, stream) for _ in range(setting.group)]
        number += 1


def in_turn(
    setting: Setting, rolling: int, updating: int, steps: int, *, apart: bool, seed: int = 0
) -> Course:
    """Whole batches: one after the other on the same GPUs, or one ahead on GPUs `apart`."""
    source = groups(setting, random.Random(seed))
    spent, used, tokens = 0.0, 0.0, 0
    for _ in range(steps):
        rows = [t for _ in range(setting.rows // setting.group) for t in next(source)]
        pool = Pool(setting, rolling)
        for row in rows:
            pool.add(row)
        while pool.under_way:
            pool.step()
        update = update_seconds(setting, rows, updating)
        both = max(pool.now, update) if apart else pool.now + update
        spent += both + setting.assumed.switch_seconds + sending(setting)
        used += pool.busy + sum(work(setting, row) for row in rows)
        tokens += sum(row.tokens for row in rows)
    gpus = rolling + updating if apart else rolling
    return Course(spent / steps, tokens / steps, used / (spent * gpus), (int(apart),))


def open_ended(
    setting: Setting, rolling: int, updating: int, steps: int, *, lead: int = 2, seed: int = 0
) -> Course:
    """Nobody waits for a slow trajectory; the first 2 * lead steps are not counted."""
    source, pool = groups(setting, random.Random(seed)), Pool(setting, rolling)
    size, warm, version, ends = setting.rows // setting.group, 2 * lead, 0, math.inf
    begun: dict[int, int] = {}
    missing: dict[int, list[Trajectory]] = {}
    whole: deque[list[Trajectory]] = deque()
    ages, used, tokens, started = [], 0.0, 0, (0.0, 0.0)
    while version < warm + steps:
        while len(missing) + len(whole) + size * (ends < math.inf) < (lead + 1) * size:
            group = next(source)
            begun[group[0].group], missing[group[0].group] = version, []
            for trajectory in group:
                pool.add(trajectory)
        if ends == math.inf and len(whole) >= size:
            picked = [whole.popleft() for _ in range(size)]
            rows = [t for group in picked for t in group]
            ends = pool.now + update_seconds(setting, rows, updating)
            born = [begun.pop(group[0].group) for group in picked]
            if version >= warm:
                ages += [version - birth for birth in born]
                used += sum(work(setting, row) for row in rows)
                tokens += sum(row.tokens for row in rows)
        elif ends <= pool.next_time():
            pool.now, ends, version = ends, math.inf, version + 1
            pool.pause(setting.assumed.switch_seconds + sending(setting))
            started = (pool.now, pool.busy) if version == warm else started
        else:
            done = pool.step()
            if done is not None:
                missing[done.group].append(done)
                if len(missing[done.group]) == setting.group:
                    whole.append(missing.pop(done.group))
    spent, used = pool.now - started[0], used + pool.busy - started[1]
    busy = used / (spent * (rolling + updating))
    return Course(spent / steps, tokens / steps, busy, tuple(ages))


def setting_of(gpus: int, *, weak: bool = False, utilization: float | None = None) -> Setting:
    """The batch of params/cluster's deep research; `weak`: 16 trajectories a GPU.

    utilization: share of a GPU's memory for vLLM, otherwise what the run's file says.
    """
    run = read_run("qwen3_8b", "deep_research", "1x8", "suffix_mask")
    data, rollout = run.verl["data"], run.verl["actor_rollout_ref"]["rollout"]
    custom, actor = rollout["custom"]["turncredit"], run.verl["actor_rollout_ref"]["actor"]
    given = {} if utilization is None else {"gpu_memory_utilization": utilization}
    return Setting(
        shape=run.shape,
        rows=16 * gpus if weak else data["train_batch_size"] * rollout["n"],
        group=rollout["n"],
        mini_batches=data["train_batch_size"] // actor["ppo_mini_batch_size"],
        max_turns=custom["environment"]["max_turns"],
        max_turn_tokens=custom["max_turn_tokens"],
        max_tokens=data["max_prompt_length"] + data["max_response_length"],
        cached_tokens=cached_tokens(run.shape, run.machine, rollout | given),
        max_sequences=rollout["max_num_seqs"],
    )


def courses(
    gpus: int, steps: int, lead: int, *, weak: bool = False, utilization: float | None = None
) -> dict[str, tuple[int, Course]]:
    """The three ways by name, with the GPUs that roll out."""
    shared = setting_of(gpus, weak=weak, utilization=utilization)
    alone, found = setting_of(gpus, weak=weak, utilization=ALONE), {}
    splits = [(gpus * part // 4, gpus - gpus * part // 4) for part in QUARTERS]
    found["together"] = [(gpus, in_turn(shared, gpus, gpus, steps, apart=False))]
    found["one step off"] = [(s[0], in_turn(alone, *s, steps, apart=True)) for s in splits]
    found["open"] = [(s[0], open_ended(alone, *s, steps, lead=lead)) for s in splits]
    return {name: max(tried, key=lambda pair: pair[1].rate) for name, tried in found.items()}


def cells(gpus: int, way: str, rolling: int, course: Course) -> list[str]:
    """A row of the table, a text for each column."""
    return [
        f"{gpus}", way, f"{rolling}", f"{course.seconds:.0f}",
        f"{gpus * course.seconds / 3600:.1f}", f"{course.rate / 1e3:.0f}",
        f"{course.rate / gpus:.0f}", f"{course.busy:.0%}", f"{fmean(course.ages):.1f}",
        f"{max(course.ages)}",
    ]  # fmt: skip


COLUMNS = (
    "GPUs", "way", "roll out", "s a step", "GPU-hours a step", "k tokens / s",
    "tokens / s and GPU", "busy", "age, mean", "oldest",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lead", type=int, default=2)
    parser.add_argument("--weak", action="store_true")
    parser.add_argument("--utilization", type=float)
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for gpus in options.gpus:
        found = courses(
            gpus, options.steps, options.lead, weak=options.weak, utilization=options.utilization
        )
        for way, (rolling, course) in found.items():
            print(f"| {' | '.join(cells(gpus, way, rolling, course))} |", flush=True)


if __name__ == "__main__":
    main()
