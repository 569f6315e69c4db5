"""Counters of a serving engine: read from Prometheus text, and what they leave open about the steps behind them.

vLLM counts drafts, draft tokens and accepted tokens before a stop rule cuts the output, and generation tokens after it.
Its first token of a request comes from the prompt's pass, without a draft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from playground.engine.metrics import ratio

# Series without ``_total``, and the field of ``Counts`` that they are summed into.
FIELDS: Mapping[str, str] = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "per_position",
    "vllm:generation_tokens": "generation",
    "vllm:prompt_tokens": "prompt",
    "vllm:time_to_first_token_seconds_count": "first_tokens",
    "vllm:request_success": "finished",
    "sglang:generation_tokens": "generation",
    "sglang:prompt_tokens": "prompt",
    "sglang:num_requests": "finished",
    "sglang:spec_verify_calls": "drafts",
    "playground:plain_passes": "plain_passes",
}
GAUGES: Mapping[str, str] = {
    "sglang:spec_accept_length": "accepted + 1 per verification, mean of the last logging interval",
    "sglang:spec_accept_rate": "accepted / proposed in the last logging interval; older versions counted the bonus too",
    "sglang:spec_num_steps": "draft steps in use",
    "sglang:spec_num_draft_tokens": "draft tokens per verification in use",
}
START, CLOCK = "process_start_time_seconds", "playground:clock_seconds"
WHO = ("job", "namespace", "pod", "instance", "model_name", "engine", "dp_rank")  # labels that tell engines apart
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SEPARATOR = re.compile(r"^[ \t]*---[ \t]*\r?$", re.MULTILINE)


class Series(NamedTuple):
    """One counter of one engine; ``position`` is ``None`` but for accepted tokens per position."""

    engine: str
    field: str
    position: int | None = None

    def __str__(self) -> str:
        place = f" at position {self.position + 1}" if self.position is not None else ""
        return f"{self.field.replace('_', ' ')}{place} of {self.engine}"


@dataclass(frozen=True)
class Snapshot:
    """One scrape. ``starts`` are process start times, ``bad`` what no counter can be, ``notes`` what was left out."""

    series: Mapping[Series, float]
    gauges: tuple[tuple[str, str, float], ...] = ()  # (engine, name, value)
    starts: Mapping[str, float] | None = None
    at: float | None = None  # seconds
    bad: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def engines(self) -> set[str]:
        return {one.engine for one in self.series}


def split(text: str) -> list[str]:
    """The texts between lines ``---``, without empty ones.

    >>> split("a 1\\n---\\nb 2\\n---\\n")
    ['a 1\\n', '\\nb 2\\n']
    """
    return [part for part in SEPARATOR.split(text) if part.strip()]


def plain_name(name: str) -> str:
    """A series' name without ``_total``, with the colon that some exporters replace.

    >>> plain_name("vllm_spec_decode_num_drafts_total")
    'vllm:spec_decode_num_drafts'
    """
    return re.sub("^(vllm|sglang|playground)_", r"\1:", name).removesuffix("_total")


def parse(text: str) -> Snapshot:
    """One scrape in Prometheus' text format; series of no interest here are skipped, lines that are cut off are noted.

    Raises ``ValueError`` when a series stands twice, as it does when two scrapes were pasted without a line between.
    """
    found: dict[tuple[str, str], Any] = {}
    unread: list[str] = []
    last = ""
    for line in text.splitlines():
        line = line.strip()
        last = line or last
        match = NAME.match(line)
        known = match and plain_name(match[0]) in {*FIELDS, *GAUGES, START, CLOCK}
        if not known:
            continue
        try:
            sample = next(iter(text_string_to_metric_families(line + "\n"))).samples[0]
        except (ValueError, StopIteration, IndexError):
            unread.append(line)
            continue
        key = sample.name, str(sorted(sample.labels.items()))
        if key in found:
            raise ValueError(f"{sample.name} stands twice in one scrape; put a line --- between two scrapes.")
        found[key] = sample
    old = {(name.removesuffix("_total"), labels) for name, labels in found if name.endswith("_total")}
    kept = [sample for key, sample in found.items() if key not in old]  # where both spellings stand, one counts
    return _sort(kept, _unread_notes(unread, last))


def _unread_notes(unread: list[str], last: str) -> tuple[str, ...]:
    if not unread:
        return ()
    what = f"{len(unread)} line{'s' if len(unread) > 1 else ''} could not be read, such as {unread[-1][:60]!r}"
    return (f"The text ends in the middle of a line; {what}." if unread[-1] == last else what + ".",)


def _sort(samples: list[Any], notes: tuple[str, ...]) -> Snapshot:
    series: dict[Series, float] = {}
    gauges, starts, bad, times = [], {}, [], [s.timestamp for s in samples if s.timestamp is not None]
    for sample in samples:
        name, engine = plain_name(sample.name), _engine(sample.labels)
        if name in (START, CLOCK):
            times += [sample.value] if name == CLOCK else []
            starts |= {str(sorted(sample.labels.items())): sample.value} if name == START else {}
        elif not math.isfinite(sample.value) or (sample.value < 0 and name in FIELDS):
            bad.append(f"{sample.name} of {engine} is {sample.value}")
        elif name in GAUGES:
            gauges.append((engine, name, float(sample.value)))
        else:
            field = FIELDS[name]
            place = sample.labels.get("position", "") if field == "per_position" else None
            if place is not None and not (place.isascii() and place.isdigit() and len(place) < 4):
                bad.append(f"{sample.name} of {engine} has the position {place[:20]!r}")
                continue
            key = Series(engine, field, None if place is None else int(place))
            series[key] = series.get(key, 0) + sample.value
    return Snapshot(series, tuple(gauges), starts, max(times, default=None), tuple(bad), notes)


def _engine(labels: Mapping[str, str]) -> str:
    parts = [labels[name] if name == "model_name" else f"{name} {labels[name]}" for name in WHO if labels.get(name)]
    return ", ".join(parts) or "the engine"


# --- Counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """What one engine counted; ``None`` where it does not say.

    ``plain_passes`` are passes without a draft, the first of a request included where it has none.
    """

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    generation: float | None = None
    prompt: float | None = None
    first_tokens: float | None = None
    finished: float | None = None
    plain_passes: float | None = None
    per_position: tuple[float, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        """Field by field; a sum with an unknown part is unknown."""
        names = [f.name for f in fields(self) if f.name != "per_position"]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        sums = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
        size = max(len(self.per_position), len(other.per_position))
        padded = [(*counts, *[0] * (size - len(counts))) for counts in (self.per_position, other.per_position)]
        return Counts(**sums, per_position=tuple(map(sum, zip(*padded, strict=True))))

    @property
    def has_positions(self) -> bool:
        """Whether the positions are complete: they sum to the accepted tokens."""
        return self.accepted is not None and math.isclose(sum(self.per_position), self.accepted, abs_tol=1e-6)


def counts_of(series: Mapping[Series, float], engine: str, has_gauges: bool = False) -> Counts:
    """The counts of one engine. An engine that shows nothing of speculation does not speculate: it drafted 0."""
    own = {(one.field, one.position): value for one, value in series.items() if one.engine == engine}
    flat = {name: value for (name, position), value in own.items() if position is None}
    places = [position for _, position in own if position is not None]
    per_position = tuple(own.get(("per_position", i), 0) for i in range(max(places, default=-1) + 1))
    counts = Counts(**flat, per_position=per_position)
    if not per_position and not has_gauges and counts.drafts is counts.draft_tokens is counts.accepted is None:
        counts = replace(counts, drafts=0, draft_tokens=0, accepted=0)
    return counts


def total(counts: Iterator[Counts] | list[Counts]) -> Counts:
    """The sum of at least one."""
    return reduce(Counts.__add__, counts)


class Account(NamedTuple):
    """What the counts say of steps and discarded tokens: least and most; ``None`` where they say nothing.

    ``undrafted`` tokens came without a draft (first tokens and plain steps, at the least). Steps are passes after the
    prompt's own.
    """

    undrafted: float | None
    discarded_low: float | None
    discarded_high: float | None
    steps_low: float | None
    steps_high: float | None


def account(c: Counts) -> Account:
    """Solve ``generation = first tokens + plain steps + drafts + accepted - discarded`` as far as it goes.

    Plain steps and discarded tokens are both unknown: only their difference is counted. A request ends once, and throws
    away at most what one draft had accepted; so R requests throw away at most the R longest, sum_i min(R, accepted at
    i). Where plain passes are exported, nothing stays open.

    >>> account(Counts(drafts=4816, accepted=12208, generation=16990, finished=80)).discarded_low
    114
    """
    if c.generation is None or c.drafts is None:
        return Account(None, None, None, None, None)
    first = next((n for n in (c.first_tokens, c.finished) if n is not None), 0)
    if c.accepted is None:
        return Account(first, None, None, c.drafts, None)
    if c.plain_passes is not None:
        discarded, steps = c.plain_passes + c.drafts + c.accepted - c.generation, c.drafts + c.plain_passes
        return Account(c.plain_passes, discarded, discarded, steps, steps)
    balance = c.generation - first - c.drafts - c.accepted  # plain steps - discarded
    ends = next((n for n in (c.finished, c.first_tokens) if n is not None), math.inf)
    most = sum(min(ends, n) for n in c.per_position) if c.has_positions else c.accepted
    low, plain = max(0, -balance), max(0, balance)
    high = max(low, most)
    return Account(first + plain, low, high, c.drafts + plain, c.drafts + balance + high)


def figures(engines: list[Counts]) -> dict[str, Any]:
    """The figures of several engines (or one): sums first, then one division; ``None`` where there is no data."""
    if not engines:
        return figures([Counts()])
    c, accounts = total(engines), [account(each) for each in engines]
    sums = Account(*(None if None in column else sum(column) for column in zip(*accounts, strict=True)))
    per_draft = _ratio(c.accepted, c.drafts)
    reached = (c.drafts, *c.per_position)
    shown = c.per_position if c.has_positions and c.drafts else ()
    emitted = None if sums.undrafted is None else c.generation - sums.undrafted
    return {
        "acceptance_rate": _ratio(c.accepted, c.draft_tokens),
        "mean_acceptance_length": None if per_draft is None else 1 + per_draft,
        "mean_emitted_length": _ratio(emitted, c.drafts),
        "acceptance_per_position": [_ratio(n, c.drafts) for n in shown] or None,
        "conditional_per_position": [_ratio(n, at) for n, at in zip(shown, reached, strict=False)] or None,
        "discarded_tokens": sums.discarded_low,
        "discarded_high": sums.discarded_high,
        "steps_low": sums.steps_low,
        "steps_high": sums.steps_high,
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else ratio(part, whole)
