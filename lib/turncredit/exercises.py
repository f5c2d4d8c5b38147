"""Exercises of the teaching notebooks: answers are checked by what they give, and never told.

`check("01.1", answer)` says whether the answer is right, or what it gets wrong.  An answer of `...`
is one that nobody has given yet.  Worked solutions lie in notebooks/solutions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS
from turncredit.environments.toy_tree import exact, film_policy, film_question
from turncredit.laws import LAWS
from turncredit.laws.examples import current_logprobs, make_batch
from turncredit.methods import Methods
from turncredit.objectives import OBJECTIVES
from turncredit.signals import turn_ratios

EXERCISES: dict[str, Callable[[Any], "str | None"]] = {}
"""By number: takes an answer, returns what is wrong with it, None if nothing is."""


class Feedback(NamedTuple):
    """What `check` says."""

    exercise: str
    state: str
    """ "open", "right" or "not yet"."""
    hint: str = ""

    def __repr__(self) -> str:
        said = {"open": "put your answer in the place of ..."}.get(self.state, self.hint)
        return f"{self.exercise}: {self.state}" + (f" ({said})" if said else "")


def check(exercise: str, answer: Any = ...) -> Feedback:
    """Say whether an answer is right; ValueError for an exercise that does not exist.

    What the answer raises when it is called is told, and is no error of the caller's.

    >>> check("00.1", ...), check("00.1", 0.0)
    (00.1: open (put your answer in the place of ...), 00.1: not yet (that is not the number))
    """
    if exercise not in EXERCISES:
        raise ValueError(f"no exercise {exercise!r}; there are: {', '.join(EXERCISES)}")
    if answer is ...:
        return Feedback(exercise, "open")
    try:
        hint = EXERCISES[exercise](answer)
    except Exception as error:  # an answer may raise anything
        return Feedback(exercise, "not yet", f"{type(error).__name__}: {error}")
    return Feedback(exercise, "not yet", hint) if hint else Feedback(exercise, "right")


def _exercise(number: str) -> Callable[[Callable], Callable]:
    def enter(judge: Callable[[Any], "str | None"]) -> Callable:
        EXERCISES[number] = judge
        return judge

    return enter


def _number(answer: Any, expected: float, hint: str = "that is not the number") -> str | None:
    return None if math.isclose(float(answer), expected, rel_tol=1e-3, abs_tol=1e-4) else hint


def _numbers(answer: Any, expected: Sequence[float] | Tensor, what: str) -> str | None:
    """Compare lists or tensors; the hint names the first place that differs and not its value."""
    wanted = torch.as_tensor(expected, dtype=torch.float64).flatten()
    given = torch.as_tensor(answer, dtype=torch.float64).flatten()
    if given.shape != wanted.shape:
        return f"{what}: {len(given)} numbers, not {len(wanted)}"
    differ = ~torch.isclose(given, wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
    if not differ.any():
        return None
    return f"{what}: number {int(differ.nonzero()[0])} is another one"


def _group(rewards: Sequence[float]) -> TurnBatch:
    return make_batch([[1]] * len(rewards), rewards=rewards)


def _of_rows(base: str, rewards: Sequence[float]) -> list[float]:
    """One advantage for each trajectory of one group."""
    batch = _group(rewards)
    return BASES[base](batch)[batch.response_mask].tolist()


@_exercise("00.1")
def rarer_success(answer: Any) -> str | None:
    """GRPO's advantage of one success among eight trajectories."""
    return _number(answer, _of_rows("grpo", [1.0] + [0.0] * 7)[0])


@_exercise("00.2")
def leave_one_out(answer: Any) -> str | None:
    """entropies, c -> weights: the gate compares a turn with the mean of the *other* turns."""
    for entropies in ([0.9, 0.1], [0.1, 0.9, 0.1], [0.2, 0.21, 0.2], [0.1, 0.1, 0.9, 0.8]):
        batch = make_batch([[1] * len(entropies), [1]], entropies=[entropies, [0.1]])
        options = {"rule": "leave_one_out", "c": 2.0, "k": 1}
        wanted = TURN_WEIGHTS["suffix_mask"](batch, BASES["grpo"](batch), **options)[0]
        hint = _numbers(answer(entropies, 2.0), wanted[: len(entropies)], f"entropies {entropies}")
        if hint:
            return hint
    return None


@_exercise("01.1")
def two_of_ten(answer: Any) -> str | None:
    """[RLOO, Dr. GRPO, GRPO] of each of two successes among ten."""
    rewards = [1.0] * 2 + [0.0] * 8
    wanted = [_of_rows(base, rewards)[0] for base in ("rloo", "dr_grpo", "grpo")]
    return _numbers(answer, wanted, "two successes among ten")


@_exercise("01.2")
def reversed_aem(answer: Any) -> str | None:
    """entropies of a group's turns, temperature, min_spread -> weights that blame them more."""
    for entropies in ([0.1, 0.5, 0.9], [0.3, 0.35, 0.3], [1.0, 0.2]):
        batch = make_batch([[1] * len(entropies)], entropies=[entropies])
        options = {"temperature": 1.5, "min_spread": 0.1}
        base = torch.zeros_like(batch.entropies)
        wanted = TURN_WEIGHTS["aem_reverse"](batch, base, **options)[0]
        hint = _numbers(answer(entropies, 1.5, 0.1), wanted, f"entropies {entropies}")
        if hint:
            return hint
    return None


@_exercise("01.3")
def following_a_guess(answer: Any) -> str | None:
    """back, stray, lucky -> exact advantage of following the guess; the agent errs nowhere else."""
    for back, stray, lucky in ((0.0, 0.2, 0.25), (0.5, 0.0, 0.25), (0.1, 0.3, 0.6)):
        tree = film_question(lucky=lucky)
        worth = exact.values(tree, film_policy(tree, sure=1.0, stray=stray, back=back))
        said = [response.words for response in tree.responses]
        wanted = float(worth.turn_advantages[said.index(("ward", "</search>"))])
        place = f"not with back {back}, stray {stray}, lucky {lucky}"
        hint = _number(answer(back, stray, lucky), wanted, place)
        if hint:
            return hint
    return None


@_exercise("02.1")
def drift_of_the_rarest(answer: Any) -> str | None:
    """Entropy drift of blame (A = -1) for the last response of the policy 1/2, 1/3, 1/6."""
    policy = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64) / 6
    return _number(answer, float(exact.entropy_drift(policy.log(), -torch.ones_like(policy))[2]))


@_exercise("02.2")
def mean_drift(answer: Any) -> str | None:
    """policy [n], rewards [n] -> mean entropy drift under the policy, advantages centred."""
    stream = torch.Generator().manual_seed(2)
    for _ in range(5):
        policy = torch.randn(4, generator=stream, dtype=torch.float64).softmax(0)
        rewards = torch.randn(4, generator=stream, dtype=torch.float64)
        drifts = exact.entropy_drift(policy.log(), rewards - policy @ rewards)
        hint = _number(answer(policy, rewards), float(policy @ drifts), "not on every policy")
        if hint:
            return hint
    return None


@_exercise("03.1")
def slope(answer: Any) -> str | None:
    """ratio, advantage, low, high -> slope of PPO's token loss in the token's log-prob."""
    batch = make_batch([[1], [1]])
    for ratio in (0.5, 0.75, 0.9, 1.0, 1.1, 1.3, 2.0):
        for advantage in (-1.0, 0.5):
            leaf = (batch.old_logprobs - 4).requires_grad_()
            moved = batch.replace(old_logprobs=leaf.detach() - math.log(ratio))
            credit = advantage * batch.response_mask.float()
            loss, _ = OBJECTIVES["ppo_clip"](leaf, moved, credit, clip_low=0.2, clip_high=0.28)
            loss.backward()
            wanted = 2 * float(leaf.grad[batch.response_mask][0])
            found = answer(ratio, advantage, 0.2, 0.28)
            hint = _number(found, wanted, f"not at ratio {ratio}, advantage {advantage}")
            if hint:
                return hint
    return None


@_exercise("03.2")
def ratio_of_turns(answer: Any) -> str | None:
    """log-ratios by turn (a list of lists) -> the ratio of each turn."""
    batch = make_batch([[3, 1, 2], [2, 2, 2]], seed=3)
    logprobs = current_logprobs(batch)
    wanted = turn_ratios(batch, logprobs)
    for row in range(2):
        differences = (logprobs - batch.old_logprobs)[row]
        turns = [differences[batch.turn_ids[row] == turn].tolist() for turn in range(3)]
        hint = _numbers(answer(turns), wanted[row], f"row {row}")
        if hint:
            return hint
    return None


@_exercise("04.1")
def without_the_spread(answer: Any) -> str | None:
    """rewards, group_ids -> Dr. GRPO's advantages, one for each trajectory."""
    for rewards in ([1.0, 0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 0.0, 0.0, 0.0]):
        batch = make_batch([[1]] * 5, rewards=rewards, groups=[0, 0, 0, 4, 4])
        wanted = BASES["dr_grpo"](batch)[batch.response_mask]
        hint = _numbers(answer(batch.rewards, batch.group_ids), wanted, f"rewards {rewards}")
        if hint:
            return hint
    return None


@_exercise("04.2")
def idle_updates(answer: Any) -> str | None:
    """The ratio of every token in the first update of a batch."""
    return _number(answer, 1.0)


@_exercise("05.1")
def late_blame(answer: Any) -> str | None:
    """A turn weight: of a failed trajectory, the last turn keeps its blame, each before it half."""
    table = Methods("turn weight")
    weigh = table.add(answer)
    batch = make_batch([[1, 2, 1], [2, 1], [1, 1]], rewards=[0.0, 1.0, 0.0])
    found = weigh(batch, BASES["grpo"](batch))
    if found.shape != (3, 3):
        return f"it returns {tuple(found.shape)}, not one number for each turn, (3, 3)"
    wanted = [[0.25, 0.5, 1.0], [1.0, 1.0, 1.0], [0.5, 1.0, 1.0]]
    real = batch.turn_lengths() > 0
    return _numbers(found[real], torch.tensor(wanted)[real], "three trajectories, the second good")


@_exercise("05.2")
def law_of_the_mean(answer: Any) -> str | None:
    """The law that a weight breaks which reads the success rate of all groups together."""
    if answer not in LAWS:
        return f"the laws are: {', '.join(LAWS)}"
    return None if answer == "a group alone" else "that one holds"
