"""Law 3: on enumerable trees an estimator's mean is the exact value, or its stated bias.

Every group of a given size is enumerated with its probability; the mean of sum(A * grad log pi)
over them, divided by the group size, is compared with the exact policy gradient (autograd through
the value of the tree) or with what the method's definition gives, written out again in plain
Python below.  Relative bias and cosine of every pair are printed (`pytest -rP`).
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations_with_replacement, groupby

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.environments.toy_tree import Outcome, Path, Tree, exact, search_or_guess
from turncredit.methods import option_names

EXACT = {"rtol": 0.0, "atol": 1e-10}
PLANNED = (
    "grpo dr_grpo dapo rloo reinforce_pp reinforce_pp_baseline gae gigpo empg igpo mt_grpo"
    " turn_returns adrs arpo aepo"
).split()
PLANNED_WEIGHTS = (
    "none suffix_mask random_suffix oracle_suffix drop_failed scale_failed scale_ungrounded"
    " high_entropy_turns high_is_turns aem aem_shuffle aem_reverse aem_traj_norm aem_batch_norm"
    " keep_entropy_up keep_entropy_down aem_corrected"
).split()
WHOLE_BATCH = {"reinforce_pp", "reinforce_pp_baseline", "gae", "empg", "aepo", "adrs"}
"""Statistics over the batch (`gae` unless told otherwise): each group is a batch of its own."""
WHOLE_BATCH_WEIGHTS = {"aem_batch_norm", "high_entropy_turns", "random_suffix", "scale_failed"}


# the enumeration


def binary_tree() -> Tree:
    """`search_or_guess` with rewards 0 and 1 alone, so that reward and success agree."""
    tree = search_or_guess()
    slow = {"hmm hmm </answer>": (Outcome(reward=1.0, success=True),)}
    states = tree.states | {"evidence": {**tree.states["evidence"], **slow}}
    return replace(tree, states=states)


def two_turn_tree() -> Tree:
    """Always two turns: the policy cannot choose when to stop."""
    on = {
        name: (Outcome(next_state=name, observation="now", turn_reward=step),)
        for name, step in (("left", 0.3), ("right", -0.2))
    }
    end = {
        "left": {"</stop>": (Outcome(reward=1.0, success=True),), "hmm </stop>": (Outcome(),)},
        "right": {"</stop>": (Outcome(),), "hmm </stop>": (Outcome(reward=0.5),)},
    }
    return Tree("well", {"start": {"</l>": on["left"], "hmm </r>": on["right"]}} | end)


def small_tree() -> Tree:
    """One to three turns, six paths: for tests of every pair of methods."""
    coin = (Outcome(0.5, reward=1.0, success=True), Outcome(0.5))
    return Tree(
        "well",
        {
            "start": {
                "</stop>": (Outcome(reward=0.4),),
                "hmm </go>": (Outcome(next_state="middle", observation="now", turn_reward=0.2),),
            },
            "middle": {
                "</stop>": coin,
                "</go>": (Outcome(next_state="last", observation="then", turn_reward=-0.1),),
            },
            "last": {
                "</stop>": (Outcome(),),
                "hmm </stop>": (Outcome(reward=1.0, success=True),),
                "hmm hmm </stop>": (Outcome(),),
            },
        },
        evidence=frozenset({"last"}),
    )


TREES = {
    "fractional": search_or_guess,
    "binary": binary_tree,
    "two_turns": two_turn_tree,
    "small": small_tree,
}


@dataclass(frozen=True)
class Case:
    """A tree, a policy on it and a group size; everything in float64."""

    name: str
    size: int
    seed: int

    @cached_property
    def tree(self) -> Tree:
        return TREES[self.name]()

    @cached_property
    def logits(self) -> Tensor:
        return _logits(self.tree, self.seed)

    @cached_property
    def paths(self) -> "list[Trace]":
        entropies = exact.token_entropies(self.tree, self.logits).tolist()
        logprobs = exact.token_logprobs(self.tree, self.logits)
        other = exact.token_logprobs(self.tree, _logits(self.tree, self.seed + 50))
        ratios = (other - logprobs).tolist()
        advantages = exact.values(self.tree, self.logits).turn_advantages.tolist()
        values = exact.values(self.tree, self.logits, turn_rewards=True).decisions.tolist()
        numbers = (entropies, (-logprobs).tolist(), ratios, values, advantages)
        return [Trace.of(self.tree, path, *numbers) for path in self.tree.paths]

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """Every group as sorted path numbers."""
        count = len(self.tree.paths)
        return list(combinations_with_replacement(range(count), self.size))

    @cached_property
    def probabilities(self) -> Tensor:
        """[groups]: probability of each, in any order of its members."""
        single = exact.path_logprobs(self.tree, self.logits)
        orders = [
            math.factorial(self.size)
            / math.prod(math.factorial(len(list(same))) for _, same in groupby(group))
            for group in self.groups
        ]
        return single[torch.tensor(self.groups)].sum(1).exp() * torch.tensor(orders).double()

    @cached_property
    def scores(self) -> Tensor:
        """[P, P]: gradient of each word choice's log-probability."""
        return jacobian(lambda x: exact.token_logprobs(self.tree, x), self.logits)

    @cached_property
    def batch(self) -> TurnBatch:
        """All groups as one batch, `size` rows each."""
        rows = torch.tensor(self.groups).flatten()
        numbers = torch.arange(len(self.groups)).repeat_interleave(self.size)
        return self.path_batch.select(rows).replace(group_ids=numbers)

    @cached_property
    def path_batch(self) -> TurnBatch:
        """One row per path, every optional field filled."""
        return _path_batch(self.tree, self.logits, self.seed, self.paths)

    @cached_property
    def choices(self) -> Tensor:
        """[B, L] int64: the word choice made at each sampled token of `batch`, 0 elsewhere."""
        flat = torch.tensor([c for trace in self.paths for c in trace.choices])
        mask = self.path_batch.response_mask
        per_path = torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, flat)
        return per_path[torch.tensor(self.groups).flatten()]

    def exact_gradient(self, *, gamma: float = 1.0, turn_rewards: bool = False) -> Tensor:
        """[P]: gradient of the start's value."""
        options = {"gamma": gamma, "turn_rewards": turn_rewards}
        return jacobian(lambda x: exact.values(self.tree, x, **options).states[0], self.logits)

    def expected_gradient(self, advantages: Tensor) -> Tensor:
        """[P]: mean over groups of sum(A * grad log pi) / size, for advantages [B, L]."""
        weight = (self.probabilities / self.size).repeat_interleave(self.size)
        mask = self.batch.response_mask
        mass = (weight[:, None] * advantages)[mask]
        coefficients = torch.zeros(self.tree.num_logits, dtype=torch.float64)
        return coefficients.index_add(0, self.choices[mask], mass) @ self.scores

    def direct_gradient(self, reference: "Reference") -> Tensor:
        """[P]: the same, of a definition in plain Python that sees one group at a time."""
        coefficients = [0.0] * self.tree.num_logits
        for group, probability in zip(self.groups, self.probabilities.tolist(), strict=True):
            traces = [self.paths[number] for number in group]
            for trace, values in zip(traces, reference(traces), strict=True):
                for choice, value in zip(trace.choices, values, strict=True):
                    coefficients[choice] += probability / self.size * value
        return torch.tensor(coefficients, dtype=torch.float64) @ self.scores

    def starting_in(self, *states: str) -> Tensor:
        """[P] bool: choices made in the given states."""
        return torch.tensor([d.state in states for d in self.tree.decisions for _ in d.words])


@dataclass(frozen=True)
class Trace:
    """One trajectory in plain lists, for definitions written out by hand."""

    outcome: float
    success: bool
    steps: tuple[float, ...]
    """Step rewards."""
    states: tuple[str, ...]
    lengths: tuple[int, ...]
    """Words of each turn."""
    choices: tuple[int, ...]
    """Word choices of all turns in order."""
    entropies: tuple[float, ...]
    """Of the decision behind each word."""
    surprisals: tuple[float, ...]
    """Of each word."""
    log_ratios: tuple[float, ...]
    """Of each word, the other policy of the batch over this one."""
    values: tuple[float, ...]
    """Exact value before each word, step rewards included."""
    grounded: bool
    wrong_turn: int
    """First turn of negative exact advantage if failed, otherwise -1."""

    @classmethod
    def of(
        cls,
        tree: Tree,
        path: Path,
        entropies: Sequence[float],
        surprisals: Sequence[float],
        log_ratios: Sequence[float],
        values: Sequence[float],
        advantages: Sequence[float],
    ) -> "Trace":
        """From numbers by decision, by word choice twice, by decision and by response."""
        said = [tree.responses[number] for number in path.responses]
        place = {(d.state, d.prefix): n for n, d in enumerate(tree.decisions)}
        decisions = [(r.state, r.words[:n]) for r in said for n in range(len(r.words))]
        choices = [choice for number in path.responses for choice in tree.branches[number]]
        wrong = [turn for turn, number in enumerate(path.responses) if advantages[number] < 0]
        return cls(
            path.reward,
            path.success,
            tuple(outcome.turn_reward for outcome in path.outcomes),
            tuple(response.state for response in said),
            tuple(len(response.words) for response in said),
            tuple(choices),
            tuple(entropies[place[decision]] for decision in decisions),
            tuple(surprisals[choice] for choice in choices),
            tuple(log_ratios[choice] for choice in choices),
            tuple(values[place[decision]] for decision in decisions),
            any(response.state in tree.evidence for response in said),
            wrong[0] if wrong and not path.success else -1,
        )

    def returns(self, gamma: float = 1.0) -> list[float]:
        """Return-to-go of each turn, step rewards and outcome."""
        rewards = [*self.steps[:-1], self.steps[-1] + self.outcome]
        return [
            sum(gamma**later * reward for later, reward in enumerate(rewards[turn:]))
            for turn in range(len(rewards))
        ]

    def turn_means(self, per_word: Sequence[float]) -> list[float]:
        """Mean over the words of each turn."""
        starts = [sum(self.lengths[:turn]) for turn in range(len(self.lengths))]
        return [
            statistics.fmean(per_word[start : start + length])
            for start, length in zip(starts, self.lengths, strict=True)
        ]

    def turn_entropies(self) -> list[float]:
        """Mean entropy of each turn's words."""
        return self.turn_means(self.entropies)

    def spread(self, per_turn: Sequence[float]) -> list[float]:
        """One value per turn to one per word."""
        pairs = zip(per_turn, self.lengths, strict=True)
        return [value for value, length in pairs for _ in range(length)]


Reference = Callable[[list[Trace]], list[list[float]]]


def _logits(tree: Tree, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return 0.7 * torch.randn(tree.num_logits, generator=stream, dtype=torch.float64)


def _path_batch(tree: Tree, logits: Tensor, seed: int, traces: "list[Trace]") -> TurnBatch:
    ids: dict[str, int] = {}
    rows = [_tokens(tree, path) for path in tree.paths]
    length = max(map(len, rows))
    padded = [row + [("", -1, -1)] * (length - len(row)) for row in rows]
    turn_ids = torch.tensor([[turn for _, turn, _ in row] for row in padded])
    choices = torch.tensor([[choice for _, _, choice in row] for row in padded])
    mask, chosen = turn_ids >= 0, choices.clamp(min=0)
    widths = torch.tensor([len(decision.words) for decision in tree.decisions])
    decisions = torch.arange(len(widths)).repeat_interleave(widths)[chosen]
    other = _logits(tree, seed + 50)

    def logprobs(of: Tensor) -> Tensor:
        return torch.where(mask, exact.token_logprobs(tree, of)[chosen], torch.nan)

    turns = tree.max_turns
    steps = torch.zeros(len(rows), turns, dtype=torch.float64)
    anchors = torch.full((len(rows), turns), -1)
    for row, path in enumerate(tree.paths):
        for turn, (number, outcome) in enumerate(zip(*path, strict=True)):
            steps[row, turn] = outcome.turn_reward
            anchors[row, turn] = tree.names.index(tree.responses[number].state)
    return TurnBatch.checked(
        token_ids=torch.tensor(
            [[ids.setdefault(word, len(ids)) for word, _, _ in row] for row in padded]
        ),
        response_mask=mask,
        turn_ids=turn_ids,
        old_logprobs=logprobs(logits),
        entropies=torch.where(mask, exact.token_entropies(tree, logits)[decisions], torch.nan),
        rewards=torch.tensor([path.reward for path in tree.paths], dtype=torch.float64),
        success=torch.tensor([path.success for path in tree.paths]),
        group_ids=torch.arange(len(rows)),
        ref_logprobs=logprobs(other),
        rollout_logprobs=logprobs(logits),
        teacher_logprobs=logprobs(other),
        values=torch.where(
            mask, exact.values(tree, logits, turn_rewards=True).decisions[decisions], torch.nan
        ),
        turn_rewards=steps,
        anchor_ids=anchors,
        grounded=torch.tensor([trace.grounded for trace in traces]),
        oracle_turn=torch.tensor([trace.wrong_turn for trace in traces]),
    )


def _tokens(tree: Tree, path: Path) -> list[tuple[str, int, int]]:
    """(word, turn or -1, word choice or -1) of a whole trajectory."""
    row = [(word, -1, -1) for word in tree.prompt.split()]
    for turn, (number, outcome) in enumerate(zip(*path, strict=True)):
        said = zip(tree.responses[number].words, tree.branches[number], strict=True)
        row += [(word, turn, choice) for word, choice in said]
        row += [(word, -1, -1) for word in outcome.observation.split()]
    return row


REACHING = 4
"""A seed whose policy often goes on: 0.87 and 0.29 of its trajectories have turns 1 and 2."""


@cache
def case(name: str, size: int, seed: int = REACHING) -> Case:
    return Case(name, size, seed)


CASES = [("fractional", 2), ("binary", 3), ("two_turns", 3)]
every_case = pytest.mark.parametrize(("name", "size"), CASES, ids=[f"{n}-{s}" for n, s in CASES])


def advantages(
    here: Case, base: str, weight: str = "none", base_options: dict | None = None,
    weight_options: dict | None = None,
) -> Tensor:  # fmt: skip
    """[B, L] of all groups; where a method reads the whole batch, of one group at a time."""
    batch = here.batch
    given = dict(base_options or {}), _weight_options(weight, batch) | (weight_options or {})
    split = base in WHOLE_BATCH and given[0].get("whiten", True)
    if not split and weight not in WHOLE_BATCH_WEIGHTS:
        return token_advantages(batch, base, weight, *given)
    parts = []
    for start in range(0, len(batch.rewards), here.size):
        part = batch.select(slice(start, start + here.size))
        options = given[0], _weight_options(weight, part) | (weight_options or {})
        parts.append(token_advantages(part, base, weight, *options))
    return torch.cat(parts)


def _weight_options(weight: str, batch: TurnBatch) -> dict:
    """Log-probs of a policy that has moved on, and a gate that can open, where a weight has them.

    The default c = 2 cannot open on two turns and hardly ever does on three.
    """
    given = {"logprobs": batch.ref_logprobs, "c": 1.2}
    names = option_names(TURN_WEIGHTS[weight])
    return {name: value for name, value in given.items() if name in names}


def need(table: dict, name: str) -> None:
    if name not in table:
        pytest.skip(f"{name} is not in the table yet")


# definitions, written out again


def standard(values: Sequence[float], *, scale: bool = True) -> list[float]:
    """Deviations from the mean, over sample std + 1e-6; equal values or a single one give 0."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = statistics.fmean(values)
    divisor = statistics.stdev(values) + 1e-6 if scale else 1.0
    return [(value - mean) / divisor for value in values]


def whole(group: list[Trace], per_row: Sequence[float]) -> list[list[float]]:
    return [[value] * len(trace.choices) for trace, value in zip(group, per_row, strict=True)]


def outcomes(group: list[Trace]) -> list[float]:
    return [trace.outcome for trace in group]


def grpo(group: list[Trace]) -> list[list[float]]:
    return whole(group, standard(outcomes(group)))


def rloo(group: list[Trace]) -> list[list[float]]:
    total = sum(outcomes(group))
    return whole(group, [r - (total - r) / (len(group) - 1) for r in outcomes(group)])


def whiten(rows: list[list[float]]) -> list[list[float]]:
    flat = [value for row in rows for value in row]
    if len(set(flat)) < 2:
        return [[0.0] * len(row) for row in rows]
    mean, scale = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [[(value - mean) / scale for value in row] for row in rows]


def reinforce_pp(group: list[Trace]) -> list[list[float]]:
    return whiten(whole(group, outcomes(group)))


def reinforce_pp_baseline(group: list[Trace]) -> list[list[float]]:
    return whiten(whole(group, standard(outcomes(group), scale=False)))


def gae(group: list[Trace]) -> list[list[float]]:
    """lam = gamma = 1: what is still to come minus the value before the word, whitened."""
    rows = []
    for trace in group:
        pairs = zip(trace.spread(trace.returns()), trace.values, strict=True)
        rows.append([to_come - value for to_come, value in pairs])
    return whiten(rows)


def among(
    group: list[Trace], keys: list[list], values: list[list[float]], *, scale: bool
) -> list[list[float]]:
    """Per-turn values, standardised among the turns of the group with the same key."""
    found: dict = {}
    for row, row_keys in enumerate(keys):
        for turn, key in enumerate(row_keys):
            found.setdefault(key, []).append((row, turn))
    result = [[0.0] * len(row) for row in values]
    for places in found.values():
        scaled = standard([values[row][turn] for row, turn in places], scale=scale)
        for (row, turn), value in zip(places, scaled, strict=True):
            result[row][turn] = value
    return result


def spread(group: list[Trace], per_turn: list[list[float]]) -> list[list[float]]:
    return [trace.spread(values) for trace, values in zip(group, per_turn, strict=True)]


def mt_grpo(group: list[Trace]) -> list[list[float]]:
    indices = [list(range(len(trace.lengths))) for trace in group]
    returns = [trace.returns() for trace in group]
    return spread(group, among(group, indices, returns, scale=True))


def gigpo(group: list[Trace]) -> list[list[float]]:
    episode = standard([trace.returns()[0] for trace in group])
    states = [list(trace.states) for trace in group]
    step = among(group, states, [trace.returns(0.95) for trace in group], scale=False)
    both = [[first + value for value in row] for first, row in zip(episode, step, strict=True)]
    return spread(group, both)


def igpo(group: list[Trace]) -> list[list[float]]:
    gains = iter(standard([gain for trace in group for gain in trace.steps[:-1]]))
    result = []
    for trace, outcome in zip(group, standard(outcomes(group)), strict=True):
        signal = [*(next(gains) for _ in trace.steps[:-1]), outcome]
        result.append([sum(signal[turn:]) for turn in range(len(signal))])
    return spread(group, result)


def empg(group: list[Trace]) -> list[list[float]]:
    entropies = [trace.turn_entropies() for trace in group]
    flat = [h for row in entropies for h in row]
    low, width = min(flat), max(flat) - min(flat) + 1e-8
    scaled = [[(h - low) / width for h in row] for row in entropies]
    mean_damping = statistics.fmean(math.exp(-h) for row in scaled for h in row)
    shaped = [
        [
            credit * math.exp(-h) / mean_damping
            + (0.05 * math.exp(-row[turn + 1]) if turn + 1 < len(row) else 0.0)
            for turn, h in enumerate(row)
        ]
        for row, credit in zip(scaled, standard(outcomes(group)), strict=True)
    ]
    mean = statistics.fmean(value for row in shaped for value in row)
    return spread(group, [[value - mean for value in row] for row in shaped])


def given_by_turn(group: list[Trace]) -> list[list[float]]:
    """What the batch has in the place of true advantages: here step rewards, which are none."""
    return spread(group, [list(trace.steps) for trace in group])


# bases: unbiased, shrunk, or biased as defined


UNBIASED = {
    "rloo": ("rloo", {}, {"turn_rewards": False}),
    "turn_returns-last": ("turn_returns", {"stopped": "last"}, {"turn_rewards": True}),
    "turn_returns-zero": ("turn_returns", {"stopped": "zero"}, {"turn_rewards": True}),
    "vineppo": ("vineppo", {}, {"turn_rewards": True}),
    "gae-lam0": ("gae", {"lam": 0.0, "whiten": False}, {"turn_rewards": True}),
    "gae-lam0.6": ("gae", {"lam": 0.6, "whiten": False}, {"turn_rewards": True}),
    "gae-lam1": ("gae", {"lam": 1.0, "whiten": False}, {"turn_rewards": True}),
}
"""The mean is the exact gradient, of the outcome alone or with step rewards; gae and vineppo:
exact values."""

AS_DEFINED: dict[str, Reference] = {
    "grpo": grpo,
    "dapo": grpo,
    "arpo": grpo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gae": gae,
    "mt_grpo": mt_grpo,
    "gigpo": gigpo,
    "igpo": igpo,
    "empg": empg,
    "true_advantage": given_by_turn,
}
"""Biased; the mean is that of the definition above, with default options."""

SHRUNK = {"dr_grpo"}
"""The mean is (size - 1) / size times the exact gradient."""

MEASURED = {"adrs", "aepo"}
"""Biased, and defined on more than a group of trajectories: only measured here."""

KNOWN = {name for name, _, _ in UNBIASED.values()} | set(AS_DEFINED) | SHRUNK | MEASURED


@pytest.mark.parametrize("base", sorted({*PLANNED, *BASES}))
def test_every_base_has_a_stated_expectation(base):
    assert base in KNOWN, f"state the expectation of {base!r} in this file's tables"
    need(BASES, base)


def test_the_enumeration_is_whole():
    for name, size in [*CASES, ("small", 2)]:
        here = case(name, size)
        assert float(here.probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
        assert here.exact_gradient().abs().max() > 1e-3
        lengths = {len(trace.lengths) for trace in here.paths}
        assert (len(lengths) == 1) == (name == "two_turns")


@every_case
@pytest.mark.parametrize(("base", "options", "target"), UNBIASED.values(), ids=UNBIASED)
def test_unbiased(base, options, target, name, size):
    need(BASES, base)
    here = case(name, size)
    found = here.expected_gradient(advantages(here, base, base_options=options))
    torch.testing.assert_close(found, here.exact_gradient(**target), **EXACT)


@every_case
@pytest.mark.parametrize("base", sorted(SHRUNK))
def test_shrunk_by_the_own_reward_in_the_mean(base, name, size):
    need(BASES, base)
    here = case(name, size)
    found = here.expected_gradient(advantages(here, base))
    torch.testing.assert_close(found, (size - 1) / size * here.exact_gradient(), **EXACT)


@every_case
@pytest.mark.parametrize("base", AS_DEFINED)
def test_biased_as_defined(base, name, size):
    need(BASES, base)
    here = case(name, 2 if base in WHOLE_BATCH and name == "binary" else size)  # time
    found = here.expected_gradient(advantages(here, base))
    torch.testing.assert_close(found, here.direct_gradient(AS_DEFINED[base]), **EXACT)
    bias, _ = print_bias(here, base, found)
    assert bias > 1e-3, "unbiased after all?  State it so"


@every_case
def test_the_definitions_written_out_are_themselves_right(name, size):
    """The plain-Python enumeration finds the exact gradient where theory says so."""
    here = case(name, size)
    torch.testing.assert_close(here.direct_gradient(rloo), here.exact_gradient(), **EXACT)


@every_case
@pytest.mark.parametrize("base", sorted(MEASURED))
def test_measured(base, name, size):
    need(BASES, base)
    here = case(name, 2 if base in WHOLE_BATCH and name == "binary" else size)  # time
    found = here.expected_gradient(advantages(here, base))
    bias, cosine = print_bias(here, base, found)
    assert math.isfinite(bias) and abs(cosine) <= 1 + 1e-12


def print_bias(here: Case, base: str, found: Tensor) -> tuple[float, float]:
    """Relative size of the bias, and cosine, against the gradient the base aims at."""
    reads_steps = {"gae", "mt_grpo", "turn_returns", "gigpo", "vineppo"}
    target = here.exact_gradient(turn_rewards=base in reads_steps)
    bias = float((found - target).norm() / target.norm())
    cosine = float(torch.nn.functional.cosine_similarity(found, target, dim=0))
    print(f"{base}: relative bias {bias:.6f}, cosine {cosine:.6f}")
    return bias, cosine


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_grpo_with_binary_rewards_only_changes_the_length_of_the_step(size, seed):
    """Closed form: E[z | success] - E[z | failure] over a binomial number of other successes."""
    here = case("binary", size, seed)
    p = float(exact.values(here.tree, here.logits).states[0])
    factor = 0.0
    for others in range(size):
        chance = math.comb(size - 1, others) * p**others * (1 - p) ** (size - 1 - others)
        rewards = [1.0] * others + [0.0] * (size - 1 - others)
        factor += chance * (standard([1.0, *rewards])[0] - standard([0.0, *rewards])[0])
    found = here.expected_gradient(advantages(here, "grpo"))
    torch.testing.assert_close(found, factor * here.exact_gradient(), **EXACT)


def test_grpo_with_fractional_rewards_turns_the_step():
    """Dividing by the group's std is not a matter of scale alone once rewards are not binary."""
    here = case("fractional", 2)
    found = here.expected_gradient(advantages(here, "grpo"))
    cosine = torch.nn.functional.cosine_similarity(found, here.exact_gradient(), dim=0)
    assert 0 < float(cosine) < 1 - 1e-5


@every_case
@pytest.mark.parametrize("gamma", [0.5, 0.9])
@pytest.mark.parametrize("stopped", ["last", "zero"])
def test_discounted_turn_returns_follow_the_usual_surrogate(gamma, stopped, name, size):
    """Visits times gradient of pi times discounted Q, without gamma^t in front."""
    need(BASES, "turn_returns")
    here = case(name, size)
    options = {"gamma": gamma, "stopped": stopped}
    found = here.expected_gradient(advantages(here, "turn_returns", base_options=options))
    expected = sum(turn_gradients(here, gamma))
    torch.testing.assert_close(found, expected, **EXACT)


def turn_gradients(here: Case, gamma: float = 1.0) -> Iterator[Tensor]:
    """[P] for each turn index: what the exact gradient owes to the words of that turn."""
    tree, logits = here.tree, here.logits
    of_response = exact.values(tree, logits, gamma=gamma, turn_rewards=True).responses
    owners = [tree.names.index(response.state) for response in tree.responses]
    for visits in exact.visitation(tree, logits):
        yield jacobian(
            lambda x, v=visits[owners]: (
                v * exact.response_logprobs(tree, x).exp() * of_response
            ).sum(),
            logits,
        )


@every_case
def test_bias_of_turn_index_means_comes_from_stopping(name, size):
    """`mt_grpo` without scale shrinks turn t by E[m / (m + 1)], m others that get to turn t."""
    need(BASES, "mt_grpo")
    here = case(name, size)
    found = here.expected_gradient(advantages(here, "mt_grpo", base_options={"scale": "mean"}))
    reached = exact.visitation(here.tree, here.logits).sum(1).tolist()
    factors = [
        sum(
            math.comb(size - 1, m) * q**m * (1 - q) ** (size - 1 - m) * m / (m + 1)
            for m in range(size)
        )
        for q in reached
    ]
    per_turn = list(turn_gradients(here))
    expected = sum(f * part for f, part in zip(factors, per_turn, strict=True))
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(sum(per_turn), here.exact_gradient(turn_rewards=True), **EXACT)
    print("shrinkage by turn:", *(f"{factor:.6f}" for factor in factors))
    print_bias(here, "mt_grpo", found)
    if name == "two_turns":
        assert factors == pytest.approx([(size - 1) / size] * 2)
    else:
        assert factors == sorted(factors, reverse=True)
        assert factors[-1] < factors[0] - 0.05
        uniform = factors[0] * here.exact_gradient(turn_rewards=True)
        assert float((found - uniform).norm() / uniform.norm()) > 1e-2


# advantages themselves, not only their gradient


@every_case
def test_true_advantages_by_turn_have_the_exact_gradient(name, size):
    """What no base can know without an audit: with it one number per turn is enough."""
    here = case(name, size)
    worth = exact.values(here.tree, here.logits).turn_advantages
    table = torch.zeros_like(here.path_batch.turn_rewards)
    for row, path in enumerate(here.tree.paths):
        table[row, : len(path.responses)] = worth[list(path.responses)]
    batch = here.batch.replace(turn_rewards=table[torch.tensor(here.groups).flatten()])
    found = here.expected_gradient(token_advantages(batch, "true_advantage", "none"))
    torch.testing.assert_close(found, here.exact_gradient(), **EXACT)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@every_case
def test_gae_with_exact_values_has_the_exact_token_advantage_as_its_mean(lam, name, size):
    """Given the word said, whatever follows: value after it minus value before it."""
    need(BASES, "gae")
    here = case(name, size)
    batch = here.path_batch
    found = BASES["gae"](batch, lam=lam, whiten=False)
    weights = exact.path_logprobs(here.tree, here.logits).exp()[:, None].expand_as(found)
    mask = batch.response_mask
    choices = torch.tensor([c for trace in here.paths for c in trace.choices])
    sums = torch.zeros(2, here.tree.num_logits, dtype=torch.float64)
    sums = sums.index_add(1, choices, torch.stack([weights[mask] * found[mask], weights[mask]]))
    truth = exact.values(here.tree, here.logits, turn_rewards=True).token_advantages
    torch.testing.assert_close(sums[0] / sums[1], truth, **EXACT)


@every_case
def test_turn_returns_have_the_exact_turn_advantage_up_to_a_shift_per_turn_index(name, size):
    """Given state, message and turn index, means differ from Q by a baseline of the index alone."""
    need(BASES, "turn_returns")
    here = case(name, size)
    batch, weight = here.batch, (here.probabilities / size).repeat_interleave(size)
    per_turn = batch.turn_sums(BASES["turn_returns"](batch)) / batch.turn_lengths().clamp(min=1)
    mass: dict[tuple[int, int], float] = defaultdict(float)
    total: dict[tuple[int, int], float] = defaultdict(float)
    for row, number in enumerate(torch.tensor(here.groups).flatten().tolist()):
        for turn, response in enumerate(here.tree.paths[number].responses):
            mass[turn, response] += float(weight[row])
            total[turn, response] += float(weight[row] * per_turn[row, turn])
    truth = exact.values(here.tree, here.logits, turn_rewards=True).responses.tolist()
    shifts: dict[int, list[float]] = defaultdict(list)
    for turn, response in mass:
        mean = total[turn, response] / mass[turn, response]
        shifts[turn].append(mean - truth[response])
    assert len(shifts) == here.tree.max_turns
    for values in shifts.values():
        assert values == pytest.approx([values[0]] * len(values), abs=1e-10)


# turn weights


@every_case
@pytest.mark.parametrize("base", BASES)
def test_weight_none_leaves_the_base(base, name, size):
    batch = case(name, size).batch
    assert torch.equal(token_advantages(batch, base, "none"), BASES[base](batch))
    assert (TURN_WEIGHTS["none"](batch, BASES[base](batch)) == 1).all()


Weights = Callable[[list[Trace]], list[list[float]]]


def modulated(entropies: Sequence[float], sign: float = -1.0) -> list[float]:
    """AEM's coefficients (eqs. 14 and 15, without their 1e-8) of the entropies of one scope."""
    low, high = min(entropies), max(entropies)
    if high - low < 0.1:
        return [1.0] * len(entropies)
    raw = [math.exp(sign * (h - low) / (high - low)) for h in entropies]
    return [value / statistics.fmean(raw) for value in raw]


def aem(group: list[Trace], sign: float = -1.0) -> list[list[float]]:
    entropies = [trace.turn_entropies() for trace in group]
    flat = iter(modulated([h for row in entropies for h in row], sign))
    return [[next(flat) for _ in row] for row in entropies]


def aem_reverse(group: list[Trace]) -> list[list[float]]:
    return aem(group, sign=1.0)


def aem_traj_norm(group: list[Trace]) -> list[list[float]]:
    return [modulated(trace.turn_entropies()) for trace in group]


def aem_corrected(group: list[Trace]) -> list[list[float]]:
    """Openings against the group's mean sum of entropies, later turns against their own."""
    sums = [
        [[length * mean for length, mean in zip(t.lengths, t.turn_means(words), strict=True)]
         for words in (t.surprisals, t.entropies)]
        for t in group
    ]  # fmt: skip
    opening = statistics.fmean(predictable[0] for _, predictable in sums)
    excess = [
        [s - (p if turn else opening) for turn, (s, p) in enumerate(zip(*rows, strict=True))]
        for rows in sums
    ]
    flat = [value for row in excess for value in row]
    low, high = min(flat), max(flat)
    if high - low < 0.1 or low >= 0 or high <= 0:
        return [[1.0] * len(row) for row in excess]
    lost = [1 - math.exp(-value / (high - low)) if value > 0 else 0.0 for value in flat]
    need = sum(-value for value in flat if value < 0)
    scale = min(1.0, (math.e - 1) / (-low / need * sum(lost)))

    def alpha(value: float) -> float:
        taken = 1 - math.exp(-value / (high - low)) if value > 0 else 0.0
        return 1 + scale * (max(-value, 0.0) / need * sum(lost) - taken)

    return [[alpha(value) for value in row] for row in excess]


def kept(direction: int) -> Weights:
    """Responses whose A * (alpha - 1) has this sign."""

    def weights(group: list[Trace]) -> list[list[float]]:
        credit = [row[0] for row in rloo(group)]
        return [
            [float(direction * value * (alpha - 1) > 0) for alpha in row]
            for value, row in zip(credit, aem(group), strict=True)
        ]

    return weights


def after_gate(group: list[Trace], gates: list[int | None]) -> list[list[float]]:
    """0 behind the gate of failed trajectories with a penalty."""
    result = []
    for trace, gate, row in zip(group, gates, rloo(group), strict=True):
        open_gate = gate is not None and not trace.success and row[0] < 0
        turns = range(len(trace.lengths))
        result.append([float(not open_gate or turn <= gate) for turn in turns])
    return result


def suffix_mask(group: list[Trace]) -> list[list[float]]:
    """The rule "ratio"; messages are shorter than k."""
    gates: list[int | None] = []
    for entropies in (trace.turn_entropies() for trace in group):
        limit = 1.2 * statistics.fmean(entropies)
        gates.append(next((t for t, h in enumerate(entropies) if h > limit and h >= 0.01), None))
    return after_gate(group, gates)


def oracle_suffix(group: list[Trace]) -> list[list[float]]:
    turns = [trace.wrong_turn for trace in group]
    return after_gate(group, [None if turn < 0 else turn for turn in turns])


def failures_times(factor: float) -> Weights:
    def weights(group: list[Trace]) -> list[list[float]]:
        return [[1.0 if t.success else factor] * len(t.lengths) for t in group]

    return weights


def scale_ungrounded(group: list[Trace]) -> list[list[float]]:
    return [
        [0.0 if t.success and not t.grounded and row[0] > 0 else 1.0] * len(t.lengths)
        for t, row in zip(group, rloo(group), strict=True)
    ]


def high_entropy_turns(group: list[Trace]) -> list[list[float]]:
    """Top fifth of the group's turns, by the interpolated quantile."""
    flat = sorted(h for trace in group for h in trace.turn_entropies())
    if len(flat) > 1:
        limit = statistics.quantiles(flat, n=5, method="inclusive")[-1]
    else:
        limit = flat[0]
    return [[float(h >= limit - 1e-12) for h in t.turn_entropies()] for t in group]


def high_is_turns(group: list[Trace]) -> list[list[float]]:
    return [
        [float(abs(math.exp(mean) - 1) <= 0.4) for mean in t.turn_means(t.log_ratios)]
        for t in group
    ]


WEIGHTS_AS_DEFINED: dict[str, tuple[dict, Weights]] = {
    "suffix_mask": ({"c": 1.2}, suffix_mask),
    "oracle_suffix": ({}, oracle_suffix),
    "drop_failed": ({}, failures_times(0.0)),
    "scale_failed": ({"factor": 0.3}, failures_times(0.3)),
    "scale_ungrounded": ({}, scale_ungrounded),
    "high_entropy_turns": ({}, high_entropy_turns),
    "high_is_turns": ({"limit": 0.4}, high_is_turns),
    "aem": ({}, aem),
    "aem_reverse": ({}, aem_reverse),
    "aem_traj_norm": ({}, aem_traj_norm),
    "aem_batch_norm": ({}, aem),
    "aem_corrected": ({}, aem_corrected),
    "keep_entropy_up": ({}, kept(-1)),
    "keep_entropy_down": ({}, kept(1)),
}
"""On top of `rloo`: biased, the mean is that of the definition.  The batch is one group here."""

DRAWN = {"aem_shuffle", "random_suffix"}
"""With draws of their own: not enumerated; `aem_shuffle` has a test of its own."""


def weighted(weights: Weights) -> Reference:
    """`rloo` times per-turn weights, in plain Python."""

    def reference(group: list[Trace]) -> list[list[float]]:
        factors = spread(group, weights(group))
        return [
            [factor * value for factor, value in zip(*pair, strict=True)]
            for pair in zip(factors, rloo(group), strict=True)
        ]

    return reference


@pytest.mark.parametrize("weight", sorted({*PLANNED_WEIGHTS, *TURN_WEIGHTS}))
def test_every_weight_has_a_stated_expectation(weight):
    stated = {"none", *WEIGHTS_AS_DEFINED, *DRAWN}
    assert weight in stated, f"state the expectation of {weight!r} in this file's tables"
    need(TURN_WEIGHTS, weight)


@pytest.mark.parametrize("name", ["fractional", "binary"])
@pytest.mark.parametrize("weight", WEIGHTS_AS_DEFINED)
def test_weight_biased_as_defined(weight, name):
    need(TURN_WEIGHTS, weight)
    here = case(name, 2)
    options, definition = WEIGHTS_AS_DEFINED[weight]
    found = here.expected_gradient(advantages(here, "rloo", weight, weight_options=options))
    torch.testing.assert_close(found, here.direct_gradient(weighted(definition)), **EXACT)
    bias, _ = print_bias(here, "rloo", found)
    assert bias > 1e-3, "the weight did nothing to the mean: the case proves nothing"


@pytest.mark.parametrize(("weight", "factor"), [("drop_failed", 0.0), ("scale_failed", 0.3)])
@pytest.mark.parametrize("size", [2, 3])
def test_weighting_failures_evenly_only_shortens_the_step(weight, factor, size):
    """Rewards 0 and 1: wins owe 1 - p of the gradient to the baseline, failures p."""
    need(TURN_WEIGHTS, weight)
    here = case("binary", size)
    options = {"factor": factor} if weight == "scale_failed" else {}
    batch = here.batch
    found = token_advantages(batch, "rloo", weight, {}, options)
    p = float(exact.values(here.tree, here.logits).states[0])
    expected = (1 - p + factor * p) * here.exact_gradient()
    torch.testing.assert_close(here.expected_gradient(found), expected, **EXACT)


def test_shuffled_coefficients_are_one_on_average():
    """So `aem_shuffle` is unbiased on an unbiased base: what it keeps of AEM is noise alone."""
    need(TURN_WEIGHTS, "aem_shuffle")
    batch, draws = case("small", 3).batch, 400
    base = BASES["rloo"](batch)
    stream = torch.Generator().manual_seed(0)
    dealt = torch.stack(
        [TURN_WEIGHTS["aem_shuffle"](batch, base, generator=stream) for _ in range(draws)]
    )
    error = dealt.std(0) / math.sqrt(draws)
    assert (dealt.std(0) > 0.1).any()
    assert ((dealt.mean(0) - 1).abs() <= 5 * error + 1e-12).all()


@every_case
@pytest.mark.parametrize(
    "weight", ["aem", "aem_reverse", "aem_shuffle", "aem_traj_norm", "aem_corrected"]
)
def test_aem_calibrates_itself(weight, name, size):
    """The coefficients of a scope average to 1 over its responses, in every possible group."""
    need(TURN_WEIGHTS, weight)
    here = case(name, size)
    batch = here.batch
    coefficients = TURN_WEIGHTS[weight](batch, BASES["grpo"](batch)).double()
    real = batch.turn_lengths() > 0
    scopes = len(batch.rewards) if weight == "aem_traj_norm" else len(here.groups)
    means = (coefficients * real).view(scopes, -1).sum(1) / real.view(scopes, -1).sum(1)
    torch.testing.assert_close(means, torch.ones_like(means), **EXACT)
    assert (coefficients[real] > 0).all()
    assert (coefficients - 1).abs().max() > 0.1, "nothing was modulated"


@every_case
def test_keep_entropy_up_and_down_share_what_aem_moves(name, size):
    """Each response that AEM would move, and that has credit, is kept by exactly one of them."""
    for weight in ("aem", "keep_entropy_up", "keep_entropy_down"):
        need(TURN_WEIGHTS, weight)
    here = case(name, size)
    batch = here.batch
    base = BASES["rloo"](batch)
    alpha, up, down = (
        TURN_WEIGHTS[weight](batch, base)
        for weight in ("aem", "keep_entropy_up", "keep_entropy_down")
    )
    product = batch.turn_sums(base) * (alpha - 1)
    real = batch.turn_lengths() > 0
    assert torch.equal((up > 0) & real, (product < 0) & real)
    assert torch.equal((down > 0) & real, (product > 0) & real)


@pytest.mark.parametrize(("name", "size"), [("fractional", 2), ("binary", 2), ("binary", 3)])
def test_bias_of_suffix_mask(name, size):
    """It is the withheld penalty: nothing at the first turn, and only what the gate let go."""
    need(TURN_WEIGHTS, "suffix_mask")
    here = case(name, size)
    found = here.expected_gradient(
        advantages(here, "rloo", "suffix_mask", weight_options={"c": 1.2})
    )
    torch.testing.assert_close(found, here.direct_gradient(weighted(suffix_mask)), **EXACT)
    truth = here.exact_gradient()
    bias = found - truth
    relative, _ = print_bias(here, "rloo", found)
    print(f"slope of the value along the bias: {float(bias @ truth):.6f}")
    assert relative > 1e-3
    start = here.starting_in(here.tree.start)
    torch.testing.assert_close(bias[start], torch.zeros_like(bias[start]), **EXACT)

    def withheld(group: list[Trace]) -> list[list[float]]:
        pairs = zip(weighted(suffix_mask)(group), rloo(group), strict=True)
        return [[some - all_of_it for some, all_of_it in zip(*pair, strict=True)] for pair in pairs]

    torch.testing.assert_close(bias, here.direct_gradient(withheld), **EXACT)


@pytest.mark.parametrize(("name", "size"), [("binary", 2), ("binary", 3)])
def test_a_gate_that_always_opens_shrinks_the_suffix_by_the_success_rate(name, size):
    """With the gate at turn 0 whatever happens, rewards 0 and 1, and any leave-one-out baseline.

    A failed suffix then loses its mean penalty, the success rate p of the others: what is left of
    the suffix's gradient is (1 - p) of the exact one, same direction; the first turn has all of it.
    So masking is gentle while the policy fails and strong once it succeeds.
    """
    need(TURN_WEIGHTS, "suffix_mask")
    here = case(name, size)
    always = {"rule": "absolute", "floor": 0.0}
    found = here.expected_gradient(advantages(here, "rloo", "suffix_mask", weight_options=always))
    p = float(exact.values(here.tree, here.logits).states[0])
    left = 1 - p * (~here.starting_in(here.tree.start)).double()
    torch.testing.assert_close(found, left * here.exact_gradient(), **EXACT)


OWN_SIGNAL = {"empg", "igpo", "adrs", "gae", "vineppo"}
"""Not a function of rewards alone, so equal rewards need not give 0."""


@pytest.mark.parametrize("weight", TURN_WEIGHTS)
@pytest.mark.parametrize("base", BASES)
def test_every_pair(base, weight):
    """No pair moves the policy when all rewards are equal; each pair's bias is printed."""
    here = case("small", 2)
    found = here.expected_gradient(advantages(here, base, weight))
    assert found.isfinite().all()
    bias, _ = print_bias(here, base, found)
    if base == "rloo":
        assert (bias > 1e-3) == (weight != "none"), "a weight without effect proves nothing"
    if base in OWN_SIGNAL:
        return
    equal = here.batch.replace(
        rewards=torch.full_like(here.batch.rewards, 0.7),
        turn_rewards=torch.zeros_like(here.batch.turn_rewards),
    )
    options = _weight_options(weight, equal)
    gamma = {"gamma": 1.0} if "gamma" in option_names(BASES[base]) else {}
    still = token_advantages(equal, base, weight, gamma, options)
    assert (still == 0).all()
