"""Turn weights: one multiplier per turn on top of any base advantage.

Each function takes a batch and the base advantages [B, L] and returns [B, T], 1 where the method
is silent.  Empty turns never count and keep weight 1.  A new one needs `@TURN_WEIGHTS.add` above
it and nothing else.
"""

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit.gates import decision_turns, last_true
from turncredit.methods import Methods

TURN_WEIGHTS = Methods("turn weight")


@TURN_WEIGHTS.add
def none(batch: TurnBatch, base: Tensor) -> Tensor:
    """[B, T]: every turn keeps its base advantage."""
    return base.new_ones(len(base), batch.num_turns)


@TURN_WEIGHTS.add
def suffix_mask(
    batch: TurnBatch,
    base: Tensor,
    *,
    k: int = 16,
    rule: str = "ratio",
    c: float = 2.0,
    floor: float = 0.01,
    reference: Tensor | None = None,
) -> Tensor:
    """Entropy-gated suffix masking: after the decision turn of a failed trajectory, no penalty.

    [B, T] of 0 and 1.  The decision turn is the turn that stands out by the entropy h_t of its
    first k tokens (`decision_turns`, which documents `k, rule, c, floor, reference`).  Turns
    after it get 0 where the trajectory failed (`~batch.success`) and the turn's base advantage,
    summed over its tokens, is below 0; it and the turns before keep the full penalty.  Successes,
    failures without a decision turn and turns with credit are untouched.  Source: the slides;
    they state neither threshold nor rule: the defaults are this project's reading.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()
    >>> suffix_mask(batch, torch.full((2, 4), -1.0), rule="leave_one_out")
    tensor([[1., 0.],
            [1., 1.]])
    """
    gate = decision_turns(batch, k=k, rule=rule, c=c, floor=floor, reference=reference)
    after = torch.arange(batch.num_turns, device=gate.device) > gate[:, None]
    gated = (gate >= 0) & ~batch.success
    masked = after & gated[:, None] & (batch.turn_sums(base) < 0)
    return torch.where(masked, base.new_zeros(()), base.new_ones(()))


def suffix_mask_statistics(batch: TurnBatch, base: Tensor, weights: Tensor) -> dict[str, float]:
    """What a 0/1 turn weight [B, T] did; every value is NaN where its denominator is empty.

    Failed: `~batch.success`; gated: failed with a masked non-empty turn; penalised: failed with
    base advantages that sum to less than 0.  (A decision turn at the very end masks nothing and
    is not counted here; `decision_turns` shows it.)

    `gate_rate` gated / failed; `gate_rate_penalised` gated / penalised; `gate_turn` mean over the
    gated of their last turn before the masked ones; `masked_share_failed` and `masked_share`
    masked tokens / tokens of failed trajectories and / all tokens; `failed` their number.
    """
    lengths, failed = batch.turn_lengths(), ~batch.success
    masked = failed[:, None] & (weights == 0) & (lengths > 0)
    gated = masked.any(dim=1)
    kept_before = (lengths > 0) & ~masked & (masked.cumsum(dim=1) == 0)
    masked_tokens = (lengths * masked).sum()
    penalised = failed & (batch.turn_sums(base).sum(dim=1) < 0)
    ratios = {
        "gate_rate": (gated.sum(), failed.sum()),
        "gate_rate_penalised": (gated.sum(), penalised.sum()),
        "gate_turn": (last_true(kept_before)[gated].sum(), gated.sum()),
        "masked_share_failed": (masked_tokens, lengths[failed].sum()),
        "masked_share": (masked_tokens, lengths.sum()),
    }
    pairs = torch.stack([torch.stack(pair) for pair in ratios.values()]).double()
    shares = (pairs[:, 0] / pairs[:, 1]).tolist()  # 0 / 0 is NaN: missing, not zero
    return dict(zip(ratios, shares, strict=True)) | {"failed": float(failed.sum())}
