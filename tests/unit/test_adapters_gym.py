"""Gymnasium-style text environments: the ones below are local stand-ins that speak the protocol."""

import math
import random
from collections import Counter

import pytest

from turncredit.environments import Household, HouseholdSettings
from turncredit.environments.adapters import GymEnvironment, TextGym
from turncredit.environments.adapters.text_gym import has_won
from turncredit.environments.conformance import Subject, check
from turncredit.worlds import Question
from turncredit.worlds.household import HouseholdWorld, game_of

QUESTION = Question("door", "open the door", (), (), "doors", "")


class Doors:
    """Stand-in with Gymnasium's five values: the right one of three doors, drawn by the seed."""

    closed = 0

    def reset(self, *, seed=None, options=None):
        self.stream = random.Random(seed)
        self.right, self.tries = self.stream.randrange(3), 0
        return f"three doors, {self.stream.randrange(100)}", {"doors": 3}

    def step(self, text: str):
        self.tries += 1
        if text == "burn":
            raise OSError("the house is gone")
        won = text == f"open {self.right}"
        info = {"success": won, "hint": self.stream.randrange(100)}
        return (
            f"tried {text} {info['hint']}",
            float(won),
            won or text == "leave",
            self.tries > 5,
            info,
        )

    def close(self):
        Doors.closed += 1


class Shop:
    """Stand-in for WebShop's text environment: four values, actions such as search[...]."""

    def __init__(self) -> None:
        self.page = "search"

    def reset(self):
        self.page = "search"
        return "Instruction: buy a red cup"

    def get_available_actions(self):
        return ["search[words]"] if self.page == "search" else ["click[buy now]", "click[back]"]

    def step(self, action: str):
        if action.startswith("search["):
            self.page = "item"
        bought = action == "click[buy now]" and self.page == "item"
        return f"page {self.page}", float(bought), bought, {}


class Sandbox:
    """Stand-in for a software-engineering environment: commands until `submit`, four values."""

    def reset(self):
        self.fixed = False
        return "a test fails"

    def step(self, command: str):
        self.fixed |= command == "sed -i s/a/b/ f.py"
        done = command == "submit"
        return "" if command == "true" else f"$ {command}", float(done and self.fixed), done, {}


def say(text: str) -> str:
    return f"<action> {text} </action>"


def doors(**options):
    return GymEnvironment(lambda question: Doors(), max_turns=8, **options)


def play(environment, texts, seed=0):
    episode = environment.reset(QUESTION, random.Random(seed))
    return episode, [episode.step(say(text)) for text in texts]


def test_an_episode_ends_with_what_the_environment_says():
    episode = doors().reset(QUESTION, random.Random(0))
    right = episode._inner.right
    assert episode.prompt.startswith("three doors")
    assert episode.step(say(f"open {(right + 1) % 3}")).observation.startswith("tried open")
    before = Doors.closed
    step = episode.step(say(f"open {right}"))
    assert (step.stop_reason, step.observation, episode.reward) == ("goal", "", 1.0)
    assert (episode.success, Doors.closed) == (True, before + 1)
    left, steps = play(doors(), ["leave"])
    assert (steps[-1].stop_reason, left.success, left.reward) == ("ended", False, 0.0)
    cut, steps = play(doors(), ["wait"] * 6)
    assert (steps[-1].stop_reason, cut.success) == ("max_turns", False)


def test_malformed_messages_cost_and_never_reach_it():
    episode = doors(invalid_penalty=0.1).reset(QUESTION, random.Random(0))
    assert episode.step("open the door").action == "invalid"
    assert (episode._inner.tries, episode.reward) == (0, -0.1)


def test_an_exception_is_a_counted_outcome_without_a_reward():
    environment = doors()
    episode, steps = play(environment, ["burn"])
    assert (steps[0].stop_reason, episode.reward, episode.success) == ("error", None, False)
    assert environment.failures == {"step_OSError": 1}
    broken = GymEnvironment(lambda question: 1 / 0)
    episode, steps = play(broken, ["look"])
    assert (steps[0].stop_reason, episode.reward) == ("error", None)
    assert broken.failures == {"reset_ZeroDivisionError": 1}


def choose(episode, stream):
    return say(stream.choice(["open 0", "open 1", "open 2", "wait", "wait", "burn", "leave"]))


def test_what_was_made_is_closed_once_and_a_close_that_fails_is_counted():
    class Stubborn(Doors):
        def close(self):
            super().close()
            raise OSError("still in use")

    environment = GymEnvironment(lambda question: Stubborn())
    Doors.closed = 0
    episode = environment.reset(QUESTION, random.Random(0))
    snapshot = episode.snapshot()
    assert episode.step(say("leave")).stop_reason == "ended"
    assert (Doors.closed, environment.failures) == (1, {"close_OSError": 1})
    episode.restore(snapshot)
    assert Doors.closed == 1  # what is taken up again is another one
    assert episode.step(say("leave")).stop_reason == "ended"
    assert Doors.closed == 2


def test_it_conforms_snapshots_included():
    findings = check(Subject(doors(invalid_penalty=0.1), [QUESTION], say=choose), messages=1500)
    assert findings.faults == []
    assert {f"stopped by {reason}" for reason in ("goal", "ended", "error", "max_turns")} <= {
        *findings.counts
    }
    assert findings.counts["snapshots"] > 3


def test_an_environment_that_does_not_repeat_itself_is_told_at_once():
    class Moody(Doors):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=random.SystemRandom().getrandbits(60))

    environment = GymEnvironment(lambda question: Moody())
    snapshot = environment.reset(QUESTION, random.Random(0)).snapshot()
    other = environment.reset(QUESTION, random.Random(0))
    with pytest.raises(ValueError, match="does not repeat itself"):
        for _ in range(20):
            other.restore(snapshot)


def test_a_shop_shows_its_actions_and_sells():
    offers = GymEnvironment(
        lambda question: Shop(),
        offered=lambda shop, info: shop.get_available_actions(),
        instruction="{task}: {observation}",
    )
    episode = offers.reset(QUESTION, random.Random(0))
    assert episode.prompt == (
        "open the door: Instruction: buy a red cup\nAdmissible actions: [search[words]]"
    )
    shown = episode.step(say("search[red cup]")).observation
    assert shown == "page item\nAdmissible actions: [click[buy now], click[back]]"
    assert episode.step(say("click[buy now]")).stop_reason == "goal"
    assert check(Subject(offers, [QUESTION], longest=60), messages=400).faults == []


def test_a_sandbox_runs_commands_until_they_are_handed_in():
    sandbox = GymEnvironment(lambda question: Sandbox(), max_turns=5)
    episode, steps = play(sandbox, ["true", "sed -i s/a/b/ f.py", "submit"])
    assert [step.stop_reason for step in steps] == [None, None, "goal"]
    assert steps[0].observation == "(nothing)"
    assert episode.reward == 1.0
    assert play(sandbox, ["submit"])[1][0].stop_reason == "ended"


def test_success_is_what_the_environment_calls_so():
    assert [has_won(r, i) for r, i in ((1.0, {}), (0.5, {}), (0.0, {"won": 1}))] == [
        True,
        False,
        True,
    ]


# --- the other way round


def chores() -> TextGym:
    world = HouseholdWorld(size="small")
    return TextGym(Household(HouseholdSettings(max_turns=12)), world.evaluation_questions(4))


def test_our_environments_are_played_by_a_gymnasium_loop():
    gym = chores()
    shown, info = gym.reset(seed=0, options={"question": 2})
    assert gym.questions[2].id == info["question_id"]
    assert gym.questions[2].text in shown
    paid = [gym.step("nonsense")[1]]
    for command in game_of(info["question_id"]).walkthrough:
        shown, reward, terminated, truncated, info = gym.step(say(command))
        paid.append(reward)
    assert (terminated, truncated, info["success"], info["stop_reason"]) == (
        True,
        False,
        True,
        "goal",
    )
    assert sum(paid) == pytest.approx(9.9)
    assert shown == ""


def test_the_seed_draws_the_question_and_the_turn_limit_truncates():
    gym = chores()
    drawn = Counter(gym.reset(seed=seed)[1]["question_id"] for seed in range(40))
    assert len(drawn) == 4
    assert gym.reset(seed=3) == gym.reset(seed=3)
    for _ in range(12):
        _, _, terminated, truncated, _ = gym.step(say("look"))
    assert (terminated, truncated) == (False, True)
    gym.close()
    with pytest.raises(RuntimeError, match="reset comes before step"):
        gym.step("x")
    with pytest.raises(ValueError, match="questions is empty"):
        TextGym(gym.environment, [])


def test_a_missing_reward_is_not_zero():
    gym = TextGym(GymEnvironment(lambda question: Doors()), [QUESTION])
    gym.reset(seed=0)
    assert math.isnan(gym.step(say("burn"))[1])


def test_there_and_back_again_is_the_same_play():
    inner = chores()
    around = GymEnvironment(lambda question: chores(), max_turns=30)
    episode = around.reset(QUESTION, random.Random(0))
    shown, _ = inner.reset(seed=episode._seed)
    assert episode.prompt == shown
    for text in ("look", "inventory", "go to nowhere"):
        assert episode.step(say(text)).observation == inner.step(text)[0]
