"""Optional log writers: what reaches them, what they refuse; the real packages where present."""

import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from further_packages import needs

from turncredit import loggers
from turncredit.loggers import known_numbers, log_writers

CONFIG = {"seed": 0, "method": "grpo"}


class FakeEvents:
    """Stands for torch.utils.tensorboard.SummaryWriter."""

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, 0
        self.texts: list[tuple[str, str, int]] = []
        self.scalars: list[tuple[str, float, int]] = []

    def add_text(self, name, text, step):
        self.texts.append((name, text, step))

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.closed += 1


class FakeRun:
    """Stands for a run of wandb."""

    def __init__(self, **settings) -> None:
        self.settings, self.rows, self.finished = settings, [], 0

    def log(self, values, step):
        self.rows.append((step, values))

    def finish(self):
        self.finished += 1


@pytest.fixture
def packages(monkeypatch):
    """Both packages as fakes; gives what they have made so far."""
    made = SimpleNamespace(events=[], runs=[])

    def keep(kind, value):
        getattr(made, kind).append(value)
        return value

    board, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
    board.SummaryWriter = lambda *args, **options: keep("events", FakeEvents(*args, **options))
    wandb.init = lambda **settings: keep("runs", FakeRun(**settings))
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return made


def test_both_writers_get_the_same_numbers_and_no_missing_one(packages, tmp_path):
    run_dir = tmp_path / "task" / "arm" / "seed_0"
    writers = log_writers(["tensorboard", "wandb"], run_dir, CONFIG)
    rows = [(4, {"reward": 0.5, "gate": math.nan}), (5, {"reward": 1, "gate": None, "won": True})]
    for step, values in rows:
        for writer in writers:
            writer.write(step, values)
    (events,), (run,) = packages.events, packages.runs
    assert events.scalars == [("reward", 0.5, 4), ("reward", 1.0, 5), ("won", 1.0, 5)]
    assert run.rows == [(4, {"reward": 0.5}), (5, {"reward": 1.0, "won": 1.0})]
    assert Path(events.folder) == run_dir / "tensorboard"
    ((name, text, step),) = events.texts
    assert (name, step) == ("config", 4)
    assert "seed: 0" in text and "method: grpo" in text
    assert run.settings["name"] == "task/arm/seed_0"
    assert (run.settings["config"], run.settings["dir"]) == (CONFIG, str(run_dir))


def test_nothing_is_opened_before_the_first_step_and_closing_is_idempotent(packages, tmp_path):
    writers = log_writers(["wandb", "tensorboard"], tmp_path / "run", CONFIG)
    for writer in writers:
        writer.close()
    assert not packages.events and not packages.runs and not (tmp_path / "run").exists()
    for writer in writers:
        writer.write(0, {"reward": 1.0})
        writer.close()
        writer.close()
    assert packages.runs[0].finished == 1
    assert packages.events[0].closed >= 1


def test_a_resumed_run_hides_what_came_after_its_checkpoint_and_keeps_its_page(packages, tmp_path):
    for first in (0, 3):
        for writer in log_writers(["tensorboard", "wandb"], tmp_path, CONFIG):
            writer.write(first, {"reward": 1.0})
            writer.write(first + 1, {"reward": 1.0})
    assert [events.purge_step for events in packages.events] == [0, 3]
    first, second = (run.settings for run in packages.runs)
    assert first["id"] == second["id"] and first["resume"] == "allow"
    (other,) = log_writers(["wandb"], tmp_path, CONFIG | {"seed": 1})
    other.write(0, {"reward": 1.0})
    assert packages.runs[-1].settings["id"] != first["id"]


def test_the_project_is_the_one_of_the_environment(packages, tmp_path, monkeypatch):
    for name in (None, "mine"):
        if name:
            monkeypatch.setenv("WANDB_PROJECT", name)
        else:
            monkeypatch.delenv("WANDB_PROJECT", raising=False)
        (writer,) = log_writers(["wandb"], tmp_path, CONFIG)
        writer.write(0, {})
    assert [run.settings["project"] for run in packages.runs] == ["turncredit", "mine"]


@pytest.mark.parametrize("value", ["all", [1.0], {"a": 1}])
def test_what_is_no_number_is_refused_before_anything_is_written(packages, tmp_path, value):
    for writer in log_writers(["tensorboard", "wandb"], tmp_path, CONFIG):
        with pytest.raises(ValueError, match="log value hops = "):
            writer.write(0, {"reward": 1.0, "hops": value})
    assert not packages.events and not packages.runs


def test_infinite_numbers_are_not_missing():
    assert known_numbers({"ratio_max": math.inf}) == {"ratio_max": math.inf}


def test_unknown_and_repeated_names(packages, tmp_path):
    with pytest.raises(ValueError, match="unknown log writer 'csv'; there are: tensorboard, wandb"):
        log_writers(["csv"], tmp_path, CONFIG)
    with pytest.raises(ValueError, match="repeats 'wandb'"):
        log_writers(["wandb", "wandb"], tmp_path, CONFIG)


@pytest.mark.parametrize("name", loggers.WRITERS)
def test_a_package_that_is_not_there_is_named_before_any_writer_is_opened(
    packages, tmp_path, monkeypatch, name
):
    monkeypatch.setitem(sys.modules, name, None)  # import now fails as for a missing package
    found = f"log writer '{name}' needs the package {name}: pip install {name}"
    with pytest.raises(ModuleNotFoundError, match=found):
        log_writers(sorted(loggers.WRITERS), tmp_path, CONFIG)
    assert not packages.events and not packages.runs


def test_a_package_that_lacks_a_package_of_its_own_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'surely_not_installed'"):
        log_writers(["wandb"], tmp_path, CONFIG)


def test_importing_the_module_loads_neither_package_nor_torch():
    code = "import sys, turncredit.loggers; print(*sys.modules)"
    package = str(Path(loggers.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": package},
    )
    assert not {"tensorboard", "wandb", "torch"} & set(run.stdout.split())


# the real packages


@needs("tensorboard")
def test_real_tensorboard_reads_back_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first in (0, 2):  # steps 0 to 3, then a run resumed at step 2
        (writer,) = log_writers(["tensorboard"], tmp_path, CONFIG)
        for step in range(first, 4):
            writer.write(step, {"reward": step + 10.0 * (first > 0), "gate": math.nan})
        writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["reward"]
    read = [(event.step, event.value) for event in events.Scalars("reward")]
    assert read == [(0, 0.0), (1, 1.0), (2, 12.0), (3, 13.0)]


LOGGED = """
import pathlib, sys
from turncredit.loggers import log_writers
(writer,) = log_writers(["wandb"], pathlib.Path(sys.argv[1]), {"seed": 0, "method": "grpo"})
writer.write(0, {"reward": 0.5, "gate": None})
writer.write(1, {"reward": 0.75})
writer.close()
"""


@needs("wandb")
def test_real_wandb_keeps_the_numbers_on_this_machine_when_offline(tmp_path, monkeypatch):
    """In a process of its own: wandb writes the last of a run only while its process ends."""
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", str(tmp_path))):
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("PYTHONPATH", str(Path(loggers.__file__).parents[1]))
    run_dir = tmp_path / "task" / "arm" / "seed_0"
    subprocess.run([sys.executable, "-c", LOGGED, str(run_dir)], check=True, cwd=tmp_path)
    (record,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    written = record.read_bytes()  # values stand in it as JSON
    assert b"reward" in written and b"0.5" in written and b"0.75" in written
    assert b"task/arm/seed_0" in written and b"grpo" in written
    assert b"gate" not in written
