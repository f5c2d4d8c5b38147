"""How far a signal follows a target: sign agreement and correlations, with intervals by state.

Responses of one state share its baseline and are no independent draws: intervals draw states.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from turncredit.seeding import derive
from turncredit.stats import proportions

SILENT = ("exclude", "half")


@dataclass(frozen=True)
class Estimate:
    """A measure with its interval; NaN where there is nothing to compare."""

    value: float
    low: float
    high: float
    compared: int
    """Pairs that both have a number."""
    silent: int
    """Of these, pairs in which the signal or the target is 0 (alpha = 1: the coefficient is
    silent); the sign agreement leaves them out or counts them half."""
    missing: int
    """Pairs left out because one of them is NaN."""


def sign_agreement(
    signals: Sequence[float],
    targets: Sequence[float],
    *,
    silent: str = "exclude",
    tolerance: float = 0.0,
    weights: Sequence[float] | None = None,
) -> float:
    """Share of pairs whose signs agree; NaN without any pair.

    A pair is silent if either number is within `tolerance` of 0: "exclude" leaves it out (then a
    method that hardly ever acts may score high), "half" counts it as a coin toss.  weights: one a
    pair, 1 by default.  NaN pairs are left out.

    >>> sign_agreement([-0.2, 0.1, 0.3, -0.1], [-1.0, 0.5, 0.8, 0.2])
    0.75
    >>> sign_agreement([-0.2, 0.0], [-1.0, 0.5], silent="half")
    0.75
    """
    right, counted = _signs(_pairs(signals, targets), silent, tolerance)
    mass = np.ones_like(right) if weights is None else np.reshape(weights, right.shape)
    return float(_ratio((right * mass).sum(), (counted * mass).sum()))


def compare(
    signals: Sequence[Sequence[float]],
    targets: Sequence[Sequence[float]],
    *,
    silent: str = "exclude",
    tolerance: float = 0.0,
    level: float = 0.95,
    draws: int = 2000,
    seed: int,
) -> dict[str, Estimate]:
    """`sign_agreement`, `pearson` and `spearman` of [N, K] signals and targets.

    Each pair weighs the same.  Intervals are percentile bootstraps over the N states (Spearman
    keeps the ranks of the whole table); with K = 1 the sign agreement has Wilson's instead.
    Raises ValueError for tables of different shapes.
    """
    pairs = _pairs(signals, targets)
    missing = np.isnan(pairs[0])
    right, counted = _signs(pairs, silent, tolerance)
    quiet = int(_quiet(pairs, tolerance).sum())
    numbers = {"compared": int((~missing).sum()), "silent": quiet, "missing": int(missing.sum())}
    sums = {
        "sign_agreement": np.stack([right.sum(1), counted.sum(1)], 1),
        "pearson": _moments(pairs),
        "spearman": _moments(_ranks(pairs)),
    }
    generator = np.random.default_rng(derive(seed, "probe intervals"))
    states = len(missing)
    chosen = generator.multinomial(states, np.full(states, 1 / states), size=draws)
    found = {}
    for name, per_state in sums.items():
        measure = _ratio if name == "sign_agreement" else _correlation
        value = float(measure(*per_state.sum(0)))
        low, high = _quantiles(measure(*(chosen @ per_state).T), level)
        if name == "sign_agreement" and missing.shape[1] == 1:
            low, high = wilson(*per_state.sum(0), level=level)
        found[name] = Estimate(value, low, high, **numbers)
    return found


def wilson(successes: float, trials: float, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share; NaN without trials.

    >>> [round(end, 3) for end in wilson(55, 64)]
    [0.754, 0.924]
    """
    if trials and not 0 <= successes <= trials:
        raise ValueError(f"successes = {successes} of trials = {trials}")
    share = successes / trials if trials else math.nan
    low, high = proportions.wilson(share, trials, norm.ppf((1 + level) / 2))
    return float(low), float(high)


def _pairs(signals: Sequence, targets: Sequence) -> np.ndarray:
    """[2, ...] float: NaN in both where either is; a [N] table is [N, 1]."""
    tables = [np.asarray(values, dtype=float) for values in (signals, targets)]
    if tables[0].shape != tables[1].shape:
        raise ValueError(f"signals have shape {tables[0].shape}, targets {tables[1].shape}")
    pairs = np.stack(tables)
    pairs[:, np.isnan(pairs).any(0)] = np.nan
    return pairs[:, :, None] if pairs.ndim == 2 else pairs


def _quiet(pairs: np.ndarray, tolerance: float) -> np.ndarray:
    return (np.abs(pairs) <= tolerance).any(0)


def _signs(pairs: np.ndarray, silent: str, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Right and counted pairs, as 0, 0.5 or 1 each."""
    if silent not in SILENT:
        raise ValueError(f"silent is {silent!r}; need one of {', '.join(SILENT)}")
    quiet, known = _quiet(pairs, tolerance), ~np.isnan(pairs[0])
    right = (np.sign(pairs[0]) == np.sign(pairs[1])) & ~quiet
    if silent == "half":
        return right + 0.5 * quiet, known.astype(float)
    return right.astype(float), (known & ~quiet).astype(float)


def _ranks(pairs: np.ndarray) -> np.ndarray:
    return np.stack([rankdata(t, axis=None, nan_policy="omit").reshape(t.shape) for t in pairs])


def _moments(pairs: np.ndarray) -> np.ndarray:
    """[N, 6]: per state the number of pairs and the sums of x, y, xx, yy, xy, about the means."""
    known = ~np.isnan(pairs[0])
    x, y = (np.where(known, t - t[known].mean(), 0.0) if known.any() else 0 * t for t in pairs)
    return np.stack([v.sum(1) for v in (known.astype(float), x, y, x * x, y * y, x * y)], 1)


def _correlation(
    n: np.ndarray, x: np.ndarray, y: np.ndarray, xx: np.ndarray, yy: np.ndarray, xy: np.ndarray
) -> np.ndarray:
    """Pearson's r from sums; NaN where one of the two does not vary, up to rounding."""
    spreads = [n * square - total * total for square, total in ((xx, x), (yy, y))]
    varies = (spreads[0] > 1e-12 * n * xx) & (spreads[1] > 1e-12 * n * yy)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(varies, (n * xy - x * y) / np.sqrt(spreads[0] * spreads[1]), np.nan)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.divide(part, whole)


def _quantiles(values: np.ndarray, level: float) -> tuple[float, float]:
    present = values[~np.isnan(values)]
    if not len(present):
        return math.nan, math.nan
    low, high = np.quantile(present, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
