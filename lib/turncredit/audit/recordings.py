"""What a policy played while it was trained, kept on disk and given back step by step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from turncredit.batching import TurnBatch, anchor_ids, from_trajectories
from turncredit.records import Trajectory, read_trajectories, write_trajectories
from turncredit.storage import read_mapping, sha256_file, sha256_json, write_json

_FILE = "trajectories.jsonl.gz"


class PlayedStep(NamedTuple):
    """One training step: its trajectories, group by group, and their batch."""

    step: int
    trajectories: list[Trajectory]
    batch: TurnBatch
    """With `anchor_ids`, so that bases that compare states can be asked too."""


@dataclass(frozen=True)
class Recording:
    """The trajectories of one run."""

    folder: Path
    seed: int
    """Of the run."""
    block: int
    """Its warm start."""
    group_size: int
    identity: Mapping[str, Any]
    """What decides the trajectories, as JSON: task, method, code."""

    @property
    def hash(self) -> str:
        """Of seed, warm start, group size and identity."""
        return sha256_json([self.seed, self.block, self.group_size, dict(self.identity)])

    def is_finished(self) -> bool:
        """Whether a whole recording of this hash lies here, its file as the manifest says."""
        manifest, path = self._manifest(), self.folder / _FILE
        wanted = {"hash": self.hash, "file": sha256_file(path) if path.exists() else ""}
        return {key: manifest.get(key) for key in wanted} == wanted

    def write(self, played: Iterable[tuple[int, list[Trajectory]]]) -> None:
        """Keep the trajectories of each step, in place of whatever lay here."""
        steps = dict(played)
        self.__dict__.pop("_steps", None)
        (self.folder / "manifest.json").unlink(missing_ok=True)
        path = self.folder / _FILE
        write_trajectories(path, [t for trajectories in steps.values() for t in trajectories])
        counts = {str(step): len(trajectories) for step, trajectories in steps.items()}
        facts = {"hash": self.hash, "file": sha256_file(path), "counts": counts}
        write_json(self.folder / "manifest.json", facts | {"identity": dict(self.identity)})

    def read(self) -> list[PlayedStep]:
        """The steps in order; ValueError naming the folder if no finished recording lies there."""
        if not self.is_finished():
            raise ValueError(f"{self.folder}: no finished recording of this run")
        return self._steps

    @cached_property
    def _steps(self) -> list[PlayedStep]:
        """Read once for all that is asked of a run."""
        trajectories, start, steps = read_trajectories(self.folder / _FILE), 0, []
        for step, count in self._manifest()["counts"].items():
            part = trajectories[start : start + count]
            steps.append(played_step(int(step), part, self.group_size))
            start += count
        return steps

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / "manifest.json"
        return read_mapping(path, "delete it to record the run anew") or {}


def played_step(step: int, trajectories: list[Trajectory], group_size: int) -> PlayedStep:
    """Trajectories in groups of `group_size`, one after the other, with their batch."""
    groups = [row // group_size for row in range(len(trajectories))]
    batch = from_trajectories(trajectories, group_ids=groups)
    states = anchor_ids(trajectories, group_ids=groups)
    return PlayedStep(step, trajectories, batch.replace(anchor_ids=states))
