"""Priced figures as tables and charts: the terms of a pass, the best draft length as a map, speed over batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from playground.engine.calibrate import TimedPass
from playground.engine.cost import TERMS, StepTime
from playground.engine.loads import BestLengths, Load, Outlook
from playground.views import charts
from playground.views.html import Text, join, scroll, table
from playground.views.style import SERIES

NAMES = dict(zip(TERMS, ("weights", "KV", "products", "attention", "communication", "fixed"), strict=True))
LETTERS = dict(zip(TERMS, "WKPACF", strict=True))
LINE = {"color": charts.MUTED, "width": 1, "dash": "dot"}
Curves = Mapping[str, charts.Points]


# --- Tables ---


def terms(load: Load, k: int) -> Markup:
    """The microseconds of a plain pass and of one with k drafts; what hides behind a slower side says so."""
    rows: list[list[Text]] = [
        [NAMES[name], _term(load.plain, name), _term(load.wide, name)]
        for name in TERMS
        if _us(load.plain, name) >= 0.5 or _us(load.wide, name) >= 0.5
    ]
    rows.append(["drafter", "–", f"{1e6 * load.draft_s:,.0f}"])
    total = 1e6 * (load.wide.total_s + load.draft_s)
    rows.append([Markup("<b>the step</b>"), _bold(1e6 * load.plain.total_s), _bold(total)])
    return figures(["µs", "plain pass", f"with {k} drafts"], rows, "Where the time of a step goes")


def figures(head: Sequence[str], rows: Sequence[Sequence[Text]], label: str) -> Markup:
    """A table whose columns after the first stand right and do not break."""
    top = join([Markup('<th scope="col"{}>{}</th>').format(_right(i), h) for i, h in enumerate(head)])
    lines = [
        Markup("<tr>{}</tr>").format(
            join(
                [
                    Markup('<th scope="row">{}</th>' if i == 0 else '<td class="num nw">{}</td>').format(cell)
                    for i, cell in enumerate(row)
                ]
            )
        )
        for row in rows
    ]
    html = Markup('<table class="plain"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, join(lines))
    return scroll(html, label)


def _right(column: int) -> Markup:
    return Markup(' class="num"' if column else "")


def _bold(us: float) -> Markup:
    return Markup("<b>{}</b>").format(f"{us:,.0f}")


def _us(time: StepTime, name: str) -> float:
    return 1e6 * float(getattr(time, f"{name}_s"))


def _term(time: StepTime, name: str) -> Text:
    shown = f"{_us(time, name):,.0f}"
    return Markup("<small>hidden</small> {}").format(shown) if name in hidden(time) else shown


def hidden(time: StepTime) -> tuple[str, ...]:
    """The terms that cost nothing because a slower one runs meanwhile."""
    if time.is_serial:
        return ()
    if time.is_split:
        return (
            "gemm" if time.weights_s >= time.gemm_s else "weights",
            "attention" if time.kv_s >= time.attention_s else "kv",
        )
    return ("gemm", "attention") if time.memory_s >= time.compute_s else ("weights", "kv")


def contexts(load: Load, k: int) -> Markup:
    """Every context at one batch: the best draft length, speeds, what binds."""
    rows = [
        [
            f"{row.context:,}",
            "does not fit" if row.best_k is None else f"{row.best_k}",
            _times(row.best_speed),
            _times(row.fixed_speed),
            "–" if row.best_k is None else NAMES[row.binding],
            "–" if row.plain_tokens_per_s is None else f"{row.plain_tokens_per_s:,.0f}",
        ]
        for row in load.rows
    ]
    head = ["context", "best k", "its speed", f"speed at k = {k}", "a plain pass waits for", "plain tokens/s"]
    return figures(head, rows, "Best draft length by context")


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def passes(timed: Sequence[TimedPass], fitted: Sequence[int]) -> Markup:
    """Measured passes, and beside those that were judged what the fit says."""
    rows = [
        [
            f"{p.new_tokens}",
            f"{p.context}",
            f"{p.ms:,.1f}",
            "–" if p.predicted_ms is None else f"{p.predicted_ms:,.1f}",
            "–" if p.error is None else f"{100 * p.error:+.0f} %".replace("-", "−"),
            "fitted on" if p.new_tokens in fitted else "judged on",
        ]
        for p in timed
    ]
    return figures(["tokens", "context", "measured ms", "predicted ms", "error", "used"], rows, "Measured passes")


def flips(found: Sequence[Mapping[str, Any]]) -> Markup | None:
    """The winner's changes over the batch, with what they depend on; ``None`` when there is none."""
    rows: list[list[Text | float | None]] = [
        [f"{f['batch']:,}", f["from"] or "–", f["to"], _maybe(f["k"]), f["alpha"], f["context"]] for f in found
    ]
    head = ["from batch", "before", "then", "k", "α", "context"]
    return table(head, rows, "Changes of the winner") if rows else None


def _maybe(k: int | None) -> Text | int:
    return "best" if k is None else k


# --- Charts ---


def over_batch(curves: Curves, found: Sequence[Mapping[str, Any]] = (), max_batch: int | None = None) -> go.Figure:
    """Speed against plain decoding over the batch, a line per contender; flips and the end of memory as thin lines."""
    fig = charts.lines(curves, "batch size", "speed against plain decoding", log_x=True)
    fig.update_traces(mode="lines")
    fig.add_hline(y=1, line=LINE)
    top = max((x for points in curves.values() for x, _ in points), default=1)
    marks = [(f["batch"], f"{f['to']} from {f['batch']:,}") for f in found[:4] if 1 < f["batch"] <= top]
    if max_batch is not None and max_batch < top:
        marks.append((max(1, max_batch), "memory is full"))
    for i, (batch, text) in enumerate(marks):
        charts.vertical(fig, batch, text)
        side = {"xanchor": "right", "xshift": -4} if batch**2 > top else {"xshift": 4}  # right of the middle: inwards
        fig.layout.annotations[-1].update(yshift=18 * i, **side)  # one above the other: lines may stand close
    return fig


def best_length_map(found: BestLengths) -> go.Figure:
    """Best draft length over batch (across) and context (up), both on logarithmic axes."""
    shown = [[None if k < 0 else k for k in row] for row in found.best_k]
    says = [
        [
            "does not fit" if k < 0 else f"k = {k}, {_times(speed)}, waits for {NAMES[binding]}"
            for k, speed, binding in zip(*rows, strict=True)
        ]
        for rows in zip(found.best_k, found.speed, found.binding, strict=True)
    ]
    return _map(found, shown, says, colorscale="Viridis", colorbar={"title": {"text": "best k"}, "thickness": 12})


def binding_map(found: BestLengths) -> go.Figure:
    """What a plain pass waits for over batch and context: a colour and a letter per term."""
    step_c, step_b = (max(1, len(axis) // 14) for axis in (found.contexts, found.batches))
    coarse = BestLengths(
        found.contexts[::step_c],
        found.batches[::step_b],
        tuple(row[::step_b] for row in found.best_k[::step_c]),
        tuple(row[::step_b] for row in found.speed[::step_c]),
        tuple(row[::step_b] for row in found.binding[::step_c]),
    )
    there = [name for name in TERMS if any(name in row for row in coarse.binding)]
    scale = [(i / len(TERMS), SERIES[int(i) % len(SERIES)]) for i in range(len(TERMS))]
    steps = [(edge, colour) for (low, colour) in scale for edge in (low, low + 1 / len(TERMS))]
    fits = [[k >= 0 for k in row] for row in coarse.best_k]
    shown = [
        [TERMS.index(name) if ok else None for name, ok in zip(names, oks, strict=True)]
        for names, oks in zip(coarse.binding, fits, strict=True)
    ]
    says = [[NAMES[name] if ok else "does not fit" for name, ok in zip(a, b, strict=True)]
            for a, b in zip(coarse.binding, fits, strict=True)]  # fmt: skip
    letters = [[LETTERS[name] if ok else "" for name, ok in zip(a, b, strict=True)]
               for a, b in zip(coarse.binding, fits, strict=True)]  # fmt: skip
    fig = _map(coarse, shown, says, colorscale=steps, zmin=-0.5, zmax=len(TERMS) - 0.5, showscale=False)
    fig.data[0].update(text=letters, texttemplate="%{text}", textfont={"color": "#ffffff", "size": 12})
    fig.data[0].update(customdata=says, hovertemplate="batch %{x:,}, context %{y:,}: %{customdata}<extra></extra>")
    key = "   ".join(f"{LETTERS[name]} {NAMES[name]}" for name in there)
    return fig.add_annotation(text=key, x=0, y=1.02, xref="paper", yref="paper", showarrow=False, yanchor="bottom")


def _map(found: BestLengths, values: Any, says: Any, **look: Any) -> go.Figure:
    fig = charts.figure("batch size", "context (tokens)", height=380)
    fig.add_heatmap(
        x=found.batches, y=found.contexts, z=values, text=says, hoverongaps=False,
        hovertemplate="batch %{x:,}, context %{y:,}: %{text}<extra></extra>", **look,
    )  # fmt: skip
    fig.update_xaxes(type="log", showgrid=False)
    fig.update_yaxes(type="log", showgrid=False)
    charts.powers_of_two(fig, "x", found.batches[0], found.batches[-1])
    charts.powers_of_two(fig, "y", found.contexts[0], found.contexts[-1])
    return fig


def outlooks(found: Sequence[Outlook]) -> go.Figure:
    """How each assumption moves the two figures: speed at the smallest load, and what happens to the peak."""
    names = [o.name for o in found][::-1]
    fig = charts.figure("against plain decoding", "", height=110 + 34 * len(found))
    series = (
        ("smallest load, fixed k", [o.night_speed for o in found], "circle"),
        ("peak, fixed k", [None if o.evening_change is None else 1 + o.evening_change for o in found], "square"),
        ("peak, best k", [o.peak_best / o.peak_plain if o.peak_best and o.peak_plain else None for o in found], "x"),
    )
    for i, (name, values, symbol) in enumerate(series):
        marker = {"symbol": symbol, "size": 11, "color": SERIES[i]}
        fig.add_scatter(x=values[::-1], y=names, name=name, mode="markers", marker=marker)
    fig.add_vline(x=1, line=LINE)
    return fig.update_xaxes(rangemode="tozero")


def predicted(measured: charts.Points, fitted: charts.Points, x_title: str, y_title: str, log_x: bool) -> go.Figure:
    """Measured and predicted on the same axes."""
    fig = charts.lines({"measured": measured, "predicted": fitted}, x_title, y_title, log_x=log_x)
    xs = sorted({x for x, _ in (*measured, *fitted)})
    return fig.update_xaxes(tickvals=xs, ticktext=[f"{x:g}" for x in xs])
