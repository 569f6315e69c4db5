"""Windows between scrapes: what was counted in each, and which must be rejected whole because a counter was reset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from playground.engine.counters import Counts, Series, Snapshot, counts_of, total
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


def between(before: Snapshot, after: Snapshot, index: int) -> Window:
    """The window ``index`` between two scrapes of the same servers; snapshots are numbered from 1 in what it says."""
    names = f"snapshot {index + 1}", f"snapshot {index + 2}"
    keys = sorted({*before.series, *after.series}, key=str)
    deltas = {key: after.series.get(key, 0) - before.series.get(key, 0) for key in keys}
    patched = {key: delta if delta >= 0 else after.series.get(key, 0) for key, delta in deltas.items()}
    gauged = {engine for engine, _, _ in after.gauges}
    engines = sorted(before.engines | after.engines)
    counted = tuple(EngineCounts(name, counts_of(deltas, name, name in gauged)) for name in engines)
    reasons = [*_damage(before, after, names), *_restarts(before, after), *_falls(before, after, names)]
    reasons = reasons or _contradictions(counted)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    notes = [f"{name[0].upper()}{name[1:]}: {note}" for name, each in zip(names, (before, after)) for note in each.notes]
    return Window(
        index=index,
        reason=reasons[0] + more if reasons else None,
        engines=counted,
        increase=tuple(EngineCounts(name, counts_of(patched, name, name in gauged)) for name in engines),
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
    """Counters that fell, that went away, and engines of which nobody knows when they began to count."""
    said = [
        f"{key} fell from {old:.10g} to {after.series[key]:.10g}: the counter was reset"
        for key, old in before.series.items()
        if key in after.series and after.series[key] < old
    ]
    said += [f"{key} is in {names[0]} and not in {names[1]}" for key in before.series if key not in after.series]
    if not (before.starts and before.starts == after.starts):  # else the same process has begun a new series, at 0
        new = sorted(after.engines - before.engines)
        said += [f"{name} is new in {names[1]}: nobody knows when it began to count" for name in new]
    return said


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
    for each in counted:
        c = each.counts
        if c.accepted and not c.has_positions:
            what = f"sum to {sum(c.per_position):.10g} of {c.accepted:.10g} accepted tokens" if c.per_position else "are"
            notes.append(f"{each.engine}: the positions {what}{'' if c.per_position else ' not given'}.")
        if c.drafts and c.first_tokens is None and c.finished is None and c.plain_passes is None:
            notes.append(f"{each.engine}: no counter of requests; their first tokens are taken for none.")
    return notes


def windows(snapshots: Sequence[Snapshot]) -> list[Window]:
    """Every window of a series of scrapes; of one scrape, everything since the start."""
    if len(snapshots) == 1:
        return [since_start(snapshots[0])]
    return [between(before, after, i) for i, (before, after) in enumerate(zip(snapshots, snapshots[1:], strict=False))]


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
    pairs = zip(values, values[1:], strict=False)
    return sum(new - old if new >= old else new for old, new in pairs)


__all__ = ["EngineCounts", "Series", "Window", "between", "by_engine", "increase", "since_start", "windows"]
