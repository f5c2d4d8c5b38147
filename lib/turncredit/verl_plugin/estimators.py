"""Our base advantages as verl's estimators, for its own trainer: what needs rewards alone.

verl gives a custom estimator neither entropies nor old log-probs, spans or values.  With our
trainer (`trainer.v1.trainer_mode=turncredit`) everything is there, and the estimator is
`turncredit`, which here only says so.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from turncredit.credit import BASES, token_advantages
from turncredit.verl_plugin.losses import masked_batch
from turncredit.verl_plugin.settings import ESTIMATOR, PREFIX, TRAINER


def register_estimators() -> None:
    """Enter every base with verl under its name behind `PREFIX`, and `turncredit` itself."""
    register_adv_est(ESTIMATOR)(of_our_trainer)
    for name in BASES:
        register_adv_est(f"{PREFIX}{name}")(estimator(name))


def of_our_trainer(**_: Any) -> tuple[Tensor, Tensor]:
    """Raise ValueError: verl's own trainer cannot compute this one."""
    raise ValueError(
        f"adv_estimator {ESTIMATOR!r} needs entropies and turn spans, which only "
        f"trainer.v1.trainer_mode={TRAINER} reads; with another trainer take {PREFIX}<base>"
    )


@cache
def estimator(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """The base `name` as a verl estimator, without a turn weight.

    Its options are `algorithm.turncredit.base_options`, if there are any.
    """

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Sequence[str] = (),
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        node = (config or {}).get("turncredit") or {}
        mask = response_mask.bool()
        batch = masked_batch(mask, torch.full(mask.shape, torch.nan)).replace(
            rewards=token_level_rewards.sum(dim=-1).float(),
            success=token_level_rewards.sum(dim=-1) > 0,
            group_ids=_numbers(index),
        )
        try:
            advantages = token_advantages(batch, name, "none", dict(node.get("base_options") or {}))
        except ValueError as error:
            raise ValueError(
                f"adv_estimator {PREFIX}{name}: {error}; verl's own trainer hands over rewards "
                f"alone, trainer.v1.trainer_mode={TRAINER} all the rest"
            ) from error
        return advantages, advantages

    return estimate


def _numbers(index: Sequence[str]) -> Tensor:
    """[B] int64: one number for each uid, in order of appearance."""
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(index))}
    return torch.tensor([numbers[uid] for uid in index], dtype=torch.int64)
