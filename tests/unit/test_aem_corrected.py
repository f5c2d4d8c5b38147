"""`aem_corrected`: hand-computed numbers, and the sign it exists for."""

import math

import pytest
import torch
from batches import make_batch, ragged_batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turncredit.batching import TurnBatch
from turncredit.credit import BASES, TURN_WEIGHTS, token_advantages
from turncredit.credit.aem import relative_surprisals
from turncredit.probe.proxies import control_variate, martingale

NAN = math.nan


def surprising(*rows: list[float], groups: list[int] | None = None) -> TurnBatch:
    """Later turns of one token whose S - P is given: their entropy is 1; openings are empty."""
    lengths = [[0, *(1 for _ in row)] for row in rows]
    entropies = [[1.0] * len(row) for row in lengths]
    batch = make_batch(lengths, entropies=entropies, groups=groups)
    width = batch.num_turns
    table = torch.tensor([[0.0, *row, *[0.0] * (width - 1 - len(row))] for row in rows])
    return batch.replace(old_logprobs=batch.gather_turns(-(table + 1)))


def weights(batch: TurnBatch, **options) -> Tensor:
    base = torch.where(batch.response_mask, 1.0, 0.0).double()
    return TURN_WEIGHTS["aem_corrected"](batch, base, **options)


def opening_states(batch: TurnBatch) -> Tensor:
    """[B, T]: the group at turn 0, a number of its own at every other turn."""
    numbers = torch.arange(batch.turn_lengths().numel()).view(batch.turn_lengths().shape) + 1000
    numbers[:, 0] = batch.group_ids
    return numbers


# golden numbers


def test_four_responses_by_hand():
    """D = 1, .5, -.5, -1: lost 1 - e^-.5 and 1 - e^-.25, .614669 in all; shared one to two."""
    found = weights(surprising([1.0, -0.5], [0.5, -1.0]))[:, 1:]
    assert found.tolist() == [
        pytest.approx([0.606531, 1.204890], abs=1e-6),
        pytest.approx([0.778801, 1.409779], abs=1e-6),
    ]


def test_temperature_by_hand():
    """Temperature 2 doubles the exponents: 1 - e^-1 and 1 - e^-.5 are lost."""
    found = weights(surprising([1.0, -0.5], [0.5, -1.0]), temperature=2.0)[:, 1:].flatten()
    total = 2 - math.exp(-1) - math.exp(-0.5)
    expected = [math.exp(-1), 1 + total / 3, math.exp(-0.5), 1 + 2 * total / 3]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_nobody_is_given_more_than_aem_can_give():
    """Five D = 1 and one -.5, spread 1.5: 5 (1 - e^(-2/3)) = 2.433 would go to one; e - 1 may."""
    found = weights(surprising([1.0] * 3, [1.0, 1.0, -0.5]))[:, 1:].flatten().tolist()
    left = 1 - (math.e - 1) / 5
    assert found == pytest.approx([left] * 5 + [math.e], abs=1e-6)


def test_openings_share_the_groups_mean_and_later_turns_have_their_own():
    """S 2, 3, 1 and P 1, .5, 1.5 at the openings of a group; one later turn with S 2, P .5."""
    batch = make_batch(
        [[1, 1], [1], [1], [1]], groups=[0, 0, 0, 1], entropies=[[1.0, 0.5], [0.5], [1.5], [0.7]]
    )
    table = torch.tensor([[2.0, 2.0], [3.0, 0.0], [1.0, 0.0], [0.9, 0.0]])
    batch = batch.replace(old_logprobs=batch.gather_turns(-table))
    found, real = relative_surprisals(batch)
    expected = [[1.0, 1.5], [2.0, 0.0], [0.0, 0.0], [0.2, 0.0]]
    assert found.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    assert torch.equal(real, batch.turn_lengths() > 0)
    plain, _ = relative_surprisals(batch, coefficient=0.0)
    assert plain.tolist() == [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]
    half, _ = relative_surprisals(batch, coefficient=0.5)
    assert half[:3].tolist() == [
        pytest.approx(row, abs=1e-6) for row in ([0.5, 0.75], [1.5, 0], [-0.5, 0])
    ]


def test_a_group_of_one_sign_or_of_small_spread_is_silent_and_the_others_are_not():
    batch = surprising([1.0, 0.5], [0.04, -0.05], [-0.3, -0.2], [0.2, -0.2], groups=[0, 1, 2, 3])
    found = weights(batch)
    assert (found[:3] == 1).all()
    assert (found[3, 1:] != 1).all()
    assert torch.equal(found[3:], weights(batch.select([3])))
    assert (weights(batch, min_spread=0.0)[1, 1:] != 1).all()
    assert (weights(batch, min_spread=0.5) == 1).all()
    assert (weights(batch, temperature=0.0) == 1).all()


# laws


@given(ragged_batches(), st.sampled_from([0.0, 0.5, 1.0, -1.0]))
def test_it_is_the_control_variate_of_the_probe_with_openings_as_siblings(batch, coefficient):
    found, real = relative_surprisals(batch, coefficient=coefficient)
    expected = control_variate(batch, states=opening_states(batch), coefficient=coefficient)
    torch.testing.assert_close(
        torch.where(real, found, torch.nan), expected, equal_nan=True, rtol=1e-5, atol=1e-5
    )


def test_later_turns_get_the_martingale():
    batch = surprising([0.3, -2.0], [1.0])
    later = relative_surprisals(batch)[0][:, 1:]
    expected = martingale(batch)[:, 1:].nan_to_num(0.0)
    torch.testing.assert_close(later, expected, rtol=0, atol=1e-6)


@given(ragged_batches(), st.floats(0.0, 4.0), st.sampled_from([0.0, 0.5, 1.0]))
def test_alpha_is_below_one_exactly_where_a_response_is_surprising(batch, temperature, coefficient):
    """The sign, the mean and the bounds, in every group."""
    alpha = weights(batch, temperature=temperature, coefficient=coefficient)
    relative, real = relative_surprisals(batch, coefficient=coefficient)
    assert (
        (alpha >= math.exp(-temperature) - 1e-12) & (alpha <= math.exp(temperature) + 1e-9)
    ).all()
    for group in batch.group_ids.unique():
        rows = real & (batch.group_ids == group)[:, None]
        if not rows.any():
            continue
        own, excess = alpha[rows], relative[rows]
        assert float(own.mean()) == pytest.approx(1.0, abs=1e-12)
        acts = temperature > 1e-6 and (own != 1).any()
        visible = excess.abs() > 1e-6
        if acts:
            assert torch.equal((own < 1)[visible], (excess > 0)[visible])
        order = excess.argsort()
        assert (own[order].diff() <= 1e-12).all(), "the more surprising, the less"


def test_aem_itself_calibrated_on_the_same_numbers_would_lose_the_sign():
    """D = .1 in a group whose others are far above: min-max and the mean put it above 1."""
    batch = surprising([0.1, 2.0, 2.0], [2.0, 2.0, -0.1])
    assert float(weights(batch)[0, 1]) < 1
    low, high = -0.1, 2.0
    raw = [math.exp(-(d - low) / (high - low)) for d in (0.1, 2.0, 2.0, 2.0, 2.0, -0.1)]
    assert raw[0] / (sum(raw) / 6) > 1


def test_the_direction_is_aems_where_entropy_says_what_was_drawn():
    """One word out of a flat or a sharp distribution, the likely one: both damp the flat one."""
    batch = make_batch([[1, 1]] * 2, entropies=[[0.1, 1.0], [0.1, 1.0]])
    logprobs = batch.gather_turns(torch.tensor([[-0.02, -2.0], [-0.02, -2.0]]))
    batch = batch.replace(old_logprobs=logprobs)
    for name in ("aem", "aem_corrected"):
        found = TURN_WEIGHTS[name](batch, torch.where(batch.response_mask, -1.0, 0.0))
        assert (found[:, 1] < 1).all() and (found[:, 0] > 1).all(), name


# what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "aem_corrected: temperature is -0.1"),
        ({"min_spread": NAN}, "aem_corrected: min_spread is nan"),
        ({"coefficient": math.inf}, "coefficient is inf"),
        ({"coefficient": "1"}, "coefficient is '1'"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        weights(make_batch([[2, 2], [1, 1]]), **options)


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_unknown_logprobs_name_row_and_turn(value):
    batch = make_batch([[2, 2], [2, 0, 2]])
    logprobs = batch.old_logprobs.clone()
    logprobs[1, batch.turn_ids[1] == 2] = value
    with pytest.raises(ValueError, match="old_logprobs: row 1, turn 2 has log-probs that are not"):
        weights(batch.replace(old_logprobs=logprobs))


def test_it_composes_with_a_base():
    batch = make_batch([[2, 1], [1, 3]], rewards=[0.0, 1.0])
    base = BASES["grpo"](batch)
    found = token_advantages(batch, "grpo", "aem_corrected", {}, {"min_spread": 0.0})
    expected = base * batch.gather_turns(TURN_WEIGHTS["aem_corrected"](batch, base, min_spread=0.0))
    assert torch.equal(found, expected)
    assert not torch.equal(found, base)
