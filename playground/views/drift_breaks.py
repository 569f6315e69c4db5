"""Experiments on numerics: other pass shapes, later and rejected drafts, own outputs, drafter and target quantised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.drift import FreeRun, Reshaped
from playground.engine.drift_breaks import Disturbed
from playground.engine.metrics import count
from playground.engine.trace import Lane
from playground.views import html, tokens, verification
from playground.views.drift import grid, small, verdict, yes
from playground.views.html import Text

Texts = Mapping[int, str]
Titles = Mapping[str, str]


def shapes(found: Mapping[str, Reshaped], titles: Titles) -> Markup:
    """Per numerics: the distance between passes of one token and wider ones, place by place."""
    rows: list[list[Text]] = [
        [titles[name], sparks(each.tv), small(sum(each.tv) / len(each.tv)), small(max(each.tv))]
        for name, each in found.items()
    ]
    head = ["numerics", "place by place", "mean TV", "largest TV"]
    return grid(head, rows, "Passes of one token against wider passes")


def sparks(values: Sequence[float]) -> Markup:
    """Bars on one scale from 1e-6 to 1, logarithmic: noise and real differences both show."""
    heights = [0.0 if v <= 1e-6 else min(100.0, 100 * (1 + math.log10(v) / 6)) for v in values]
    bars = html.join([Markup('<i style="height:{:.0f}%"></i>').format(h) for h in heights])
    return Markup('<span class="mini sparks" aria-hidden="true">{}</span>').format(bars)


def drafts(found: Mapping[str, Disturbed], titles: Titles) -> Markup:
    """Break A: other later drafts, and the law of an earlier row; a line per numerics, a column per place."""
    return _by_place({name: (each.places, each.later) for name, each in found.items()}, titles, "the law moves")


def traces(found: Mapping[str, Disturbed], titles: Titles) -> Markup:
    """Break B: two drafts rejected in turn, and the law of the pass behind."""
    return _by_place({name: (each.places, each.after) for name, each in found.items()}, titles, "a trace stays")


def _by_place(found: Mapping[str, tuple[Sequence[int], Sequence[float]]], titles: Titles, bad: str) -> Markup:
    width = max((len(places) for places, _ in found.values()), default=0)
    first = next((places for places, _ in found.values() if len(places) == width), ())
    rows: list[list[Text]] = []
    for name, (_, values) in found.items():
        same = max(values, default=0.0) == 0
        word = verdict(same, "bit-identical" if same else bad)
        rows.append([titles[name], word, *(small(v) for v in values), *[""] * (width - len(values))])
    head = ["numerics", "unmoved?", *(f"TV, token {place + 1}" for place in first)]
    return grid(head, rows, "Total variation at each place")


def free(found: Mapping[str, FreeRun], text: Sequence[int], texts: Texts, titles: Titles) -> Markup:
    """Each numerics' own output; what the reference has at the same place is a tick, all else is struck."""
    blocks = []
    for name, each in found.items():
        at = len(each.tokens) if each.parted is None else each.parted
        chips = [tokens.chip(texts.get(t, f"#{t}")) for t in each.tokens[:at]]
        chips += [
            tokens.chip(texts.get(t, f"#{t}"), "recovered" if i == 0 else "plain", with_mark=True)
            for i, t in enumerate(each.tokens[at:])
        ]
        said = "the reference's text" if each.parted is None else f"parts at token {each.parted + 1}"
        blocks.append(html.section(titles[name], tokens.strip(chips), said))
    return html.join(blocks)


def speculated(lanes: Mapping[str, Lane], same: Mapping[str, Sequence[tuple[str, bool | None]]], texts: Texts,
               titles: Titles) -> Markup:  # fmt: skip
    """Output tokens by how they came, the acceptance, and what the output equals."""
    blocks = []
    for name, lane in lanes.items():
        new = [item for step in lane.steps for item in verification.new_tokens(step, texts)]
        chips = [tokens.chip(verification.text_of(texts, t), kind, with_mark=True) for t, kind, _ in new]
        totals = count(lane.steps)
        said = f"{totals.accepted_tokens} of {html.count(totals.drafted_tokens, 'drafted token')} accepted"
        answers = [Markup("<span>{} {}</span>").format(words, yes(answer)) for words, answer in same[name]]
        line = Markup('<p class="says">{}</p>').format(html.join([said, *answers], " · "))
        blocks.append(html.section(titles[name], tokens.strip(chips) + line))
    return html.join(blocks)
