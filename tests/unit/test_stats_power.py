"""How many seeds: published sample sizes, simulation against enumeration, monotone laws."""

import itertools
import math

import pytest
from scipy import stats as distributions

from turncredit import stats
from turncredit.stats import Rate


def test_seeds_by_the_normal_approximation():
    # R: power.prop.test(p1 = .5, p2 = .75, power = .9) gives n = 76.7.
    assert stats.seeds_for_rates(0.5, 0.75, power=0.9, test="normal") == 77
    assert stats.seeds_for_rates(0.5, 0.2, test="normal") == 39


def test_seeds_by_fishers_test_have_the_power_and_one_less_does_not():
    seeds = stats.seeds_for_rates(0.5, 0.2)
    assert seeds == stats.seeds_for_rates(0.2, 0.5) == 44
    assert min(stats.fisher_power(0.5, 0.2, n) for n in range(seeds, seeds + 20)) >= 0.8
    assert stats.fisher_power(0.5, 0.2, seeds - 1) < 0.8


def test_fisher_power_by_enumeration():
    expected = sum(
        distributions.binom.pmf(x, 8, 0.9) * distributions.binom.pmf(y, 8, 0.2)
        for x in range(9)
        for y in range(9)
        if stats.fisher_test(Rate(x, 8), Rate(y, 8)) <= 0.05
    )
    assert stats.fisher_power(0.9, 0.2, 8) == pytest.approx(expected)


def test_fishers_test_keeps_its_level():
    assert max(stats.fisher_power(r, r, 16) for r in (0.1, 0.3, 0.5)) <= 0.05


def test_power_of_the_t_test():
    # R: power.t.test(n = 20, delta = 1, sd = 1); power.t.test(power = .9, delta = 1): n = 22.02.
    assert stats.mean_power(1.0, 1.0, 20) == pytest.approx(0.8689528, abs=1e-6)
    assert stats.mean_power(1.0, 1.0, 22) < 0.9 < stats.mean_power(1.0, 1.0, 23)
    assert stats.mean_power(0.0, 1.0, 20) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="seeds = 1"):
        stats.mean_power(1.0, 1.0, 1)


@pytest.mark.parametrize("paired", [False, True])
def test_detectable_difference_has_the_power_asked_for(paired):
    found = stats.detectable_mean_difference(0.07, 16, paired=paired)
    assert stats.mean_power(found, 0.07, 16, paired=paired) == pytest.approx(0.8)
    assert stats.detectable_mean_difference(0.07, 40, paired=paired) < found


def test_detectable_rate_has_the_power_asked_for():
    low, high = stats.detectable_rate(0.5, 40), stats.detectable_rate(0.5, 40, lower=False)
    assert low == pytest.approx(1 - high)
    assert stats.fisher_power(0.5, low, 40) == pytest.approx(0.8, abs=1e-6)
    assert math.isnan(stats.detectable_rate(0.5, 4))


def test_what_is_no_rate_or_no_test_is_refused():
    with pytest.raises(ValueError, match=r"1\.5"):
        stats.fisher_power(1.5, 0.2, 4)
    with pytest.raises(ValueError, match="never told apart"):
        stats.seeds_for_rates(0.5, 0.5)
    with pytest.raises(ValueError, match="barnard"):
        stats.seeds_for_rates(0.5, 0.2, test="barnard")
    for sd in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="sd = "):
            stats.mean_power(1.0, sd, 4)
    for power in (0.05, 0.01, 1.0):
        with pytest.raises(ValueError, match="power = "):
            stats.detectable_mean_difference(0.1, 4, power=power)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 8, 16, 32, 100])
def test_power_is_a_share_that_grows_with_the_difference_and_can_be_inverted(seeds, paired):
    ratios = [0.1 * 2**step for step in range(24)]
    powers = [stats.mean_power(ratio, 1.0, seeds, paired=paired) for ratio in ratios]
    assert all(0 <= low <= high + 1e-9 <= 1 + 1e-8 for low, high in itertools.pairwise(powers))
    found = stats.detectable_mean_difference(0.1, seeds, paired=paired)
    assert stats.mean_power(found, 0.1, seeds, paired=paired) == pytest.approx(0.8, abs=1e-6)
