"""The report's training curves in a real browser: toggled, zoomed, the same without a script."""

import itertools
import re
import shutil
import subprocess

import pytest

from turncredit.report.blocks import Curves, page
from turncredit.report.curves import METRICS, packed

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH"
)


def chart() -> dict:
    """Two tasks; on the first three methods of two runs, of which two methods are shown."""

    def runs(offset):
        along = [offset + 0.02 * step + (0.1 if step % 2 else 0.0) for step in range(21)]
        whole = {name: packed(along) for name in METRICS}
        return {"0": whole, "1": {name: packed(along[:11]) for name in METRICS}}

    arms = {"a": ("first", "#0072B2"), "b": ("second", "#D55E00"), "c": ("third", "#E69F00")}
    return {
        "metrics": METRICS,
        "weight": 0.5,
        "first": {"task": "trap", "metric": "reward", "arms": ["a", "b"]},
        "arms": {arm: {"label": label, "colour": colour} for arm, (label, colour) in arms.items()},
        "tasks": {
            "trap": {"label": "trap", "runs": {"a": runs(0.1), "b": runs(0.3), "c": runs(0.2)}},
            "calm": {"label": "calm", "runs": {"a": runs(0.0)}},
        },
    }


def opened(tmp_path, script: str, *options: str) -> str:
    """The page as the browser has it after `script`, whose last value is the title."""
    file = tmp_path / "page.html"
    text = page("t", [Curves(chart())])
    file.write_text(text.replace("</main>", f"</main><script>{script}</script>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    command += ["--window-size=1200,900", "--dump-dom", *options, file.as_uri()]
    run = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-2000:]
    return run.stdout.decode("utf-8")


TOLD = """
const seen = [], find = text => document.querySelector(text);
const press = text => [...document.querySelectorAll('.curves button')]
  .find(button => button.textContent === text).click();
const choose = (key, value) => {
  const select = find(`select[data-key=${key}]`);
  select.value = value;
  select.dispatchEvent(new Event('change'));
};
const tell = () => seen.push([
  document.querySelectorAll('.curves polyline.run').length,
  document.querySelectorAll('.curves polyline.mean').length,
  find('.readout').textContent.match(/steps (.*)/)[1],
].join(' '));
"""


def title(text: str) -> str:
    return re.search(r"<title>(.*?)</title>", text, re.S)[1]


def test_methods_toggle_steps_zoom_and_tasks_change(tmp_path):
    script = f"""{TOLD}
    tell();
    find('input[data-arm=c]').click(); tell();
    find('input[data-arm=a]').click(); find('input[data-arm=b]').click(); tell();
    press('all methods'); tell();
    press('no method'); tell();
    press('all methods'); press('zoom in'); tell();
    press('zoom out'); tell();
    press('zoom in'); press('all steps'); tell();
    choose('task', 'calm'); tell();
    choose('metric', 'entropy');
    seen.push(find('.curves svg').getAttribute('aria-label'));
    document.title = seen.join(' | ');
    """
    told = title(opened(tmp_path, script)).split(" | ")
    assert told == [
        "4 2 0 to 20",
        "6 3 0 to 20",
        "2 1 0 to 20",
        "6 3 0 to 20",
        "0 0 0 to 20",
        "6 3 5 to 15",
        "6 3 0 to 20",
        "6 3 0 to 20",
        "2 1 0 to 20",
        "policy entropy (nats) by training step on calm",
    ]


def lines(text: str) -> list[tuple[str, list[float]]]:
    found = re.findall(r'<polyline class="(\w+)" stroke="[^"]*" points="([^"]*)"', text)
    return [(kind, [float(n) for n in re.split("[ ,]", points)]) for kind, points in found]


def test_the_script_draws_what_the_page_shows_without_it(tmp_path):
    still = lines(page("t", [Curves(chart())]))
    drawn = lines(opened(tmp_path, "document.title = 'x'"))
    assert len(still) == len(drawn) == 6
    for (kind, points), (other, again) in zip(still, drawn, strict=True):
        assert kind == other
        assert again == pytest.approx(points, abs=0.11)


def test_a_phone_gets_a_narrow_picture_and_no_sideways_scrolling(tmp_path):
    script = """
    const seen = [document.querySelector('.curves svg').getAttribute('viewBox').split(' ')[2]];
    seen.push(document.documentElement.scrollWidth <= innerWidth);
    document.title = seen.join(' ');
    """
    text = opened(tmp_path, script, "--window-size=500,900")
    assert title(text) == "480 true"


def test_smoothing_can_be_taken_off(tmp_path):
    script = "document.querySelector('input[data-key=smooth]').click(); document.title = 'x'"
    rough = lines(opened(tmp_path, script))
    still = lines(page("t", [Curves(chart())]))
    assert rough[0][1] != still[0][1]
    heights = rough[0][1][1::2]
    up = [later < earlier for earlier, later in itertools.pairwise(heights)]
    assert up == [True, False] * 10, "the values go up and down"
