"""What the lab on counters reports: totals over the windows that count, each window, each engine, the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from playground.engine.counters import Counts, figures, total
from playground.engine.trace import Trace
from playground.engine.windows import Window, by_engine


def steps_of(trace: Trace, name: str) -> Sequence[Any]:
    return next((lane.steps for lane in trace.lanes if lane.name == name), ())


def windows_of(trace: Trace) -> Sequence[Window]:
    return steps_of(trace, "windows")


def summary(trace: Trace) -> dict[str, Any]:
    """Totals over the windows that count, then each window, each engine, the definitions and the comparison."""
    every = windows_of(trace)
    engines, patched = by_engine(every), by_engine(every, patched=True)
    totals = figures(list(engines.values()))
    return {
        **totals,
        "totals": totals,
        "num_windows": len(every),
        "rejected_windows": [{"index": w.index, "reason": w.reason} for w in every if w.reason],
        "counters": counters(engines),
        "windows": [window_summary(each) for each in every],
        "engines": {name: figures([counts]) for name, counts in engines.items()},
        "promql_increase": {**counters(patched), **figures(list(patched.values()))},
        "gauges": [list(each) for each in every[-1].gauges] if every else [],
        "notes": list(dict.fromkeys(note for each in every for note in each.notes)),
        "definitions": {
            d.key: {"trace": d.from_trace, "counters": d.from_counters} for d in steps_of(trace, "definitions")
        },
        "baseline": baseline_summary(trace),
        "source": trace.provenance.get("source"),
    }


def counters(engines: Mapping[str, Counts]) -> dict[str, Any]:
    return asdict(total(engines.values())) if engines else asdict(Counts())


def window_summary(window: Window) -> dict[str, Any]:
    """A rejected window has no figures."""
    counts = [each.counts for each in window.engines]
    found = figures([] if window.reason else counts)
    tokens = total(counts).generation if counts and not window.reason else None
    rate = tokens / window.seconds if tokens is not None and window.seconds else None
    return {"index": window.index, "reason": window.reason, **found, "seconds": window.seconds, "tokens_per_s": rate}


def baseline_summary(trace: Trace) -> dict[str, Any] | None:
    found = steps_of(trace, "comparison")
    if not found:
        return None
    conditions = steps_of(trace, "conditions")
    by_state = {s: [c.name for c in conditions if c.state == s] for s in ("holds", "differs", "missing")}
    is_fair = None if not conditions else len(by_state["holds"]) == len(conditions)
    return {**asdict(found[0]), "is_fair": is_fair, **by_state}
