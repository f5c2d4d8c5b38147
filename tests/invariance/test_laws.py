"""Laws 1 and 2 of the design, for every base x turn weight x objective in the tables.

1. Inserting observation tokens anywhere, with any values, changes nothing at sampled positions,
   bit for bit: advantages, loss, gradient and metrics.
2. A batch alone, beside others, permuted, in micro-batches, beside an all-masked row: same numbers
   and same accumulated gradient.

A method added to a table is covered without a change here.
"""

import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
from batches import (
    current_logprobs,
    insert_observations,
    make_batch,
    poison,
    ragged_batches,
    with_masked_rows,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.methods import option_names
from turncredit.objectives import AGGREGATIONS, OBJECTIVES, batch_totals

WHOLE_BATCH = {
    "reinforce_pp", "reinforce_pp_baseline", "gae", "empg", "aepo", "adrs",
    "aem_batch_norm", "high_entropy_turns", "scale_failed",
}  # fmt: skip
"""Defined by statistics over the whole batch: other groups do matter, rounding may differ."""

RANDOM = {name for name in TURN_WEIGHTS if "generator" in option_names(TURN_WEIGHTS[name])}
"""Draw their numbers row by row: another order or company of rows means another draw."""

PAIRS = list(product(BASES, TURN_WEIGHTS))
FIXED_PAIRS = [(base, weight) for base, weight in PAIRS if weight not in RANDOM]
GROUP_PAIRS = [pair for pair in FIXED_PAIRS if not WHOLE_BATCH & set(pair)]
CREDITS = [("grpo", "suffix_mask"), ("gae", "aem")]
"""A credit by trajectory and turn, and one free per token: enough for laws of objectives alone."""

every_pair = pytest.mark.parametrize(("base", "weight"), PAIRS)
every_fixed_pair = pytest.mark.parametrize(("base", "weight"), FIXED_PAIRS)
every_credit = pytest.mark.parametrize("names", CREDITS, ids=" x ".join)
JUNK = [math.nan, math.inf, -math.inf, 1e30]


class Outcome(NamedTuple):
    loss: Tensor
    gradient: Tensor
    metrics: dict[str, float]


def example() -> tuple[TurnBatch, Tensor]:
    """Two groups: ragged rows, empty turns, a single turn, a tie and a missing reward."""
    batch = make_batch(
        [[3, 2, 4], [1], [2, 0, 3], [4, 1], [0, 2, 2], [1, 1, 1], [2, 5]],
        rewards=[0.0, 1.0, 0.0, 0.2, 1.0, 0.0, math.nan],
        groups=[3, 3, 3, 8, 8, 8, 8],
        seed=5,
    )
    return batch, current_logprobs(batch)


def advantages_of(base: str, weight: str, batch: TurnBatch, logprobs: Tensor) -> Tensor:
    """Through `token_advantages`, with the same random numbers at every call.

    A generous gate (c) and limit, so that the small example does mask something.
    """
    common = {"logprobs": logprobs, "c": 1.1, "limit": 1.1}
    options = [
        _given(table[name], generator=torch.Generator().manual_seed(0), **common)
        for table, name in ((BASES, base), (TURN_WEIGHTS, weight))
    ]
    return token_advantages(batch, base, weight, *options)


def apply(
    objective: str, logprobs: Tensor, batch: TurnBatch, advantages: Tensor, **options
) -> Outcome:
    leaf = logprobs.clone().requires_grad_()
    known = _given(OBJECTIVES[objective], **options)
    loss, metrics = OBJECTIVES[objective](leaf, batch, advantages, **known)
    loss.backward()
    return Outcome(loss.detach(), leaf.grad, metrics)


def _given(function, **options) -> dict:
    return {name: value for name, value in options.items() if name in option_names(function)}


def assert_same_metrics(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def assert_equal_at_sampled(before: tuple, after: tuple, names: tuple[str, ...]) -> None:
    """`before` and `after`: (batch, logprobs).  Everything equal bit for bit where it matters."""
    base, weight = names
    masks = [batch.response_mask for batch, _ in (before, after)]
    advantages = [advantages_of(base, weight, *pair) for pair in (before, after)]
    assert torch.equal(advantages[0][masks[0]], advantages[1][masks[1]])
    assert (advantages[1][~masks[1]] == 0).all()
    for objective in OBJECTIVES:
        old, new = (
            apply(objective, logprobs, batch, advantage)
            for (batch, logprobs), advantage in zip((before, after), advantages, strict=True)
        )
        assert torch.equal(old.loss, new.loss)
        assert torch.equal(old.gradient[masks[0]], new.gradient[masks[1]])
        assert (new.gradient[~masks[1]] == 0).all()
        assert_same_metrics(new.metrics, old.metrics)


# law 1


def test_the_example_exercises_what_it_should():
    """Otherwise the laws could hold because nothing happens."""
    batch, logprobs = example()
    plain = advantages_of("grpo", "none", batch, logprobs)
    masked = advantages_of("grpo", "suffix_mask", batch, logprobs)
    assert (plain != 0).any()
    assert ((plain != 0) & (masked == 0)).any()
    outcome = apply("ppo_clip", logprobs, batch, masked)
    assert outcome.metrics["clip_fraction"] > 0
    assert (outcome.gradient != 0).any()


@every_pair
def test_inserted_observations_change_nothing(base, weight):
    batch, logprobs = example()
    longer = insert_observations(batch, logprobs, extra=7, seed=1)
    assert_equal_at_sampled((batch, logprobs), longer, (base, weight))


@every_pair
def test_values_outside_the_mask_never_reach_the_advantages(base, weight):
    batch, logprobs = example()
    expected = advantages_of(base, weight, batch, logprobs)
    for junk in JUNK:
        assert torch.equal(
            advantages_of(base, weight, *poison(batch, logprobs, junk=junk)), expected
        )
        for extra, seed in ((1, 0), (40, 2)):
            longer = insert_observations(batch, logprobs, extra=extra, seed=seed, junk=junk)
            found = advantages_of(base, weight, *longer)
            assert torch.equal(found[longer[0].response_mask], expected[batch.response_mask])
            assert (found[~longer[0].response_mask] == 0).all()


@every_credit
@pytest.mark.parametrize("junk", JUNK)
def test_values_outside_the_mask_never_reach_the_loss(names, junk):
    batch, logprobs = example()
    assert_equal_at_sampled((batch, logprobs), poison(batch, logprobs, junk=junk), names)


@given(
    ragged_batches(),
    st.sampled_from(PAIRS),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_inserted_observations_change_nothing_on_any_batch(batch, names, extra, seed):
    logprobs = current_logprobs(batch)
    longer = insert_observations(batch, logprobs, extra=extra, seed=seed)
    assert_equal_at_sampled((batch, logprobs), longer, names)


def test_junk_advantages_outside_the_mask_change_nothing():
    batch, logprobs = example()
    clean = advantages_of("grpo", "none", batch, logprobs)
    spoilt = clean.masked_fill(~batch.response_mask, math.nan)
    for objective in OBJECTIVES:
        old, new = (apply(objective, logprobs, batch, a) for a in (clean, spoilt))
        assert torch.equal(old.loss, new.loss)
        assert torch.equal(old.gradient, new.gradient)


# law 2


def close(base: str, weight: str, found: Tensor, expected: Tensor) -> bool:
    if {base, weight} & WHOLE_BATCH:
        return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    return torch.equal(found, expected)


@pytest.mark.parametrize(("base", "weight"), GROUP_PAIRS)
def test_a_group_alone_has_the_same_advantages(base, weight):
    batch, logprobs = example()
    together = advantages_of(base, weight, batch, logprobs)
    for group in batch.group_ids.unique():
        rows = batch.group_ids == group
        alone = advantages_of(base, weight, batch.select(rows), logprobs[rows])
        assert torch.equal(alone, together[rows])


@every_fixed_pair
def test_the_order_of_trajectories_does_not_change_advantages(base, weight):
    batch, logprobs = example()
    straight = advantages_of(base, weight, batch, logprobs)
    for seed in range(3):
        rows = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
        permuted = advantages_of(base, weight, batch.select(rows), logprobs[rows])
        assert close(base, weight, permuted, straight[rows])


@every_credit
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_order_of_trajectories_does_not_change_the_loss(names, objective):
    batch, logprobs = example()
    advantages = advantages_of(*names, batch, logprobs)
    old = apply(objective, logprobs, batch, advantages)
    for seed in range(3):
        rows = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
        new = apply(objective, logprobs[rows], batch.select(rows), advantages[rows])
        torch.testing.assert_close(new.loss, old.loss, rtol=1e-6, atol=1e-7)
        assert torch.equal(new.gradient, old.gradient[rows])


@every_fixed_pair
def test_all_masked_rows_do_not_change_advantages(base, weight):
    batch, logprobs = example()
    straight = advantages_of(base, weight, batch, logprobs)
    wide, wide_logprobs = with_masked_rows(batch, logprobs)
    beside = advantages_of(base, weight, wide, wide_logprobs)
    assert close(base, weight, beside[2:], straight)
    assert (beside[:2] == 0).all()


@every_credit
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_all_masked_rows_do_not_change_the_loss(names, objective):
    batch, logprobs = example()
    advantages = advantages_of(*names, batch, logprobs)
    wide, wide_logprobs = with_masked_rows(batch, logprobs)
    padded = torch.cat([torch.zeros_like(advantages[:2]), advantages])
    for mode in AGGREGATIONS:
        options = {"aggregation": mode, "max_length": 64}
        old = apply(objective, logprobs, batch, advantages, **options)
        new = apply(objective, wide_logprobs, wide, padded, **options)
        assert torch.equal(new.loss, old.loss)
        assert torch.equal(new.gradient[2:], old.gradient)
        assert (new.gradient[:2] == 0).all()
        assert_same_metrics(new.metrics, old.metrics)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [[3, 4], [1] * 7, [2, 2, 2, 1]])
def test_micro_batches_accumulate_the_full_gradient(objective, mode, sizes):
    batch, logprobs = example()
    advantages = advantages_of("grpo", "suffix_mask", batch, logprobs)
    options = {"aggregation": mode, "max_length": 64, **batch_totals(batch)}
    full = apply(objective, logprobs, batch, advantages, aggregation=mode, max_length=64)
    parts = [
        apply(objective, logprobs[rows], batch.select(rows), advantages[rows], **options)
        for rows in torch.arange(len(batch.rewards)).split(sizes)
    ]
    assert torch.equal(torch.cat([part.gradient for part in parts]), full.gradient)
    total = sum(part.loss for part in parts)
    torch.testing.assert_close(total, full.loss, rtol=1e-5, atol=1e-6)


@given(ragged_batches(), st.sampled_from(PAIRS), st.sampled_from(sorted(OBJECTIVES)))
def test_numbers_stay_finite_on_any_batch(batch, names, objective):
    logprobs = current_logprobs(batch, scale=2.0)
    advantages = advantages_of(*names, batch, logprobs)
    assert advantages.isfinite().all()
    assert (advantages[~batch.response_mask] == 0).all()
    outcome = apply(objective, logprobs, batch, advantages)
    assert outcome.loss.isfinite()
    assert outcome.gradient.isfinite().all()


@pytest.mark.parametrize("weight", TURN_WEIGHTS)
@pytest.mark.parametrize("base", BASES)
def test_a_batch_without_sampled_tokens_gives_zero(base, weight):
    batch = make_batch([[0, 0], [0]])
    logprobs = batch.old_logprobs
    advantages = advantages_of(base, weight, batch, logprobs)
    assert (advantages == 0).all()
    for objective in OBJECTIVES:
        assert apply(objective, logprobs, batch, advantages).loss == 0
