"""Tokens as chips: every character visible, nothing executed, no state by colour alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.views import style
from playground.views.tokens import MARKS, STATES, chip, context_strip, legend, name, spoken, visible

HOSTILE = (
    "${alert(1)}",
    "{{value}}",
    "`",
    "<img src=x onerror=alert(1)>",
    '"><script>',
    "&lt;",
    "'",
    "\u202eabc",
    "\x00\x07",
)


class Tags(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.details: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.details += [value or "" for key, value in attrs if key == "data-detail"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "·the"),
        ("\n\n", "↵↵"),
        ("\tx", "⇥x"),
        ("\r\n", "⟨CR⟩↵"),
        ("\x07", "⟨BEL⟩"),
        ("\x7f", "⟨DEL⟩"),
        ("\u202eab", "⟨RLO⟩ab"),
        ("\u200b", "⟨ZWSP⟩"),
        ("\u00a0", "⟨U+00A0⟩"),
        ("\ue000", "⟨U+E000⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("", "empty"),
        ("\u0301", "◌\u0301"),
    ],
)
def test_characters_that_cannot_be_seen_are_shown(text: str, shown: str) -> None:
    assert Tags(visible(text)).text == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str) -> None:
    found = Tags(chip(text, "accepted", detail=f"token {spoken(text)}"))
    assert set(found.tags) <= {"span", "i", "bdi"}
    assert found.details == [f"token {spoken(text)}"]


@given(st.text(max_size=40))
def test_any_text_is_escaped(text: str) -> None:
    found = Tags(chip(text, "rejected", detail=text.replace("\x00", "")))
    assert set(found.tags) <= {"span", "i", "bdi"}


@given(st.text(alphabet=st.characters(categories=("Cc", "Cf", "Zs", "Zl", "Zp")), min_size=1, max_size=4))
def test_no_control_or_format_character_reaches_the_page_raw(text: str) -> None:
    assert not any(char in visible(text) for char in text)


def test_right_to_left_text_is_isolated() -> None:
    assert visible("שלום").startswith("<bdi>")
    assert "bdi" not in visible("hello")


def test_long_tokens_are_cut() -> None:
    assert Tags(visible("x" * 100)).text == "x" * 32 + "…"


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_told_by_more_than_colour(state: str) -> None:
    html = chip("a", state, with_mark=True)
    assert state == "plain" or name(state) in html  # in words, for a screen reader
    assert state in (*MARKS, "plain", "blocked")
    rule = re.search(rf"\.dp \.tok\.{state} \{{([^}}]*)\}}", style.CSS)
    assert rule
    assert "border" in rule[1]


def test_marked_states_differ_in_border_style_or_mark() -> None:
    looks = set()
    for state in STATES:
        rule = re.search(rf"\.dp \.tok\.{state} \{{([^}}]*)\}}", style.CSS)
        kind = next((k for k in ("dashed", "dotted", "double", "gradient") if k in rule[1]), "solid")
        looks.add((kind, MARKS.get(state, "")))
    assert len(looks) == len(STATES)


def test_strip_shows_the_end_and_counts_the_rest() -> None:
    html = context_strip({1: "a", 2: "b"}, [1] * 100, [(2, "bonus", "why")], shown=10)
    assert "… 91 earlier" in html
    assert html.count('class="tok"') == 9
    assert html.count('class="tok bonus"') == 1


def test_unknown_token_shows_its_id() -> None:
    assert "#7" in context_strip({}, [7])


def test_legend_names_every_state() -> None:
    assert all(name(state) in legend(STATES) for state in STATES)
