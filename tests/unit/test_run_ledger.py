"""The ledger of a run: interrupted or not, failures agree and seconds add up."""

import json

import pytest

from turncredit.run_ledger import Ledger

HASHES = {"params_hash": "p", "code_hash": "c"}


class World:
    """What a run is counted by: a clock, and an environment's failures so far."""

    def __init__(self) -> None:
        self.now, self.failures = 1000.0, {"search": 5}  # of an earlier run in this process

    def work(self, seconds: float, **failed: int) -> None:
        self.now += seconds
        for kind, count in failed.items():
            self.failures[kind] = self.failures.get(kind, 0) + count


@pytest.fixture
def world(monkeypatch) -> World:
    made = World()
    monkeypatch.setattr(Ledger, "clock", staticmethod(lambda: made.now))
    return made


@pytest.fixture
def opened(tmp_path, world):
    """The ledger as a process that starts now finds it."""
    return lambda hashes=HASHES: Ledger(tmp_path / "begun.json", hashes, lambda: world.failures)


def steps(ledger: Ledger, world: World, first: int, last: int, every: int = 2) -> None:
    """Steps of 10 seconds, and a failed search in each even one, with checkpoints between."""
    for step in range(first, last):
        world.work(10.0, **({"search": 1} if step % 2 == 0 else {"verify": 2}))
        if (step + 1) % every == 0:
            ledger.note(step + 1)


def test_an_unbroken_run_counts_itself_alone(opened, world):
    ledger = opened()
    ledger.begin()
    steps(ledger, world, 0, 6)
    assert (ledger.seconds, ledger.failures) == (60.0, {"search": 3, "verify": 6})


@pytest.mark.parametrize("broken", [2, 3, 4, 5])
@pytest.mark.parametrize("again", [4, 5])
def test_a_run_interrupted_twice_agrees_in_failures_and_adds_up_in_seconds(
    opened, world, broken, again
):
    """What came after a checkpoint is done again and counts once."""
    ledger = opened()
    ledger.begin()
    steps(ledger, world, 0, broken)
    for stop in (again, 6):
        world.work(500.0, judge=9)  # the run is down; the process did other things
        ledger = opened()
        assert ledger.continues()
        start = max(int(step) for step in json.loads(ledger.path.read_text())["spent"])
        ledger.go_on(start)
        steps(ledger, world, start, max(start, stop))
    assert (ledger.seconds, ledger.failures) == (60.0, {"search": 3, "verify": 6})


def test_going_on_from_the_previous_checkpoint_counts_from_there(opened, world):
    ledger = opened()
    ledger.begin()
    steps(ledger, world, 0, 6)
    ledger = opened()
    ledger.damaged(4)
    ledger.go_on(4)
    assert (ledger.seconds, ledger.failures) == (40.0, {"search": 2, "verify": 4})
    steps(ledger, world, 4, 6)
    again = opened()
    again.go_on(6)
    assert (again.seconds, again.failures) == (60.0, {"search": 3, "verify": 6})
    assert again.damages == [4], "still known after another interruption"


def test_a_checkpoint_that_was_noted_and_never_written_does_not_count(opened, world):
    """Killed between the note and the checkpoint: three notes are kept, two checkpoints can lie."""
    ledger = opened()
    ledger.begin()
    steps(ledger, world, 0, 9, every=1)
    assert [*json.loads(ledger.path.read_text())["spent"]] == ["7", "8", "9"]
    ledger = opened()
    ledger.go_on(7)
    assert ledger.seconds == 70.0


def test_only_the_same_run_continues(opened):
    assert not opened().continues()
    opened().begin()
    assert opened().continues()
    assert not opened(HASHES | {"params_hash": "q"}).continues()
    again = opened(HASHES | {"params_hash": "q"})
    again.begin()
    assert (again.damages, again.failures) == ([], {})
    assert not opened().continues()


def test_a_broken_ledger_is_named(opened, tmp_path):
    (tmp_path / "begun.json").write_text("{")
    with pytest.raises(ValueError, match=r"begun\.json: .*delete it to start this run anew"):
        opened()
