"""The conformance check passes this package's environments and finds every kind of fault."""

import itertools
import random
from dataclasses import replace

import pytest

from turncredit.environments import Step
from turncredit.environments.__main__ import main
from turncredit.environments.actions import closing_tags, parse_action
from turncredit.environments.alfworld.package import missing_packages
from turncredit.environments.conformance import Subject, check, random_message
from turncredit.environments.snapshots import put_back, saved
from turncredit.environments.subjects import SUBJECTS, open_subject
from turncredit.worlds import Question

QUESTIONS = [Question("stones", "stones", (), (), "stones", "")]


class Pile:
    """Takes stones; right in every respect."""

    grounded = None

    def __init__(self, stream) -> None:
        self.stream, self.turns = stream, 0
        self.left = stream.randint(4, 9)
        self.prompt = f"{self.left} stones"
        self.missing = False

    @property
    def success(self) -> bool:
        return self.left == 0

    @property
    def reward(self) -> float | None:
        return None if self.missing else float(self.success)

    def step(self, message: str) -> Step:
        action, _ = parse_action(message, ("take",))
        self.turns += 1
        if action == "take":
            self.left -= min(self.left, self.stream.randint(1, 3))
        if self.success or self.turns == 8:
            return Step(action, "", stop_reason="goal" if self.success else "max_turns")
        return Step(action, f"{self.left} left")

    def snapshot(self):
        return saved(self)

    def restore(self, snapshot, stream=None) -> None:
        put_back(self, snapshot)


class Stones:
    """A factory of one kind of pile."""

    actions = ("take",)

    def __init__(self, kind=Pile, failures=()) -> None:
        self.kind, self.failures = kind, dict(failures)

    def reset(self, question, stream):
        return self.kind(stream)


class Raises(Pile):
    def step(self, message):
        return super().step(message.encode().decode())  # stumbles over lone surrogates


class Forgetful(Pile):
    def restore(self, snapshot, stream=None) -> None:
        put_back(self, {name: value for name, value in snapshot.items() if name != "left"})


class Aliased(Pile):
    def snapshot(self):
        return {"stream": self.stream, "turns": self.turns, "left": self.left}

    def restore(self, snapshot, stream=None) -> None:
        vars(self).update(snapshot)


class Global(Pile):
    def step(self, message):
        random.random()
        return super().step(message)


class Counting(Pile):
    numbers = itertools.count()

    def step(self, message):
        step = super().step(message)
        shown = "" if step.stop_reason else f"{next(self.numbers)} steps so far"
        return replace(step, observation=shown)


class Endless(Pile):
    def step(self, message):
        return Step("take", "go on")


class LastWords(Pile):
    def step(self, message):
        return replace(super().step(message), observation="that was it")


class Unnamed(Pile):
    def step(self, message):
        step = super().step(message)
        return replace(step, stop_reason=step.stop_reason and "whatever")


class OtherAction(Pile):
    def step(self, message):
        return replace(super().step(message), action="drop")


class Failing(Pile):
    def step(self, message):
        return replace(super().step(message), error="broken")


class NotANumber(Pile):
    reward = float("nan")


class Doubtful(Pile):
    success, reward = None, 0.0

    def step(self, message):
        self.turns += 1
        done = {"observation": "", "stop_reason": "max_turns"} if self.turns == 8 else {}
        return Step(**({"action": "take", "observation": "x"} | done))


FAULTS = {
    Raises: "no text makes an episode raise: UnicodeEncodeError",
    Forgetful: "a restored episode goes on as the original",
    Aliased: "a restored episode goes on as the original",
    Global: "the global random stream is left alone",
    Counting: "the same seed and messages give the same episode",
    Endless: "an episode is over after 40 messages",
    LastWords: "the last observation is empty: 'that was it'",
    Unnamed: "a stop reason has a known name: 'whatever'",
    OtherAction: "an action is one of `actions` or invalid: 'drop'",
    Failing: "a step with an error can be taken back",
    NotANumber: "a reward is a number or None: nan",
    Doubtful: "`success` is True or False: None",
}


def faults(kind=Pile, **parts) -> list[str]:
    subject = Subject(Stones(kind, **parts), QUESTIONS, longest=40)
    return check(subject, messages=1500).faults


@pytest.mark.parametrize(("kind", "fault"), FAULTS.items(), ids=lambda value: str(value)[:40])
def test_a_fault_is_found_and_named(kind, fault):
    assert any(found.startswith(fault) for found in faults(kind)), faults(kind)


def test_a_right_environment_has_none_and_names_of_its_own_are_respected():
    assert faults() == []
    Stones.stop_reasons = ("whatever",)
    try:
        assert faults(Unnamed) == []
    finally:
        del Stones.stop_reasons


def test_failures_are_counts_by_name():
    assert faults(failures={"lost": -1}) == ["`failures` counts causes by name: {'lost': -1}"]


def test_nothing_to_play_is_refused():
    with pytest.raises(ValueError, match="questions is empty"):
        check(Subject(Stones(), []))


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_environment_of_the_package_conforms(name):
    if name == "alfworld" and missing_packages():
        pytest.skip(f"needs {', '.join(missing_packages())}: the extra `alfworld`")
    findings = check(open_subject(name), messages=40 if name == "alfworld" else 400)
    assert findings.faults == []
    assert findings.counts["messages"] >= 40
    assert findings.counts["snapshots"] > 0


@pytest.mark.parametrize("protocol", ["tags", "json"])
def test_random_messages_are_actions_and_nonsense(protocol):
    actions, stream = ("search", "answer"), random.Random(0)
    messages = [random_message(actions, ["a", "b"], stream, protocol) for _ in range(400)]
    read = [parse_action(message, actions, protocol=protocol)[0] for message in messages]
    assert {*read} == {"search", "answer", "invalid"}
    assert 0.2 < read.count("invalid") / len(read) < 0.6
    assert any(message.endswith(closing_tags(actions, protocol=protocol)) for message in messages)


def test_the_command_says_what_is_wrong(capsys, monkeypatch):
    monkeypatch.setitem(SUBJECTS, "stones", lambda: Subject(Stones(OtherAction), QUESTIONS))
    assert main(["stones", "30"]) == 1
    assert "FAULT: an action is one of `actions` or invalid: 'drop'" in capsys.readouterr().out
    monkeypatch.setitem(SUBJECTS, "stones", lambda: Subject(Stones(), QUESTIONS))
    assert main(["stones", "30"]) == 0
    assert "stones: conforming" in capsys.readouterr().out
    for call in ([], ["nobody"], ["stones", "many"], ["no.such:thing"], ["random:random"]):
        assert main(call) == 2
    assert "module:function" in capsys.readouterr().err
