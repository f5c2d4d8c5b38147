"""Figures of the surprisal probe from fabricated tables: what is drawn, and equal bytes."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from turncredit import plots
from turncredit.plots import probe_figures as figures
from turncredit.plots.style import WIDTH
from turncredit.probe import PROXIES
from turncredit.probe.decomposition import STEPS

NAN = math.nan


def scatter_table() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"step": step, "response": k, "signal": 0.1 * k + step, "target": -0.2 * k}
            for step in (0, 50)
            for k in (-1, 0, 1, 2)
        ]
    )


def estimates(**place) -> list[dict]:
    found = [("sign_agreement", "half", 0.6), ("pearson", "", 0.2), ("spearman", "", 0.9)]
    found.append(("sign_agreement", "exclude", 0.99))
    return [
        place | {"measure": m, "silent": s, "value": v, "low": v - 0.1, "high": v + 0.05}
        for m, s, v in found
    ]


def agreement_table() -> pd.DataFrame:
    bins = {"all": ["all"], "step": ["0", "50"], "turn": ["0"], "difficulty": ["hard", "plain"]}
    bins |= {"tokens": ["1 to 2", "3 to 4", "5 to 8"]}
    return pd.DataFrame(
        row
        for kind in ("recorded", "fresh")
        for by, names in bins.items()
        for name in names
        for row in estimates(responses=kind, by=by, bin=name)
    )


def worlds_table() -> pd.DataFrame:
    """Over seeds; the second world has a bin of its own, and lengths come out of order."""
    bins = {"step": ["0", "50"], "turn": ["0"], "difficulty": ["1 hop", "2 hops"]}
    bins |= {"tokens": ["17 or more", "3 to 4"]}
    return pd.DataFrame(
        row
        for world in ("invented", "real")
        for kind in ("recorded", "fresh")
        for by, names in bins.items()
        for name in ([*names, "9 hops"] if (world, by) == ("real", "difficulty") else names)
        for row in estimates(world=world, responses=kind, by=by, bin=name)
    )


def runs_table() -> pd.DataFrame:
    """Two seeds around every mean."""
    parts = [worlds_table().assign(seed=n, value=lambda t, n=n: t["value"] + n) for n in (-1, 1)]
    return pd.concat(parts, ignore_index=True)


def tree_table() -> pd.DataFrame:
    return pd.DataFrame(
        {"seed": seed, "step": step}
        | {name: 0.1 * number + 0.01 * seed for number, name in enumerate(STEPS)}
        | dict.fromkeys(figures.VARIANCES, 1.0 + step + seed)
        for seed in range(2)
        for step in (0, 10)
    )


def proxy_table() -> pd.DataFrame:
    return pd.DataFrame(
        row
        for world in ("listed trees", "tiny policy")
        for proxy in PROXIES
        for row in estimates(world=world, proxy=proxy, options="")
    )


def all_figures() -> dict[str, Figure]:
    return {
        "scatter": figures.probe_scatter(scatter_table()),
        "agreement": figures.probe_agreement(agreement_table()),
        "worlds": figures.probe_worlds(worlds_table(), runs_table()),
        "decomposition": figures.probe_decomposition(tree_table(), STEPS),
        "proxies": figures.probe_proxies(proxy_table()),
    }


def points(axis) -> dict[str, list[tuple[float, float]]]:
    """Positions of the error bars' dots, by colour."""
    found: dict[str, list] = {}
    for container in axis.containers:
        line = container.lines[0]
        pairs = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        found.setdefault(to_hex(line.get_color()).upper(), []).extend(pairs)
    return found


def test_a_panel_per_step_holds_its_recorded_and_fresh_responses():
    figure = figures.probe_scatter(scatter_table())
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["step 0", "step 50"]
    fresh, recorded = figure.axes[1].collections
    assert recorded.get_offsets().tolist() == [[0.2, 49.9]]
    assert len(fresh.get_offsets()) == 3
    empty = figures.probe_scatter(scatter_table().iloc[:0])
    assert [text.get_text() for text in empty.axes[0].texts] == ["no runs"]


def test_agreement_is_drawn_by_division_with_silent_pairs_counted_half():
    figure = figures.probe_agreement(agreement_table())
    top = figure.axes[: len(figures.DIVISIONS)]
    assert [axis.get_xlabel() for axis in figure.axes[len(top) :]] == [
        "training step", "turn", "difficulty", "tokens of the response",
    ]  # fmt: skip
    for axis, bins in zip(top, (2, 1, 2, 3), strict=True):
        drawn = points(axis)
        assert set(drawn) == {figures.RECORDED, figures.FRESH}
        assert [y for _, y in drawn[figures.RECORDED]] == [0.6] * bins
        left = [x for x, _ in drawn[figures.RECORDED]]
        right = [x for x, _ in drawn[figures.FRESH]]
        assert all(a < b for a, b in zip(left, right, strict=True))
    published = [line.get_ydata()[0] for line in top[0].lines if line.get_linestyle() == ":"]
    assert published == [figures.published()["sign_agreement"]] == [0.859375]


def test_worlds_stand_side_by_side_in_the_bins_that_they_have():
    figure = figures.probe_worlds(worlds_table(), runs_table())
    lengths = figure.axes[7]
    assert [text.get_text() for text in lengths.get_xticklabels()] == ["3 to 4", "17 or more"]
    hops = points(figure.axes[2])
    invented, real = (hops[colour] for colour in figures.WORLD_COLOURS[:2])
    assert [not math.isnan(y) for _, y in invented] == [True, True, False]
    assert [not math.isnan(y) for _, y in real] == [True] * 3
    assert all(a[0] < b[0] for a, b in zip(invented, real, strict=True))
    recorded = worlds_table().assign(value=lambda t: t["value"] - (t["responses"] == "recorded"))
    axis = figures.probe_worlds(recorded, runs_table(), responses="fresh").axes[0]
    assert {round(y, 6) for dots in points(axis).values() for _, y in dots} == {0.6}


def test_every_seed_is_a_dot_beside_its_mean():
    axis = figures.probe_worlds(worlds_table(), runs_table()).axes[2]
    clouds = axis.collections[::2]  # beside each the bars of its means
    assert len(clouds) == 2
    for colour, dots in zip(figures.WORLD_COLOURS, clouds, strict=False):
        means = [y for _, y in points(axis)[colour] if not math.isnan(y)]
        seeds = sorted(y for _, y in dots.get_offsets())
        assert seeds == pytest.approx(sorted(y + n for y in means for n in (-1, 1)))


def test_intervals_end_where_the_table_says():
    axis = figures.probe_agreement(agreement_table()).axes[0]
    (segments,) = axis.containers[0].lines[2]
    low, high = segments.get_segments()[0][:, 1]
    assert (low, high) == (pytest.approx(0.5), pytest.approx(0.65))


def test_a_missing_number_is_not_drawn():
    table = agreement_table()
    table.loc[(table["by"] == "step") & (table["bin"] == "50"), ["value", "low", "high"]] = NAN
    drawn = points(figures.probe_agreement(table).axes[0])[figures.RECORDED]
    assert [math.isnan(y) for _, y in drawn] == [False, True]


def test_the_decomposition_has_a_line_a_seed_and_their_mean():
    left, right = figures.probe_decomposition(tree_table(), STEPS).axes
    means = [line for line in left.lines if line.get_marker() == "o"]
    assert len(means) == 2
    expected = [0.1 * number + 0.005 for number in range(len(STEPS))]
    assert list(means[0].get_ydata()) == pytest.approx(expected)
    labels = [label.get_text() for label in left.get_xticklabels()]
    assert len(labels) == len(STEPS) and labels[-1] == "1 - alpha"
    assert len(right.lines) == 3 * (2 + 1)


def test_every_proxy_has_its_place_in_each_world():
    figure = figures.probe_proxies(proxy_table())
    axis = figure.axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [name.replace("_", " ") for name in PROXIES][::-1]
    drawn = points(axis)
    assert len(drawn) == 2
    for dots in drawn.values():
        assert [x for x, _ in dots] == [0.6] * len(PROXIES)
        assert np.allclose([y for _, y in dots], range(len(PROXIES)), atol=0.25)


def test_equal_tables_give_equal_bytes(tmp_path):
    for folder in ("one", "two"):
        for name, figure in all_figures().items():
            assert figure.get_size_inches()[0] == WIDTH
            plots.save_figure(figure, tmp_path / folder, name)
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(written) == 2 * len(all_figures())
    for name in written:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
