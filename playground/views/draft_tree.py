"""A draft tree: its drawing, its mask, its flattened order, and what one pass made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.draft_trees import Shape
from playground.engine.trace import Pass
from playground.engine.tree import ROOT
from playground.engine.tree_report import PositionErrors, TreePlan
from playground.views import html, tokens
from playground.views.html import Text, join, number, probability, scroll
from playground.views.tokens import chip
from playground.views.verification import node_detail, text_of

STEP_X, STEP_Y, RADIUS = 84, 30, 12  # of the drawing
LAST = "last"  # what the last committed token is called
Texts = Mapping[int, str]


# --- Drawing ----------------------------------------------------------------------------------------------------------


def rows_of(shape: Shape) -> dict[int, float]:
    """A row for every node and for the root: leaves one below another, a parent level with its first child."""
    rows: dict[int, float] = {}

    def place(node: int, row: int) -> int:
        rows[node] = row
        for child in shape.children(node):
            row = place(child, row)
        return row if shape.children(node) else row + 1

    place(ROOT, 0)
    return rows


def drawing(shape: Shape, labels: Sequence[str] = (), states: Sequence[str] = ()) -> Markup:
    """The tree from left to right, a column per depth; ``labels`` stand beside nodes, ``states`` are their look."""
    rows, depths = rows_of(shape), {ROOT: 0, **dict(enumerate(shape.depths))}
    at = {node: (20 + STEP_X * depths[node], 20 + STEP_Y * rows[node]) for node in rows}
    lines, nodes = [], [_node(*at[ROOT], "", LAST)]
    for node, parent in enumerate(shape.parents):
        (x, y), (px, py), state = at[node], at[parent], states[node] if states else ""
        bend = f"M{px} {py}V{y}H{x}" if py != y else f"M{px} {py}H{x}"
        lines.append(Markup('<path class="{}" d="{}"/>').format(state, bend))
        nodes.append(_node(x, y, state, str(node), labels[node] if labels else ""))
    width = 40 + STEP_X * (max(depths.values()) + bool(labels))
    height = 40 + STEP_Y * max(rows.values())
    svg = '<svg class="tree" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-hidden="true">{}{}</svg>'
    return scroll(Markup(svg).format(join(lines), join(nodes), w=width, h=int(height)), "The tree, drawn")


def _node(x: float, y: float, state: str, index: str, label: str = "") -> Markup:
    drawn = Markup('<g class="{}"><circle cx="{x}" cy="{y}" r="{r}"/><text x="{x}" y="{t}">{}</text>').format(
        state, index, x=x, y=y, r=RADIUS if index != LAST else 17, t=y + 4
    )
    words = Markup('<text class="label" x="{}" y="{}">{}</text>').format(x + RADIUS + 4, y + 4, label) if label else ""
    return drawn + words + Markup("</g>")


# --- Mask and order ---------------------------------------------------------------------------------------------------


def mask(shape: Shape) -> Markup:
    """The mask ``[n + 1, n + 1]`` as a table: which rows each row sees. A row's heading tells it in words."""
    names = [LAST, *map(str, range(len(shape)))]
    head = join([Markup('<th scope="col">{}</th>').format(n) for n in names])
    body = join([_mask_row(shape, row, names) for row in range(ROOT, len(shape))])
    html_ = Markup('<table class="mask"><thead><tr><td></td>{}</tr></thead><tbody>{}</tbody></table>')
    return scroll(html_.format(head, body), "Tree mask: row by row, which columns it sees")


def seen_by(shape: Shape, node: int) -> list[int]:
    """What a node's row sees inside the tree: the last committed token, its ancestors, itself."""
    seen = [ROOT] if node == ROOT else [node]
    while seen[0] != ROOT:
        seen.insert(0, shape.parents[seen[0]])
    return seen


def _mask_row(shape: Shape, node: int, names: Sequence[str]) -> Markup:
    seen = seen_by(shape, node)
    on, off = Markup('<td class="on">1</td>'), Markup("<td>0</td>")
    cells = join([on if column in seen else off for column in range(ROOT, len(shape))])
    depth = 0 if node == ROOT else shape.depths[node]
    words = f"Row {names[node + 1]}, position +{depth}, sees {', '.join(names[s + 1] for s in seen)}"
    head = Markup('<th scope="row" tabindex="0" data-detail="{}">{}</th>')
    return Markup("<tr>{}{}</tr>").format(head.format(words + ".", names[node + 1]), cells)


def order(plan: TreePlan, uses_index: bool = False) -> Markup:
    """The flattened order: a line per node."""
    shape = plan.shape
    rows = []
    for node, parent in enumerate(shape.parents):
        path = " · ".join(str(rank + 1) for rank in shape.paths[node])
        position = node + 1 if uses_index else shape.depths[node]
        below = LAST if parent == ROOT else str(parent)
        rows.append([str(node), below, path, f"+{position}", probability(plan.worth[node])])
    head = ["node", "below", "candidates taken", "position", "chance to stand"]
    return html.table(head, rows, "Nodes in flattened order")


# --- One pass ---------------------------------------------------------------------------------------------------------


def judged(step: Pass, texts: Texts) -> Markup:
    """Each node of a pass: token, verdict, position, and what became of its KV row."""
    kept, rows = 0, []
    for i, node in enumerate(step.nodes):
        row = "rolled back"
        if node.state == "accepted":
            kept += 1
            # row 1 of the pass is that of the last committed token
            row = f"row {step.target_kv.before + 1 + kept:,}" if kept < step.target_kv.kept else "cut off after the end"
        rows.append([*_node_cells(step, i, texts), f"+{node.depth}", probability(node.p), row])
    head = ["node", "token", "below", "depth", "target p", "KV row after the pass"]
    return html.table(head, rows, "The nodes of this pass")


def moved(step: Pass, texts: Texts, errors: PositionErrors) -> Markup:
    """Each node at its two positions, and how far the target's law after it moved between them."""
    rows = []
    for i, node in enumerate(step.nodes):
        positions = f"+{node.depth} → +{i + 1}"
        choice = "another token" if errors.flips[i] else "the same"
        rows.append([*_node_cells(step, i, texts), positions, number(errors.total_variation[i], 3), choice])
    head = ["node", "token", "below", "position", "law moved by", "choice after it"]
    return html.table(head, rows, "Laws at right and wrong positions")


def _node_cells(step: Pass, i: int, texts: Texts) -> list[Text]:
    node = step.nodes[i]
    token = chip(text_of(texts, node.token), node.state, node_detail(step, i, texts), with_mark=True)
    return [str(i), token, LAST if node.parent == ROOT else str(node.parent)]


def pass_drawing(step: Pass, shape: Shape, texts: Texts) -> Markup:
    """The tree of a pass with its tokens and their states."""
    labels = [_short(text_of(texts, node.token)) for node in step.nodes]
    return drawing(shape, labels, [node.state for node in step.nodes])


def _short(text: str) -> str:
    said = tokens.spoken(text)[1:-1]
    return said if len(said) <= 9 else said[:8] + "…"


def says(step: Pass) -> str:
    """A pass in one sentence."""
    if not step.nodes:
        return "No draft: the pass gives the target's own next token."
    path = [str(i) for i, node in enumerate(step.nodes) if node.state == "accepted"]
    stood = f"nodes {', '.join(path)}" if len(path) > 1 else f"node {path[0]}" if path else "none"
    return f"Accepted: {stood} of {len(step.nodes)}; {html.count(len(step.outputs), 'token')} put out."
