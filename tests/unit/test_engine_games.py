"""Trained policies played once more, by a stand-in for the engine: the rules themselves."""

from types import SimpleNamespace

import pandas as pd
import pytest

from turncredit import engine_games
from turncredit.engine_games import EngineSettings, engine_rows, play_with_engine
from turncredit.environments.household import Play
from turncredit.tasks import open_task
from turncredit.worlds.household import FAMILIES

SETTINGS = EngineSettings(games=6, at_once=4, workers=1)


@pytest.fixture(scope="module")
def task():
    changes = {"environment": {"max_turns": 2}, "training": {"max_turn_tokens": 6}}
    return open_task("smoke", "household", changes)


class Fails(Play):
    """An engine that loses the games of one family."""

    @property
    def lost(self):
        return "died" if self.game.family == "look_at_obj_in_light" else ""


class Lies(Play):
    """An engine that says something else in the middle of every room."""

    def first_look(self):
        return "sofa"


def rows_of(task, engine) -> dict[str, dict]:
    rows = engine_rows(task, task.new_policy(0), SETTINGS, engine)
    return {row["family"]: row for row in rows}


def test_what_plays_by_the_same_rules_plays_the_same(task):
    rows = rows_of(task, Play)
    assert list(rows) == list(FAMILIES)
    for row in rows.values():
        assert (row["games"], row["equal"], row["lost"]) == (1, 1.0, 0)
        assert row["success"] == row["success_by_rules"]


def test_games_that_the_engine_loses_are_counted_and_in_no_share(task):
    rows = rows_of(task, Fails)
    lost = rows.pop("look_at_obj_in_light")
    assert (lost["games"], lost["lost"]) == (0, 1)
    assert pd.isna([lost["success"], lost["success_by_rules"], lost["equal"]]).all()
    assert all((row["games"], row["lost"]) == (1, 0) for row in rows.values())


def test_an_engine_that_shows_something_else_is_found_out(task):
    assert all(row["equal"] == 0.0 for row in rows_of(task, Lies).values())


@pytest.mark.parametrize("name", ["games", "at_once", "workers"])
def test_wrong_sizes_are_refused(name):
    with pytest.raises(ValueError, match=name):
        EngineSettings(**({"games": 1, "at_once": 1, "workers": 1} | {name: 0}))


def test_without_the_engine_nothing_is_played_and_no_row_is_made_up(monkeypatch, tmp_path):
    monkeypatch.setattr(engine_games, "missing_packages", lambda: ["textworld"])
    monkeypatch.setattr(engine_games, "jobs_of", lambda experiment: [])
    monkeypatch.setattr(engine_games, "in_parallel", lambda *given: pytest.fail("played"))
    found = play_with_engine(SimpleNamespace(folder=tmp_path), SETTINGS)
    assert (list(found.columns), len(found)) == (list(engine_games.COLUMNS), 0)
