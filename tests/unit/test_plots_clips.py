"""Figures of notebook 03 show the numbers that they are given; sliders fall back on the figure."""

import builtins
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from turncredit.plots import clip_shapes
from turncredit.plots.interactive import sliders


def test_pushes_draw_each_line_in_each_panel():
    ratios = torch.linspace(0.5, 2.0, 7)
    panels = {"praise": {"a": ratios, "b": 2 * ratios}, "blame": {"a": -ratios, "b": 0 * ratios}}
    figure = clip_shapes.pushes(panels, ratios, clip_low=0.2, clip_high=0.28)
    for axis, (title, lines) in zip(figure.axes, panels.items(), strict=True):
        assert axis.get_title() == title
        drawn = {line.get_label(): line.get_ydata() for line in axis.lines[:2]}
        for name, values in lines.items():
            assert np.allclose(drawn[name], values)


def test_strips_cross_out_what_has_no_gradient_and_name_the_turns():
    rows = {"token": torch.tensor([0.5, 0.0, -1.0]), "turn": torch.tensor([0.0, 0.0, -1.0])}
    figure = clip_shapes.strips(rows, [0, 0, 1], limit=1.5, unit="push")
    axis = figure.axes[0]
    assert sorted(text.get_position() for text in axis.texts) == [(0, 1), (1, 0), (1, 1)]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["turn 0", "turn 1"]
    assert np.allclose(axis.images[0].get_array(), [[0.5, 0, -1], [0, 0, -1]])


def test_shares_are_drawn_against_the_range():
    widths = torch.logspace(-3, 0, 5)
    figure = clip_shapes.shares({"token": widths.flip(0)}, widths, label="outside (share)")
    (line,) = figure.axes[0].lines
    assert np.allclose(line.get_xdata(), widths) and np.allclose(line.get_ydata(), widths.flip(0))


RANGES = {"low": (0.2, 0.0, 0.5, 0.1), "high": (0.3, 0.0, 1.0, 0.1)}


def draw(low: float, high: float) -> Figure:
    figure = Figure()
    figure.suptitle(f"{low} {high}")
    return figure


def test_without_ipywidgets_the_figure_stands_for_the_sliders(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("ipywidgets"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "ipywidgets", raising=False)
    assert sliders(draw, RANGES).get_suptitle() == "0.2 0.3"


def test_a_slider_for_each_argument_begins_at_its_value():
    pytest.importorskip("ipywidgets", reason="sliders need ipywidgets")
    widget = sliders(draw, RANGES)
    found = {child.description: child for child in widget.children[:2]}
    assert {name: child.value for name, child in found.items()} == {"low": 0.2, "high": 0.3}
    assert found["high"].max == 1.0 and not found["high"].continuous_update


def test_every_move_draws_another_picture():
    pytest.importorskip("ipywidgets", reason="sliders need ipywidgets")
    asked = []

    def noted(low: float, high: float) -> Figure:
        asked.append((low, high))
        return draw(low, high)

    widget = sliders(noted, RANGES)
    before = bytes(widget.children[-1].value)
    widget.children[0].value = 0.4
    assert asked == [(0.2, 0.3), (0.4, 0.3)]
    pictures = [before, bytes(widget.children[-1].value)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_a_notebook_with_sliders_runs_to_its_end_without_a_browser():
    """nbclient 0.11 waits for ever once a figure is displayed within an output widget."""
    pytest.importorskip("ipywidgets", reason="sliders need ipywidgets")
    nbformat = pytest.importorskip("nbformat", reason="comes with the notebooks extra")
    nbclient = pytest.importorskip("nbclient", reason="comes with the notebooks extra")
    code = (
        "from matplotlib.figure import Figure\n"
        "from turncredit.plots.interactive import sliders\n"
        "sliders(lambda low: Figure(), {'low': (0.2, 0.0, 0.5, 0.1)})"
    )
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(document, timeout=120, kernel_name="python3").execute()
    assert "widget-view" in str(document.cells[0].outputs)


def test_a_value_beside_its_slider_is_refused():
    with pytest.raises(ValueError, match=r"low: 0\.7 does not lie on a slider of 0\.0 to 0\.5"):
        sliders(draw, {"low": (0.7, 0.0, 0.5, 0.1)})
