"""A lab's prices as a block of its frame: who drafts at what cost, speeds by batch, and where the winner changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from playground.views import html, pricing
from playground.views.html import Text

SHOWN = ("1", "8", "32", "128", "512")  # batches


def panel(result: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """The numbers of ``engine.serving.priced`` for the contenders ``names``."""
    table = html.section("Speed by batch, plain decoding = 1", _speeds(result, names), _assumed(result))
    changes = pricing.flips(result["flips"])
    return table + html.section("Who is the fastest", Markup("{}{}").format(html.note(first(result)), changes or ""))


def first(result: Mapping[str, Any]) -> str:
    """Who is the fastest at which batch, as a sentence."""
    if result["first"] is None:
        return "Not one sequence of this context fits in memory."
    if not result["flips"]:
        return f"{result['first']} is the fastest at every batch that fits."
    later = ", ".join(f"from {flip['batch']:,} {flip['to']}" for flip in result["flips"])
    return f"{result['first']} is the fastest at batch 1, {later}."


def _speeds(result: Mapping[str, Any], names: Sequence[str]) -> Markup:
    one = len(names) == 1
    rows: list[list[Text]] = []
    for name in names:
        cost = result["draft_cost"] if one else result["draft_cost"][name]
        speed = result["speedup_by_batch"] if one else result["speedup_by_batch"][name]
        rows.append([name, f"{cost:.3f}", *(_times(speed.get(batch)) for batch in SHOWN)])
    return pricing.figures(["drafter", "cost of a level", *(f"batch {b}" for b in SHOWN)], rows, "Speed by batch")


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _assumed(result: Mapping[str, Any]) -> str:
    profile = result["profile"].replace("_", " ")
    return f"priced: {result['target']}, {result['hardware']}, {profile}, context {result['context']:,}"
