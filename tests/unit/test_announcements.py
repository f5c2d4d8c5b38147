"""What is announced is asked for at once, by searches and judges of a whole step too."""

import random
import threading

import pytest
from play import SMALL, ScriptedPolicy

from turncredit.announcements import Announced
from turncredit.environments import DeepResearch, DeepResearchSettings, SearchR1, SearchR1Settings
from turncredit.environments.judges import RuleJudge
from turncredit.policies.protocol import Message
from turncredit.policies.vocabulary import tag_vocabulary
from turncredit.retrieval.client import Answer
from turncredit.rollout import asynchronous, lockstep
from turncredit.worlds.base import Document, Question
from turncredit.worlds.files import FileWorld


def test_all_announced_requests_are_made_together_when_the_first_reply_is_wanted():
    asked = []
    requests = Announced(lambda wanted: asked.append(wanted) or [each.upper() for each in wanted])
    for name in "aba":
        requests.expect(name)
    assert asked == []
    assert [requests.reply(name) for name in "baa"] == ["B", "A", "A"]
    assert asked == [["a", "b", "a"]]


def test_what_nobody_announced_is_asked_for_alone_and_leaves_the_announced_ones_waiting():
    asked = []
    requests = Announced(lambda wanted: asked.append(wanted) or wanted)
    requests.expect("a")
    assert requests.reply("x") == "x"
    assert requests.reply("a") == "a"
    assert requests.reply("a") == "a"
    assert asked == [["x"], ["a"], ["a"]]


def test_replies_that_were_not_wanted_are_gone_with_the_next_requests():
    answers = iter(["old", "old", "new", "alone"])
    requests = Announced(lambda wanted: [next(answers) for _ in wanted])
    for name in "ab":
        requests.expect(name)
    assert requests.reply("a") == "old"
    requests.expect("c")
    assert requests.reply("c") == "new"
    assert requests.reply("b") == "alone"


def test_an_error_is_raised_and_the_next_request_is_made_anew():
    tries = iter([ValueError("down"), None])

    def ask(wanted):
        error = next(tries)
        if error:
            raise error
        return wanted

    requests = Announced(ask)
    for name in "ab":
        requests.expect(name)
    with pytest.raises(ValueError, match="down"):
        requests.reply("a")
    assert requests.reply("b") == "b"


# --- whole steps

ROWS = 5
SEARCHES = [f"<search> {name} </search>" for name in ("hague", "hague", "rome", "paris", "oslo")]


class Retriever:
    """Finds one document whatever is asked, and notes what was asked in one request."""

    def __init__(self, together: threading.Barrier | None = None) -> None:
        self.requests: list[list[str]] = []
        self.together = together

    def search(self, queries, k):
        if self.together:
            self.together.wait(timeout=20)
        self.requests.append(list(queries))
        return [[Document("d", query, f"{query} is a city")] for query in queries]


class Judge:
    """Announces as `EndpointJudge` does, and notes what was asked for at once."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.announced = Announced(self.all)

    def all(self, answers):
        self.requests.append(answers)
        return ["WRONG"] * len(answers)

    def expect(self, question, answer, context):
        self.announced.expect(answer)

    def verdict(self, question, answer, context, stream):
        return self.announced.reply(answer)


ASKED = [Question(f"q{row}", "where ?", ("hague",), (), "kind", "") for row in range(ROWS)]
SETTING = {"seed": 0, "step": 0, "max_turn_tokens": 8}


def research(retriever, judge):
    settings = DeepResearchSettings(max_turns=3)
    return DeepResearch(FileWorld([], ASKED, retriever), judge, settings)


def words_of(environment):
    said = ("hague", "rome", "paris", "oslo", "is", "a", "city", "where", "?", *environment.words)
    return tag_vocabulary(environment.actions, tuple(dict.fromkeys(said)))


def test_searches_and_verdicts_of_a_step_are_one_request_each():
    retriever, judge = Retriever(), Judge()
    environment = research(retriever, judge)
    verifies = ["<external_verify> rome </external_verify>"] * 2
    scripts = [*SEARCHES[:3], *verifies]
    words = words_of(environment)
    played = lockstep.roll_out(ScriptedPolicy(scripts, words), words, environment, ASKED, **SETTING)
    assert [each.turns[0].action for each in played] == [
        *["search"] * 3,
        *["external_verify"] * 2,
    ]
    assert retriever.requests[0] == ["hague", "hague", "rome"]
    assert judge.requests[0] == ["rome", "rome"]
    assert environment.world.outcomes == {"short": 3}


def test_what_is_seen_is_what_searches_one_by_one_would_show():
    def play(expecting):
        retriever = Retriever()
        environment = SearchR1(FileWorld([], ASKED, retriever), SearchR1Settings(max_turns=2))
        if not expecting:
            environment.world.expect = lambda query, k: None
        words = words_of(environment)
        policy = ScriptedPolicy(SEARCHES, words, 200)
        return lockstep.roll_out(policy, words, environment, ASKED, **SETTING), retriever.requests

    (together, at_once), (alone, one_by_one) = play(True), play(False)
    assert together == alone
    assert [len(queries) for queries in at_once] == [ROWS]
    assert [len(queries) for queries in one_by_one] == [1] * ROWS


def test_a_last_message_is_not_announced_since_its_tool_is_not_used():
    retriever = Retriever()
    environment = SearchR1(FileWorld([], ASKED, retriever), SearchR1Settings(max_turns=1))
    words = words_of(environment)
    lockstep.roll_out(ScriptedPolicy(SEARCHES, words, 200), words, environment, ASKED, **SETTING)
    assert retriever.requests == []


def test_trajectories_of_their_own_wait_for_servers_side_by_side():
    """Every search waits until all of them have begun: one after the other, none would end."""
    retriever = Retriever(threading.Barrier(ROWS))
    environment = SearchR1(FileWorld([], ASKED, retriever), SearchR1Settings(max_turns=2))
    words = words_of(environment)

    class Engine:
        async def generate(self, token_ids, *, ended, max_tokens, **asked):
            ids = tuple(words.encode("<search> oslo </search>"))
            return Message(ids, (0.0,) * len(ids), (0.0,) * len(ids))

    played = asynchronous.roll_out(Engine(), words, environment, ASKED, max_tokens=200, **SETTING)
    assert [each.stop_reason for each in played] == ["max_turns"] * ROWS
    assert retriever.requests == [["oslo"]] * ROWS
    assert environment.world.outcomes == {"short": ROWS}


def test_only_what_can_announce_is_taken_to_wait_for_servers():
    files, rules = FileWorld([], ASKED, Retriever()), RuleJudge(0.0, 0.0)
    settings = DeepResearchSettings()
    assert not DeepResearch(SMALL, rules, settings).waits_for_servers
    assert DeepResearch(files, rules, settings).waits_for_servers
    assert DeepResearch(SMALL, Judge(), settings).waits_for_servers
    assert SearchR1(files, SearchR1Settings()).waits_for_servers
    assert not SearchR1(SMALL, SearchR1Settings()).waits_for_servers


def test_each_search_of_a_request_is_short_or_not_by_itself():
    class Client:
        def ask(self, queries, k):
            found = [
                [Document("d", query, "text")] * (2 if query == "full" else 1) for query in queries
            ]
            return Answer(found, "short")

    world = FileWorld([], ASKED, Client())
    for query in ("full", "half"):
        world.expect(query, 2)
    for query in ("full", "half"):
        world.search(ASKED[0], query, 2, random.Random(0))
    assert world.outcomes == {"ok": 1, "short": 1}
