"""One scrape of a serving engine in Prometheus' text format: vLLM's counters, SGLang's counters and gauges, our own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

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
KNOWN = frozenset([*FIELDS, *GAUGES, START, CLOCK])
LARGEST = 1e18  # past it, a double no longer counts one by one
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


def is_known(line: str) -> bool:
    """Whether a line is a sample of a series of interest."""
    match = NAME.match(line)
    return bool(match) and plain_name(match[0]) in KNOWN


def relevant(text: str) -> str:
    """The lines of interest of scrapes, and those between scrapes: a server shows hundreds of others.

    >>> relevant('# HELP x y\\nx_bucket{le="1"} 3\\nvllm:generation_tokens_total 5\\n---\\n')
    'vllm:generation_tokens_total 5\\n---'
    """
    return "\n".join(line for line in text.splitlines() if is_known(line.strip()) or line.strip() == "---")


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
        if not is_known(line):
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
        elif not abs(sample.value) < LARGEST or (sample.value < 0 and name in FIELDS):  # NaN is not less either
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
