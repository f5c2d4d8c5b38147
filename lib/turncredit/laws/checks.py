"""The laws one by one: each tries to break its promise, and says where it did."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from turncredit.laws.bias import tree_bias
from turncredit.laws.cases import Case, example, random_batch
from turncredit.laws.examples import (
    current_logprobs,
    insert_observations,
    make_batch,
    poison,
    with_masked_rows,
)
from turncredit.option_ranges import check_choice

JUNK = (math.nan, math.inf, -math.inf, 1e30)
STATES = ("holds", "broken", "not asked")
Law = Callable[[Case], "str | None"]
FACTORIES = (
    torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones,
    torch.rand, torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros,
)  # fmt: skip
"""What makes a tensor on the CPU, unless `device=` says where."""


class Verdict(NamedTuple):
    """What a law says of an estimator."""

    law: str
    state: str
    """One of STATES."""
    detail: str = ""
    """What broke it, or why it was not asked."""


class NotAsked(Exception):
    """The law has nothing to ask of this estimator; the message says why."""


def arguments(case: Case) -> str | None:
    """It takes `batch` (a weight `base` too); everything else is keyword-only, with a default."""
    function = case.table[case.name]
    handed = 1 if case.table.kind == "base" else 2
    found = list(inspect.signature(function).parameters.values())
    for parameter in found[handed:]:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            return f"the argument {parameter.name} is not keyword-only"
        provided = parameter.name in ("logprobs", "generator", "reference")
        if parameter.default is parameter.empty and not provided:
            return f"the option {parameter.name} has no default"
    return None if len(found) >= handed else f"it takes {len(found)} arguments, not {handed}"


def repeatable(case: Case) -> str | None:
    """Called twice, it gives the same numbers, and leaves the batch as it was."""
    batch, logprobs = example(), current_logprobs(example())
    before = {f.name: getattr(batch, f.name).clone() for f in fields(batch)}
    first, second = (dict(case.results(batch, logprobs)) for _ in range(2))
    for name, value in before.items():
        if not torch.equal(torch.nan_to_num(getattr(batch, name)), torch.nan_to_num(value)):
            return f"it changed the batch's {name}"
    return _first_difference(second, first)


def observations(case: Case) -> str | None:
    """Observation tokens inserted anywhere change nothing at sampled ones, bit for bit."""
    batch, logprobs = example(), current_logprobs(example())
    expected = dict(case.results(batch, logprobs))
    for extra, seed in ((1, 0), (7, 1), (40, 2)):
        longer = insert_observations(batch, logprobs, extra=extra, seed=seed, junk=0.3)
        for partner, found in case.results(*longer):
            sampled = found[longer[0].response_mask]
            if not torch.equal(sampled, expected[partner][batch.response_mask]):
                moved = _moved(sampled, expected[partner][batch.response_mask])
                return f"with {extra} more columns {moved}"
    return None


def outside(case: Case) -> str | None:
    """What stands outside `response_mask` never matters, NaN and infinity included."""
    batch, logprobs = example(), current_logprobs(example())
    expected = dict(case.results(batch, logprobs))
    for junk in JUNK:
        found = _first_difference(dict(case.results(*poison(batch, logprobs, junk=junk))), expected)
        if found:
            return f"with {junk} there, {found}"
    return None


def alone(case: Case) -> str | None:
    """A group alone has the numbers that it has beside others."""
    _require_fixed(case)
    if case.scope == "batch":
        raise NotAsked("scope is batch: other groups may matter")
    batch, logprobs = example(), current_logprobs(example())
    together = dict(case.results(batch, logprobs))
    for group in batch.group_ids.unique().tolist():
        rows = batch.group_ids == group
        for partner, found in case.results(batch.select(rows), logprobs[rows]):
            if not torch.equal(found, together[partner][rows]):
                moved = _moved(found, together[partner][rows])
                return f"group {group} alone: {moved}; with scope batch other groups may matter"
    return None


def order(case: Case) -> str | None:
    """Another order of the trajectories gives the same numbers in that order."""
    _require_fixed(case)
    batch, logprobs = example(), current_logprobs(example())
    straight = dict(case.results(batch, logprobs))
    for seed in range(3):
        stream = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(batch.rewards), generator=stream)
        for partner, found in case.results(batch.select(rows), logprobs[rows]):
            if not case.close(found, straight[partner][rows]):
                return f"order {rows.tolist()}: {_moved(found, straight[partner][rows])}"
    return None


def masked_rows(case: Case) -> str | None:
    """Rows without any sampled token get 0 and change nothing for the others."""
    _require_fixed(case)
    batch, logprobs = example(), current_logprobs(example())
    straight = dict(case.results(batch, logprobs))
    for partner, found in case.results(*with_masked_rows(batch, logprobs)):
        if found[:2].any() or not case.close(found[2:], straight[partner]):
            return _moved(found[2:], straight[partner])
    return None


def missing(case: Case) -> str | None:
    """A missing reward (NaN) gives its trajectory 0 and spoils no other."""
    batch, logprobs = example(), current_logprobs(example())
    unknown = batch.rewards.isnan()
    for partner, found in case.results(batch, logprobs):
        if found[unknown].any():
            return f"with {partner} the trajectory gets {found[unknown].abs().max():.4g}"
        if not found.isfinite().all():
            return f"with {partner} another trajectory gets NaN"
    return None


def any_batch(case: Case) -> str | None:
    """On any batch it is finite, 0 outside the mask, and 0 where nothing was sampled."""
    for seed in range(30):
        batch = random_batch(seed)
        for partner, found in case.results(batch, current_logprobs(batch, scale=2.0)):
            if not found.isfinite().all() or found[~batch.response_mask].any():
                return f"with {partner}, on random batch {seed}"
    empty = make_batch([[0, 0], [0]])
    for partner, found in case.results(empty, empty.old_logprobs):
        if found.any():
            return f"with {partner}, without a sampled token"
    return None


class _Elsewhere(TorchFunctionMode):
    """New tensors of which nobody says where they belong are on another device than the batch.

    But for tensors of a single number, which may meet those of any device.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made, named = function(*args, **(kwargs or {})), "device" in (kwargs or {})
        if function not in FACTORIES or named or not made.dim():
            return made
        return made.to("meta")


def device(case: Case) -> str | None:
    """Tensors that it makes are on the batch's device, on a GPU too."""
    batch, logprobs = example(), current_logprobs(example())
    with _Elsewhere():
        results = dict(case.results(batch, logprobs))
    left = [found.device for found in results.values() if found.device != batch.rewards.device]
    return f"its numbers are on {left[0]}" if left else None


LAWS: dict[str, Law] = {
    "arguments": arguments,
    "same again": repeatable,
    "observations": observations,
    "outside the mask": outside,
    "a group alone": alone,
    "order": order,
    "masked rows": masked_rows,
    "missing rewards": missing,
    "any batch": any_batch,
    "device": device,
}


def check(name: str, *, scope: str = "group") -> list[Verdict]:
    """Ask every law of the base or turn weight `name`; see `Case` for what is refused.

    scope: "batch" if other groups are meant to matter to it.  What an estimator raises counts
    against the law that met it.  Options stand at their defaults, but for those called `c` and
    `limit`, which are 1.1, a user's own too: a gate of that kind then masks something even in small
    examples.

    >>> [verdict.state for verdict in check("aem")] == ["holds"] * len(LAWS)
    True
    """
    check_choice("check", "scope", scope, ("group", "batch"))
    case = Case(name, scope)
    return [_asked(law, ask, case) for law, ask in LAWS.items()]


def report(name: str, verdicts: Sequence[Verdict]) -> str:
    """One line for each law: its name, what came of it, what it promises or what broke it."""
    lines = [f"{name}: {sum(v.state == 'broken' for v in verdicts)} of {len(verdicts)} laws broken"]
    for law, state, detail in verdicts:
        promise = " ".join((inspect.getdoc(LAWS[law]) or "").split())
        lines.append(f"{state:9}  {law:16}  {promise}" + (f"  ->  {detail}" if detail else ""))
    return "\n".join(lines)


def bias_line(name: str, *, scope: str = "group") -> str:
    """What `tree_bias` measures, in words; it is no law, but yours to know and to state."""
    case = Case(name, scope)
    beside = "alone" if case.table.kind == "base" else "on rloo"
    try:
        return f"measured   bias {beside}, over every group of a tree: {tree_bias(case)}"
    except ValueError as error:
        return f"measured   bias {beside}: not here ({error})"


def _asked(law: str, ask: Law, case: Case) -> Verdict:
    try:
        complaint = ask(case)
    except NotAsked as reason:
        return Verdict(law, "not asked", str(reason))
    except Exception as error:  # an estimator of a user's own may raise anything
        return Verdict(law, "broken", f"{type(error).__name__}: {error}")
    return Verdict(law, "broken", complaint) if complaint else Verdict(law, "holds")


def _require_fixed(case: Case) -> None:
    if case.draws:
        raise NotAsked("it draws its numbers row by row: other company means another draw")


def _first_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> str | None:
    for partner, values in expected.items():
        if not torch.equal(found[partner], values):
            return f"beside {partner} {_moved(found[partner], values)}"
    return None


def _moved(found: Tensor, expected: Tensor) -> str:
    """The first number that is another one."""
    differ = ~torch.isclose(found, expected, rtol=0, atol=0, equal_nan=True)
    place = tuple(differ.nonzero()[0].tolist()) if differ.any() else ()
    where = "token" if len(place) == 1 else "row and token"
    return f"{where} {', '.join(map(str, place))} got {found[place]:.6g}, not {expected[place]:.6g}"
