"""ActGuide-RL: a group that fails is rolled out again with the start of a plan in its prompt.

Source: ActGuide-RL (arXiv 2605.12004) and its public code.  The plan is what an expert did; it is a
reference in the prompt, not a prefix that is forced.  Of it the policy gets the fewest actions with
which it succeeds, found by a binary search that believes more actions never hurt.

Deviations from the public code: a plan that would leave no room for a turn is shortened; a group
without a known reward counts as unknown, not as failed; groups of one question share a search.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from turncredit.environments.protocol import Environment, Episode
from turncredit.option_ranges import check_range
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.seeding import derive, python_stream
from turncredit.worlds.base import Question

NO_CALLS = ("answer", "invalid", "unfinished")
"""Actions of turns that called no tool."""


class Rolled(NamedTuple):
    """The groups of a step and what they cost."""

    groups: list[list[Trajectory]]
    counts: dict[str, float]
    """Sums, so that those of several rounds can be added up."""


@dataclass(frozen=True)
class Rollouts:
    """Plays trajectories, with plans where asked for, and keeps all of them for the bill."""

    policy: Policy
    vocabulary: Tokens
    environment: Environment
    asked: Mapping[str, Any]
    """seed, step and max_turn_tokens, as `roll_out` takes them."""
    frame: str
    """What the prompt says around {actions}."""
    played: list[Trajectory] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.frame, str) or self.frame.count("{actions}") != 1:
            raise ValueError(f"actguide: frame is {self.frame!r}; it must hold {{actions}} once")

    def play(self, questions: Sequence[Question]) -> list[Trajectory]:
        """What `roll_out` would give, bit for bit."""
        return self._kept(self.environment, questions, self.asked)

    def guided(
        self, questions: Sequence[Question], plans: Mapping[str, Sequence[str]], purpose: str
    ) -> list[Trajectory]:
        """The same with a plan for each question, from a stream of its own for each purpose."""
        texts = {name: self._text(actions) for name, actions in plans.items()}
        asked = {**self.asked, "seed": derive(self.asked["seed"], f"actguide {purpose}")}
        return self._kept(Guided(self.environment, texts), questions, asked)

    def fitting(self, question: Question, actions: Sequence[str]) -> tuple[str, ...]:
        """As many of the first actions as leave room for a turn behind the prompt."""
        stream = python_stream(self.asked["seed"], "actguide prompt", question.id)
        prompt = self.environment.reset(question, stream).prompt
        room = self.policy.settings.max_tokens - self.asked["max_turn_tokens"]
        actions = tuple(actions)
        while actions:
            if len(self.vocabulary.encode_prompt(f"{prompt} {self._text(actions)}")) <= room:
                break
            actions = actions[:-1]
        return actions

    def _text(self, actions: Sequence[str]) -> str:
        return self.frame.replace("{actions}", " ".join(actions)) if actions else ""

    def _kept(
        self, environment: Environment, questions: Sequence[Question], asked: Mapping[str, Any]
    ) -> list[Trajectory]:
        if not questions:
            return []
        found = roll_out(self.policy, self.vocabulary, environment, questions, **asked)
        self.played.extend(found)
        return found


def roll_out_guided(
    rollouts: Rollouts,
    questions: Sequence[Question],
    actions_of: Callable[[Question], Sequence[str]],
    *,
    group_size: int,
    threshold: float = 0.0,
    max_probe_steps: int = 5,
    probe_rollouts: int = 2,
    adaptive: bool = True,
) -> Rolled:
    """`group_size` trajectories of each question; those of a failed group are replaced by guided.

    A group has failed if its best known reward is not above `threshold`.  `actions_of` gives what
    an expert did on its question, message by message, () where nothing is known.  The search plays
    `probe_rollouts` trajectories with half of the actions in question, at most `max_probe_steps`
    times, and takes a number of actions for enough once one of them succeeds; without `adaptive`
    all actions are given.  The defaults are those of the public code.

    The unguided rollouts are those of `roll_out` with the same seed, bit for bit.  A guided
    trajectory has the prompt without the plan, under which it is trained, and
    `behaviour_prompt_ids`, under which it was sampled.
    """
    check_range("actguide", "number", threshold=threshold)
    check_range("actguide", "count", max_probe_steps=max_probe_steps, probe_rollouts=probe_rollouts)
    check_range("actguide", "flag", adaptive=adaptive)
    first = rollouts.play([question for question in questions for _ in range(group_size)])
    groups = _chunks(first, group_size)
    hard = [number for number, group in enumerate(groups) if has_failed(group, threshold)]
    known = {questions[number].id: questions[number] for number in hard}
    plans = {name: rollouts.fitting(q, actions_of(q)) for name, q in known.items()}

    def solved(numbers: Mapping[str, int]) -> set[str]:
        rows = [known[name] for name in numbers for _ in range(probe_rollouts)]
        tried = {name: plans[name][:number] for name, number in numbers.items()}
        probes = rollouts.guided(rows, tried, f"probe {len(rollouts.played)}")
        return {probe.question_id for probe in probes if succeeds([probe], threshold)}

    chosen = {name: len(plan) for name, plan in plans.items()}
    if adaptive:
        chosen = smallest_guidance(chosen, solved, max_probe_steps=max_probe_steps)
    given = {name: plans[name][:number] for name, number in chosen.items()}
    probes = len(rollouts.played) - len(first)
    _replace(groups, hard, rollouts, questions, given)
    counts = {
        "hard_groups": len(hard),
        "rescued_groups": sum(succeeds(groups[number], threshold) for number in hard),
        "guidance_actions": sum(len(given[questions[number].id]) for number in hard),
        "probe_trajectories": probes,
    }
    return Rolled(groups, counts | _bill(groups, rollouts.played))


def _replace(
    groups: list[list[Trajectory]],
    hard: Sequence[int],
    rollouts: Rollouts,
    questions: Sequence[Question],
    given: Mapping[str, Sequence[str]],
) -> None:
    """Put guided trajectories in the place of the groups `hard`, all of them at once."""
    if not hard:
        return
    size = len(groups[0])
    rows = [questions[number] for number in hard for _ in range(size)]
    again = _chunks(rollouts.guided(rows, given, "groups"), size)
    for number, group in zip(hard, again, strict=True):
        prompt = groups[number][0].prompt_ids
        groups[number] = [_as_trained(trajectory, prompt) for trajectory in group]


def smallest_guidance(
    lengths: Mapping[str, int],
    solved: Callable[[Mapping[str, int]], Collection[str]],
    *,
    max_probe_steps: int = 5,
) -> dict[str, int]:
    """For each name the smallest number of actions, 0 .. length, with which it is solved.

    A binary search for all names at once: `solved` gets how many to try for each name that is still
    open, and returns the names that succeeded.  After `max_probe_steps` the lower bound is taken,
    whether it was tried or not; who never succeeds gets all actions, who has none gets none.

    >>> tried = []
    >>> def solved(numbers):
    ...     tried.append(numbers["a"])
    ...     return {"a"} if numbers["a"] >= 3 else set()
    >>> smallest_guidance({"a": 5}, solved), tried
    ({'a': 3}, [2, 4, 3])
    """
    low, high = dict.fromkeys(lengths, 0), dict(lengths)
    for _ in range(max_probe_steps):
        middle = {name: (low[name] + high[name]) // 2 for name in low if low[name] < high[name]}
        if not middle:
            break
        enough = solved(middle)
        for name, number in middle.items():
            if name in enough:
                high[name] = number
            else:
                low[name] = number + 1
    return low


def succeeds(group: Sequence[Trajectory], threshold: float) -> bool:
    """Whether a known reward of the group is above the threshold."""
    return any(t.reward is not None and t.reward > threshold for t in group)


def has_failed(group: Sequence[Trajectory], threshold: float) -> bool:
    """Whether a group has known rewards and none above the threshold."""
    known = [trajectory for trajectory in group if trajectory.reward is not None]
    return bool(known) and not succeeds(known, threshold)


def _bill(groups: list[list[Trajectory]], played: Sequence[Trajectory]) -> dict[str, float]:
    """What was sampled in all, kept or not, and how much of what was kept is guided."""
    turns = [turn for trajectory in played for turn in trajectory.turns]
    kept = [trajectory for group in groups for trajectory in group]
    return {
        "guided_trajectories": sum(t.behaviour_prompt_ids is not None for t in kept),
        "rollout_trajectories": len(played),
        "rollout_tokens": sum(len(turn.sampled_ids) for turn in turns),
        "rollout_tool_calls": sum(turn.action not in NO_CALLS for turn in turns),
    }


@dataclass(frozen=True)
class Guided:
    """An environment whose prompts end with a plan, by question; everything else is its own."""

    environment: Environment
    plans: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name == "environment":  # before it is set, as when copied
            raise AttributeError(name)
        return getattr(self.environment, name)

    def reset(self, question: Question, stream: Any) -> Episode:
        """An episode whose prompt has the plan behind it."""
        episode = self.environment.reset(question, stream)
        if self.plans[question.id]:
            episode.prompt = f"{episode.prompt} {self.plans[question.id]}"
        return episode


def _chunks(trajectories: list[Trajectory], size: int) -> list[list[Trajectory]]:
    return [trajectories[i : i + size] for i in range(0, len(trajectories), size)]


def _as_trained(trajectory: Trajectory, prompt_ids: tuple[int, ...]) -> Trajectory:
    """A guided trajectory as one of the prompt without a plan, which remembers its own prompt."""
    if trajectory.prompt_ids == prompt_ids:
        return trajectory
    sampled = trajectory.prompt_ids
    return replace(trajectory, prompt_ids=prompt_ids, behaviour_prompt_ids=sampled)
