"""Trajectories of fixed lengths, for the benchmarks that compare or fit step times.

The environment echoes each message, so what it returns is new text every time, costs nothing to
make, and has the length asked for; the reward depends on the last message alone.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from turncredit.environments.protocol import Step
from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.policies.vocabulary import Vocabulary
from turncredit.training import Method, StepLog, TrainingSettings, new_optimiser, train
from turncredit.worlds.base import Question

GRPO = Method("grpo", {}, "none", {}, "ppo_clip", {})


@dataclass(frozen=True)
class Size:
    """Of the policy, with 4 heads that share one key and one value."""

    width: int
    layers: int
    vocabulary: int = 144
    heads: int = 4


SMALL, LARGE = Size(64, 2), Size(128, 3)
"""About 0.1 and 0.6 million parameters."""


@dataclass(frozen=True)
class Shape:
    """Of a batch: every trajectory has this many turns of this many tokens."""

    trajectories: int
    prompt: int = 8
    turns: int = 1
    sampled: int = 56
    """Tokens of each message."""
    observed: int = 0
    """Tokens of each observation, of which the last turn has none."""
    group_size: int = 8
    updates: int = 2

    @property
    def completion(self) -> int:
        """Tokens of a trajectory after its prompt."""
        return self.turns * (self.sampled + self.observed) - self.observed

    @property
    def tokens(self) -> int:
        """Tokens of a trajectory."""
        return self.prompt + self.completion

    @property
    def questions(self) -> int:
        """Groups of a step."""
        return self.trajectories // self.group_size


def words(size: Size) -> list[str]:
    """All of a vocabulary but the padding, which is its id 0."""
    return [f"w{number}" for number in range(1, size.vocabulary)]


def prompt(size: Size, shape: Shape, stream: random.Random) -> str:
    """A prompt of random words."""
    return " ".join(stream.choices(words(size), k=shape.prompt))


def echo(message: str, length: int) -> str:
    """The observation: the first `length` words of a message, repeated if they are too few."""
    words = message.split()
    return " ".join((words * (length // len(words) + 1))[:length])


def reward(message: str) -> float:
    """1 for a last message with an even number of signs: about half of all, known to nobody."""
    return float(len(message) % 2 == 0)


class Echo:
    """An environment and its only episode kind: `turns` messages, each echoed."""

    actions = ()
    failures: dict[str, int] = {}  # noqa: RUF012
    grounded = None
    success = False

    def __init__(self, shape: Shape, question: Question | None = None) -> None:
        self.shape, self.left, self.reward = shape, shape.turns, None
        self.prompt = question.text if question else ""

    def reset(self, question: Question, stream: random.Random) -> "Echo":
        """Start an episode."""
        return Echo(self.shape, question)

    def step(self, message: str) -> Step:
        """Echo a message, or score the last one."""
        self.left -= 1
        if self.left:
            return Step("echo", echo(message, self.shape.observed))
        self.reward = reward(message)
        return Step("echo", "", stop_reason="max_turns")


@dataclass(frozen=True)
class RandomPrompts:
    """A world whose questions are random words."""

    size: Size
    shape: Shape

    def train_questions(self, count: int, stream: random.Random) -> list[Question]:
        """Draw `count` questions."""
        texts = (prompt(self.size, self.shape, stream) for _ in range(count))
        return [Question(str(n), text, ("w1",), (), "", "w1") for n, text in enumerate(texts)]


def new_policy(size: Size, shape: Shape) -> TinyPolicy:
    """An untrained policy with room for the trajectories and no more."""
    settings = TinySettings(size.width, size.layers, size.heads, shape.tokens)
    return TinyPolicy(settings, size.vocabulary, seed=0)


def training_settings(shape: Shape, steps: int) -> TrainingSettings:
    """GRPO as the tasks of tier cpu train it, at a rate that leaves the policy as it is."""
    return TrainingSettings(
        steps=steps,
        questions_per_step=shape.questions,
        group_size=shape.group_size,
        updates_per_batch=shape.updates,
        learning_rate=1e-6,
        warmup_steps=10,
        max_gradient_norm=1.0,
        max_turn_tokens=shape.sampled,
        checkpoint_every=steps,
    )


def training_steps(policy: TinyPolicy, size: Size, shape: Shape, steps: int) -> Iterator[StepLog]:
    """The training loop of the library on these trajectories."""
    settings = training_settings(shape, steps)
    return train(
        policy,
        new_optimiser(policy, settings),
        Vocabulary(words(size)),
        Echo(shape),
        RandomPrompts(size, shape),
        GRPO,
        settings,
        seed=0,
    )


def parameters(policy: TinyPolicy) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in policy.parameters())
