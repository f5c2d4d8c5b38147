"""Runs probed while they train: stopped and resumed to the same bytes, warm starts in turn."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from turncredit import probed_runs, training
from turncredit.probe import ProbeSettings, weights_hash
from turncredit.probe.runs import FILES
from turncredit.tasks import open_task

PLAIN = training.Method("grpo", {}, "none", {}, "ppo_clip", {})
SETTINGS = ProbeSettings(questions=2, group_size=2, states=3, responses=3, rule="turns", seed=0)


@pytest.fixture(scope="module")
def task():
    return open_task("smoke", "informative_guess")


@pytest.fixture(autouse=True)
def untrained(monkeypatch):
    """New policies stand for warm starts, and say whose they are."""
    asked: list[int] = []

    def start(task, seed, code, report):
        asked.append(seed)
        return task.new_policy(seed)

    monkeypatch.setattr(probed_runs, "warm_started_policy", start)
    return asked


def runs(task, folder, **options):
    options = {"seeds": [3], "steps": [0, 1], "warm_start_seeds": [0], "code": "c"} | options
    return probed_runs.probed_runs(task, PLAIN, SETTINGS, folder=folder, **options)


def contents(run) -> dict:
    return {
        (step, name): (probe.folder / name).read_bytes()
        for step, probe in run.probes().items()
        for name in FILES
    }


def test_a_run_is_probed_before_and_after_training_and_not_twice(
    task, tmp_path, untrained, monkeypatch
):
    def train(policy, *given, _train=training.train, **options):
        """Policies that never win learn nothing: a push stands for what they would learn."""
        for row in _train(policy, *given, **options):
            with torch.no_grad():
                next(policy.parameters()).add_(1.0)
            yield row

    monkeypatch.setattr(training, "train", train)
    (run,) = runs(task, tmp_path)
    assert list(run.draw()) == [0, 0, 0, 1, 1, 1]
    assert all(probe.is_finished() for probe in run.probes().values())
    assert list(run.draw()) == []
    assert untrained == [0]
    before, after = (probe._mapping("manifest.json")["policy"] for probe in run.probes().values())
    assert before == weights_hash(task.new_policy(0)) != after
    found = [probe.read() for probe in run.probes().values()]
    asked = [question.id for question in run.questions]
    assert [[t.question_id for t in one.trajectories] for one in found] == [asked, asked]


@pytest.mark.parametrize("states", [1, 4])
def test_stopped_it_goes_on_to_the_same_bytes(task, tmp_path, states):
    (whole,), (stopped,) = runs(task, tmp_path / "whole"), runs(task, tmp_path / "stopped")
    list(whole.draw())
    drawing = stopped.draw()
    list(islice(drawing, states))
    drawing.close()
    again = list(stopped.draw())
    assert len(again) == 6 if states == 1 else again == [1, 1, 1]
    assert contents(stopped) == contents(whole)


def test_seeds_have_folders_and_draws_of_their_own_and_take_warm_starts_in_turn(task, tmp_path):
    members = runs(task, tmp_path, seeds=[5, 6, 7], warm_start_seeds=[0, 1])
    assert [run.warm_start_seed for run in members] == [0, 1, 0]
    assert [run.settings.seed for run in members] == [5, 6, 7]
    assert len({run.folder for run in members}) == 3
    assert len({probe.hash for run in members for probe in run.probes().values()}) == 6


def test_a_probe_of_other_contents_is_another_one(task, tmp_path):
    (known,) = runs(task, tmp_path)
    (other,) = runs(replace(task, contents={"corpus": "changed"}), tmp_path)
    pairs = zip(known.probes().values(), other.probes().values(), strict=True)
    assert all(one.hash != two.hash for one, two in pairs)


@pytest.mark.parametrize("steps", [[], [-1], [0, 1_000_000]])
def test_steps_that_no_run_takes_are_refused(task, tmp_path, steps):
    with pytest.raises(ValueError, match=r"steps = .* of informative_guess"):
        runs(task, tmp_path, steps=steps)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 2, 1]}, r"seeds = \[1, 2, 1\] repeats one"),
        ({"warm_start_seeds": []}, "warm_start_seeds is empty"),
    ],
)
def test_seeds_that_give_no_runs_or_one_of_them_twice_are_refused(
    task, tmp_path, options, complaint
):
    with pytest.raises(ValueError, match=complaint):
        runs(task, tmp_path, **options)
