"""What a privileged teacher is worth: ADRS beside returns, labels and true turn advantages.

ADRS (arXiv 2608.03223) wants credit that is associated with returns.  Every function takes a batch
with `teacher_logprobs`; rows are tidy, one `value` of one `measure` each, without seed and stage.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from turncredit.audit.comparison import comparison_table, turn_means
from turncredit.audit.estimates import Audit
from turncredit.audit.stages import Row, share
from turncredit.batching import TurnBatch
from turncredit.credit import BASES
from turncredit.credit.teacher import gates, heard, teacher_scores
from turncredit.dynamic_sampling import usable_groups
from turncredit.environments.oracle import FOLLOWS, LABELS, RIGHT, WRONG

Options = Mapping[str, Any]
"""Of the base `adrs`; what is not given has the published default."""

AGREEMENT = ("correlation", "sign_errors")
"""Columns of `comparison_table` that tell how well credit agrees with true advantages."""


def consequence_rows(arm: str, batch: TurnBatch, options: Options) -> list[Row]:
    """How far each part of an ADRS arm moves a token's advantage at the most.

    `measure`: `rewards`, what adding the shaped scores to the rewards changes in the advantages of
    the base that ADRS is put on; `gate`, what the gate changes in those of ADRS; `turns`, what ADRS
    adds to a turn as a whole, its mean; `tokens`, what it adds to a token.  As published the first
    is 0, since scores sum to 0 over a turn; so is the second at level "completion", where the gate
    is one number for a group and standardising divides it out.
    """
    plain, whole = _inner(batch, options), BASES["adrs"](batch, **options)
    ungated = BASES["adrs"](batch, **{**options, "level": "none"})
    rewarded = _inner(batch.replace(rewards=shaped_rewards(batch, options)), options)
    added = whole - plain
    found = {
        "rewards": _largest(batch, rewarded - plain),
        "gate": _largest(batch, whole - ungated),
        "turns": turn_means(batch, added).nan_to_num(nan=0.0).abs().max().item(),
        "tokens": _largest(batch, added),
    }
    return _tidy(arm, found)


def shaped_rewards(batch: TurnBatch, options: Options) -> Tensor:
    """[B]: the rewards with each trajectory's shaped scores added, as ADRS writes them down.

    A group of equal rewards is left as it is, as in the base.
    """
    given = {p.name: p.default for p in inspect.signature(BASES["adrs"]).parameters.values()}
    given |= options
    said = heard(batch)
    shape = {name: given[name] for name in ("centre", "scale", "completion")}
    rule = {name: given[name] for name in ("level", "temperature", "tau", "completion", "gamma")}
    useful = gates(batch, said, **rule, normalise=given["normalise_gate"])
    shaped = given["eta"] * useful * teacher_scores(batch, said, **shape)
    sums = torch.zeros(len(batch.rewards), dtype=shaped.dtype)
    sums = sums.index_add(0, said.tokens.rows, shaped)
    contrast = usable_groups(batch.rewards, batch.group_ids) & said.rows
    return batch.rewards + torch.where(contrast, sums, 0.0).to(batch.rewards.dtype)


def preference(batch: TurnBatch, scores: Tensor) -> float:
    """Chance that of a success and a failure of one group the success has the larger of `scores`.

    scores: [B], NaN for a trajectory that has none; equal ones count half.  0.5: no association
    with the return.  NaN without such a pair.

    >>> from turncredit.batching import two_turns_and_one
    >>> batch = two_turns_and_one()  # the second succeeds
    >>> preference(batch, torch.tensor([0.1, 0.4])), preference(batch, torch.tensor([0.2, 0.2]))
    (1.0, 0.5)
    """
    known = ~batch.rewards.isnan() & ~scores.isnan()
    won, lost = batch.success & known, ~batch.success & known
    pairs = won[:, None] & lost & (batch.group_ids[:, None] == batch.group_ids)
    better = (scores[:, None] > scores).double() + 0.5 * (scores[:, None] == scores)
    return share(better[pairs].sum().item(), int(pairs.sum()))


def association_rows(batch: TurnBatch, teachers: Mapping[str, Tensor]) -> list[Row]:
    """Whether what teachers and the policy itself find likely goes with success, by who is asked.

    teachers: [B, L] log-probs by skill text.  `measure`: `preference` of mean log-probs per token
    (the policy's own as arm "policy"); `gap`, the same of what the text adds to them, for teachers;
    `tva`, the mean teacher value advantage over groups with contrast, whole trajectories compared.
    """
    own, rows = _means(batch, batch.old_logprobs), []
    for skill, logprobs in teachers.items():
        taught = batch.replace(teacher_logprobs=logprobs)
        said = _means(batch, logprobs)
        found = {
            "preference": preference(batch, said),
            "gap": preference(batch, said - own),
            "tva": mean_value_advantage(taught),
        }
        rows += _tidy(arm_of(skill), found)
    return rows + _tidy("policy", {"preference": preference(batch, own)})


def mean_value_advantage(batch: TurnBatch, *, temperature: float = 1.0) -> float:
    """Mean over groups with contrast of ADRS's TVA, a trajectory one completion; NaN for none."""
    said = heard(batch)
    gate = gates(
        batch, said, level="completion", temperature=temperature, tau=1.0,
        completion="trajectory", gamma=1.0, normalise=False,
    )  # fmt: skip
    contrast = (usable_groups(batch.rewards, batch.group_ids) & said.rows)[said.tokens.rows]
    groups = batch.group_ids[said.tokens.rows][contrast]
    values = {int(g): v for g, v in zip(groups, gate[contrast].logit().tolist(), strict=True)}
    return share(sum(values.values()), len(values))


def agreement_rows(
    batch: TurnBatch,
    audit: Audit,
    labels: Tensor,
    credits: Mapping[str, Tensor],
    signals: Mapping[str, Tensor],
) -> list[Row]:
    """What arms give to turns beside what turns were worth and what the oracle says of them.

    labels: [B, T], places in `LABELS`, -1 for no turn; credits: [B, L] token advantages by arm;
    signals: [B, L] by arm, of tokens too and in another unit, NaN where unknown.  `measure`:
    AGREEMENT of a turn's mean with its true advantage (`comparison_table`), `reliability` of these;
    of credits `label_shares`.
    """
    rows = []
    for arm, values in {**credits, **signals}.items():
        assigned = turn_means(batch, values)
        table = comparison_table(_known_only(audit, assigned), batch, {arm: assigned})
        (found,) = (row for row in table if row["by"] == "all")
        measures = {name: found[name] for name in (*AGREEMENT, "reliability")}
        if arm in credits:
            measures |= label_shares(batch, labels, values)
        rows += _tidy(arm, measures)
    return rows


def label_shares(batch: TurnBatch, labels: Tensor, advantages: Tensor) -> dict[str, float]:
    """Of token advantages [B, L]: blame that falls on right turns, credit that falls on wrong ones.

    `blame_on_right` (or following from a wrong decision) / all blame; `credit_on_wrong` / all
    credit; blame is what is below 0 of the advantages, credit what is above.
    """
    blame, credit = (batch.turn_sums((sign * advantages).clamp(min=0)) for sign in (-1, 1))
    right = (labels == LABELS.index(RIGHT)) | (labels == LABELS.index(FOLLOWS))
    return {
        "blame_on_right": share(blame[right].sum().item(), blame.sum().item()),
        "credit_on_wrong": share(
            credit[labels == LABELS.index(WRONG)].sum().item(), credit.sum().item()
        ),
    }


def arm_of(skill: str) -> str:
    """What tables and figures call the teacher with a skill text.

    >>> arm_of("moves")
    'teacher_moves'
    """
    return f"teacher_{skill}"


def _known_only(audit: Audit, values: Tensor) -> Audit:
    """The audit without the turns that are assigned nothing, such as by a silent teacher."""
    advantages = torch.where(values.isnan(), torch.nan, audit.advantages)
    return Audit(audit.values, audit.action_values, advantages, audit.errors, audit.cost)


def _inner(batch: TurnBatch, options: Options) -> Tensor:
    """The base that ADRS is put on."""
    return BASES[options.get("base", "grpo")](batch, **(options.get("base_options") or {}))


def _means(batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """[B] float64: mean over a trajectory's sampled tokens; NaN for none, or a silent teacher."""
    return batch.turn_sums(logprobs).sum(dim=1) / batch.turn_lengths().sum(dim=1)


def _largest(batch: TurnBatch, values: Tensor) -> float:
    return values[batch.response_mask].abs().max().item()


def _tidy(arm: str, found: Mapping[str, float]) -> list[Row]:
    return [{"arm": arm, "measure": name, "value": value} for name, value in found.items()]
