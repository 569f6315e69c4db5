"""The still parts of a page as HTML: header, figures, alert, check yourself, sources, cards. Every text is escaped."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer

from playground.lab import GROUPS, Figure, Lab, Preset, Question

PRODUCT = "Decoding Playground"
TAGLINE = "Real language models, one decoding step at a time: what a serving engine drafts, checks, keeps and pays."


def prose(text: str) -> Markup:
    """Plain text in which `code` may be marked by backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def items(texts: Sequence[str]) -> Markup:
    return Markup("<ul>{}</ul>").format(Markup().join(Markup("<li>{}</li>").format(prose(t)) for t in texts))


def header(before: Lab | None = None, after: Lab | None = None) -> Markup:
    """Skip link, product name, and the way to the labs before and after. Addresses are relative, for any root path."""
    link = Markup('<a rel="{}" href="./{}">{}</a>')
    arrows = Markup('<span aria-hidden="true">← </span>{}'), Markup('{}<span aria-hidden="true"> →</span>')
    ways = [
        link.format("prev", before.slug, arrows[0].format(before.title)) if before else "",
        link.format("next", after.slug, arrows[1].format(after.title)) if after else "",
    ]
    return Markup(
        '<header class="top"><a class="skip" href="#content">Skip to the content</a>'
        '<a class="brand" href="./">{}</a><nav aria-label="Neighbouring labs">{}</nav></header>'
    ).format(PRODUCT, Markup().join(ways))


def title(lab: Lab) -> Markup:
    return Markup('<div class="opening"><h1 id="content" tabindex="-1">{}</h1><p class="question">{}</p></div>').format(
        lab.title, prose(lab.question)
    )


def heading(text: str) -> Markup:
    return Markup('<h2 class="part">{}</h2>').format(text)


def alert(sentences: Sequence[str] = ()) -> Markup:
    """The region that tells what could not be done; it is always there, so that what appears in it is announced."""
    body = Markup().join(Markup("<p>{}</p>").format(s) for s in sentences)
    return Markup('<div class="alert" role="alert">{}</div>').format(body)


def figures(row: Sequence[Figure]) -> Markup:
    cells = Markup().join(
        Markup('<div role="listitem"><b>{}</b><span>{}{}</span></div>').format(
            f.value, f.label, Markup(" <i>{}</i>").format(f.source) if f.source else ""
        )
        for f in row
    )
    if not row:
        return Markup()
    return Markup('<div class="figures" role="list" aria-label="Figures of this run">{}</div>').format(cells)


def preset_note(preset: Preset | None) -> Markup:
    return Markup('<p class="preset-note">{}</p>').format(prose(preset.note)) if preset and preset.note else Markup()


def check_yourself(questions: Sequence[Question], presets: Mapping[str, Preset]) -> Markup:
    return Markup().join(_question(q, presets.get(q.preset)) for q in questions)


def _question(question: Question, preset: Preset | None) -> Markup:
    parts = [Markup("<h3>A good answer says</h3>"), items(question.answer)]
    if question.follow_ups:
        parts += [Markup("<h3>Then they ask</h3>"), items(question.follow_ups)]
    if question.mistakes:
        parts += [Markup("<h3>Common mistakes</h3>"), items(question.mistakes)]
    if preset:
        link = Markup('<p><a href="?preset={}&amp;run=1">See it run: {}</a></p>')
        parts.append(link.format(quote(preset.name), preset.title))
    return Markup('<details class="ask"><summary>{}</summary><div class="answer">{}</div></details>').format(
        prose(question.ask), Markup().join(parts)
    )


def sources(entries: Sequence[tuple[str, str]]) -> Markup:
    rows = [
        Markup('<li><a href="{}" target="_blank" rel="noopener noreferrer">{}</a></li>').format(address, text)
        for text, address in entries
    ]
    return Markup('<ul class="sources">{}</ul>').format(Markup().join(rows))


def code(text: str) -> Markup:
    """Python source, coloured; it scrolls inside its own block."""
    if not text:
        return Markup()
    spans = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True))  # escapes what it is given
    return Markup('<pre class="code" tabindex="0" role="region" aria-label="Source code">{}</pre>').format(
        Markup(spans)
    )


def source(functions: Sequence[Callable[..., Any]]) -> Markup:
    """The source of functions, one after another."""
    return code("\n\n".join(textwrap.dedent(inspect.getsource(f)).rstrip() for f in functions))


def home(labs: Sequence[Lab]) -> Markup:
    """A card per lab, in teaching order, under the headings of ``GROUPS``."""
    groups = []
    for group in GROUPS:
        cards = [_card(lab) for lab in labs if lab.group == group]
        if cards:
            groups.append(
                Markup('<section class="group"><h2>{}</h2><div class="cards">{}</div></section>').format(
                    group.capitalize(), Markup().join(cards)
                )
            )
    return Markup(
        '<div class="opening"><h1 id="content" tabindex="-1">{}</h1><p class="question">{}</p>{}</div>{}'
    ).format(PRODUCT, TAGLINE, _start(labs), Markup().join(groups))


def _start(labs: Sequence[Lab]) -> Markup:
    if not labs:
        return Markup()
    return Markup(
        '<p class="start">New here? Open <a href="./{}">{}</a>, press Run, and step with the arrow keys.</p>'
    ).format(labs[0].slug, labs[0].title)


def _card(lab: Lab) -> Markup:
    return Markup('<a class="card" href="./{}"><h3>{}</h3><p>{}</p></a>').format(
        lab.slug, lab.title, prose(lab.question)
    )
