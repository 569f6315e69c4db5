"""Structured output on a server: lanes of a simulated schedule as Gantt charts, and masks against the pass."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from playground.engine.grammar.compile_stall import FREE, Schedule
from playground.engine.grammar.compile_times import CompileTimes
from playground.engine.grammar.mask_load import MOST, MaskLoad
from playground.views import html
from playground.views.pricing import figures

WIDTH, LEFT = 720, 104  # units of the drawing; where time begins
ROW, GAP = 14, 4
NUM_REQUESTS = 9  # drawn as rows of their own
MIN_WIDTH = 1.6  # of a bar, so that a short one is still seen


def gantt(schedule: Schedule, until_s: float) -> Markup:
    """One lane up to ``until_s``: the scheduler, the worker, and the first requests from arrival to last token."""
    rows = [("scheduler", _scheduler(schedule, until_s))]
    if schedule.compiles:
        rows.append(("worker", [("compile", *span) for span in schedule.compiles]))
    rows += [
        (f"request {i + 1}", [("waits", request.arrives_s, request.ready_s), ("queued", request.ready_s, start), done])
        for i, request in enumerate(schedule.requests[:NUM_REQUESTS])
        for start in [max(request.ready_s, request.first_s - _step(schedule))]
        for done in [("decodes", start, request.last_s)]
    ]
    scale = (WIDTH - LEFT - 8) / until_s
    parts = [_row(i, name, spans, scale, until_s) for i, (name, spans) in enumerate(rows)]
    height = len(rows) * (ROW + GAP) + 18
    tick = Markup('<text x="{}" y="{}" class="{}">{}</text>')
    ticks = [
        tick.format(_n(LEFT + x * (WIDTH - LEFT - 8)), height - 3, place, label)
        for x, place, label in (
            (0, "first", "0"),
            (0.5, "middle", f"{500 * until_s:,.0f} ms"),
            (1, "last", f"{1000 * until_s:,.0f} ms"),
        )
    ]
    svg = Markup('<svg class="gantt" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>')
    label = f"Schedule with {schedule.name}: {says(schedule)}"
    return html.scroll(
        svg.format(WIDTH, height, label, html.join(parts), html.join(ticks)), f"Gantt chart, {schedule.name}"
    )


def _step(schedule: Schedule) -> float:
    return (schedule.p50_itl_ms or 0.0) / 1e3


def _scheduler(schedule: Schedule, until_s: float) -> list[tuple[str, float, float]]:
    """Decoding from the first token on, with the stalls on top of it."""
    busy: list[list[float]] = []
    for request in sorted(schedule.requests, key=lambda r: r.first_s):
        if busy and request.first_s - _step(schedule) <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], request.last_s)
        else:
            busy.append([request.first_s - _step(schedule), request.last_s])
    return [("steps", a, b) for a, b in busy] + [("stall", a, b) for a, b in schedule.stalls]


def _row(i: int, name: str, spans: Sequence[tuple[str, float, float]], scale: float, until_s: float) -> Markup:
    y = i * (ROW + GAP)
    bars = [
        Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
            kind, _n(LEFT + start * scale), y, _n(max(MIN_WIDTH, (min(end, until_s) - start) * scale)), ROW
        )
        for kind, start, end in spans
        if start < until_s and end > start
    ]
    label = Markup('<text x="0" y="{}">{}</text>').format(y + ROW - 3, name)
    return label + html.join(bars)


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def window(schedules: Sequence[Schedule]) -> float:
    """Seconds to draw: until the ninth request has decoded for a while, the same for all lanes."""
    first = schedules[0]
    some = first.requests[min(NUM_REQUESTS, len(first.requests)) - 1]
    return min(first.ended_s, 1.5 * max(some.arrives_s, some.first_s, 0.02))


def says(schedule: Schedule) -> str:
    """One lane in a sentence's worth of words."""
    if schedule.name == FREE:
        return f"{html.number(schedule.p99_itl_ms, 1)} ms between tokens at p99"
    held = "nothing held up" if not schedule.stalls else f"{schedule.tokens_lost:,.0f} tokens lost to compiling"
    return f"{held}, {html.number(schedule.p99_itl_ms, 1)} ms between tokens at p99"


def lanes(schedules: Sequence[Schedule]) -> Markup:
    """The newest lane as a Gantt chart, and all so far in a table."""
    newest = schedules[-1]
    rows = [
        (
            each.name,
            f"{each.num_compiles:,}",
            html.number(each.stall_steps, 1),
            html.number(each.tokens_lost, 0),
            html.number(each.p50_itl_ms),
            html.number(each.p99_itl_ms),
            html.number(each.longest_itl_ms, 1),
            html.number(each.p99_first_ms, 1),
        )
        for each in schedules
    ]
    head = ("compiling on", "compiled", "steps lost", "tokens lost", "ITL p50", "ITL p99", "longest", "first token p99")
    table = figures(head, rows, "Lanes so far")
    note = "Times in ms. ITL is the time between two tokens of one request."
    return html.join(
        [
            html.section(f"The schedule: {newest.name}", gantt(newest, window(schedules)) + key(newest), says(newest)),
            html.section("Lanes so far", table + Markup('<p class="says">{}</p>').format(note)),
        ]
    )


def key(schedule: Schedule) -> Markup:
    """What the bars mean, for the kinds in use."""
    kinds = {"steps": "decode steps", "stall": "scheduler compiles or looks up", "compile": "worker compiles"}
    kinds |= {"waits": "waits for its grammar", "queued": "waits for room", "decodes": "decodes"}
    used = {"steps", "decodes"} | ({"stall"} if schedule.stalls else set())
    used |= {"compile"} if schedule.compiles else set()
    used |= {"waits"} if schedule.name != FREE else set()
    item = '<span><svg class="gantt key" viewBox="0 0 22 12"><rect class="{}" width="22" height="12"/></svg> {}</span>'
    shown = [Markup(item).format(kind, name) for kind, name in kinds.items() if kind in used]
    return Markup('<div class="gantt-keys">{}</div>').format(html.join(shown))


def compiled(times: CompileTimes, slowdown: float, step_ms: float, leaves: int) -> Markup:
    """What a compilation takes, here and on the server, and in steps of the whole batch."""
    rows = [
        (name, html.number(ms), html.number(slowdown * ms), html.number(slowdown * ms / step_ms))
        for name, ms in (
            ("cold", times.cold_ms),
            ("the same text again", times.cached_ms),
            ("one key renamed", times.renamed_ms),
        )
    ]
    head = ("compiling", "ms here", "ms on the server", "decode steps of the full batch")
    table = figures(head, rows, "Compile times")
    return html.section("What compiling takes", table, f"measured, {html.count(leaves, 'leaf', 'leaves')}")


def masks(load: MaskLoad) -> Markup:
    """Masks of a batch beside the pass, and the batch at which they come out from behind it."""
    rows = [
        (
            f"{point.batch:,}",
            html.number(point.pass_ms),
            html.number(point.mean_ms),
            html.number(point.p99_ms),
            "yes" if point.mean_ms <= point.pass_ms else "no",
        )
        for point in load.points
    ]
    head = ("batch", "pass, ms", "masks by the mean, ms", "masks by the p99, ms", "hidden?")
    table = figures(head, rows, "Masks against the pass")
    until = [(f"k = {k}", _until(mean), _until(p99)) for k, mean, p99 in load.hidden_until]
    limits = figures(("draft length", "hidden up to batch, by the mean", "by the p99"), until, "Where masks show")
    said = f"one mask: {load.us_mean:,.1f} µs, p99 {load.us_p99:,.1f} µs; {html.count(load.rows, 'mask')} a request"
    return html.join(
        [
            html.section("Masks against the pass", table, said),
            html.section("Where masks no longer hide", limits, "masks are written on one thread"),
        ]
    )


def _until(batch: int | None) -> str:
    return f"{batch:,}" if batch is not None else f"always, to {MOST:,}"
