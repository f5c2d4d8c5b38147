"""Rollout strategies by name: how the trajectories of a question come about.

`STRATEGIES[name](**options)` checks the options and returns a strategy, whose `draw` plays one
group for each question.  A strategy of one's own enters with `@STRATEGIES.add`.  Every random
choice is a function of (seed, step) and of the place in the step, so a resumed run draws the same.
"""

from dataclasses import dataclass

import torch

from turncredit.expert_actions import SCRIPTED, read_log
from turncredit.methods import Methods
from turncredit.option_ranges import check_choice, check_range
from turncredit.rollout import roll_out
from turncredit.rollout.actguide import ActGuide
from turncredit.rollout.branching import ROUNDINGS, BranchRule, global_samples
from turncredit.rollout.cleaner import Cleaner
from turncredit.rollout.forks import Fork
from turncredit.rollout.protocol import Asked, Drawn, Strategy
from turncredit.rollout.waves import Play

STRATEGIES = Methods("rollout strategy")


@dataclass(frozen=True)
class Independent:
    """Every trajectory begins at the prompt and shares nothing."""

    def draw(self, asked: Asked) -> Drawn:
        """See `Strategy`; trajectories and random numbers are those of `roll_out`."""
        return Drawn(asked.groups(roll_out(*asked[:3], asked.rows, **asked.setting)), {}, [])


@dataclass(frozen=True)
class Branching:
    """Some trajectories begin at the prompt; the others leave one of those after a tool result.

    Branches that the budget held and nobody made are replaced by trajectories from the prompt.
    """

    rule: BranchRule
    initial: float | None
    """Share of the trajectories that begin at the prompt; None: by entropies of a trial."""
    beta: float = 0.5
    rounding: str = "nearest"

    @torch.inference_mode()
    def draw(self, asked: Asked) -> Drawn:
        """See `Strategy`.  Needs a policy that decodes in lock-step: ValueError for an engine."""
        if hasattr(asked.policy, "engine"):
            raise ValueError(
                f"policy.kind = {asked.policy.settings.KIND!r} samples by an engine, whose caches "
                "no branch can leave: take another policy, or rollout: independent"
            )
        if not asked.temperature > 0:
            raise ValueError(f"temperature = {asked.temperature} must be above 0")
        size, play = asked.group_size, Play(asked, self.rule)
        initial = self._initial(play)
        play.budget = [size - count for count in initial]
        play.roots([count - len(begun) for count, begun in zip(initial, play.begun, strict=True)])
        planned = sum(map(len, play.begun)) - len(play.forks)
        play.budget = [0 for _ in initial]
        play.roots(list(map(len, play.unused)))
        return Drawn(play.trajectories(), _counts(play, planned), play.forks)

    def _initial(self, play: Play) -> list[int]:
        """How many trajectories of each question begin at its prompt before any refill."""
        size, questions = play.asked.group_size, len(play.asked.questions)
        if self.initial is not None:
            return [min(max(round(self.initial * size), 1), size)] * questions
        play.roots([1] * questions)  # the trial is the group's first trajectory
        samples = []
        for (trial,) in play.begun:
            row = trial.row
            turns = [n for n, turn in enumerate(row.turns) if turn.sampled_ids]
            root, *tools = [play.opening(row, turn) for turn in turns]
            samples.append(
                global_samples(size, root, tools, beta=self.beta, rounding=self.rounding)
            )
        return samples


def _counts(play: Play, planned: int) -> dict[str, float]:
    branches = len(play.forks)
    began = sum(map(len, play.begun))
    return {
        "rollout_trajectories": began,
        "rollout_roots": planned,
        "rollout_branches": branches,
        "rollout_refills": began - planned - branches,
        "rollout_branches_of_three": _of_the_busiest(play.forks, 3),
        "rollout_tokens": play.tokens_read,
        "rollout_tokens_needed": play.tokens_needed,
        "rollout_tool_calls": play.tool_calls,
    }


def _of_the_busiest(forks: list[Fork], trajectories: int) -> int:
    """Branches that left the so many trajectories of their question that branched most."""
    made: dict[int, dict[int, int]] = {}
    for branch in forks:
        of_question = made.setdefault(branch.question, {})
        of_question[branch.parent] = of_question.get(branch.parent, 0) + 1
    return sum(sum(sorted(counts.values())[-trajectories:]) for counts in made.values())


@STRATEGIES.add
def independent() -> Strategy:
    """Every trajectory from its prompt, as `roll_out` plays them."""
    return Independent()


@STRATEGIES.add
def arpo(
    *,
    initial: float = 0.5,
    alpha: float = 0.5,
    beta: float = 0.2,
    tau: float = 0.5,
    branches: int = 1,
    k: int = 20,
    rule: str = "threshold",
    form: str = "mean",
    measured: str = "next",
) -> Strategy:
    """ARPO (arXiv 2507.19849): a fixed share of global samples, and branches where entropy rose.

    `initial` of the group begin at the prompt.  After a tool result the entropy of the next k
    tokens is compared with that of the trajectory's first k; `branches` more trajectories leave
    there if alpha + beta * change > tau, as long as the group holds more.  The defaults are those
    of the public code (half of 16, one branch at a time, 20 tokens, probability 0.5, weight 0.2),
    with which any rise branches; the paper's values are not known to this project.  For the code's
    way of deciding take rule="random", form="sum" and measured="last" (see `BranchRule`), beside
    which its entropies leave out all but the ten likeliest tokens.
    """
    check_range("arpo", "part", initial=initial)
    parts = {"k": k, "rule": rule, "form": form, "measured": measured, "branches": branches}
    return Branching(
        BranchRule(alpha=alpha, weight=beta, tau=tau, slope=0.0, counter="chain", **parts), initial
    )


@STRATEGIES.add
def aepo(
    *,
    beta: float = 0.5,
    rounding: str = "nearest",
    alpha: float = 0.5,
    gamma: float = 0.2,
    slope: float | None = 0.05,
    counter: str = "chain",
    tau: float = 0.5,
    branches: int = 1,
    k: int = 20,
    rule: str = "threshold",
    form: str = "mean",
    measured: str = "next",
) -> Strategy:
    """AEPO (arXiv 2510.14545): the share of global samples by entropy, and a branch penalty.

    A trial trajectory, the first of its group, gives the entropies at the root and after tool
    results; `global_samples` of them with `beta` begin at the prompt.  Branches as in `arpo` with
    score (alpha + gamma * change) * (1 - slope * l), l the branches in a row before.  slope: 0.05
    (the public code), or None for gamma, as notes on the paper print it with one symbol; which is
    meant is not known.  counter: of each "chain", or of the "question", never reset (the code).
    The trial itself does not branch.
    """
    check_range("aepo", "number", beta=beta)
    check_choice("aepo", "rounding", rounding, ROUNDINGS)
    slope = gamma if slope is None else slope
    parts = {"k": k, "rule": rule, "form": form, "measured": measured, "branches": branches}
    return Branching(
        BranchRule(alpha=alpha, weight=gamma, tau=tau, slope=slope, counter=counter, **parts),
        None,
        beta,
        rounding,
    )


@STRATEGIES.add
def cleaner(
    *,
    similarity: float = 0.5,
    max_retries: int = 3,
    probability: float = 1.0,
    max_calls: int = 30,
    hint: str = "",
) -> Strategy:
    """CLEANER (arXiv 2601.15141): failed tool calls are tried again and replaced; see `Cleaner`.

    The defaults are the public code's, which gives no text for its hint.
    """
    return Cleaner(similarity, max_retries, probability, max_calls, hint)


@STRATEGIES.add
def actguide(
    *,
    log: str = SCRIPTED,
    threshold: float = 0.0,
    max_probe_steps: int = 5,
    probe_rollouts: int = 2,
    adaptive: bool = True,
    frame: str = "{actions}",
) -> Strategy:
    """ActGuide-RL (arXiv 2605.12004): a failed group again, with the start of an expert's plan.

    `log`: the name of an action log, whose questions alone are guided, or "scripted": an expert
    that plays each question when it is asked for.  `frame`: what stands around {actions} in the
    prompt; a tiny policy knows the words of its environment alone.  The rest: see `ActGuide`, with
    the defaults of the public code.
    """
    logs = None if log == SCRIPTED else read_log(log)
    return ActGuide(logs, threshold, max_probe_steps, probe_rollouts, adaptive, frame)
