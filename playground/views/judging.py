"""How a draft token is judged: its coin on a line from 0 to 1, p beside q, and what is left after a rejection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from markupsafe import Markup

from playground.engine.trace import Node, Pass, Row
from playground.views import law
from playground.views.html import number, percent, section
from playground.views.tokens import chip, name, spoken

KEY = "first bar: the coin from 0 to 1; blue accepts, hatched rejects, the line is u"
NUM_TOKENS = 5  # of each law in a card
SAYS = {
    "match_keep": "the target draws its own token first; the draft stands if it is the same one",
    "match_redraw": "the target draws a token to compare; the draft stands if it is the same one",
}


def coin_line(coin: float, p: float, q: float | None) -> Markup:
    """The coin u on [0, 1): it falls into the part min(1, p / q) that accepts, or beyond. No q: it was certain."""
    reported = 1.0 if q is None else q
    chance = min(1.0, p / reported) if reported > 0 else float(p > 0)
    stands = coin * reported < p
    sign = "<" if stands else "≥"
    words = Markup(
        '<p class="says">u · q = {} · {} = <b>{}</b> {} p = <b>{}</b>: {}. Chance to stand: min(1, p/q) = {}.</p>'
    ).format(
        number(coin, 3), number(reported, 3), number(coin * reported, 3), sign, number(p, 3),
        "accepted" if stands else "rejected", number(chance, 3),
    )  # fmt: skip
    line = Markup(
        '<div class="coin" aria-hidden="true"><i style="width:{}%"></i><b style="left:{}%"></b></div>'
    ).format(percent(chance, 1), percent(coin, 1))
    return line + words


def judged(step: Pass, texts: Mapping[int, str], rule: str) -> list[Markup]:
    """A card for each drafted token that was judged, and one for the bonus token, in the order of the text."""
    cards = []
    for i, node in enumerate(step.nodes):
        if node.state in ("accepted", "rejected"):
            cards.append(_card(step, i, node, texts, rule))
    last = step.outputs[-1]
    if last.kind in ("bonus", "plain"):
        head = Markup("Bonus") if last.kind == "bonus" else Markup("No draft")
        title = Markup("{} {}").format(head, chip(texts.get(last.token, ""), last.kind, with_mark=True))
        row = step.rows[-1] if last.kind == "plain" else step.rows[_last_accepted(step) + 1]
        body = Markup('<p class="says">All drafts stood: one more token, drawn from p with coin {}.</p>{}')
        if last.kind == "plain":
            body = Markup('<p class="says">The target draws its own token from p with coin {}.</p>{}')
        cards.append(section(title, body.format(number(step.emit_coin, 3), _bars(row, texts, {last.token: last.kind}))))
    return cards


def _last_accepted(step: Pass) -> int:
    return max(i for i, node in enumerate(step.nodes) if node.state == "accepted")


def _card(step: Pass, i: int, node: Node, texts: Mapping[int, str], rule: str) -> Markup:
    last = step.outputs[-1]
    states = {node.token: node.state}
    after = Markup("")
    if node.state == "rejected" and last.kind == "recovered":
        states[last.token] = "recovered"
        after = Markup('<p class="says">{} comes from {} with coin {}.</p>').format(
            spoken(texts.get(last.token, "")), _source(rule), number(step.emit_coin, 3)
        )
    judged = coin_line(node.coin or 0.0, node.p, node.q)
    if rule in SAYS:
        judged = Markup('<p class="says">Coin {}: {}. Here: {}.</p>').format(
            number(node.coin, 3), SAYS[rule], name(node.state)
        )
    title = Markup("Draft {}: {}").format(i + 1, chip(texts.get(node.token, ""), node.state, with_mark=True))
    row = step.rows[node.parent + 1]
    if rule in SAYS:  # what a match rule draws from is p itself, not a residual
        row = replace(row, top=tuple(replace(candidate, residual=None) for candidate in row.top))
    return section(title, judged + _bars(row, texts, states) + after)


def _source(rule: str) -> str:
    return {"match_keep": "this same draw from p", "match_redraw": "a second draw from p"}.get(
        rule, "the residual max(p − q, 0)"
    )


def _bars(row: Row, texts: Mapping[int, str], states: Mapping[int, str]) -> Markup:
    return law.bars(row, texts, states, shown=NUM_TOKENS)
