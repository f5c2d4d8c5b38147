"""The viewer in a real browser: no text runs, pages are styled, and a phone can show them."""

import html
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.viewer import group_html, trajectory_html, write_page
from turncredit.viewer.styles import DARK, LIGHT

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH"
)

OWNED = "document.title='owned';document.body.append(document.createElement('blink'))"
PAYLOADS = (
    f"<script>{OWNED}</script>",
    f'<img src=x onerror="{OWNED}">',
    f"<svg/onload={OWNED}>",
    f'"><script>{OWNED}</script>',
    f'\'><body onload="{OWNED}">',
    f'" onfocus="{OWNED}" autofocus tabindex="0',
    f"</style></title></textarea><script>{OWNED}</script>",
    f"</section></main></body></html><script>{OWNED}</script>",
    f'<iframe srcdoc="<script>parent.{OWNED}</script>"></iframe>',
    f"<details open ontoggle={OWNED}>",
    f"--><script>{OWNED}</script><!--",
    f"<scr\0ipt>{OWNED}</scr\0ipt>",
    f"\u2028<script\u2028>{OWNED}</script>",
    f"<math><mtext><style><img src onerror={OWNED}></style></mtext></math>",
    "<meta http-equiv=refresh content='0;url=data:text/html,<title>owned</title>'>",
    f'<a href="javascript:{OWNED}">x</a>',
    f"&lt;script&gt;{OWNED}&lt;/script&gt;",
)


def browse(tmp_path, page, *options) -> str:
    """What the browser makes of a page once its scripts have run."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    run = subprocess.run(
        [*command, *options, page.as_uri()], capture_output=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-2000:]
    return run.stdout.decode("utf-8")


def dump(tmp_path, page) -> tuple[str, Counter]:
    """Title of the page, and how often each element stands in it, as the browser has it."""
    text = browse(tmp_path, page, "--dump-dom")
    [title] = re.findall(r"<title>(.*?)</title>", text, re.S)
    return title, elements(text)


def elements(text: str) -> Counter:
    counts = Counter()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: counts.update(
        [(tag, *sorted(name for name, _ in attrs))]
    )
    parser.feed(text)
    parser.close()
    return counts


def views() -> str:
    """Every place that takes text, filled with every payload."""
    words = Vocabulary(PAYLOADS)
    ids = tuple(range(1, len(words)))
    shown = ""
    for text in PAYLOADS:
        turn = Turn(ids, (-1.0,) * len(ids), tuple(map(float, ids)), ids, text)
        trajectory = Trajectory(text, ids, (turn,), None, False, text)
        shown += trajectory_html(trajectory, words, signal_name=text)
    other = Trajectory(text, ids[:1], (turn,), None, False, text)
    return shown + group_html([trajectory, other], words, signal_name=text)


@pytest.mark.parametrize("payload", PAYLOADS[:2], ids=["script", "onerror"])
def test_the_payload_runs_where_nobody_escapes_it(tmp_path, payload):
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>mine</title><p>{payload}", encoding="utf-8")
    title, found = dump(tmp_path, page)
    assert title == "owned"
    assert ("blink",) in found


def test_escaping_alone_keeps_every_payload_still(tmp_path):
    """As in a notebook: no security policy, scripts allowed."""
    page = tmp_path / "page.html"
    written = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mine</title></head>'
        f"<body>{views()}</body></html>"
    )
    page.write_text(written, encoding="utf-8")
    title, found = dump(tmp_path, page)
    assert title == "mine"
    assert found == elements(written), "the browser has the elements that were written, no other"


def test_a_page_stays_as_it_was_written(tmp_path):
    page = tmp_path / "page.html"
    write_page(page, views(), title=PAYLOADS[6])
    title, found = dump(tmp_path, page)
    assert html.unescape(title) == PAYLOADS[6]
    assert found == elements(page.read_text(encoding="utf-8"))


def test_the_policy_of_a_page_would_stop_a_script_that_got_in(tmp_path):
    page = tmp_path / "page.html"
    write_page(page, views(), title="mine")
    text = page.read_text(encoding="utf-8")
    broken = text.replace("</main>", f"</main>{''.join(PAYLOADS[:3])}")
    assert broken != text
    page.write_text(broken, encoding="utf-8")
    title, found = dump(tmp_path, page)
    assert title == "mine"
    assert ("script",) in found
    assert ("blink",) not in found


def plain() -> tuple[Trajectory, Vocabulary]:
    words = Vocabulary(["<search>", "a", "</search>", "unbreakable" * 30])
    turn = Turn((1, 2, 4, 3), (-1.0,) * 4, (0.1, 2.0, 1.0, 0.0), (4, 2) * 20, "search")
    return Trajectory("q" * 80, (2, 4), (turn,) * 3, 1.0, True, "answer", True), words


@pytest.mark.parametrize(("scheme", "theme"), [(0, DARK), (1, LIGHT)], ids=["dark", "light"])
def test_a_page_is_styled_in_both_themes(tmp_path, scheme, theme):
    """Its own policy must admit both style sheets: one paints the page, the other the edges."""
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    write_page(page, trajectory_html(*plain()))
    option = f"--blink-settings=preferredColorScheme={scheme}"
    browse(tmp_path, page, f"--screenshot={picture}", "--window-size=900,700", option)
    pixels = np.rint(matplotlib.image.imread(picture)[..., :3] * 255).astype(int)
    codes = pixels @ [65536, 256, 1]
    colours = {f"#{code:06x}" for code in np.unique(codes)}
    assert {theme[name].lower() for name in ("page", "card", "policy", "e8")} <= colours
    assert f"#{codes[-1, 0]:06x}" == theme["page"]


@pytest.mark.parametrize("theme", ["true", "false"])
def test_a_notebooks_theme_wins_over_the_systems(tmp_path, theme):
    view = trajectory_html(*plain())
    script = "document.title=getComputedStyle(document.querySelector('.tc')).backgroundColor"
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title></title>'
        f'<body data-jp-theme-light="{theme}">{view}<script>{script}</script>',
        encoding="utf-8",
    )
    colour = (LIGHT if theme == "true" else DARK)["page"]
    rgb = ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    for scheme in (0, 1):
        text = browse(
            tmp_path, page, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}"
        )
        assert f"<title>rgb({rgb})</title>" in text


def test_a_phone_shows_a_page_without_sideways_scrolling(tmp_path):
    """390 CSS pixels; the columns of a group scroll inside their own frame."""
    trajectory, words = plain()
    frames = "".join(
        f'<iframe style="width:390px;height:800px;border:0" srcdoc="{html.escape(view)}"></iframe>'
        for view in (
            trajectory_html(trajectory, words),
            group_html([trajectory] * 4, words, advantages=[0.5, -0.5, None, 0.0]),
            "<p style='width:600px'>too wide",
        )
    )
    script = (
        "onload=()=>document.title=[...document.querySelectorAll('iframe')].map("
        "f=>f.contentDocument.documentElement.scrollWidth>390).join(' ')"
    )
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title></title>{frames}<script>{script}</script>',
        encoding="utf-8",
    )
    assert "<title>false false true</title>" in browse(tmp_path, page, "--dump-dom")


def notebook_style() -> str:
    """JupyterLab's style sheet as nbconvert ships it."""
    paths = pytest.importorskip("jupyter_core.paths", reason="comes with the notebooks extra")
    found = [
        Path(folder, "lab", "static", name)
        for folder in paths.jupyter_path("nbconvert", "templates")
        for name in ("index.css", "theme-light.css")
    ]
    existing = [path.read_text(encoding="utf-8") for path in found if path.exists()]
    if len(existing) < 2:
        pytest.skip("nbconvert's lab template is not installed")
    return "".join(existing)


def test_a_notebooks_own_style_moves_nothing(tmp_path):
    """Jupyter floats definition lists, fixes tables and aligns cells; the view stays as it is."""
    trajectory, words = plain()
    group = group_html([trajectory, replace(trajectory, turns=())], words, advantages=[0.5, None])
    view = trajectory_html(replace(trajectory, turns=()), words) + group
    classes = "jp-OutputArea-output jp-RenderedHTMLCommon jp-RenderedHTML"
    plain_frame = f'<div><div style="width:900px">{view}</div></div>'
    notebook = (
        f'<style>{notebook_style()}</style><body data-jp-theme-light="true" class="jp-Notebook">'
        f'<div class="{classes}"><div style="width:900px">{view}</div></div>'
    )
    frames = "".join(
        f'<iframe style="width:1200px;height:800px" srcdoc="{html.escape(text)}"></iframe>'
        for text in (plain_frame, notebook)
    )
    script = """onload = () => {
      const [one, other] = [...document.querySelectorAll('iframe')].map(frame =>
        [...frame.contentDocument.querySelectorAll('.tc, .tc *:not(style)')].map(element => {
          const {width, height} = element.getBoundingClientRect();
          const style = frame.contentWindow.getComputedStyle(element);
          const seen = [style.color, style.fontSize, style.fontWeight, style.backgroundColor];
          return [element.localName, element.className, width | 0, height | 0, ...seen].join(' ');
        }));
      const moved = one.filter((line, i) => line !== other[i]).map((l, i) => `${l} / `);
      document.title = `${one.length} elements, moved: ${moved.slice(0, 8).join('')}`;
    }"""
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title></title>{frames}<script>{script}</script>',
        encoding="utf-8",
    )
    light = "--blink-settings=preferredColorScheme=1"
    [title] = re.findall(r"<title>(.*?)</title>", browse(tmp_path, page, "--dump-dom", light), re.S)
    assert re.fullmatch(r"\d{3} elements, moved: ", title), title
