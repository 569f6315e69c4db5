"""Two runs compared: the speed-up on its scale with the interval, and the conditions that make it mean something."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from playground.engine.baseline import Comparison, Condition
from playground.views.counters import wide
from playground.views.html import count, note, number, section, table

MARKS = {"holds": "✓\u00a0holds", "differs": "✕\u00a0differs", "missing": "?\u00a0not\u00a0given"}
WIDTH, HEIGHT = 420, 46


def conditions(found: Sequence[Condition]) -> Markup:
    """A row per condition: whether it holds, what either run says, and why it matters."""
    order = {"differs": 0, "missing": 1, "holds": 2}
    rows = [[c.name, MARKS[c.state], c.with_, c.without, c.why] for c in sorted(found, key=lambda c: order[c.state])]
    holds = sum(c.state == "holds" for c in found)
    head = ["condition", "", "with", "without", "why it matters"]
    return section(
        "A fair comparison", wide(table(head, rows, "Conditions")), f"{holds} of {count(len(found), 'condition')} hold"
    )


def speedup(c: Comparison) -> Markup:
    """The speed-up and its interval against 1, and what a pass with a draft costs."""
    if c.speedup is None:
        return section("Speed-up", note("No speed-up: give wall_s and generation_tokens of both runs.", "warn"))
    told = f"{number(c.tokens_per_s_without, 1)} → {number(c.tokens_per_s_with, 1)} tokens/s"
    says = f"{number(c.speedup, 2)}x"
    if c.low is not None:
        says += f", 95 % interval {number(c.low, 2)}x to {number(c.high, 2)}x"
    body = _scale(c) + Markup('<p class="says"><b>{}</b> ({})</p>').format(says, c.interval)
    if c.step_cost is not None:
        length = number(c.mean_emitted_length, 3)
        body += note(
            f"A pass with a draft puts out {length} tokens, so it costs {number(c.step_cost, 2)} plain passes."
        )
    return section("Speed-up", body, told)


def _scale(c: Comparison) -> Markup:
    """A logarithmic axis from below to above everything that is shown."""
    shown = [c.speedup, 1.0, *(v for v in (c.low, c.high) if v is not None)]
    low, high = min(0.5, min(shown) / 1.1), max(4.0, max(shown) * 1.1)

    def at(value: float) -> str:
        return f"{20 + (WIDTH - 40) * math.log(value / low) / math.log(high / low):.1f}"

    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16) if low <= t <= high]
    lines = Markup().join(
        Markup('<line x1="{0}" x2="{0}" y1="4" y2="28" stroke="var(--{1})"/><text x="{0}" y="43" text-anchor="middle" '
               'fill="var(--ink-3)" font-size="12">{2:g}x</text>').format(at(t), "ink-3" if t == 1 else "line-2", t)
        for t in ticks
    )  # fmt: skip
    whisker = Markup()
    if c.low is not None:
        whisker = Markup(
            '<line x1="{}" x2="{}" y1="16" y2="16" stroke="var(--accept)" stroke-width="6" stroke-linecap="round"/>'
        ).format(at(c.low), at(c.high))
    dot = Markup('<circle cx="{}" cy="16" r="6" fill="var(--paper)" stroke="var(--ink)" stroke-width="2.5"/>')
    return Markup(
        '<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="Speed-up on a logarithmic scale">{}{}{}</svg>'
    ).format(WIDTH, HEIGHT, lines, whisker, dot.format(at(c.speedup)))
