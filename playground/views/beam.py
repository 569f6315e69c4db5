"""A beam search: the tree of its last steps with scores, the beams that go on, and the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.beam import BeamStep, Expansion, Hypothesis
from playground.views import html
from playground.views.html import join, number, scroll
from playground.views.tokens import chip, spoken

WINDOW, WINDOW_OF_MANY, FEW = 6, 4, 10  # steps drawn; where a step has more than ``FEW`` candidates
STEP_X, STEP_Y, WIDE, HIGH, TOP = 138, 30, 116, 22, 24
MAX_CHARS = 8  # of a token in its node
MARKS = {"live": "", "finished": "✓ ", "pruned": "✗ "}
Texts = Mapping[int, str]


def tree(steps: Sequence[BeamStep], texts: Texts) -> Markup:
    """The last of ``steps`` with every candidate; of those before it the beams. What no beam descends from is faded."""
    window = WINDOW if len(steps[-1].expansions) <= FEW else WINDOW_OF_MANY
    first = max(0, len(steps) - window)
    columns = [drawn(made, is_last=made is steps[-1]) for made in steps[first:]]
    lit = ancestors(columns)
    edges: dict[str, list[str]] = {}
    nodes = []
    for x, column in enumerate(columns):
        nodes.append(Markup('<text x="{}" y="13">step {}</text>').format(STEP_X * x, first + x + 1))
        for y, each in enumerate(column):
            kind = each.state if y in lit[x] or each.state == "finished" else f"{each.state} faded"
            nodes.append(_node(x, y, each, kind, texts))
            edges.setdefault(kind, []).append(_edge(x, each.parent, y))
    lines = [Markup('<path class="{}" d="{}"/>').format(kind, "".join(parts)) for kind, parts in edges.items()]
    size = {"w": STEP_X * len(columns), "h": TOP + STEP_Y * max(map(len, columns))}
    svg = '<svg class="beams" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-hidden="true">{}{}</svg>'
    drawing = Markup(svg).format(join(sorted(lines, key=lambda line: "faded" not in line)), join(nodes), **size)
    return Markup('<div class="beam-tree">{}</div>').format(scroll(drawing, "The beam tree, drawn"))


def drawn(made: BeamStep, is_last: bool) -> list[Expansion]:
    """A column from the top: beams in their order, outputs that ended here, and in the last column the pruned."""
    ended = [each for each in made.expansions if each.state == "finished"]
    pruned = [each for each in made.expansions if each.state == "pruned"]
    return [*made.live, *ended, *(pruned if is_last else [])]


def ancestors(columns: Sequence[Sequence[Expansion]]) -> list[set[int]]:
    """In each column the rows from which a beam of the last column descends; there, the beams themselves."""
    lit: list[set[int]] = []
    rows = {y for y, each in enumerate(columns[-1]) if each.state != "pruned"}
    for column in reversed(columns):
        lit.insert(0, rows)
        rows = {column[y].parent for y in rows}
    return lit


def _node(x: int, y: int, each: Expansion, kind: str, texts: Texts) -> Markup:
    text = spoken(texts.get(each.token, f"#{each.token}"))[1:-1]
    most = MAX_CHARS - len(MARKS[each.state])
    text = text if len(text) <= most else text[: most - 1] + "…"
    label = Markup("✗ <tspan>{}</tspan>").format(text) if each.state == "pruned" else MARKS[each.state] + text
    left, top = STEP_X * x, TOP + STEP_Y * y
    box = (
        '<g class="{}"><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>'
        '<text class="label" x="{tx}" y="{ty}">{}</text><text class="num" x="{nx}" y="{ty}">{}</text></g>'
    )
    place = {"x": left + 1, "y": top, "w": WIDE, "h": HIGH, "tx": left + 7, "ty": top + 15, "nx": left + WIDE - 6}
    return Markup(box).format(kind, label, number(each.logprob, 2), **place)


def _edge(x: int, parent: int, y: int) -> str:
    """From a beam of the column before; nothing in the first column."""
    if not x:
        return ""
    end, to = STEP_X * x, TOP + STEP_Y * y + HIGH // 2
    start, at = end - STEP_X + WIDE + 1, TOP + STEP_Y * parent + HIGH // 2
    bend = (start + end) // 2
    return f"M{start} {at}C{bend} {at} {bend} {to} {end} {to}"


def legend() -> Markup:
    """What the boxes of the tree are."""
    keys = (("live", "goes on"), ("finished", "✓ ended"), ("pruned", "✗ pruned"), ("live faded", "no beam descends"))
    html_ = '<span class="beam-key {}">{}</span>'
    return Markup('<div class="legend beam-legend" role="group" aria-label="Legend">{}</div>').format(
        join([Markup(html_).format(kind, words) for kind, words in keys])
    )


def says(made: BeamStep, index: int) -> str:
    """One step in words."""
    counts = {state: sum(each.state == state for each in made.expansions) for state in MARKS}
    parts = [f"{html.count(counts['live'], 'beam')} kept"] if counts["live"] else []
    parts += [f"{counts['finished']} ended"] if counts["finished"] else []
    parts += [f"{counts['pruned']} pruned"] if counts["pruned"] else []
    return f"Step {index + 1}: {', '.join(parts)}"


ENDS = {
    "eos": "Every candidate has ended.",
    "length": "The number of new tokens is reached.",
    "enough": "Enough outputs have ended, and early stopping is on.",
    "no better": "No beam can beat the worst of the outputs any more.",
}


def outputs(found: Sequence[Hypothesis], texts: Texts) -> Markup:
    """The finished outputs, best first: tokens, log-probability, score, and how each ended."""
    rows = [
        [
            str(rank),
            Markup('<div class="strip">{}</div>').format(join([chip(texts.get(t, f"#{t}")) for t in each.tokens])),
            len(each.tokens),
            number(each.logprob, 3),
            number(each.score, 4),
            {"eos": "end token"}.get(each.finish, each.finish),
        ]
        for rank, each in enumerate(found, 1)
    ]
    head = ["", "output", "tokens", "log-prob.", "score", "ended by"]
    return Markup('<div class="beam-table">{}</div>').format(html.table(head, rows, "Outputs, best first"))
