"""Charts of what speculation gains: acceptance over temperature, tokens per pass over acceptance, speed over batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from playground.engine.acceptance import TemperaturePoint
from playground.engine.cost import Priced, expected_tokens, spare_batch, speedup
from playground.engine.serving import Contender, most_sequences, speeds
from playground.views import charts, pricing

LINE = {"color": charts.MUTED, "width": 1, "dash": "dot"}


def over_temperature(points: Sequence[TemperaturePoint], now: float) -> go.Figure:
    """Acceptance of three rules over temperature, on a logarithmic axis whose left end stands for 0."""
    points = sorted(points, key=lambda point: point.temperature)
    left = min((t.temperature for t in points if t.temperature > 0), default=0.2) / 2

    def x(temperature: float) -> float:
        return max(temperature, left)

    series = {
        "rejection: sum of min(p, q)": [(x(t.temperature), t.rejection) for t in points],
        "exact match: sum of p · q": [(x(t.temperature), t.match) for t in points],
        "argmax_soft_q (biased)": [(x(t.temperature), t.argmax) for t in points],
    }
    fig = charts.lines(series, "temperature", "acceptance", log_x=True)
    ticks = [t for t in (0.25, 0.5, 1, 2, 5, 10, 20, 50) if t > left]
    fig.update_xaxes(tickvals=[left, *ticks], ticktext=["0", *(f"{t:g}" for t in ticks)])
    return charts.vertical(fig, x(now), "this run")


def tokens_per_pass(alpha: float, k: int, measured: float | None) -> go.Figure:
    """E(alpha, k) over alpha for several k; a star for this run: as measured, or as computed where nothing ran."""
    grid = [i / 40 for i in range(41)]
    series = {f"k = {n}": [(a, expected_tokens(a, n)) for a in grid] for n in sorted({1, 2, 4, 8, k})}
    fig = charts.lines(series, "acceptance α", "tokens per pass")
    fig.update_traces(mode="lines")
    y, name = (expected_tokens(alpha, k), "this law") if measured is None else (measured, "this run, measured")
    star = {"size": 13, "symbol": "star", "color": charts.MUTED}
    return fig.add_scatter(x=[alpha], y=[y], name=name, mode="markers", marker=star)


def over_batch(tag: Priced, alpha: float, k: int) -> go.Figure:
    """Speed against plain decoding over the batch, priced for a free drafter at context 0; 1 breaks even."""
    batches = [2 ** (i / 4) for i in range(41)]
    series = {
        f"k = {n}": [(b, speedup(tag.shape, tag.hardware, b, n, expected_tokens(alpha, n))) for b in batches]
        for n in sorted({1, 4, 7, k})
    }
    fig = charts.lines(series, "batch size", "speed against plain decoding", log_x=True)
    fig.update_traces(mode="lines")
    fig.update_xaxes(tickvals=[4**i for i in range(6)])
    fig.add_hline(y=1, line=LINE)
    return charts.vertical(fig, spare_batch(tag.hardware, k), f"spare compute ends (k = {k})")


def contenders_over_batch(
    tag: Priced, contenders: Sequence[Contender], context: int, flips: Sequence[Mapping[str, Any]]
) -> go.Figure:
    """Speed of each contender over the batch at one context, with the batches at which the winner changes."""
    sizes = np.array([2 ** (i / 4) for i in range(41)])
    curves = {c.name: list(zip(sizes, speeds(tag, c, sizes, context), strict=True)) for c in contenders}
    return pricing.over_batch(curves, flips, most_sequences(tag, context))
