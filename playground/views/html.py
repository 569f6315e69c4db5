"""The blocks of a frame as HTML: sections, tables, stacked bars, notes. Whatever comes in is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

Text = str | Markup  # a plain string is data and gets escaped; Markup was made by a view


def join(parts: Sequence[Text], between: str = "") -> Markup:
    """The parts one after another, each escaped unless it is Markup."""
    return Markup(between).join(parts)


def frame(*blocks: Text | None) -> Markup:
    """What a lab's ``frame`` returns: blocks below one another; ``None`` is left out."""
    return Markup('<div class="dp">{}</div>').format(join([b for b in blocks if b is not None]))


def section(title: str, body: Text, aside: Text = "") -> Markup:
    """A block with a small heading, and at its right what belongs to it: a count, a legend."""
    return Markup('<section data-figure><div class="head"><b>{}</b><span>{}</span></div>{}</section>').format(
        title, aside, body
    )


def columns(*blocks: Text) -> Markup:
    """Blocks side by side where there is room, below one another on a phone."""
    return Markup('<div class="columns">{}</div>').format(join([Markup("<div>{}</div>").format(b) for b in blocks]))


def scroll(body: Text, label: str) -> Markup:
    """Wide content that scrolls inside its own block, with the keyboard too."""
    return Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>').format(label, body)


def detail(text: str = "Point at a token, or move to it with Tab, to see its figures.") -> Markup:
    """The line that shows ``data-detail`` of whatever is hovered or focused; ``text`` stands there before."""
    return Markup('<p class="detail">{}</p>').format(text)


def note(text: Text, kind: str = "") -> Markup:
    """A remark; ``kind`` is ``good``, ``warn``, ``bad`` or nothing."""
    return Markup('<p class="note{}">{}</p>').format(f" {kind}" if kind else "", text)


def number(value: float | None, digits: int = 2) -> str:
    """A figure for people: ``–`` where there is none, and never ``-0.00``."""
    if value is None:
        return "–"
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text.replace("-", "−")


def probability(p: float) -> str:
    """Three digits, and no false zero or one.

    >>> probability(0.5), probability(1e-5), probability(0.99999), probability(1.0)
    ('0.500', '<0.001', '>0.999', '1')
    """
    if p in (0.0, 1.0):
        return f"{p:.0f}"
    return "<0.001" if p < 5e-4 else ">0.999" if p > 1 - 5e-4 else f"{p:.3f}"


def count(n: int, one: str, many: str = "") -> str:
    """A number and its noun.

    >>> count(1, "row"), count(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def table(head: Sequence[Text], rows: Sequence[Sequence[Text | float | int | None]], label: str) -> Markup:
    """A plain table in a block that scrolls: the first cell of a row is its heading, numbers stand right."""
    top = join([Markup('<th scope="col"{}>{}</th>').format(_align(rows, i), h) for i, h in enumerate(head)])
    body = join([Markup("<tr>{}</tr>").format(join([_cell(i, value) for i, value in enumerate(row)])) for row in rows])
    html = Markup('<table class="plain"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, body)
    return scroll(html, label)


def _align(rows: Sequence[Sequence[object]], column: int) -> Markup:
    figures = bool(rows) and all(isinstance(row[column], (int, float, type(None))) for row in rows)
    return Markup(' class="num"' if figures else "")


def _cell(column: int, value: Text | float | int | None) -> Markup:
    if column == 0:
        return Markup('<th scope="row">{}</th>').format(value)
    if value is None or isinstance(value, (int, float)):
        shown = f"{value:,}" if isinstance(value, int) else number(value)
        return Markup('<td class="num">{}</td>').format(shown)
    return Markup("<td>{}</td>").format(value)


def stack(parts: Sequence[tuple[str, float]], total: float | None = None, digits: int = 3) -> Markup:
    """One horizontal bar of several parts, each named with its figure below. Five looks, so at most five parts."""
    whole = total if total is not None else sum(value for _, value in parts)
    bar = join(
        [
            Markup('<i class="c-{}" style="width:{}%"></i>').format(i, percent(v, whole))
            for i, (_, v) in enumerate(parts)
        ]
    )
    keys = join(
        [
            Markup('<span><span class="key c-{}"></span>{} {}</span>').format(i, name, number(v, digits))
            for i, (name, v) in enumerate(parts)
        ]
    )
    return Markup('<div class="stack"><div class="track">{}</div><div class="keys">{}</div></div>').format(bar, keys)


def percent(value: float, whole: float) -> str:
    """A width in per cent, short, within [0, 100]."""
    share = 100 * value / whole if whole > 0 else 0.0
    return f"{min(100.0, max(0.0, share)):.1f}".rstrip("0").rstrip(".")


def attribute(text: str) -> Markup:
    """Text for an attribute value in double quotes."""
    return escape(text)
