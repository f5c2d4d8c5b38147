"""Arms keep a look of their own that every common colour vision tells apart; legends fit."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from turncredit import params, paths, plots
from turncredit.credit import TURN_WEIGHTS
from turncredit.plans import methods_path
from turncredit.plots.panels import legend, task_grid
from turncredit.plots.style import ARM_LOOKS, SPARE_LOOKS, WIDTH, arm_label, styled

# Full colour blindness of one cone, as linear RGB matrices (Machado, Oliveira, Fernandes 2009).
VISIONS = {
    "common": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [
        [0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]
    ],
    "tritanopia": [
        [1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]
    ],
}  # fmt: skip
TO_XYZ = np.array(
    [[0.41246, 0.35758, 0.18044], [0.21267, 0.71515, 0.07217], [0.01933, 0.11919, 0.95030]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(colour: str, vision: str) -> np.ndarray:
    """CIE L*a*b* of a colour as one vision sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.array(VISIONS[vision]) @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str) -> float:
    """The smallest difference of two colours over the visions; 2.3 is just noticeable."""
    return min(np.linalg.norm(lab(one, v) - lab(other, v)) for v in VISIONS)


def test_the_measure_knows_what_deuteranopes_confuse():
    common = np.linalg.norm(lab("#CC3311", "common") - lab("#777711", "common"))
    assert common > 60
    assert np.linalg.norm(lab("#FFFFFF", "common") - [100, 0, 0]) < 0.1
    assert distance("#E51E10", "#7D7A00") < common / 3


def test_arms_of_one_marker_differ_in_colour_and_all_colours_differ():
    assert len(ARM_LOOKS) >= 20
    for (a, (one, shape)), (b, (other, form)) in itertools.combinations(ARM_LOOKS.items(), 2):
        least = 20 if shape == form else 7
        assert distance(one, other) > least, (a, b, distance(one, other))


def test_looks_for_arms_of_a_users_own_are_apart_and_follow_from_the_name():
    assert {marker for _, marker in SPARE_LOOKS}.isdisjoint(m for _, m in ARM_LOOKS.values())
    for (one, shape), (other, form) in itertools.combinations(SPARE_LOOKS, 2):
        assert distance(one, other) > (20 if shape == form else 7), (one, other)
    alone = plots.arm_looks(["early_blame"])["early_blame"]
    for company in (["a", "early_blame"], ["early_blame", "grpo", "zz"], ["zz", "early_blame"]):
        assert plots.arm_looks(company)["early_blame"] == alone


def test_turn_weights_share_one_figure_and_keep_their_looks_in_any_company():
    names = [name for name in TURN_WEIGHTS if name != "none"]
    assert len(set(plots.arm_looks(names).values())) == len(names)
    for arm, look in ARM_LOOKS.items():
        assert plots.arm_looks(["new", arm])[arm] == plots.arm_looks([arm, "new"])[arm] == look


def test_every_named_method_has_a_look_of_its_own():
    assert set(params.read_yaml(methods_path())) <= set(ARM_LOOKS)


@pytest.mark.parametrize(
    ("arm", "label"),
    [("aem_shuffle", "AEM shuffle"), ("dr_grpo", "Dr. GRPO"), ("high_is_turns", "high IS turns"),
     ("reinforce_pp", "REINFORCE++"), ("turn_gspo", "turn GSPO"), ("gigpo", "GiGPO")],
)  # fmt: skip
def test_arms_are_written_as_their_papers_write_them(arm, label):
    assert arm_label(arm) == label


@pytest.mark.parametrize("count", [3, 9, 22])
def test_a_legend_takes_the_rows_it_needs_and_stays_inside_the_figure(count):
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    figure.subplots()
    legend(figure, [Line2D([], [], label=f"an arm called {n}") for n in range(count)])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert len(figure.legends[0].get_texts()) == count


@pytest.mark.parametrize("more", [[], ["search_r1-a_model"], ["search_r1-a_model"] * 3])
@pytest.mark.parametrize("tier", ["cpu", "gpu", "cluster"])
def test_the_tasks_of_a_tier_and_of_ones_own_have_titles_side_by_side(tier, more):
    tasks = params.read_yaml(paths.params(tier) / "90_figures.yaml")["tasks"] + more
    figure = styled(lambda: task_grid(tasks)[0])()
    figure.draw_without_rendering()
    titles = [
        next(text for text in axis.findobj(Text) if text.get_text() == axis.get_title("left"))
        for axis in figure.axes
    ]
    boxes = [title.get_window_extent() for title in titles]
    assert boxes[-1].x1 <= figure.bbox.x1
    for one, other in itertools.pairwise(boxes):
        assert one.x1 < other.x0
