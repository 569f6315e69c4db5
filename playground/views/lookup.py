"""A look-up in the text so far: where it matched, what was copied, and what became of each copied token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.drafters import Match
from playground.engine.trace import Node, Output, Pass
from playground.views import html
from playground.views.html import Text, count, join, scroll
from playground.views.tokens import chip, name, spoken

Texts = Mapping[int, str]
NUM_BEFORE = 1  # tokens shown ahead of the match
WIDTH = 1000  # units of the map


def table(context: Sequence[int], step: Pass, match: Match | None, texts: Texts) -> Markup:
    """The place that was found above the end of the text: each copied token stands above the draft it became.

    ``context`` is the text before the pass. Without a match the first row is empty.
    """
    length = match.length if match else 0
    shown = min(NUM_BEFORE, len(context) - length)
    end = [*_old(context[len(context) - length - shown : len(context) - length], texts)]
    end += [chip(_text(texts, t), "match") for t in context[len(context) - length :]]
    found = _found(context, match, shown, len(step.nodes), texts) if match else ["–"]
    rows = [_tr(f"token {match.start + 1:,}" if match else "no match", found)]
    rows.append(_tr("text ends", [*end, *(_draft(node, texts) for node in step.nodes)]))
    rows.append(_tr("output", [*[""] * (shown + length), *(_output(out, texts) for out in step.outputs)], "out"))
    body = Markup('<table class="verify lookup"><tbody>{}</tbody></table>').format(join(rows))
    return scroll(body, "Match, copy and verdict")


def _found(context: Sequence[int], match: Match, shown: int, num_copied: int, texts: Texts) -> list[Text]:
    begin = max(0, match.start - shown)
    behind = match.start + match.length
    return [
        *[""] * (shown - (match.start - begin)),
        *_old(context[begin : match.start], texts),
        *(chip(_text(texts, t), "match") for t in context[match.start : behind]),
        *(chip(_text(texts, t), "copied") for t in context[behind : behind + num_copied]),
    ]


def place(context: Sequence[int], num_prompt: int, step: Pass, match: Match | None) -> Markup:
    """The pass in words, and the text so far as a bar: prompt, reply, and on it the match and the copy behind it."""
    parts = [("prompt", 0, num_prompt), ("reply", num_prompt, len(context))]
    if match:
        behind = match.start + match.length
        parts += [("match", match.start, behind), ("copied", behind, min(behind + len(step.nodes), len(context)))]
    scale = WIDTH / max(1, len(context))
    drawn = join([_rect(kind, scale * a, scale * (b - a)) for kind, a, b in parts if b > a])
    bar = Markup('<svg class="where" viewBox="0 0 {} 8" preserveAspectRatio="none" aria-hidden="true">{}</svg>')
    said = Markup('<p class="says">{}.</p>').format(says(step, match).capitalize())
    return said + bar.format(WIDTH, drawn)


def _rect(kind: str, x: float, width: float) -> Markup:
    least = 4.0 if kind in ("match", "copied") else 0.0
    rect = '<rect class="{}" x="{}" width="{}" height="8"/>'
    return Markup(rect).format(kind, f"{x:.0f}", f"{max(width, least):.0f}")


def says(step: Pass, match: Match | None) -> str:
    """The pass in words: place, copy, verdict."""
    if match is None:
        return "no match, a plain pass"
    kept = f"{count(len(step.nodes), 'token')} copied, {step.num_verified} accepted"
    return f"found at token {match.start + 1:,} of {step.start:,}, {kept}"


def keys() -> Markup:
    """The legend of the table."""
    parts = [("match", "the n tokens matched"), ("copied", "copied as the draft")]
    chips = [Markup('<span class="tok {}">{}</span>').format(kind, text) for kind, text in parts]
    return Markup('<div class="legend" role="group" aria-label="Legend of the look-up">{}</div>').format(join(chips))


def _old(tokens: Sequence[int], texts: Texts) -> list[Markup]:
    return [chip(_text(texts, t)) for t in tokens]


def _output(out: Output, texts: Texts) -> Markup:
    own = html.number(math.exp(out.logprob), 3)
    detail = f"{spoken(_text(texts, out.token))}, {name(out.kind)}: the model's own probability {own}"
    return chip(_text(texts, out.token), out.kind, detail, with_mark=True)


def _draft(node: Node, texts: Texts) -> Markup:
    text = _text(texts, node.token)
    return chip(text, node.state, f"{spoken(text)} was copied from the text: {name(node.state)}", with_mark=True)


def _text(texts: Texts, token: int) -> str:
    return texts.get(token, f"#{token}")


def _tr(label: str, cells: Sequence[Text], kind: str = "") -> Markup:
    tds = join([Markup("<td>{}</td>").format(cell) for cell in cells])
    return Markup('<tr class="{}"><th scope="row">{}</th>{}</tr>').format(kind, label, tds)
