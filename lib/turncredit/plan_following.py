"""Whether a policy follows a plan in its prompt before any training, and what that brings it.

Apart from `experiment`, so that what is played beside the runs makes none stale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from turncredit.code_version import code_hash
from turncredit.expert_actions import expert_log
from turncredit.params import require_positive
from turncredit.plans import Experiment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import roll_out
from turncredit.rollout.actguide import Guided
from turncredit.tasks import Task, open_task
from turncredit.warm_starts import warm_started_policy


@dataclass(frozen=True)
class FollowingSettings:
    """How much is played with plans in the prompts, and by whom besides."""

    questions: int
    """Held-out ones; each is played by as many trajectories as a training group has."""
    unshown: tuple[str, ...]
    """Tasks beside those of the experiment, whose demonstrations show no plan."""

    def __post_init__(self) -> None:
        require_positive(self, "questions")


def following_rows(experiment: Experiment, settings: FollowingSettings) -> list[dict[str, Any]]:
    """The rows of `follow` for every warm start of the experiment's tasks.

    Of the tasks that are `unshown` the first warm start alone is played.  Columns: task, shown (1
    or 0), seed (of the warm start), and those of `follow`.
    """
    seeds = experiment.warm_start_seeds
    asked = [(task, 1, seed) for task in experiment.tasks for seed in seeds]
    asked += [(task, 0, seeds[0]) for task in settings.unshown]
    rows = []
    for name, shown, seed in asked:
        task = open_task(experiment.tier, name)
        policy = warm_started_policy(task, seed, code_hash(), lambda step, loss: None)
        place = {"task": name, "shown": shown, "seed": seed}
        rows += [place | row for row in follow(task, policy, settings.questions)]
    return rows


def follow(task: Task, policy: Policy, questions: int) -> list[dict[str, float]]:
    """Play held-out questions with the first 0, 1, ... actions of an expert in the prompt.

    Questions that the expert has no plan for are left out.  Columns: actions; trajectories;
    success, of them; failed_groups: questions all of whose trajectories failed / questions;
    planned_calls: of all actions of a plan, told or not, those that a trajectory did, mean.
    No rows if there is no plan at all.
    """
    asked = task.world.evaluation_questions(questions)
    plans = {q.id: expert_log(task.environment, q, seed=0).actions for q in asked}
    asked = [question for question in asked if plans[question.id]]
    training, size = task.settings.training, task.settings.training.group_size
    rows = []
    for told in range(max(map(len, plans.values())) + 1 if asked else 0):
        texts = {name: " ".join(plan[:told]) for name, plan in plans.items()}
        played = roll_out(
            policy,
            task.vocabulary,
            Guided(task.environment, texts),
            [question for question in asked for _ in range(size)],
            seed=0,
            step=-3,  # neither training nor an evaluation draws its random numbers
            max_turn_tokens=training.max_turn_tokens,
            temperature=task.settings.evaluation.temperature,
        )
        rows.append({"actions": told} | _numbers(played, plans, task.vocabulary))
    return rows


def _numbers(
    played: Sequence[Trajectory], plans: Mapping[str, Sequence[str]], vocabulary: Tokens
) -> dict[str, float]:
    succeeded: dict[str, bool] = {}
    for trajectory in played:
        name = trajectory.question_id
        succeeded[name] = succeeded.get(name, False) or trajectory.success
    return {
        "trajectories": len(played),
        "success": fmean(trajectory.success for trajectory in played),
        "failed_groups": fmean(not any_success for any_success in succeeded.values()),
        "planned_calls": fmean(_done(t, plans[t.question_id], vocabulary) for t in played),
    }


def _done(trajectory: Trajectory, plan: Sequence[str], vocabulary: Tokens) -> float:
    """Share of the actions of a plan that stand among a trajectory's messages."""
    said = {vocabulary.decode(turn.sampled_ids).strip() for turn in trajectory.turns}
    return fmean(action in said for action in plan)
