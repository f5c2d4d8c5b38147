"""Action logs: the tool calls of a scripted expert that found what a question asks for.

One JSON object a line: `{"question_id": ..., "actions": [message, ...]}`.  A log has a name and
lies at `log_path(name)`; logs from elsewhere may be put there.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from turncredit import paths
from turncredit.demonstrations import DemonstrationSettings, Script, script_of
from turncredit.environments.protocol import Environment, Episode
from turncredit.seeding import python_stream
from turncredit.storage import atomic_path
from turncredit.worlds.base import Question

EXPERT = DemonstrationSettings(guess_first=0.0, error=0.0, quit=0.0, verify=0.0, patience=8)
"""Never guesses, slips or gives up early, and does not say what it found before its answer."""
SCRIPTED = "scripted"
"""In the place of a log's name: an expert that plays each question when it is asked for."""
ATTEMPTS = 8
"""Episodes that an expert may play until one succeeds; tools fail by chance."""


@dataclass(frozen=True)
class ActionLog:
    """What an expert did on one question."""

    question_id: str
    actions: tuple[str, ...]
    """Its tool calls in order, as messages; the answer is not among them."""

    def __post_init__(self) -> None:
        for action in self.actions:
            if not isinstance(action, str) or not action.strip():
                raise ValueError(
                    f"actions of question {self.question_id}: {action!r} is no message"
                )


def expert_log(environment: Environment, question: Question, seed: int) -> ActionLog:
    """The log of the first attempt that succeeds on evidence; without actions if none does.

    A call that had to be repeated stands in it once, and one that failed by an error not at all.  A
    question that tells no hops, or whose evidence the world has lost, has no actions: there is
    nothing that an expert could follow.
    """
    looks_first = "query" in environment.actions  # what `verify` means at tables
    expert = replace(EXPERT, verify=float(looks_first))
    for attempt in range(ATTEMPTS if question.hops else 0):
        stream = python_stream(seed, "expert", question.id, attempt)
        episode = environment.reset(question, stream)
        script = script_of(question, (), expert, stream, environment.actions)
        calls = _calls(episode, script, environment.actions)
        if episode.success and episode.grounded:
            return ActionLog(question.id, tuple(dict.fromkeys(calls)))
    return ActionLog(question.id, ())


def _calls(episode: Episode, script: Script, actions: Sequence[str]) -> list[str]:
    """The calls of a script that a tool answered, to the end of the episode or of the script."""
    calls, message = [], next(script)
    while True:
        result = episode.step(message)
        if result.action in actions and result.action != "answer" and result.error is None:
            calls.append(message)
        if result.stop_reason is not None:
            return calls
        try:
            message = script.send(result.observation)
        except StopIteration:  # the environment let an answer pass
            return calls


def log_path(name: str) -> Path:
    """Where the action log of a name lies, below the cache folder; ValueError for a path."""
    if not name or Path(name).name != name or name.startswith("."):
        raise ValueError(f"log = {name!r} is not the name of a file")
    return paths.cache() / "action_logs" / f"{name}.jsonl"


def write_log(name: str, logs: Iterable[ActionLog]) -> Path:
    """Write the log of a name, whole or not at all; equal logs give equal bytes."""
    lines = "".join(json.dumps(asdict(log), ensure_ascii=False) + "\n" for log in logs)
    with atomic_path(log_path(name)) as temporary:
        temporary.write_text(lines, encoding="utf-8")
    return log_path(name)


def read_log(name: str) -> dict[str, ActionLog]:
    """The logs of a name by question.

    Raises ValueError naming the file for one that does not exist, is no text or holds nothing, and
    the line too for a broken record or a question that comes twice.
    """
    path = log_path(name)
    if not path.is_file():
        raise ValueError(f"{path}: no such action log; write it with turncredit.action_logs")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not an action log ({error})") from error
    if not text.strip():
        raise ValueError(f"{path}: the action log holds nothing")
    logs: dict[str, ActionLog] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            log = _log(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not an action log ({error})") from error
        if log.question_id in logs:
            raise ValueError(f"{path}, line {number}: question {log.question_id} comes twice")
        logs[log.question_id] = log
    return logs


def _log(record: Any) -> ActionLog:
    if not isinstance(record, dict) or record.keys() != {"question_id", "actions"}:
        raise ValueError("needs question_id and actions, and nothing else")
    if not isinstance(record["question_id"], str) or not isinstance(record["actions"], list):
        raise ValueError("question_id is a text and actions a list")
    return ActionLog(record["question_id"], tuple(record["actions"]))
