"""A drafting head at work: the layers that it taps, its tensors as strips, and several heads' drafts after one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.face_to_face import SideBySide
from playground.engine.wiring import Level, Wire
from playground.views import tokens, verification
from playground.views.html import Text, join, number, probability, scroll

Texts = Mapping[int, str]
BAR, HEIGHT = 4, 26  # of a strip, in SVG units
STRIPS = (
    "Each strip shows the first 24 channels of a vector, up for positive and down for negative, the largest at full "
    "height, heights by the square root: a few channels of a language model's states are far larger than all others."
)
UP, DOWN = "fill:var(--accept)", "fill:var(--recover)"


def ladder(taps: Sequence[int], num_layers: int) -> Markup:
    """The target's layers as a row of boxes, from the embedding on; the tapped ones filled and numbered."""
    width, boxes = 18, []
    for layer in range(num_layers + 1):
        tapped = layer in taps
        look = "fill:var(--accept);stroke:var(--accept)" if tapped else "fill:none;stroke:var(--line-2)"
        boxes.append(
            Markup('<rect x="{}" y="1" width="{}" height="16" rx="3" style="{}"/>').format(
                layer * width + 1, width - 4, look
            )
        )
        if tapped:
            boxes.append(
                Markup(
                    '<text x="{}" y="31" text-anchor="middle" style="fill:var(--ink-2);font:12px var(--sans)">{}</text>'
                ).format(layer * width + width / 2 - 1, layer)
            )
    says = f"reads the states after layers {', '.join(map(str, taps))}" if taps else "reads no state of the target"
    look = "display:block;max-width:100%;height:auto"
    svg = Markup('<svg width="{0}" style="{1}" viewBox="0 0 {0} 36" role="img" aria-label="{2}">{3}</svg>')
    return svg.format((num_layers + 1) * width, look, says, join(boxes))


def strip(wire: Wire) -> Markup:
    """The first channels of a vector as bars, up for positive and down for negative; heights go by the square root."""
    most, middle = max(map(abs, wire.strip), default=0) or 1.0, HEIGHT / 2
    bars = []
    for i, value in enumerate(wire.strip):
        tall = (abs(value) / most) ** 0.5 * (middle - 1)
        top = middle - tall if value > 0 else middle
        bars.append(
            Markup('<rect x="{}" y="{:.1f}" width="{}" height="{:.1f}" style="{}"/>').format(
                i * BAR, top, BAR - 1, max(tall, 0.4), UP if value > 0 else DOWN
            )
        )
    width = BAR * len(wire.strip)
    says = f"first {len(wire.strip)} of {wire.size} channels, largest {most:.2f}"
    line = Markup('<path d="M0 {0}H{1}" style="stroke:var(--line-2)"/>').format(middle, width)
    svg = Markup('<svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}{4}</svg>')
    return svg.format(width, HEIGHT, says, line, join(bars))


def box(wire: Wire, label: str = "") -> Markup:
    """One vector: its name, its first channels, its norm."""
    return Markup('<div class="wire"><span>{}</span>{}<span class="num">norm {}</span></div>').format(
        label or wire.name, strip(wire), number(wire.norm, 1)
    )


def level(found: Level, texts: Texts) -> Markup:
    """One pass of the head from top to bottom: what it reads, what becomes of it, the tokens it finds likeliest."""
    wires = {wire.name: wire for wire in found.wires}
    token = tokens.spoken(verification.text_of(texts, found.token))
    taps = [wire for wire in found.wires if wire.name.startswith("layer ")]
    parts: list[Markup] = []
    if len(taps) > 1:
        parts += [_row([box(wire, f"after {wire.name}") for wire in taps]), _down("fused into one")]
    state = "its own output" if not taps else "state" if len(taps) > 1 else f"after {taps[0].name}"
    parts += [
        _row(_boxes(wires, {"state": state, "embedding": f"embedding of {token}"})),
        _down("each through its own norm" if "state" in wires else "a norm"),
        _row(_boxes(wires, {"state, normed": "state, normed", "embedding, normed": "embedding, normed"})),
        _down("side by side, mapped to one" if "state" in wires else "a map"),
        _row(_boxes(wires, {"projection": "joined"})),
        _down("one layer: attention, MLP"),
        _row(_boxes(wires, {"block": "next state"})),
        _down("the target's LM head"),
    ]
    guesses = [
        Markup("<span>{} {}</span>").format(tokens.chip(verification.text_of(texts, t), "plain"), probability(p))
        for t, p in found.top
    ]
    return Markup('<div class="flow">{}{}</div>').format(join(parts), _row(guesses))


def _boxes(wires: Mapping[str, Wire], labels: Mapping[str, str]) -> list[Markup]:
    return [box(wires[name], label) for name, label in labels.items() if name in wires]


def _row(boxes: Sequence[Text]) -> Markup:
    return Markup("<div>{}</div>").format(join(boxes))


def _down(text: str) -> Markup:
    return Markup("<p>↓ {}</p>").format(text)


def drafts(moment: SideBySide, texts: Texts, about: Mapping[str, str]) -> Markup:
    """A row per head: its chain after the text, judged by the target, and how many stood."""
    most = max((len(chain.tokens) for chain in moment.chains), default=0)
    heads = join([Markup('<th scope="col">+{}</th>').format(i + 1) for i in range(most)])
    rows = []
    for chain in moment.chains:
        cells = []
        for i, (token, p) in enumerate(zip(chain.tokens, chain.p, strict=True)):
            text = verification.text_of(texts, token)
            state = "accepted" if i < chain.num_accepted else "rejected" if i == chain.num_accepted else "unjudged"
            detail = (
                f"{chain.name}: {tokens.spoken(text)}, {tokens.name(state)}; target p = {probability(p)} after its "
                f"draft so far"
            )
            cells.append(Markup("<td>{}</td>").format(tokens.chip(text, state, detail, with_mark=True)))
        cells += [Markup("<td></td>")] * (most - len(cells))
        stood = f"{chain.num_accepted}" if chain.tokens else "waits for states"
        name = Markup('<th scope="row" title="{}">{}</th>').format(about.get(chain.name, ""), chain.name)
        rows.append(Markup("<tr>{}{}<td>{}</td></tr>").format(name, join(cells), stood))
    table = Markup(
        '<table class="verify"><thead><tr><td></td>{}<th scope="col">stood</th></tr></thead><tbody>{}</tbody></table>'
    )
    return scroll(table.format(heads, join(rows)), "Drafts after the same text")
