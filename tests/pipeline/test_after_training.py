"""Policies are played when training is over: alone, by their rollout, once, and never stale."""

from dataclasses import replace

import pytest
from pipeline.tiny_runs import PLAIN, parameters

from turncredit import after_training
from turncredit.after_training import AfterSettings, play_afterwards
from turncredit.experiment import experiment_from, run_experiment
from turncredit.rollout_measures import TABLE
from turncredit.tripwires import NON_FINITE

SETTINGS = AfterSettings(questions=3, ks=(1, 4), first_k=4, radius=0.2, neighbours=2)
ARPO = PLAIN | {"rollout": "arpo", "rollout_options": {"k": 1, "alpha": 0.55}}


@pytest.fixture
def played(monkeypatch, inline):
    """The labels of the runs that were played, in turn, in this process."""
    labels = []

    def in_turn(work, calls, workers, title):
        for call in calls:
            work(*call, lambda label, *shown: labels.append(label))

    monkeypatch.setattr(after_training, "in_parallel", in_turn)
    return labels


def test_policies_are_played_once_for_equal_settings(home, played):
    asked = experiment_from(parameters(arms={"grpo": PLAIN, "arpo": ARPO}))
    with pytest.raises(ValueError, match="tiny/grpo/seed_0 is not finished"):
        play_afterwards(asked, SETTINGS)
    run_experiment(asked)
    table = play_afterwards(asked, SETTINGS)
    assert played == ["tiny/grpo/seed_0", "tiny/arpo/seed_0"]
    assert list(zip(table["arm"], table["play"], strict=True)) == [
        ("arpo", "alone"), ("arpo", "own rollout"), ("grpo", "alone")
    ]  # fmt: skip
    assert set(table["trajectories"]) == {12}
    shares = table[["pass_1", "pass_4", "unlike"]]
    assert ((shares >= 0) & (shares <= 1)).all(axis=None)
    assert (table["pass_1"] <= table["pass_4"]).all()

    before = table.drop(columns=["task"]).to_csv()
    assert play_afterwards(asked, SETTINGS).drop(columns=["task"]).to_csv() == before
    assert len(played) == 2
    again = play_afterwards(asked, replace(SETTINGS, questions=2))
    assert len(played) == 4 and set(again["trajectories"]) == {8}

    run_experiment(
        experiment_from(parameters(arms={"grpo": PLAIN, "arpo": ARPO | {"base": "arpo"}}))
    )
    play_afterwards(
        experiment_from(parameters(arms={"grpo": PLAIN, "arpo": ARPO | {"base": "arpo"}})),
        replace(SETTINGS, questions=2),
    )
    assert played[4:] == ["tiny/arpo/seed_0"]


@pytest.mark.parametrize("damage", ["", "a,b\n1,2\n", "a\n1,2\n", "\x00", "first row alone"])
def test_a_damaged_table_is_played_again(home, played, damage):
    asked = experiment_from(parameters(arms={"arpo": ARPO}))
    run_experiment(asked)
    play_afterwards(asked, SETTINGS)
    (path,) = asked.folder.glob(f"tiny/arpo/seed_0/{TABLE}")
    whole = path.read_text()
    cut = "".join(whole.splitlines(keepends=True)[:2])
    path.write_text(cut if damage == "first row alone" else damage)
    play_afterwards(asked, SETTINGS)
    assert len(played) == 2 and path.read_text() == whole


def test_what_was_played_before_a_run_broke_down_is_not_its_own(home, played, monkeypatch):
    asked = experiment_from(parameters(arms={"grpo": PLAIN, "rloo": PLAIN | {"base": "rloo"}}))
    run_experiment(asked)
    assert set(play_afterwards(asked, SETTINGS)["arm"]) == {"grpo", "rloo"}
    reasons = {"grpo": NON_FINITE, "rloo": "finished"}
    monkeypatch.setattr(after_training, "_stop_reason", lambda job: reasons[job.arm])
    assert set(play_afterwards(asked, replace(SETTINGS, questions=2))["arm"]) == {"rloo"}


def test_more_tries_than_a_group_has_and_sizes_of_nothing_are_refused(home, played):
    asked = experiment_from(parameters())
    with pytest.raises(ValueError, match="9 tries, but a group of tiny has 4"):
        play_afterwards(asked, replace(SETTINGS, ks=(1, 9)))
    for change in ({"questions": 0}, {"ks": ()}, {"ks": (0,)}, {"radius": 0.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(SETTINGS, **change)
