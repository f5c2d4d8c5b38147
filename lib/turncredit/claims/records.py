"""What a claim is, and the file that holds them."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turncredit import params

CLAIMS = Path(__file__).with_name("claims.yaml")

KEYS = ("task", "arm", "seed", "block", "run")
"""Columns every table of outcomes has: which run, its warm start, and the file it was read from."""

_WINDOWS = (
    *"reward entropy clip_fraction turns accuracy_turn_1 entropy_turn_0 entropy_turn_1".split(),
    *"turn_ratio_turn_0 divergence_turn_2".split(),
)

MEASURED = (
    "exact_match_at_budget", "pass_1", "pass_5", "pass_8", "own_clusters", "branch_concentration",
    "high_in_rows", "spent_calls", "entropy_sd", "error_share", "match_share", "rescued_share",
)  # fmt: skip
"""Columns that measures.csv of a notebook has where its runs were played again after training, or
compared at an equal budget; see `plots.rollout_rows.measure_rows`."""

DECISIONS = ("failed_decision_alone", "execution_right")
"""Columns of metrics.csv whose mean over all steps is a quantity."""

PROBED = ("probe_pearson", "probe_sign_agreement")
"""Numbers of a surprisal probe."""

QUANTITIES = (
    *"collapsed shifted exact_match grounded search_first turns turns_sd malformed".split(),
    *"unstable reward_lost reward_early reward_end turns_early".split(),
    *"entropy_early entropy_end clip_fraction_max mismatch_max".split(),
    *"entropy_turn_0_rise first_tokens_alike_turn_0 shift_length ratio_lead_turn_0".split(),
    *"divergence_follows_turn_2".split(),
    *PROBED,
    *DECISIONS,
    *(f"{name}_{period}" for name in _WINDOWS for period in ("before", "after")),
    *MEASURED,
)
"""Columns that a claim may measure, a number per run; NaN where a run has none.

collapsed, shifted: 1 or 0; unstable: 1 if either.  exact_match, grounded, search_first, turns,
turns_sd (standard deviation over trajectories), malformed: of the final evaluation.  reward_end,
entropy_end: means over the last steps; reward_early, entropy_early, turns_early: over the first.
reward_lost: 1 if reward_end is below a tenth of the greatest mean reward of as many successive
steps, else 0.  clip_fraction_max, mismatch_max: greatest of any step.  ..._before, ..._after: means
over the steps that `stats.windows` puts around the shift, or at the two ends of a run without one;
turn_ratio_turn_0: the mean importance ratio of turn 0; divergence_turn_2: that of turn 2 from the
reference policy (k1).  entropy_turn_0_rise: greatest mean of as many successive steps after the
first ones, minus the mean of those: one rule for every run, whether it shifts or not.

Of the curves around a shift, NaN without one: shift_length, steps that search-first takes from the
one level to the other (`stats.transition`); ratio_lead_turn_0, steps by which the mean ratio of
turn 0 changes its level before search-first does, both dated by one rule (`stats.level_step`) over
the windows and what lies between; divergence_follows_turn_2, Pearson's r over the same steps of
divergence_turn_2 and the entropy of turn 0.  first_tokens_alike_turn_0: Pearson's r over the steps
of the entropies of the first 8 and the first 128 tokens of turn 0, NaN where they never differ.

probe_...: agreement of AEM's coefficients with sampled surprisals over the states of one policy,
with its interval over these in ..._low and ..._high, and probe_states of them.  Means over all
steps: those of DECISIONS (`decisions.decision_shares`).  Last, those of MEASURED.  Shares of 1, not
percent; entropies in nats.
"""

_FLAGS = ("collapsed", "shifted", "unstable", "reward_lost")
_CORRELATIONS = ("probe_pearson", "first_tokens_alike_turn_0", "divergence_follows_turn_2")
_SHARES = (
    *_FLAGS, *DECISIONS, "exact_match", "grounded", "search_first", "malformed",
    "probe_sign_agreement", "exact_match_at_budget", "pass_1", "pass_5", "pass_8",
    "branch_concentration", "high_in_rows", "error_share", "match_share", "rescued_share",
    "clip_fraction_max", "mismatch_max",
    "clip_fraction_before", "clip_fraction_after", "accuracy_turn_1_before",
    "accuracy_turn_1_after",
)  # fmt: skip
_ANY = (
    "entropy_turn_0_rise", "ratio_lead_turn_0", "divergence_turn_2_before",
    "divergence_turn_2_after",
)  # fmt: skip


def quantity_range(quantity: str) -> tuple[float, float]:
    """Least and greatest value that a run can have: shares, correlations, and what is never
    negative; a reward may be, where a penalty enters it.

    >>> quantity_range("grounded"), quantity_range("turns")
    ((0.0, 1.0), (0.0, inf))
    """
    if quantity in _SHARES:
        return 0.0, 1.0
    if quantity in _CORRELATIONS:
        return -1.0, 1.0
    free = quantity in _ANY or quantity.startswith("reward_")
    return (-math.inf if free else 0.0), math.inf


@dataclass(frozen=True)
class Measurement:
    """How a claim is tested: which number of which runs, and where it must lie."""

    KIND = "measured"

    rule: Literal["mean", "share", "difference", "share_difference", "sd_ratio", "probe"]
    """mean, share: of `arm`; difference (paired by seed), share_difference: `arm` minus
    `reference`; sd_ratio: standard deviation over seeds, `arm` over `reference`; probe: of the one
    policy that was probed without being trained, with the interval over its states, which are what
    varies: such a policy has no seeds."""
    quantity: dict[str, float]
    """The number of a run: a sum of columns, each times its factor."""
    among: Literal["all", "shifted"]
    """Runs that count: all, or those whose behaviour shifted."""
    tasks: tuple[str, ...]
    """Each is judged by itself."""
    arm: str
    reference: str | None
    inside: tuple[float | None, ...]
    """Least and greatest value for which the claim holds, both excluded; null: no bound."""
    effect: float | None
    """The published size of the same quantity, null if it is unknown or not comparable here."""
    note: str
    """In what the test departs from the source, the end of every reason; "": in nothing more."""
    reference_task: str | None = field(default=None, metadata=params.OPTIONAL)
    """The task whose runs of `reference` are compared with; null: the same."""
    own_below: float | None = field(default=None, metadata=params.OPTIONAL)
    """For a claim that `arm` prevents something: the share of its own runs in which it happens lies
    below this as well."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.quantity if name not in QUANTITIES]
        if unknown or not self.quantity:
            named = repr(unknown[0]) if unknown else "nothing"
            raise ValueError(f"quantity names {named}; known: {', '.join(QUANTITIES)}")
        if (self.reference is None) != (self.rule in ("mean", "share", "probe")):
            raise ValueError(f"reference = {self.reference!r} does not suit rule {self.rule!r}")
        if len(self.inside) != 2 or self.inside == (None, None):
            raise ValueError(f"inside = {list(self.inside)} is not [least, greatest]")
        if None not in self.inside and self.inside[0] >= self.inside[1]:
            raise ValueError(f"inside = {list(self.inside)} holds no value")
        if self.effect is not None and not _between(self.inside, self.effect):
            raise ValueError(f"effect = {self.effect} is outside {list(self.inside)}")
        if not self.tasks:
            raise ValueError("tasks is empty")
        if self.reference_task is not None and self.rule != "difference":
            raise ValueError(f"reference_task does not suit rule {self.rule!r}")
        if self.own_below is not None and self.rule != "share_difference":
            raise ValueError(f"own_below does not suit rule {self.rule!r}")
        if self.rule == "probe" and (len(self.quantity) > 1 or self.among != "all"):
            raise ValueError("rule 'probe' takes one quantity, among all runs")


@dataclass(frozen=True)
class NotTestable:
    """A claim that nothing here can test."""

    KIND = "not_testable"

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("reason is empty")


@dataclass(frozen=True)
class Claim:
    """One sentence of a source that could be wrong."""

    id: str
    source: Literal[
        "slides", "AEM v1", "AEM later version", "AEPO", "CLEANER", "ADRS", "ActGuide-RL"
    ]
    where: str
    """Section, figure or table."""
    sentence: str
    """What is claimed, in this project's words."""
    published: dict[str, float]
    """The numbers of the source, by what they are; empty if it gives none."""
    unit: str
    test: Measurement | NotTestable


def arms_of(test: Measurement, task: str) -> list[tuple[str, str]]:
    """Task and name of the arm, and of the reference if there is one."""
    if test.reference is None:
        return [(task, test.arm)]
    return [(task, test.arm), (test.reference_task or task, test.reference)]


@dataclass(frozen=True)
class _ClaimFile:
    claims: tuple[Claim, ...]

    def __post_init__(self) -> None:
        ids = [claim.id for claim in self.claims]
        repeated = [name for name in ids if ids.count(name) > 1]
        if repeated:
            raise ValueError(f"claim {repeated[0]!r} is there twice")


def read_claims(path: Path = CLAIMS) -> tuple[Claim, ...]:
    """The claims of a file; ValueError naming file, key and value where one is not as it should."""
    return params.load(_ClaimFile, path).claims


def _between(bounds: tuple[float | None, ...], value: float) -> bool:
    low, high = bounds
    return (low is None or low < value) and (high is None or value < high)
