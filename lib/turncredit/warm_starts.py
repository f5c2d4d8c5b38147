"""Warm starts of tasks: trained once, kept under the cache folder, shared by all runs and arms."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turncredit import paths
from turncredit.policies.protocol import Policy
from turncredit.policies.tiny import load_policy, save_policy
from turncredit.storage import exclusive, sha256_json
from turncredit.tasks import Task, open_task, task_path
from turncredit.warm_start import warm_start


def warm_started_policy(
    task: Task, seed: int, code: str, report: Callable[[int, float], None]
) -> Policy:
    """The policy of a task after its warm start, trained once per settings, seed and `code`.

    Kept under the cache folder by hash; a second process asking for the same one waits for it.
    `report(step, loss)` is called after each of its steps.
    Raises ValueError if `warm_start_task` has another vocabulary or policy size.
    """
    source = open_task(task.tier, task.settings.warm_start_task)
    _require_same_policy(task, source)
    policy = task.new_policy(seed)
    if source.settings.warm_start.steps == 0:
        return policy
    path = _kept_at(source, seed, code)
    with exclusive(path.with_suffix(".lock")):
        if not path.exists():
            warm_start(
                policy,
                source.vocabulary,
                source.world.names,
                source.demonstrations(seed),
                source.settings.warm_start,
                seed=seed,
                report=report,
            )
            save_policy(policy, path)
    load_policy(policy, path)
    return policy


def is_trained(task: Task, seed: int, code: str) -> bool:
    """Whether `warm_started_policy` finds the warm start of a task, or needs none."""
    source = open_task(task.tier, task.settings.warm_start_task)
    return source.settings.warm_start.steps == 0 or _kept_at(source, seed, code).exists()


def _require_same_policy(task: Task, source: Task) -> None:
    wanted, found = ((one.vocabulary.entries, one.settings.policy) for one in (task, source))
    if found != wanted:
        raise ValueError(
            f"{task_path(task.tier, task.name)}: warm_start_task = {source.name!r} has another "
            "vocabulary or policy size"
        )


def warm_start_values(source: Task) -> dict[str, Any]:
    """What of `warm_start_task` shapes a warm start: its world, environment and script.

    How that task is trained and evaluated, and where its own warm start comes from, is not among
    them; the seed and the code come on top.
    """
    settings = asdict(source.settings)
    shaping = {name: settings[name] for name in _SHAPING}
    files = {"contents": source.contents} if source.contents else {}
    return shaping | source.settings.kinds | files


def _kept_at(source: Task, seed: int, code: str) -> Path:
    """Where the warm start lies, by everything that decides its numbers."""
    key = sha256_json([warm_start_values(source), seed, code])[:16]
    folder = paths.cache() / "warm_starts"
    return folder / f"{source.tier}-{source.name}-{seed}-{key}.safetensors"


_SHAPING = (
    "world", "environment", "wording", "judge", "disturbances", "withheld_share",
    "policy", "demonstrations", "warm_start",
)  # fmt: skip
