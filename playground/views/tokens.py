"""Tokens as chips: their text made visible, their state as border, mark and words; strips and the verify table."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from playground.views.html import Text, join

STATES = ("accepted", "rejected", "recovered", "bonus", "plain", "unjudged", "discarded", "blocked")
MARKS = {"accepted": "✓", "rejected": "✗", "recovered": "→", "bonus": "+", "unjudged": "…", "discarded": "✂"}
NAMES = {
    "unjudged": "not judged",
    "blocked": "blocked by the grammar",
    "plain": "plain",
    "discarded": "cut off after the end",
}
GLYPHS = {" ": "·", "\n": "↵", "\t": "⇥"}
CONTROLS = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
)
SHORT = {
    **{chr(code): sign for code, sign in enumerate(CONTROLS.split())},
    **{chr(0x200B + i): sign for i, sign in enumerate(("ZWSP", "ZWNJ", "ZWJ", "LRM", "RLM"))},
    **{chr(0x202A + i): sign for i, sign in enumerate(("LRE", "RLE", "PDF", "LRO", "RLO"))},
    **{chr(0x2066 + i): sign for i, sign in enumerate(("LRI", "RLI", "FSI", "PDI"))},
    "\x7f": "DEL",
    "\ufeff": "BOM",
}
MAX_CHARS = 32  # of one chip
NUM_CONTEXT = 40  # tokens of a context strip


def visible(text: str) -> Markup:
    """A token's text with whitespace, control and format characters shown, the rest escaped.

    >>> visible(" a\\n")
    Markup('<i>·</i>a<i>↵</i>')
    """
    if not text:
        return Markup("<i>empty</i>")
    shown, cut = text[:MAX_CHARS], len(text) > MAX_CHARS
    parts: list[Text] = ["◌"] if unicodedata.combining(shown[0]) else []
    plain = ""
    for char in shown:
        sign = _sign(char)
        if sign is None:
            plain += char
            continue
        parts += [plain, Markup("<i>{}</i>").format(sign)]
        plain = ""
    parts += [plain, Markup("<i>…</i>") if cut else ""]
    html = join([part for part in parts if part])
    return (
        Markup("<bdi>{}</bdi>").format(html)
        if any(unicodedata.bidirectional(c) in ("R", "AL") for c in shown)
        else html
    )


def spoken(text: str) -> str:
    """The same text as plain characters, for a sentence or an attribute: “·a↵”."""
    signs = [_sign(char) or char for char in text[:MAX_CHARS]]
    return f"“{''.join(signs)}{'…' if len(text) > MAX_CHARS else ''}”"


def _sign(char: str) -> str | None:
    if char in GLYPHS:
        return GLYPHS[char]
    if char in SHORT:
        return f"⟨{SHORT[char]}⟩"
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Cn", "Co"):
        return f"⟨U+{ord(char):04X}⟩"
    return None


def name(state: str) -> str:
    """What a state is called on the page."""
    return NAMES.get(state, state)


def mark(state: str) -> Markup:
    """The sign of a state, hidden from screen readers: the state is said in words beside it."""
    sign = Markup('<span class="lock"></span>') if state == "blocked" else MARKS.get(state, "")
    return Markup('<span class="mk {}" aria-hidden="true">{}</span>').format(state, sign) if sign else Markup("")


def chip(text: str, state: str = "", detail: str = "", with_mark: bool = False) -> Markup:
    """One token. ``state`` is one of ``STATES``, or nothing for one of the past; ``detail`` shows on hover or focus."""
    kind = f" {state}" if state else ""
    extra = Markup(' tabindex="0" data-detail="{}"').format(detail) if detail else ""
    said = Markup('<span class="sr"> {}</span>').format(name(state)) if state and state != "plain" else ""
    return Markup('<span class="tok{}"{}>{}{}{}</span>').format(
        kind, extra, mark(state) if with_mark else "", visible(text), said
    )


def strip(chips: Sequence[Markup], before: str = "") -> Markup:
    """Chips in reading order, with ``before`` in words at the start."""
    lead = Markup('<span class="more">{}</span>').format(before) if before else ""
    return Markup('<div class="strip">{}{}</div>').format(lead, join(chips))


def context_strip(
    texts: Mapping[int, str], tokens: Sequence[int], new: Sequence[tuple[int, str, str]] = (), shown: int = NUM_CONTEXT
) -> Markup:
    """The last ``shown`` of ``tokens``, then the ``new`` ones as (token, state, detail)."""
    room = max(0, shown - len(new))
    old = list(tokens)[len(tokens) - min(room, len(tokens)) :]
    earlier = len(tokens) - len(old)
    chips = [chip(texts.get(t, f"#{t}")) for t in old]
    chips += [chip(texts.get(t, f"#{t}"), state, detail, with_mark=True) for t, state, detail in new]
    return strip(chips, f"… {earlier:,} earlier" if earlier else "")


def legend(states: Sequence[str]) -> Markup:
    """What borders and marks mean, for the states in use."""
    chips = [Markup('<span class="tok {}">{}{}</span>').format(s, mark(s), name(s)) for s in states]
    return Markup('<div class="legend" aria-label="Legend" role="group">{}</div>').format(join(chips))
