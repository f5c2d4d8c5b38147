"""Log-probs of the sampled tokens where something else stands in the place of the prompt."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.policies.protocol import Policy


@torch.no_grad()
def scored_behind(
    policy: Policy, batch: TurnBatch, heads: Sequence[Sequence[int]], cuts: Sequence[int]
) -> Tensor:
    """[B, L]: log-probs of each row's sampled tokens behind `head + ids[cut:]`; 0 elsewhere.

    heads: ids that go before each row; cuts: how many of its own first ids they replace.
    A row that is then longer than `max_tokens`, up to its last sampled token, is NaN throughout.
    """
    positions = torch.arange(1, batch.token_ids.shape[1] + 1)
    ends = (batch.response_mask * positions).amax(dim=1).tolist()
    lengths = [len(head) + end - cut for head, end, cut in zip(heads, ends, cuts, strict=True)]
    found = torch.where(batch.response_mask, torch.nan, 0.0).to(batch.old_logprobs.dtype)
    rows = [n for n, end in enumerate(ends) if end and lengths[n] <= policy.settings.max_tokens]
    if not rows:
        return found
    shape = (len(rows), max(lengths[row] for row in rows))
    token_ids, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        size, own = len(heads[row]), slice(cuts[row], ends[row])
        token_ids[number, :size] = torch.tensor(heads[row], dtype=torch.int64)
        token_ids[number, size : lengths[row]] = batch.token_ids[row, own]
        mask[number, size : lengths[row]] = batch.response_mask[row, own]
    logprobs, _ = policy.score(token_ids, mask)
    for number, row in enumerate(rows):
        scored = logprobs[number, mask[number]].clamp(max=0.0)  # rounding
        found[row, batch.response_mask[row]] = scored.to(found.dtype)
    return found


def as_sampled(
    policy: Policy, batch: TurnBatch, heads: Sequence[Sequence[int] | None]
) -> TurnBatch:
    """The batch with `old_logprobs` of the context that each trajectory was sampled in.

    heads: the ids that its policy read in the place of the prompt of the batch; None: those very.
    A prompt of the batch is all that stands before its first sampled token.
    """
    rows = [n for n, head in enumerate(heads) if head is not None]
    if not rows:
        return batch
    part = batch.select(rows)
    cuts = part.response_mask.to(torch.int8).argmax(dim=1).tolist()
    scored = scored_behind(policy, part, [heads[row] for row in rows], cuts)
    old = batch.old_logprobs.clone()
    old[rows] = scored
    return batch.replace(old_logprobs=old)


FAR = 0.8
"""Below which a token's ratio lies outside PPO's usual range of 0.2."""


def prompt_ratio_columns(
    plain: TurnBatch, sampled: TurnBatch, heads: Sequence[Sequence[int] | None]
) -> dict[str, float]:
    """How much likelier the prompt of `heads` made what was sampled behind it.

    plain, sampled: a batch before and after `as_sampled`.  Over its rows with a head, with the
    log-ratio log p(token | prompt) - log p(token | head) before any update: `guided_log_ratio` the
    mean over trajectories of its sum, in nats; `guided_risk` the variance of that sum (n), which
    the source calls risk; `guided_far_tokens` the share of tokens whose ratio is below FAR.
    NaN without such a row, and where a token's log-prob is not known.
    """
    names = ("guided_log_ratio", "guided_risk", "guided_far_tokens")
    rows = [n for n, head in enumerate(heads) if head is not None]
    if not rows:
        return dict.fromkeys(names, math.nan)
    mask = plain.response_mask[rows]
    logs = (plain.old_logprobs - sampled.old_logprobs)[rows].double().where(mask, 0.0)
    if logs.isnan().any():
        return dict.fromkeys(names, math.nan)
    sums, far = logs.sum(dim=1), (logs < math.log(FAR)).sum() / mask.sum()
    numbers = (sums.mean().item(), sums.var(correction=0).item(), far.item())
    return dict(zip(names, numbers, strict=True))
