"""What turns were worth while a policy was trained, and whether each method's credit agrees.

At chosen moments of a run fresh groups are played by the policy of that moment and audited; every
method is asked what it would give those very turns.  Moments of a run are pooled, turn by turn.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from turncredit.audit.blame import Method, credits
from turncredit.audit.comparison import comparison_table, has_failed, turn_means
from turncredit.audit.estimates import Audit, AuditSettings, audit_turns
from turncredit.audit.labels import labels_of
from turncredit.audit.recordings import PlayedStep, played_step
from turncredit.audit.replay import replay
from turncredit.audit.stages import WHOLE, Row
from turncredit.decisions import HEADLINE, case_of
from turncredit.environments.protocol import Environment
from turncredit.policies.protocol import Policy, Tokens
from turncredit.rollout import roll_out
from turncredit.worlds.base import Question
from turncredit.worlds.difficulty import difficulty_bins

MEASURES = ("correlation", "sign_errors", "blame_on_right", "credit_on_wrong")
"""Columns of `comparison_table` that are kept of every method and bin."""
SUMS = ("turns", "right", "wrong", "true_mean", "reliability")
"""Those that are the same for all methods."""
TRUTH: Method = ("true_advantage", "none")
Log = TypeVar("Log")


class Moment(NamedTuple):
    """What a policy played after so many training steps, and what its turns were worth."""

    played: PlayedStep
    audit: Audit
    assigned: Mapping[Method, Tensor]
    """[B, T] float64: what each method gave the turns."""
    difficulties: Sequence[Mapping[str, str]]
    """Of each trajectory's question."""


def audited_moment(
    policy: Policy,
    vocabulary: Tokens,
    environment: Environment,
    questions: Sequence[Question],
    methods: Sequence[Method],
    settings: AuditSettings,
    *,
    group_size: int,
    max_turn_tokens: int,
    seed: int,
    step: int,
) -> Moment:
    """`group_size` trajectories of each question by the policy after `step` steps, audited.

    Every random number is a function of seed and step.  Raises what `replay` and `audit_turns`
    raise.
    """
    asked = [question for question in questions for _ in range(group_size)]
    drawn = {"seed": seed, "step": step}
    parts = (policy, vocabulary, environment)
    trajectories = roll_out(*parts, asked, max_turn_tokens=max_turn_tokens, **drawn)
    starts = replay(environment, vocabulary, asked, trajectories, **drawn)
    played = played_step(step, trajectories, group_size)
    shape = tuple(played.batch.turn_lengths().shape)
    audit = audit_turns(*parts, starts, settings, max_turn_tokens=max_turn_tokens, shape=shape)
    assigned = {
        method: turn_means(played.batch, advantages)
        for method, advantages in credits(played, methods).items()
    }
    return Moment(played, audit, assigned, [difficulty_bins(question) for question in asked])


def between_steps(
    logs: Iterable[Log], steps: Collection[int], look: Callable[[int], None]
) -> Iterator[Log]:
    """Hand on the logs of training steps 0, 1, ...; before step s in `steps` look(s) is called.

    That is also after the last step, if that many are in `steps`.

    >>> seen = []
    >>> list(between_steps("ab", [0, 2], seen.append)), seen
    (['a', 'b'], [0, 2])
    """
    done = 0
    if done in steps:
        look(done)
    for done, log in enumerate(logs, start=1):
        yield log
        if done in steps:
            look(done)


def worth_rows(moments: Sequence[Moment], run: Mapping[str, Any]) -> list[Row]:
    """How each method's credit compares with the truth: tidy rows of one `value` each.

    by and bin: those of `comparison_table` over all moments together, and by "stage" the moments
    one by one, by their step.  `measure`: MEASURES; of the base and weight of TRUTH, which is no
    method here but the audit itself, SUMS and of the turns' standard errors `error`, their root
    mean square, and `worst`, the largest.
    run: columns that go before, such as seed and block.
    """
    tables = [(WHOLE, _pooled(moments)), *((str(m.played.step), _pooled([m])) for m in moments)]
    rows: list[Row] = []
    for stage, pool in tables:
        names = {f"{base} {weight}": (base, weight) for base, weight in pool.assigned}
        given = dict(zip(names, pool.assigned.values(), strict=True))
        found = comparison_table(pool.audit, pool, given, difficulties=pool.difficulties)
        for row in found if stage == WHOLE else (row for row in found if row["by"] == "all"):
            base, weight = names[row["method"]]
            place = {"by": row["by"], "bin": row["bin"]}
            if stage != WHOLE:
                place = {"by": "stage", "bin": stage}
            method = dict(run) | {"base": base, "weight": weight} | place
            rows += [method | {"measure": name, "value": row[name]} for name in MEASURES]
            if row["method"] == next(iter(names)):
                truth = method | dict(zip(("base", "weight"), TRUTH, strict=True))
                rows += [truth | {"measure": name, "value": row[name]} for name in SUMS]
        errors = pool.audit.errors[~pool.audit.errors.isnan()]
        place = {"by": "all" if stage == WHOLE else "stage", "bin": stage}
        truth = dict(run) | dict(zip(("base", "weight"), TRUTH, strict=True)) | place
        for name, value in (("error", errors.square().mean().sqrt()), ("worst", errors.max())):
            rows.append(truth | {"measure": name, "value": value.item()})
    return rows


def cost_rows(moments: Sequence[Moment], run: Mapping[str, Any]) -> list[Row]:
    """What the audit of each moment took, and the trajectories it was about: tidy rows.

    `measure`: `trajectories`, their `turns_audited`, and `Audit.cost`.
    """
    rows: list[Row] = []
    for moment in moments:
        counts = {
            "trajectories": len(moment.played.trajectories),
            "turns_audited": int((~moment.audit.errors.isnan()).sum()),
            **moment.audit.cost,
        }
        place = dict(run) | {"stage": str(moment.played.step)}
        rows += [place | {"measure": name, "value": float(v)} for name, v in counts.items()]
    return rows


def ledger_of_one(moments: Sequence[Moment]) -> list[Row]:
    """A failed trajectory under every method beside the truth: the advantage of each of its turns.

    Of all moments that with the decision alone wrong (HEADLINE) if there is one, and the longest of
    these.  The first rows, base and weight of TRUTH, are what the turns were worth; `error` is the
    standard error there and 0 elsewhere.  [] if no trajectory failed.
    """
    best: tuple[bool, int] | None = None
    for moment in moments:
        failed = has_failed(moment.played.batch)
        for row, labels in enumerate(labels_of(moment.played.trajectories)):
            size = (case_of(labels) == HEADLINE, len(labels))
            if failed[row] and (best is None or size > best):
                best, chosen = size, (moment, row, labels)
    return [] if best is None else _ledger(*chosen)


def _ledger(moment: Moment, row: int, labels: Sequence[str]) -> list[Row]:
    tables = {TRUTH: moment.audit.advantages} | dict(moment.assigned)
    errors = {TRUTH: moment.audit.errors}
    turns = moment.played.trajectories[row].turns
    return [
        {"step": moment.played.step, "base": base, "weight": weight, "turn": number}
        | {"action": turn.action, "label": labels[number], "advantage": table[row, number].item()}
        | {"error": errors[base, weight][row, number].item() if (base, weight) in errors else 0.0}
        for (base, weight), table in tables.items()
        for number, turn in enumerate(turns)
    ]


class _Pool(NamedTuple):
    """Turns of several moments as one table; enough for `comparison_table`."""

    audit: Audit
    assigned: dict[Method, Tensor]
    success: Tensor
    rewards: Tensor
    difficulties: list[Mapping[str, str]]


def _pooled(moments: Sequence[Moment]) -> _Pool:
    width = max(moment.audit.advantages.shape[1] for moment in moments)

    def joined(tables: Iterable[Tensor]) -> Tensor:
        wide = [pad(t.double(), (0, width - t.shape[1]), value=torch.nan) for t in tables]
        return torch.cat(wide)

    names = ("values", "action_values", "advantages", "errors")
    parts = [joined(getattr(moment.audit, name) for moment in moments) for name in names]
    methods = {m: joined(moment.assigned[m] for moment in moments) for m in moments[0].assigned}
    success, rewards = (
        torch.cat([getattr(moment.played.batch, name) for moment in moments])
        for name in ("success", "rewards")
    )
    bins = [found for moment in moments for found in moment.difficulties]
    return _Pool(Audit(*parts, {}), methods, success, rewards, bins)
