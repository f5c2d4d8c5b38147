"""AEM's link along exact training: every state, response and group of a tree is listed.

A policy on `toy_tree` climbs the exact gradient of its value, so that neither sampling nor a
network stands between the coefficient and what it stands for.
"""

from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from turncredit.environments.toy_tree import Tree, exact
from turncredit.probe.decomposition import disagreement
from turncredit.probe.exact import (
    ExactTurns,
    Moments,
    all_tree_turns,
    sampled_tree_turns,
    tree_moments,
)
from turncredit.seeding import torch_stream

MOMENTS = ("entropy", "surprisal_variance", "predictable_variance", "martingale_variance")


def trained_logits(tree: Tree, steps: Sequence[int], *, seed: int, rate: float) -> list[Tensor]:
    """Logits [P] after each number of `steps` (ascending) of gradient ascent on the exact value.

    They start standard normal.
    """
    stream = torch_stream(seed, "tree policy")
    logits = torch.randn(tree.num_logits, generator=stream, dtype=torch.float64)
    found = []
    for step in range(max(steps) + 1):
        if step in steps:
            found.append(logits)
        leaf = logits.clone().requires_grad_()
        exact.values(tree, leaf).states[tree.names.index(tree.start)].backward()
        logits = logits + rate * leaf.grad
    return found


def random_tree_turns(
    tree: Tree, seeds: Sequence[int], *, groups: int, group_size: int
) -> list[ExactTurns]:
    """For each seed, `groups` groups of episodes of a random policy, that of `trained_logits`."""
    policies = (trained_logits(tree, [0], seed=seed, rate=0.0)[0] for seed in seeds)
    return [
        sampled_tree_turns(tree, logits, groups=groups, group_size=group_size, seed=seed)
        for seed, logits in zip(seeds, policies, strict=True)
    ]


def disagreement_rows(
    tree: Tree,
    steps: Sequence[int],
    *,
    seeds: Sequence[int],
    rate: float,
    group_size: int,
    min_spread: float = 0.1,
) -> list[dict[str, float | int]]:
    """One row per seed and step: the shares of `disagreement`, and the variances behind them.

    `martingale_variance` and its like are means over the turns the policy visits, nats squared;
    `value` is the policy's expected reward.
    """
    rows = []
    for seed in seeds:
        for step, logits in zip(
            steps, trained_logits(tree, steps, seed=seed, rate=rate), strict=True
        ):
            turns = all_tree_turns(tree, logits, group_size=group_size)
            start = tree.names.index(tree.start)
            row = {"seed": seed, "step": step}
            row["value"] = float(exact.values(tree, logits).states[start])
            row |= disagreement(turns, min_spread=min_spread)
            rows.append(row | _visited_moments(tree, logits))
    return rows


def _visited_moments(tree: Tree, logits: Tensor) -> dict[str, float]:
    """MOMENTS of the states, weighted by how often a turn begins in each."""
    visits = exact.visitation(tree, logits).sum(0)
    states: list[Moments] = tree_moments(tree, logits)
    weights = (visits / visits.sum()).tolist()
    return {
        name: sum(w * asdict(m)[name] for w, m in zip(weights, states, strict=True))
        for name in MOMENTS
    }
