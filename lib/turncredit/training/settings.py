"""What a params file says of the training of a task; shared by all its arms."""

from dataclasses import dataclass
from typing import Literal

from turncredit.objectives import KL_ESTIMATORS
from turncredit.params import require_positive


@dataclass(frozen=True)
class KlSettings:
    """A pull towards the reference policy, which is the policy as training found it."""

    place: Literal["loss", "reward"]
    """A term of the loss, as in GRPO, or taken from each trajectory's reward, as in PPO."""
    coefficient: float
    """0: the divergence is measured, and nothing pulls."""
    estimator: str
    """One of `KL_ESTIMATORS`; see `objectives.penalties`."""

    def __post_init__(self) -> None:
        if not self.coefficient >= 0:
            raise ValueError(f"coefficient = {self.coefficient} must not be below 0")
        if self.estimator not in KL_ESTIMATORS:
            known = ", ".join(KL_ESTIMATORS)
            raise ValueError(f"estimator = {self.estimator!r} is not one of {known}")
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError("estimator = 'k1' in the loss has no gradient; take 'k1+', k2 or k3")

    def pulls(self, place: str) -> bool:
        """Whether there is a pull at this place."""
        return self.place == place and self.coefficient > 0


@dataclass(frozen=True)
class ResamplingSettings:
    """Dynamic sampling (DAPO, section 3.2): groups with equal rewards are drawn anew."""

    max_rounds: int
    """Rounds of `questions_per_step` groups at the most; what is missing then stays missing."""

    def __post_init__(self) -> None:
        require_positive(self, "max_rounds")


@dataclass(frozen=True)
class OverlongSettings:
    """A penalty on long trajectories, in sampled tokens (DAPO, eq. 13)."""

    max_length: int
    cache_length: int

    def __post_init__(self) -> None:
        if not 1 <= self.cache_length <= self.max_length:
            raise ValueError(
                f"cache_length = {self.cache_length} must be in 1..max_length = {self.max_length}"
            )


@dataclass(frozen=True)
class TrainingSettings:
    """One optimiser for all arms of a task."""

    steps: int
    questions_per_step: int
    group_size: int
    updates_per_batch: int
    """Optimiser steps per rollout batch, each on its part of the groups; 1: all ratios are 1."""
    learning_rate: float
    warmup_steps: int
    max_gradient_norm: float
    max_turn_tokens: int
    checkpoint_every: int
    micro_batch: int | None = None
    """Trajectories of one backward pass, which bounds memory; None: all of an update.  Gradients
    add up to those of the whole update."""
    entropy_bonus: float = 0.0
    """Times the mean token entropy (nats), taken from the loss."""
    kl: KlSettings | None = None
    resampling: ResamplingSettings | None = None
    overlong: OverlongSettings | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    """Of rollouts.  All but 1 is refused: every update compares probabilities of a token under two
    policies, and one that is cut or sharpened in sampling alone is of another distribution.
    Evaluations have a temperature of their own."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if value != 1:
                raise ValueError(
                    f"{name} = {value} changes what rollouts are sampled from, not the policy that "
                    "is updated, and importance ratios would compare two kinds of distribution; "
                    "leave it at 1 (evaluation.temperature is another key)"
                )
        require_positive(self, "steps", "questions_per_step", "learning_rate", "max_gradient_norm")
        require_positive(self, "max_turn_tokens", "checkpoint_every")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps = {self.warmup_steps} must be at least 0")
        if self.group_size < 2:
            raise ValueError(f"group_size = {self.group_size}: a group of one has no baseline")
        if not 1 <= self.updates_per_batch <= self.questions_per_step:
            raise ValueError(
                f"updates_per_batch = {self.updates_per_batch} must be in 1..questions_per_step "
                f"= {self.questions_per_step}"
            )
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro_batch = {self.micro_batch} must be at least 1, or null")
        if self.entropy_bonus < 0:
            raise ValueError(f"entropy_bonus = {self.entropy_bonus} must not be below 0")
