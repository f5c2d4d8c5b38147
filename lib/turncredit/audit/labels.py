"""Right or wrong, turn by turn: how often is execution after a wrong decision correct?

Of each turn the world's oracle knows whether it was on the path (`right`), off it but right given
the wrong turns before it (`follows`), `wrong`, or `unjudged`, where only a guess could win
(`environments.oracle.LABELS`).  The first turn off the path is the decision that a gate should find
(`decisions`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from turncredit.audit.recordings import PlayedStep, Recording
from turncredit.audit.stages import Row, share, stages_of
from turncredit.decisions import CASES, case_of, execution
from turncredit.environments.oracle import FOLLOWS, LABELS, RIGHT, WRONG
from turncredit.records import Trajectory


def labels_of(trajectories: Iterable[Trajectory]) -> list[tuple[str, ...]]:
    """The labels of each, of LABELS; ValueError naming the question of one that has no such."""
    found = []
    for trajectory in trajectories:
        labels = trajectory.turn_labels
        if labels is None or len(labels) != len(trajectory.turns):
            raise ValueError(
                f"question {trajectory.question_id}: {len(trajectory.turns)} turns, labels "
                f"{labels}; take a world that tells wrong turns, and records that keep them"
            )
        for unknown in (label for label in labels if label not in LABELS):
            raise ValueError(
                f"question {trajectory.question_id}: label {unknown!r}; need {', '.join(LABELS)}"
            )
        found.append(labels)
    return found


def label_numbers(played: PlayedStep) -> Tensor:
    """[B, T] int64: place of each turn's label in LABELS, -1 where there is no turn."""
    numbers = torch.full((len(played.trajectories), played.batch.num_turns), -1)
    for row, labels in enumerate(labels_of(played.trajectories)):
        numbers[row, : len(labels)] = torch.tensor([LABELS.index(label) for label in labels])
    return numbers


def case_rows(recording: Recording, edges: Sequence[int]) -> list[Row]:
    """What a run's trajectories were, by training stage and outcome: tidy rows of one `value` each.

    `measure`: each of CASES, the share of trajectories; `execution_right`, judged turns after the
    decision that were right or follow from it / all of them; `execution_follows`, those that
    follow alone; `decision_first`, wrong decisions at turn 0 / wrong decisions; `trajectories`,
    their number, without those whose reward is missing.  outcome: "failed", "succeeded" or "all".
    NaN where there was nothing to count.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    for played in recording.read():
        for trajectory, labels in zip(
            played.trajectories, labels_of(played.trajectories), strict=True
        ):
            if trajectory.reward is None:
                continue
            found = _counted(labels)
            outcome = "succeeded" if trajectory.success else "failed"
            for stage in stages_of(played.step, edges):
                for kind in (outcome, "all"):
                    counts.setdefault((stage, kind), Counter()).update(found)
    run = {"seed": recording.seed, "block": recording.block}
    return [
        run | {"stage": stage, "outcome": outcome, "measure": measure, "value": value}
        for (stage, outcome), counted in counts.items()
        for measure, value in _measures(counted).items()
    ]


def _counted(labels: Sequence[str]) -> Counter[str]:
    after = execution(labels)
    found = Counter(after or [])
    found.update([case_of(labels), "trajectories"])
    found["wrong decisions"] += after is not None
    found["at turn 0"] += bool(labels) and labels[0] in (FOLLOWS, WRONG)
    return found


def _measures(counted: Counter[str]) -> dict[str, float]:
    total, after = counted["trajectories"], sum(counted[x] for x in (RIGHT, FOLLOWS, WRONG))
    return {
        **{case: share(counted[case], total) for case in CASES},
        "execution_right": share(counted[RIGHT] + counted[FOLLOWS], after),
        "execution_follows": share(counted[FOLLOWS], after),
        "decision_first": share(counted["at turn 0"], counted["wrong decisions"]),
        "trajectories": float(total),
    }
