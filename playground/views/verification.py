"""One target pass: the draft, the target's choice under each token, whether they agree, and what is put out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.engine.trace import Output, Pass, Row
from playground.engine.tree import ROOT
from playground.views.html import Text, count, join, number, probability, scroll
from playground.views.tokens import chip, mark, name, spoken

Texts = Mapping[int, str]


def text_of(texts: Texts, token: int) -> str:
    """The text of a token, or its id where no text is known."""
    return texts.get(token, f"#{token}")


def table(step: Pass, texts: Texts) -> Markup:
    """A column per drafted token, and one for the token that follows a full draft. Cells have details."""
    path = [i for i, node in enumerate(step.nodes) if node.state == "accepted"]
    end = _end(step, path)
    columns = range(max(len(step.nodes), end + 1))
    rows = [_tr("draft", [_draft(step, i, texts) for i in columns])] if step.nodes else []
    rows.append(_tr("target", [_choice(step, i, path, end, texts) for i in columns]))
    if step.nodes:
        rows.append(_tr("agree?", [_verdict(step, i) for i in columns]))
        rows.append(_tr("output", _outputs(step, path, end, len(columns), texts), "out"))
    depths = [step.nodes[i].depth if i < len(step.nodes) else len(path) + 1 for i in columns]
    head = join([Markup('<th scope="col">+{}</th>').format(depth) for depth in depths])
    html = '<table class="verify"><thead><tr><td></td>{}</tr></thead><tbody>{}</tbody></table>'
    return scroll(Markup(html).format(head, join(rows)), "Draft and target, token by token")


def _end(step: Pass, path: Sequence[int]) -> int:
    """The column where the token that follows the accepted path stands."""
    last = path[-1] if path else ROOT
    rejected = (i for i, node in enumerate(step.nodes) if node.parent == last and node.state in ("rejected", "blocked"))
    return next(rejected, len(step.nodes))


def _row(step: Pass, column: int, path: Sequence[int]) -> Row:
    """The target's law that judged a column."""
    parent = step.nodes[column].parent if column < len(step.nodes) else (path[-1] if path else ROOT)
    return step.rows[parent + 1]


def _follows(step: Pass) -> str:
    """What kind of token follows the accepted path, put out or cut off."""
    return "discarded" if step.discarded else step.outputs[-1].kind


def _draft(step: Pass, column: int, texts: Texts) -> Text:
    if column >= len(step.nodes):
        return ""
    node = step.nodes[column]
    figures = node_detail(step, column, texts) if node.state != "unjudged" else ""
    return chip(text_of(texts, node.token), node.state, figures)


def _choice(step: Pass, column: int, path: Sequence[int], end: int, texts: Texts) -> Markup:
    row = _row(step, column, path)
    state = "" if column in path else _follows(step) if column == end else "unjudged"
    return chip(text_of(texts, row.argmax), state, row_detail(row, texts) if state != "unjudged" else "")


def _verdict(step: Pass, column: int) -> Text:
    if column >= len(step.nodes):
        return ""
    state = step.nodes[column].state
    return mark(state) + Markup('<span class="sr">{}</span>').format(name(state))


def _outputs(step: Pass, path: Sequence[int], end: int, width: int, texts: Texts) -> list[Text]:
    cells: list[Text] = [""] * width
    for place, column in enumerate([*path, end]):
        if place < len(step.outputs):
            out = step.outputs[place]
            cells[column] = chip(text_of(texts, out.token), out.kind, output_detail(out, texts))
        else:
            token = step.nodes[column].token if place < len(path) else _row(step, column, path).argmax
            cells[column] = chip(
                text_of(texts, token), "discarded", "It lies past the end of the output and is thrown away."
            )
    return cells


def _tr(label: str, cells: Sequence[Text], kind: str = "") -> Markup:
    tds = join([Markup("<td>{}</td>").format(cell) for cell in cells])
    return Markup('<tr class="{}"><th scope="row">{}</th>{}</tr>').format(kind, label, tds)


# --- Figures in words -------------------------------------------------------------------------------------------------


def node_detail(step: Pass, index: int, texts: Texts) -> str:
    """The figures of one drafted token."""
    node = step.nodes[index]
    parts = [f"draft {spoken(text_of(texts, node.token))}, {name(node.state)}: target p = {probability(node.p)}"]
    if node.q is not None and node.coin is not None:
        parts.append(f"draft q = {probability(node.q)}")
    if node.coin is not None:
        parts.append(f"coin = {number(node.coin, 3)}")
    return ", ".join(parts)


def row_detail(row: Row, texts: Texts) -> str:
    """The target's two likeliest tokens and the margin between them."""
    best, *others = sorted(row.top, key=lambda c: (c.token != row.argmax, -c.p))
    said = f"target {spoken(text_of(texts, best.token))} p = {probability(best.p)}"
    if others:
        said += f", next best {spoken(text_of(texts, others[0].token))} {probability(others[0].p)}"
    return said + (f", margin {number(row.margin, 3)} in log-probability" if row.margin is not None else "")


def output_detail(out: Output, texts: Texts) -> str:
    """The figures of one output token."""
    said = f"{spoken(text_of(texts, out.token))}, {name(out.kind)}: target p = {probability(out.p)}"
    return f"{said}, log-probability {number(out.logprob, 3)}"


def new_tokens(step: Pass, texts: Texts) -> list[tuple[int, str, str]]:
    """The outputs of a step as ``tokens.context_strip`` wants them."""
    return [(out.token, out.kind, output_detail(out, texts)) for out in step.outputs]


def says(step: Pass) -> str:
    """One step as a sentence: how many drafts stood, and what followed."""
    if not step.nodes:
        return "No draft: the pass gives the target's own next token."
    follows = {
        "recovered": "; the target's own token takes the place of the first that differs",
        "bonus": "; the token after them is a bonus",
    }
    tail = follows.get(step.outputs[-1].kind, "")
    return f"{step.num_verified} of {count(len(step.nodes), 'draft token')} accepted{tail}."
