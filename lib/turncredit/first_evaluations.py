"""Evaluations before training: arms and seeds that begin from one warm start share one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from turncredit.checkpoints import digest
from turncredit.policies.protocol import Policy
from turncredit.records import Trajectory
from turncredit.rollout import without_lost

if TYPE_CHECKING:
    from turncredit.tasks import Task

_MOST = 16
_LARGEST = 10_000_000
"""Parameters; to hash the weights of more would take as long as it saves."""

_kept: dict[tuple[int, str], tuple["Task", list[Trajectory]]] = {}
"""By the task (which is held, so that its id stays its own) and the weights of the policy."""


def played_once(
    task: "Task", policy: Policy, play: Callable[[], list[Trajectory]]
) -> list[Trajectory]:
    """What `play()` gives, or gave in this process for the same task and equal weights.

    An evaluation is the same for equal policies (`evaluation.evaluate`).  One in which a tool or
    the judge failed, or an error ended a trajectory, is not kept: every run counts its own.
    """
    weights = policy.state_dict()
    if sum(weight.numel() for weight in weights.values()) > _LARGEST:
        return play()
    key = (id(task), digest(weights))
    if key in _kept:
        return _kept[key][1]
    failures = dict(task.environment.failures)
    trajectories = play()
    whole = len(without_lost(trajectories)) == len(trajectories)
    if whole and dict(task.environment.failures) == failures:
        while len(_kept) >= _MOST:
            del _kept[next(iter(_kept))]
        _kept[key] = (task, trajectories)
    return trajectories
