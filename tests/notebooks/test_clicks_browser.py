"""Pages that readers get, clicked and dragged in a real browser."""

import re

import pytest
from browser import BROWSER, NO_BROWSER, browsing

from turncredit import viewer
from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.report.blocks import Curves, page
from turncredit.report.curves import METRICS, packed

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
pytest.importorskip("websocket", reason="comes with the notebooks extra")
LONG = 300
"""Seconds for what takes one on a machine that has nothing else to do."""


def test_the_viewer_shows_a_trajectory(tmp_path):
    words = Vocabulary(["<search>", "film", "</search>", "a", "title"])
    turn = Turn((1, 2, 3), (-0.1,) * 3, (0.1, 1.2, 0.0), (4, 5), "search")
    trajectory = Trajectory("q7", (4, 2), (turn,) * 2, 0.0, False, "max_turns")
    file = tmp_path / "page.html"
    viewer.write_page(file, viewer.trajectory_html(trajectory, words))
    with browsing(tmp_path) as tab:
        tab.open(file.as_uri())
        tab.wait("document.readyState === 'complete' && !!document.querySelector('.tc')",
                 seconds=LONG, what="the page")  # fmt: skip
        tab.picture("viewer")
        text = tab.value("document.body.innerText")
        assert "q7" in text
        assert text.count("film") >= 2
        assert tab.value("document.querySelector('.tc').getBoundingClientRect().height") > 100


def test_steps_are_zoomed_by_dragging_and_methods_toggled_by_clicking(tmp_path):
    lines = {str(seed): packed([0.1 * seed + 0.01 * s for s in range(41)]) for seed in range(3)}
    runs = {seed: dict.fromkeys(METRICS, line) for seed, line in lines.items()}
    arms = {"grpo": ("GRPO", "#0072B2"), "suffix_mask": ("suffix mask", "#D55E00")}
    chart = {
        "metrics": METRICS,
        "weight": 0.9,
        "first": {"task": "trap", "metric": "reward", "arms": ["grpo"]},
        "arms": {arm: {"label": label, "colour": colour} for arm, (label, colour) in arms.items()},
        "tasks": {"trap": {"label": "trap", "runs": dict.fromkeys(arms, runs)}},
    }
    file = tmp_path / "report.html"
    file.write_text(page("t", [Curves(chart)]), encoding="utf-8")
    readout = "document.querySelector('.curves .readout').textContent"
    with browsing(tmp_path) as tab:
        tab.open(file.as_uri())
        tab.wait("!!document.querySelector('.curves .readout')", seconds=LONG, what="the curves")
        assert tab.value(readout) == "3 runs of 1 methods, steps 0 to 40"
        tab.click("document.querySelector('.curves input[data-arm=suffix_mask]')")
        assert tab.value(readout) == "6 runs of 2 methods, steps 0 to 40"
        place = "document.querySelector('.curves svg').getBoundingClientRect()"
        box = tab.value(f"(b => [b.x, b.y, b.width, b.height])({place})")
        scale = box[2] / 900
        middle = box[1] + box[3] / 2
        left, inner = box[0] + 56 * scale, (900 - 56 - 150) * scale
        tab.drag([left + inner * 0.25, middle], [left + inner * 0.5, middle])
        assert tab.value(readout) == "6 runs of 2 methods, steps 10 to 20"
        tab.picture("curves")
        tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + inner * 0.5, y=middle)
        assert re.search(r"seed \d, step 15: 0\.\d{3}", tab.value(readout)), tab.value(readout)
