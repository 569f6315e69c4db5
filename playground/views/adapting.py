"""Draft-length policies side by side: what each did so far, and what adapting gains over cost and batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from markupsafe import Markup

from playground.engine.adaptive import Block, Costs, Estimate, Mix, gain, linear_costs, same
from playground.engine.cost import expected_tokens
from playground.views import charts
from playground.views.html import number
from playground.views.pricing import figures
from playground.views.style import SERIES

LINE = {"color": charts.MUTED, "width": 1, "dash": "dot"}
TELLS = {
    "fixed": "one k for everybody",
    "best fixed": "the one k that suits the mix best",
    "per class": "the best k of each class",
    "controller": "the best k for its estimate of the request",
    "oracle": "knows which drafts will stand",
}


def policies(blocks: Sequence[Block], gains: Mapping[str, Estimate | None]) -> Markup:
    """Totals of every policy over the blocks so far, and what it gains over the fixed length."""
    rows = []
    for i, now in enumerate(blocks[-1].policies):
        seen = [block.policies[i] for block in blocks]
        tokens, time = sum(p.tokens for p in seen), sum(p.time for p in seen)
        rows.append(
            [
                Markup("{}<br><small>{}</small>").format(now.name, TELLS[now.name]),
                f"{tokens / time:.3f}",
                signed(gains[now.name]),
                " / ".join(_mean([p.mean_k[c] for p in seen]) for c in range(2)),
                f"{100 * sum(p.accepted for p in seen) / max(1, sum(p.drafted for p in seen)):.0f} %",
            ]
        )
    head = ["policy", "tokens per plain pass", "gain over fixed (99 %)", "mean k, code / chat", "drafts accepted"]
    return figures(head, rows, "Policies on the same requests and coins")


def signed(found: Estimate | None) -> Markup | str:
    """A gain with its interval below it, in per cent."""
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return percent(found.mean)
    return Markup("{}<br><small>{} to {}</small>").format(*map(percent, (found.mean, found.low, found.high)))


def percent(share: float | None) -> str:
    """A signed share with one decimal.

    >>> percent(0.0513), percent(-0.00004)
    ('+5.1 %', '0.0 %')
    """
    if share is None:
        return "–"
    text = f"{100 * share:+.1f}"
    return ("0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")) + " %"


def _mean(values: Sequence[float | None]) -> str:
    there = [v for v in values if v is not None]
    return number(sum(there) / len(there), 1) if there else "–"


def over_cost(mix: Mix, fixed_k: int, now: float) -> go.Figure:
    """The closed-form gain of a length per class over the cost of a drafted token."""
    costs = [i / 200 for i in range(1, 121)]
    left, best = [], []
    for c in costs:
        table_ = linear_costs(c)
        left.append((c, 100 * gain(mix, table_, fixed_k)))
        best.append((c, 100 * gain(mix, table_, mix.best_fixed(table_))))
    fig = charts.lines(
        {f"against k = {fixed_k}": left, "against the best fixed k": best}, "cost of a drafted token, plain passes",
        "gain (%)",
    )  # fmt: skip
    fig.update_traces(mode="lines")
    return charts.vertical(fig, now, f"c = {now:g}")


def over_batch(
    in_turn: Mapping[int, float], at_random: Mapping[int, float], simulated: Estimate | None, batch: int
) -> go.Figure:
    """The gain in lock-step over the batch, in closed form, and the simulated one with its interval."""
    series = {
        "evenly mixed arrivals": [(b, 100 * g) for b, g in in_turn.items()],
        "arrivals at random": [(b, 100 * g) for b, g in at_random.items()],
    }
    fig = charts.lines(series, "batch size", "gain over the fixed k (%)", log_x=True, from_zero=False)
    fig.update_xaxes(tickvals=list(in_turn), ticktext=[str(b) for b in in_turn])
    fig.add_hline(y=0, line=LINE)
    if simulated is not None and simulated.low is not None and simulated.high is not None:
        bar = {"type": "data", "symmetric": False, "array": [100 * (simulated.high - simulated.mean)],
               "arrayminus": [100 * (simulated.mean - simulated.low)]}  # fmt: skip
        marker = {"size": 11, "symbol": "diamond", "color": SERIES[2]}
        fig.add_scatter(x=[batch], y=[100 * simulated.mean], error_y=bar, mode="markers", marker=marker,
                        name="simulated")  # fmt: skip
    return fig


def over_tokens(points: Sequence[tuple[int, Estimate]], exact: float) -> go.Figure:
    """The simulated gain while it runs, with its interval, and the closed form as a line."""
    fig = charts.figure("tokens simulated", "gain of a length per class (%)")
    known = [(n, e) for n, e in points if e.low is not None and e.high is not None]
    xs = [n for n, _ in known]
    band = [*(100 * e.high for _, e in known), *(100 * e.low for _, e in reversed(known))]
    fig.add_scatter(x=[*xs, *reversed(xs)], y=band, fill="toself", mode="none", name="99 % interval",
                    fillcolor="rgba(36,129,191,0.25)", hoverinfo="skip")  # fmt: skip
    fig.add_scatter(x=xs, y=[100 * e.mean for _, e in known], name="simulated", mode="lines", line={"color": SERIES[0]})
    fig.add_scatter(
        x=xs, y=[100 * exact] * len(xs), name="closed form", mode="lines", line={"color": SERIES[1], "dash": "dash"}
    )
    return fig


def over_length(mix: Mix, costs: Costs, best: Mapping[str, int]) -> go.Figure:
    """Tokens per plain pass over the draft length, a line per class and one for the mix; a star on each best length."""
    last = min(len(costs) - 1, max(12, *best.values()))
    series = {kind: [(k, expected_tokens(mix.alpha(kind), k) / costs[k]) for k in range(last + 1)] for kind in best}
    series["mix, one k for both"] = [(k, 1 / mix.time_per_token(same(k), costs)) for k in range(last + 1)]
    fig = charts.lines(series, "draft length k", "tokens per plain pass")
    for i, (kind, k) in enumerate(best.items()):
        if k <= last:
            marker = {"size": 14, "symbol": "star", "color": SERIES[i]}
            fig.add_scatter(x=[k], y=[series[kind][k][1]], mode="markers", marker=marker, name=f"best, {kind}")
    return fig
