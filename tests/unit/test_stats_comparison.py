"""Probability of improvement, interquartile mean, effect sizes, families: by hand and by law."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from turncredit import stats

NAN = math.nan
values = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


def test_probability_of_improvement_by_counting_pairs():
    a, b = {"x": [1, 3], "y": [0, 0]}, {"x": [2, 2, 3], "y": [0, 1]}
    # x: 1 never wins; 3 wins 2 and ties 1 of 3: 2.5 / 6.  y: two ties, two losses: 1 / 4.
    found = stats.probability_of_improvement(a, b, seed=0)
    assert found.value == pytest.approx((2.5 / 6 + 1 / 4) / 2)
    assert (found.n, found.missing) == (9, 0)


@given(values, values)
def test_improvement_is_the_mann_whitney_share_and_turns_round(first, second):
    found = stats.probability_of_improvement({0: first}, {0: second}, draws=20, seed=0)
    u = distributions.mannwhitneyu(first, second, method="asymptotic").statistic
    assert found.value == pytest.approx(u / (len(first) * len(second)))
    back = stats.probability_of_improvement({0: second}, {0: first}, draws=20, seed=0)
    assert found.value + back.value == pytest.approx(1.0)


def test_improvement_draws_the_runs_within_each_stratum():
    # Every run of a wins in one stratum and loses in the other, whichever are drawn.
    sure = stats.probability_of_improvement(
        {0: [5, 6, 7], 1: [0, 1, 2]}, {0: [1, 2, 3], 1: [5, 6, 7]}, seed=0
    )
    assert (sure.value, sure.low, sure.high) == (0.5, 0.5, 0.5)


def test_improvement_leaves_out_a_stratum_that_one_arm_lacks_and_counts_the_missing():
    found = stats.probability_of_improvement(
        {0: [2.0, NAN], 1: [0.0], 2: [9.0]}, {0: [1.0], 1: [NAN]}, seed=0
    )
    assert (found.value, found.n, found.missing) == (1.0, 2, 2)
    assert math.isnan(found.low)
    assert math.isnan(stats.probability_of_improvement({}, {0: [1.0]}, seed=0).value)


def test_interquartile_mean_trims_a_quarter_of_each_end():
    runs = {"x": [0.0, 9.0, 2.0, 3.0, 4.0], "y": [1.0, 5.0, -7.0, 6.0, 20.0]}
    found = stats.interquartile_mean(runs, seed=0)
    pooled = [*runs["x"], *runs["y"]]
    assert found.value == pytest.approx(distributions.trim_mean(pooled, 0.25))
    assert found.low < found.value < found.high
    assert stats.interquartile_mean({0: [1.0, NAN, 3.0]}, seed=0).missing == 1


def test_effect_size_by_hand():
    # Means 2.5 and 5, pooled variance (5 + 20) / 6, J(6) = 1 - 3 / 23 to three digits.
    found = stats.effect_size([1, 2, 3, 4], [2, 4, 6, 8])
    d = -2.5 / math.sqrt(25 / 6)
    assert found.value == pytest.approx(d * (1 - 3 / 23), rel=2e-3)
    # The limits are where the t value seen has chance 0.975 and 0.025.
    factor = found.value / d
    for limit, chance in ((found.low, 0.975), (found.high, 0.025)):
        shift = limit / factor * math.sqrt(2)
        assert distributions.nct.cdf(d * math.sqrt(2), 6, shift) == pytest.approx(chance, abs=1e-6)


def test_hedges_g_is_unbiased_where_d_is_not():
    # The mean of d is delta / J (Hedges 1981): with 6 degrees of freedom 15 % too large.
    ones = [0.0, 0.0, 2.0, 2.0]
    found = stats.effect_size([x + 1 for x in ones], ones)
    d = 1 / np.std(ones, ddof=1)
    mean_of_t = distributions.nct.mean(6, math.sqrt(2)) / math.sqrt(2)  # of d where delta is 1
    assert found.value == pytest.approx(d / mean_of_t)
    assert mean_of_t == pytest.approx(1.15, abs=0.005)


def test_a_difference_far_from_zero_has_limits():
    far = stats.effect_size([100.0, 101.0, 102.0], [0.0, 1.0, 2.0])
    assert 0 < far.low < far.value < far.high < math.inf


@pytest.mark.parametrize(
    "found",
    [
        stats.effect_size([1.0, 1.0, 1.0], [1.0, 1.0]),
        stats.effect_size([1.0, 2.0], []),
        stats.effect_size([1.0, NAN], [2.0, 3.0]),
    ],
)
def test_no_effect_size_without_spread_or_values(found):
    assert math.isnan(found.value) and math.isnan(found.low) and math.isnan(found.high)


def test_holm_by_hand():
    # m = 5: .001 * 5, .01 * 4, .012 * 3 -> not below .04, .3 * 2, .9 * 1.
    adjusted = stats.holm({"e": 0.9, "a": 0.01, "b": 0.001, "c": 0.012, "d": 0.3})
    assert list(adjusted) == ["e", "a", "b", "c", "d"]
    assert adjusted == pytest.approx({"e": 0.9, "a": 0.04, "b": 0.005, "c": 0.04, "d": 0.6})


def test_holm_counts_a_comparison_that_could_not_be_made():
    adjusted = stats.holm({"a": 0.02, "b": NAN})
    assert adjusted["a"] == 0.04
    assert math.isnan(adjusted["b"])
    with pytest.raises(ValueError, match=r"'a' is 1\.2"):
        stats.holm({"a": 1.2})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(chances):
    adjusted = stats.holm(dict(enumerate(chances)))
    for number, p in enumerate(chances):
        assert p <= adjusted[number] <= min(1.0, p * len(chances)) or adjusted[number] == max(
            adjusted[other] for other, q in enumerate(chances) if q <= p
        )
    order = sorted(range(len(chances)), key=chances.__getitem__)
    assert all(adjusted[x] <= adjusted[y] for x, y in itertools.pairwise(order))
