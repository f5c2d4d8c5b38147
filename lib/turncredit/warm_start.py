"""Supervised warm start: a tiny policy learns from scratch to imitate scripted research."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turncredit.batching import TurnBatch, from_trajectories
from turncredit.params import require_positive, require_shares
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.seeding import torch_stream


@dataclass(frozen=True)
class WarmStartSettings:
    """Supervised training from scratch with AdamW."""

    steps: int
    """0 for a policy that can already act, such as a language model."""
    batch: int
    """Demonstrations per step."""
    learning_rate: float
    """Peak; reached after 2 % of the steps, then a cosine down to a twentieth of it."""
    swap_names: float
    """Share of demonstrations in which the world's names are exchanged one for one: what a document
    says can then not be memorised, and every name learns to be copied from what was read.  Above 0
    only where each name is one token."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps = {self.steps} must be at least 0")
        require_positive(self, "batch", "learning_rate")
        require_shares(self, "swap_names")


def warm_start(
    policy: Policy,
    vocabulary: Tokens,
    names: Sequence[str],
    demonstrations: Callable[[int], list[Trajectory]],
    settings: WarmStartSettings,
    *,
    seed: int,
    report: Callable[[int, float], None],
) -> None:
    """Train `policy` in place; `demonstrations(step)` gives the trajectories of a step.

    The loss is the mean cross-entropy, in nats, over the tokens the script wrote.  `report(step,
    loss)` is called after every step.
    """
    optimiser = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, weight_decay=0.01, fused=True
    )
    swapped = names if settings.swap_names > 0 else ()
    name_ids = torch.tensor([vocabulary.id(name) for name in swapped], dtype=torch.int64)
    for step in range(settings.steps):
        trajectories = demonstrations(step)
        batch = from_trajectories(trajectories, group_ids=range(len(trajectories)))
        stream = torch_stream(seed, "swap names", step)
        token_ids = swap_names(
            batch.token_ids, name_ids, len(vocabulary), settings.swap_names, stream
        )
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * schedule(step / settings.steps)
        loss = imitation_loss(policy, batch.replace(token_ids=token_ids))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        report(step, loss.item())


def imitation_loss(policy: Policy, batch: TurnBatch) -> Tensor:
    """Mean negative log-prob of the sampled tokens."""
    logprobs, _ = policy.score(batch.token_ids, batch.response_mask)
    return -logprobs.sum() / batch.response_mask.sum()


def schedule(progress: float) -> float:
    """Factor on the peak learning rate at `progress` in [0, 1).

    >>> [round(schedule(p), 3) for p in (0.0, 0.01, 0.02, 1.0)]
    [0.05, 0.525, 1.0, 0.05]
    """
    if progress < 0.02:
        return 0.05 + 0.95 * progress / 0.02
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (progress - 0.02) / 0.98))


def swap_names(
    token_ids: Tensor, name_ids: Tensor, size: int, share: float, stream: torch.Generator
) -> Tensor:
    """token_ids [B, L] with name ids permuted in a random share of the rows, each its own way."""
    rows = len(token_ids)
    tables = torch.arange(size).repeat(rows, 1)
    order = torch.rand(rows, len(name_ids), generator=stream).argsort(1)
    chosen = (torch.rand(rows, 1, generator=stream) < share).nonzero()[:, 0]
    tables[chosen[:, None], name_ids] = name_ids[order[chosen]]
    return tables.gather(1, token_ids)
