"""What a rule puts out on a typed-in law: both parts of the proof as one bar, and a simulation that converges."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from playground.engine.rules import Draws, RuleLaw
from playground.views.html import join, number, percent, table
from playground.views.tokens import chip

ROUNDING = 1e-12  # below this two laws are the same one


TELLS = {
    "rejection": "A draft drawn from q stands if its coin u says u · q < p; else the residual max(p − q, 0) decides.",
    "match_keep": "The target draws its own token from p and puts it out; the draft stands if it is the same one.",
    "match_redraw": "The target draws from p to compare; if the draft differs, both go and p is drawn from again.",
    "argmax_soft_q": "The drafter always proposes its likeliest token, yet the coin and the residual use the soft q.",
}


def output_law(exact: RuleLaw, names: Sequence[str]) -> Markup:
    """Token by token: p, q, and what comes out as two parts on one bar, accepted and recovered, with p as a line."""
    whole = max(*exact.p, *exact.q, *exact.law)
    blocks = []
    for t, text in enumerate(names):
        parts = [("p", exact.accepted[t]), ("residual", exact.recovered[t])]
        bars = [
            _bar("p", [("p", exact.p[t])], whole),
            _bar("q", [("q", exact.q[t])], whole),
            _bar("out", parts, whole, mark=exact.p[t]),
        ]
        sums = f"{number(exact.accepted[t], 3)} accepted + {number(exact.recovered[t], 3)} recovered"
        blocks.append(_token(text, [*bars, Markup('<span class="sums">{}</span>').format(sums)]))
    return Markup('<div class="laws">{}</div>').format(join(blocks))


def both_parts(exact: RuleLaw) -> Markup:
    """All output as one bar of two parts, which is also the key of ``output_law``."""
    parts = (
        ("p", "accepted drafts", exact.alpha),
        ("residual", "recovered after a rejection", max(0.0, 1 - exact.alpha)),
    )
    track = join([Markup('<i class="c-{}" style="width:{}%"></i>').format(c, percent(v, 1)) for c, _, v in parts])
    key = Markup('<span><span class="key c-{}"></span>{} {}</span>')
    keys = join([key.format(c, text, number(v, 3)) for c, text, v in parts])
    html = Markup('<div class="stack"><div class="track">{}</div><div class="keys">{}</div></div>')
    return html.format(track, keys)


def compared(laws: Sequence[RuleLaw], now: str) -> Markup:
    """Every rule on the same p and q, exact; the one named ``now`` stands out."""
    rows = [
        [
            Markup("<b>{}</b>").format(law.rule) if law.rule == now else law.rule,
            f"{100 * law.alpha:.1f} %",
            distance(law.error),
            verdict(law.error),
        ]
        for law in laws
    ]
    return table(["rule", "accepts", "distance to p", "verdict"], rows, "Rules compared")


def frequencies(draws: Draws, exact: RuleLaw, names: Sequence[str]) -> Markup:
    """How often each token came out, as a bar, with p as a line on it."""
    whole = max(*exact.p, *draws.frequencies)
    blocks = []
    for text, p, share in zip(names, exact.p, draws.frequencies, strict=True):
        bars = [_bar("p", [("p", p)], whole), _bar("drawn", [("4", share)], whole, mark=p)]
        blocks.append(_token(text, bars))
    return Markup('<div class="laws">{}</div>').format(join(blocks))


def _token(text: str, lines: Sequence[Markup]) -> Markup:
    return Markup("<div>{}<div>{}</div></div>").format(chip(text), join(lines))


def _bar(label: str, parts: Sequence[tuple[str, float]], whole: float, mark: float | None = None) -> Markup:
    drawn = join([Markup('<i class="c-{}" style="width:{}%"></i>').format(c, percent(v, whole)) for c, v in parts if v])
    line = Markup('<b style="left:{}%"></b>').format(percent(mark, whole)) if mark is not None else ""
    total = number(math.fsum(v for _, v in parts), 3)
    html = Markup('<span>{}</span><span class="track">{}{}</span><span class="num">{}</span>')
    return html.format(label, drawn, line, total)


WIDTH, HEIGHT, LEFT, FOOT = 400, 170, 42, 20  # of the drawing; LEFT and FOOT hold the labels of the axes


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
    return "exact" if error < ROUNDING else "biased"


def distance(error: float) -> str:
    """An exact distance; below rounding it is none."""
    return "0" if error < ROUNDING else f"{error:.4f}"
