"""What any environment must keep to, checked by playing it: `make check-environment NAME=...`.

Nothing here knows a particular environment.  Messages are drawn from what it says of itself (its
`actions`, the words it shows) and from nonsense that a policy may write too.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Real
from typing import Any

from turncredit.answers import words
from turncredit.environments.actions import INVALID, Protocol
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question

STOP_REASONS = ("answer", "goal", "invalid", "max_turns", "error")
"""Reasons that an environment may give; one with others of its own lists them in `stop_reasons`."""
Say = Callable[[Episode, random.Random], str]


@dataclass(frozen=True)
class Subject:
    """An environment to check and what to ask in it."""

    environment: Environment
    questions: Sequence[Question]
    protocol: Protocol = "tags"
    """How messages are written; that of the environment's wording."""
    say: Say | None = None
    """Draws a message worth trying in an episode; half of all messages then come from it."""
    longest: int = 200
    """Messages after which every episode must be over."""


@dataclass
class Findings:
    """What a check has seen."""

    faults: list[str] = field(default_factory=list)
    """One sentence for each thing that is wrong, at most one of a kind."""
    counts: Counter[str] = field(default_factory=Counter)
    """Messages, episodes, stop reasons and what else was counted."""

    def require(self, holds: bool, rule: str, seen: Any = "") -> None:
        """Note a broken rule, once."""
        self.counts[f"checked {rule}"] += 1
        if not holds and not any(fault.startswith(rule) for fault in self.faults):
            self.faults.append(f"{rule}{': ' if seen != '' else ''}{seen}")


def check(subject: Subject, *, messages: int = 10_000, seed: int = 0) -> Findings:
    """Play `messages` random messages, then replay some episodes and their snapshots.

    Never raises for a fault of the environment: an exception of its own is a fault too.
    Raises ValueError for a subject without questions.
    """
    if not subject.questions:
        raise ValueError("questions is empty: there is nothing to play")
    findings = Findings()
    before = random.getstate()
    for number in count():
        if findings.counts["messages"] >= messages or len(findings.faults) > 9:
            break
        try:
            _check_episode(subject, seed, number, findings)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            findings.require(False, "no text makes an episode raise", text)
    findings.require(random.getstate() == before, "the global random stream is left alone")
    _check_failures(subject.environment.failures, findings)
    return findings


def _check_episode(subject: Subject, seed: int, number: int, findings: Findings) -> None:
    """Play one episode to its end; every tenth is replayed, and continued from a snapshot."""
    findings.counts["episodes"] += 1
    question = subject.questions[number % len(subject.questions)]
    episode = _start(subject, question, seed, number)
    findings.require(isinstance(episode.prompt, str) and bool(episode.prompt), "it has a prompt")
    stream = python_stream(seed, "conformance", number)
    said: list[str] = []
    heard: list[Any] = []
    seen = episode.prompt
    saved_at, snapshot = stream.randrange(4), None
    for _ in range(subject.longest):
        if number % 10 == 0 and len(said) == saved_at and hasattr(episode, "snapshot"):
            snapshot = episode.snapshot()
        said.append(_message(subject, episode, seen, stream))
        findings.counts["messages"] += 1
        step = episode.step(said[-1])
        _check_step(subject.environment, episode, step, len(said), findings)
        heard.append(_shown(episode, step))
        seen = step.observation or seen
        if step.stop_reason is not None:
            findings.counts[f"stopped by {step.stop_reason}"] += 1
            break
    rule = f"an episode is over after {subject.longest} messages"
    findings.require(step.stop_reason is not None, rule)
    if number % 10 == 0:
        _check_replay(subject, question, (seed, number), said, heard, findings)
        if snapshot is not None:
            _check_snapshot(
                subject, question, snapshot, said[saved_at:], heard[saved_at:], findings
            )


def _start(subject: Subject, question: Question, seed: int, number: int) -> Episode:
    stream = python_stream(seed, "conformance episode", number)
    return subject.environment.reset(question, stream)


def _shown(episode: Episode, step: Step) -> tuple[Any, ...]:
    """All that may be compared after a step."""
    about = [getattr(episode, name, None) for name in ("oracle_turn", "turn_labels")]
    return (step, episode.reward, episode.success, episode.grounded, *about)


def _check_step(
    environment: Environment, episode: Episode, step: Step, turns: int, findings: Findings
) -> None:
    """What every step must say, whatever the message was."""
    known = (*STOP_REASONS, *getattr(environment, "stop_reasons", ()))
    named = (*environment.actions, INVALID[0])
    require = findings.require
    require(step.action in named, "an action is one of `actions` or invalid", repr(step.action))
    require(isinstance(step.observation, str), "an observation is a text", repr(step.observation))
    if step.stop_reason is not None:
        require(step.stop_reason in known, "a stop reason has a known name", repr(step.stop_reason))
        require(step.observation == "", "the last observation is empty", repr(step.observation))
    else:
        require(step.observation != "", "an episode that goes on shows something")
    reward = episode.reward
    require(reward is None or _is_number(reward), "a reward is a number or None", repr(reward))
    require(type(episode.success) is bool, "`success` is True or False", repr(episode.success))
    grounded = episode.grounded
    require(grounded in (None, True, False), "`grounded` is None, True or False", repr(grounded))
    if step.error is not None:
        require(hasattr(episode, "take_back"), "a step with an error can be taken back")
    labels = getattr(episode, "turn_labels", None)
    require(labels is None or len(labels) == turns, "`turn_labels` has one for each turn")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and value == value


def _check_replay(
    subject: Subject,
    question: Question,
    which: tuple[int, int],
    said: Sequence[str],
    heard: Sequence[Any],
    findings: Findings,
) -> None:
    """The same stream and messages must give the same again, another episode going on beside."""
    again, beside = _start(subject, question, *which), _start(subject, question, which[0], -1)
    answers = []
    for place, message in enumerate(said):
        if place == 0:
            beside.step(message)
        answers.append(_shown(again, again.step(message)))
    rule = "the same seed and messages give the same episode"
    findings.require(answers == list(heard), rule, _first_difference(answers, heard))


def _check_snapshot(
    subject: Subject,
    question: Question,
    snapshot: Any,
    said: Sequence[str],
    heard: Sequence[Any],
    findings: Findings,
) -> None:
    """Taken up again, twice, an episode must go on as the original did."""
    other = subject.environment.reset(question, random.Random(1))
    for _ in range(2):
        other.restore(snapshot)
        answers = [_shown(other, other.step(message)) for message in said]
        rule = "a restored episode goes on as the original"
        findings.require(answers == list(heard), rule, _first_difference(answers, heard))
    findings.counts["snapshots"] += 1


def _first_difference(answers: Sequence[Any], heard: Sequence[Any]) -> str:
    for place, (new, old) in enumerate(zip(answers, heard, strict=True)):
        if new != old:
            return f"message {place}: {new} after {old}"
    return ""


def _check_failures(failures: Mapping[str, int], findings: Findings) -> None:
    fine = all(isinstance(name, str) and count >= 0 for name, count in failures.items())
    findings.require(fine, "`failures` counts causes by name", repr(failures))


# --- messages


_ODD = ("", " ", "\x00", "\ud800", "é" * 40, "<" * 30, "</search>", "<think>", "<answer></answer>")


def _message(subject: Subject, episode: Episode, seen: str, stream: random.Random) -> str:
    """Half sensible, if the subject can say what that is; else tags around words just shown."""
    if subject.say is not None and stream.random() < 0.5:
        return subject.say(episode, stream)
    return random_message(subject.environment.actions, words(seen), stream, subject.protocol)


def random_message(
    actions: Sequence[str], known: Sequence[str], stream: random.Random, protocol: Protocol = "tags"
) -> str:
    """A message that is an action in two cases of three, and nonsense of some kind otherwise.

    known: words that arguments are made of.
    """
    plain = [word for word in known if not word.startswith("<")] or ["word"]
    argument = " ".join(stream.choices(plain, k=stream.randint(1, 4)))
    name = stream.choice(actions)
    action = _written(name, argument, protocol)
    kind = stream.randrange(9)
    if kind < 5:
        return action
    if kind == 5:
        return f"<think> {argument} </think> {action}"
    return stream.choice(tuple(_nonsense(action, name, argument, stream)))


def _written(name: str, argument: str, protocol: Protocol) -> str:
    if protocol == "json":
        return f'<tool_call>{{"name": "{name}", "arguments": {{"text": "{argument}"}}}}</tool_call>'
    return f"<{name}> {argument} </{name}>"


def _nonsense(action: str, name: str, argument: str, stream: random.Random) -> Iterator[str]:
    """What no environment may stumble over."""
    odd = stream.choice(_ODD)
    yield odd
    yield argument
    yield action[: stream.randrange(len(action))]
    yield f"{action} {odd}"
    yield f"<{name}> {odd} {argument} {action}"
    yield "".join(
        chr(stream.choice((stream.randrange(128), stream.randrange(0x11000)))) for _ in name
    )
