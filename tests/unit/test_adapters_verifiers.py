"""Multi-turn environments in the manner of `verifiers`: the ones below are local stand-ins."""

import asyncio
import random

import pytest

from turncredit.environments.adapters import ChatEnvironment, VerifiersEnvironment
from turncredit.environments.conformance import Subject, check
from turncredit.environments.subjects import open_subject
from turncredit.worlds import Question

QUESTION = Question("q", "guess", (), (), "guess", "")
ROWS = {"q": {"prompt": [{"role": "user", "content": "guess a number to 5"}], "answer": "3"}}


class Guess:
    """Stand-in of the later shape: messages come back, and the state says when it is over."""

    async def setup_state(self, state, **_):
        return state | {"tries": 0}

    async def env_response(self, messages, state, **_):
        state["tries"] += 1
        said = messages[-1]["content"]
        if "boom" in said:
            raise OSError("gone")
        if "<answer>" in said:
            state["final_env_response"] = []
            return []
        return [{"role": "user", "content": f"not yet, {state['tries']} tries"}]


class Earlier(Guess):
    """Stand-in of the earlier shape: asked whether it is over, and the state comes back too."""

    async def is_completed(self, messages, state, **_):
        return "<answer>" in messages[-1]["content"]

    async def env_response(self, messages, state, **_):
        return await super().env_response(messages, state), state


def score(messages, state) -> float:
    return float(f"<answer> {state['answer']} </answer>" in messages[-1]["content"])


@pytest.mark.parametrize("inner", [Guess(), Earlier()], ids=["later", "earlier"])
def test_a_chat_is_played_to_its_end(inner):
    environment = VerifiersEnvironment(inner, ROWS, score)
    episode = environment.reset(QUESTION, random.Random(0))
    assert episode.prompt == "guess a number to 5"
    step = episode.step("hm")
    assert (step.action, step.observation, step.stop_reason) == (
        "invalid",
        "not yet, 1 tries",
        None,
    )
    step = episode.step("<answer> 3 </answer>")
    assert (step.action, step.stop_reason, episode.reward) == ("answer", "goal", 1.0)
    wrong = environment.reset(QUESTION, random.Random(0))
    assert wrong.step("<answer> 4 </answer>").stop_reason == "ended"
    assert (wrong.reward, wrong.success) == (0.0, False)
    assert ROWS["q"]["prompt"] == [{"role": "user", "content": "guess a number to 5"}]


def test_the_turn_limit_and_exceptions_are_named_outcomes():
    environment = VerifiersEnvironment(Guess(), ROWS, score, max_turns=2)
    episode = environment.reset(QUESTION, random.Random(0))
    assert [episode.step("hm").stop_reason for _ in range(2)] == [None, "max_turns"]
    broken = environment.reset(QUESTION, random.Random(0))
    assert (broken.step("boom").stop_reason, broken.reward) == ("error", None)
    unscored = VerifiersEnvironment(Guess(), ROWS, lambda messages, state: 1 / 0)
    episode = unscored.reset(QUESTION, random.Random(0))
    assert episode.step("<answer> 3 </answer>").stop_reason == "error"
    assert (episode.reward, episode.success) == (None, False)
    assert environment.failures | unscored.failures == {
        "env_response_OSError": 1,
        "score_ZeroDivisionError": 1,
    }
    with pytest.raises(KeyError):
        environment.reset(Question("other", "", (), (), "", ""), random.Random(0))


@pytest.mark.parametrize("inner", [Guess(), Earlier()], ids=["later", "earlier"])
def test_it_conforms_also_inside_a_running_loop(inner):
    subject = Subject(VerifiersEnvironment(inner, ROWS, score), [QUESTION])

    async def inside():
        return check(subject, messages=40)

    assert check(subject, messages=400).faults == []
    assert asyncio.run(inside()).faults == []


@pytest.mark.parametrize("returns_state", [True, False])
def test_there_and_back_again_is_the_same_play(returns_state):
    research = open_subject("deep_research")
    question = research.questions[0]
    hooks = ChatEnvironment(research.environment, [question], seed=0, returns_state=returns_state)
    rows = {row["info"]["question_id"]: row for row in hooks.rows()}
    around = VerifiersEnvironment(
        hooks,
        rows,
        lambda messages, state: hooks.reward(state),
        actions=research.environment.actions,
    )
    episode = around.reset(question, random.Random(0))
    said = [
        f"<search> {question.hops[0].title} </search>",
        f"<answer> {question.answers[0]} </answer>",
    ]
    steps = [episode.step(message) for message in said]
    inner = episode.state["episode"]
    assert [step.observation for step in steps] == [step.observation for step in inner.steps]
    assert (steps[-1].stop_reason, episode.reward, episode.success) == ("goal", 1.0, True)
