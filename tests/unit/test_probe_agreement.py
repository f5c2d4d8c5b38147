"""Sign agreement and correlations of a probe: hand-computed numbers, scipy's, and laws."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from turncredit.probe import compare, sign_agreement, wilson

NAN = math.nan
VECTORS = Path(__file__).parents[1] / "golden" / "vectors.json"


def column(values):
    return [[value] for value in values]


def noisy(states: int, responses: int, seed: int = 0):
    stream = np.random.default_rng(seed)
    targets = stream.normal(size=(states, responses))
    return targets + stream.normal(size=(states, responses)), targets


def test_the_worked_states():
    """alpha - 1 and minus the relative surprisal of four states."""
    vector = json.loads(VECTORS.read_text(encoding="utf-8"))["mc_probe_stats"]
    given, expected = vector["in"].values(), vector["out"]
    found = compare(*map(column, given), seed=0)
    assert found["pearson"].value == pytest.approx(expected["pearson"], abs=1e-4)
    assert found["sign_agreement"].value == expected["sign_agreement"]
    assert found["spearman"].value == pytest.approx(spearmanr(*given).statistic)


def test_the_published_share_has_this_interval():
    """55 of 64 states: Wilson's interval solves |p - 55/64| = z sqrt(p (1 - p) / 64)."""
    for end in wilson(55, 64):
        assert abs(end - 55 / 64) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 64))
    low, high = wilson(55, 64)
    assert low < 55 / 64 < high


@given(st.integers(0, 40), st.integers(1, 40))
def test_wilson_stays_within_0_and_1_and_holds_the_share(successes, more):
    low, high = wilson(successes, successes + more)
    share = successes / (successes + more)
    assert -1e-12 <= low <= share + 1e-12 <= high + 2e-12 <= 1 + 3e-12
    assert wilson(more, successes + more) == pytest.approx((1 - high, 1 - low))


def test_wilson_without_trials_says_nothing_and_refuses_nonsense():
    assert all(map(math.isnan, wilson(0, 0)))
    with pytest.raises(ValueError, match="successes = 3 of trials = 2"):
        wilson(3, 2)


def test_a_silent_coefficient_is_left_out_or_a_coin_toss():
    signals, targets = [0.3, 0.0, 0.0, -0.1], [1.0, 1.0, -1.0, 2.0]
    assert sign_agreement(signals, targets) == 0.5
    assert sign_agreement(signals, targets, silent="half") == 0.5
    assert sign_agreement(signals[:3], targets[:3]) == 1.0
    assert sign_agreement(signals[:3], targets[:3], silent="half") == pytest.approx(2 / 3)
    assert math.isnan(sign_agreement([0.0], [1.0]))
    assert sign_agreement([0.0], [1.0], silent="half") == 0.5
    assert sign_agreement([1.0, 1.0], [0.0, 1.0]) == 1.0, "a target of 0 has no sign either"
    with pytest.raises(ValueError, match="'drop'"):
        sign_agreement(signals, targets, silent="drop")


def test_rounding_has_no_sign():
    assert sign_agreement([1e-12, 1.0], [-1.0, 1.0]) == 0.5
    assert sign_agreement([1e-12, 1.0], [-1.0, 1.0], tolerance=1e-9) == 1.0


def test_weights_are_shares():
    assert sign_agreement([1.0, 1.0], [1.0, -1.0], weights=[3.0, 1.0]) == 0.75


def test_pairs_with_a_nan_are_missing_and_counted():
    signals, targets = [[1.0, NAN, 0.0], [-1.0, 2.0, 3.0]], [[1.0, 1.0, 2.0], [NAN, 1.0, -1.0]]
    found = compare(signals, targets, seed=0)["sign_agreement"]
    assert (found.value, found.compared, found.silent, found.missing) == (2 / 3, 4, 1, 2)
    expected = pearsonr([1, 0, 2, 3], [1, 2, 1, -1]).statistic
    assert compare(signals, targets, seed=0)["pearson"].value == pytest.approx(expected)
    expected = spearmanr([1, 0, 2, 3], [1, 2, 1, -1]).statistic
    assert compare(signals, targets, seed=0)["spearman"].value == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_are_scipys(seed):
    signals, targets = noisy(20, 5, seed)
    found = compare(np.round(signals, 1) + 50, targets, seed=0)  # ties, and far from 0
    for name, function in (("pearson", pearsonr), ("spearman", spearmanr)):
        expected = function(np.round(signals, 1).ravel(), targets.ravel()).statistic
        assert found[name].value == pytest.approx(expected)
        assert found[name].low < expected < found[name].high


def test_a_signal_that_does_not_vary_has_no_correlation():
    """alpha = 1 everywhere, as AEM on a sharp policy: 0.1 + 0.2 must not read as spread."""
    for constant in (0.0, 0.1 + 0.2):
        found = compare(np.full((5, 4), constant), noisy(5, 4)[1], seed=0)
        assert math.isnan(found["pearson"].value) and math.isnan(found["pearson"].low)
        assert math.isnan(found["spearman"].value)
    assert compare(np.zeros((5, 4)), noisy(5, 4)[1], seed=0)["sign_agreement"].silent == 20


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_copies_of_a_response_do_not_narrow_the_interval(name):
    """States are the draws: 30 states stay 30, however many responses agree with each other."""
    signals, targets = noisy(30, 1)
    once = compare(signals, targets, seed=0)[name]
    many = compare(np.repeat(signals, 16, 1), np.repeat(targets, 16, 1), seed=0)[name]
    assert (many.low, many.high) == pytest.approx((once.low, once.high), abs=1e-9)


def test_intervals_of_the_sign_agreement_cover_the_truth_by_state():
    """Signs of a state agree all together or not at all, with chance 0.8."""
    covered = 0
    for seed in range(200):
        right = np.random.default_rng(seed).random((40, 1)) < 0.8
        signals = np.repeat(np.where(right, 1.0, -1.0), 8, 1)
        found = compare(signals, np.ones((40, 8)), draws=400, seed=seed)["sign_agreement"]
        covered += found.low <= 0.8 <= found.high
    assert 0.88 * 200 < covered <= 200


def test_intervals_repeat_and_draw_from_their_own_stream():
    signals, targets = noisy(10, 3)
    before = np.random.get_state()[1].tolist()
    assert compare(signals, targets, seed=1) == compare(signals, targets, seed=1)
    assert compare(signals, targets, seed=1) != compare(signals, targets, seed=2)
    assert np.random.get_state()[1].tolist() == before


def test_tables_of_two_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\), targets \(3, 2\)"):
        compare(np.zeros((2, 3)), np.zeros((3, 2)), seed=0)
