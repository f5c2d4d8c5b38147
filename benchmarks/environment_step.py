"""Microseconds of one environment step without retrieval, beside a bare parse of its message.

PYTHONPATH=lib OMP_NUM_THREADS=1 python benchmarks/environment_step.py

Each line is one action of one environment under one protocol: the median over steps of the step
(and its fastest tenth, as machines are shared), the median of `parse_action` on the same messages,
taken in turn with the steps, and the ratio of the medians.  Messages differ from step to step, so
that no cache of words or answers is warm; a search gets ready-made documents (the world's own
search is not timed), a read ranks the paragraphs of three documents of five.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from statistics import median, quantiles

from turncredit.environments import (
    WORDINGS,
    DeepResearch,
    DeepResearchSettings,
    Environment,
    SearchR1,
    SearchR1Settings,
)
from turncredit.environments.actions import PROTOCOLS, Protocol, parse_action
from turncredit.environments.judges import RuleJudge
from turncredit.worlds.base import Document, Hop, Question

PARAGRAPHS, WORDS_PER_PARAGRAPH, VOCABULARY = 5, 25, 400
NUMBERS = count()


@dataclass(frozen=True)
class ReadyWorld:
    """Answers every search with the same documents."""

    documents: tuple[Document, ...]

    def search(
        self, question: Question, query: str, k: int, stream: random.Random
    ) -> list[Document]:
        """The first `k` documents."""
        return list(self.documents[:k])


def documents(stream: random.Random) -> tuple[Document, ...]:
    """Three documents of random words, about as long as passages of Wikipedia."""
    texts = [
        " ".join(f"word{stream.randrange(VOCABULARY)}" for _ in range(WORDS_PER_PARAGRAPH))
        for _ in range(3 * PARAGRAPHS)
    ]
    return tuple(
        Document(f"{n}", f"title {n}", "\n\n".join(texts[n * PARAGRAPHS : (n + 1) * PARAGRAPHS]))
        for n in range(3)
    )


def message(action: str, protocol: Protocol) -> str:
    """A message that nobody has written before; three known words and a new one."""
    if action == "invalid":
        return f"no action {next(NUMBERS)}"
    argument = f"word1 word2 word3 new{next(NUMBERS)}"
    if protocol == "tags":
        return f"<think> short </think> <{action}> {argument} </{action}>"
    call = json.dumps({"name": action, "arguments": {"text": argument}})
    return f"<think> short </think> <tool_call>{call}</tool_call>"


def environments(protocol: Protocol) -> Iterator[tuple[str, Environment]]:
    """Both environments with the constants of their papers, where malformed messages go on."""
    world = ReadyWorld(documents(random.Random(0)))
    ending = "" if protocol == "tags" else "_json"
    research = replace(DeepResearchSettings(), invalid_ends=False)
    wording = WORDINGS["deep_research" + ending]
    yield "deep_research", DeepResearch(world, RuleJudge(0.5, 0.1), research, wording=wording)
    wording = WORDINGS["search_r1" + ending]
    yield "search_r1", SearchR1(world, SearchR1Settings(), wording=wording)


def seconds(environment: Environment, action: str, steps: int) -> tuple[list[float], list[float]]:
    """Wall seconds of the second step of fresh episodes, and of a bare parse of its messages."""
    protocol = environment.wording.protocol
    paragraph = environment.world.documents[0].text.split("\n\n")[0]
    hop = Hop("title 0", "seat", "new", paragraph)
    question = Question("q", "seat of title 0", ("the hague", "hague"), (hop,), "seat", "rome")
    opening = message("search", protocol)
    stepped, parsed = [], []
    for _ in range(steps):
        text = message(action, protocol)
        episode = environment.reset(question, random.Random(0))
        episode.step(opening)
        begun = time.perf_counter()
        step = episode.step(text)
        between = time.perf_counter()
        parse_action(text, environment.actions, protocol=protocol)
        parsed.append(time.perf_counter() - between)
        stepped.append(between - begun)
        assert step.action == action
    return stepped, parsed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    print(f"microseconds over {options.steps} steps")
    for protocol in PROTOCOLS:
        for name, environment in environments(protocol):
            for action in (*environment.actions, "invalid"):
                stepped, parsed = seconds(environment, action, options.steps)
                step, parse = median(stepped) * 1e6, median(parsed) * 1e6
                print(
                    f"  {protocol:4} {name:13} {action:15} median {step:5.1f}, "
                    f"fastest tenth {quantiles(stepped, n=10)[0] * 1e6:5.1f}, "
                    f"bare parse {parse:4.1f}, ratio {step / parse:4.1f}"
                )


if __name__ == "__main__":
    main()
