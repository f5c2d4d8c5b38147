"""The viewer: one coloured token for each token, and no text of anybody's becomes markup."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from turncredit.policies.vocabulary import Vocabulary
from turncredit.records import Trajectory, Turn
from turncredit.viewer import COLOURS, authored_tokens, trajectory_html, turn_table

EVIL = "<script>alert(1)</script>"
QUOTED = "'onmouseover='x"
WORDS = Vocabulary([EVIL, QUOTED, "plain", "&amp;", "{title}"])


def trajectory() -> Trajectory:
    search = Turn((1, 3), (-1.0, -1.0), (0.5, 0.25), (2, 1, 5), "search")
    answer = Turn((4,), (-1.0,), (1.0,), (), "answer", correct=False)
    return Trajectory("q", (1, 2, 3), (search, answer), 0.0, False, "answer")


class Reader(HTMLParser):
    """Tags, and the text and background of every token."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.tokens: list[tuple[str, str]] = []
        self.titles: list[str] = []
        self._colour: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.attributes |= set(values)
        style = values.get("style") or ""
        self._colour = next(
            (name for name, c in COLOURS.items() if f"background:{c}" in style), None
        )
        if self._colour:
            self.titles.append(values["title"])

    def handle_data(self, data):
        if self._colour:
            self.tokens.append((data, self._colour))


def test_no_text_becomes_markup():
    read = Reader(trajectory_html(trajectory(), WORDS))
    assert set(read.tags) == {"div", "span"}
    assert read.attributes == {"style", "title"}


def test_every_token_is_shown_once_by_its_author():
    read = Reader(trajectory_html(trajectory(), WORDS))
    expected = [(WORDS.entries[i], author) for i, author, _ in authored_tokens(trajectory())]
    legend = [(name, name) for name in COLOURS]
    assert read.tokens == expected + legend
    assert [i for i, *_ in authored_tokens(trajectory())] == list(trajectory().token_ids)


def test_a_signal_has_one_value_for_each_sampled_token_and_its_name_is_escaped():
    name = "<b>' x"
    read = Reader(trajectory_html(trajectory(), WORDS, signal=[-2.0, 0.0, 1.0], signal_name=name))
    assert [t for t in read.titles if "x" in t] == [
        f"{name} {v}" for v in ("-2.0000", "0.0000", "1.0000")
    ]
    assert "b" not in read.tags
    with pytest.raises(ValueError, match="2 values for 3 sampled tokens"):
        trajectory_html(trajectory(), WORDS, signal=[1.0, 2.0])


def test_the_largest_signal_has_the_strongest_bar_whatever_its_sign():
    html = trajectory_html(trajectory(), WORDS, signal=[-2.0, 0.0, 1.0])
    bars = [part.split(")")[0] for part in html.split("rgba(192,32,32,")[1:]]
    assert bars == ["1.00", "0.00", "0.50"]
    assert "nan" not in trajectory_html(trajectory(), WORDS, signal=[0.0, 0.0, 0.0])


def test_a_missing_signal_value_is_no_bar_rather_than_broken_style():
    html = trajectory_html(trajectory(), WORDS, signal=[float("nan"), 1.0, 0.5])
    assert "rgba(192,32,32,nan)" not in html


def test_the_table_by_hand_and_escaped_when_shown():
    table = turn_table(trajectory(), WORDS, {"weight": [1.0, 0.0]})
    assert table["action"].tolist() == ["search", "answer"]
    assert table["message"].tolist() == [f"{EVIL} plain", "&amp;"]
    assert table["mean entropy"].tolist() == [0.375, 1.0]
    assert table["weight"].tolist() == [1.0, 0.0]
    assert "<script>" not in table.to_html()


def test_an_empty_turn_and_a_trajectory_without_turns_can_be_shown():
    empty = replace(trajectory(), turns=(Turn((), (), (), (3,), "invalid"), *trajectory().turns))
    assert len(turn_table(empty, WORDS)) == 3
    assert "turn 0" in trajectory_html(empty, WORDS)
    none = replace(trajectory(), turns=())
    assert len(turn_table(none, WORDS)) == 0
    assert "question" in trajectory_html(none, WORDS)
