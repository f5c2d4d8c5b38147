"""Runs of `tiny_runs` on a disk that gets full: the program of test_full_disk.py's own processes.

Two kinds of full.  `limited`: as a named file is opened for writing, the system's limit on the size
of files (RLIMIT_FSIZE) is set to so many bytes more than it has, so that the write itself fails in
its middle.  `filled`: a file system of a few pages that gets one more after each failure.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from turncredit.experiment import Job, experiment_from, run
from turncredit.results import TABLES, RunDirectory

torch.set_num_threads(1)
torch.optim.AdamW([torch.zeros(1)])  # what it imports on first use, every child would
HOME, PARAMETERS, CODE, KIND, KEPT = Path(sys.argv[1]), *sys.argv[2:5], sys.argv[5].split(",")
JOB = Job(experiment_from(json.loads(PARAMETERS)), "tiny", "grpo", 0)
RUN = RunDirectory(JOB.experiment.folder / JOB.label)
CACHE = HOME / "cache" / "warm_starts"
WORDS = HOME / "words.json"
"""What a child has to say; not on the disk that is full."""


def written(path: str) -> str | None:
    """Which file of the run a path is, or will be once it is whole; None for any other path."""
    for name in sorted(SIZES, key=len, reverse=True):
        base = Path(path).name
        if str(RUN.path) in path and (base == name or base.startswith(f".{name}.")):
            return name
        if name == "warm start" and str(CACHE) in path and ".safetensors" in base:
            return name
    return None


def on_writing(act: Callable[[str, Path], None]) -> None:
    """Call `act` with name and path before a file of the run is opened for writing."""

    def hook(event: str, arguments: tuple) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            name = written(str(arguments[0]))
            if name:
                act(name, Path(str(arguments[0])))

    sys.addaudithook(hook)


def whole_files() -> dict[str, str]:
    """Every file that bears its name, in hexadecimal."""
    paths = [*RUN.path.glob("[!.]*"), *CACHE.glob("[!.]*.safetensors")]
    return {path.name: path.read_bytes().hex() for path in paths}


def fill(wanted: str, number: int, room: int) -> None:
    """From the number-th opening of `wanted` on, no file gets longer than that is plus `room`."""
    seen: Counter = Counter()
    before: dict[str, dict] = {}

    def act(name: str, path: Path) -> None:
        seen[name] += 1
        if name == wanted and seen[name] == number:
            before["whole"] = whole_files()
            size = path.stat().st_size if path.exists() else 0
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))

    on_writing(act)
    child.before = before


def count() -> None:
    """Count the openings of every file, and remember them for the parent."""
    seen: Counter = Counter()
    on_writing(lambda name, path: seen.update([name]))
    child.seen = seen


def child(prepare: Callable[[], None] = lambda: None) -> dict:
    """The run in a process of its own; returns its last words."""
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return json.loads(WORDS.read_text()) | {"status": status}
    said: dict = {"error": None}
    child.before = child.seen = {}
    try:
        prepare()
        run(JOB, CODE, lambda *shown: None)
    except BaseException as error:
        said["error"] = [type(error).__name__, getattr(error, "errno", None), str(error)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    lost = [name for name, old in child.before.get("whole", {}).items() if not kept(name, old)]
    seen = {"seen": child.seen, "lost": lost, "whole": [*child.before.get("whole", {})]}
    WORDS.write_text(json.dumps(said | seen))
    os._exit(0 if said["error"] is None else 3)


def kept(name: str, old: str) -> bool:
    """Whether a file is still what it was; a table may have half a row more."""
    now = whole_files().get(name, "")
    return now.startswith(old) if name in TABLES else now == old


def results() -> dict[str, bytes]:
    return {name: (RUN.path / name).read_bytes() for name in KEPT}


def litter() -> list[str]:
    return [path.name for folder in (RUN.path, CACHE) for path in folder.glob(".*.*.*")]


def empty(*, cache: bool) -> None:
    for folder in (RUN.path, *([CACHE] if cache else [])):
        for path in folder.iterdir():
            path.unlink()


def limited() -> list[dict]:
    """One outcome for the first and the last time that each file is opened for writing."""
    first = child(count)
    assert first["status"] == 0, first
    for path in [*RUN.path.glob("[!.]*"), *CACHE.glob("*.safetensors")]:
        SIZES[path.name if path.parent == RUN.path else "warm start"] = path.stat().st_size
    SIZES["turns.csv"] = 10**4
    empty(cache=True)
    whole = child(count)
    expected, outcomes = results(), []
    for name in SIZES:
        for number in sorted({1, whole["seen"].get(name, 0)} - {0}):
            empty(cache=name == "warm start")
            room = 10 if name in (*TABLES, "begun.json") else SIZES[name] // 2
            full = child(lambda name=name, n=number, room=room: fill(name, n, room))
            outcome = {"file": name, "number": number, "swept": litter()} | full
            again = child()
            outcome |= {"again": again["error"], "litter": litter()}
            outcome["same"] = again["status"] == 0 and results() == expected
            outcome["resumed_at"] = json.loads(RUN.manifest.read_text())["resumed_at"]
            outcomes.append(outcome)
    return outcomes


def filled() -> list[dict]:
    """The errors of a run whose disk gets a page more after each, and whether it ended the same."""
    child()
    expected, outcomes, pages = results(), [], 1
    shutil.rmtree(RUN.path)
    RUN.path.mkdir()
    disk = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE}", "none", str(RUN.path)]
    subprocess.run(disk, check=True)
    while pages < 200:
        said = child()
        outcomes.append(said | {"pages": pages, "same": said["error"] is None})
        if said["error"] is None:
            outcomes[-1]["same"] = results() == expected
            break
        pages += 1
        subprocess.run(["mount", "-o", f"remount,size={pages * PAGE}", RUN.path], check=True)
    return outcomes


PAGE = 2 * os.sysconf("SC_PAGE_SIZE")
SIZES: dict[str, int] = {}
(HOME / "outcomes.json").write_text(json.dumps({"limited": limited, "filled": filled}[KIND]()))
