"""The target's law p beside the drafter's law q, token by token, with what is left of p after a rejection."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from playground.engine.trace import Row
from playground.views.html import join, percent, probability, scroll
from playground.views.tokens import chip


def bars(row: Row, texts: Mapping[int, str], states: Mapping[int, str] | None = None, shown: int = 8) -> Markup:
    """The ``shown`` likeliest tokens of a row and all others as a tail; the part of p above q is hatched.

    ``states`` marks tokens (drafted and rejected, recovered, ...); those are always shown. All bars share one scale.
    """
    states = states or {}
    has_q, has_left = row.tail_q is not None, any(c.residual is not None for c in row.top)
    ranked = sorted(row.top, key=lambda c: -max(c.p, c.q or 0.0))
    listed = [c for i, c in enumerate(ranked) if i < shown or c.token in states]
    rest = [c for c in ranked if c not in listed]
    tail_p = row.tail_p + sum(c.p for c in rest)
    tail_q = row.tail_q + sum(c.q or 0.0 for c in rest) if has_q else None
    tail_left = max(0.0, 1.0 - sum(c.residual or 0.0 for c in listed)) if has_left else None
    whole = max([tail_p, tail_q or 0.0, *(max(c.p, c.q or 0.0, c.residual or 0.0) for c in listed)])

    def line(
        head: Markup, p: float, q: float | None, left: float | None, kind: str = "", excess: float | None = None
    ) -> Markup:
        over = max(0.0, p - q) if excess is None and q is not None else excess or 0.0
        cells = [_bar([("p", p - over), ("residual", over)], p, whole)]
        cells += [_bar([("q", q or 0.0)], q or 0.0, whole)] if has_q else []
        cells += [_bar([("residual", left or 0.0)], left or 0.0, whole)] if has_left else []
        tds = join([Markup("<td>{}</td>").format(c) for c in cells])
        return Markup('<tr{}><th scope="row">{}</th>{}</tr>').format(
            Markup(f' class="{kind}"') if kind else "", head, tds
        )

    lines = [
        line(chip(texts.get(c.token, f"#{c.token}"), states.get(c.token, "")), c.p, c.q, c.residual) for c in listed
    ]
    if tail_p > 5e-4 or (tail_q or 0.0) > 5e-4:  # how p and q share the tail token by token is not known here
        lines.append(line(Markup("all others"), tail_p, tail_q, tail_left, "tail", excess=0.0))
    heads = ["token", "target p", *(["draft q"] if has_q else []), *(["residual"] if has_left else [])]
    top = join([Markup('<th scope="col">{}</th>').format(h) for h in heads])
    html = Markup('<table class="law"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, join(lines))
    return scroll(html, "Target law p and draft law q")


def _bar(parts: list[tuple[str, float]], value: float, whole: float) -> Markup:
    drawn = join(
        [Markup('<i class="c-{}" style="width:{}%"></i>').format(kind, percent(v, whole)) for kind, v in parts if v > 0]
    )
    return Markup('<div class="bar"><span class="track">{}</span><span>{}</span></div>').format(
        drawn, probability(value)
    )
