"""Turns, trajectories and groups: what a rollout leaves behind.

Records are token-additive: a turn holds only the ids it adds, so the ids trained on are the ids
the policy saw, by construction, and nothing is ever tokenised twice.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from turncredit.storage import atomic_path


@dataclass(frozen=True)
class Turn:
    """One policy message and the observation it caused."""

    sampled_ids: tuple[int, ...]
    sampled_logprobs: tuple[float, ...]
    """Under the sampling engine, natural log; same length as `sampled_ids`."""
    sampled_entropies: tuple[float, ...]
    """Full-vocabulary entropy in nats at each sampled token; same length."""
    observation_ids: tuple[int, ...]
    """() after the last turn."""
    action: str
    """The tool or decision asked for: search, read_chunk, ..., answer; or invalid, unfinished."""
    correct: bool | None = None
    """For an answer or a verified guess: was it right?  None for every other turn."""
    grafted_from: int | None = None
    """First of `sampled_ids` that was sampled in another context than the one it stands in, as by a
    rollback: from there on the turn is off-policy.  None: no such token."""

    def __post_init__(self) -> None:
        count = len(self.sampled_ids)
        if self.grafted_from is not None and not 0 <= self.grafted_from < count:
            raise ValueError(f"grafted_from: {self.grafted_from} for {count} sampled ids")
        for name in ("sampled_logprobs", "sampled_entropies"):
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"{name}: {len(getattr(self, name))} values for {count} sampled ids"
                )


@dataclass(frozen=True)
class Trajectory:
    """All turns of one episode."""

    question_id: str
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    reward: float | None
    """Outcome reward; None = missing (the judge or scorer gave nothing), which is not zero."""
    success: bool
    """Exact match of the submitted answer, independent of reward shaping."""
    stop_reason: str
    """answer, invalid, max_turns or max_tokens."""
    grounded: bool | None = None
    """Did the evidence for the answer ever reach the context?  None where a world cannot tell."""
    oracle_turn: int | None = None
    """First turn that was wrong by what the world knows, -1: none; None where it cannot tell."""
    turn_labels: tuple[str, ...] | None = None
    """What each turn was by what the world knows: right, follows (right given the wrong turns
    before it), wrong or unjudged; None where it cannot tell."""
    behaviour_prompt_ids: tuple[int, ...] | None = None
    """What the policy read in the place of `prompt_ids` when it sampled; None: those very."""

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(
                f"reward: {self.reward} for question {self.question_id}; use None if missing"
            )

        if self.oracle_turn is not None and not -1 <= self.oracle_turn < max(len(self.turns), 1):
            raise ValueError(
                f"oracle_turn: {self.oracle_turn} for question {self.question_id}, which has "
                f"{len(self.turns)} turns"
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt, sampled and observation ids in the order the policy met them."""
        ids = list(self.prompt_ids)
        for turn in self.turns:
            ids += turn.sampled_ids
            ids += turn.observation_ids
        return tuple(ids)


@dataclass(frozen=True)
class Group:
    """The trajectories of one question in one step."""

    question_id: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        strangers = {t.question_id for t in self.trajectories} - {self.question_id}
        if strangers:
            raise ValueError(f"group of question {self.question_id} holds {sorted(strangers)[0]}")


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """One JSON object a line, gzipped without a timestamp: equal records give equal bytes."""
    lines = "".join(json.dumps(_record(t), ensure_ascii=False) + "\n" for t in trajectories)
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(lines.encode("utf-8"), mtime=0))


def read_trajectories(path: Path) -> list[Trajectory]:
    """Inverse of `write_trajectories`; ValueError naming file and line for a broken record."""
    trajectories = []
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not gzipped text ({error})") from error
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            trajectories.append(_trajectory(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not a trajectory ({error})") from error
    return trajectories


def _record(trajectory: Trajectory) -> dict:
    """The trajectory as JSON has it; what only some rollouts know is left out where it is None."""
    record = asdict(trajectory)
    rare = [(record, "behaviour_prompt_ids")]
    rare += [(turn, "grafted_from") for turn in record["turns"]]
    for part, name in rare:
        if part[name] is None:
            del part[name]
    return record


def _trajectory(record: dict) -> Trajectory:
    turns = tuple(
        Turn(
            **{
                key: tuple(v) if key.endswith(("_ids", "_logprobs", "_entropies")) else v
                for key, v in turn.items()
            }
        )
        for turn in record["turns"]
    )
    changed = {"turn_labels": None, "turns": turns}  # older records have no labels
    for name in ("prompt_ids", "turn_labels", "behaviour_prompt_ids"):
        if record.get(name) is not None:
            changed[name] = tuple(record[name])
    return Trajectory(**{**record, **changed})
