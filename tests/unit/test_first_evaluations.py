"""The evaluation before training is played once for equal weights on one task, never for others."""

from types import SimpleNamespace

import pytest
import torch

from turncredit import first_evaluations
from turncredit.first_evaluations import played_once
from turncredit.records import Trajectory


class Weights:
    def __init__(self, *values):
        self.values = values

    def state_dict(self):
        return {"w": torch.tensor(self.values)}


class Player:
    """Gives another list at every call."""

    def __init__(self, **fields):
        self.times, self.fields = 0, {"stop_reason": "answer", "reward": 1.0} | fields

    def __call__(self):
        self.times += 1
        fields = {"question_id": str(self.times), "prompt_ids": (), "turns": (), "success": True}
        return [Trajectory(**fields, **self.fields)]


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(first_evaluations, "_kept", {})


def task():
    return SimpleNamespace(environment=SimpleNamespace(failures={"search": 0}))


def test_equal_weights_on_one_task_share_it():
    play, one = Player(), task()
    first = played_once(one, Weights(1.0, 2.0), play)
    assert played_once(one, Weights(1.0, 2.0), play) == first
    assert play.times == 1


def test_other_weights_and_other_tasks_do_not():
    play, one = Player(), task()
    results = [
        played_once(one, Weights(1.0), play),
        played_once(one, Weights(2.0), play),
        played_once(task(), Weights(1.0), play),
    ]
    assert play.times == 3
    assert len({trajectories[0].question_id for trajectories in results}) == 3


def test_a_task_that_is_gone_leaves_its_place_to_nobody():
    """An id may be given again once its object is gone: the task is held, so it is not."""
    play = Player()
    for _ in range(50):
        played_once(task(), Weights(1.0), play)
    assert play.times == 50


@pytest.mark.parametrize("stop_reason", ["error"])
def test_one_with_a_lost_trajectory_is_played_again(stop_reason):
    play, one = Player(stop_reason=stop_reason, reward=None), task()
    played_once(one, Weights(1.0), play)
    played_once(one, Weights(1.0), play)
    assert play.times == 2


def test_one_in_which_a_tool_failed_is_played_again():
    play, one = Player(), task()

    def failing():
        one.environment.failures["search"] += 1
        return play()

    played_once(one, Weights(1.0), failing)
    played_once(one, Weights(1.0), failing)
    assert one.environment.failures["search"] == 2


def test_large_policies_are_not_hashed(monkeypatch):
    monkeypatch.setattr(first_evaluations, "_LARGEST", 1)
    monkeypatch.setattr(first_evaluations, "digest", lambda weights: pytest.fail("hashed"))
    play, one = Player(), task()
    played_once(one, Weights(1.0, 2.0), play)
    assert play.times == 1


def test_no_more_than_the_last_sixteen_are_kept():
    play, one = Player(), task()
    for value in range(40):
        played_once(one, Weights(float(value)), play)
    assert len(first_evaluations._kept) == 16
    played_once(one, Weights(39.0), play)
    assert play.times == 40
