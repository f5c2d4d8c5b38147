"""ALFWorld's engine in worker processes: what can be tested without it, by a stand-in worker.

The tests of the engine itself need the extra `alfworld` and say so where it is missing.
"""

import json
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from turncredit.environments import WORDINGS, Household, HouseholdSettings
from turncredit.environments.alfworld import EngineGames, official_games, require_packages
from turncredit.environments.alfworld.package import missing_packages, require_move
from turncredit.environments.alfworld.problem import entity, problem
from turncredit.environments.alfworld.workers import Lost, Pool
from turncredit.environments.household import Play
from turncredit.rollout import roll_out
from turncredit.tasks import open_task
from turncredit.warm_start import warm_start
from turncredit.worlds import Question
from turncredit.worlds.household import FAMILIES, game_of
from turncredit.worlds.household.games import SIZES, draw, plans
from turncredit.worlds.household.kinds import LAMP, kind_of

GAME = game_of("pick_and_place_simple/book/drawer/301/small/00000007")
STAND_IN = """
import os, sys, time
from multiprocessing.connection import Connection
connection, games = Connection(int(sys.argv[1])), {}
commands = ["wait", "hang", "die", "fail", "win"]
while True:
    try:
        ticket, name, arguments = connection.recv()
    except EOFError:
        break
    number = arguments[0]
    if name == "drop":
        games.pop(number, None)
        continue
    if name == "load":
        games[number] = 0
        connection.send((ticket, "ok", ("-= hi =-\\n\\nA room.\\n\\nYour task", commands, False)))
        continue
    command = arguments[1]
    if command == "hang":
        time.sleep(60)
    if command == "die":
        os._exit(3)
    if command == "fail":
        connection.send((ticket, "error", "ValueError: no"))
        continue
    games[number] += 1
    connection.send((ticket, "ok", (f"step {games[number]}", commands, command == "win")))
"""


class StandInGames(EngineGames):
    """Games of the stand-in worker, which need no file."""

    def text(self, game) -> str:
        return ""


@pytest.fixture
def open_games(tmp_path):
    """Opens `StandInGames`, whose workers end with the test."""
    script, opened = tmp_path / "stand_in.py", []
    script.write_text(STAND_IN, encoding="utf-8")

    def start(workers: int = 1, **options):
        opened.append(StandInGames(workers, script=script, **({"deadline": 30.0} | options)))
        return opened[-1]

    yield start
    for games in opened:
        games.close()


def test_a_game_is_played_in_a_worker_and_won(open_games):
    play = open_games()(GAME)
    assert play.first_look() == "A room."
    assert [play.do("wait"), play.do("dance"), play.do("win")] == [
        "step 1",
        "Nothing happens.",
        "step 2",
    ]
    assert play.won
    assert play.commands == ("wait", "win")


def test_a_killed_worker_is_replaced_and_its_games_replayed(open_games):
    games = open_games()
    first, second = games(GAME), games(GAME)
    assert [first.do("wait"), first.do("wait"), second.do("wait")] == ["step 1", "step 2", "step 1"]
    games.pool.workers[0].process.kill()
    games.pool.workers[0].process.wait()
    assert [first.do("wait"), second.do("wait")] == ["step 3", "step 2"]
    assert games.failures == {"died": 1} or games.failures == {"died": 2}
    assert games.pool.counts["started"] == 2
    assert not first.lost


@pytest.mark.parametrize(
    ("command", "cause"), [("hang", "timeout"), ("die", "died"), ("fail", "error")]
)
def test_a_game_that_no_worker_answers_is_lost_by_name(open_games, command, cause):
    games = open_games(deadline=1.0)
    play, beside = games(GAME), games(GAME)
    assert (play.do(command), play.lost) == ("", cause)
    assert set(games.failures) == {cause}
    assert beside.do("wait") == "step 1"
    assert not beside.lost
    episode = Household(HouseholdSettings(), play=games).reset(question(), random.Random(0))
    step = episode.step(f"<action> {command} </action>")
    assert (step.stop_reason, step.observation) == ("error", "")
    assert (episode.reward, episode.success) == (None, False)
    assert episode.environment.failures[cause] >= 2


def question() -> Question:
    return Question(GAME.id, GAME.task, (), (), GAME.family, "")


def test_an_answer_of_an_error_is_not_taken_for_another_s(open_games):
    games = open_games()
    plays = [games(GAME) for _ in range(3)]
    assert games.do_all(plays, ["fail", "wait", "wait"]) == ["", "step 1", "step 1"]
    assert [play.lost for play in plays] == ["error", "", ""]
    assert games.do_all(plays[1:], ["wait", "win"]) == ["step 2", "step 2"]


def test_a_copy_goes_on_by_itself_as_the_original_would(open_games):
    games = open_games(2)
    play = games(GAME)
    play.do("wait")
    twin = play.copy()
    assert [play.do("wait"), play.do("wait"), twin.do("wait")] == ["step 2", "step 3", "step 2"]
    assert (twin.first_look(), twin.commands) == ("A room.", ("wait", "wait"))
    play.leave()
    assert play.do("wait") == "step 4"


def test_what_is_announced_is_done_once_and_side_by_side(open_games):
    games = open_games(2)
    games.prepare([GAME] * 4)
    assert [len(worker.playing) for worker in games.pool.workers] == [2, 2]
    plays = [games(GAME) for _ in range(4)]
    assert games.pool.next_number() == 4  # none was loaded a second time
    assert [play.first_look() for play in plays] == ["A room."] * 4
    for play in plays:
        play.announce("wait")
    assert [play.do("wait") for play in plays] == ["step 1"] * 4
    assert [play.do("win") for play in plays] == ["step 2"] * 4
    assert games.failures == {}


def test_another_command_than_the_one_announced_is_done_instead(open_games):
    games = open_games()
    play = games(GAME)
    play.do("wait")
    for before, then in (("wait", "win"), ("win", "wait"), ("wait", "dance")):
        play.announce(before)
        twin = play.copy()
        assert twin.do(then) == play.do(then)
        assert play.won == twin.won == (then == "win")
    assert play.commands == ("wait", "win", "wait")
    play.announce("wait")
    assert games.do_all([play], ["win"]) == ["step 4"]
    play.announce("no such command")
    assert play.do("wait") == "step 5"
    assert games.failures == {}


def test_a_worker_that_dies_of_what_is_announced_is_replaced(open_games):
    games = open_games(deadline=1.0)
    games.prepare([GAME, GAME])
    games.pool.workers[0].process.kill()
    bad, good = games(GAME), games(GAME)
    bad.announce("die")
    good.announce("wait")
    assert (bad.do("die"), bad.lost) == ("", "died")
    assert (good.do("wait"), good.lost) == ("step 1", "")
    games.prepare([GAME])
    games.prepare([])  # the first is given up
    assert games(GAME).do("wait") == "step 1"


def test_long_answers_that_nobody_reads_stop_no_one(open_games):
    games = open_games()
    play = games(GAME)
    tickets = [play._worker.send("step", play._number, "wait" + " " * 4000) for _ in range(3000)]
    assert play._worker.fetch(tickets[-1], 30.0)[0] == "step 3000"


def test_workers_are_recycled_and_games_spread_over_them(open_games):
    games = open_games(2, recycle_after=3)
    plays = [games(GAME) for _ in range(4)]
    assert [len(worker.playing) for worker in games.pool.workers] == [2, 2]
    for play in plays:
        play.leave()
    for _ in range(6):
        play = games(GAME)
        assert play.do("wait") == "step 1"
        play.leave()
    assert games.pool.counts["started"] >= 3
    assert all(worker.loaded <= 3 for worker in games.pool.workers)
    retired = games(GAME)
    worker = retired._worker
    worker.loaded = 3
    games(GAME)
    retired.leave()
    assert not worker.alive


def test_wrong_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="size = 0"):
        Pool(0, recycle_after=1)
    with pytest.raises(ValueError, match="recycle_after = 0"):
        Pool(1, recycle_after=0)
    with pytest.raises(ValueError, match="deadline = 0"):
        EngineGames(1, deadline=0, script=tmp_path)
    assert Lost("died").cause == "died"


def test_a_missing_package_and_an_old_one_are_refused_with_the_remedy(monkeypatch):
    with pytest.raises(RuntimeError, match=r"install alfworld==0\.4\.2"):
        require_move('template :: "put {o} in/on {r}";')
    monkeypatch.setattr(
        "turncredit.environments.alfworld.package.missing_packages", lambda: ["textworld"]
    )
    with pytest.raises(RuntimeError, match=r"needs textworld: pip install"):
        require_packages()


# --- the problem


@pytest.mark.parametrize("family", FAMILIES)
def test_a_problem_declares_all_that_it_names(family):
    goal = "(:goal (exists (?o # object) (objectType ?o {obj}Type)) )\n    )\n"
    game = draw(family, plans(family, held_out=False)[0], "large", random.Random(0))
    text = problem(game, goal)
    assert text.count("(") == text.count(")")
    assert text.index("(:goal") < text.index("(:metric")
    assert "#" not in text
    declared = {line.split(" - ")[0].strip() for line in text.splitlines() if " - " in line}
    for name, receptacle in game.places:
        thing, place = entity(name), entity(receptacle)
        assert f"(inreceptacle {thing} {place})" in text
        assert {thing, place, f"{kind_of(name)}type"} <= declared
        assert (f"(pickupable {thing})" in text) == (kind_of(name) != LAMP)
    assert {
        "sinkbasintype",
        "microwavetype",
        "fridgetype",
        "knifetype",
        "butterknifetype",
    } <= declared


# --- official games, of which the ones below are imitations


def store(folder, name: str, game=GAME, task=None, stored=None) -> None:
    """Write a game as ALFWorld's data holds it."""
    place = folder / "json_2.1.1" / "valid_unseen" / name / "trial_1"
    place.mkdir(parents=True)
    named = {"object_target": game.target.title(), "parent_target": game.goal.title()}
    told = {"task_type": game.family, "pddl_params": named | {"toggle_target": ""}}
    (place / "traj_data.json").write_text(json.dumps(told if task is None else task))
    if stored != "none":
        goal = stored_goal() if not missing_packages() else "(:goal (and))\n)"
        parts = {"pddl_problem": problem(game, goal), "solvable": True, "walkthrough": None}
        text = stored if type(stored) is str else json.dumps(parts | (stored or {}))
        (place / "game.tw-pddl").write_text(text)


def stored_goal() -> str:
    return EngineGames(1)._library[2][GAME.family]["pddl"]


def test_official_games_are_found_and_what_cannot_be_played_is_counted(tmp_path, monkeypatch):
    store(tmp_path, "pick-Book-Drawer-301")
    store(tmp_path, "pick-BookSliced-Drawer-301")
    store(tmp_path, "movable_recep-301")
    store(tmp_path, "other", task={"task_type": "dance", "pddl_params": {}})
    store(tmp_path, "odd task", task=[])
    store(tmp_path, "no file", stored="none")
    store(tmp_path, "broken", stored="{")
    store(tmp_path, "unsolved", stored={"solvable": False})
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    found = official_games("valid_unseen")
    assert found.skipped == {
        "movable or sliced": 2,
        "of another family": 1,
        "unreadable": 2,
        "without game file": 1,
        "without solution": 1,
    }
    (question,) = found.questions
    assert (question.id, question.text) == (
        "pick-Book-Drawer-301/trial_1",
        "put some book on drawer",
    )
    assert found.game(question.id).read_problem().startswith("(define")
    assert found.label == "ALFWorld, valid_unseen"


def test_a_folder_without_games_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for folder in (None, tmp_path):
        with pytest.raises(ValueError, match=r"no folder or empty.*alfworld-download"):
            official_games("train", folder)
    store(tmp_path, "no file", stored="none")
    with pytest.raises(ValueError, match="1 without game file"):
        official_games("valid_unseen", tmp_path)
    with pytest.raises(ValueError, match="split = 'test'"):
        official_games("test", tmp_path)


# --- the engine itself

ENGINE = pytest.mark.skipif(
    bool(missing_packages()),
    reason=f"needs {', '.join(missing_packages())}: the extra `alfworld` of pyproject.toml",
)


@pytest.fixture(scope="module")
def engine():
    games = EngineGames(1, deadline=300.0)
    yield games
    games.close()


def same(engine_play, own: Play) -> None:
    assert sorted(engine_play.admissible()) == own.admissible()
    assert engine_play.won == own.won
    assert not engine_play.lost


def any_command(own: Play, stream: random.Random) -> str:
    """One that is admissible, of all kinds alike, or now and then one that is not."""
    verbs = {command.partition(" ")[0] for command in own.admissible()}
    verb = stream.choice([*sorted(verbs), "dance"])
    fitting = [c for c in own.admissible() if c.partition(" ")[0] == verb]
    return stream.choice(fitting) if fitting else verb


@ENGINE
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_rules_in_python_answer_as_the_engine_does(engine, family, size):
    stream = random.Random(f"{family} {size}")
    for held_out in (False, True):
        plan = stream.choice(plans(family, held_out=held_out, size=size))
        game = draw(family, plan, size, stream)
        play, own = engine(game), Play(game)
        assert play.first_look() == own.first_look()
        same(play, own)
        for command in ["look", "help", "inventory"] + [None] * 25 + list(game.walkthrough):
            command = command or any_command(own, stream)
            assert play.do(command) == own.do(command), command
            same(play, own)
            if own.won:
                break
        play.leave()


@ENGINE
def test_an_engine_process_that_is_killed_is_replaced_and_the_game_goes_on():
    games, own = EngineGames(1, deadline=300.0), Play(GAME)
    play, first = games(GAME), GAME.walkthrough[0]
    assert play.do(first) == own.do(first)
    games.pool.workers[0].process.kill()
    for command in GAME.walkthrough[1:]:
        assert play.do(command) == own.do(command)
        same(play, own)
    assert (games.failures, games.pool.counts["started"], play.won) == ({"died": 1}, 2, True)
    games.close()


@ENGINE
def test_an_engine_that_hangs_is_killed_and_the_game_is_lost_by_name():
    games = EngineGames(1, deadline=300.0)
    play = games(GAME)
    games.pool.workers[0].process.send_signal(signal.SIGSTOP)
    games.deadline = 0.5  # too short for a new process too, which first has to import the engine
    assert (play.do(GAME.walkthrough[0]), play.lost) == ("", "timeout")
    assert set(games.failures) == {"timeout"}
    games.close()


class Garbled(EngineGames):
    """Games whose file the engine cannot read, or whose problem makes no sense."""

    wrong = ""

    def text(self, game) -> str:
        return self.wrong


@ENGINE
@pytest.mark.parametrize("wrong", ["{", "{}", None])
def test_a_game_that_the_engine_cannot_read_is_lost_by_name(wrong):
    games = Garbled(1, deadline=300.0)
    cut = EngineGames.text(games, GAME).replace("(:goal", "(:gaol", 1)
    games.wrong = cut if wrong is None else wrong
    play = games(GAME)
    assert (play.lost, play.first_look(), play.admissible()) == ("error", "", [])
    assert games.failures == {"error": 2}
    episode = Household(HouseholdSettings(), play=games).reset(question(), random.Random(0))
    assert episode.step("<action> look </action>").stop_reason == "error"
    assert (episode.reward, episode.success) == (None, False)
    games.close()


@ENGINE
def test_a_worker_that_has_played_many_games_holds_no_more_libraries_than_at_once():
    games = EngineGames(1, deadline=300.0)
    for _ in range(6):
        both = [games(GAME), games(GAME)]
        for play in both:
            play.do(GAME.walkthrough[0])
            play.leave()
    mapped = Path(f"/proc/{games.pool.workers[0].process.pid}/maps").read_text()
    libraries = {line.split()[4:6][0] for line in mapped.splitlines() if "libdownward" in line}
    assert len(libraries) <= 2
    games.close()


@ENGINE
def test_an_official_game_is_played_like_a_generated_one(engine, tmp_path):
    store(tmp_path, "pick-Book-Drawer-301")
    found = official_games("valid_unseen", tmp_path)
    environment = Household(HouseholdSettings(), play=engine, game=found.game)
    episode = environment.reset(found.questions[0], random.Random(0))
    assert "Your task: put some book on drawer." in episode.prompt
    for command in GAME.walkthrough:
        step = episode.step(f"<action> {command} </action>")
    assert (step.stop_reason, episode.reward) == ("goal", 10.0)


@ENGINE
def test_a_task_file_may_name_the_engine():
    task = open_task("smoke", "household", {"environment": {"engine": "alfworld"}})
    (question,) = task.world.evaluation_questions(1)
    episode = task.environment.reset(question, random.Random(0))
    for command in game_of(question.id).walkthrough:
        step = episode.step(f"<action> {command} </action>")
        task.vocabulary.encode(step.observation)
    assert (step.stop_reason, episode.reward) == ("goal", 10.0)
    task.environment.play.close()


@ENGINE
def test_an_episode_by_the_engine_is_won_and_can_be_taken_up_again(engine):
    rules = Household(HouseholdSettings(terse=True), WORDINGS["tiny"])
    by_engine = replace(rules, play=engine)
    episodes = [e.reset(question(), random.Random(0)) for e in (rules, by_engine)]
    assert episodes[0].prompt == episodes[1].prompt
    snapshot, heard = None, []
    for command in GAME.walkthrough:
        snapshot = snapshot or episodes[1].snapshot()
        steps = [episode.step(f"<action> {command} </action>") for episode in episodes]
        assert steps[0] == steps[1]
        heard.append(steps[0])
    assert episodes[1].reward == 10.0
    again = by_engine.reset(question(), random.Random(0))
    again.restore(snapshot)
    assert [again.step(f"<action> {command} </action>") for command in GAME.walkthrough] == heard


@ENGINE
def test_a_policy_plays_with_the_engine_as_by_the_rules():
    by_rules = open_task("smoke", "household")
    by_engine = open_task("smoke", "household", {"environment": {"engine": "alfworld"}})
    policy = by_rules.new_policy(0)
    imitate(policy, by_rules)
    questions = by_rules.world.evaluation_questions(8)
    played = [
        roll_out(policy, task.vocabulary, task.environment, questions, seed=0, step=0,
                 max_turn_tokens=10)
        for task in (by_rules, by_engine)
    ]  # fmt: skip
    assert played[0] == played[1]
    assert any(turn.action == "action" for t in played[0] for turn in t.turns)
    assert len(by_engine.environment.play.pool.workers) == 2
    by_engine.environment.play.close()


def imitate(policy, task) -> None:
    """A warm start just long enough that commands are written."""
    settings = replace(task.settings.warm_start, steps=60)
    parts = (policy, task.vocabulary, task.world.names, task.demonstrations(0), settings)
    warm_start(*parts, seed=0, report=lambda step, loss: None)
