"""Plans told to policies before training: what is counted, by policies whose habits are known."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pandas as pd
import pytest
from play import ACTIONS, SMALL, TRAINING, CoinEpisode, policy, vocabulary

from turncredit import plots
from turncredit.environments import Step
from turncredit.plan_following import FollowingSettings, _done, follow
from turncredit.plots.plan_figures import COLUMNS, following_curves
from turncredit.records import Trajectory, Turn

WORDS = vocabulary()
PLAN = ("<search> western </search>", "<search> drama </search>")


@dataclass(frozen=True)
class Payer:
    """Pays where the prompt holds as many actions as are `needed`."""

    needed: int
    actions: tuple[str, ...] = ACTIONS

    def reset(self, question, stream):
        return PayerEpisode(self, question)


class PayerEpisode(CoinEpisode):
    """One turn."""

    def __init__(self, environment, question):
        self.environment, self.question = environment, question
        self.prompt = f"<question> {question.text} </question>"

    @property
    def success(self):
        return self.prompt.count("<search>") >= self.environment.needed

    @property
    def reward(self):
        return float(self.success)

    def step(self, message):
        return Step("answer", "", stop_reason="answer", correct=self.success)


def task(environment):
    """As much of a task as is played here."""
    settings = SimpleNamespace(
        training=replace(TRAINING, group_size=3), evaluation=SimpleNamespace(temperature=1.0)
    )
    return SimpleNamespace(
        world=SMALL, environment=environment, vocabulary=WORDS, settings=settings
    )


@pytest.fixture
def planned(monkeypatch):
    """An expert with one plan for every question but the first held-out one."""
    first = SMALL.evaluation_questions(4)[0].id

    def log(environment, question, seed):
        return SimpleNamespace(actions=() if question.id == first else PLAN)

    monkeypatch.setattr("turncredit.plan_following.expert_log", log)


@pytest.mark.parametrize("needed", [0, 1, 2, 3])
def test_success_and_failed_groups_follow_the_actions_told(planned, needed):
    model = policy()
    rows = follow(task(Payer(needed)), model, questions=4)
    assert [row["actions"] for row in rows] == [0, 1, 2]
    assert {row["trajectories"] for row in rows} == {9}, "no plan, not played"
    assert [row["success"] for row in rows] == [float(k >= needed) for k in range(3)]
    assert [row["failed_groups"] for row in rows] == [float(k < needed) for k in range(3)]


def test_without_any_plan_there_are_no_rows(monkeypatch):
    nothing = SimpleNamespace(actions=())
    monkeypatch.setattr("turncredit.plan_following.expert_log", lambda *given, **named: nothing)
    assert follow(task(Payer(0)), policy(), questions=3) == []


def test_planned_calls_are_those_among_the_messages():
    def said(*messages):
        turns = [
            Turn(ids, (-1.0,) * len(ids), (0.5,) * len(ids), (), "search", None)
            for ids in map(WORDS.encode, messages)
        ]
        return Trajectory("q", (1,), tuple(turns), 0.0, False, "answer", None, None)

    assert _done(said(PLAN[1], "<answer> western </answer>"), PLAN, WORDS) == 0.5
    assert _done(said(*PLAN), PLAN, WORDS) == 1.0
    assert _done(said(), PLAN, WORDS) == 0.0


def test_no_questions_are_refused():
    with pytest.raises(ValueError, match="questions = 0"):
        FollowingSettings(0, ())


def rows(task, shown, starts=2):
    return [
        dict(zip(COLUMNS, (task, shown, seed, k, 0.2 * k, 1 - 0.2 * k, 0.5), strict=True))
        for seed in range(starts)
        for k in range(4)
    ]


def test_the_figure_says_who_never_saw_a_plan_and_where_nothing_was_played():
    table = pd.DataFrame(rows("far", 1) + rows("guess", 0))
    figure = following_curves(table, ["far", "guess", "other"])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["far", "guess\n(plans never seen)", "other"]
    lines = [len(axis.lines) for axis in figure.axes]
    assert lines == [9, 9, 0], "two warm starts and their mean, of three columns"
    assert figure.axes[2].texts[0].get_text() == "no runs"
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines[:3]]
    assert ends == pytest.approx([0.6] * 3) and not any(map(math.isnan, ends))


def test_the_gallery_draws_it_without_any_table(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNCREDIT_RESULTS", str(tmp_path))
    settings = SimpleNamespace(tier="smoke", experiments=("18_own",), tasks=("far",))
    figure = plots.plan_figures.plan_following(SimpleNamespace(settings=settings))
    assert figure.axes[0].texts[0].get_text() == "no runs"
