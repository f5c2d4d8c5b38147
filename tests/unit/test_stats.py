"""Statistics: hand-computed numbers and laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit import stats

NAN = math.nan
shares = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_ema_weighs_the_past_and_is_debiased():
    assert stats.ema([1, 3, 5], 0.5) == pytest.approx([1, 3.5 / 1.5, 6.75 / 1.75])


def test_ema_leaves_missing_steps_missing_and_out_of_later_ones():
    assert stats.ema([1, NAN, 3], 0.5) == pytest.approx([1, NAN, 3.5 / 1.5], nan_ok=True)


@given(shares)
def test_ema_without_weight_is_the_curve_and_stays_in_its_range(values):
    assert stats.ema(values, 0.0) == pytest.approx(values)
    smoothed = stats.ema(values, 0.9)
    assert smoothed.min() >= min(values) - 1e-12
    assert smoothed.max() <= max(values) + 1e-12


@pytest.mark.parametrize("weight", [-0.1, 1.0, NAN])
def test_ema_refuses_a_weight_outside_the_unit_interval(weight):
    with pytest.raises(ValueError, match="weight"):
        stats.ema([1.0], weight)


def test_shift_step_is_the_last_step_of_the_first_low_window():
    # Means of windows of 4: .75 at step 3, .5 at 4 (not below), .25 at 5.
    assert stats.shift_step([1, 1, 1, 0, 0, 0, 1, 1], window=4) == 5


def test_shift_step_of_a_run_that_starts_low_or_is_too_short_or_never_shifts():
    assert stats.shift_step([0.0] * 30) == 9
    assert stats.shift_step([0.0] * 9) is None
    assert stats.shift_step([0.5] * 30) is None


def test_a_window_with_a_missing_step_dates_no_shift():
    assert stats.shift_step([1, NAN, 0, 0, 0], window=2) == 3


@given(shares, st.integers(1, 12), st.floats(0, 1))
def test_shift_step_follows_its_definition(values, window, threshold):
    ends = range(window - 1, len(values))
    low = [end for end in ends if np.mean(values[end - window + 1 : end + 1]) < threshold]
    assert stats.shift_step(values, threshold=threshold, window=window) == (low or [None])[0]


@given(st.data(), st.integers(1, 60), st.integers(1, 30), st.integers(1, 15))
def test_windows_and_the_averaging_window_do_not_overlap(data, steps, length, shift_window):
    shift = data.draw(st.integers(0, steps - 1))
    found = stats.windows(shift, steps, length=length, shift_window=shift_window)
    averaged = set(range(max(0, shift - shift_window + 1), shift + 1))
    assert found.shifted
    assert not averaged & set(found.before) and not averaged & set(found.after)
    inside = set(range(steps))
    assert set(found.before) | averaged | set(found.after) <= inside
    # Nothing lies between them, and they are shorter than `length` only at an end of the run.
    assert len(found.before) == min(length, min(averaged))
    assert len(found.after) == min(length, steps - 1 - shift)


def test_windows_without_a_shift_are_flagged_and_are_the_ends_of_the_run():
    assert stats.windows(None, 5, length=20) == stats.Windows(range(2), range(3, 5), False)
    assert stats.windows(None, 100) == stats.Windows(range(20), range(80, 100), False)


def test_windows_refuse_a_shift_outside_the_run():
    with pytest.raises(ValueError, match="200"):
        stats.windows(200, 200)


def test_t_interval_by_hand():
    interval = stats.t_interval([1, 2, 3])  # sd 1, t(0.975, 2) = 4.302653
    assert interval.mean == 2
    assert interval.high - 2 == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    assert 2 - interval.low == pytest.approx(interval.high - 2)
    assert (interval.n, interval.missing) == (3, 0)


def test_missing_values_are_counted_and_too_few_values_have_no_interval():
    one = stats.t_interval([0.5, NAN, NAN])
    assert (one.mean, one.n, one.missing) == (0.5, 1, 2)
    assert math.isnan(one.low) and math.isnan(one.high)
    none = stats.t_interval([])
    assert (none.n, none.missing) == (0, 0)
    assert math.isnan(none.mean)


def test_paired_difference_pairs_by_seed_and_counts_the_rest():
    a, b = {0: 0.9, 1: 0.6, 2: 0.5, 7: NAN}, {2: 0.2, 1: 0.5, 0: 0.7, 5: 0.1, 7: 0.4}
    difference = stats.paired_difference(a, b)  # 0.2, 0.1, 0.3; seed 5 alone, 7 missing
    assert difference.mean == pytest.approx(0.2)
    assert difference.high == pytest.approx(0.2 + 0.1 * 4.302653 / math.sqrt(3), abs=1e-6)
    assert (difference.n, difference.missing) == (3, 2)


def test_pairing_removes_what_seeds_share():
    noise = dict(enumerate([0.1, 0.9, 0.4]))
    shifted = {seed: value + 0.05 for seed, value in noise.items()}
    difference = stats.paired_difference(shifted, noise)
    assert difference.low == pytest.approx(0.05) == pytest.approx(difference.high)


@pytest.mark.parametrize("split", [1, 7, 19])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_level_of_a_curve_changes_where_it_does_whatever_the_noise_or_the_sign(split, sign):
    noise = np.random.default_rng(split).normal(size=20)
    curve = sign * np.where(np.arange(20) < split, 5.0, 0.0) + 0.3 * noise
    assert stats.level_step(curve) == split
    assert stats.level_step(-3.0 * curve + 7.0) == split


def test_of_two_curves_of_noise_neither_moves_first():
    generator = np.random.default_rng(0)
    leads = [
        stats.level_step(generator.normal(size=40)) - stats.level_step(generator.normal(size=40))
        for _ in range(400)
    ]
    found = stats.t_interval(leads, level=0.999)
    assert found.low < 0 < found.high


def test_a_curve_without_two_levels_has_no_step():
    for values in ([], [1.0], [1.0, 1.0, 1.0], [1.0, math.nan, 0.0]):
        assert stats.level_step(values) is None


@pytest.mark.parametrize("length", [1, 4, 10])
def test_a_straight_fall_takes_its_steps_between_a_fifth_and_four_fifths(length):
    """By hand: from 1 at step 30 to 0 at 30 + length; the fifth is passed after length / 5."""
    curve = np.clip(1 - (np.arange(80) - 30) / length, 0.0, 1.0)
    around = stats.Windows(range(5, 28), range(45, 65), True)
    expected = math.ceil(0.8 * length - 1e-9) - math.floor(0.2 * length + 1e-9)
    assert stats.transition(curve, around) == expected


def test_without_a_shift_or_a_fall_there_is_no_transition():
    fall = np.r_[np.ones(10), np.zeros(10)]
    here = stats.Windows(range(5), range(15, 20), True)
    assert stats.transition(fall, here) == 1
    assert stats.transition(fall, stats.Windows(here.before, here.after, False)) is None
    assert stats.transition(1 - fall, here) is None
    assert stats.transition(fall, stats.Windows(range(0), here.after, True)) is None
    assert stats.transition(fall, stats.Windows(here.before, range(20, 20), True)) is None
