"""How a draft token is judged: its coin on a line from 0 to 1, p beside q, what comes out, and a simulation of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.rules import Draws, RuleLaw
from playground.engine.trace import Node, Pass, Row
from playground.views import law
from playground.views.html import join, number, percent, scroll, section
from playground.views.tokens import chip, name, spoken

NUM_TOKENS = 5  # of each law in a card
ROUNDING = 1e-12  # below this two laws are the same one
SAYS = {
    "match_keep": "the target draws its own token first; the draft stands if it is the same one",
    "match_redraw": "the target draws a token to compare; the draft stands if it is the same one",
}


def coin_line(coin: float, p: float, q: float | None) -> Markup:
    """The coin u on [0, 1): it falls into the part min(1, p / q) that accepts, or beyond. No q: the token was certain."""
    reported = 1.0 if q is None else q
    chance = min(1.0, p / reported) if reported > 0 else float(p > 0)
    stands = coin * reported < p
    sign = "<" if stands else "≥"
    words = Markup(
        '<p class="says">u · q = {} · {} = <b>{}</b> {} p = <b>{}</b>: {}. Chance of this: min(1, p/q) = {}.</p>'
    ).format(
        number(coin, 3), number(reported, 3), number(coin * reported, 3), sign, number(p, 3),
        "accepted" if stands else "rejected", _chance(chance, stands),
    )  # fmt: skip
    line = Markup(
        '<div class="coin" aria-hidden="true"><i style="width:{}%"></i><b style="left:{}%"></b></div>'
    ).format(percent(chance, 1), percent(coin, 1))
    return line + words


def _chance(chance: float, stands: bool) -> str:
    return number(chance, 3) if stands else f"{number(chance, 3)} to stand"


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
        judged = Markup('<p class="says">Coin {}: {}. Here: {}.</p>').format(number(node.coin, 3), SAYS[rule], name(node.state))
    title = Markup("Draft {}: {}").format(i + 1, chip(texts.get(node.token, ""), node.state, with_mark=True))
    return section(title, judged + _bars(step.rows[node.parent + 1], texts, states) + after)


def _source(rule: str) -> str:
    return {"match_keep": "this same draw from p", "match_redraw": "a second draw from p"}.get(rule, "the residual max(p − q, 0)")


def _bars(row: Row, texts: Mapping[int, str], states: Mapping[int, str]) -> Markup:
    return law.bars(row, texts, states, shown=NUM_TOKENS)


# --- A typed-in law -----------------------------------------------------------------------------------------------------


def output_law(exact: RuleLaw, names: Sequence[str]) -> Markup:
    """Token by token: p, q, and what comes out as two parts on one bar, accepted and recovered, with p as a line."""
    whole = max(*exact.p, *exact.q, *exact.law)
    rows = []
    for t, text in enumerate(names):
        parts = [("p", exact.accepted[t]), ("residual", exact.recovered[t])]
        cells = [_bar([("p", exact.p[t])], whole), _bar([("q", exact.q[t])], whole), _bar(parts, whole, mark=exact.p[t])]
        sums = Markup('<td class="num">{} + {}</td>').format(number(exact.accepted[t], 3), number(exact.recovered[t], 3))
        rows.append(_row(chip(text), cells) + sums)
    return _table(["token", "target p", "draft q", "comes out", "accepted + recovered"], rows, "What comes out, token by token")


def frequencies(draws: Draws, exact: RuleLaw, names: Sequence[str]) -> Markup:
    """How often each token came out, as a bar, with p as a line on it."""
    whole = max(*exact.p, *draws.frequencies)
    rows = [
        _row(chip(text), [_bar([("p", p)], whole), _bar([("q", f)], whole, mark=p)]) + Markup('<td class="num">{:,}</td>').format(n)
        for text, p, f, n in zip(names, exact.p, draws.frequencies, draws.counts, strict=True)
    ]
    return _table(["token", "target p", "came out", "times"], rows, "Frequencies so far")


def _bar(parts: Sequence[tuple[str, float]], whole: float, mark: float | None = None) -> Markup:
    drawn = join([Markup('<i class="c-{}" style="width:{}%"></i>').format(kind, percent(v, whole)) for kind, v in parts if v > 0])
    line = Markup('<b style="left:{}%"></b>').format(percent(mark, whole)) if mark is not None else ""
    total = number(math.fsum(v for _, v in parts), 3)
    return Markup('<div class="bar"><span class="track">{}{}</span><span>{}</span></div>').format(drawn, line, total)


def _row(head: Markup, cells: Sequence[Markup]) -> Markup:
    return Markup('<th scope="row">{}</th>{}').format(head, join([Markup("<td>{}</td>").format(c) for c in cells]))


def _table(heads: Sequence[str], rows: Sequence[Markup], label: str) -> Markup:
    top = join([Markup('<th scope="col">{}</th>').format(h) for h in heads])
    body = join([Markup("<tr>{}</tr>").format(row) for row in rows])
    html = Markup('<table class="law"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, body)
    return scroll(html, label)


WIDTH, HEIGHT, LEFT, FOOT = 640, 200, 44, 22  # of the drawing; LEFT and FOOT hold the labels of the axes


def convergence(draws: Sequence[Draws], error: float, num_draws: int) -> Markup:
    """Distance to p over the number of draws, both on logarithmic axes; dashed: chance alone; dotted: the rule's own error."""
    if not draws[-1].chance:
        return Markup('<p class="says">p is certain: nothing is left to chance, and the distance is {}.</p>').format(distance(draws[-1].distance))
    floor = math.log10(min(1e-3, draws[-1].chance))
    across, up = max(1e-9, math.log10(num_draws)), -floor

    def point(n: float, away: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 6) * math.log10(n) / across
        y = 6 + (HEIGHT - FOOT - 6) * min(1.0, -math.log10(max(away, 10**floor)) / up)
        return round(x, 1), round(min(y, HEIGHT - FOOT), 1)

    def path(kind: str, points: Sequence[tuple[float, float]]) -> Markup:
        return Markup('<path class="{}" d="M{}"/>').format(kind, "L".join(f"{x} {y}" for x, y in points))

    chance = [point(1, min(1.0, draws[0].chance * math.sqrt(draws[0].num_draws))), point(num_draws, draws[0].chance * math.sqrt(draws[0].num_draws / num_draws))]
    drawn = [path("expected", chance), path("seen", [point(d.num_draws, d.distance) for d in draws])]
    if error > 10**floor:
        drawn.append(path("error", [point(1, error), point(num_draws, error)]))
    x, y = point(draws[-1].num_draws, draws[-1].distance)
    drawn.append(Markup('<circle cx="{}" cy="{}" r="4"/>').format(x, y))
    ticks = [_tick(*point(1, 10**-e), f"{10.0**-e:g}", "end") for e in range(0, int(up) + 1)]
    ticks += [_tick(point(10**e, 1)[0], HEIGHT - 4, f"{10**e:,}", "middle") for e in range(1, int(across) + 1)]
    said = f"After {draws[-1].num_draws:,} draws the distance is {number(draws[-1].distance, 4)}; chance alone would leave {number(draws[-1].chance, 4)}."
    html = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>')
    return html.format(WIDTH, HEIGHT, said, join(drawn), join(ticks))


def _tick(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x - (6 if anchor == "end" else 0), y + (4 if anchor == "end" else 0), anchor, text)


def curve_key(error: float) -> str:
    """What the lines of ``convergence`` are, in words."""
    own = f"; dotted: this rule's own error, {error:.3f}" if error >= ROUNDING else ""
    return f"solid: this simulation; dashed: chance alone, falling as 1/√n{own}"


def verdict(error: float) -> str:
    """Whether a rule kept the target's law on these two laws."""
    return "keeps p" if error < ROUNDING else "biased"


def distance(error: float) -> str:
    """An exact distance; below rounding it is none."""
    return "0" if error < ROUNDING else f"{error:.4f}"
