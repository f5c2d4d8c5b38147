"""An experiment of a second on the smoke task, for tests that stop, kill and resume its runs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from turncredit import params
from turncredit.code_version import code_hash
from turncredit.experiment import Job, experiment_from
from turncredit.parallel import Report
from turncredit.results import RunDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = code_hash()
PLAIN = {
    "base": "grpo",
    "base_options": {},
    "weight": "none",
    "weight_options": {},
    "objective": "ppo_clip",
    "objective_options": {},
}
FILES = [
    "metrics.csv",
    "eval.csv",
    "turns.csv.gz",
    "trajectories.jsonl.gz",
    "questions.csv",
    "difficulty.csv",
    "checkpoint.safetensors",
]


def task_values(**training: object) -> dict:
    """The smoke task cut down to a second; the penalty makes rewards differ without any skill."""
    path = REPOSITORY / "params" / "smoke" / "tasks" / "costly_guess.yaml"
    values = params.read_yaml(path)
    values["environment"] |= {"invalid_ends": False, "invalid_penalty": 0.1, "max_turns": 12}
    values["policy"] |= {"width": 16, "layers": 1, "max_tokens": 48}
    values["warm_start"] |= {"steps": 2, "batch": 4}
    values["training"] |= {
        "steps": 5,
        "questions_per_step": 2,
        "warmup_steps": 2,
        "learning_rate": 0.01,
    }
    values["training"] |= {"checkpoint_every": 2} | training
    values["evaluation"] |= {"questions": 6, "every": 3}
    return values | {"warm_start_task": "tiny"}


def write_task(
    home: Path, name: str = "tiny", *, tripwires: dict | None = None, **training: object
) -> None:
    values = task_values(**training) | ({"tripwires": tripwires} if tripwires else {})
    path = home / "params" / "smoke" / "tasks" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))


def environment(home: Path) -> dict[str, str]:
    names = {"HOME": home, "RESULTS": home / "results", "CACHE": home / "cache"}
    return {f"TURNCREDIT_{name}": str(path) for name, path in names.items()}


def parameters(**changes) -> dict:
    values = {"tier": "smoke", "notebook": "10_try", "tasks": ["tiny"], "arms": {"grpo": PLAIN}}
    values |= {"variants": {}, "seeds": [0], "further": [], "warm_start_seeds": [0]}
    return values | changes


def job(**changes) -> Job:
    return Job(experiment_from(parameters(**changes)), "tiny", "grpo", 0)


def silent(label: str, done: int, total: int, shown: dict) -> None:
    """Reports of progress that nobody reads."""


def interrupt_after(done: int) -> Report:
    """Reports that end the process like Ctrl-C once `done` steps are."""

    def report(label: str, now: int, total: int, shown: dict) -> None:
        if now == done:
            raise KeyboardInterrupt

    return report


def directory(home: Path, label: str = "tiny/grpo/seed_0") -> RunDirectory:
    return RunDirectory(home / "results" / "10_try" / label)


def contents(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FILES}


def start_python(
    home: Path, code: str, arguments: Sequence[str], prefix: Sequence[str] = ()
) -> subprocess.Popen:
    """A process of its own that runs `code` on the experiment below `home`, started by `prefix`."""
    variables = os.environ | environment(home) | {"OMP_NUM_THREADS": "1"}
    variables |= {"PYTHONPATH": str(REPOSITORY / "lib"), "PYTHONHASHSEED": "random"}
    command = [*prefix, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def drive(home: Path, code: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
    """Run `code` to its end; its last words are shown if it fails."""
    process = start_python(home, code, arguments, prefix)
    words = process.communicate(timeout=900)[1]
    assert process.returncode == 0, words[-2000:]
