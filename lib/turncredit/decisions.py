"""Which decision a trajectory took, and what it made of it, by the labels of its turns.

The decision of a trajectory is its first turn off the path, its execution the turns after that.
The slides "Entropy-gated suffix masking" assume that execution after a wrong decision is often
correct, so that its blame is unreliable, and say that they did not measure it.  Correct is read
here as not wrong: a turn may follow from the decision, or be back on the world's path whatever was
decided, so that shares of correct execution are no shares of what followed from a decision.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from turncredit.environments.oracle import FOLLOWS, RIGHT, UNJUDGED, WRONG
from turncredit.records import Trajectory

CASES = (
    "right decision",
    "wrong decision, correct execution",
    "wrong decision, wrong execution",
    "wrong decision, no execution",
)
"""The three of the slides' example, and wrong turns that nothing judged comes after."""
HEADLINE = CASES[1]


def case_of(labels: Sequence[str]) -> str:
    """Which of CASES a trajectory is, by the labels of its turns.

    >>> case_of(["right", "wrong", "follows", "right"])
    'wrong decision, correct execution'
    >>> case_of(["wrong", "unjudged"])
    'wrong decision, no execution'
    """
    after = execution(labels)
    if after is None:
        return CASES[0]
    if not after:
        return CASES[3]
    return CASES[2] if WRONG in after else CASES[1]


def execution(labels: Sequence[str]) -> list[str] | None:
    """The judged labels after the first turn off the path; None where there is no such turn."""
    first = next((n for n, label in enumerate(labels) if label in (FOLLOWS, WRONG)), None)
    return None if first is None else [x for x in labels[first + 1 :] if x != UNJUDGED]


def decision_shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Of the failed trajectories whose reward is known: their decisions and what came after.

    `failed_wrong_decision`: those with a wrong decision; `failed_decision_alone`: those of the case
    HEADLINE, where the decision alone was wrong; both / failed trajectories.  `execution_right`:
    judged turns after a wrong decision that are right or follow from it / all such turns.  NaN
    where nothing can be counted, and if the world cannot label one of the trajectories.
    """
    failed = [t for t in trajectories if t.reward is not None and not t.success]
    labels = [t.turn_labels for t in failed if t.turn_labels is not None]
    if len(labels) < len(failed):
        labels = []
    after = [label for own in labels for label in execution(own) or ()]
    return {
        "failed_wrong_decision": _share([execution(own) is not None for own in labels]),
        "failed_decision_alone": _share([case_of(own) == HEADLINE for own in labels]),
        "execution_right": _share([label in (RIGHT, FOLLOWS) for label in after]),
    }


def _share(holds: Sequence[bool]) -> float:
    return fmean(holds) if holds else math.nan
