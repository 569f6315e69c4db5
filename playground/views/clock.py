"""Lanes on one clock: what each spent its milliseconds on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from playground.engine.trace import Lane
from playground.views.html import join

WIDTH = 1000  # units of the drawing
KEYS = {"draft": "draft", "verify-ms": "verify", "other": "other", "plain-ms": "plain pass"}


@dataclass(frozen=True)
class Segment:
    """``kind`` is one of ``KEYS``; both times in ms."""

    kind: str
    start: float
    ms: float


@dataclass(frozen=True)
class ClockLane:
    """One row of the clock: its name, its segments, and a word at its end (tokens so far, say)."""

    name: str
    segments: tuple[Segment, ...]
    end: str = ""


def lane(run: Lane, until_ms: float | None = None, is_plain: bool = False) -> ClockLane:
    """A lane of passes up to ``until_ms`` of its own clock, with the tokens it had put out by then."""
    until = float("inf") if until_ms is None else until_ms
    segments, tokens = [], 0
    for step in run.steps:
        if step.started_ms >= until:
            break
        at = step.started_ms
        parts = (
            (("plain-ms", step.ended_ms - at),)
            if is_plain
            else (("draft", step.draft_ms), ("verify-ms", step.verify_ms), ("other", step.other_ms))
        )
        for kind, ms in parts:
            segments.append(Segment(kind, at, min(ms, until - at)))
            at += ms
            if at >= until:
                break
        if step.ended_ms <= until:
            tokens += len(step.outputs)
    return ClockLane(run.name, tuple(segments), f"{tokens:,} tok")


def nice(ms: float) -> float:
    """The next 1, 2 or 5 times a power of ten at or above ``ms``: a scale that stays put while a run grows.

    >>> nice(130), nice(500), nice(501)
    (200.0, 500.0, 1000.0)
    """
    scale = 1.0
    while scale * 10 < ms:
        scale *= 10
    return next(scale * step for step in (1, 2, 5, 10) if scale * step >= ms)


def clock(lanes: Sequence[ClockLane]) -> Markup:
    """All lanes on one scale of milliseconds."""
    end = nice(max((s.start + s.ms for run in lanes for s in run.segments), default=1.0))
    rows = [Markup("<span>{}</span>{}<b>{}</b>").format(run.name, _bar(run.segments, end), run.end) for run in lanes]
    axis = Markup('<span class="axis"><span>0</span><span>{} ms</span></span>').format(f"{end:,.0f}")
    return Markup('<div class="clock">{}{}</div>').format(join(rows), axis)


def keys(kinds: Sequence[str] = tuple(KEYS)) -> Markup:
    """The legend of the segments."""
    return join([Markup('<span class="key {}"></span>{}').format(kind, KEYS[kind]) for kind in kinds])


def _bar(segments: Sequence[Segment], end: float) -> Markup:
    paths: dict[str, list[str]] = {}
    for s in segments:
        x, w = WIDTH * s.start / end, WIDTH * s.ms / end
        if w >= 0.05:
            gap = 1.0 if w > 4 else 0.0  # a hairline between passes
            paths.setdefault(s.kind, []).append(f"M{x:.1f} 0h{w - gap:.1f}v9h-{w - gap:.1f}z")
    drawn = join([Markup('<path class="{}" d="{}"/>').format(kind, "".join(d)) for kind, d in paths.items()])
    return Markup('<svg viewBox="0 0 {} 9" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(WIDTH, drawn)
