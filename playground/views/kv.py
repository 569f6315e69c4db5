"""KV rows of one pass as cells: there before, kept, rolled back, missing."""

from __future__ import annotations

from markupsafe import Markup

from playground.engine.trace import KVRows
from playground.views.html import join

NUM_BEFORE = 8  # cells of rows that were there before; the rest is a number
NUM_KEPT = 17  # cells of kept rows: a whole draft; of a longer run, such as the prompt, only the last few
NUM_LAST = 4


def strip(name: str, kv: KVRows | None, width: int = 0) -> Markup:
    """One cache. ``width`` pads with empty cells so that two strips line up; ``None`` is a drafter without a cache."""
    if kv is None:
        return Markup('<div><span>{}</span><span class="says">keeps no KV rows</span></div>').format(name)
    before, kept = min(kv.before, NUM_BEFORE), _kept(kv)
    cells = [
        *_more(kv.before - before),
        Markup("<i></i>") * before,
        *_more(kv.kept - kept, "written"),
        Markup('<i class="kept">✓</i>') * kept,
        Markup('<i class="back">↺</i>') * kv.rolled_back,
        Markup('<i class="missing">?</i>') * kv.missing,
        Markup('<i class="empty"></i>') * max(0, width - kept - kv.rolled_back - kv.missing),
    ]
    html = '<div><span>{}</span><div class="cells" aria-hidden="true">{}</div><span class="says">{}</span></div>'
    return Markup(html).format(name, join(cells), says(kv))


def strips(target: KVRows, drafter: KVRows | None, drafter_name: str = "drafter") -> Markup:
    """The target's cache above the drafter's, cells of this pass in the same columns where both are short."""
    width = max(_width(target), _width(drafter)) if drafter else 0
    return Markup('<div class="kv">{}{}</div>').format(
        strip("target", target, width), strip(drafter_name, drafter, width)
    )


def says(kv: KVRows) -> str:
    """The counts in words."""
    parts = [f"{kv.before:,} before", f"{kv.written:,} written", f"{kv.kept:,} kept", f"{kv.rolled_back:,} rolled back"]
    if kv.missing:
        parts.append(f"{kv.missing:,} missing (fed with the next draft)")
    return ", ".join(parts)


def _width(kv: KVRows) -> int:
    return _kept(kv) + kv.rolled_back + kv.missing


def _kept(kv: KVRows) -> int:
    return kv.kept if kv.kept <= NUM_KEPT else NUM_LAST


def _more(n: int, word: str = "more") -> list[Markup]:
    return [Markup("<span>… {} {}</span>").format(f"{n:,}", word)] if n > 0 else []
