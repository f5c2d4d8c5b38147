"""Bases that are told what turns were worth, by playing on from them: see docs/audit.md.

Step rewards, empty turns and missing rewards are treated as in `returns`.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.batching import TurnBatch
from turncredit.credit.bases import BASES
from turncredit.credit.returns import real_turns, require, step_rewards
from turncredit.credit.tokens import sampled_tokens


@BASES.add
def true_advantage(batch: TurnBatch) -> Tensor:
    """The true advantage of each turn, as an audit measured it: the ceiling of all turn credit.

    [B, L], constant over a turn.  `turn_rewards` hold Q(s, a) - V(s) of each turn, exact or an
    estimate (`audit.audit_turns`); the outcome `rewards` only tell who has none.  Groups play no
    part and nothing is scaled.  A turn whose advantage is missing (NaN) takes its trajectory out.

    Unbiased, if the estimate is: the expectation of sum(A * grad log pi) is the exact policy
    gradient, without the noise of what came after the turn.
    Raises ValueError for a batch without `turn_rewards`.

    >>> from turncredit.batching import two_turns_and_one
    >>> worth = torch.tensor([[-0.5, 0.0], [0.25, 0.0]])
    >>> true_advantage(two_turns_and_one().replace(turn_rewards=worth))
    tensor([[-0.5000, -0.5000,  0.0000,  0.0000],
            [ 0.2500,  0.0000,  0.0000,  0.0000]])
    """
    require(batch, "true_advantage", "turn_rewards")
    worth, missing = step_rewards(batch, batch.turn_lengths() > 0)
    worth = torch.where(missing[:, None], 0.0, worth).to(batch.rewards.dtype)
    return batch.gather_turns(worth)


@BASES.add
def vineppo(batch: TurnBatch) -> Tensor:
    """What the value rose by over each turn, the values drawn by playing on from its boundaries.

    [B, L], constant over a turn (VinePPO, arXiv 2410.01679, with a turn for its reasoning step and
    no discount): A_t = r_t + V(s_{t+1}) - V(s_t), where V(s_t) is `values` at the first sampled
    token of turn t, and the last turn has the outcome in the place of the next value.  r_t are the
    `turn_rewards`, if the batch has them.  Groups play no part and nothing is scaled.  A value that
    is missing (NaN) takes its trajectory out.

    Unbiased, if the values are those of the state: a baseline of what went before the turn.  Unlike
    `true_advantage` it puts the luck of the environment down to the turn that met with it.
    Raises ValueError for a batch without `values`, and for one that is infinite.

    >>> from turncredit.batching import two_turns_and_one
    >>> values = torch.tensor([[0.5, 9.0, 9.0, 0.25], [0.5, 9.0, 9.0, 9.0]])
    >>> vineppo(two_turns_and_one().replace(values=values))
    tensor([[-0.2500, -0.2500,  0.0000, -0.2500],
            [ 0.5000,  0.0000,  0.0000,  0.0000]])
    """
    require(batch, "vineppo", "values")
    turns = real_turns(batch)
    values = _values_before(batch).gather(1, turns.order)
    unknown = (turns.present & values.isnan()).any(dim=1)
    values = torch.where(turns.present & ~unknown[:, None], values, 0.0)
    gains = turns.rewards + pad(values, (0, 1))[:, 1:] - values
    gains = torch.where(turns.present & ~unknown[:, None], gains, 0.0)
    return turns.over_tokens(batch, gains)


def _values_before(batch: TurnBatch) -> Tensor:
    """[B, T] float64: the value at each turn's first sampled token; 0 for an empty turn."""
    tokens = sampled_tokens(batch)
    slots = batch.turn_slots
    first = slots != pad(slots, (1, 0), value=-1)[:-1]
    values = tokens.gather(batch.values).double()[first]
    if values.isinf().any():
        row = int(tokens.rows[first][values.isinf()][0])
        raise ValueError(f"TurnBatch.values: row {row} is infinite where a turn begins")
    table = torch.zeros(batch.spans.turn_shape, dtype=torch.float64, device=slots.device)
    return table.flatten().index_copy(0, slots[first], values).view_as(table)
