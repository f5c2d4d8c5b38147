"""Assigned credit beside true advantages: counted by hand, and extremes known in advance."""

import math

import pytest
import torch

from turncredit.audit import (
    Audit,
    comparison_table,
    correlation,
    ledger_rows,
    turn_means,
)
from turncredit.batching import TurnBatch
from turncredit.credit import token_advantages

NAN = math.nan
LENGTHS = torch.tensor([[2, 1, 3], [1, 2, 0], [1, 1, 0], [2, 1, 1]])
TRUE = torch.tensor([[-0.5, 0.2, 0.0], [0.3, 0.4, NAN], [0.01, -0.4, NAN], [-0.3, 0.1, 0.5]])
ERRORS = torch.where(TRUE.isnan(), NAN, torch.tensor(0.02))
SUCCESS = torch.tensor([False, True, False, True])


def batch() -> TurnBatch:
    """One group of four trajectories, of 3, 2, 2 and 3 turns, with an observation between turns."""
    rows = []
    for lengths in LENGTHS.tolist():
        turns = [turn for turn, n in enumerate(lengths) for turn in [-1] + [turn] * n]
        rows.append(turns)
    width = max(map(len, rows))
    turn_ids = torch.tensor([row + [-1] * (width - len(row)) for row in rows])
    return TurnBatch.checked(
        token_ids=torch.zeros_like(turn_ids),
        response_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        old_logprobs=torch.full(turn_ids.shape, -1.0),
        entropies=torch.full(turn_ids.shape, 0.5),
        rewards=SUCCESS.float(),
        success=SUCCESS,
        group_ids=torch.zeros(4, dtype=torch.int64),
    )


def audited(true=TRUE, errors=ERRORS) -> Audit:
    true = true.double()
    return Audit(torch.full_like(true, 0.5), 0.5 + true, true, errors.double(), {})


def table(assigned, **options):
    rows = comparison_table(audited(), batch(), {"given": assigned}, **options)
    return {(row["by"], row["bin"]): row for row in rows}


def test_the_batch_has_the_turns_of_the_audit():
    assert torch.equal(batch().turn_lengths(), LENGTHS)


def test_credit_that_is_the_truth_has_no_fault():
    found = table(TRUE.double())
    for row in found.values():
        assert row["sign_errors"] == row["silent"] == 0 or row["right"] + row["wrong"] == 0
        assert row["blame_on_right"] == 0 or math.isnan(row["blame_on_right"])
        assert row["credit_on_wrong"] == 0 or math.isnan(row["credit_on_wrong"])
    assert found["all", "all"]["correlation"] == pytest.approx(1.0)
    reverse = table(-TRUE.double())["all", "all"]
    assert (reverse["sign_errors"], reverse["correlation"]) == (1.0, pytest.approx(-1.0))
    assert reverse["credit_on_wrong"] == pytest.approx(1.2 / 1.2)


def test_one_number_for_a_trajectory_blames_right_turns_and_credits_wrong_ones():
    """GRPO by hand: blame 1 for each turn of rows 0 and 2, credit 1 for each of rows 1 and 3.

    Decided are all but the turns worth 0.0 and 0.01: right 0.2, 0.3, 0.4, 0.1 and 0.5; wrong -0.5,
    -0.4 and -0.3.  Of 5 blamed turns one is right and two are neutral; of 5 credited one is wrong.
    """
    given = turn_means(batch(), token_advantages(batch(), "dr_grpo", "none"))
    assert torch.equal(given.sign()[:, 0], torch.tensor([-1.0, 1.0, -1.0, 1.0]).double())
    row = table(given)["all", "all"]
    assert (row["turns"], row["right"], row["wrong"]) == (10, 5, 3)
    assert row["blame_on_right"] == pytest.approx(1 / 5)
    assert row["blame_on_neutral"] == pytest.approx(2 / 5)
    assert row["credit_on_wrong"] == pytest.approx(1 / 5)
    assert row["credit_on_neutral"] == 0
    assert row["sign_errors"] == pytest.approx(2 / 8)
    assert row["silent"] == 0
    assert row["true_mean"] == pytest.approx(0.031)
    assert row["assigned_mean"] == 0


def test_bins_are_turns_outcomes_and_difficulties_and_each_turn_is_in_one_of_a_kind():
    bins = [{"hops": "1 hop"}, {"hops": "2 hops"}, {"hops": "1 hop"}, {"hops": "2 hops"}]
    found = table(TRUE.double(), difficulties=bins)
    assert list(found) == [
        ("all", "all"), ("turn", "0"), ("turn", "1"), ("turn", "2"), ("outcome", "failed"),
        ("outcome", "succeeded"), ("hops", "1 hop"), ("hops", "2 hops"),
    ]  # fmt: skip
    for kind in ("turn", "outcome", "hops"):
        assert sum(row["turns"] for (by, _), row in found.items() if by == kind) == 10
    assert found["outcome", "failed"]["turns"] == 5
    assert found["turn", "2"]["turns"] == 2


def test_a_trajectory_without_a_reward_has_neither_failed_nor_succeeded():
    """The first of two failed ones, of three turns; its turns stay in the other bins."""
    rewards = batch().rewards.clone()
    rewards[0] = NAN
    rows = comparison_table(audited(), batch().replace(rewards=rewards), {"x": TRUE.double()})
    turns = {(row["by"], row["bin"]): row["turns"] for row in rows}
    assert turns["outcome", "failed"] == 2 and turns["outcome", "succeeded"] == 5
    assert turns["all", "all"] == 10


def test_a_silenced_turn_is_silent_and_no_sign_error():
    given = TRUE.double().clone()
    given[0, 0] = 0.0
    row = table(given)["all", "all"]
    assert (row["silent"], row["sign_errors"]) == (pytest.approx(1 / 8), 0)


def test_the_margin_decides_who_is_right_or_wrong():
    given = TRUE.double()
    decided = [table(given, margin=m)["all", "all"] for m in (0.0, 2.0, 12.0, 30.0)]
    assert [(row["right"], row["wrong"]) for row in decided] == [(6, 3), (5, 3), (3, 3), (0, 0)]
    assert math.isnan(decided[-1]["sign_errors"])


def test_reliability_is_the_share_that_is_not_noise():
    true = torch.tensor([[0.2, -0.2], [0.2, -0.2]]).double()
    variance = true.var().item()
    errors = torch.full((2, 2), math.sqrt(variance / 4)).double()
    audit = Audit(true, true, true, errors, {})
    shape = TurnBatch.checked(
        token_ids=torch.zeros(2, 2, dtype=torch.int64),
        response_mask=torch.ones(2, 2, dtype=torch.bool),
        turn_ids=torch.tensor([[0, 1], [0, 1]]),
        old_logprobs=torch.zeros(2, 2),
        entropies=torch.zeros(2, 2),
        rewards=torch.zeros(2),
        success=torch.tensor([False, True]),
        group_ids=torch.zeros(2, dtype=torch.int64),
    )
    row = comparison_table(audit, shape, {"x": true})[0]
    assert row["reliability"] == pytest.approx(0.75)


def test_what_is_assigned_to_a_turn_is_the_mean_over_its_own_tokens():
    some = batch()
    values = torch.arange(some.token_ids.numel()).view(some.token_ids.shape).double()
    values[~some.response_mask] = NAN
    means = turn_means(some, values)
    for row, turn in (LENGTHS > 0).nonzero().tolist():
        assert means[row, turn] == values[row][some.turn_ids[row] == turn].mean()
    assert means[LENGTHS == 0].isnan().all()


def test_a_ledger_shows_every_method_beside_the_truth():
    assigned = {"true": TRUE.double(), "none": torch.zeros(4, 3).double()}
    rows = ledger_rows(audited(), ["search", "answer"], assigned, 2)
    assert [row["action"] for row in rows] == ["search", "answer"]
    assert [row["true"] for row in rows] == pytest.approx([0.01, -0.4])
    assert [row["advantage"] for row in rows] == pytest.approx([0.01, -0.4])
    assert rows[1] == pytest.approx(
        {"turn": 1, "value": 0.5, "action_value": 0.1, "advantage": -0.4}
        | {"standard_error": 0.02, "true": -0.4, "none": 0.0} | {"action": "answer"}
    )  # fmt: skip


def test_correlation_of_nothing_is_unknown():
    one = torch.tensor([1.0])
    assert math.isnan(correlation(one, one))
    assert math.isnan(correlation(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])))
    assert correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0])) == 1.0


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="shape"):
        table(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="difficulties: 1 for 4"):
        table(TRUE.double(), difficulties=[{"hops": "x"}])
