"""Blocks of a frame: escaping, figures, KV rows, the clock, laws, charts."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup

from playground.engine.trace import Candidate, KVRows, Lane, Output, Pass, Row
from playground.views import charts, clock, html, kv, law

EVIL = '<b onclick="x">'


def make_pass(start_ms: float, draft_ms: float, verify_ms: float, other_ms: float, tokens: int = 1) -> Pass:
    rows = KVRows(0, 1, 1, 0)
    outputs = tuple(Output(0, "plain", 1.0, 0.0) for _ in range(tokens))
    return Pass(0, (), (), outputs, None, 0, 0, rows, None, start_ms, draft_ms, verify_ms, other_ms)


def test_data_is_escaped_everywhere() -> None:
    for block in (
        html.section(EVIL, EVIL, EVIL),
        html.note(EVIL),
        html.table([EVIL], [[EVIL]], EVIL),
        html.stack([(EVIL, 1.0)]),
        html.frame(EVIL, None),
        html.columns(EVIL),
        html.detail(EVIL),
    ):
        assert "<b onclick" not in block


def test_markup_of_a_view_stays_markup() -> None:
    assert "<i>x</i>" in html.section("t", Markup("<i>x</i>"))


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.0, "0.00"), (-0.001, "0.00"), (-1.5, "−1.50"), (1234.5, "1,234.50")]
)
def test_figures_for_people(value: float | None, shown: str) -> None:
    assert html.number(value) == shown


def test_wide_blocks_scroll_and_can_be_reached_by_keyboard() -> None:
    assert 'tabindex="0" role="region" aria-label="Rows"' in html.table(["a"], [["b"]], "Rows")


def test_kv_cells_are_the_rows() -> None:
    strip = kv.strip("target", KVRows(before=20, written=5, kept=3, rolled_back=2, missing=1), width=8)
    assert strip.count("<i></i>") == 8
    assert "… 12 more" in strip
    assert (strip.count("kept"), strip.count('class="back"'), strip.count('class="missing"')) == (4, 2, 1)
    assert strip.count('class="empty"') == 2
    assert "20 before, 5 written, 3 kept, 2 rolled back, 1 missing" in strip


def test_a_long_prompt_is_a_number() -> None:
    strip = kv.strip("target", KVRows(before=0, written=504, kept=500, rolled_back=4))
    assert "… 496 written" in strip
    assert strip.count('class="kept"') == 4


def test_a_drafter_without_cache_says_so() -> None:
    assert "keeps no KV rows" in kv.strips(KVRows(1, 1, 1, 0), None)


def test_clock_stops_at_its_moment() -> None:
    run = Lane("plain", (), (make_pass(0, 10, 20, 5, tokens=2), make_pass(35, 0, 40, 0)))
    lane = clock.lane(run, until_ms=50)
    assert sum(s.ms for s in lane.segments) == 50
    assert lane.end == "2 tok"  # the second pass has not ended
    assert clock.lane(run, 75, is_plain=True).end == "3 tok"


def test_clock_scale_holds_everything_and_stays_put() -> None:
    assert [clock.nice(ms) for ms in (0.5, 1, 3, 99, 101, 5000.1)] == [1, 1, 5, 100, 200, 10000]
    lane = clock.ClockLane("a", (clock.Segment("draft", 0, 100), clock.Segment("verify-ms", 100, 400)))
    assert "500 ms" in clock.clock([lane])
    ends = [float(x) + float(w) for x, w in re.findall(r"M([\d.]+) 0h([\d.]+)", clock.clock([lane]))]
    assert max(ends) <= clock.WIDTH


def test_law_keeps_the_mass() -> None:
    top = tuple(Candidate(t, p, q) for t, p, q in ((0, 0.5, 0.2), (1, 0.2, 0.5), (2, 0.1, 0.1)))
    table = law.bars(Row(0, 1.0, top, tail_p=0.2, tail_q=0.2), {0: "a", 1: "b", 2: EVIL}, {1: "rejected"}, shown=2)
    assert "<b onclick" not in table
    assert "all others" in table
    assert table.count("0.300") == 2  # token 2 joins the tail in p and in q
    assert table.count("c-residual") == 1  # only token 0 has p above q


def test_law_without_q_has_one_column() -> None:
    table = law.bars(Row(0, None, (Candidate(0, 1.0),), 0.0, None), {0: "a"})
    assert "draft q" not in table
    assert "all others" not in table


def test_charts_have_no_background_of_their_own() -> None:
    for figure in (
        charts.lines({"a": [(1, 2.0), (2, None)]}, "x", "y"),
        charts.bars({"a": [(1, 1.0)], "b": [(1, 2.0)]}, "x", "y", stacked=True),
        charts.vertical(charts.figure("x", "y"), 3, "here"),
    ):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"


def test_series_differ_in_more_than_colour() -> None:
    figure = charts.lines({name: [(1, 1.0)] for name in "abc"}, "x", "y")
    assert len({(trace.line.dash, trace.marker.symbol) for trace in figure.data}) == 3
    first, second = charts.bars({name: [(1, 1.0)] for name in "ab"}, "x", "y").data
    assert first.marker.color == first.marker.line.color
    assert second.marker.color != second.marker.line.color  # an outline


def test_charts_refer_to_nothing_by_address() -> None:
    figure = charts.bars({name: [(1, 1.0)] for name in "abc"}, "x", "y", stacked=True)
    assert all(trace.marker.pattern.shape is None for trace in figure.data)
