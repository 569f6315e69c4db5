"""Acceptance from counters: what a server's metrics say about speculation, and what they leave open."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.engine import baseline as runs
from playground.engine.counter_report import steps_of, summary, window_summary, windows_of
from playground.engine.counters import account
from playground.engine.counters import figures as figures_of
from playground.engine.definitions import Passed, define, read_passes, write_passes
from playground.engine.scrape import parse, relevant, split
from playground.engine.trace import Pass, Trace
from playground.engine.windows import Window, between, by_engine, since_start, windows
from playground.lab import BadInput, Chart, Figure, Frame, Lab, Models, Progress, Question, Update, control
from playground.ledger import ledger
from playground.views import charts, html
from playground.views import counters as view
from playground.views import counters_baseline as compared

MAX_CHARS = 4_000_000  # of scrapes, or of a saved run
MAX_SNAPSHOTS = 121
TICK_S = 0.1
LIVE, PASTED = "this app, now", "pasted text"
ONE, PAIR = "One trace", "With and without speculation"


def passes_of(text: str) -> str:
    """A saved run as the text of its passes, a line per speculating lane; other text as it is."""
    if not text.lstrip().startswith("{"):
        return text
    lanes = [[Passed.of(s) for s in lane.steps if isinstance(s, Pass)] for lane in Trace.from_json(text).lanes]
    found = [lane for lane in lanes if any(each.drafted for each in lane)]
    if not found:
        raise BadInput("This saved run has no pass with a draft.")
    return write_passes(found)


@dataclass(frozen=True)
class Params:
    snapshots: str = control(
        "",
        "Scrapes of /metrics",
        "Two or more, a line --- between them. Empty: this app's own are read.",
        lines=8,
        max_chars=MAX_CHARS,
        from_file=relevant,
    )
    scrapes: int = control(4, "Scrapes of this app", "While runs go on elsewhere.", min=1, max=60, step=1)
    every_s: float = control(1.0, "Seconds between them", min=0.1, max=10, step=0.1)
    passes: str = control(
        "",
        "Passes",
        "drafted/accepted or drafted/accepted/put out, a line per request. A file: a saved run of another lab.",
        lines=3,
        max_chars=MAX_CHARS,
        from_file=passes_of,
        group=ONE,
    )
    baseline_with: str = control("", "Run with speculation", "JSON; see below.", lines=6, group=PAIR)
    baseline_without: str = control("", "Run without", "JSON with the same keys.", lines=6, group=PAIR)

    def __post_init__(self) -> None:
        if bool(self.baseline_with.strip()) != bool(self.baseline_without.strip()):
            given = "baseline_with" if self.baseline_with.strip() else "baseline_without"
            raise BadInput(f"Only {given} is given; a comparison needs both runs.")
        if self.has_baseline:
            self.measured()
        if not self.passes.lstrip().startswith("{"):
            read_passes(self.passes)

    @property
    def has_baseline(self) -> bool:
        return bool(self.baseline_with.strip())

    @property
    def is_live(self) -> bool:
        return not (self.snapshots.strip() or self.has_baseline or self.passes.strip())

    def measured(self) -> tuple[runs.Measured, runs.Measured]:
        texts = {name: getattr(self, name) for name in ("baseline_with", "baseline_without")}
        return tuple(runs.read_run(name, text) for name, text in texts.items())

    def requests(self) -> list[list[Passed]]:
        """The passes of the trace that was typed in, or of every speculating lane of a saved run."""
        return read_passes(passes_of(self.passes))


# --- Run --------------------------------------------------------------------------------------------------------------


def run(params: Params, models: Models) -> Iterator[Update]:
    """The windows, then the definitions, then the comparison; this app's own windows come as they are scraped."""
    requests = params.requests()
    trace = Trace(provenance={"source": LIVE if params.is_live else PASTED}).open("windows")
    if params.is_live:
        trace = yield from watch(trace, params)
    elif params.snapshots.strip():
        trace = with_windows(trace, (yield from read(params.snapshots)))
        yield trace
    found = list(by_engine(windows_of(trace)).values())
    if requests or found:
        trace = trace.open("definitions")
        for definition in define(requests, found):
            trace = trace.add("definitions", definition)
    if params.has_baseline:
        with_, without = params.measured()
        trace = trace.open("conditions").open("comparison").add("comparison", runs.compare(with_, without))
        for condition in runs.conditions(with_, without):
            trace = trace.add("conditions", condition)
    yield trace


def read(text: str) -> Generator[Progress, None, list[Window]]:
    """The windows between pasted scrapes. Raises ``BadInput`` where there is nothing to read."""
    parts, snapshots = split(text), []
    if len(parts) > MAX_SNAPSHOTS:
        raise BadInput(f"There are {len(parts):,} scrapes; at most {MAX_SNAPSHOTS} are read: leave some out.")
    for i, part in enumerate(parts):
        yield Progress(f"Reading scrape {i + 1} of {len(parts)}", i / len(parts))
        snapshots.append(parse(part))
    if not any(each.series or each.gauges or each.bad for each in snapshots):
        raise BadInput("No counter of vLLM, SGLang or this app is in these scrapes; paste the text of /metrics.")
    return windows(snapshots)


def watch(trace: Trace, params: Params) -> Generator[Update, None, Trace]:
    """Scrape this app: once for everything since its start, then window by window; returns the trace."""
    before = parse(ledger.exposition())
    yield (trace := trace.add("windows", since_start(before)))
    for i in range(1, params.scrapes):
        due = time.monotonic() + params.every_s
        while (left := due - time.monotonic()) > 0:
            yield Progress(f"Next scrape in {left:.1f} s", i / params.scrapes)
            time.sleep(min(TICK_S, left))
        after = parse(ledger.exposition())
        yield (trace := trace.add("windows", between(before, after, i)))
        before = after
    return trace


def with_windows(trace: Trace, found: Sequence[Window]) -> Trace:
    return replace(trace, lanes=tuple(replace(lane, steps=tuple(found)) for lane in trace.lanes))


# --- Figures ----------------------------------------------------------------------------------------------------------


def figures(result: Mapping[str, Any]) -> Sequence[Figure]:
    source = "measured" if result["source"] == LIVE else "recorded"
    row = []
    if result["num_windows"]:
        steps = [view.whole(result[key]) for key in ("steps_low", "steps_high")]
        rejected = len(result["rejected_windows"])
        row = [
            Figure(html.number(result["acceptance_rate"], 3), "acceptance rate", source),
            Figure(html.number(result["mean_acceptance_length"], 3), "mean length by the counters", source),
            Figure(html.number(result["mean_emitted_length"], 3), "mean length as emitted", source),
            Figure(view.whole(result["discarded_tokens"]), "tokens discarded, at least", source),
            Figure(view.said_steps(*steps), "steps", source),
            Figure(f"{rejected} of {result['num_windows']}", "windows rejected", source),
        ]
    compared_ = result["baseline"]
    if compared_:
        row.append(Figure(f"{html.number(compared_['speedup'], 2)}x", "speed-up", "recorded"))
        holds, count = len(compared_["holds"]), sum(len(compared_[s]) for s in ("holds", "differs", "missing"))
        row.append(Figure(f"{holds} of {count}", "conditions hold", "recorded"))
    if not row:
        row = [
            Figure(html.number(result["definitions"].get(key, {}).get("trace"), 3), name, "recorded")
            for key, name in (("rate", "draft acceptance rate"), ("mean_length", "mean acceptance length"))
        ]
    return row


# --- Frames -----------------------------------------------------------------------------------------------------------


def pages(trace: Trace) -> list[tuple[str, int]]:
    """What each frame shows: each window, the definitions, all windows together, the comparison."""
    found = [("window", i) for i in range(len(windows_of(trace)))]
    if steps_of(trace, "definitions"):
        found += [("definitions", 0), *([("total", 0)] if found else [])]
    return [*found, ("baseline", 0)] if steps_of(trace, "conditions") else found


def frame(trace: Trace, index: int) -> Frame:
    kind, number = pages(trace)[index]
    draw = {"window": window_frame, "total": total_frame, "definitions": definitions_frame, "baseline": baseline_frame}
    return draw[kind](trace, number)


def window_frame(trace: Trace, index: int) -> Frame:
    every = windows_of(trace)
    window = every[index]
    engines = {each.engine: each.counts for each in window.engines}
    status = f"Window {index + 1} of {len(every)}"
    if window.reason:
        says = f"Rejected whole: {window.reason}. Numerator and denominator both count for nothing."
        verdict = html.note(says, "bad")
        status += f" is rejected whole: {window.reason}."
    else:
        verdict = None
        status += f": {view.told(figures_of(list(engines.values())))}."
    patched = {each.engine: each.counts for each in window.increase}
    body = html.frame(
        view.strip(every, index),
        verdict,
        *view.blocks(engines, patched, bool(window.reason)),
        view.gauges(window.gauges),
        *(html.note(each) for each in window.notes),
    )
    return Frame(status, body)


def total_frame(trace: Trace, _: int) -> Frame:
    every = windows_of(trace)
    engines, patched = by_engine(every), by_engine(every, patched=True)
    rejected = [f"Window {w.index + 1}: {w.reason}." for w in every if w.reason]
    body = html.frame(
        view.strip(every, None),
        *view.blocks(engines, patched, False),
        view.gauges(every[-1].gauges),
        *(html.note(each, "bad") for each in rejected[:10]),
    )
    count = f"{len(every) - len(rejected)} of {html.count(len(every), 'window')} together"
    return Frame(f"{count}: {view.told(figures_of(list(engines.values())))}.", body)


def definitions_frame(trace: Trace, _: int) -> Frame:
    found = steps_of(trace, "definitions")
    has_trace = any(d.from_trace is not None for d in found)
    table = view.definitions(found, has_trace, bool(windows_of(trace)))
    values = [d.from_trace if has_trace else d.from_counters for d in found]
    known = [value for value in values if value is not None]
    spread = f" from {html.number(min(known), 3)} to {html.number(max(known), 3)}" if known else ""
    return Frame(f"The same drafts, {len(known)} figures called acceptance{spread}.", html.frame(table))


def baseline_frame(trace: Trace, _: int) -> Frame:
    comparison, conditions = steps_of(trace, "comparison")[0], steps_of(trace, "conditions")
    open_ = [c.name for c in conditions if c.state != "holds"]
    told_ = f"{html.number(comparison.speedup, 2)}x" if comparison.speedup is not None else "No speed-up can be told"
    status = f"{told_}; {', '.join(open_)} {'differ or are' if len(open_) > 1 else 'differs or is'} not given."
    body = html.frame(compared.speedup(comparison), compared.conditions(conditions))
    return Frame(status if open_ else f"{told_}; every condition holds.", body)


# --- Charts -----------------------------------------------------------------------------------------------------------


def lengths_chart(trace: Trace) -> Any:
    every = windows_of(trace)
    if len(every) < 2:
        return None
    found = [(w.index + 1, window_summary(w)) for w in every]
    names = {"by the counters": "mean_acceptance_length", "as emitted": "mean_emitted_length"}
    series = {name: [(i, each[key]) for i, each in found] for name, key in names.items()}
    return charts.lines(series, "window", "tokens per draft")


# --- Page -------------------------------------------------------------------------------------------------------------

HOW = """
**Counters only grow.** A figure of a time span is the difference of two scrapes. vLLM counts drafts, draft tokens and
accepted tokens, in all and per position:

acceptance rate = accepted / draft tokens; mean acceptance length = 1 + accepted / drafts.

At position i, *of all drafts* divides by drafts, so the positions sum to accepted / drafts. *Of drafts that got there*
divides by what the position before had accepted.

**Sum, then divide.** With several engines or windows, add the counters and divide once. A mean of rates weighs an idle
engine like a busy one.

**Resets.** A restart sets counters to 0. A window in which any counter fell, went away, is NaN or negative is rejected
whole: numerator and denominator of a rate may be cut at different moments. A counter that has grown past its old value
looks sound; only `process_start_time_seconds` tells. PromQL's `increase` takes a fall for a start from 0 and
misses what was counted before it, a regrown counter altogether, and what a new series had counted before it was first
scraped.

**The stop.** Accepted tokens are counted before an end of sequence cuts the output, generation tokens after. So

generation = first tokens + plain steps + drafts + accepted − discarded.

Plain steps (passes without a draft) and discarded tokens are not exported by vLLM: only their difference is known. The
least discarded assumes as few plain steps as there can be. The most follows from requests ending once: R of them
discard at most the R longest acceptances, sum over i of min(R, accepted at i). That gives the bracket of the steps.
This app also exports its plain passes, so that nothing stays open.

**This app's own counters** stand at [/metrics](./metrics) under vLLM's names, an `engine` per lane. Run another lab
while this one scrapes. The prompt's pass carries a draft here, so no first token stands apart.

**SGLang** exports gauges: the mean of the last logging interval. Their difference means nothing. Its counter
`spec_verify_calls` gives the emitted length: (generation − requests) / calls.

**With and without.** Both runs are JSON objects: `wall_s` (a number, or a list over repeats), `generation_tokens`,
`requests`, `prompt_tokens`, `counters` (vLLM's names), and what must be equal: `load`, `batch`, `kv_budget`, `stop`,
`prompts`, `warmup_requests`; further keys of your own are compared too. With repeats the interval is Welch's on the
logarithm of tokens per second. Without, requests are assumed to vary as much as their mean, and it says so.
"""

QUESTIONS = (
    Question(
        ask="Prometheus shows an acceptance length of 3.54, the clients measure 3.51 tokens per step. Which is wrong?",
        answer=(
            "Neither: the counter counts accepted drafts before the stop, the clients count tokens that came out.",
            "Tokens behind an end of sequence are accepted and then discarded; every request can lose some once.",
            "generation = first tokens + plain steps + drafts + accepted − discarded gives how many.",
            "Short answers and long drafts widen the gap.",
        ),
        follow_ups=("What if some steps had no draft? (Then more was discarded: only the difference is counted.)",),
        mistakes=("Adding the bonus token twice.", "Dividing generation tokens by drafts without the first tokens."),
        preset="discarded",
    ),
    Question(
        ask="A pod restarts in the middle of a benchmark. What do you do with the counters?",
        answer=(
            "Reject every window that a reset touches, for all counters of the ratio.",
            "Detect it by any fall, and by the process start time for a counter that has grown past its old value.",
            "increase and rate patch a fall, and lose what was counted between the last scrape and the restart.",
        ),
        follow_ups=("Which error has no negative delta? (A restart followed by more work than before.)",),
        mistakes=("Dropping the negative sample of one counter only.",),
        preset="regrown",
    ),
    Question(
        ask="Engine 0 accepts 8 of 10 draft tokens, engine 1 accepts 1 of 90. What is the acceptance rate?",
        answer=(
            "9 / 100: sum the counters, then divide.",
            "The mean of the rates answers another question: a random engine, not a random token.",
        ),
        follow_ups=("And over time? (The same: sum the windows' deltas.)",),
        mistakes=("Averaging rates or gauges over pods.", "Reading the last engine's series for all."),
        preset="engines",
    ),
    Question(
        ask="Two teams report acceptance of 0.69 and 0.82 for the same run. How can both be right?",
        answer=(
            "One divides by drafted tokens, the other by judged ones: what follows a rejection is not judged.",
            "Others report lengths, with or without the bonus token, before or after the stop.",
            "Ask for the raw counts: drafts, drafted, accepted, put out.",
        ),
        follow_ups=("Which one estimates alpha in the speed-up formula? (The rate per judged token.)",),
        mistakes=("Comparing papers by a number called acceptance length without its definition.",),
        preset="definitions",
    ),
    Question(
        ask="A colleague shows 2.3x from speculation. What do you ask first?",
        answer=(
            "Same offered load, batch limit, KV budget, stop rules, prompts, warm-up?",
            "Are the output lengths equal? Lossless speculation keeps them.",
            "How many repeats, and what is the interval?",
            "What does a step with a draft cost: mean emitted length over speed-up.",
        ),
        follow_ups=("Why does load matter? (At a full batch the arithmetic is no longer idle.)",),
        mistakes=("Comparing a warm server with a cold one.", "Quoting acceptance for speed."),
        preset="unfair",
    ),
)

SOURCES = (
    ("vLLM: production metrics", "https://docs.vllm.ai/en/stable/usage/metrics/"),
    (
        "vLLM: acceptance metrics of speculative decoding",
        "https://docs.vllm.ai/en/stable/features/speculative_decoding/acceptance_metrics/",
    ),
    ("SGLang: production metrics", "https://docs.sglang.ai/references/production_metrics.html"),
    ("Prometheus: increase", "https://prometheus.io/docs/prometheus/latest/querying/functions/#increase"),
    ("Prometheus: text exposition format", "https://prometheus.io/docs/instrumenting/exposition_formats/"),
    (
        "Leviathan et al. 2023: Fast inference from transformers via speculative decoding",
        "https://arxiv.org/abs/2211.17192",
    ),
)


def code(params: Params) -> Sequence[Any]:
    return (account, between, *((runs.compare,) if params.has_baseline else ()))


LAB = Lab(
    slug="acceptance_metrics",
    title="Acceptance from counters",
    question="What do a server's counters say about speculation, and what do they leave open?",
    group="serve",
    order=30,
    params=Params,
    run=run,
    summary=summary,
    figures=figures,
    frame=frame,
    num_frames=lambda trace: len(pages(trace)),
    charts=(Chart("Mean length per window", lengths_chart, "Rejected windows, and those without drafts, are gaps."),),
    how=HOW,
    code=code,
    questions=QUESTIONS,
    sources=SOURCES,
)
