"""Windows between scrapes: what was counted in each, and which must be rejected whole because a counter was reset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from playground.engine.counters import Counts, counts_by_engine, total
from playground.engine.scrape import Series, Snapshot
from playground.engine.trace import step


@dataclass(frozen=True)
class EngineCounts:
    """What one engine counted in a window."""

    engine: str
    counts: Counts


@step
@dataclass(frozen=True)
class Window:
    """What was counted between two scrapes; with a ``reason``, it counts for nothing.

    ``increase`` is what PromQL's function of that name makes of the same samples, before it extrapolates: a counter
    that fell is taken to have started again from zero. ``gauges`` are (engine, name, value) at the end of the window.
    """

    index: int
    reason: str | None
    engines: tuple[EngineCounts, ...]
    increase: tuple[EngineCounts, ...]
    seconds: float | None = None
    gauges: tuple[tuple[str, str, float], ...] = ()
    notes: tuple[str, ...] = ()


def since_start(snapshot: Snapshot) -> Window:
    """The window that one scrape alone makes: everything since the counters were 0."""
    window = between(replace(snapshot, series=dict.fromkeys(snapshot.series, 0.0), notes=(), at=None), snapshot, 0)
    return replace(window, notes=("One scrape alone: everything since the counters began.", *window.notes))


def between(before: Snapshot, after: Snapshot, index: int, seen: Set[Series] = frozenset()) -> Window:
    """The window ``index`` between two scrapes of the same servers; ``seen`` are the series of all scrapes before.

    Snapshots are numbered from 1 in what it says.
    """
    names = f"snapshot {index + 1}", f"snapshot {index + 2}"
    keys = {*before.series, *after.series}
    deltas = {key: after.series.get(key, 0) - before.series.get(key, 0) for key in keys}
    patched = {key: increase([before.series[key], after.series[key]]) for key in keys if _is_in(key, before, after)}
    gauged = {engine for engine, _, _ in after.gauges}
    counted = tuple(EngineCounts(*each) for each in counts_by_engine(deltas, gauged).items())
    reasons = [*_damage(before, after, names), *_restarts(before, after), *_falls(before, after, names)]
    reasons = reasons or _beginnings(before, after, names[1], seen) or _contradictions(counted)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    notes = [f"S{name[1:]}: {note}" for name, each in zip(names, (before, after), strict=True) for note in each.notes]
    return Window(
        index=index,
        reason=reasons[0] + more if reasons else None,
        engines=counted,
        increase=tuple(EngineCounts(*each) for each in counts_by_engine(patched, gauged).items()),
        seconds=after.at - before.at if None not in (before.at, after.at) and after.at > before.at else None,
        gauges=after.gauges,
        notes=(*notes, *_gaps(counted)),
    )


def _damage(before: Snapshot, after: Snapshot, names: tuple[str, str]) -> list[str]:
    return [f"{what} in {name}" for name, each in zip(names, (before, after), strict=True) for what in each.bad]


def _restarts(before: Snapshot, after: Snapshot) -> list[str]:
    """A process that started again may have counted past its old values: only its start time tells."""
    old, new = before.starts or {}, after.starts or {}
    return [
        f"the process started again: its start time went from {old[key]:.10g} to {new[key]:.10g}"
        for key in old
        if key in new and old[key] != new[key]
    ]


def _falls(before: Snapshot, after: Snapshot, names: tuple[str, str]) -> list[str]:
    """Counters that fell, and those that went away."""
    fell = [key for key in before.series if _is_in(key, before, after) and after.series[key] < before.series[key]]
    gone = [key for key in before.series if key not in after.series]
    return [
        f"{key} fell from {before.series[key]:.10g} to {after.series[key]:.10g}: the counter was reset" for key in fell
    ] + [f"{key} is in {names[0]} and not in {names[1]}" for key in gone]


def _beginnings(before: Snapshot, after: Snapshot, name: str, seen: Set[Series]) -> list[str]:
    """Series that are new, where nobody knows whether they began at 0 within the window.

    They did when the same process, by its start time, had not shown them before; and a position did when those that
    were shown already summed to the accepted tokens.
    """
    is_same = bool(before.starts) and before.starts == after.starts and not before.notes
    said, counts = [], counts_by_engine(before.series)
    for key in after.series:
        if key in before.series or (is_same and key not in seen):
            continue
        known = counts.get(key.engine, Counts())
        if key.field != "per_position" or not known.has_positions:
            said.append(f"{key} is new in {name}: nobody knows when it began to count")
    return said


def _is_in(key: Series, before: Snapshot, after: Snapshot) -> bool:
    return key in before.series and key in after.series


def _contradictions(counted: Iterable[EngineCounts]) -> list[str]:
    return [
        f"{each.engine} accepted {c.accepted:.10g} of {c.draft_tokens:.10g} draft tokens: these counters do not belong "
        "together"
        for each in counted
        if (c := each.counts) and None not in (c.accepted, c.draft_tokens) and c.accepted > c.draft_tokens
    ]


def _gaps(counted: Iterable[EngineCounts]) -> list[str]:
    """What the figures leave out for want of a series."""
    notes = []
    for engine, c in ((each.engine, each.counts) for each in counted):
        if c.accepted and not c.per_position:
            notes.append(f"{engine}: accepted tokens per position are not given.")
        elif c.accepted and not c.has_positions:
            sums = f"{sum(c.per_position):.10g}, not to the {c.accepted:.10g} accepted tokens"
            notes.append(f"{engine}: the positions sum to {sums}; they are left out.")
        if c.drafts and c.first_tokens is None and c.finished is None and c.plain_passes is None:
            notes.append(f"{engine}: no counter of requests, so their first tokens are taken for none.")
    return notes


def windows(snapshots: Sequence[Snapshot]) -> list[Window]:
    """Every window of a series of scrapes; of one scrape, everything since the start."""
    if len(snapshots) == 1:
        return [since_start(snapshots[0])]
    found, seen = [], set()
    for i, (before, after) in enumerate(pairwise(snapshots)):
        found.append(between(before, after, i, frozenset(seen)))
        seen |= {*before.series}
    return found


def by_engine(series: Iterable[Window], *, patched: bool = False) -> dict[str, Counts]:
    """The sums of each engine over the windows that count; ``patched``: PromQL's increase over all of them."""
    found: dict[str, list[Counts]] = {}
    for window in series:
        if window.reason is None or patched:
            for each in window.increase if patched else window.engines:
                found.setdefault(each.engine, []).append(each.counts)
    return {engine: total(counts) for engine, counts in found.items()}


def increase(values: Sequence[float]) -> float:
    """PromQL's increase of one counter, before it extrapolates to the ends of its range.

    >>> increase([100, 120, 5, 30])
    50
    """
    return sum(new - old if new >= old else new for old, new in pairwise(values))
