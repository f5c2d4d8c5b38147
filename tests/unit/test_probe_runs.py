"""A probe on disk: killed anywhere it ends in the same bytes; nothing of another is mixed in."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from turncredit.policies.tiny import TinyPolicy, TinySettings
from turncredit.probe import draw_responses, measure, sample_states
from turncredit.probe.runs import FILES, Probe, ProbeSettings, weights_hash
from turncredit.records import Trajectory, Turn

SETTINGS = ProbeSettings(questions=2, group_size=2, states=3, responses=4, rule="turns", seed=1)


def said(*ids: int, observed: tuple[int, ...] = ()) -> Turn:
    return Turn(ids, (-0.5,) * len(ids), (0.25,) * len(ids), observed, "search")


PLAYED = [
    Trajectory(name, (1, number), (said(3, 4, observed=(5,)), said(6 + row)), 0.0, False, "answer")
    for number, name in enumerate("ab")
    for row in range(2)
]


@dataclass
class Speaker:
    """Turns that depend on prefix and seed; counts the states it was asked about."""

    asked: list[tuple[int, ...]] = field(default_factory=list)
    before: Callable[[int], None] = lambda number: None
    """Called with the number of states asked about before."""

    def respond(self, prefix_ids, count: int, *, seed: int) -> list[Turn]:
        self.before(len(self.asked))
        self.asked.append(tuple(prefix_ids))
        stream = torch.Generator().manual_seed(seed)
        drawn = -3 * torch.rand(count, 2, generator=stream, dtype=torch.float64)
        return [Turn((7, 8), tuple(row), (1 / 3, 0.1), (), "unfinished") for row in drawn.tolist()]


def probe(folder: Path, **changes) -> Probe:
    return replace(Probe(folder, SETTINGS, 5, {"task": "coin", "code": "c"}), **changes)


def finish(one: Probe, speaker: Speaker | None = None, policy_hash: str = "p") -> list[int]:
    return list(one.draw(speaker or Speaker(), PLAYED, policy_hash=policy_hash))


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def killed(work: Callable[[], object]) -> bool:
    """Run `work` in a process of its own; whether it died by SIGKILL."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_probe_reads_back_what_was_drawn(tmp_path):
    one = probe(tmp_path)
    assert finish(one) == [1, 2, 3]
    states = sample_states(PLAYED, 3, seed=1, step=5)
    expected = measure(draw_responses(Speaker(), states, 4, seed=1))
    found = one.read()
    assert (found.states, found.trajectories, found.step) == (states, PLAYED, 5)
    for name in ("surprisals", "predictable", "lengths"):
        torch.testing.assert_close(
            getattr(found.measures, name), getattr(expected, name), rtol=1e-8, atol=0
        )
    assert found.batch.group_ids.tolist() == [0, 0, 1, 1]
    assert set(contents(tmp_path)) == {*FILES, "begun.json", "manifest.json", ".lock"}


@pytest.mark.parametrize("state", range(3))
def test_killed_in_a_state_it_goes_on_there_to_the_same_bytes(tmp_path, state):
    finish(probe(tmp_path / "whole"))
    one = probe(tmp_path / "killed")
    last = Speaker(before=lambda number: die() if number == state else None)
    assert killed(lambda: finish(one, last))
    assert not one.is_finished()
    speaker = Speaker()
    finish(one, speaker)
    assert len(speaker.asked) == 3 - state
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_killed_before_any_renaming_or_removal_it_ends_in_the_same_bytes(tmp_path, monkeypatch):
    finish(probe(tmp_path / "whole"))
    whole = contents(tmp_path / "whole")
    for name in ("replace", "unlink"):
        plain, deaths = getattr(Path, name), 0
        for place in range(40):
            one, calls = probe(tmp_path / f"{name}{place}"), []

            def deadly(self, *given, plain=plain, calls=calls, place=place, **options):
                calls.append(self)
                return die() if len(calls) > place else plain(self, *given, **options)

            with monkeypatch.context() as patch:
                patch.setattr(Path, name, deadly)
                if not killed(lambda one=one: finish(one)):
                    break
            deaths += 1
            finish(one)
            assert contents(one.folder) == whole, (name, place)
        assert deaths >= 8, name


def test_a_finished_probe_is_not_drawn_again(tmp_path):
    finish(probe(tmp_path))
    before, speaker = contents(tmp_path), Speaker()
    assert finish(probe(tmp_path), speaker, policy_hash="another") == []
    assert (contents(tmp_path), speaker.asked) == (before, [])


@pytest.mark.parametrize(
    "change",
    [
        {"settings": replace(SETTINGS, responses=5)},
        {"settings": replace(SETTINGS, seed=2)},
        {"settings": replace(SETTINGS, rule="contexts")},
        {"step": 6},
        {"identity": {"task": "coin", "code": "d"}},
    ],
)
@pytest.mark.parametrize("over", [True, False])
def test_other_settings_start_anew(tmp_path, change, over):
    old = probe(tmp_path / "mixed")
    if over:
        finish(old)
    else:
        assert killed(lambda: finish(old, Speaker(before=lambda n: die() if n == 2 else None)))
    new, speaker = probe(tmp_path / "mixed", **change), Speaker()
    assert not new.is_finished()
    finish(new, speaker)
    assert len(speaker.asked) == new.settings.states
    finish(probe(tmp_path / "alone", **change))
    assert contents(tmp_path / "mixed") == contents(tmp_path / "alone")


def test_an_interrupted_probe_of_another_policy_or_of_other_states_starts_anew(tmp_path):
    def interrupt():
        finish(probe(tmp_path), Speaker(before=lambda n: die() if n == 2 else None))

    for policy_hash, played in (("q", PLAYED), ("p", PLAYED[::-1])):
        assert killed(interrupt)
        speaker = Speaker()
        list(probe(tmp_path).draw(speaker, played, policy_hash=policy_hash))
        assert len(speaker.asked) == 3
        (tmp_path / "manifest.json").unlink()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["", None])
def test_a_damaged_or_missing_file_is_no_finished_probe(tmp_path, name, damage):
    finish(probe(tmp_path))
    before = contents(tmp_path)
    (tmp_path / name).unlink() if damage is None else (tmp_path / name).write_text(damage)
    with pytest.raises(ValueError, match="no finished probe"):
        probe(tmp_path).read()
    finish(probe(tmp_path))
    assert contents(tmp_path) == before


def test_two_processes_do_not_probe_into_one_folder(tmp_path):
    first = probe(tmp_path).draw(Speaker(), PLAYED, policy_hash="p")
    assert next(first) == 1
    with pytest.raises(RuntimeError, match=f"in use by process {os.getpid()}"):
        finish(probe(tmp_path))
    assert list(first) == [2, 3]


def test_what_cannot_be_probed_is_named(tmp_path):
    with pytest.raises(ValueError, match="3 trajectories, not 4"):
        list(probe(tmp_path).draw(Speaker(), PLAYED[:3], policy_hash="p"))
    for changes in ({"responses": 0}, {"responses": 1}, {"rule": "turn"}, {"states": -3}):
        ((name, value),) = changes.items()
        with pytest.raises(ValueError, match=f"{name} = {value!r}"):
            replace(SETTINGS, **changes)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json: no JSON mapping"):
        probe(tmp_path).is_finished()


def test_the_hash_of_a_policy_is_that_of_its_weights():
    model, same = (TinyPolicy(TinySettings(8, 1, 2, 16), 5, seed=0) for _ in range(2))
    assert weights_hash(model) == weights_hash(same)
    with torch.no_grad():
        same.embedding.weight[0, 0] += 1e-6
    assert weights_hash(model) != weights_hash(same)
