"""Targets in other numerics: which there are, one place of the text under each, and what each came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from playground.engine.drift import Drift, Tried
from playground.views import html, tokens
from playground.views.html import Text, join, number, scroll

Texts = Mapping[int, str]
ANSWERS = {True: "yes", False: "no", None: "–"}


def small(value: float | None) -> str:
    """A distance: exact zeros stay ``0``, small ones keep one digit.

    >>> small(0.0), small(3e-7), small(0.0124)
    ('0', '3e−7', '0.012')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 5e-4:
        return number(value, 3)
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}".replace("-", "−")


def grid(head: Sequence[Text], rows: Sequence[Sequence[Text]], label: str) -> Markup:
    """A table whose first column names the row; plain strings are figures and stand right, Markup stands left."""
    right = [bool(rows) and not isinstance(rows[0][i], Markup) for i in range(len(head))]
    top = join([Markup('<th scope="col"{}>{}</th>').format(_num(i and right[i]), h) for i, h in enumerate(head)])
    lines = [join([_cell(i, value, right[i]) for i, value in enumerate(row)]) for row in rows]
    body = join([Markup("<tr>{}</tr>").format(line) for line in lines])
    return scroll(
        Markup('<table class="plain"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, body), label
    )


def _cell(column: int, value: Text, is_right: bool) -> Markup:
    if column == 0:
        return Markup('<th scope="row">{}</th>').format(value)
    return Markup("<td{}>{}</td>").format(_num(is_right), value)


def _num(is_right: object) -> Markup:
    return Markup(' class="num"' if is_right else "")


def numerics(tried: Sequence[Tried], reference: str) -> Markup:
    """Who takes part: bytes and what computes it; one that does not run here is grey and says why."""
    rows = []
    for each in tried:
        if each.reason:
            grey = Markup('<span class="greyed">{}</span>')
            rows.append([grey.format(each.title), "–", "–", grey.format(each.reason)])
            continue
        how = f"The reference. {each.how}" if each.name == reference else each.how
        rows.append([each.title, megabytes(each.weight_bytes), kibibytes(each.kv_bytes), Markup("{}").format(how)])
    return Markup('<div class="wide">{}</div>').format(
        grid(["numerics", "weights, MB", "KV per token, KiB", "how it runs here"], rows, "Numerics of this run")
    )


def megabytes(size: int | None) -> str:
    return "–" if size is None else number(size / 1e6, 0)


def kibibytes(size: int | None) -> str:
    return "–" if size is None else number(size / 1024, 1)


def text_strip(text: Sequence[int], texts: Texts, at: int | None = None) -> Markup:
    """The text so far; the token that follows place ``at`` is marked."""
    shown = text if at is None else text[: at + 1]
    chips = [tokens.chip(texts.get(t, f"#{t}"), "plain" if i == at else "") for i, t in enumerate(shown)]
    return tokens.strip(chips)


def place(drifts: Mapping[str, Drift], titles: Mapping[str, str], texts: Texts, reference: str) -> Markup:
    """One place: each numerics' own choice and its distance from the reference."""
    most = max([each.tv for each in drifts.values()] + [1e-9])
    rows: list[list[Text]] = []
    for name, each in drifts.items():
        state = "" if name == reference else "accepted" if each.is_same else "rejected"
        chip = tokens.chip(texts.get(each.token, f"#{each.token}"), state, with_mark=True)
        rows.append([titles[name], chip, html.probability(each.text_p), bar(each.tv, most), small(each.kl),
                     number(each.margin, 2)])  # fmt: skip
    head = ["numerics", "likeliest", "p of the text's", "total variation", "KL, nats", "top-2 margin"]
    return grid(head, rows, "Laws at this place")


def bar(value: float, most: float) -> Markup:
    """A figure on a bar; ``most`` fills it."""
    drawn = Markup('<i class="c-0" style="width:{}%"></i>').format(html.percent(value, most)) if value else ""
    return Markup('<div class="bar tv"><span class="track">{}</span><span>{}</span></div>').format(drawn, small(value))


def parting(drifts: Mapping[str, Drift], titles: Mapping[str, str], texts: Texts) -> Markup | None:
    """Why a numerics chose another token here: the reference's lead against how far it was moved."""
    found = [(name, each) for name, each in drifts.items() if not each.is_same]
    if not found:
        return None
    said = [
        f"{titles[name]}: the reference prefers {tokens.spoken(texts.get(each.text_token, '?'))} to "
        f"{tokens.spoken(texts.get(each.token, '?'))} by {number(each.lead, 3)}; here the difference moved by "
        f"{number(each.shift, 3)}."
        for name, each in found
    ]
    return html.note(" ".join(said), "warn")


def verdicts(summaries: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> Markup:
    """What each numerics came to: what a lossless rule needs of it, and the figures behind."""
    rows: list[list[Text]] = []
    for name, found in summaries.items():
        rows.append(
            [
                titles.get(name, name),
                yes(found["is_causal"]),
                yes(found["is_repeatable"]),
                yes(found["is_traceless"]),
                small(found["later_draft_tv"]),
                small(found["shape_noise_tv"]),
                small(found["trace_after_rejection_tv"]),
                small(found["mean_tv"]),
                "–" if found["acceptance_as_draft"] is None else f"{100 * found['acceptance_as_draft']:.1f} %",
            ]
        )
    head = ["numerics", "causal", "repeatable", "traceless", "later drafts", "pass shape", "rejected draft",
            "from reference", "accepted as drafter"]  # fmt: skip
    return Markup('<div class="wide">{}</div>').format(grid(head, rows, "What each numerics came to"))


def yes(answer: bool | None) -> Markup:
    return verdict(answer, ANSWERS[answer])


def verdict(answer: bool | None, words: str) -> Markup:
    """An answer in ``words`` with a mark, so that it is never colour alone."""
    mark = {True: Markup('<span class="mk accepted">✓</span> '), False: Markup('<span class="mk rejected">✗</span> ')}
    return Markup('<span class="nw">{}{}</span>').format(mark.get(answer, ""), words)
