"""A probe on disk: states drawn and recorded, responses saved state by state, one table at the end.

Killed at any moment, it goes on with the state it was at, to the same bytes.  What was made with
other settings, another policy or other states is thrown away, never mixed.
"""

import csv
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turncredit.batching import TurnBatch, from_trajectories
from turncredit.params import require_positive
from turncredit.probe.measures import ResponseMeasures, measure
from turncredit.probe.responses import Responder, draw_responses
from turncredit.probe.states import RULES, State, read_states, sample_states, write_states
from turncredit.records import Trajectory, Turn, read_trajectories, write_trajectories
from turncredit.storage import (
    exclusive,
    read_mapping,
    sha256_file,
    sha256_json,
    write_json,
    write_text,
)

COLUMNS = ("state", "response", "tokens", "surprisal", "predictable")
FILES = ("trajectories.jsonl.gz", "states.json", "responses.csv")
_PATIENCE = 1.0
"""Seconds to wait for a probe in other hands: those of a process that is just being stopped."""


@dataclass(frozen=True)
class ProbeSettings:
    """Size of a probe."""

    questions: int
    group_size: int
    """Trajectories of each question; states are drawn from them, and AEM's groups are these."""
    states: int
    responses: int
    """Fresh responses in every state."""
    rule: str
    """How states are drawn; see `sample_states`."""
    seed: int

    def __post_init__(self) -> None:
        require_positive(self, "questions", "group_size", "states", "responses")
        if self.responses < 2:
            raise ValueError("responses = 1: the mean surprisal of a state needs 2")
        if self.rule not in RULES:
            raise ValueError(f"rule = {self.rule!r}; need one of {', '.join(RULES)}")


@dataclass(frozen=True, eq=False)
class Probed:
    """A finished probe."""

    step: int
    trajectories: list[Trajectory]
    states: list[State]
    measures: ResponseMeasures
    group_size: int

    @cached_property
    def batch(self) -> TurnBatch:
        """The trajectories, in groups of `group_size`."""
        numbers = [row // self.group_size for row in range(len(self.trajectories))]
        return from_trajectories(self.trajectories, group_ids=numbers)


@dataclass(frozen=True)
class Probe:
    """The probe of one policy after `step` training steps."""

    folder: Path
    settings: ProbeSettings
    step: int
    identity: Mapping[str, Any]
    """What else decides the numbers, as JSON: task, training, model, code."""

    @property
    def hash(self) -> str:
        """Of settings, step and identity."""
        return sha256_json([asdict(self.settings), self.step, dict(self.identity)])

    def is_finished(self) -> bool:
        """Whether a whole probe of this hash lies here, every file as its manifest says."""
        manifest = self._mapping("manifest.json") or {}
        if manifest.get("hash") != self.hash or not isinstance(manifest.get("files"), dict):
            return False
        return all(
            (self.folder / name).exists()
            and sha256_file(self.folder / name) == manifest["files"].get(name)
            for name in FILES
        )

    def draw(
        self, responder: Responder, trajectories: Sequence[Trajectory], *, policy_hash: str
    ) -> Iterator[int]:
        """Probe states of `trajectories`, group by group; yields the number of states done.

        Nothing is drawn if it is finished; an interrupted probe of the same hash, policy and states
        goes on.  policy_hash: see `weights_hash`.  Raises ValueError for another number of
        trajectories than the settings say, what `draw_responses` raises, and RuntimeError naming
        the process that has this probe in hand.
        """
        wanted = self.settings.questions * self.settings.group_size
        if len(trajectories) != wanted:
            raise ValueError(f"{self.folder}: {len(trajectories)} trajectories, not {wanted}")
        with exclusive(self.folder / ".lock", patience=_PATIENCE):
            if not self.is_finished():
                yield from self._draw(responder, trajectories, policy_hash)
            shutil.rmtree(self._parts, ignore_errors=True)

    def _draw(
        self, responder: Responder, trajectories: Sequence[Trajectory], policy_hash: str
    ) -> Iterator[int]:
        settings = self.settings
        states = sample_states(
            trajectories, settings.states, seed=settings.seed, step=self.step, rule=settings.rule
        )
        drawn = sha256_json([asdict(state) for state in states])
        self._begin({"hash": self.hash, "policy": policy_hash, "states": drawn})
        write_trajectories(self.folder / "trajectories.jsonl.gz", trajectories)
        write_states(self.folder / "states.json", states, rule=settings.rule, seed=settings.seed)
        for number, state in enumerate(states):
            part = self._part(number)
            if not part.exists():
                (turns,) = draw_responses(
                    responder, [state], settings.responses, seed=settings.seed
                )
                write_text(part, _csv(_rows(number, turns)))
            yield number + 1
        self._finish(len(states), policy_hash)

    def _begin(self, facts: Mapping[str, str]) -> None:
        """Clear the folder unless an interrupted probe of these facts lies there."""
        names = ("manifest.json", "begun.json", *FILES)
        for half_made in (path for name in names for path in self.folder.glob(f".{name}.*")):
            half_made.unlink()
        if self._mapping("begun.json") != facts or self._mapping("manifest.json") is not None:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self._parts, ignore_errors=True)
        write_json(self.folder / "begun.json", facts)

    def _finish(self, states: int, policy_hash: str) -> None:
        parts = [self._part(number).read_text(encoding="utf-8") for number in range(states)]
        write_text(self.folder / "responses.csv", ",".join(COLUMNS) + "\n" + "".join(parts))
        files = {name: sha256_file(self.folder / name) for name in FILES}
        facts = {"hash": self.hash, "policy": policy_hash, "step": self.step, "files": files}
        settings = {"settings": asdict(self.settings), "identity": dict(self.identity)}
        write_json(self.folder / "manifest.json", facts | settings)

    def read(self) -> Probed:
        """The finished probe; ValueError naming the folder if it is not, or the broken file."""
        if not self.is_finished():
            raise ValueError(f"{self.folder}: no finished probe of these settings")
        states = read_states(self.folder / "states.json")
        return Probed(
            self.step,
            read_trajectories(self.folder / "trajectories.jsonl.gz"),
            states,
            _read_measures(self.folder / "responses.csv", len(states), self.settings.responses),
            self.settings.group_size,
        )

    def _mapping(self, name: str) -> dict[str, Any] | None:
        return read_mapping(self.folder / name, "delete it to probe anew")

    @property
    def _parts(self) -> Path:
        return self.folder / "parts"

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:05d}.csv"


def weights_hash(policy: nn.Module) -> str:
    """SHA-256 of a policy's weights, name by name."""
    digest = sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rows(state: int, turns: Sequence[Turn]) -> list[tuple[int | str, ...]]:
    """COLUMNS of each response of a state; nats with nine digits, so that reading loses nothing."""
    found = measure([turns])
    columns = (found.lengths[0], found.surprisals[0], found.predictable[0])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (state, number, tokens, f"{surprisal:.9g}", f"{predictable:.9g}")
        for number, (tokens, surprisal, predictable) in enumerate(rows)
    ]


def _csv(rows: Sequence[Sequence[int | str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read_measures(path: Path, states: int, responses: int) -> ResponseMeasures:
    """Inverse of what `_finish` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    places = [(int(row["state"]), int(row["response"])) for row in rows]
    if places != [(state, number) for state in range(states) for number in range(responses)]:
        raise ValueError(f"{path}: not {responses} responses in each of {states} states, in order")

    def table(name: str) -> Tensor:
        values = torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)
        return values.view(states, responses)

    return ResponseMeasures(table("surprisal"), table("predictable"), table("tokens").long())
