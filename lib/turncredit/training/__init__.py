"""Training: the loop, its settings, and what each step leaves behind."""

from turncredit.training.log import (
    FIRST_K,
    StepLog,
    Stopwatch,
    step_metrics,
    turn_rows,
    zero_variance_share,
)
from turncredit.training.loop import train
from turncredit.training.method import Method
from turncredit.training.settings import (
    KlSettings,
    OverlongSettings,
    ResamplingSettings,
    TrainingSettings,
)
from turncredit.training.updates import (
    accumulate_gradient,
    new_optimiser,
    rescore,
    set_learning_rate,
    split_updates,
    update,
)

__all__ = [
    "FIRST_K",
    "KlSettings",
    "Method",
    "OverlongSettings",
    "ResamplingSettings",
    "StepLog",
    "Stopwatch",
    "TrainingSettings",
    "accumulate_gradient",
    "new_optimiser",
    "rescore",
    "set_learning_rate",
    "split_updates",
    "step_metrics",
    "train",
    "turn_rows",
    "update",
    "zero_variance_share",
]
