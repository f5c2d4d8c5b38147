"""Triangles of policies: points, fields, arrows and paths, by hand and by their laws."""

import math
from functools import partial

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.quiver import Quiver

from turncredit.environments.toy_tree import exact
from turncredit.plots import save_figure, simplex
from turncredit.plots.simplex import HEIGHT, Panel

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
CORNERS = torch.eye(3, dtype=torch.float64)
INSIDE = np.array([0.5, HEIGHT / 3])


def towards(policies, *, response: int, advantage: float):
    return advantage * (CORNERS[response] - policies)


def drift(policies, *, response: int, advantage: float):
    surprisals = -policies.log()
    return advantage * (surprisals[:, response] - (policies * surprisals).sum(1))


def draw_fields(**options):
    panels = {"praise": Panel(partial(drift, response=0, advantage=1.0))}
    return simplex.fields(panels, unit="nats", limit=2.0, **options)


def sign_lines(axis) -> list[np.ndarray]:
    """Points of the black lines where a field changes sign."""
    found = []
    for drawn in axis.collections:
        colours = drawn.get_edgecolor()
        if len(drawn.get_linewidth()) == 1 and drawn.get_linewidth()[0] == 1.6 and len(colours):
            found += [path.vertices for path in drawn.get_paths() if len(path.vertices)]
    return found


def arrow_ends(axis) -> np.ndarray:
    """[arrows, 2, 2]: start and end of each arrow in the plane."""
    [arrows] = [drawn for drawn in axis.collections if isinstance(drawn, Quiver)]
    half = 0.5 * np.stack([arrows.U, arrows.V], 1) / arrows.scale
    assert arrows.pivot == "middle"
    return np.stack([arrows.XY - half, arrows.XY + half], 1)


def is_inside(points: np.ndarray) -> np.ndarray:
    """Whether points of the plane lie in the triangle, by their heights above its three edges."""
    x, y = points[..., 0], points[..., 1]
    edges = (y, 2 * HEIGHT * x - y, 2 * HEIGHT * (1 - x) - y)
    return np.min(edges, axis=0) >= 0


def bar_heights(axis) -> dict[str, list[float]]:
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axis.containers}


class TestPoints:
    @pytest.mark.parametrize("resolution", [1, 2, 7])
    def test_a_grid_holds_every_policy_of_its_spacing_once(self, resolution):
        points = simplex.grid(resolution)
        assert len(points) == (resolution + 1) * (resolution + 2) // 2
        assert len(points.unique(dim=0)) == len(points)
        assert torch.allclose(points.sum(1), torch.ones(1, dtype=torch.float64))
        assert (points > 0).all()
        assert torch.allclose(points.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64))

    @pytest.mark.parametrize(("resolution", "margin"), [(0, 0.1), (3, 0.0), (3, math.nan)])
    def test_a_grid_without_points_or_room_is_refused(self, resolution, margin):
        with pytest.raises(ValueError, match="grid: resolution"):
            simplex.grid(resolution, margin=margin)

    def test_corners_centre_and_directions_by_hand(self):
        assert np.allclose(simplex.in_plane(CORNERS), [[0.5, HEIGHT], [0, 0], [1, 0]])
        assert np.allclose(simplex.in_plane(torch.ones(3) / 3), [0.5, HEIGHT / 3])
        step = simplex.in_plane(CORNERS[0] - POLICY)
        assert np.allclose(step, [0.5, HEIGHT] - simplex.in_plane(POLICY))

    def test_other_than_three_responses_are_refused(self):
        with pytest.raises(ValueError, match="4 responses"):
            simplex.in_plane(torch.ones(4) / 4)

    def test_entropies_by_hand(self):
        policies = torch.stack([torch.ones(3) / 3, torch.tensor([1.0, 0.0, 0.0])])
        assert torch.allclose(simplex.entropies(policies), torch.tensor([math.log(3), 0.0]))


class TestFields:
    def test_the_line_is_where_the_field_changes_sign(self):
        half = Panel(lambda policies: policies[:, 0] - 0.5)
        figure = simplex.fields({"half": half}, unit="", limit=1.0)
        [line] = sign_lines(figure.axes[0])
        assert np.allclose(line[:, 1], HEIGHT / 2, atol=1e-3)

    def test_the_line_of_the_entropy_drift_has_the_surprisal_of_the_entropy(self):
        [line] = sign_lines(draw_fields().axes[0])
        heights = torch.from_numpy(np.stack([line[:, 1] / HEIGHT], 1))
        right = torch.from_numpy(line[:, :1]) - heights / 2
        policies = torch.cat([heights, 1 - heights - right, right], 1)
        assert len(policies) > 50
        for policy in policies[(policies > 0.01).all(1)]:
            found = exact.entropy_drift(policy.log(), torch.ones(3, dtype=torch.float64))
            assert abs(found[0]) < 5e-3

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_a_field_that_only_rounding_makes_change_sign_has_no_line(self, sign):
        field = Panel(lambda policies: sign * ((policies - 1 / 3).square().sum(1) - 1e-17))
        figure = simplex.fields({"one sign": field}, unit="", limit=0.1)
        assert sign_lines(figure.axes[0]) == []

    def test_all_panels_have_the_limits_asked_for(self):
        panels = {str(n): Panel(lambda p, n=n: n * (p[:, 0] - p[:, 1])) for n in (1, 5)}
        figure = simplex.fields(panels, unit="nats", limit=0.7)
        filled = [axis.collections[0] for axis in figure.axes[:2]]
        assert [(drawn.norm.vmin, drawn.norm.vmax) for drawn in filled] == [(-0.7, 0.7)] * 2
        assert [axis.get_title() for axis in figure.axes[:2]] == ["1", "5"]
        assert figure.axes[2].get_ylabel() == "nats"

    @pytest.mark.parametrize("response", [0, 1, 2])
    @pytest.mark.parametrize("advantage", [-2.0, 0.01, 1.0])
    def test_arrows_point_along_the_update_and_stay_in_the_triangle(self, response, advantage):
        step = {"response": response, "advantage": advantage}
        panel = Panel(partial(drift, **step), partial(towards, **step))
        ends = arrow_ends(simplex.fields({"": panel}, unit="", limit=2.0).axes[0])
        assert is_inside(ends).all()
        arrows, middles = ends[:, 1] - ends[:, 0], ends.mean(1)
        wanted = math.copysign(1, advantage) * (simplex.in_plane(CORNERS[response]) - middles)
        along = (arrows * wanted).sum(1)
        assert np.allclose(along, np.linalg.norm(arrows, axis=1) * np.linalg.norm(wanted, axis=1))

    def test_a_field_that_leads_nowhere_has_arrows_of_no_length(self):
        panel = Panel(lambda policies: policies[:, 0], torch.zeros_like)
        ends = arrow_ends(simplex.fields({"": panel}, unit="", limit=1.0).axes[0])
        assert np.array_equal(ends[:, 0], ends[:, 1])

    def test_corners_are_named_and_the_policy_is_marked(self):
        figure = draw_fields(policy=POLICY, responses=("yes", "no", "maybe"))
        names = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
        assert names["yes"][1] > HEIGHT and names["no"][0] == 0 and names["maybe"][0] == 1
        marks = [
            line.get_xydata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1
        ]
        assert np.allclose(marks, [simplex.in_plane(POLICY)])


class TestUpdates:
    def test_arrows_start_at_the_policy_and_have_one_length(self):
        steps = {"praise": CORNERS[0] - POLICY, "blame": -3 * (CORNERS[2] - POLICY)}
        figure = simplex.updates(POLICY, torch.tensor([-0.2, 0.1, 0.1]).double(), steps)
        start, uphill = simplex.in_plane(POLICY), np.array([0.0, -1.0])
        for axis, step in zip(figure.axes[:2], steps.values(), strict=True):
            arrows = [drawn for drawn in axis.collections if isinstance(drawn, Quiver)]
            assert [drawn.get_label() for drawn in arrows] == ["entropy gradient", "update"]
            drawn = [np.array([a.U[0], a.V[0]]) / a.scale for a in arrows]
            assert np.allclose([a.XY[0] for a in arrows], start)
            assert np.allclose(np.linalg.norm(drawn, axis=1), 0.27)
            wanted = simplex.in_plane(step)
            assert np.allclose(drawn[0] / 0.27, uphill)
            assert np.allclose(drawn[1] / 0.27, wanted / np.linalg.norm(wanted))

    def test_the_line_of_equal_entropy_passes_through_the_policy(self):
        figure = simplex.updates(POLICY, CORNERS[1] - POLICY, {"": CORNERS[0] - POLICY})
        lines = [
            path.vertices
            for drawn in figure.axes[0].collections
            if not isinstance(drawn, Quiver)
            and [to_hex(c) for c in drawn.get_edgecolor()] == [simplex.ENTROPY.lower()]
            for path in drawn.get_paths()
        ]
        distances = np.linalg.norm(np.concatenate(lines) - simplex.in_plane(POLICY), axis=1)
        assert distances.min() < 0.02


class TestPaths:
    def test_curves_are_the_policies_rewards_and_entropies(self):
        rewards = torch.tensor([1.0, 0.0, 0.5]).double()
        trail = torch.stack([POLICY, CORNERS[0]])[None]
        figure = simplex.paths({"jump": trail}, rewards)
        triangle, curves = figure.axes
        [curve] = [line for line in curves.lines if line.get_label() == "jump"]
        assert np.allclose(curve.get_xdata(), [0.6, 1.0])
        assert np.allclose(curve.get_ydata(), [simplex.entropies(POLICY), 0.0])
        assert any(
            len(line.get_xydata()) == 2
            and np.allclose(line.get_xydata(), simplex.in_plane(trail[0]))
            for line in triangle.lines
        )
        named = [text.get_text() for text in triangle.texts]
        assert named == ["a: reward 1", "b: reward 0", "c: reward 0.5"]

    def test_every_start_is_drawn_and_each_method_named_once(self):
        trails = torch.stack([CORNERS, CORNERS.roll(1, 0)], 1)
        figure = simplex.paths({"one": trails, "two": trails}, torch.ones(3).double())
        legend = figure.axes[1].get_legend()
        assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
        assert len([line for line in figure.axes[1].lines if len(line.get_xdata()) == 2]) == 6


class TestBars:
    def test_bars_are_the_numbers_in_the_order_of_the_labels(self):
        values = {"x": torch.tensor([0.5, -1.0]), "y": torch.tensor([0.25, 2.0])}
        axis = simplex.bars(values, ["left", "right\nside"], unit="nats").axes[0]
        assert bar_heights(axis) == {"x": [0.5, -1.0], "y": [0.25, 2.0]}
        assert [label.get_text() for label in axis.get_xticklabels()] == ["left", "right\nside"]
        left, right = (bars[0] for bars in axis.containers)
        assert left.get_x() + left.get_width() < right.get_x()
        assert left.get_x() + right.get_x() + right.get_width() == pytest.approx(0.0)

    def test_a_single_series_needs_no_legend(self):
        one = {"x": torch.tensor([1.0])}
        assert simplex.bars(one, ["a"], unit="").axes[0].get_legend() is None

    @pytest.mark.parametrize("draw", ["bars", "paths"])
    def test_more_series_than_colours_are_refused_and_not_dropped(self, draw):
        many = {str(n): CORNERS[None] if draw == "paths" else torch.ones(3) for n in range(5)}
        with pytest.raises(ValueError, match="5 series, but only 4 colours"):
            if draw == "bars":
                simplex.bars(many, ["a", "b", "c"], unit="")
            else:
                simplex.paths(many, torch.ones(3).double())


class TestExplorer:
    def draw(self, policy, scale: float = 1.0):
        panel = Panel(partial(drift, response=0, advantage=1.0))
        drifts = {"base": scale * torch.tensor([0.1, -0.2, 0.4])}
        return simplex.explorer(panel, policy, CORNERS, drifts, title="a", limit=1.5)

    def test_bars_and_mark_follow_the_sliders(self):
        figure = self.draw(POLICY, 2.0)
        triangle, beside = figure.axes[:2]
        assert bar_heights(beside)["base"] == pytest.approx([0.2, -0.4, 0.8])
        labels = [label.get_text() for label in beside.get_xticklabels()]
        assert labels == ["a\n(0.50)", "b\n(0.30)", "c\n(0.20)"]
        marks = [line.get_xydata()[0] for line in triangle.lines if len(line.get_xdata()) == 1]
        assert np.allclose(marks, [simplex.in_plane(POLICY)])

    def test_scales_stay_where_they_are(self):
        pictures = [self.draw(policy, scale) for policy, scale in ((POLICY, 1), (CORNERS[1], 3))]
        assert {figure.axes[1].get_ylim() for figure in pictures} == {(-1.5, 1.5)}
        limits = {figure.axes[0].collections[0].norm.vmax for figure in pictures}
        assert limits == {1.5}


def test_equal_figures_give_equal_bytes_under_any_settings(tmp_path):
    folders = [tmp_path / "plain", tmp_path / "changed"]
    written = [save_figure(draw_fields(policy=POLICY), folders[0], "field")]
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "image.cmap": "hot"}):
        written.append(save_figure(draw_fields(policy=POLICY), folders[1], "field"))
        assert matplotlib.rcParams["font.size"] == 20
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name
