"""When a trajectory branches, and how many of a group's trajectories begin at the prompt.

Entropies are those of the first k tokens of a turn, in nats over the logarithm of the vocabulary's
size, so that 1 is a uniform choice.  Sources: ARPO (arXiv 2507.19849) and AEPO (arXiv 2510.14545)
as public notes restate them, and their public code where it says otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from turncredit.option_ranges import check_choice, check_range

RULES = ("random", "threshold")
COUNTERS = ("chain", "question")
MEASURED = ("last", "next")
FORMS = ("mean", "sum")
ROUNDINGS = ("above", "nearest")


def opening_entropy(
    entropies: Sequence[float], *, k: int, tokens: int, form: str = "mean"
) -> float:
    """Entropy of the first k of a turn's tokens, in nats, over log(`tokens` in the vocabulary).

    form: their "mean", at most 1, or their "sum" (ARPO's code, which can exceed 1).

    >>> opening_entropy([math.log(2), 0.0, 9.0], k=2, tokens=4)
    0.25
    """
    first = entropies[:k]
    return (fmean(first) if form == "mean" else math.fsum(first)) / math.log(tokens)


def branch_score(
    level: float, change: float, *, weight: float, consecutive: int = 0, slope: float = 0.0
) -> float:
    """(level + weight * change) * (1 - slope * consecutive), the last factor at least 0.

    level: alpha, or a uniform number where the rule is random; change: the opening entropy after a
    tool result minus that of the trajectory's first turn; consecutive: the branches in a row
    before, which AEPO penalises (`slope` 0 is ARPO).

    >>> [round(branch_score(0.5, 0.3, weight=0.2, consecutive=n, slope=0.2), 3) for n in range(3)]
    [0.56, 0.448, 0.336]
    """
    return (level + weight * change) * max(0.0, 1.0 - slope * consecutive)


def global_samples(
    size: int,
    root: float,
    tools: Sequence[float],
    *,
    beta: float = 0.5,
    rounding: str = "nearest",
) -> int:
    """How many of `size` trajectories begin at the prompt: size * sigmoid(beta * (root - mean)).

    root: opening entropy of a trajectory's first turn; tools: those of its turns after a tool
    result, without which the two count as equal.  rounding: to the "nearest" whole number, a half
    to the even one, or to the one "above" (AEPO's public code: int + 1).  From 1 to `size`.

    >>> global_samples(16, 0.8, [0.3, 0.5]), global_samples(16, 0.8, [])
    (9, 8)
    """
    gap = root - fmean(tools) if tools else 0.0
    samples = size * (1.0 + math.tanh(beta * gap / 2)) / 2  # the sigmoid, for any beta
    return min(max(int(samples) + 1 if rounding == "above" else round(samples), 1), size)


@dataclass(frozen=True)
class BranchRule:
    """Whether a trajectory branches after a tool result, and into how many."""

    alpha: float
    """Level of the score at an unchanged entropy; ARPO's code calls it the branch probability."""
    weight: float
    """Of the change in entropy: ARPO's beta, AEPO's gamma."""
    tau: float
    """A score above it branches."""
    slope: float
    """Of the penalty on consecutive branches."""
    counter: str
    """Whose consecutive branches count: those of the "chain" of turns since its last tool result
    without a branch, or all so far of the "question" (AEPO's public code, never reset)."""
    rule: str
    """"threshold": score > tau (the papers); "random": a uniform number in the place of alpha, and
    score >= tau (the codes)."""
    branches: int
    """Made at once: trajectories beside the one that goes on."""
    k: int
    """Tokens that measure an opening's entropy."""
    form: str
    """Their "mean" or "sum"."""
    measured: str
    """Where: in the "next" turn, which the tool result opens and which the branches then begin anew
    (the papers), or in the "last" turn, which asked for the tool (ARPO's code, one turn late)."""

    def __post_init__(self) -> None:
        check_range("branching", "number", alpha=self.alpha, weight=self.weight, tau=self.tau)
        check_range("branching", "scale", slope=self.slope)
        check_range("branching", "count", branches=self.branches, k=self.k)
        for name, choices in (
            ("counter", COUNTERS), ("rule", RULES), ("form", FORMS), ("measured", MEASURED),
        ):  # fmt: skip
            check_choice("branching", name, getattr(self, name), choices)

    def branches_after(self, change: float, consecutive: int, uniform: float) -> int:
        """How many branches a tool result makes; `uniform`, in 0 .. 1, is read by "random" alone.

        Raises nothing: the budget, which may hold fewer, belongs to the caller.
        """
        level = uniform if self.rule == "random" else self.alpha
        score = branch_score(
            level, change, weight=self.weight, consecutive=consecutive, slope=self.slope
        )
        high = score >= self.tau if self.rule == "random" else score > self.tau
        return self.branches if high else 0
