"""Text environments with Gymnasium's `reset` and `step`, as environments of ours, and back.

Neither direction needs the library: what counts are the two methods.  The four values that older
environments return (observation, reward, done, info), such as WebShop's and many for software
engineering, are understood too.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turncredit.environments.actions import INVALID, Protocol, parse_action
from turncredit.environments.protocol import Environment, Episode, Step
from turncredit.worlds.base import Question

ENDED = "ended"
"""Stop reason of an episode that the other environment ended without success."""


def has_won(reward: float, info: Mapping[str, Any]) -> bool:
    """`info["success"]` or `info["won"]`, or else whether the last reward was at least 1.

    >>> has_won(0.0, {"won": True}), has_won(1.0, {}), has_won(1.0, {"success": False})
    (True, True, False)
    """
    for name in ("success", "won"):
        if name in info:
            return bool(info[name])
    return reward >= 1.0


@dataclass(frozen=True)
class GymEnvironment:
    """Episodes of a text environment that `make(question)` opens, one for each episode.

    The policy writes `<action> text </action>`, and the text is what `step` gets.  `offered(env,
    info)` lists admissible actions, which are then put below the observation.  The reward is the
    sum of the environment's, minus `invalid_penalty` for each malformed message, which never
    reaches it.  An exception of the environment ends the episode with stop reason `error` and
    without a reward, and is counted.
    """

    make: Callable[[Question], Any]
    max_turns: int = 50
    invalid_penalty: float = 0.0
    won: Callable[[float, Mapping[str, Any]], bool] = has_won
    offered: Callable[[Any, Mapping[str, Any]], Sequence[str]] | None = None
    instruction: str = "{observation}"
    """The prompt around the first observation; `{task}` is the question's text."""
    protocol: Protocol = "tags"
    actions: tuple[str, ...] = ("action",)
    stop_reasons: tuple[str, ...] = (ENDED,)
    counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    @property
    def failures(self) -> dict[str, int]:
        """Exceptions of the environment by method and name."""
        return dict(sorted(self.counts.items()))

    def reset(self, question: Question, stream: random.Random) -> "GymEpisode":
        """Start an episode; the environment's seed comes from `stream`."""
        return GymEpisode(self, question, stream.getrandbits(31))


class GymEpisode:
    """One episode of a text environment.

    It is saved as its seed and the texts so far and taken up again by giving them once more, which
    is exact where the environment follows its seed; where a replay shows something else, `restore`
    raises ValueError.
    """

    grounded = None

    def __init__(self, environment: GymEnvironment, question: Question, seed: int) -> None:
        self.environment, self.question = environment, question
        self._begin(seed)
        text = environment.instruction.replace("{task}", question.text)
        self.prompt = text.replace("{observation}", self._shown)

    def _begin(self, seed: int) -> None:
        self._seed, self._turns, self._invalid = seed, 0, 0
        self._said: tuple[str, ...] = ()
        self._total, self.success, self._broken = 0.0, False, False
        self._shown = ""
        self._inner: Any = None
        try:
            self._inner = self.environment.make(self.question)
            observation, info = _started(self._inner, seed)
            self._shown = self._with_offers(observation, info) or "(nothing)"
        except Exception as error:
            self._break("reset", error)

    @property
    def reward(self) -> float | None:
        """Sum of rewards minus penalties; None (missing) once the environment has failed."""
        penalty = self.environment.invalid_penalty * self._invalid
        return None if self._broken else self._total - penalty

    def step(self, message: str) -> Step:
        """Act on one message."""
        environment = self.environment
        action, text = parse_action(message, environment.actions, protocol=environment.protocol)
        self._turns += 1
        self._invalid += action == INVALID[0]
        reason = "error" if self._broken else None
        if reason is None and action != INVALID[0]:
            reason = self._act(text)
        if reason is None and self._turns >= environment.max_turns:
            reason = "max_turns"
        if reason is not None:
            self._close()
            return Step(action, "", stop_reason=reason)
        shown = "invalid action" if action == INVALID[0] else self._shown
        return Step(action, shown or "(nothing)")

    def _act(self, text: str) -> str | None:
        """Give a text to the environment; the reason if that ends the episode."""
        try:
            observation, reward, ended, cut, info = _five(self._inner.step(text))
            self._total += float(reward)
            self._shown = self._with_offers(observation, info)
        except Exception as error:
            self._break("step", error)
            return "error"
        self._said += (text,)
        if ended:
            self.success = bool(self.environment.won(float(reward), info))
            return "goal" if self.success else ENDED
        return "max_turns" if cut else None

    def _with_offers(self, observation: Any, info: Mapping[str, Any]) -> str:
        offered = self.environment.offered
        listed = list(offered(self._inner, info)) if offered else []
        return (
            f"{observation}\nAdmissible actions: [{', '.join(listed)}]"
            if listed
            else str(observation)
        )

    def _break(self, method: str, error: Exception) -> None:
        self._broken = True
        self._shown = self._shown or "(nothing)"
        self.environment.counts[f"{method}_{type(error).__name__}"] += 1

    def _close(self) -> None:
        """Once for each environment that was made; one that cannot be closed is counted."""
        close, self._inner = getattr(self._inner, "close", None), None
        if close is not None:
            try:
                close()
            except Exception as error:
                self.environment.counts[f"close_{type(error).__name__}"] += 1

    def snapshot(self) -> dict[str, Any]:
        """Seed, texts so far and counts; see `Episode`."""
        kept = ("_seed", "_said", "_turns", "_invalid", "_shown", "question", "prompt")
        return {name: getattr(self, name) for name in kept}

    def restore(self, snapshot: Mapping[str, Any], stream: random.Random | None = None) -> None:
        """Go there by a replay.  With a `stream` the past is the same: the seed fixes the rest too.

        Raises ValueError if the environment shows something else this time.
        """
        self._close()
        self.question = snapshot["question"]
        self._begin(snapshot["_seed"])
        for text in snapshot["_said"]:
            self._act(text)
        if self._shown != snapshot["_shown"]:
            raise ValueError(
                f"question {self.question.id}: the environment does not repeat itself: "
                f"{self._shown!r} after {snapshot['_shown']!r}"
            )
        for name in ("_turns", "_invalid", "prompt"):
            setattr(self, name, snapshot[name])


def _started(inner: Any, seed: int) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info of a new episode; older environments return the first alone."""
    try:
        result = inner.reset(seed=seed)
    except TypeError:  # no such keyword
        result = inner.reset()
    return result if type(result) is tuple else (result, {})


def _five(result: Sequence[Any]) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    if len(result) == 5:
        return tuple(result)
    observation, reward, done, info = result
    cut = bool(info.get("TimeLimit.truncated", False))
    return observation, reward, bool(done) and not cut, cut, info


class TextGym:
    """An environment of ours with Gymnasium's methods; a message goes in as the action.

    Make a subclass of `gymnasium.Env` of it by `class Env(TextGym, gymnasium.Env)` and give it the
    spaces that your loop wants.  Rewards are the differences of the episode's, so that their sum is
    the outcome; a missing one is NaN, which is not 0.
    """

    def __init__(self, environment: Environment, questions: Sequence[Question]) -> None:
        if not questions:
            raise ValueError("questions is empty: there is nothing to play")
        self.environment, self.questions = environment, list(questions)
        self.episode: Episode | None = None
        self._paid = 0.0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """The prompt of a question: number `options["question"]`, else one drawn by the seed."""
        stream = random.Random(seed)
        number = (options or {}).get("question")
        question = self.questions[number] if number is not None else stream.choice(self.questions)
        self.episode = self.environment.reset(question, stream)
        self._paid = 0.0
        return self.episode.prompt, {"question_id": question.id}

    def step(self, message: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated (by `max_turns`) and what else is known."""
        if self.episode is None:
            raise RuntimeError("reset comes before step")
        step = self.episode.step(message)
        total = self.episode.reward
        reward = float("nan") if total is None else total - self._paid
        self._paid = self._paid if total is None else total
        cut = step.stop_reason == "max_turns"
        info = {"action": step.action, "stop_reason": step.stop_reason}
        info |= {"success": self.episode.success, "grounded": self.episode.grounded}
        return step.observation, reward, step.stop_reason is not None and not cut, cut, info

    def close(self) -> None:
        """Forget the episode."""
        self.episode = None
