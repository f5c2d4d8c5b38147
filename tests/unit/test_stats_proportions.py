"""Rates, Fisher's test and the Cochran-Mantel-Haenszel test: published tables and laws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions

from turncredit import stats
from turncredit.probe import wilson
from turncredit.stats import Rate

NAN = math.nan


def rates():
    totals = st.integers(0, 9)
    return totals.flatmap(lambda n: st.integers(0, n).map(lambda k: Rate(k, n)))


def test_outcomes_are_counted_and_missing_ones_apart():
    assert stats.count_events([1, 0, NAN, True, 0.0]) == Rate(2, 4, 1)
    assert stats.count_events([]) == Rate(0, 0, 0)
    with pytest.raises(ValueError, match=r"0\.5"):
        stats.count_events([0.5])


def test_a_rate_refuses_more_events_than_outcomes():
    with pytest.raises(ValueError, match="events = 3"):
        Rate(3, 2)


@pytest.mark.parametrize(
    ("events", "total", "low", "high"),
    [  # Newcombe 1998a, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_of_published_rates(events, total, low, high):
    interval = stats.rate_interval(Rate(events, total))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert wilson(events, total) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [  # Newcombe 1998b, table II, method 10
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0000),
        ((10, 10), (0, 10), 0.6075, 1.0000),
    ],
)
def test_newcombe_interval_of_published_differences(a, b, low, high):
    interval = stats.block_rate_difference({0: Rate(*a)}, {0: Rate(*b)})
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


@given(rates(), rates())
def test_differences_turn_round_and_stay_within_one(a, b):
    forth, back = (stats.block_rate_difference({0: x}, {0: y}) for x, y in ((a, b), (b, a)))
    assert forth.value == pytest.approx(-back.value, nan_ok=True)
    assert forth.low == pytest.approx(-back.high, nan_ok=True)
    if a.total and b.total:
        assert -1 - 1e-12 <= forth.low <= forth.value <= forth.high <= 1 + 1e-12


@pytest.mark.parametrize(
    ("events", "p"), [(11, 0.473), (8, 1.0), (0, 0.002), (7, 1.0), (14, 0.054)]
)
def test_fisher_of_sixteen_seeds_against_eight_events(events, p):
    # By R's fisher.test, to three digits.
    assert stats.fisher_test(Rate(events, 16), Rate(8, 16)) == pytest.approx(p, abs=5e-4)


def test_without_outcomes_nothing_is_said():
    nothing = Rate(0, 0, 3)
    assert math.isnan(stats.fisher_test(nothing, Rate(1, 2)))
    assert math.isnan(stats.rate_interval(nothing).high)
    difference = stats.block_rate_difference({0: nothing}, {0: Rate(1, 2, 1)})
    assert math.isnan(difference.value) and math.isnan(difference.low)
    assert (difference.n, difference.missing) == (0, 4)


# Admissions to Berkeley by sex, six departments (R's UCBAdmissions): admitted, rejected.
MEN = [(512, 313), (353, 207), (120, 205), (138, 279), (53, 138), (22, 351)]
WOMEN = [(89, 19), (17, 8), (202, 391), (131, 244), (94, 299), (24, 317)]
# Rabbits cured by penicillin, at once and after a delay, at five doses (Mantel 1963; Agresti).
AT_ONCE = [(0, 6), (3, 3), (6, 0), (5, 1), (2, 0)]
DELAYED = [(0, 5), (0, 6), (2, 4), (6, 0), (5, 0)]


def by_block(pairs):
    return {number: Rate(yes, yes + no) for number, (yes, no) in enumerate(pairs)}


def test_cmh_of_the_berkeley_admissions():
    test = stats.cmh_test(by_block(MEN), by_block(WOMEN))  # R: mantelhaen.test(UCBAdmissions)
    ratio = test.odds_ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(
        (0.9046968, 0.7719074, 1.0603298), abs=1e-6
    )
    assert test.chi_square == pytest.approx(0.2169, abs=1e-4)
    assert (test.statistic, test.blocks, test.informative) == (1198, 6, 6)


def test_cmh_of_the_rabbits_is_exact_where_tables_are_sparse():
    test = stats.cmh_test(by_block(AT_ONCE), by_block(DELAYED))
    assert test.statistic == 16
    assert test.exact == pytest.approx(0.03994, abs=1e-5)  # R: mantelhaen.test(exact = TRUE)
    assert test.mid < test.exact
    assert test.odds_ratio.value == pytest.approx(7.0)
    assert (test.odds_ratio.low, test.odds_ratio.high) == pytest.approx((1.026713, 47.725133))
    assert (test.blocks, test.informative) == (5, 3)


@given(rates().filter(lambda r: r.total), rates().filter(lambda r: r.total))
def test_cmh_of_one_block_is_fishers_test(a, b):
    assert stats.cmh_test({0: a}, {0: b}).exact == pytest.approx(stats.fisher_test(a, b))


@settings(max_examples=30)
@given(st.lists(st.tuples(rates(), rates()), max_size=2))
def test_cmh_is_symmetric_and_by_enumeration_a_p_value(pairs):
    a, b = ({i: pair[arm] for i, pair in enumerate(pairs)} for arm in (0, 1))
    test, turned = stats.cmh_test(a, b), stats.cmh_test(b, a)
    assert test.exact == pytest.approx(turned.exact, nan_ok=True)
    assert test.mid == pytest.approx(turned.mid, nan_ok=True)
    used = [(x, y) for x, y in pairs if x.total and y.total]
    if not used:
        assert math.isnan(test.exact)
        return
    # Every way to deal the events of each block, by its hypergeometric chance.
    options = []
    for x, y in used:
        events, total = x.events + y.events, x.total + y.total
        law = distributions.hypergeom(total, events, x.total)
        options.append([(k, law.pmf(k)) for k in range(x.total + 1) if law.pmf(k) > 0])
    chances: dict[int, float] = {}
    for dealt in itertools.product(*options):
        key = sum(k for k, _ in dealt)
        chances[key] = chances.get(key, 0.0) + math.prod(p for _, p in dealt)
    seen = chances[sum(x.events for x, _ in used)]
    expected = sum(p for p in chances.values() if p <= seen * (1 + 1e-6))
    assert test.exact == pytest.approx(min(1.0, expected))


def test_blocks_without_news_and_without_outcomes():
    # Block 1: all collapsed; block 2: one arm has no outcome.
    a = {0: Rate(0, 5), 1: Rate(4, 4), 2: Rate(0, 0, 4)}
    b = {0: Rate(5, 5), 1: Rate(4, 4), 2: Rate(4, 4)}
    test = stats.cmh_test(a, b)
    assert (test.blocks, test.informative, test.odds_ratio.missing) == (2, 1, 4)
    assert test.exact == pytest.approx(stats.fisher_test(a[0], b[0]))
    uninformative = stats.cmh_test({0: Rate(0, 5)}, {0: Rate(0, 5)})
    assert (uninformative.exact, uninformative.mid) == (1.0, 1.0)
    assert math.isnan(uninformative.odds_ratio.value)
    difference = stats.block_rate_difference(a, b)
    assert difference.value == pytest.approx(-1.0 * 2.5 / 4.5)  # weights 5 * 5 / 10, 4 * 4 / 8
    assert (difference.n, difference.missing) == (18, 4)


def test_a_rate_over_blocks_weighs_them_equally_and_has_a_width_at_zero():
    found = stats.block_rate({0: Rate(4, 4), 1: Rate(0, 16), 2: Rate(0, 0)})
    assert found.value == 0.5
    none = stats.block_rate({k: Rate(0, 4) for k in range(4)})
    pooled = stats.rate_interval(Rate(0, 16))
    assert none.low == 0.0
    assert none.high == pytest.approx(pooled.high, rel=0.01)
    assert math.isnan(stats.block_rate({}).value)


def test_outcomes_by_block():
    assert stats.count_blocks({0: [1, NAN], 1: []}) == {0: Rate(1, 1, 1), 1: Rate(0, 0)}


@pytest.mark.parametrize(("seeds", "least"), [(4, 0.88), (10, 0.91)])
def test_coverage_of_the_stratified_difference_of_rates(seeds, least):
    """400 experiments of 4 unlike blocks: the standard error of 0.93 is 0.013."""
    generator, covered = np.random.default_rng(0), 0
    chances = np.array([[0.75, 0.25, 0.75, 0.25], [0.45, 0.1, 0.45, 0.1]])
    truth = chances[0].mean() - chances[1].mean()
    for _ in range(400):
        events = generator.binomial(seeds, chances)
        a, b = ({k: Rate(int(n), seeds) for k, n in enumerate(arm)} for arm in events)
        interval = stats.block_rate_difference(a, b)
        covered += interval.low <= truth <= interval.high
    assert least <= covered / 400 <= 0.98


def test_no_events_never_have_a_limit_above_zero_nor_events_alone_one_below_one():
    # Rounding would give 1e-18 for some totals, and "it happens" for what never did.
    for total in range(1, 60):
        for level in (0.5, 0.9, 0.95, 0.99):
            assert stats.rate_interval(Rate(0, total), level=level).low == 0.0
            assert stats.rate_interval(Rate(total, total), level=level).high == 1.0
            blocks = {0: Rate(0, total), 1: Rate(0, 7)}
            assert stats.block_rate(blocks, level=level).low == 0.0
