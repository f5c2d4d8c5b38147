"""Ledgers of credit: numbers are written as given, colours are shares of a method's largest."""

import itertools

import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from turncredit.plots.ledgers import Case, credit_ledgers

CASES = {
    "it went well": Case(["film\nsearch"], ["right"], {"GRPO": [1.0], "exact": [0.25]}),
    "wrong decision, correct execution": Case(
        ["ward\nguess", "ward\nsearch"],
        ["wrong", "follows"],
        {"GRPO": [-0.5, -0.5], "exact": [-0.25, 0.0001]},
    ),
}


def written(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_every_number_stands_in_its_cell_with_its_sign():
    figure = credit_ledgers(CASES)
    assert written(figure.axes[0]) == ["+1.000", "+0.250", "film\nsearch"]
    assert written(figure.axes[1])[:4] == ["−0.500", "−0.500", "−0.250", "0"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["GRPO", "exact"]


def test_a_methods_colours_depend_on_its_own_units_alone():
    def faces(figure):
        return [patch.get_facecolor() for axis in figure.axes for patch in axis.patches]

    tenfold = {
        title: case._replace(credit=case.credit | {"GRPO": [10 * v for v in case.credit["GRPO"]]})
        for title, case in CASES.items()
    }
    assert faces(credit_ledgers(CASES)) == faces(credit_ledgers(tenfold))
    praise, blame = (credit_ledgers(CASES).axes[n].patches[0].get_facecolor() for n in (0, 1))
    assert praise[2] > praise[0] and blame[0] > blame[2] and praise != to_rgba("white")


def test_titles_stand_side_by_side():
    figure = credit_ledgers(CASES | {"wrong decision, wrong execution": CASES["it went well"]})
    figure.draw_without_rendering()
    titles = [
        next(text for text in axis.findobj(Text) if text.get_text() == axis.get_title("left"))
        for axis in figure.axes
    ]
    for one, other in itertools.pairwise(title.get_window_extent() for title in titles):
        assert one.x1 < other.x0


def test_a_turn_without_a_number_is_refused():
    short = CASES["wrong decision, correct execution"]._replace(credit={"GRPO": [0.1]})
    with pytest.raises(ValueError, match=r"'short': \[2, 1\] labels and numbers for 2 turns"):
        credit_ledgers({"short": short})
