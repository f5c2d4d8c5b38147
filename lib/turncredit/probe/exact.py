"""Batches whose states are enumerable: every surprisal has its exact baseline beside it.

On `toy_tree` all messages of a state are listed in the tree; with a tiny policy of few words and
short turns all responses are (`enumerate_responses`).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.environments.toy_tree import Path, Tree, exact
from turncredit.policies.tiny import TinyPolicy
from turncredit.probe.measures import ResponseMeasures, measure
from turncredit.probe.responses import enumerate_responses
from turncredit.seeding import torch_stream


@dataclass(frozen=True)
class Moments:
    """Of the responses of one state, by enumeration; nats."""

    entropy: float
    """H_resp: mean surprisal."""
    mean_entropy: float
    """Mean over responses of their mean token entropy, which AEM reads."""
    surprisal_variance: float
    predictable_variance: float
    """Of the sum of token entropies."""
    martingale_variance: float
    """Of the rest: what is drawn, given what could be expected token by token."""
    covariance: float
    """Of the two parts; surprisal_variance is the sum of theirs and twice this."""


@dataclass(frozen=True, eq=False)
class ExactTurns:
    """A batch with exact values of its turns' states, [B, T] float64, NaN for an empty turn."""

    batch: TurnBatch
    entropies: Tensor
    """H_resp of the state."""
    mean_entropies: Tensor
    """Mean of AEM's signal over the responses of the state."""
    advantages: Tensor | None
    """Exact advantage of the turn, where the world knows it."""
    weights: Tensor
    """[B]: probability of the row's group among those listed; 1 for drawn groups."""

    @property
    def surprisals(self) -> Tensor:
        """[B, T] float64: S of each turn."""
        return _where_real(self.batch, self.batch.turn_sums(-self.batch.old_logprobs))

    @property
    def relative(self) -> Tensor:
        """[B, T] float64: S - H_resp."""
        return self.surprisals - self.entropies

    @property
    def drifts(self) -> Tensor:
        """[B, T] float64: A (S - H_resp), the entropy drift (AEM, Theorem 3.2.2).

        Raises ValueError for a batch without exact advantages.
        """
        if self.advantages is None:
            raise ValueError("drifts need exact advantages, and this batch has none")
        return self.advantages * self.relative


def moments(probabilities: Tensor, measures: ResponseMeasures) -> Moments:
    """Of all responses of one state: probabilities [A] that sum to 1, measures of N = 1, K = A.

    Raises ValueError if responses are missing, by their probability.
    """
    total = float(probabilities.sum())
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"probabilities of the state's responses sum to {total}, not 1")
    surprisal, predictable = measures.surprisals[0], measures.predictable[0]
    noise = measures.martingales[0]

    def covariance(left: Tensor, right: Tensor) -> float:
        return float(
            probabilities @ ((left - probabilities @ left) * (right - probabilities @ right))
        )

    return Moments(
        entropy=float(probabilities @ surprisal),
        mean_entropy=float(probabilities @ measures.mean_entropies[0]),
        surprisal_variance=covariance(surprisal, surprisal),
        predictable_variance=covariance(predictable, predictable),
        martingale_variance=covariance(noise, noise),
        covariance=covariance(predictable, noise),
    )


def tree_moments(tree: Tree, logits: Tensor) -> list[Moments]:
    """Of each state, in the tree's order, under the policy of logits [P]."""
    logprobs = exact.response_logprobs(tree, logits)
    predictable = _predictable(tree, logits)
    lengths = torch.tensor([len(response.words) for response in tree.responses])
    found = []
    for name in tree.names:
        members = [n for n, response in enumerate(tree.responses) if response.state == name]
        columns = (-logprobs[members], predictable[members], lengths[members])
        found.append(
            moments(logprobs[members].exp(), ResponseMeasures(*(c[None] for c in columns)))
        )
    return found


def policy_moments(
    policy: TinyPolicy, prefix_ids: Sequence[int], closing: frozenset[int], *, max_turn_tokens: int
) -> Moments:
    """Of the state after `prefix_ids`, by listing every response (see `enumerate_responses`)."""
    turns = enumerate_responses(policy, prefix_ids, closing, max_turn_tokens=max_turn_tokens)
    measures = measure([turns])
    return moments((-measures.surprisals[0]).exp(), measures)


def tree_turns(tree: Tree, logits: Tensor, rows: Tensor, group_ids: Tensor) -> ExactTurns:
    """The paths `rows` [B] int64 of a tree as a batch with exact values; all weights 1.

    logits [P] float64.  `anchor_ids` are the tree's states.
    """
    states, responses = _path_turns(tree)
    values = tree_moments(tree, logits)
    table = torch.tensor([[m.entropy, m.mean_entropy] for m in values], dtype=torch.float64)
    advantages = exact.values(tree, logits).turn_advantages
    batch = _path_batch(tree, logits).select(rows).replace(group_ids=group_ids)
    empty = states[rows] < 0
    entropies, means = table[states[rows]].masked_fill(empty[..., None], torch.nan).unbind(-1)
    credit = advantages[responses[rows]].masked_fill(empty, torch.nan)
    return ExactTurns(batch, entropies, means, credit, torch.ones(len(rows)).double())


def sampled_tree_turns(
    tree: Tree, logits: Tensor, *, groups: int, group_size: int, seed: int
) -> ExactTurns:
    """`groups` groups of episodes drawn from the policy."""
    probabilities = exact.path_logprobs(tree, logits).exp()
    stream = torch_stream(seed, "tree episodes")
    count = groups * group_size
    rows = torch.multinomial(probabilities, count, replacement=True, generator=stream)
    return tree_turns(tree, logits, rows, torch.arange(groups).repeat_interleave(group_size))


def all_tree_turns(
    tree: Tree, logits: Tensor, *, group_size: int, limit: int = 50_000
) -> ExactTurns:
    """Every group of `group_size` episodes, with its probability in `weights`.

    Raises ValueError for more than `limit` groups.
    """
    count = math.comb(len(tree.paths) + group_size - 1, group_size)
    if count > limit:
        raise ValueError(f"group_size = {group_size}: {count} groups, above limit = {limit}")
    groups = list(combinations_with_replacement(range(len(tree.paths)), group_size))
    orders = [
        math.factorial(group_size) / math.prod(map(math.factorial, Counter(group).values()))
        for group in groups
    ]
    rows = torch.tensor(groups)
    single = exact.path_logprobs(tree, logits)[rows].sum(1).exp()
    weights = (single * torch.tensor(orders, dtype=torch.float64)).repeat_interleave(group_size)
    numbers = torch.arange(len(groups)).repeat_interleave(group_size)
    return replace(tree_turns(tree, logits, rows.flatten(), numbers), weights=weights)


def policy_turns(
    policy: TinyPolicy, batch: TurnBatch, closing: frozenset[int], *, max_turn_tokens: int
) -> ExactTurns:
    """A rolled-out batch with its states' exact values, each context listed once.

    No advantages: they would need the environment's enumeration too.
    """
    table = torch.full((2, *batch.turn_lengths().shape), torch.nan, dtype=torch.float64)
    known: dict[tuple[int, ...], Moments] = {}
    for row, turn in (batch.turn_lengths() > 0).nonzero().tolist():
        start = int((batch.turn_ids[row] == turn).nonzero()[0])
        prefix = tuple(batch.token_ids[row, :start].tolist())
        if prefix not in known:
            known[prefix] = policy_moments(policy, prefix, closing, max_turn_tokens=max_turn_tokens)
        table[0, row, turn] = known[prefix].entropy
        table[1, row, turn] = known[prefix].mean_entropy
    return ExactTurns(batch, *table, None, torch.ones(len(table[0])).double())


def _predictable(tree: Tree, logits: Tensor) -> Tensor:
    """[R]: sum of the entropies of the decisions that each message passes."""
    entropies = exact.token_entropies(tree, logits)
    places = {(d.state, d.prefix): number for number, d in enumerate(tree.decisions)}
    passed = [
        [places[r.state, r.words[:word]] for word in range(len(r.words))] for r in tree.responses
    ]
    return torch.stack([entropies[numbers].sum() for numbers in passed])


def _path_turns(tree: Tree) -> tuple[Tensor, Tensor]:
    """State and response of each turn of each path, [paths, T] int64, -1 beyond the end."""
    states = torch.full((len(tree.paths), tree.max_turns), -1)
    responses = states.clone()
    for row, path in enumerate(tree.paths):
        numbers = torch.tensor(path.responses)
        responses[row, : len(numbers)] = numbers
        names = [tree.names.index(tree.responses[number].state) for number in path.responses]
        states[row, : len(numbers)] = torch.tensor(names)
    return states, responses


def _path_batch(tree: Tree, logits: Tensor) -> TurnBatch:
    """One row per path, float64; ids number the words."""
    ids: dict[str, int] = {}
    rows = [_path_tokens(tree, path) for path in tree.paths]
    padded = [row + [("", -1, -1)] * (max(map(len, rows)) - len(row)) for row in rows]
    turn_ids = torch.tensor([[turn for _, turn, _ in row] for row in padded])
    choices = torch.tensor([[choice for _, _, choice in row] for row in padded]).clamp(min=0)
    widths = torch.tensor([len(decision.words) for decision in tree.decisions])
    decisions = torch.arange(len(widths)).repeat_interleave(widths)[choices]
    sampled = turn_ids >= 0
    token_ids = [[ids.setdefault(word, len(ids)) for word, _, _ in row] for row in padded]
    return TurnBatch.checked(
        token_ids=torch.tensor(token_ids),
        response_mask=sampled,
        turn_ids=turn_ids,
        old_logprobs=torch.where(sampled, exact.token_logprobs(tree, logits)[choices], 0.0),
        entropies=torch.where(sampled, exact.token_entropies(tree, logits)[decisions], 0.0),
        rewards=torch.tensor([path.reward for path in tree.paths], dtype=torch.float64),
        success=torch.tensor([path.success for path in tree.paths]),
        group_ids=torch.arange(len(rows)),
        anchor_ids=_path_turns(tree)[0],
    )


def _path_tokens(tree: Tree, path: Path) -> list[tuple[str, int, int]]:
    """Word, turn and word choice of each token of a path; -1 where the policy did not speak."""
    tokens = [(word, -1, -1) for word in tree.prompt.split()]
    for turn, (number, outcome) in enumerate(zip(*path, strict=True)):
        choices = zip(tree.responses[number].words, tree.branches[number], strict=True)
        tokens += [(word, turn, choice) for word, choice in choices]
        tokens += [(word, -1, -1) for word in outcome.observation.split()]
    return tokens


def _where_real(batch: TurnBatch, values: Tensor) -> Tensor:
    return torch.where(batch.turn_lengths() > 0, values, torch.nan)
