"""Chores: every game can be won by its walkthrough, and commands do what ALFWorld's do."""

import importlib.util
import random
from collections import Counter
from pathlib import Path

import pytest

from turncredit.answers import words
from turncredit.demonstrations import DemonstrationSettings
from turncredit.environments import WORDINGS, Household, HouseholdSettings
from turncredit.environments.household import Play
from turncredit.environments.household.rules import NOTHING
from turncredit.environments.household.wording import full, terse
from turncredit.household_demonstrations import tidy
from turncredit.worlds import Question
from turncredit.worlds.household import FAMILIES, HouseholdWorld, game_of
from turncredit.worlds.household.floor_plans import floor_plan
from turncredit.worlds.household.games import HELD_OUT, SIZES, draw, pairs, plans, room_of
from turncredit.worlds.household.kinds import (
    CHANGEABLE,
    FOUND_IN,
    HOLDS,
    ODD,
    OPENABLE,
    ROOMS,
    SLICEABLE,
    TOOLS,
    holds,
    kind_of,
)  # fmt: skip

IMPOSSIBLE = (
    "",
    "go to",
    "go to moon 1",
    "take x from y",
    "open bed 1",
    "use desklamp 9",
    "move book 1 to bed 1",
    "heat book 1 with microwave 1",
    "\ud800",
)
MADE_UP = tuple(size for size in SIZES if size != "real")
BOOK = "pick_and_place_simple/book/drawer/301/medium/00000007"


def games(count: int = 10) -> list:
    """`count` games of each family and size, on plans of training and held out."""
    stream = random.Random(0)
    return [
        draw(family, stream.choice(plans(family, held_out=held_out)), size, stream)
        for family in FAMILIES
        for size in MADE_UP
        for held_out in (True, False)
        for _ in range(count // 2)
    ]


@pytest.fixture
def play() -> Play:
    return Play(game_of(BOOK))


# --- the games


@pytest.mark.parametrize("game", games(), ids=lambda game: game.id)
def test_a_walkthrough_is_admissible_and_wins_with_its_last_command(game):
    play = Play(game)
    for command in game.walkthrough:
        assert not play.won
        assert command in play.admissible()
        assert play.do(command) != NOTHING
    assert play.won


def test_a_game_follows_from_its_id_and_families_differ_in_length():
    found = games()
    for game in found:
        assert game_of(game.id) == game
        game_of.cache_clear()
        assert game_of(game.id) == game
        assert all(holds(kind_of(r), kind_of(t)) for t, r in game.places if "lamp" not in t)
        assert not any(kind_of(r) == game.goal for t, r in game.places if t in game.wanted)
    lengths = Counter()
    for game in found:
        lengths[game.family] += len(game.walkthrough)
    assert lengths["pick_two_obj_and_place"] > lengths["pick_and_place_simple"]
    assert lengths["pick_heat_then_place_in_recep"] > lengths["pick_and_place_simple"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_make_sense(family):
    change = family.removeprefix("pick_").removesuffix("_then_place_in_recep")
    for room in ROOMS:
        for target, goal in pairs(family, room):
            assert (target, goal) not in ODD
            if change in TOOLS:
                assert goal != TOOLS[change]
                assert target in CHANGEABLE[change]
                assert TOOLS[change] in ROOMS[room]


def test_the_tables_of_kinds_agree():
    assert {kind for kinds in ROOMS.values() for kind in kinds} == set(HOLDS)
    things = {kind for text in HOLDS.values() for kind in text.split()}
    assert {kind for kinds in FOUND_IN.values() for kind in kinds} == things
    assert all(changed <= things for changed in CHANGEABLE.values())
    for room, kinds in FOUND_IN.items():
        for kind in kinds:
            assert any(holds(receptacle, kind) for receptacle in ROOMS[room])


@pytest.mark.parametrize(
    "identity",
    ["", "x/y", BOOK.replace("301", "31"), BOOK.replace("book", "apple"), BOOK[:-1] + "z",
     BOOK.replace("medium", "huge"), BOOK.replace("pick_and", "and"), BOOK.replace("301", "a")],
)  # fmt: skip
def test_an_id_that_is_none_is_refused_by_name(identity):
    with pytest.raises(ValueError, match="is not the id of a game"):
        game_of(identity)


# --- the world


def test_evaluations_are_fixed_balanced_and_on_held_out_plans():
    world = HouseholdWorld(size="small")
    asked = world.evaluation_questions(24)
    assert asked == world.evaluation_questions(24)
    assert asked != world.evaluation_questions(24, 1)
    assert Counter(question.kind for question in asked) == dict.fromkeys(FAMILIES, 4)
    drilled = world.train_questions(50, random.Random(0))
    numbers = [[int(q.id.split("/")[3]) % 100 for q in some] for some in (asked, drilled)]
    assert set(numbers[0]) <= set(HELD_OUT)
    assert not set(numbers[1]) & set(HELD_OUT)
    assert all(len(q.hops) == len(game_of(q.id).walkthrough) for q in asked)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="families"):
        HouseholdWorld(families=())
    with pytest.raises(ValueError, match="families"):
        HouseholdWorld(families=("dance",))
    with pytest.raises(ValueError, match="size = 'huge'"):
        HouseholdWorld(size="huge")
    for wrong in (
        {"max_turns": 0},
        {"won_reward": 0.0},
        {"invalid_penalty": -1.0},
        {"history": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HouseholdSettings(**wrong)
    with pytest.raises(ValueError, match="plan = 31"):
        room_of(31)


# --- the rules


def test_texts_are_those_of_the_games(play):
    where = dict(play.game.places)
    book = play.game.wanted[0]
    assert play.first_look().startswith(
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, "
    )
    assert play.do("inventory") == "You are not carrying anything."
    nothing = "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert play.do("look") == nothing != play.first_look()
    start = play.do(f"go to {where[book]}")
    assert start.startswith(f"You arrive at {where[book]}. On the {where[book]}, you see a ")
    assert play.do(f"take {book} from {where[book]}") == (
        f"You pick up the {book} from the {where[book]}."
    )
    assert play.do("inventory") == f"You are carrying: a {book}."
    assert play.do("go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."
    assert play.do(f"move {book} to drawer 1") == NOTHING
    assert play.do("open drawer 1").startswith(
        "You open the drawer 1. The drawer 1 is open. In it, you see "
    )
    assert play.do(f"move {book} to drawer 1") == f"You move the {book} to the drawer 1."
    assert play.won


def test_what_cannot_be_done_changes_nothing(play):
    stream = random.Random(0)
    for _ in range(60):
        before = vars(play.copy())
        for command in IMPOSSIBLE:
            if command not in play.admissible():
                assert play.do(command) == NOTHING
        assert vars(play) == before
        play.do(stream.choice(play.admissible()))


def test_only_one_thing_is_carried_and_what_is_closed_is_hidden():
    stream = random.Random(1)
    for game in games(4):
        play = Play(game)
        for _ in range(30):
            allowed = play.admissible()
            assert allowed == sorted(set(allowed))
            assert f"go to {play.at}" not in allowed
            if play.carried:
                assert not any(command.startswith("take") for command in allowed)
                assert play.carried not in play.where
            if play.at and play._is_closed(play.at):
                assert play.visible() == []
            play.do(stream.choice(allowed))
            assert len(play.where) + bool(play.carried) == len(game.places)


def test_a_thing_is_hot_or_cool_not_both():
    game = draw("pick_heat_then_place_in_recep", 8, "small", random.Random(0))
    play, (thing,) = Play(game), game.wanted
    for command in game.walkthrough[:-1]:
        play.do(command)
    assert (thing, "heat") in play.changed
    for command in ("go to fridge 1", f"cool {thing} with fridge 1"):
        play.do(command)
    assert play.changed == {(thing, "cool")}


def test_two_things_have_to_lie_in_one_receptacle():
    for game in games():
        if game.family != "pick_two_obj_and_place":
            continue
        play, places = Play(game), [r for r in game.receptacles if kind_of(r) == game.goal]
        if len(places) < 2:
            continue
        first, second = game.wanted
        play.where |= {first: places[0], second: places[1]}
        assert not play.won
        play.where |= {second: places[0]}
        assert play.won
        return
    pytest.fail("no game with two receptacles of the goal's kind")


def test_what_is_examined_says_what_was_done_to_it():
    game = draw("pick_heat_then_place_in_recep", 8, "small", random.Random(5))
    play = Play(game)
    play.carried = "potato 1"
    seen = []
    for changed in ([], ["heat"], ["heat", "clean"], ["cool"], ["cool", "slice"], ["slice"]):
        play.changed = {("potato 1", change) for change in changed}
        seen.append(play.do("examine potato 1"))
    assert seen == [
        "There's nothing special about potato 1.",
        "This is a hot potato 1.",
        "This is a hot and clean potato 1.",
        "This is a cold potato 1.",
        "This is a cool sliced potato 1.",
        "This is a sliced potato 1.",
    ]
    play.carried, play.at = "knife 1", "fridge 1"
    play.where |= {"egg 9": "fridge 1"}
    assert "slice egg 9 with knife 1" in play.admissible()
    assert play.do("slice egg 9 with knife 1") == "You sliced the egg 9 with the knife 1."


# --- against the package alfworld, which is not in the lock


def packaged(name: str) -> str:
    """The text of a file of the package alfworld, whose import would make folders."""
    found = importlib.util.find_spec("alfworld")
    if found is None:
        pytest.skip("needs the package alfworld 0.4.2: pip install --no-deps alfworld==0.4.2")
    return (Path(found.origin).parent / name).read_text(encoding="utf-8")


def test_what_holds_what_is_as_in_the_package():
    constants: dict = {}
    exec(compile(packaged("gen/constants.py"), "constants.py", "exec"), constants)
    lower = {
        kind.lower(): {thing.lower() for thing in things}
        for kind, things in (
            constants["VAL_RECEPTACLE_OBJECTS"] | constants["VAL_ACTION_OBJECTS"]
        ).items()
    }
    for receptacle, things in HOLDS.items():
        assert set(things.split()) <= lower[receptacle]
    known = {thing for things in HOLDS.values() for thing in things.split()}
    for change, things in CHANGEABLE.items():
        assert things == lower[f"{change}able"] & known
    assert lower["sliceable"] & known == SLICEABLE
    assert {kind for kind in HOLDS if kind in OPENABLE} == {
        kind.lower() for kind in constants["OPENABLE_CLASS_SET"] if kind.lower() in HOLDS
    }
    held_out = {plan for family in FAMILIES for plan in plans(family, held_out=True)}
    assert held_out == set(constants["TEST_SCENE_NUMBERS"])
    assert {p for f in FAMILIES for p in plans(f, held_out=False)} == set(
        constants["TRAIN_SCENE_NUMBERS"]
    )


def test_games_in_real_rooms_are_won_by_their_walkthroughs():
    packaged("gen/layouts/FloorPlan1-openable.json")
    stream, seen = random.Random(3), set()
    for family in FAMILIES:
        for held_out in (True, False):
            numbers = plans(family, held_out=held_out, size="real")
            assert numbers
            for _ in range(5):
                game = draw(family, stream.choice(numbers), "real", stream)
                play = Play(game)
                for command in game.walkthrough:
                    assert command in play.admissible()
                    play.do(command)
                assert play.won
                seen.add(game.receptacles)
    assert max(map(len, seen)) > 25
    known = {*HouseholdWorld(size="real").words}
    assert all(set(words(" ".join(receptacles))) <= known for receptacles in seen)


def test_real_rooms_without_the_package_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    floor_plan.cache_clear()
    plans.cache_clear()
    with pytest.raises(ValueError, match="pip install --no-deps alfworld"):
        HouseholdWorld(size="real").evaluation_questions(1)


def test_texts_are_those_of_the_package_s_grammar():
    grammar = packaged("data/alfred.twl2")
    for template in (
        "You arrive at {r.name}. ",
        "You open the {r.name}. ",
        "You close the {r.name}.",
        "You pick up the {o.name} from the {r.name}.",
        "You move the {o.name} to the {r.name}.",
        "You clean the {o.name} using the {r.name}.",
        "You heat the {o.name} using the {r.name}.",
        "You cool the {o.name} using the {r.name}.",
        "You sliced the {co.name} with the {ko.name}.",
        "You turn on the {o.name}.",
        "The {r.name} is open. In it, you see [",
        "The {r.name} is closed.",
        "On the {r.name}, you see [",
        "This is a normal {o.name}. In it, you see [",
        "There's nothing special about {o.name}.",
        "This is a cold {o.name}.",
        "You are not carrying anything.",
        "You are carrying: [",
        "You are in the middle of a room. Looking quickly around you, you see ",
        ". Next to it, you see ",
    ):
        assert template in grammar
    goals = packaged("gen/goal_library.py")
    for family, sentence in FAMILIES.items():
        assert f'gdict["{family}"]' in goals
        goal = "{toggle}" if family == "look_at_obj_in_light" else "{recep}"
        assert sentence.format(target="{obj}", goal=goal) in goals


# --- the environment


def episode(identity: str = BOOK, **options):
    game = game_of(identity)
    question = Question(identity, game.task, (), (), game.family, "")
    wording = WORDINGS["tiny" if options.get("terse") else "household"]
    return Household(HouseholdSettings(**options), wording).reset(question, random.Random(0))


def say(command: str) -> str:
    return f"<action> {command} </action>"


def test_rewards_are_10_and_0_minus_a_tenth_for_each_invalid_message():
    won = episode()
    assert won.step("nonsense").action == "invalid"
    assert won.step(say("go to the moon")).action == "invalid"
    for command in won.play.game.walkthrough:
        step = won.step(f"<think> on my way </think> {say(command)}")
    assert (step.stop_reason, step.observation, won.success) == ("goal", "", True)
    assert won.reward == pytest.approx(9.8)
    lost = episode(max_turns=3)
    steps = [lost.step(say("look")) for _ in range(3)]
    assert [step.stop_reason for step in steps] == [None, None, "max_turns"]
    assert (lost.reward, lost.success, lost.grounded) == (0.0, False, None)


def test_a_prompt_in_full_has_task_steps_history_and_admissible_actions():
    started = episode(history=1)
    assert "Your task: put some book on drawer." in started.prompt
    assert "This is step 1. You now see: You are in the middle of a room." in started.prompt
    assert "Admissible actions: [go to bed 1, " in started.prompt
    assert "Steps taken" not in started.prompt
    started.step(say("go to bed 1"))
    shown = started.step(say("go to desk 1")).observation
    assert "Steps taken before this one: 2. The last 1 of them:" in shown
    assert "[step 2: you saw: You arrive at bed 1." in shown
    assert "You chose: go to desk 1]" in shown
    assert "This is step 3. You now see: You arrive at desk 1." in shown
    assert ", ".join(started.play.admissible()) in shown
    assert full("t", 0, (), "o", ["a"]).count("\n") == 2


def test_a_tiny_policy_knows_every_word():
    world = HouseholdWorld()
    for question in world.evaluation_questions(24):
        played = episode(question.id, terse=True)
        known = {*played.environment.words, *world.words}
        assert set(words(played.prompt)) - {"<question>", "</question>"} <= known
        stream = random.Random(0)
        for _ in range(30):
            command = stream.choice([*played.play.admissible(), "dance", "take bed 1 from me"])
            step = played.step(say(command))
            tags = {"<information>", "</information>"}
            assert set(words(step.observation)) - tags <= known | {"invalid", "action"}
            if step.stop_reason:
                break


@pytest.mark.parametrize(
    ("text", "kept"),
    [("You open the drawer 5. The drawer 5 is open. In it, you see a cellphone 1.",
      "open drawer 5 open cellphone 1"),
     ("You clean the mug 1 using the sinkbasin 1.", "clean mug 1 sinkbasin 1"),
     (NOTHING, "nothing happens"), ("You are.", "nothing")],
)  # fmt: skip
def test_terse_observations_keep_what_matters(text, kept):
    assert terse(text) == kept


# --- the script


def script(**options: float) -> DemonstrationSettings:
    none = dict.fromkeys(("guess_first", "error", "quit", "verify"), 0.0)
    return DemonstrationSettings(**(none | {"patience": 40} | options))


def played(question, settings, seed: int = 0, max_turns: int = 99):
    environment = Household(HouseholdSettings(max_turns=max_turns, terse=True), WORDINGS["tiny"])
    episode = environment.reset(question, random.Random(seed))
    helper, seen = tidy(question, settings, random.Random(seed)), None
    for turn in range(1, max_turns + 1):
        step = episode.step(helper.send(seen))
        seen = step.observation
        if step.stop_reason:
            return episode, turn
    raise AssertionError("unreachable")


@pytest.mark.parametrize("question", HouseholdWorld().evaluation_questions(36), ids=lambda q: q.id)
def test_the_script_wins_whether_or_not_it_knows_where_things_lie(question):
    knowing, turns = played(question, script(guess_first=1.0))
    assert (knowing.success, turns) == (True, len(question.hops))
    assert knowing.reward == 10.0
    looking, longer = played(question, script(error=0.3, verify=0.5), seed=1)
    assert looking.success
    assert longer >= turns


def test_who_quits_or_runs_out_of_patience_wins_no_more():
    asked = HouseholdWorld(size="large").evaluation_questions(12)
    assert not any(played(q, script(quit=1.0), max_turns=40)[0].success for q in asked)
    short = [played(q, script(patience=1), max_turns=40)[0].success for q in asked]
    assert 0 < sum(short) + 1 <= len(short)
