"""How far an estimator's mean lies from the policy gradient, over every group of a small tree."""

from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from turncredit.credit import TURN_WEIGHTS, token_advantages
from turncredit.environments.toy_tree import Tree, exact, search_or_guess
from turncredit.laws.cases import Case
from turncredit.methods import option_names
from turncredit.seeding import torch_stream

GROUP_SIZE = 3


class TreeBias(NamedTuple):
    """The mean of sum(A grad log pi) against the exact gradient of the expected reward."""

    relative: float
    """|mean - exact| / |exact|; 0 for an unbiased estimator."""
    cosine: float
    """Between the two; 1 where only the size is off."""

    def __str__(self) -> str:
        return f"relative bias {self.relative:.3f}, cosine {self.cosine:.3f}"


def tree_bias(case: Case, *, seed: int = 1) -> TreeBias:
    """Of a base alone, or of a turn weight on `rloo`, which is unbiased; options as by default.

    Every group of three episodes of `search_or_guess`, under a policy with random logits.  Raises
    ValueError for a `scope` of "batch", which no list of groups has, and for a field of `TurnBatch`
    that the tree does not tell.

    >>> f"{tree_bias(Case('rloo')).relative:.6f}"
    '0.000000'
    """
    if case.scope == "batch":
        raise ValueError("it depends on the whole batch, and a list of groups is none")
    from turncredit.probe import all_tree_turns  # brings scipy, which the other laws do without

    tree = search_or_guess()
    stream = torch_stream(seed, "logits of the tree")
    logits = torch.randn(tree.num_logits, generator=stream, dtype=torch.float64)
    turns = all_tree_turns(tree, logits, group_size=GROUP_SIZE)
    base, weight = (case.name, "none") if case.table.kind == "base" else ("rloo", case.name)
    options = {}
    if "logprobs" in option_names(TURN_WEIGHTS[weight]):
        options["logprobs"] = turns.batch.old_logprobs
    if "generator" in option_names(TURN_WEIGHTS[weight]):
        options["generator"] = torch.Generator().manual_seed(seed)
    advantages = token_advantages(turns.batch, base, weight, {}, options)
    mask = turns.batch.response_mask
    mass = (turns.weights[:, None] / GROUP_SIZE * advantages)[mask]
    slopes = torch.zeros(tree.num_logits, dtype=torch.float64)
    slopes = slopes.index_add(0, _choices(tree), mass.double())
    mean = slopes @ jacobian(lambda x: exact.token_logprobs(tree, x), logits)
    wanted = jacobian(lambda x: exact.values(tree, x).states[0], logits)
    relative = (mean - wanted).norm() / wanted.norm()
    return TreeBias(float(relative), float(torch.cosine_similarity(mean, wanted, dim=0)))


def _choices(tree: Tree) -> Tensor:
    """[N] int64: which word of the tree each sampled token is, group by group."""
    paths = [[word for n in path.responses for word in tree.branches[n]] for path in tree.paths]
    groups = combinations_with_replacement(range(len(tree.paths)), GROUP_SIZE)
    return torch.tensor([word for group in groups for row in group for word in paths[row]])
