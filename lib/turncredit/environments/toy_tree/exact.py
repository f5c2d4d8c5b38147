"""Exact quantities of a softmax policy on a tree, by enumeration and differentiable in its logits.

Sizes: P word choices, D decisions, R responses, S states, K paths, T turns; the order of each is
that of `Tree`.  A policy is a vector of logits [P], one softmax per decision; in float64 the
results are exact to rounding.  Natural logarithms.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from turncredit.environments.toy_tree.tree import Tree


@dataclass(frozen=True)
class Values:
    """Expected discounted return from everywhere in the tree."""

    states: Tensor
    """[S]: V(s), before the turn."""
    responses: Tensor
    """[R]: Q(s, a), after the message and before what it causes."""
    decisions: Tensor
    """[D]: in the middle of a turn, before the next word; NaN where the policy never gets."""
    choices: Tensor
    """[P]: in the middle of a turn, after the word; NaN where the policy never gets."""
    turn_advantages: Tensor
    """[R]: Q(s, a) - V(s)."""
    token_advantages: Tensor
    """[P]: value after the word minus value before it; the words of a turn sum to its advantage."""


def token_logprobs(tree: Tree, logits: Tensor) -> Tensor:
    """[P]: log-probability of each word, given its decision."""
    widths = [len(decision.words) for decision in tree.decisions]
    return torch.cat([part.log_softmax(0) for part in logits.split(widths)])


def token_entropies(tree: Tree, logits: Tensor) -> Tensor:
    """[D], nats: entropy of the next word at each decision."""
    terms = _entropy_terms(token_logprobs(tree, logits))
    return _sums(terms, _choice_decisions(tree), len(tree.decisions))


def response_logprobs(tree: Tree, logits: Tensor) -> Tensor:
    """[R]: log-probability of each message in its state, the sum over its words."""
    logprobs = token_logprobs(tree, logits)
    return torch.stack([logprobs[list(words)].sum() for words in tree.branches])


def response_entropies(tree: Tree, logits: Tensor) -> Tensor:
    """[S], nats: H_resp(s), the entropy of the distribution over whole messages (AEM, eq. 7)."""
    terms = _entropy_terms(response_logprobs(tree, logits))
    return _sums(terms, _response_states(tree), len(tree.names))


def path_logprobs(tree: Tree, logits: Tensor) -> Tensor:
    """[K]: log-probability of each path, the environment's draws included."""
    logprobs = response_logprobs(tree, logits)
    chance = logits.new_tensor([path.chance for path in tree.paths])
    said = torch.stack([logprobs[list(path.responses)].sum() for path in tree.paths])
    return said + chance.log()


def visitation(tree: Tree, logits: Tensor) -> Tensor:
    """[T, S]: probability that turn t is taken in state s; row t sums to P(more than t turns)."""
    probabilities = path_logprobs(tree, logits).exp()
    states = _response_states(tree)
    seen = logits.new_zeros(tree.max_turns, len(tree.names))
    for path, probability in zip(tree.paths, probabilities, strict=True):
        turns = torch.arange(len(path.responses))
        seen = seen.index_put((turns, states[list(path.responses)]), probability, accumulate=True)
    return seen


def total_entropy(tree: Tree, logits: Tensor) -> Tensor:
    """[], nats: expected response entropy summed over the states visited (AEM, eq. 8)."""
    return (visitation(tree, logits) * response_entropies(tree, logits)).sum()


def values(tree: Tree, logits: Tensor, *, gamma: float = 1.0, turn_rewards: bool = False) -> Values:
    """Values and advantages of the outcome reward, with step rewards added if `turn_rewards`.

    `gamma` discounts per turn, so the words of a turn share one discount.
    """
    probabilities = response_logprobs(tree, logits).exp()
    later: dict[str | None, Tensor] = {None: logits.new_zeros(())}
    found = [later[None]] * len(tree.responses)
    for state in tree.order:
        members = [n for n, response in enumerate(tree.responses) if response.state == state]
        for number in members:
            found[number] = sum(
                o.probability
                * (o.reward + turn_rewards * o.turn_reward + gamma * later[o.next_state])
                for o in tree.responses[number].outcomes
            )
        later[state] = probabilities[members] @ torch.stack([found[n] for n in members])
    states = torch.stack([later[name] for name in tree.names])
    responses = torch.stack(found)
    decisions, choices = _within_turns(tree, probabilities, responses)
    return Values(
        states,
        responses,
        decisions,
        choices,
        responses - states[_response_states(tree)],
        choices - decisions[_choice_decisions(tree)],
    )


def _within_turns(tree: Tree, probabilities: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
    """Values before and after each word: means of Q over the messages that can still be said."""
    word_choices = torch.tensor([choice for words in tree.branches for choice in words])
    owners = [number for number, words in enumerate(tree.branches) for _ in words]
    mass = _sums(probabilities[owners], word_choices, tree.num_logits)
    gain = _sums((probabilities * responses)[owners], word_choices, tree.num_logits)
    places = _choice_decisions(tree)
    before = _sums(gain, places, len(tree.decisions)) / _sums(mass, places, len(tree.decisions))
    return before, gain / mass


def entropy_drift(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """[A]: change of H_resp per unit of natural-gradient step on each sampled message.

    logprobs, advantages: [A], all messages of one state.  D(a) = A(a) (S(a) - H), S the surprisal
    (AEM, Theorem 3.2.2, eq. 9).  Credit for a message more surprising than average raises entropy.

    >>> entropy_drift(torch.tensor([0.5, 0.3, 0.2]).log(), torch.ones(3))
    tensor([-0.3365,  0.1743,  0.5798])
    """
    return advantages * _excess_surprisals(logprobs)


def regularised_entropy_drift(
    logprobs: Tensor,
    advantages: Tensor,
    ref_logprobs: Tensor,
    *,
    entropy_slope: float = 0.0,
    kl_weight: float = 0.0,
) -> Tensor:
    """[A]: the drift under A log pi(a) + beta psi(H) - gamma KL(pi, ref) (AEM, Theorem C.3.1).

    `entropy_slope` is beta psi'(H) and `kl_weight` is gamma.  Both added terms are the same for
    every message: they cannot tell one response from another.
    """
    excess, probabilities = _excess_surprisals(logprobs), logprobs.exp()
    variance = (probabilities * excess.square()).sum()
    covariance = (probabilities * excess * -ref_logprobs).sum()
    state_terms = (entropy_slope + kl_weight) * variance - kl_weight * covariance
    return advantages * excess + state_terms


def parameter_entropy_drift(
    logprobs: Tensor,
    advantages: Tensor,
    ref_logprobs: Tensor,
    scores: Tensor,
    *,
    entropy_slope: float = 0.0,
    kl_weight: float = 0.0,
) -> Tensor:
    """[A]: change of H_resp per unit of plain gradient step on the parameters (Theorem C.5.1).

    scores: [A, parameters], the gradient of each message's log-probability.  Shared parameters
    couple the messages through the kernel scores @ scores.T, so the drift of a message depends on
    all others and its sign may differ from `entropy_drift`'s.
    """
    excess, probabilities = _excess_surprisals(logprobs), logprobs.exp()
    weighted = probabilities * excess
    kernel = scores @ scores.T
    relative = ref_logprobs - (probabilities * ref_logprobs).sum()
    variance = weighted @ kernel @ weighted
    covariance = weighted @ kernel @ (probabilities * -relative)
    state_terms = (entropy_slope + kl_weight) * variance - kl_weight * covariance
    return advantages * (kernel @ weighted) + state_terms


def _entropy_terms(logprobs: Tensor) -> Tensor:
    """-p log p, and 0 where p is 0: a logit of -inf forbids a word."""
    return -logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0.0)


def _excess_surprisals(logprobs: Tensor) -> Tensor:
    """[A]: surprisal minus entropy."""
    return -logprobs + (logprobs.exp() * logprobs).sum()


def _response_states(tree: Tree) -> Tensor:
    """[R] int64: index of each response's state."""
    return torch.tensor([tree.names.index(response.state) for response in tree.responses])


def _choice_decisions(tree: Tree) -> Tensor:
    """[P] int64: index of each choice's decision."""
    widths = torch.tensor([len(decision.words) for decision in tree.decisions])
    return torch.arange(len(widths)).repeat_interleave(widths)


def _sums(items: Tensor, places: Tensor, size: int) -> Tensor:
    """[size]: the items added up where `places` says."""
    return items.new_zeros(size).index_add(0, places, items)
