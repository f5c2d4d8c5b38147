"""ActGuide-RL: a group that fails is rolled out again with the start of a plan in its prompt.

Source: ActGuide-RL (arXiv 2605.12004) and its public code.  The plan is what an expert did; it is a
reference in the prompt, not a prefix that is forced.  Of it the policy gets the fewest actions with
which it succeeds, found by a binary search that believes more actions never hurt.

Deviations from the public code: a plan that would leave no room for a turn is shortened; a group
without a known reward counts as unknown, not as failed; groups of one question share a search.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turncredit.environments.protocol import Environment, Episode
from turncredit.expert_actions import ActionLog, expert_log
from turncredit.option_ranges import check_range
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.protocol import Asked, Drawn
from turncredit.seeding import derive, python_stream
from turncredit.worlds.base import Question

NO_CALLS = ("answer", "invalid", "unfinished")
"""Actions of turns that called no tool."""


@dataclass(frozen=True)
class ActGuide:
    """When a group has failed, and how its guidance is searched.

    A group has failed if its best known reward is not above `threshold`.  The search plays
    `probe_rollouts` trajectories with half of the actions in question, at most `max_probe_steps`
    times, and takes a number of actions for enough once one of them succeeds; without `adaptive`
    all actions are given.
    """

    logs: Mapping[str, ActionLog] | None
    """What an expert did, by question; None: it plays each question when it is asked for."""
    threshold: float
    max_probe_steps: int
    probe_rollouts: int
    adaptive: bool
    frame: str
    """What the prompt says around {actions}."""

    def __post_init__(self) -> None:
        check_range("actguide", "number", threshold=self.threshold)
        counts = {name: getattr(self, name) for name in ("max_probe_steps", "probe_rollouts")}
        check_range("actguide", "count", **counts)
        check_range("actguide", "flag", adaptive=self.adaptive)
        if not isinstance(self.frame, str) or self.frame.count("{actions}") != 1:
            raise ValueError(f"actguide: frame is {self.frame!r}; it must hold {{actions}} once")

    def draw(self, asked: Asked) -> Drawn:
        """See `Strategy`: the trajectories of a failed group are replaced by guided ones.

        All others are those of `roll_out`, bit for bit.  A guided trajectory has the prompt without
        the plan, under which it is trained, and `behaviour_prompt_ids`, under which it was sampled.
        """
        rollouts = Rollouts(asked, self.frame)
        groups = asked.groups(rollouts.play())
        hard = [n for n, group in enumerate(groups) if has_failed(group, self.threshold)]
        known = {asked.questions[number].id: asked.questions[number] for number in hard}
        plans = {name: rollouts.fitting(q, self._actions(asked, q)) for name, q in known.items()}
        unguided = len(rollouts.played)
        given = self._given(rollouts, known, plans)
        probes = len(rollouts.played) - unguided
        _replace(groups, hard, rollouts, given)
        counts = {
            "hard_groups": len(hard),
            "rescued_groups": sum(
                succeeds(groups[number], self.threshold)
                for number in hard
                if given[asked.questions[number].id]
            ),
            "guidance_actions": sum(len(given[asked.questions[number].id]) for number in hard),
            "probe_trajectories": probes,
        }
        return Drawn(groups, counts | _bill(groups, rollouts.played), [])

    def _actions(self, asked: Asked, question: Question) -> Sequence[str]:
        """What an expert did on the question, message by message; () where nothing is known."""
        if self.logs is None:
            return expert_log(asked.environment, question, asked.seed).actions
        return self.logs[question.id].actions if question.id in self.logs else ()

    def _given(
        self,
        rollouts: "Rollouts",
        known: Mapping[str, Question],
        plans: Mapping[str, Sequence[str]],
    ) -> dict[str, Sequence[str]]:
        """The start of each plan that its prompts get."""

        def solved(numbers: Mapping[str, int]) -> set[str]:
            rows = [known[name] for name in numbers for _ in range(self.probe_rollouts)]
            tried = {name: plans[name][:number] for name, number in numbers.items()}
            probes = rollouts.guided(rows, tried, f"probe {len(rollouts.played)}")
            return {probe.question_id for probe in probes if succeeds([probe], self.threshold)}

        chosen = {name: len(plan) for name, plan in plans.items()}
        if self.adaptive:
            chosen = smallest_guidance(chosen, solved, max_probe_steps=self.max_probe_steps)
        return {name: plans[name][:number] for name, number in chosen.items()}


@dataclass(frozen=True)
class Rollouts:
    """Plays trajectories, with plans where asked for, and keeps all of them for the bill."""

    asked: Asked
    frame: str
    played: list[Trajectory] = field(default_factory=list)

    def play(self) -> list[Trajectory]:
        """What `roll_out` would give, bit for bit."""
        return self._kept(self.asked.environment, self.asked.rows, self.asked.setting)

    def guided(
        self, questions: Sequence[Question], plans: Mapping[str, Sequence[str]], purpose: str
    ) -> list[Trajectory]:
        """The same with a plan for each question, from a stream of its own for each purpose."""
        texts = {name: self._text(actions) for name, actions in plans.items()}
        setting = self.asked.setting | {"seed": derive(self.asked.seed, f"actguide {purpose}")}
        return self._kept(Guided(self.asked.environment, texts), questions, setting)

    def fitting(self, question: Question, actions: Sequence[str]) -> tuple[str, ...]:
        """As many of the first actions as leave room for a turn behind the prompt."""
        asked, actions = self.asked, tuple(actions)
        stream = python_stream(asked.seed, "actguide prompt", question.id)
        prompt = asked.environment.reset(question, stream).prompt
        room = asked.policy.settings.max_tokens - asked.max_turn_tokens
        while actions:
            if len(asked.vocabulary.encode_prompt(f"{prompt} {self._text(actions)}")) <= room:
                break
            actions = actions[:-1]
        return actions

    def _text(self, actions: Sequence[str]) -> str:
        return self.frame.replace("{actions}", " ".join(actions)) if actions else ""

    def _kept(
        self, environment: Environment, questions: Sequence[Question], setting: Mapping[str, Any]
    ) -> list[Trajectory]:
        if not questions:
            return []
        policy, vocabulary, *_ = self.asked
        found = roll_out(policy, vocabulary, environment, questions, **setting)
        self.played.extend(found)
        return found


def _replace(
    groups: list[list[Trajectory]],
    hard: Sequence[int],
    rollouts: Rollouts,
    given: Mapping[str, Sequence[str]],
) -> None:
    """Put guided trajectories in the place of the groups `hard`, all of them at once."""
    if not hard:
        return
    asked = rollouts.asked
    rows = [asked.questions[number] for number in hard for _ in range(asked.group_size)]
    again = asked.groups(rollouts.guided(rows, given, "groups"))
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
    """What was sampled in all, kept or not, and how much of what was kept is guided.

    The message that ends a trajectory is no tool call, whatever it asks for, as in other rollouts.
    """
    turns = [turn for trajectory in played for turn in trajectory.turns]
    kept = [trajectory for group in groups for trajectory in group]
    return {
        "guided_trajectories": sum(t.behaviour_prompt_ids is not None for t in kept),
        "rollout_trajectories": len(played),
        "rollout_sampled_tokens": sum(len(turn.sampled_ids) for turn in turns),
        "rollout_tool_calls": sum(
            turn.action not in NO_CALLS for t in played for turn in t.turns[:-1]
        ),
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


def _as_trained(trajectory: Trajectory, prompt_ids: tuple[int, ...]) -> Trajectory:
    """A guided trajectory as one of the prompt without a plan, which remembers its own prompt."""
    if trajectory.prompt_ids == prompt_ids:
        return trajectory
    sampled = trajectory.prompt_ids
    return replace(trajectory, prompt_ids=prompt_ids, behaviour_prompt_ids=sampled)
