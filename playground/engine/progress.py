"""Work under way that is not a step: loading, downloading, converting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Work under way before the next step; ``fraction`` in [0, 1], or ``None`` when nobody knows."""

    text: str
    fraction: float | None = None
