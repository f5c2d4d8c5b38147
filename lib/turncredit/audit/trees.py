"""Exact audits: on a tree every history is listed, so nothing has to be drawn."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turncredit.audit.estimates import Audit, table_shape
from turncredit.audit.replay import TurnStart
from turncredit.environments.toy_tree import Outcome, Tree
from turncredit.policies.protocol import Policy, Tokens

Key = tuple[str, tuple[int, ...]]
"""A state of the tree and all ids read on the way there, on which a policy may depend."""


class _Branch(NamedTuple):
    """A message that a history allows."""

    key: Key
    message_ids: tuple[int, ...]
    outcomes: tuple[tuple[Outcome, Key | None], ...]
    """With the history each leads to; None: the episode is over."""


def exact_audit(
    policy: Policy,
    vocabulary: Tokens,
    tree: Tree,
    starts: Sequence[TurnStart],
    *,
    max_turn_tokens: int,
    shape: tuple[int, int] | None = None,
) -> Audit:
    """V, Q and A of turns played in `ToyTree(tree)`, by enumeration; their errors are 0.

    starts and shape as for `audit_turns`.  The policy may be any that scores, and speaks the tree's
    words as single tokens: what it says besides the allowed messages ends an episode with reward 0.
    Raises ValueError for a tree whose longest history does not fit the policy's `max_tokens`.
    """
    branches = _branches(tree, vocabulary)
    longest = max(len(branch.key[1]) + len(branch.message_ids) for branch in branches)
    if longest > policy.settings.max_tokens:
        raise ValueError(f"max_tokens = {policy.settings.max_tokens} is below {longest}")
    sayable = [branch for branch in branches if len(branch.message_ids) <= max_turn_tokens]
    values, action_values = _values(sayable, _probabilities(policy, sayable))
    tables = torch.full((4, *(shape or table_shape(starts))), torch.nan, dtype=torch.float64)
    for start in starts:
        key = (start.snapshot.state, start.prefix_ids)
        value, said = values[key], action_values.get((key, start.message_ids), 0.0)
        found = torch.tensor([value, said, said - value, 0.0], dtype=torch.float64)
        tables[:, start.row, start.turn] = found
    return Audit(*tables, {"continuations": 0, "turns": 0, "tokens": 0})


def _branches(tree: Tree, vocabulary: Tokens) -> list[_Branch]:
    """Every message of every history, histories before those that they lead to."""
    found, open_keys = [], [(tree.start, tuple(vocabulary.encode_prompt(tree.prompt)))]
    for key in open_keys:  # grows on the way
        state, read = key
        for response in tree.responses:
            if response.state != state:
                continue
            message = tuple(vocabulary.encode(" ".join(response.words)))
            outcomes = []
            for outcome in response.outcomes:
                heard = read + message + tuple(vocabulary.encode(outcome.observation))
                after = None if outcome.next_state is None else (outcome.next_state, heard)
                outcomes.append((outcome, after))
                open_keys += [after] * (after is not None and after not in open_keys)
            found.append(_Branch(key, message, tuple(outcomes)))
    return found


@torch.no_grad()
def _probabilities(policy: Policy, branches: Sequence[_Branch]) -> list[float]:
    """Of each message in its history."""
    rows = [branch.key[1] + branch.message_ids for branch in branches]
    token_ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    mask = torch.zeros_like(token_ids, dtype=torch.bool)
    for number, (row, branch) in enumerate(zip(rows, branches, strict=True)):
        token_ids[number, : len(row)] = torch.tensor(row)
        mask[number, len(branch.key[1]) : len(row)] = True
    logprobs, _ = policy.score(token_ids, mask)
    return _masked_sums(logprobs, mask).exp().tolist()


def _masked_sums(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).double().sum(1)


def _values(
    branches: Sequence[_Branch], probabilities: Sequence[float]
) -> tuple[dict[Key, float], dict[tuple[Key, tuple[int, ...]], float]]:
    """V of each history and Q of each of its messages, from the last histories to the first."""
    values: dict[Key | None, float] = {None: 0.0}
    action_values: dict[tuple[Key, tuple[int, ...]], float] = {}
    for branch, probability in zip(reversed(branches), reversed(probabilities), strict=True):
        worth = sum(o.probability * (o.reward + values[after]) for o, after in branch.outcomes)
        action_values[branch.key, branch.message_ids] = worth
        values[branch.key] = values.get(branch.key, 0.0) + probability * worth
    return values, action_values
