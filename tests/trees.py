"""A tree to play in, and a tiny policy that mostly says what the tree allows."""

import random
from dataclasses import replace

from play import TINY

from turncredit.environments.toy_tree import ToyTree, search_or_guess
from turncredit.policies.tiny import TinyPolicy
from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.warm_start import WarmStartSettings, warm_start

TREE = search_or_guess()
WORLD = ToyTree(TREE)
WORDS = Vocabulary(WORLD.words)
TURN_TOKENS = 3
LEARNING = WarmStartSettings(steps=40, batch=8, learning_rate=2.0e-2, swap_names=0.0)


def tree_paths(stream: random.Random, count: int) -> list[Trajectory]:
    """Episodes drawn from the tree's paths, as somebody taught them; observations included."""

    def turn(number, outcome):
        said = WORDS.encode(" ".join(TREE.responses[number].words))
        zeros = (0.0,) * len(said)
        return Turn(said, zeros, zeros, WORDS.encode(outcome.observation), "any")

    prompt = WORDS.encode_prompt(TREE.prompt)
    drawn = [stream.choice(TREE.paths) for _ in range(count)]
    return [
        Trajectory("q", prompt, tuple(map(turn, *path)), path.reward, path.success, "answer")
        for path in drawn
    ]


def taught_policy() -> TinyPolicy:
    """A policy after a few steps on such episodes, frozen."""
    model = TinyPolicy(replace(TINY, max_tokens=40), len(WORDS), 0)
    stream = random.Random(0)
    warm_start(
        model, WORDS, (), lambda step: tree_paths(stream, 8), LEARNING, seed=0,
        report=lambda step, loss: None,
    )  # fmt: skip
    return model.requires_grad_(False)
