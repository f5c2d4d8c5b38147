"""A shop and a sandbox behind servers: the ones below are local stand-ins for the public ones."""

import random
import re

import pytest
from answering import served

from turncredit.environments.adapters import GymEnvironment, SandboxServer, WebShopServer
from turncredit.environments.conformance import Subject, check
from turncredit.worlds import Question

QUESTION = Question("7", "buy a red cup", (), (), "shop", "")


class Shops:
    """Stand-in for AgentGym's server of WebShop: paths, bodies and answers as there."""

    def __init__(self) -> None:
        self.pages: dict[int, tuple[int, str]] = {}
        self.made = 0

    def __call__(self, path, body, headers):
        if path == "/create":
            self.made += 1
            self.pages[self.made] = (0, "search")
            return 200, self.made
        if body is None:
            number = int(re.fullmatch(r"/available_actions\?env_idx=(\d+)", path)[1])
            search = self.pages[number][1] == "search"
            return 200, {"has_search_bar": search, "clickables": [] if search else ["buy now"]}
        number = body["env_idx"]
        if path == "/reset":
            self.pages[number] = (body["session_id"], "search")
            return 200, [f"Instruction: goal {body['session_id']}", None]
        if path == "/close":
            return 200, {"closed": self.pages.pop(number) is not None}
        goal, page = self.pages[number]
        action = body["action"]
        if action == "burn":
            return 500, {"detail": "no"}
        if action == "babble":
            return 200, b"<html>"
        page = "item" if action.startswith("search[") else page
        self.pages[number] = (goal, page)
        bought = action == "click[buy now]" and page == "item"
        step = {"state": f"{page} {goal}", "reward": 1.0 if bought else 0.0, "done": bought}
        return 200, step | {"info": None}


def shop(url: str, **options) -> GymEnvironment:
    return GymEnvironment(
        lambda question: WebShopServer(url, int(question.id), timeout=5.0),
        offered=lambda inner, info: inner.available_actions(),
        **options,
    )


def say(text: str) -> str:
    return f"<action> {text} </action>"


def test_a_served_shop_shows_its_actions_and_sells():
    shops = Shops()
    with served(shops) as url:
        episode = shop(url).reset(QUESTION, random.Random(0))
        assert episode.prompt == ("Instruction: goal 7\nAdmissible actions: [search[words]]")
        shown = episode.step(say("search[red cup]")).observation
        assert shown == "item 7\nAdmissible actions: [click[buy now]]"
        assert episode.step(say("click[buy now]")).stop_reason == "goal"
        assert (episode.reward, episode.success) == (1.0, True)
        assert shops.pages == {}  # given back


@pytest.mark.parametrize("action", ["burn", "babble"])
def test_a_shop_that_breaks_is_a_counted_outcome_without_a_reward(action):
    with served(Shops()) as url:
        environment = shop(url)
        episode = environment.reset(QUESTION, random.Random(0))
        assert episode.step(say(action)).stop_reason == "error"
        assert episode.reward is None
        assert environment.failures == {"step_OSError": 1}


def test_no_server_is_a_counted_outcome():
    environment = shop("http://127.0.0.1:9")
    episode = environment.reset(QUESTION, random.Random(0))
    assert episode.step(say("search[cup]")).stop_reason == "error"
    assert (episode.reward, environment.failures) == (None, {"reset_OSError": 1})


def test_a_served_shop_conforms_snapshots_included():
    def act(episode, stream):
        return say(stream.choice(["search[cup]", "click[buy now]", "click[back]"]))

    with served(Shops()) as url:
        subject = Subject(shop(url, max_turns=6), [QUESTION], longest=8, say=act)
        assert check(subject, messages=120).faults == []


class Sandboxes:
    """Stand-in for a SWE-ReX server: sessions in which one file is right or wrong."""

    def __init__(self, token: str = "") -> None:
        self.fixed: dict[str, bool] = {}
        self.token = token

    def __call__(self, path, body, headers):
        if headers.get("X-API-Key", "") != self.token:
            return 401, {"detail": "Invalid API Key"}
        name = body["session"]
        if path == "/create_session":
            self.fixed[name] = False
            return 200, {"output": "", "session_type": body["session_type"]}
        if path == "/close_session":
            del self.fixed[name]
            return 200, {"session_type": "bash"}
        assert (path, body["action_type"], body["check"]) == ("/run_in_session", "bash", "silent")
        return 200, {"session_type": "bash", **self.run(name, body["command"])}

    def run(self, name: str, command: str) -> dict:
        if command == "git checkout -f":
            self.fixed[name] = False
            return {"output": "a test fails", "exit_code": 0}
        if command == "sed -i s/a/b/ f.py":
            self.fixed[name] = True
            return {"output": "", "exit_code": 0}
        if command == "pytest":
            return {"output": "", "exit_code": 0 if self.fixed[name] else 1}
        if command == "sleep 9999":
            return {"output": "", "exit_code": None}
        return {"output": f"{command}: not found", "exit_code": 127}


def sandbox(url: str, *, token: str = "", prepare: str = "git checkout -f") -> GymEnvironment:
    return GymEnvironment(
        lambda question: SandboxServer(url, prepare=prepare, grade="pytest", token=token),
        max_turns=6,
        instruction="{task}\n{observation}",
    )


def test_a_served_sandbox_runs_commands_and_the_tests_decide():
    with served(Sandboxes(token="t")) as url:
        environment = sandbox(url, token="t")
        episode = environment.reset(QUESTION, random.Random(0))
        assert episode.prompt == "buy a red cup\na test fails"
        texts = ["dance", "sed -i s/a/b/ f.py", "submit"]
        steps = [episode.step(say(text)) for text in texts]
        assert steps[0].observation == "dance: not found\n[exit status 127]"
        assert steps[1].observation == "(nothing)"
        assert (steps[2].stop_reason, episode.reward) == ("goal", 1.0)
        lost = environment.reset(QUESTION, random.Random(0))
        assert (lost.step(say("submit")).stop_reason, lost.reward) == ("ended", 0.0)


@pytest.mark.parametrize(
    ("options", "texts", "cause"),
    [({"token": "wrong"}, ["ls"], "reset_OSError"),
     ({"prepare": "no such"}, ["ls"], "reset_OSError"),
     ({}, ["sleep 9999"], "step_OSError")],
)  # fmt: skip
def test_a_sandbox_that_fails_is_a_counted_outcome(options, texts, cause):
    with served(Sandboxes()) as url:
        environment = sandbox(url, **options)
        episode = environment.reset(QUESTION, random.Random(0))
        assert [episode.step(say(text)).stop_reason for text in texts] == ["error"]
        assert (episode.reward, environment.failures) == (None, {cause: 1})


def test_a_served_sandbox_conforms_snapshots_included():
    def act(episode, stream):
        return say(stream.choice(["ls", "sed -i s/a/b/ f.py", "submit"]))

    with served(Sandboxes()) as url:
        subject = Subject(sandbox(url), [QUESTION], longest=8, say=act)
        assert check(subject, messages=120).faults == []
