"""What a rule puts out on a typed-in law: both parts of the proof as one bar, and a simulation that converges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from playground.engine.rules import Draws, RuleLaw
from playground.views.html import join, number, percent, scroll
from playground.views.tokens import chip

ROUNDING = 1e-12  # below this two laws are the same one


def output_law(exact: RuleLaw, names: Sequence[str]) -> Markup:
    """Token by token: p, q, and what comes out as two parts on one bar, accepted and recovered, with p as a line."""
    whole = max(*exact.p, *exact.q, *exact.law)
    rows = []
    for t, text in enumerate(names):
        parts = [("p", exact.accepted[t]), ("residual", exact.recovered[t])]
        cells = [
            _bar([("p", exact.p[t])], whole),
            _bar([("q", exact.q[t])], whole),
            _bar(parts, whole, mark=exact.p[t]),
        ]
        sums = Markup('<td class="num">{} + {}</td>').format(
            number(exact.accepted[t], 3), number(exact.recovered[t], 3)
        )
        rows.append(_row(chip(text), cells) + sums)
    return _table(
        ["token", "target p", "draft q", "comes out", "accepted + recovered"], rows, "What comes out, token by token"
    )


def frequencies(draws: Draws, exact: RuleLaw, names: Sequence[str]) -> Markup:
    """How often each token came out, as a bar, with p as a line on it."""
    whole = max(*exact.p, *draws.frequencies)
    rows = [
        _row(chip(text), [_bar([("p", p)], whole), _bar([("q", f)], whole, mark=p)])
        + Markup('<td class="num">{:,}</td>').format(n)
        for text, p, f, n in zip(names, exact.p, draws.frequencies, draws.counts, strict=True)
    ]
    return _table(["token", "target p", "came out", "times"], rows, "Frequencies so far")


def _bar(parts: Sequence[tuple[str, float]], whole: float, mark: float | None = None) -> Markup:
    drawn = join(
        [Markup('<i class="c-{}" style="width:{}%"></i>').format(kind, percent(v, whole)) for kind, v in parts if v > 0]
    )
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
    """Distance to p over the number of draws, both axes logarithmic; ``curve_key`` says which line is which."""
    if not draws[-1].chance:
        return Markup('<p class="says">p is certain: nothing is left to chance, and the distance is {}.</p>').format(
            distance(draws[-1].distance)
        )
    floor = math.log10(min(1e-3, draws[-1].chance))
    across, up = max(1e-9, math.log10(num_draws)), -floor

    def point(n: float, away: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - 6) * math.log10(n) / across
        y = 6 + (HEIGHT - FOOT - 6) * min(1.0, -math.log10(max(away, 10**floor)) / up)
        return round(x, 1), round(min(y, HEIGHT - FOOT), 1)

    def path(kind: str, points: Sequence[tuple[float, float]]) -> Markup:
        return Markup('<path class="{}" d="M{}"/>').format(kind, "L".join(f"{x} {y}" for x, y in points))

    chance = [
        point(1, min(1.0, draws[0].chance * math.sqrt(draws[0].num_draws))),
        point(num_draws, draws[0].chance * math.sqrt(draws[0].num_draws / num_draws)),
    ]
    drawn = [path("expected", chance), path("seen", [point(d.num_draws, d.distance) for d in draws])]
    if error > 10**floor:
        drawn.append(path("error", [point(1, error), point(num_draws, error)]))
    x, y = point(draws[-1].num_draws, draws[-1].distance)
    drawn.append(Markup('<circle cx="{}" cy="{}" r="4"/>').format(x, y))
    ticks = [_tick(*point(1, 10**-e), f"{10.0**-e:g}", "end") for e in range(0, int(up) + 1)]
    ticks += [_tick(point(10**e, 1)[0], HEIGHT - 4, f"{10**e:,}", "middle") for e in range(1, int(across) + 1)]
    said = f"Distance {number(draws[-1].distance, 4)}; chance alone would leave {number(draws[-1].chance, 4)}."
    html = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>')
    return html.format(WIDTH, HEIGHT, said, join(drawn), join(ticks))


def _tick(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        x - (6 if anchor == "end" else 0), y + (4 if anchor == "end" else 0), anchor, text
    )


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
