"""A served model over a day: what each load costs and gains, the peak, and how every assumption moves both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from playground.engine.cost import PROFILES, Priced, StepTime
from playground.engine.drafter_cost import Speculator
from playground.engine.serving import Contender, Grid, grid, most_sequences, speeds, tokens_by_length
from playground.engine.trace import step

MAX_BATCH = 65_536  # looked at when memory bounds nothing
DENSE = 8_192  # batches looked at one by one


@dataclass(frozen=True)
class AtContext:
    """One batch at one context. ``best_k`` and all speeds are ``None`` where it does not fit in memory."""

    context: int
    best_k: int | None
    best_speed: float | None
    fixed_speed: float | None
    binding: str
    plain_tokens_per_s: float | None


@step
@dataclass(frozen=True)
class Load:
    """One batch at every context; the terms are those of the first, of a plain pass and of one with k drafts."""

    batch: int
    plain: StepTime
    wide: StepTime
    draft_s: float
    rows: tuple[AtContext, ...]


@step
@dataclass(frozen=True)
class BestLengths:
    """A map of the best draft length, ``[contexts][batches]``; -1 where nothing fits in memory."""

    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    best_k: tuple[tuple[int, ...], ...]
    speed: tuple[tuple[float | None, ...], ...]
    binding: tuple[tuple[str, ...], ...]


@step
@dataclass(frozen=True)
class Outlook:
    """One set of assumptions: the speed of a fixed k at the smallest load, and the peak tokens/s with and without."""

    name: str
    night_speed: float | None
    peak_plain: float | None
    peak_fixed: float | None
    peak_best: float | None

    @property
    def evening_change(self) -> float | None:
        """What the fixed k does to the peak, as a share of it."""
        return self.peak_fixed / self.peak_plain - 1 if self.peak_plain and self.peak_fixed else None


def loads(
    served: Priced, drafter: Speculator, alpha: float, contexts: Sequence[int], batches: Sequence[int],
    max_k: int, fixed_k: int,
) -> Iterator[Load]:  # fmt: skip
    """Every batch in turn."""
    table = grid(served, drafter, alpha, contexts, batches, max_k)
    best = table.best_k
    for j, batch in enumerate(batches):
        yield Load(
            batch=batch,
            plain=served.time(batch, 1, contexts[0]),
            wide=served.time(batch, fixed_k + 1, contexts[0]),
            draft_s=float(drafter.seconds(served, batch, fixed_k, contexts[0])),
            rows=tuple(_at(table, best, i, j, fixed_k) for i in range(len(contexts))),
        )


def _at(table: Grid, best: np.ndarray, i: int, j: int, fixed_k: int) -> AtContext:
    k = int(best[i, j])
    fixed = float(table.speed[i, j, fixed_k])
    return AtContext(
        context=table.contexts[i],
        best_k=None if k < 0 else k,
        best_speed=None if k < 0 else float(table.speed[i, j, k]),
        fixed_speed=None if np.isnan(fixed) else fixed,
        binding=str(table.binding[i, j]),
        plain_tokens_per_s=None if k < 0 else table.batches[j] / float(table.plain_s[i, j]),
    )


def best_lengths(
    served: Priced, drafter: Speculator, alpha: float, contexts: Sequence[int], batches: Sequence[int],
    max_k: int, size: int = 40,
) -> BestLengths:  # fmt: skip
    """The map between the smallest and the largest context and batch, ``size`` of each at most."""
    c, b = spread(max(1, min(contexts)), max(contexts), size), spread(min(batches), max(batches), size)
    table = grid(served, drafter, alpha, c, b, max_k)
    best = table.best_k
    speed = np.take_along_axis(table.speed, np.maximum(best, 0)[..., None], -1)[..., 0]
    return BestLengths(
        contexts=c,
        batches=b,
        best_k=tuple(tuple(map(int, row)) for row in best),
        speed=tuple(tuple(None if np.isnan(x) else round(float(x), 4) for x in row) for row in speed),
        binding=tuple(tuple(map(str, row)) for row in table.binding),
    )


def spread(low: int, high: int, size: int) -> tuple[int, ...]:
    """Different whole numbers from ``low`` to ``high``, evenly spaced on a logarithmic scale.

    >>> spread(1, 100, 3), spread(1, 4, 40), spread(7, 7, 5)
    ((1, 10, 100), (1, 2, 3, 4), (7,))
    """
    return tuple(int(x) for x in np.unique(np.geomspace(low, max(low, high), size).round().astype(int)))


def outlook(
    name: str, served: Priced, drafter: Speculator, alpha: float, context: int, night: int, max_k: int, fixed_k: int
) -> Outlook:
    """Speed at the batch ``night``, and the peak over every batch that fits, at one context."""
    tokens = tokens_by_length(alpha, max(max_k, fixed_k))
    fixed, best = (Contender("", drafter, tokens, k) for k in (fixed_k, None))
    bound = most_sequences(served, context)
    last = MAX_BATCH if bound is None else min(bound, MAX_BATCH)
    if last < 1:
        return Outlook(name, None, None, None, None)
    batches = np.array(sorted({*range(1, min(last, DENSE) + 1), *spread(1, last, 400)}), float)
    plain = batches / served.time(batches, 1, context).total_s
    with_drafter = most_sequences(served, context, drafter)
    fits = np.full(len(batches), True) if with_drafter is None else batches <= with_drafter
    fast = np.where(fits, plain * speeds(served, fixed, batches, context), 0.0)
    chosen = np.maximum(plain, np.where(fits, plain * speeds(served, best, batches, context), 0.0))
    is_in = bool(night <= last and fits[0] and (with_drafter is None or night <= with_drafter))
    return Outlook(
        name,
        float(speeds(served, fixed, float(night), context)) if is_in else None,
        float(plain.max()),
        float(fast.max()) or None,
        float(chosen.max()),
    )


def assumptions(
    served: Priced, drafter: Speculator, alpha: float, context: int, night: int, max_k: int, fixed_k: int
) -> Iterator[Outlook]:
    """The outlook as set, then with one assumption changed at a time."""
    sizes = (night, max_k, fixed_k)
    yield outlook("as set", served, drafter, alpha, context, *sizes)
    for name, profile in PROFILES.items():
        if served.profile.name not in (name, "this_machine"):
            yield outlook(f"profile {name}", replace(served, profile=profile), drafter, alpha, context, *sizes)
    for other in (context * 4, context // 4):
        if other >= 1:
            yield outlook(f"context {other:,}", served, drafter, alpha, other, *sizes)
    for other in (alpha - 0.1, alpha + 0.1):
        if 0 <= other <= 1:
            yield outlook(f"α {other:.2f}", served, drafter, other, context, *sizes)
    yield outlook("a free drafter", served, Speculator("free"), alpha, context, *sizes)
    if served.weight_bytes > 1:
        yield outlook("weights of one byte", replace(served, weight_bytes=1.0), drafter, alpha, context, *sizes)
    if served.kv_bytes > 1:
        yield outlook("KV of one byte", replace(served, kv_bytes=1.0), drafter, alpha, context, *sizes)
    faster = replace(served.hardware, bandwidth=1.5 * served.hardware.bandwidth)
    yield outlook("bandwidth × 1.5", replace(served, hardware=faster), drafter, alpha, context, *sizes)
