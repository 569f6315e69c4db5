"""Plotly figures that read well on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from playground.views.style import GRID, MUTED, SERIES

DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
Points = Sequence[tuple[float, float | None]]


def figure(x_title: str, y_title: str, height: int = 320, **layout) -> go.Figure:
    """An empty figure with the house look: no background, grey text, faint grid, its legend above."""
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": MUTED, "automargin": True, "title_standoff": 8}
    return go.Figure(
        layout=dict(
            height=height,
            margin={"l": 8, "r": 8, "t": 40, "b": 8},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"color": MUTED, "size": 13, "family": "system-ui, sans-serif"},
            hoverlabel={"font_size": 13},
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "title_text": ""},
            xaxis=dict(axis, title_text=x_title),
            yaxis=dict(axis, title_text=y_title),
            colorway=list(SERIES),
            **layout,
        )
    )


def lines(
    series: Mapping[str, Points],
    x_title: str,
    y_title: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = True,
) -> go.Figure:
    """One line per series; colour, dash and marker differ, so that colour is never alone. Undefined points are gaps."""
    fig = figure(x_title, y_title)
    for i, (name, points) in enumerate(series.items()):
        fig.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=name,
            mode="lines+markers",
            line={"color": SERIES[i % len(SERIES)], "dash": DASHES[i % len(DASHES)], "width": 2},
            marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 7},
            connectgaps=False,
        )
    fig.update_xaxes(type="log" if log_x else "linear")
    fig.update_yaxes(type="log" if log_y else "linear", rangemode="tozero" if from_zero and not log_y else "normal")
    xs = [x for points in series.values() for x, _ in points]
    if log_x and xs and max(xs) >= 16:  # batches, tokens
        powers_of_two(fig, "x", min(xs), max(xs))
    fig.update_layout(showlegend=len(series) > 1)
    return fig


def powers_of_two(fig: go.Figure, axis: str, low: float, high: float) -> None:
    """Ticks of a logarithmic axis at powers of two, at most eight of them."""
    first, last = math.ceil(math.log2(max(low, 1))), math.floor(math.log2(max(high, 1)))
    step = max(1, math.ceil((last - first + 1) / 8))
    values = [2**i for i in range(first, last + 1, step)]
    texts = [f"{v // 1024}k" if v >= 1024 else str(v) for v in values]
    fig.update_layout({f"{axis}axis": {"tickvals": values, "ticktext": texts}})


def bars(series: Mapping[str, Points], x_title: str, y_title: str, *, stacked: bool = False) -> go.Figure:
    """Groups of bars, or one stack per x; every second series is an outline, so that colour is never alone.

    No hatching: it is drawn by reference to the page's address, and goes when that changes.
    """
    fig = figure(x_title, y_title, barmode="stack" if stacked else "group", bargap=0.35)
    for i, (name, points) in enumerate(series.items()):
        colour = SERIES[i % len(SERIES)]
        fig.add_bar(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            name=name,
            marker={"color": colour + "40" if i % 2 else colour, "line": {"color": colour, "width": 2}},
        )
    fig.update_layout(showlegend=len(series) > 1)
    return fig


def vertical(fig: go.Figure, x: float, text: str) -> go.Figure:
    """``fig`` with a thin line at ``x`` and its name at the foot."""
    place = math.log10(x) if fig.layout.xaxis.type == "log" else x  # texts stand by exponent, lines by value
    fig.add_vline(x=x, line={"color": MUTED, "width": 1, "dash": "dot"})
    label = {"text": text, "font": {"size": 12, "color": MUTED}, "showarrow": False, "xanchor": "left"}
    fig.add_annotation(x=place, y=0, yref="paper", yanchor="bottom", **label)
    return fig
