"""Fixed evaluation: the same held-out questions and random numbers for every policy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from turncredit.answers import normalise_answer
from turncredit.environments.protocol import Environment
from turncredit.params import require_positive
from turncredit.policies.protocol import Policy, Tokens
from turncredit.records import Trajectory
from turncredit.rollout import without_lost
from turncredit.rollout.protocol import Asked, Strategy
from turncredit.rollout.strategies import STRATEGIES
from turncredit.signals import outcome_shares
from turncredit.storage import sha256_json
from turncredit.worlds.base import Question
from turncredit.worlds.difficulty import DIFFICULTIES, difficulty_bins


@dataclass(frozen=True)
class EvaluationSettings:
    """Size and sampling of an evaluation."""

    questions: int
    temperature: float
    every: int
    """Training steps between evaluations; the first comes before, the last after training."""

    def __post_init__(self) -> None:
        require_positive(self, "questions", "temperature", "every")


def evaluation_set_hash(questions: Sequence[Question]) -> str:
    """SHA-256 of ids, texts and normalised answers, in order."""
    return sha256_json(
        [[q.id, q.text, sorted(map(normalise_answer, q.answers))] for q in questions]
    )


def evaluate(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    *,
    max_turn_tokens: int,
    temperature: float,
    strategy: Strategy | None = None,
) -> list[Trajectory]:
    """One sampled trajectory per question; equal policies give equal trajectories.

    strategy: of `STRATEGIES`; None, as in every run: the policy alone, however it was trained.
    With `cleaner` tools are tried again at test time too, which is another quantity.
    """
    strategy = strategy or STRATEGIES["independent"]()
    setting = {"group_size": 1, "seed": 0, "step": -1, "max_turn_tokens": max_turn_tokens}
    parts = (policy, vocabulary, environment, questions)
    groups = strategy.draw(Asked(*parts, **setting, temperature=temperature)).groups
    return [trajectory for (trajectory,) in groups]


def evaluation_rows(
    questions: Sequence[Question], trajectories: Sequence[Trajectory]
) -> list[dict]:
    """One row over all questions (hops = "all"), then one per number of hops.

    `exact_match`, over the trajectories with a reward, comes with its binomial standard error.
    Those that an error ended (`lost`) are in no share; a share over no trajectory is NaN.
    """
    pairs = list(zip(questions, trajectories, strict=True))
    return [
        _row(hops, [t for q, t in pairs if hops in ("all", str(len(q.hops)))])
        for hops in hops_rows(questions)
    ]


def hops_rows(questions: Sequence[Question]) -> list[str]:
    """The column `hops` of one evaluation's rows: "all", then each number if there are several.

    >>> one, two = (Question("q", "?", ("a",), (None,) * n, "kind", "guess") for n in (1, 2))
    >>> hops_rows([two, one, two]), hops_rows([one])
    (['all', '1', '2'], ['all'])
    """
    numbers = sorted({len(question.hops) for question in questions})
    return ["all", *map(str, numbers if len(numbers) > 1 else ())]


def question_rows(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[dict]:
    """One row per question: its id, its difficulty bins and how its trajectory ended.

    Missing (None) are reward and success of a question without usable answer and of a trajectory
    that an error ended, and `grounded` where a world cannot tell.
    """
    return [
        {"question_id": question.id, **difficulty_bins(question)}
        | {"success": None if t.reward is None else t.success}
        | {"reward": t.reward, "grounded": t.grounded}
        | {"turns": len(t.turns), "stop_reason": t.stop_reason}
        for question, t in zip(questions, trajectories, strict=True)
    ]


def _row(hops: str, trajectories: Sequence[Trajectory]) -> dict:
    counts, whole = _success(trajectories), without_lost(trajectories)
    exact = counts.pop("success")
    known = counts["questions"] - counts["missing_rewards"]
    lengths = [len(trajectory.turns) for trajectory in whole]
    return {
        "hops": hops,
        **counts,
        "lost": len(trajectories) - len(whole),
        "exact_match": exact,
        "standard_error": math.sqrt(exact * (1 - exact) / max(known, 1)),
        **_shares(trajectories),
        "turns_sd": stdev(lengths) if len(lengths) > 1 else math.nan,
    }


def difficulty_rows(
    questions: Sequence[Question], trajectories: Sequence[Trajectory]
) -> list[dict]:
    """How often the questions of each difficulty were answered: one row per factor and bin.

    `success` is over the trajectories with a reward, NaN if none has one; factors in the order of
    `DIFFICULTIES`, bins in that of the questions.
    """
    bins: dict[tuple[str, str], list[Trajectory]] = {}
    for question, trajectory in zip(questions, trajectories, strict=True):
        for factor_and_bin in difficulty_bins(question).items():
            bins.setdefault(factor_and_bin, []).append(trajectory)
    rows = []
    for factor in DIFFICULTIES:
        for (name, found), members in bins.items():
            if name == factor:
                rows.append({"factor": factor, "bin": found} | _success(members))
    return rows


def _success(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    known = [trajectory.success for trajectory in trajectories if trajectory.reward is not None]
    return {
        "questions": len(trajectories),
        "missing_rewards": len(trajectories) - len(known),
        "success": fmean(known) if known else math.nan,
    }


def _shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`outcome_shares` of those that no error ended; all NaN if there are none."""
    whole = without_lost(trajectories)
    if whole:
        return outcome_shares(whole)
    return dict.fromkeys(outcome_shares(trajectories), math.nan)
