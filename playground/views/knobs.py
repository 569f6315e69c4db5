"""Knobs in their order: a card for each with what it cut and the law after it, and the orders compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.order import LETTERS, Pair
from playground.engine.shaping import CandidateSet, Contested, Drawn, InEngine, Shaped
from playground.views.html import count, join, number, percent, probability, scroll, table
from playground.views.tokens import chip, visible

NAMES = {letter: name.replace("_", "-") for letter, name in LETTERS.items()} | {
    "F": "frequency and presence penalty",
    "J": "top-k and top-p at once",
    "R": "repetition penalty",
}
MAX_ORDERS = 12  # spelled out in one cell
MAX_TOKENS = 16  # of a set, in one cell
Texts = Mapping[int, str]


def cards(steps: Sequence[Shaped], index: int, settings: Mapping[str, str], parameter: str) -> Markup:
    """The knobs of one lane in order, those up to ``index`` with what they did; the last of them is the one now.

    The page lets them be moved: their order is the ``parameter`` of that name.
    """
    drawn = [_card(step, i, index, settings) for i, step in enumerate(steps) if i]
    if not drawn:
        return Markup("")
    said = "Cards in their order: drag one, or move it with the arrow keys, to run again"
    return Markup('<ol class="knobs" data-order="{}" aria-label="{}">{}</ol>').format(parameter, said, join(drawn))


def _card(step: Shaped, i: int, index: int, settings: Mapping[str, str]) -> Markup:
    kind = " now" if i == index else " later" if i > index else ""
    head = Markup("<b>{}</b> {}").format(step.letter, f"{NAMES[step.letter]} {settings.get(step.letter, '')}")
    grip = Markup('tabindex="0" data-letter="{}"').format(step.letter)
    if i > index:
        return Markup('<li class="card{}" {}><span>{}</span></li>').format(kind, grip, head)
    said = (
        f"cut {step.num_removed:,}, {step.num_left:,} left" if step.num_removed else f"cut none, {step.num_left:,} left"
    )
    return Markup('<li class="card{}" {}><span>{}</span>{}<span class="cut">{}</span></li>').format(
        kind, grip, head, _picture(step), said
    )


def _picture(step: Shaped) -> Markup:
    """The law after a knob as small columns; a token that this knob removed is a hatched one."""
    whole = max(step.law, default=0.0)
    bars = [
        Markup('<i class="gone"></i>')
        if token in step.removed
        else Markup('<i style="height:{}%"></i>').format(percent(p, whole))
        for token, p in zip(step.tokens, step.law, strict=True)
    ]
    return Markup('<span class="mini" aria-hidden="true">{}</span>').format(join(bars))


def law(steps: Sequence[Shaped], texts: Texts) -> Markup:
    """The law after the last of ``steps``, token by token; a removed one is struck out and says which knob took it."""
    now = steps[-1]
    taken = {token: step.letter for step in steps for token in step.removed}
    whole = max([*now.law, now.tail, 1e-300])
    lines = [
        _removed(texts.get(token, f"#{token}"), taken[token])
        if token in taken
        else _line(chip(texts.get(token, f"#{token}")), p, whole)
        for token, p in zip(now.tokens, now.law, strict=True)
    ]
    if now.tail > 1e-9:
        lines.append(_line(Markup("all others"), now.tail, whole, "tail"))
    top = '<thead><tr><th scope="col">token</th><th scope="col">{}</th></tr></thead>'
    head = f"law after {NAMES[now.letter]}" if now.letter else "law before any knob"
    return scroll(
        Markup(f'<table class="law">{top}<tbody>{{}}</tbody></table>').format(head, join(lines)),
        "The law of the next token",
    )


def _line(head: Markup, p: float, whole: float, kind: str = "") -> Markup:
    bar = Markup(
        '<div class="bar"><span class="track"><i class="c-p" style="width:{}%"></i></span><span>{}</span></div>'
    ).format(percent(p, whole), probability(p))
    return Markup('<tr class="{}"><th scope="row">{}</th><td>{}</td></tr>').format(kind, head, bar)


def _removed(text: str, letter: str) -> Markup:
    said = f"removed by {letter}, {NAMES[letter]}" if letter else "never possible"
    html = '<tr><th scope="row"><s class="tok gone">{}</s></th><td><span class="says">✗ {}</span></td></tr>'
    return Markup(html).format(visible(text), said)


def sets(found: Sequence[CandidateSet], texts: Texts) -> Markup:
    """The distinct sets of candidates, smallest first, with the orders that leave each."""
    rows = [
        [f"{each.num_tokens:,}", _orders(each.orders), _tokens(each.tokens, each.num_tokens, texts)] for each in found
    ]
    return table(["tokens left", "orders", "which"], rows, "Sets of candidates by order")


def only_some(found: Sequence[Contested], num_orders: int, texts: Texts) -> Markup:
    """The tokens that only some orders allow."""
    rows = [
        [chip(texts.get(each.token, f"#{each.token}")), f"{len(each.orders)} of {num_orders}", _orders(each.orders)]
        for each in found[:MAX_TOKENS]
    ]
    return table(["token", "allowed by", "orders"], rows, "Tokens that only some orders allow")


def engines(found: Sequence[InEngine]) -> Markup:
    """Each engine's own order and what it leaves."""
    rows = [
        [
            Markup("{}<br><small>{}</small>").format(each.engine, each.version),
            each.order or "–",
            f"{each.num_left:,}",
            ", ".join(NAMES[letter] for letter in each.missing) or "–",
            each.note,
        ]
        for each in found
    ]
    return table(["engine", "order", "tokens left", "does not have", "note"], rows, "Orders of engines")


def pairs(found: Sequence[Pair]) -> Markup:
    """Each pair of knobs in both orders, decided by computation."""
    rows = [
        [
            f"{pair.first} {pair.second}",
            "same law" if pair.is_same_here else "another law",
            f"differs on {pair.num_different} of {pair.num_tried}"
            if pair.num_different
            else f"same on all {pair.num_tried}",
        ]
        for pair in found
    ]
    return table(["swapped", "here", "on random laws"], rows, "Which knobs commute")


def logprobs(a: Sequence[Shaped], b: Sequence[Shaped], texts: Texts) -> Markup:
    """The two log-probabilities that an API may report for a token: of the raw law, and after the knobs."""
    rows = [
        [
            chip(texts.get(token, f"#{token}")),
            _log(a[0].law[i]),
            _log(a[-1].law[i]),
            _log(b[-1].law[i]),
        ]
        for i, token in enumerate(a[0].tokens)
    ]
    return table(["token", "raw", "after order A", "after order B"], rows, "Log-probabilities")


def _log(p: float) -> str:
    return number(math.log(p), 3) if p > 0 else "−∞"


def draw(made: Drawn, texts: Texts) -> Markup:
    """One coin, two laws."""
    return Markup('<p class="says">The coin {} draws {} in order A and {} in order B.</p>').format(
        number(made.coin, 3), chip(texts.get(made.a, f"#{made.a}")), chip(texts.get(made.b, f"#{made.b}"))
    )


def _orders(orders: Sequence[str]) -> str:
    more = len(orders) - MAX_ORDERS
    return ", ".join(orders[:MAX_ORDERS]) + (f" and {count(more, 'more', 'more')}" if more > 0 else "")


def _tokens(tokens: Sequence[int], num_tokens: int, texts: Texts) -> Markup:
    shown = join([chip(texts.get(token, f"#{token}")) for token in tokens[:MAX_TOKENS]], " ")
    more = num_tokens - min(len(tokens), MAX_TOKENS)
    return Markup('<div class="strip">{}{}</div>').format(shown, f" … {more:,} more" if more > 0 else "")
