"""The viewer: every token once, missing is not 0, and no text of anybody's becomes markup."""

import base64
import hashlib
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.viewer import (
    COLOURS,
    authored_tokens,
    group_html,
    trajectory_html,
    turn_table,
    write_page,
)
from turncredit.viewer.scales import Scale, signal_scale
from turncredit.viewer.styles import DARK, LIGHT, SHADES, STYLE, contrast, shade_ink
from turncredit.viewer.text import attribute, is_hidden, markup, pieces, readable

NASTY = {
    "script": "<script>document.title='owned'</script>",
    "onerror": "<img src=x onerror=\"document.title='owned'\">",
    "closing": "</span></div></details></section></main></body></html>",
    "comment": "<!-- --><!--",
    "cdata": "<![CDATA[ x ]]><?php ?>",
    "style": "</style><style>*{display:none}</style>",
    "raw text": "<textarea><title><plaintext>",
    "double quotes": '" onmouseover="alert(1)" x="',
    "single quotes": "' onfocus='alert(1)' autofocus='",
    "backticks": "`onload=alert(1)`",
    "link": '<a href="javascript:alert(1)">here</a>',
    "entity": "&lt;script&gt; &#60;b&#62; &amp &#x3c;",
    "svg": "<svg/onload=alert(1)><math><mtext></style>",
    "base": "<base href=//evil.example><meta http-equiv=refresh content=0>",
    "template": "{title} {0} %s ${x}",
    "mathjax": "$\\href{javascript:alert(1)}{x}$",
    "line separators": "a\u2028b\u2029c\x0bd\x0ce\rf\x85g",
    "nul": "<scr\0ipt>",
    "bidi override": "user\u202etxt.exe\u202c \u2066x\u2069 \u200f",
    "zero width": "ad\u200bmin \ufeff\u2060\u00ad",
    "tags": "\U000e0041\U000e0042",
    "selector": "x\ufe0fy\U000e0100",
    "blank letters": "a\u3164b\u2800c",
    "surrogate": "\ud800 \udfff",
    "noncharacter": "\uffff\U0001fffe",
    "escape": "\x1b[31mred\x07",
}
HOOKS = {
    "section": {"class", "aria-label"}, "style": set(), "div": {"class", "tabindex", "role",
    "aria-label"}, "span": {"class", "title"}, "dl": {"class"}, "dt": set(), "dd": set(),
    "details": {"class", "open"}, "summary": set(), "b": {"class"}, "p": {"class"},
    "table": {"class"}, "thead": set(), "tbody": set(), "tr": set(), "td": {"class"},
    "th": {"class", "scope"}, "html": {"lang"}, "head": set(), "body": set(), "title": set(),
    "main": {"class"}, "meta": {"charset", "http-equiv", "content", "name"},
}  # fmt: skip
"""Elements and attributes that the viewer itself makes; there are no others."""

WORDS = Vocabulary(["<b>&", "plain", "say", "more", "last"])


def trajectory(**changes) -> Trajectory:
    search = Turn((1, 3), (-1.0, -1.0), (0.5, 0.25), (2, 1, 5), "search")
    answer = Turn((4,), (-1.0,), (1.0,), (), "answer", correct=False)
    given = Trajectory("q", (1, 2, 3), (search, answer), 0.0, False, "answer")
    return replace(given, **changes)


class Reader(HTMLParser):
    """Elements in order, text of each element by class, and whether every tag is closed in turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.texts: list[tuple[str, str]] = []
        self.styles: list[str] = []
        self.balanced = True
        self._stack: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        self.balanced &= not self._stack

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.elements.append((tag, tuple(attrs)))
        if tag == "style":
            self.styles.append("")
        if tag != "meta":
            self._stack.append((tag, values.get("class") or ""))
            self.texts.append((values.get("class") or tag, ""))

    def handle_endtag(self, tag):
        self.balanced &= bool(self._stack) and self._stack.pop()[0] == tag

    def handle_data(self, data):
        if self._stack and self._stack[-1][0] == "style":
            self.styles[-1] += data
        elif self._stack:
            self.texts.append((self._stack[-1][1] or self._stack[-1][0], data))

    def handle_comment(self, data):
        self.balanced = False

    unknown_decl = handle_pi = handle_comment

    @property
    def own(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements with the names of their attributes, without the boxes of hidden characters."""
        return [
            (tag, tuple(sorted(name for name, _ in attrs)))
            for tag, attrs in self.elements
            if tag != "b"
        ]

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        rows = [dict(attrs) for _, attrs in self.elements]
        return [row for row in rows if name in (row.get("class") or "").split()]


def tokens(html: str) -> list[dict[str, str | None]]:
    """Attributes of the coloured stretches of text."""
    return [row for row in Reader(html).with_class("s") if "title" in row]


def shown(html: str, kind: str = "said") -> str:
    """Text of a whole view, tags dropped."""
    parts = re.findall(rf'<div class="{kind}[^"]*">(.*?)</div>', html, re.S)
    return "\n".join("".join(d for _, d in Reader(f"<div>{p}</div>").texts) for p in parts)


def spoken_by(text: str) -> tuple[Trajectory, Vocabulary]:
    """A trajectory in which everything that is text is `text`."""
    turn = Turn((1, 2), (-1.0, -1.0), (0.5, 0.25), (1, 2), text, correct=True)
    made = Trajectory(text, (1, 2), (turn, turn), None, False, text)
    return made, Vocabulary([text, "plain"])


def every_view(text: str) -> str:
    made, vocabulary = spoken_by(text)
    other = replace(made, prompt_ids=(1,))
    single = trajectory_html(made, vocabulary, signal=[1.0] * 4, signal_name=text)
    group = group_html([made, other], vocabulary, signals=[[1.0] * 4] * 2, signal_name=text)
    return single + group


nasty = pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)


@nasty
def test_no_text_becomes_markup_or_leaves_its_place(text, tmp_path):
    write_page(tmp_path / "harmless.html", every_view("word"), title="word")
    write_page(tmp_path / "nasty.html", every_view(text), title=text)
    harmless = Reader((tmp_path / "harmless.html").read_text(encoding="utf-8"))
    read = Reader((tmp_path / "nasty.html").read_text(encoding="utf-8"))
    assert read.balanced
    assert read.own == harmless.own, "same elements, same attributes, same order"
    for tag, attrs in read.elements:
        assert {name for name, _ in attrs} <= HOOKS[tag]
    assert set(read.styles) == set(harmless.styles)
    boxes = [attrs for tag, attrs in read.elements if tag == "b"]
    assert set(boxes) <= {(("class", "hid"),)}


@nasty
def test_text_never_decides_a_class_and_reaches_one_attribute_only(text):
    expected = Reader(every_view("word")).elements
    found = [pair for pair in Reader(every_view(text)).elements if pair[0] != "b"]
    assert len(found) == len(expected)
    changed = [
        name
        for (_, ours), (_, theirs) in zip(expected, found, strict=True)
        for (name, value), (_, other) in zip(ours, theirs, strict=True)
        if value != other
    ]
    assert changed == ["aria-label"] * 2, "the labels of the two views, which name the question"


@nasty
def test_text_is_shown_whole_and_hidden_characters_by_number(text):
    html = every_view(text)
    assert not any(is_hidden(character) for character in html)
    html.encode("utf-8")
    numbered = "".join(f"U+{ord(c):04X}" if is_hidden(c) else c for c in text)
    assert numbered in shown(html, "said asked")
    assert numbered in shown(html, "said seen")
    assert shown(html, "said").count(numbered) >= 12, "every message and observation has it"


@given(st.text())
def test_any_text_survives_the_round_trip(text):
    read = Reader(f'<div><b title="{attribute(text)}"></b>{markup(text)}</div>')
    assert [tag for tag, attrs in read.elements if attrs != (("class", "hid"),)] == ["div", "b"]
    numbered = "".join(f"U+{ord(c):04X}" if is_hidden(c) else c for c in text)
    assert "".join(data for _, data in read.texts) == numbered
    assert dict(read.elements[1][1])["title"] == " ".join(readable(text).split())


def test_what_is_hidden_by_kind():
    hidden = "\0\x1f\x7f\x9f\u061c\u200b\u200e\u202a\u202e\u2066\u2069\u2028\u2029\ufeff\u00ad"
    hidden += "\ud800\ue000\uffff\u3164\u2800\ufe0f\U000e0020\U000e0100"
    assert [c for c in hidden if not is_hidden(c)] == []
    assert [c for c in "aé日ע😀\u0301 \u00a0\n\t~⟨" if is_hidden(c)] == []


def test_mathjax_is_told_to_leave_text_alone():
    root = Reader(trajectory_html(trajectory(), WORDS)).with_class("tc")
    assert [{"mathjax_ignore", "tex2jax_ignore"} <= set(r["class"].split()) for r in root] == [True]


def test_every_token_is_shown_once_in_order_by_its_author():
    html = trajectory_html(trajectory(), WORDS)
    said = re.findall(r'<div class="said( asked| seen)?">(.*?)</div>', html)
    read = [(kind.strip(), "".join(d for _, d in Reader(f"<p>{t}</p>").texts)) for kind, t in said]
    assert read == [
        ("asked", "<b>& plain say"),
        ("", "<b>& say"),
        ("seen", "plain <b>& last"),
        ("", "more"),
    ]
    assert [i for i, *_ in authored_tokens(trajectory())] == list(trajectory().token_ids)
    assert {author for _, author, _ in authored_tokens(trajectory())} == set(COLOURS)


def test_a_signal_has_one_value_for_each_sampled_token():
    html = trajectory_html(trajectory(), WORDS, signal=[-2.0, 0.0, 1.0], signal_name="advantage")
    assert [(t["class"], t["title"]) for t in tokens(html)] == [
        ("s n5", "-2"),
        ("s z0", "0"),
        ("s p2", "+1"),
    ]
    with pytest.raises(ValueError, match="signal has 2 values for 3 sampled tokens"):
        trajectory_html(trajectory(), WORDS, signal=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"signals\[1\] has 0 values for 3 sampled tokens"):
        group_html([trajectory()] * 2, WORDS, signals=[[1.0] * 3, []])
    with pytest.raises(ValueError, match="signals has 1 values for 2 trajectories"):
        group_html([trajectory()] * 2, WORDS, signals=[[1.0] * 3])
    with pytest.raises(ValueError, match="advantages has 3 values for 2 trajectories"):
        group_html([trajectory()] * 2, WORDS, advantages=[0.0, 1.0, 2.0])


def test_entropies_are_the_default_signal_in_nats():
    assert [(t["class"], t["title"]) for t in tokens(trajectory_html(trajectory(), WORDS))] == [
        ("s e4", "0.5 nats"),
        ("s e2", "0.25 nats"),
        ("s e8", "1 nats"),
    ]


@pytest.mark.parametrize("name", ["entropy", "advantage", "ratio", "anything"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_value_that_is_none_is_missing_and_moves_no_colour(name, value):
    html = trajectory_html(trajectory(), WORDS, signal=[value, 1.5, 1.0], signal_name=name)
    without = trajectory_html(trajectory(), WORDS, signal=[1.0, 1.5, 1.0], signal_name=name)
    assert (tokens(html)[0]["class"], tokens(html)[0]["title"]) == ("s na", "missing")
    assert tokens(html)[1:] == tokens(without)[1:]
    assert "nan" not in html.replace(STYLE, "").lower()


def test_a_missing_outcome_is_missing_and_zero_is_zero():
    def outcome(**changes):
        html = trajectory_html(trajectory(**changes), WORDS)
        return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html))

    gone = '<span class="gone">missing</span>'
    found = outcome(reward=None, grounded=None)
    assert (found["reward"], found["grounded"], found["success"]) == (gone, gone, "✗ no")
    found = outcome(reward=0.0, grounded=False, success=True, stop_reason="max_turns")
    assert (found["reward"], found["grounded"]) == ("0", "✗ no")
    assert (found["success"], found["stopped by"]) == ("✓ yes", "max_turns")


def test_ratios_are_symmetric_in_logs_around_one():
    scale = signal_scale("ratio", [0.5, 1.0, 4.0])
    assert (scale.kind, scale.limit) == ("ratio", pytest.approx(4.0))
    assert [scale.colour(v) for v in (0.25, 0.5, 1.0, 2.0, 4.0, 99.0)] == [
        "n5", "n2", "z0", "p2", "p5", "p5",
    ]  # fmt: skip
    assert [value for _, value in scale.legend()][::5] == pytest.approx([0.25, 1.0, 4.0])
    underflow = signal_scale("ratio", [0.0, 1.0])
    assert underflow.colour(0.0) == "n5", "exp of a very negative difference is a true 0"


@pytest.mark.parametrize("kind", ["sequential", "diverging", "ratio"])
def test_a_legend_has_every_shade_once_from_low_to_high(kind):
    scale = Scale("x", kind, "", 3.0)
    shades, values = zip(*scale.legend(), strict=True)
    assert len(set(shades)) == len(shades) == {"sequential": 9}.get(kind, 11)
    assert list(values) == sorted(values)
    assert values[-1] == pytest.approx(3.0)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_diverging_scale_is_monotone_and_centred(one, other):
    scale = signal_scale("advantage", [one, other])
    rank = {"n": -1, "z": 0, "p": 1}
    steps = [rank[c[0]] * int(c[1]) for c in map(scale.colour, sorted([one, other]))]
    assert steps == sorted(steps)
    assert scale.colour(0.0) == "z0"
    assert scale.colour(-one).translate(str.maketrans("np", "pn")) == scale.colour(one)


def test_rounding_noise_gets_no_colour_and_a_limit_can_be_given():
    noise = signal_scale("ratio", [1.0 + 1e-7, 1.0 - 1e-7])
    assert {noise.colour(1.0 + 1e-7), noise.colour(1.0 - 1e-7)} == {"z0"}
    assert signal_scale("entropy", [-1e-7, 0.0]).colour(-1e-7) == "e0"
    assert signal_scale("entropy", [0.5], limit=4.0).colour(0.5) == "e1"
    assert signal_scale("entropy", []).limit > 0


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([-0.5], {}, "entropy: -0.5 is negative, a sequential scale has no place for it"),
        ([-0.5], {"scale": "ratio"}, "-0.5 is negative, a ratio scale"),
        ([1.0], {"scale": "rainbow"}, "unknown scale 'rainbow'; there are: sequential"),
        ([1.0], {"limit": 0.0}, "limit: 0.0 for a sequential scale"),
        ([1.0], {"limit": math.nan}, "limit: nan"),
        ([1.0], {"scale": "ratio", "limit": 1.0}, "limit: 1.0 for a ratio scale.*> 1"),
    ],
)
def test_what_a_scale_has_no_place_for_is_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        signal_scale("entropy", values, **options)


def _seen_by(colour: str, matrix: np.ndarray) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return np.clip(matrix @ linear, 0, 1) ** (1 / 2.2)


# Full dichromacy in linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
VISION = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    ),
    "deutan": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    ),
    "tritan": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    ),
}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("matrix", VISION.values(), ids=VISION)
def test_signs_stay_apart_for_every_colour_vision(theme, matrix):
    for step, least in ((2, 0.08), (3, 0.15), (4, 0.25), (5, 0.25)):
        pair = (_seen_by(theme[f"{sign}{step}"], matrix) for sign in "np")
        assert np.linalg.norm(np.subtract(*pair)) > least, step


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_readable_on_every_shade_and_shades_grow_away_from_the_page(theme):
    for shade in SHADES:
        assert contrast(shade_ink(theme[shade]), theme[shade]) >= 4.5, shade
    for background in ("page", "card", "tint"):
        assert contrast(theme["ink"], theme[background]) >= 7
        assert contrast(theme["quiet"], theme[background]) >= 4.5
        for author in COLOURS:
            assert contrast(theme[author], theme[background]) >= 3
    for family in "epn":
        strengths = [contrast(theme[s], theme["card"]) for s in SHADES if s[0] == family]
        assert strengths == sorted(strengths)


def test_neighbours_with_equal_numbers_share_an_element():
    message = Turn((1,) * 50, (-1.0,) * 50, (0.5,) * 50, (), "answer")
    html = trajectory_html(trajectory(turns=(message, message)), WORDS)
    assert [t["title"] for t in tokens(html)] == ["0.5 nats · 50 tokens"] * 2
    assert shown(html).count("<b>&") == 101, "once in the question, 50 times in each message"


def test_the_space_between_tokens_has_no_colour():
    html = trajectory_html(trajectory(), WORDS)
    assert '&lt;b&gt;&amp;</span> <span class="s e2"' in html


class Bytes:
    """One token per UTF-8 byte, as in a byte-level vocabulary."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=("Cs",)) | st.just("\ufffd")))
def test_characters_shared_by_byte_tokens_are_shown_once_and_whole(text):
    parts = pieces(Bytes(), list(text.encode("utf-8")), "here")
    assert len(parts) == len(text.encode("utf-8"))
    if "\ufffd" * 9 not in text:
        assert "".join(parts) == text


@given(st.binary(max_size=200))
def test_bytes_that_are_no_text_still_give_one_piece_each(data):
    assert len(pieces(Bytes(), list(data), "here")) == len(data)


@given(st.lists(st.integers(1, 5)))
def test_pieces_of_a_word_vocabulary_keep_the_spaces(ids):
    assert "".join(pieces(WORDS, ids, "here")) == WORDS.decode(ids)


def test_pieces_of_a_real_tokenizer():
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the retrieval extra")
    names = ["[UNK]", "play", "##ing", "the", "##rapy", "."]
    model = tokenizers.models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    assert pieces(tokenizer, [3, 1, 2, 3, 4], "here") == ["the", " play", "ing", " the", "rapy"]


def test_a_token_without_text_shows_its_id_and_a_lonely_line_feed_an_arrow():
    e_acute = Turn((0xC3, 0xA9, 0x0A), (-1.0,) * 3, (0.1, 0.2, 0.3), (), "answer")
    html = trajectory_html(trajectory(prompt_ids=(65,), turns=(e_acute,)), Bytes())
    assert shown(html) == "A\n⟨195⟩é↵\n"


@pytest.mark.parametrize("bad", [99, -1])
def test_an_id_the_vocabulary_does_not_know_is_named_with_its_place(bad):
    def turn(sampled, observed):
        return Turn((sampled,), (-1.0,), (0.5,), (observed,), "search")

    with pytest.raises(ValueError, match=f"q, turn 0, sampled_ids: .*{bad}"):
        trajectory_html(trajectory(turns=(turn(bad, 1),)), WORDS)
    with pytest.raises(ValueError, match=f"q, turn 1, observation_ids: .*{bad}"):
        trajectory_html(trajectory(turns=(turn(1, 1), turn(1, bad))), WORDS)
    with pytest.raises(ValueError, match=f"q, prompt_ids: .*{bad}"):
        group_html([trajectory(prompt_ids=(bad,))], WORDS)
    with pytest.raises(ValueError, match=f"q, turn 0, sampled_ids: .*{bad}"):
        turn_table(trajectory(turns=(turn(bad, 1),)), WORDS)


def long_trajectory() -> Trajectory:
    """20 turns of 500 sampled tokens, every entropy another one."""
    entropies = iter(np.random.default_rng(0).uniform(0, 3, 10_000).tolist())
    ids = tuple(1 + i % 5 for i in range(500))
    turns = tuple(
        Turn(ids, (-1.0,) * 500, tuple(next(entropies) for _ in ids), (), "search")
        for _ in range(20)
    )
    return trajectory(turns=turns)


def test_ten_thousand_tokens_take_less_than_a_second_and_few_bytes():
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        html = trajectory_html(long_trajectory(), WORDS)
        seconds.append(time.perf_counter() - begun)
    assert len(tokens(html)) > 9_900
    assert len(html) < 100 * 10_000
    assert min(seconds) < 1.0


def columns(html: str) -> list[list[str]]:
    """Cells of the group's table, row by row, as markup."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]


def test_a_group_has_a_column_per_trajectory_and_a_row_per_turn():
    short = trajectory(turns=trajectory().turns[:1], reward=None, grounded=True)
    html = group_html([trajectory(), short], WORDS, advantages=[-0.5, None])
    table = columns(html)
    assert [row[0] for row in table] == ["turn", "0", "1"]
    assert all(len(row) == 3 for row in table)
    assert [re.findall(r'class="act">(\w+)', cell) for row in table[1:] for cell in row[1:]] == [
        ["search"], ["search"], ["answer"], [],
    ]  # fmt: skip
    facts = [dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", cell)) for cell in table[0][1:]]
    gone = '<span class="gone">missing</span>'
    assert facts[0]["advantage"] == '<span class="s n5">-0.5</span>'
    assert (facts[0]["reward"], facts[0]["grounded"]) == ("0", gone)
    assert (facts[1]["reward"], facts[1]["advantage"]) == (gone, gone)
    assert facts[1]["grounded"] == "✓ yes"


def test_a_groups_mean_reward_leaves_out_what_is_missing_and_says_how_many():
    rewards = [1.0, 0.0, None, 1.0]
    html = group_html([trajectory(reward=r, success=r == 1.0) for r in rewards], WORDS)
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html.split("<table")[0]))
    assert facts["trajectories"] == "4"
    assert facts["successes"] == "2"
    assert facts["mean reward"] == '0.6667 <span class="gone">1 missing</span>'
    none = group_html([trajectory(reward=None)], WORDS).split("<table")[0]
    assert '<dt>mean reward</dt><dd><span class="gone">missing</span></dd>' in none


def test_a_group_has_one_colour_scale():
    pale, strong = [0.25] * 3, [1.0] * 3
    html = group_html([trajectory()] * 2, WORDS, signals=[pale, strong])
    assert {t["class"] for t in tokens(html)} == {"s e2", "s e8"}


def test_a_groups_question_stands_once_unless_prompts_differ():
    same = group_html([trajectory()] * 3, WORDS)
    assert same.count("said asked") == 1
    differing = group_html([trajectory(), trajectory(prompt_ids=(5,))], WORDS)
    assert [row[0] for row in columns(differing)] == ["turn", "question", "0", "1"]
    assert [">last<" in cell for cell in columns(differing)[1][1:]] == [False, True]


def test_a_group_of_nobody_or_of_two_questions_is_refused():
    with pytest.raises(ValueError, match="no trajectories"):
        group_html([], WORDS)
    with pytest.raises(ValueError, match="one question, not other and q"):
        group_html([trajectory(), trajectory(question_id="other")], WORDS)


def test_empty_turns_and_trajectories_without_turns_can_be_shown():
    empty = trajectory(turns=(Turn((), (), (), (3,), "invalid"), *trajectory().turns))
    assert "(no tokens)" in trajectory_html(empty, WORDS)
    assert len(turn_table(empty, WORDS)) == 3
    none = trajectory(turns=(), prompt_ids=())
    assert "no turns" in trajectory_html(none, WORDS)
    assert len(turn_table(none, WORDS)) == 0
    assert len(columns(group_html([none, empty], WORDS))[0]) == 3


def test_a_page_allows_no_script_and_only_its_own_styles(tmp_path):
    path = tmp_path / "new" / "page.html"
    single, group = trajectory_html(trajectory(), WORDS), group_html([trajectory()] * 2, WORDS)
    write_page(path, single, group, title="<i>")
    html = path.read_text(encoding="utf-8")
    read = Reader(html)
    assert read.balanced
    [policy] = [
        dict(attrs)["content"] for _, attrs in read.elements
        if dict(attrs).get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "base-uri", "form-action"}
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in read.styles
    }
    assert hashes == set(rules["style-src"].split())
    assert html.index("Content-Security-Policy") < html.index("<style>")
    assert "<title>&lt;i&gt;</title>" in html
    assert re.findall(r"url\(|@import|https?:|//", html) == [], "nothing is fetched"


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    view = trajectory_html(trajectory(), WORDS)
    write_page(path, view)
    before = path.read_bytes()
    write_page(path, view)
    assert path.read_bytes() == before, "equal trajectories give equal bytes"
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match=r"page\.html"):
        write_page(path, view, view)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_page_refuses_text_that_is_no_view(tmp_path):
    view = trajectory_html(trajectory(), WORDS)
    with pytest.raises(ValueError, match="view 1 is not a trajectory or group view: '<b>'"):
        write_page(tmp_path / "page.html", view, "<b>")
    with pytest.raises(ValueError, match=r"page\.html: no view"):
        write_page(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_table_by_hand_and_escaped_when_shown():
    table = turn_table(trajectory(), WORDS, {"weight": [1.0, 0.0]})
    assert table["action"].tolist() == ["search", "answer"]
    assert table["message"].tolist() == ["<b>& say", "more"]
    assert table["observation"].tolist() == ["plain <b>& last", ""]
    assert table["mean entropy"].tolist() == [0.375, 1.0]
    assert table["weight"].tolist() == [1.0, 0.0]
    assert "<b>" not in table.to_html()


def test_a_table_cuts_padding_shows_hidden_characters_and_refuses_short_columns():
    assert turn_table(trajectory(), WORDS, {"w": [1.0, 2.0, 0.0]})["w"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="column 'w' has 1 values for 2 turns"):
        turn_table(trajectory(), WORDS, {"w": [1.0]})
    made, vocabulary = spoken_by("a\u202eb")
    assert turn_table(made, vocabulary)["message"].tolist() == ["a⟨U+202E⟩b plain"] * 2
