"""Plans in the prompts of demonstrations, from which a policy learns to follow one.

A language model has learnt to follow instructions before it is trained by ActGuide-RL; a policy
from scratch has not, unless its demonstrations show it.
"""

from collections.abc import Sequence

from turncredit.environments.protocol import Environment
from turncredit.expert_actions import expert_log
from turncredit.rollout.actguide import Guided
from turncredit.seeding import python_stream
from turncredit.worlds.base import Question


def plans_shown(
    environment: Environment, questions: Sequence[Question], share: float, seed: int, step: int
) -> list[tuple[str, ...]]:
    """For each question the first actions of an expert, with probability `share`, or ().

    Any number of them, from one to all, is as likely.  Random numbers are from streams of their
    own, so that with a share of 0 demonstrations are what they would be without all this.
    """
    return [
        _first_actions(environment, question, share, seed, step, number)
        for number, question in enumerate(questions)
    ]


def _first_actions(
    environment: Environment, question: Question, share: float, seed: int, step: int, number: int
) -> tuple[str, ...]:
    stream = python_stream(seed, "plan shown", step, number)
    if stream.random() >= share:
        return ()
    actions = expert_log(environment, question, seed).actions
    return actions[: stream.randint(1, len(actions))] if actions else ()


def with_plan(environment: Environment, question: Question, plan: Sequence[str]) -> Environment:
    """The environment with a plan behind the prompt of a question, or as it is without one."""
    return Guided(environment, {question.id: " ".join(plan)}) if plan else environment
