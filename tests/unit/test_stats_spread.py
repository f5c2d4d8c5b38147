"""Ratio of standard deviations over seeds: by hand, rules, measured coverage."""

import math

import numpy as np
import pytest
from scipy import stats as distributions

from turncredit import stats

NAN = math.nan


def test_ratio_of_standard_deviations_by_leaving_out_each_value():
    a, b = [1.0, 2.0, 4.0, 9.0], [2.0, 3.0, 7.0]
    found = stats.sd_ratio({0: a}, {0: b})
    assert found.value == pytest.approx(np.std(a, ddof=1) / np.std(b, ddof=1))
    variance = 0.0
    for values in (a, b):
        n = len(values)
        logs = [np.log(np.var(values[:i] + values[i + 1 :], ddof=1)) for i in range(n)]
        variance += (n - 1) / n * float(np.sum((logs - np.mean(logs)) ** 2))
    half = distributions.t.ppf(0.975, 5) * math.sqrt(variance) / 2
    assert found.high == pytest.approx(found.value * math.exp(half))
    assert found.low == pytest.approx(found.value * math.exp(-half))
    assert (found.n, found.missing) == (7, 0)


def test_with_blocks_of_two_whole_blocks_are_left_out():
    a, b = {0: [1.0, 2.0], 1: [4.0, 9.0], 2: [0.0, 3.0]}, {0: [1.0, 3.0, 4.0, 4.5]}
    found = stats.sd_ratio(a, b)
    squares = [1 / 2, 25 / 2, 9 / 2]  # of the differences, over two
    logs = np.log([(sum(squares) - one) / 2 for one in squares])
    variance = 2 / 3 * float(np.sum((logs - logs.mean()) ** 2))
    one = b[0]
    logs = [np.log(np.var(one[:i] + one[i + 1 :], ddof=1)) for i in range(4)]
    variance += 3 / 4 * float(np.sum((logs - np.mean(logs)) ** 2))
    half = distributions.t.ppf(0.975, 2 + 3) * math.sqrt(variance) / 2
    assert found.value == pytest.approx(math.sqrt(sum(squares) / 3) / np.std(one, ddof=1))
    assert found.high == pytest.approx(found.value * math.exp(half))
    two = stats.sd_ratio({0: a[0], 1: a[1]}, b)  # two blocks tell too little
    assert math.isnan(two.low) and not math.isnan(two.value)


@pytest.mark.parametrize("population", ["normal", "exponential"])
def test_coverage_with_four_blocks_of_two(population):
    """400 experiments: the standard error of 0.93 is 0.013."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(400):
        a, b = (dict(enumerate(getattr(generator, population)(size=(4, 2)))) for _ in range(2))
        found = stats.sd_ratio(a, b)
        covered += found.low <= 1 <= found.high
    assert 0.89 <= covered / 400 <= 0.98


def test_what_separates_the_blocks_is_not_spread():
    a, b = {0: [1.0, 2.0, 4.0], 1: [1.0, 5.0, 7.0]}, {0: [0.0, 3.0, 4.0], 1: [2.0, 2.5, 9.0]}
    far = {0: a[0], 1: [x + 100 for x in a[1]]}
    assert stats.sd_ratio(far, b).value == pytest.approx(stats.sd_ratio(a, b).value)
    assert stats.sd_ratio(far, b).high == pytest.approx(stats.sd_ratio(a, b).high)


def test_ratio_turns_round_and_scales():
    a, b = {0: [1.0, 2.0, 4.0, NAN]}, {0: [0.0, 3.0, 4.0, 4.5]}
    forth, back = stats.sd_ratio(a, b), stats.sd_ratio(b, a)
    assert forth.value == pytest.approx(1 / back.value)
    assert forth.low == pytest.approx(1 / back.high)
    assert forth.missing == 1
    tripled = stats.sd_ratio({0: [3 * x for x in a[0]]}, b)
    assert tripled.low == pytest.approx(3 * forth.low)


@pytest.mark.parametrize(
    "a",
    [{}, {0: [1.0]}, {0: [1.0, 2.0]}, {0: [1.0], 1: [2.0]}, {0: [1.0, 1.0, 1.0]},
     {0: [0.1, 0.1, 0.1, 0.7]}],
)  # fmt: skip
def test_no_interval_from_too_few_values_or_one_that_is_all_the_spread(a):
    found = stats.sd_ratio(a, {0: [0.0, 3.0, 4.0, 4.5]})
    assert math.isnan(found.low) and math.isnan(found.high)


@pytest.mark.parametrize("population", ["normal", "two modes", "exponential"])
def test_coverage_of_the_jackknife_with_four_blocks_of_ten(population):
    """200 experiments: the standard error of 0.95 is 0.015.  F fails where tails are long."""
    generator, covered, by_f = np.random.default_rng(0), 0, 0

    def draw():
        if population == "normal":
            return generator.normal(size=10)
        if population == "exponential":
            return generator.exponential(size=10)
        lower = generator.random(10) < 0.5
        return np.where(lower, 0.632, 0.77) + np.where(lower, 0.002, 0.025) * generator.normal(
            size=10
        )

    limits = distributions.f.ppf([0.025, 0.975], 36, 36)
    for _ in range(200):
        a, b = ({k: draw() for k in range(4)} for _ in range(2))
        found = stats.sd_ratio(a, b)
        covered += found.low <= 1 <= found.high
        by_f += limits[0] <= found.value**2 <= limits[1]
    assert covered / 200 >= (0.82 if population == "exponential" else 0.9)
    assert (by_f / 200 < 0.8) == (population == "exponential")
