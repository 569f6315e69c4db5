"""Masks of a whole batch against the pass that they hide behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playground.engine.cost import Priced
from playground.engine.trace import step

MOST = 8192  # the largest batch that is looked at
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
DRAFTS = (0, 1, 3, 7)  # draft lengths


@dataclass(frozen=True)
class AtBatch:
    """Milliseconds of one pass over ``batch`` requests, and of all of its masks: by the mean fill, and by its p99."""

    batch: int
    pass_ms: float
    mean_ms: float
    p99_ms: float


@step
@dataclass(frozen=True)
class MaskLoad:
    """``us_mean`` and ``us_p99`` of one fill, measured over ``num_fills``, times ``slowdown``. ``rows`` is draft length
    plus one. ``hidden_until``: (draft length, largest batch up to which the masks hide, by the mean and by the p99;
    ``None``: up to ``MOST`` they always do)."""

    us_mean: float
    us_p99: float
    num_fills: int
    slowdown: float
    rows: int
    points: tuple[AtBatch, ...]
    hidden_until: tuple[tuple[int, int | None, int | None], ...]


def mask_load(
    mean_us: float, fills_us: Sequence[float], served: Priced, k: int, context: float, slowdown: float = 1.0
) -> MaskLoad:
    """Price measured fills: ``batch`` times k + 1 masks against the pass that verifies k drafts.

    ``mean_us`` is their mean, without what interrupted single ones; the p99 is over all.
    """
    mean = slowdown * mean_us
    p99 = max(mean, slowdown * float(np.percentile(fills_us, 99)))
    rows = k + 1
    points = tuple(
        AtBatch(
            batch,
            1e3 * float(served.time(batch, rows, context).total_s),
            mean * batch * rows / 1e3,
            p99 * batch * rows / 1e3,
        )
        for batch in BATCHES
    )
    until = tuple(
        (draft, hidden_until(served, mean, draft + 1, context), hidden_until(served, p99, draft + 1, context))
        for draft in sorted({*DRAFTS, k})
    )
    return MaskLoad(mean, p99, len(fills_us), slowdown, rows, points, until)


def hidden_until(served: Priced, mask_us: float, rows: int, context: float, most: int = MOST) -> int | None:
    """The largest batch up to which ``rows`` masks a request hide behind the pass; ``None``: up to ``most`` all do."""
    batches = np.arange(1, most + 1, dtype=float)
    shown = 1e-6 * mask_us * rows * batches > served.time(batches, rows, context).total_s
    return int(shown.argmax()) if shown.any() else None
