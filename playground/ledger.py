"""The ledger: what every run of this process has counted, under vLLM's names, for ``/metrics``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from playground.engine.trace import Lane, Pass, Trace

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL, MAX_ENGINES = 60, 200  # characters of a label value; lanes told apart before the rest is counted together
COUNTERS = {
    "vllm:spec_decode_num_drafts": "Drafts that the target has judged.",
    "vllm:spec_decode_num_draft_tokens": "Tokens in these drafts.",
    "vllm:spec_decode_num_accepted_tokens": "Accepted tokens, before a stop rule cuts the output.",
    "vllm:generation_tokens": "Tokens put out, after the cut.",
    "vllm:prompt_tokens": "Tokens of the prompts.",
    "vllm:request_success": "Outputs that a stop rule, the limit or a grammar has ended.",
    "playground:plain_passes": "Target passes without a draft.",
    "playground:discarded_tokens": "Tokens thrown away past the stop.",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class Ledger:
    """Counts the passes of running traces. A lane is an engine of its own; the target gives ``model_name``.

    ``vllm:request_success`` counts under ``finished_reason``. Safe to read while runs go on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, str], Counter[Any]] = {}
        self._started = time.time()

    def watch(self) -> Run:
        """A run that is about to begin; tell it every trace."""
        return Run(self)

    def count(self, model: str, lane: Lane, steps: tuple[Pass, ...], *, is_new: bool) -> None:
        """Add ``steps`` of a lane; ``is_new``: they are its first, so the prompt counts too."""
        with self._lock:
            counts = self._of(model, lane.name)
            counts["vllm:prompt_tokens"] += len(lane.prompt) if is_new else 0
            for step in steps:
                counts["vllm:generation_tokens"] += len(step.outputs)
                counts["playground:discarded_tokens"] += step.discarded
                counts["playground:plain_passes"] += not step.nodes
                counts["vllm:spec_decode_num_drafts"] += bool(step.nodes)
                counts["vllm:spec_decode_num_draft_tokens"] += len(step.nodes)
                counts["vllm:spec_decode_num_accepted_tokens"] += step.num_verified
                counts.update(range(step.num_verified))
                if step.finish:
                    counts[("vllm:request_success", step.finish)] += 1

    def _of(self, model: str, lane: str) -> Counter[Any]:
        model = Path(model).name if Path(model).is_absolute() else model  # a folder's place is nobody's business
        key = _label(model), _label(lane)
        if key not in self._counts and len(self._counts) >= MAX_ENGINES:
            key = "other", "other"
        return self._counts.setdefault(key, Counter())

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment, for a Prometheus registry."""
        with self._lock:
            copies = {key: Counter(counts) for key, counts in self._counts.items()}
        names = ["model_name", "engine"]
        for name, says in COUNTERS.items():
            reasons = name == "vllm:request_success"
            family = CounterMetricFamily(name, says, labels=[*names, "finished_reason"] if reasons else names)
            for key, counts in copies.items():
                ended = [(part[1], n) for part, n in counts.items() if isinstance(part, tuple)]
                for labels, value in [([r], n) for r, n in ended or [("stop", 0)]] if reasons else [([], counts[name])]:
                    family.add_metric([*key, *labels], value)
            yield family
        places = CounterMetricFamily(PER_POSITION, "Accepted tokens per draft position.", labels=[*names, "position"])
        for key, counts in copies.items():
            for place in sorted(part for part in counts if isinstance(part, int)):
                places.add_metric([*key, str(place)], counts[place])
        yield places
        yield GaugeMetricFamily("process_start_time_seconds", "When this app began to count.", value=self._started)
        yield GaugeMetricFamily("playground:clock_seconds", "The time of this scrape.", value=time.time())

    def exposition(self) -> str:
        """The metrics as Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()


def _label(text: str) -> str:
    return text[:MAX_LABEL].encode("utf-8", "backslashreplace").decode()


class Run:
    """How far the lanes of one run have been counted."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._seen: dict[str, int] = {}

    def tell(self, trace: Trace) -> None:
        """Count what ``trace`` has more than the traces before it."""
        model = str(trace.provenance.get("target", "unknown"))
        for lane in trace.lanes:
            seen = self._seen.get(lane.name, 0)
            new = tuple(step for step in lane.steps[seen:] if isinstance(step, Pass))
            self._seen[lane.name] = max(seen, len(lane.steps))
            if new:
                self.ledger.count(model, lane, new, is_new=not seen)


ledger = Ledger()  # of this process
