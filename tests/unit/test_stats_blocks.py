"""Bootstrap within blocks: hand-computed numbers, rules for thin blocks, measured coverage."""

import dataclasses
import math

import numpy as np
import pytest

from turncredit import stats

NAN = math.nan
FOUR = {0: [1.0, 2.0, 4.0, 5.0], 1: [11.0, 12.0, 14.0, 15.0]}


def modulo(seeds, blocks):
    return {seed: seed % blocks for seed in seeds}


def test_values_go_to_their_blocks_and_those_of_unknown_ones_to_one():
    unknown = [float("nan"), NAN]  # two objects, neither equal to the other
    assert stats.by_block([1.0, 2.0, 3.0, NAN], [7.0, *unknown, 7.0]) == {
        7.0: [1.0, pytest.approx(NAN, nan_ok=True)],
        "unknown": [2.0, 3.0],
    }
    a, b = {0: 1.0, 1: 2.0, 2: 4.0}, dict.fromkeys(range(3), 0.0)
    found = stats.block_paired_difference(a, b, {0: 0.0, 1: unknown[0], 2: unknown[1]}, seed=0)
    assert (found.mean, found.blocks) == ((1.0 + 3.0) / 2, 2)


def test_blocks_weigh_equally_however_many_seeds_they_hold():
    assert stats.block_mean({0: [0.0, 0.0, 0.0], 1: [1.0]}, seed=0).mean == 0.5


def test_what_separates_the_blocks_does_not_widen_the_interval():
    far = stats.block_mean(FOUR, seed=0)
    near = stats.block_mean({0: FOUR[0], 1: [x - 10 for x in FOUR[1]]}, seed=0)
    assert far.high - far.low == pytest.approx(near.high - near.low)
    pooled = stats.t_interval([*FOUR[0], *FOUR[1]])
    assert far.high - far.low < 0.6 * (pooled.high - pooled.low)


def test_studentised_interval_of_two_blocks_of_two_by_enumeration():
    # A draw from {0, 1} is 0, 1/2 (twice) or 1, of error 0, 1/2, 1/2, 0.  Of the 16 pairs of draws
    # one has t = -inf, four -1, six 0, four 1 and one inf, in units of the error sqrt(1/2) / 2.
    interval = stats.block_mean({0: [0.0, 1.0], 1: [0.0, 1.0]}, level=0.4, seed=0)
    half = math.sqrt(0.5) / 2
    assert (interval.low, interval.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_blocks_too_thin_for_the_bootstrap_have_the_t_interval_of_their_spread():
    assert stats.block_mean({0: [0.0, 1.0]}, seed=0) == stats.BlockInterval(
        *dataclasses.astuple(stats.t_interval([0.0, 1.0])), 1, 0, 0
    )
    # Two blocks of two with variances 1/2 and 2: error sqrt(1/4 + 1) / 2, t(0.975, 2) = 4.302653.
    thin = stats.block_mean({0: [0.0, 1.0], 1: [10.0, 12.0]}, seed=0)
    half = 4.302653 * math.sqrt(1.25) / 2
    assert (thin.low, thin.high) == pytest.approx((5.75 - half, 5.75 + half), abs=1e-5)


@pytest.mark.parametrize("odd", [(0,), (0, 4), (0, 1, 2, 3)])
def test_values_that_are_mostly_equal_have_a_finite_interval(odd):
    values = {seed: -0.3 if seed in odd else 0.0 for seed in range(16)}
    blocks = {seed: seed % 4 for seed in values}
    zero = dict.fromkeys(values, 0.0)
    found = stats.block_paired_difference(values, zero, blocks, seed=0)
    assert -math.inf < found.low < found.mean < found.high < math.inf


def test_eight_seeds_of_four_warm_starts_have_an_interval_that_covers():
    """400 experiments: the standard error of a coverage of 0.95 is 0.011."""
    generator, covered = np.random.default_rng(0), 0
    for number in range(400):
        values = generator.normal(size=(4, 2)) + np.arange(4.0)[:, None]
        interval = stats.block_mean(dict(enumerate(values)), draws=50, seed=number)
        assert math.isfinite(interval.high - interval.low)
        covered += interval.low <= 1.5 <= interval.high
    assert 0.92 <= covered / 400 <= 0.98


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


def test_single_values_have_the_t_interval_of_the_seeds_and_one_alone_has_none():
    interval = stats.block_mean({0: [1.0], 1: [3.0], 2: [NAN], 3: [2.0]}, seed=0)
    seeds = stats.t_interval([1.0, 3.0, 2.0])
    assert (interval.mean, interval.low, interval.high) == (2.0, seeds.low, seeds.high)
    assert (interval.single, interval.empty) == (3, 1)
    alone = stats.block_mean({0: [1.0]}, seed=0)
    assert alone.mean == 1.0
    assert math.isnan(alone.low) and math.isnan(alone.high)


@pytest.mark.parametrize("apart", [0.0, 5.0])
def test_one_seed_of_each_block_covers_and_the_wider_the_further_the_blocks_are_apart(apart):
    """400 experiments: the standard error of a coverage of 0.95 is 0.011."""
    generator, covered = np.random.default_rng(0), 0
    for number in range(400):
        values = generator.normal(size=4) + apart * np.arange(4)
        interval = stats.block_mean({k: [v] for k, v in enumerate(values)}, seed=number)
        covered += interval.low <= 1.5 * apart <= interval.high
    assert 0.92 <= covered / 400 <= 1.0
    assert (covered == 400) == bool(apart)


def test_equal_values_have_an_interval_of_no_width():
    interval = stats.block_mean({0: [0.1, 0.1, 0.1], 1: [0.4, 0.4]}, seed=0)
    assert (interval.low, interval.high) == pytest.approx((0.25, 0.25))


def test_paired_difference_within_blocks_pairs_by_seed():
    a, b = {0: 5.0, 1: 7.0, 2: 6.0, 3: 8.0, 9: 1.0}, {3: 6.5, 2: 4.0, 1: 6.0, 0: 4.0, 8: 2.0}
    blocks = modulo(range(10), 2)
    found = stats.block_paired_difference(a, b, blocks, seed=0)
    # Block 0: 1, 2 (8 has no partner); block 1: 1, 1.5 (9 has none).
    assert (found.mean, found.n, found.missing, found.blocks) == (1.375, 4, 2, 2)
    same = stats.block_mean({0: [1.0, 2.0], 1: [1.0, 1.5]}, seed=0)
    assert (found.low, found.high) == (same.low, same.high)
    with pytest.raises(ValueError, match="seed 9 has no block"):
        stats.block_paired_difference(a, b, modulo(range(9), 2), seed=0)


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
