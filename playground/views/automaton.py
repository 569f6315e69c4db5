"""One rule of an automaton as a picture: states as circles, bytes on the arrows, the place of the text lit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from playground.engine.grammar.drawn import DrawnAutomaton
from playground.views.html import join

MAX_NODES = 16  # drawn at once; of a larger rule, those near the lit state
COLUMN, ROW, RADIUS, MARGIN = 156, 62, 12, 20
MAX_LABEL = 18


@dataclass(frozen=True)
class Arrow:
    """A link between two drawn states: what is read on it, and the states hidden inside a chain of single bytes."""

    start: int
    end: int
    label: str
    hidden: tuple[int, ...] = ()


def picture(automaton: DrawnAutomaton, stack: Sequence[int]) -> Markup:
    """The rule of the innermost state of ``stack``, that state lit; an empty stack lights nothing in the root rule."""
    lit = stack[-1] if stack else None
    rule = automaton.states[lit].rule if lit is not None else automaton.root
    start = dict(automaton.starts)[rule]
    arrows = links(automaton, start)
    inside = next((arrow for arrow in arrows if lit in arrow.hidden), None)
    centre = inside.start if inside else lit if lit is not None else start
    near = neighbourhood(arrows, centre)
    shown = [arrow for arrow in arrows if arrow.start in near and arrow.end in near]
    column, row = layout(shown, near, start if start in near else centre)
    width = max(column.values()) * COLUMN + 2 * MARGIN + 2 * RADIUS
    heights = [y_of(row[node]) for node in near]
    height = max(heights) + RADIUS + MARGIN + 8
    parts = [draw_arrow(arrow, column, row, arrow is inside) for arrow in shown]
    parts += [draw_state(node, column, row, automaton.states[node].is_final, node == lit) for node in near]
    cut = len({a.start for a in arrows} | {a.end for a in arrows} | {start}) - len(near)
    note = Markup('<p class="says">{} more states of this rule are not drawn.</p>').format(cut) if cut > 0 else ""
    label = f"Automaton of the rule {rule}, {len(near)} states drawn"
    html = '<svg class="automaton" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">{}{}</svg>'
    svg = Markup(html).format(label, width, height, width, height, ARROWHEAD, join(parts))
    return Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>{}').format(label, svg, note)


ARROWHEAD = Markup(
    '<defs><marker id="dp-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z"/></marker></defs>'
)


def links(automaton: DrawnAutomaton, start: int) -> list[Arrow]:
    """The arrows of a rule. Chains of single bytes become one arrow with their text; so do the bytes of a character."""
    out: dict[int, dict[int, list[str]]] = {}
    incoming: dict[int, list[list[str]]] = {}
    todo, seen = [start], {start}
    hidden: dict[tuple[int, int], tuple[int, ...]] = {}
    while todo:
        node = todo.pop()
        state = automaton.states[node]
        targets: dict[int, list[str]] = out.setdefault(node, {})
        for low, high, to in state.edges:
            end, passed = end_of_character(automaton, to) if low >= 0xC2 else (to, ())
            label = "non-ASCII" if passed or low >= 0x80 else span(low, high)
            targets.setdefault(end, [])
            if label not in targets[end]:
                targets[end].append(label)
            hidden[node, end] = tuple(dict.fromkeys((*hidden.get((node, end), ()), *passed)))
        for rule, back in state.calls:
            targets.setdefault(back, []).append(f"⟨{rule}⟩")
        for to in targets:
            incoming.setdefault(to, []).append(targets[to])
            if to not in seen:
                seen.add(to)
                todo.append(to)

    def is_link(node: int) -> bool:
        ways = [*out.get(node, {}).values()]
        is_plain = len(ways) == len(incoming.get(node, ())) == 1 and is_byte(ways[0]) and is_byte(incoming[node][0])
        return is_plain and node != start and not automaton.states[node].is_final

    arrows = []
    for node in out:
        if is_link(node):
            continue
        for to, labels in out[node].items():
            passed = list(hidden.get((node, to), ()))
            text, end = ", ".join(labels), to
            if is_byte(labels):
                while is_link(end):
                    passed.append(end)
                    end, more = next(iter(out[end].items()))
                    text += more[0]
            arrows.append(Arrow(node, end, text, tuple(passed)))
    return arrows


def is_byte(labels: Sequence[str]) -> bool:
    """Whether an arrow with these labels reads exactly one known byte."""
    return len(labels) == 1 and len(labels[0]) == 1


def end_of_character(automaton: DrawnAutomaton, state: int) -> tuple[int, tuple[int, ...]]:
    """Where the continuation bytes that ``state`` expects lead, and the states on the way."""
    passed: list[int] = []
    while True:
        about = automaton.states[state]
        if about.is_final or about.calls or not about.edges or not all(0x80 <= low < 0xC0 for low, _, _ in about.edges):
            return state, tuple(passed)
        passed.append(state)
        state = about.edges[0][2]


def span(low: int, high: int) -> str:
    """A range of ASCII bytes for people.

    >>> span(97, 122), span(32, 32)
    ('a-z', '·')
    """

    def one(byte: int) -> str:
        return "·" if byte == 0x20 else chr(byte) if 0x20 < byte < 0x7F else f"{byte:02X}"

    return one(low) if low == high else f"{one(low)}-{one(high)}"


def neighbourhood(arrows: Sequence[Arrow], centre: int) -> list[int]:
    """At most ``MAX_NODES`` states, the nearest to ``centre`` along arrows in either direction."""
    near, todo = [centre], deque([centre])
    beside: dict[int, list[int]] = {}
    for arrow in arrows:
        beside.setdefault(arrow.start, []).append(arrow.end)
        beside.setdefault(arrow.end, []).append(arrow.start)
    while todo and len(near) < MAX_NODES:
        for node in beside.get(todo.popleft(), []):
            if node not in near and len(near) < MAX_NODES:
                near.append(node)
                todo.append(node)
    return near


def layout(arrows: Sequence[Arrow], nodes: Sequence[int], start: int) -> tuple[dict[int, int], dict[int, int]]:
    """Column by the number of arrows from ``start``; row by the order in which a column fills."""
    column = {start: 0}
    todo = deque([start])
    while todo:
        node = todo.popleft()
        for arrow in arrows:
            if arrow.start == node and arrow.end not in column:
                column[arrow.end] = column[node] + 1
                todo.append(arrow.end)
    for node in nodes:  # reached only backwards
        column.setdefault(node, 0)
    row: dict[int, int] = {}
    filled: dict[int, int] = {}
    for node in sorted(nodes, key=lambda n: (column[n], nodes.index(n))):
        row[node] = filled.get(column[node], 0)
        filled[column[node]] = row[node] + 1
    return column, row


def x_of(column: int) -> int:
    return MARGIN + RADIUS + column * COLUMN


def y_of(row: int) -> int:
    return MARGIN + 30 + RADIUS + row * ROW


def draw_state(node: int, column: dict[int, int], row: dict[int, int], is_final: bool, is_lit: bool) -> Markup:
    x, y = x_of(column[node]), y_of(row[node])
    kinds = " ".join(filter(None, ["state", "lit" if is_lit else "", "final" if is_final else ""]))
    ring = Markup('<circle class="ring" cx="{}" cy="{}" r="{}"/>').format(x, y, RADIUS - 4) if is_final else ""
    dot = Markup('<circle class="here" cx="{}" cy="{}" r="4"/>').format(x, y) if is_lit else ""
    said = "the text may end here" if is_final else "state"
    html = '<g class="{}"><title>{}{}</title><circle cx="{}" cy="{}" r="{}"/>{}{}</g>'
    return Markup(html).format(kinds, said, ", the text is here" if is_lit else "", x, y, RADIUS, ring, dot)


def draw_arrow(arrow: Arrow, column: dict[int, int], row: dict[int, int], is_lit: bool) -> Markup:
    x1, y1, x2, y2 = x_of(column[arrow.start]), y_of(row[arrow.start]), x_of(column[arrow.end]), y_of(row[arrow.end])
    if arrow.start == arrow.end:
        path = f"M{x1 - 5} {y1 - RADIUS + 1}c-16 -30 26 -30 10 0"
        label_x, label_y = x1, y1 - RADIUS - 22
    elif x2 > x1:
        path = f"M{x1 + RADIUS} {y1}C{x1 + 50} {y1} {x2 - 50} {y2} {x2 - RADIUS - 2} {y2}"
        label_x, label_y = (x1 + x2) // 2, (y1 + y2) // 2 - 5
    else:
        low = max(y1, y2) + 26
        path = f"M{x1} {y1 + RADIUS}C{x1} {low} {x2} {low} {x2} {y2 + RADIUS + 2}"
        label_x, label_y = (x1 + x2) // 2, low - 4
    label = arrow.label if len(arrow.label) <= MAX_LABEL else arrow.label[: MAX_LABEL - 1] + "…"
    html = (
        '<g class="arrow{}"><title>{}</title><path d="{}" marker-end="url(#dp-tip)"/>'
        '<text x="{}" y="{}" text-anchor="middle">{}</text></g>'
    )
    return Markup(html).format(" lit" if is_lit else "", arrow.label, path, label_x, label_y, label)
