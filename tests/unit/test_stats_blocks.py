"""Bootstrap within blocks: hand-computed numbers, rules for thin blocks, measured coverage."""

import math

import numpy as np
import pytest

from turncredit import stats

NAN = math.nan
FOUR = {0: [1.0, 2.0, 4.0, 5.0], 1: [11.0, 12.0, 14.0, 15.0]}


def test_a_seed_starts_from_its_number_modulo_the_warm_starts():
    assert stats.seed_blocks(range(5), 2) == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    with pytest.raises(ValueError, match="warm_starts = 0"):
        stats.seed_blocks([1], 0)


def test_blocks_weigh_equally_however_many_seeds_they_hold():
    assert stats.block_mean({0: [0.0, 0.0, 0.0], 1: [1.0]}, seed=0).mean == 0.5


def test_what_separates_the_blocks_does_not_widen_the_interval():
    far = stats.block_mean(FOUR, seed=0)
    near = stats.block_mean({0: FOUR[0], 1: [x - 10 for x in FOUR[1]]}, seed=0)
    assert far.high - far.low == pytest.approx(near.high - near.low)
    pooled = stats.t_interval([*FOUR[0], *FOUR[1]])
    assert far.high - far.low < 0.6 * (pooled.high - pooled.low)


def test_studentised_interval_of_two_values_by_enumeration():
    # Draws of {0, 1}: means 0, 1/2, 1/2, 1; errors 0, 1/2, 1/2, 0; t = -inf, 0, 0, +inf.
    interval = stats.block_mean({0: [0.0, 1.0]}, seed=0)
    assert (interval.mean, interval.low, interval.high) == (0.5, -math.inf, math.inf)
    narrow = stats.block_mean({0: [0.0, 1.0]}, level=0.4, seed=0)  # between the middle two
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_missing_values_thin_and_empty_blocks_are_counted():
    interval = stats.block_mean({0: [1.0, 2.0, 3.0, 3.5], 1: [9.0, NAN], 2: [NAN], 3: []}, seed=0)
    assert (interval.n, interval.missing) == (5, 2)
    assert (interval.blocks, interval.single, interval.empty) == (2, 1, 2)
    assert interval.mean == (9.5 / 4 + 9.0) / 2


def test_the_spread_of_a_single_value_is_that_of_the_other_blocks():
    alone = stats.block_mean({0: FOUR[0]}, seed=0)
    both = stats.block_mean({0: FOUR[0], 1: [7.0]}, seed=0)
    # Error sqrt(s^2/4 + s^2/1) / 2 against sqrt(s^2/4): the interval cannot become narrower.
    assert both.high - both.low > alone.high - alone.low


@pytest.mark.parametrize("values", [{}, {0: []}, {0: [NAN], 1: [NAN]}])
def test_nothing_is_known_of_no_values(values):
    interval = stats.block_mean(values, seed=0)
    assert math.isnan(interval.mean) and math.isnan(interval.low) and math.isnan(interval.high)
    assert (interval.n, interval.blocks) == (0, 0)


def test_single_values_alone_have_a_mean_and_no_interval():
    interval = stats.block_mean({0: [1.0], 1: [3.0]}, seed=0)
    assert interval.mean == 2.0
    assert math.isnan(interval.low) and math.isnan(interval.high)


def test_equal_values_have_an_interval_of_no_width():
    interval = stats.block_mean({0: [0.1, 0.1, 0.1], 1: [0.4, 0.4]}, seed=0)
    assert interval.low == interval.high == pytest.approx(0.25)


def test_paired_difference_within_blocks_pairs_by_seed():
    a, b = {0: 5.0, 1: 7.0, 2: 6.0, 3: 8.0, 9: 1.0}, {3: 6.5, 2: 4.0, 1: 6.0, 0: 4.0, 8: 2.0}
    blocks = stats.seed_blocks(range(10), 2)
    found = stats.block_paired_difference(a, b, blocks, seed=0)
    # Block 0: 1, 2 (8 has no partner); block 1: 1, 1.5 (9 has none).
    assert (found.mean, found.n, found.missing, found.blocks) == (1.375, 4, 2, 2)
    same = stats.block_mean({0: [1.0, 2.0], 1: [1.0, 1.5]}, seed=0)
    assert (found.low, found.high) == (same.low, same.high)
    with pytest.raises(ValueError, match="seed 9 has no block"):
        stats.block_paired_difference(a, b, stats.seed_blocks(range(9), 2), seed=0)


def test_difference_of_two_arms_leaves_out_a_block_that_one_lacks():
    found = stats.block_difference({0: [3.0, 5.0], 1: [100.0]}, {0: [1.0, 2.0], 1: [NAN]}, seed=0)
    assert (found.mean, found.blocks, found.empty, found.missing) == (2.5, 1, 1, 1)
    assert found.n == 4


def test_difference_of_two_arms_is_as_wide_as_two_independent_means():
    generator = np.random.default_rng(0)
    a, b = ({k: generator.normal(size=60) for k in range(2)} for _ in range(2))
    found = stats.block_difference(a, b, seed=0)
    halves = [
        (interval.high - interval.low) / 2
        for interval in (stats.block_mean(arm, seed=0) for arm in (a, b))
    ]
    assert (found.high - found.low) / 2 == pytest.approx(math.hypot(*halves), rel=0.05)


def test_the_bootstrap_depends_on_its_seed_alone():
    values = {k: np.linspace(k, 2, 9) ** 2 for k in range(2)}
    first = stats.block_mean(values, seed=1, draws=500)
    np.random.seed(5)
    assert stats.block_mean(values, seed=1, draws=500) == first
    assert stats.block_mean(dict(reversed(values.items())), seed=1, draws=500) == first
    assert stats.block_mean(values, seed=2, draws=500) != first


def _percentile(values, generator, draws):
    drawn = [v[generator.integers(len(v), size=(draws, len(v)))].mean(axis=1) for v in values]
    return np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])


@pytest.mark.parametrize(
    ("population", "seeds", "percentile_most"),
    [
        ("normal", 4, 0.93),
        ("exponential", 4, 0.91),
        ("two modes", 4, 0.93),
        ("two modes", 10, 0.97),
    ],
)
def test_studentised_intervals_cover_where_percentiles_do_not(population, seeds, percentile_most):
    """250 experiments of 4 blocks: the standard error of a coverage of 0.95 is 0.014."""
    generator, draws, covered, by_percentile = np.random.default_rng(0), 200, 0, 0
    shift = np.arange(4.0)[:, None]
    for number in range(250):
        if population == "normal":
            values, truth = generator.normal(size=(4, seeds)) + shift, 1.5
        elif population == "exponential":
            values, truth = generator.exponential(size=(4, seeds)) + shift, 2.5
        else:
            lower = generator.random((4, seeds)) < np.array([0.75, 0.25, 0.75, 0.25])[:, None]
            spread = np.where(lower, 0.002, 0.025)
            values = np.where(lower, 0.632, 0.77) + spread * generator.normal(size=lower.shape)
            truth = (0.632 + 0.77) / 2
        interval = stats.block_mean(dict(enumerate(values)), draws=draws, seed=number)
        covered += interval.low <= truth <= interval.high
        low, high = _percentile(values, generator, draws)
        by_percentile += low <= truth <= high
    assert covered / 250 >= 0.91
    assert by_percentile < covered
    assert by_percentile / 250 < percentile_most
