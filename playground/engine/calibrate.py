"""This machine as hardware of the cost model: fitted on some measured passes, judged on others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from playground.engine.cost import Hardware, Network, Priced, Profile, Size, pass_time
from playground.engine.model import Session
from playground.engine.shapes import Shape
from playground.engine.trace import step
from playground.engine.tree import Draft

FIT = (1, 4, 32)  # tokens of the passes that the profile is fitted on
JUDGE = (2, 8, 16, 64)  # of those it is judged on, at another context
ROUNDS = (3, 8)  # at least and at most
SETTLED = 0.97  # a round that makes no pass faster than this share of its best so far is the last
BUDGET_S = 20.0
NAME = "this_machine"


@step
@dataclass(frozen=True)
class TimedPass:
    """One pass over ``new_tokens`` at ``context`` tokens: measured, and what the fitted profile says."""

    new_tokens: int
    context: int
    ms: float
    predicted_ms: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted against measured, as a share of the measured time."""
        return None if self.predicted_ms is None else self.predicted_ms / self.ms - 1


def measure(sessions: Mapping[int, Session], passes: Sequence[tuple[int, int]]) -> Iterator[list[TimedPass]]:
    """After each round over all ``passes`` (new tokens, context): the fastest time of each so far.

    ``sessions`` are by context. What else the machine does can only slow a pass down, and rarely all rounds alike: it
    goes on until a round brings nothing new, or the time is used up. The drafts repeat the last token: which tokens are
    fed does not change the time.
    """
    best: dict[tuple[int, int], float] = {}
    started = time.perf_counter()
    for i in range(1 + ROUNDS[1]):  # the first one warms up
        before = dict(best)
        for n, context in passes:
            ms = _time_pass(sessions[context], n)
            best[n, context] = min(best.get((n, context), ms), ms)
        yield [TimedPass(n, context, best[n, context]) for n, context in passes]
        is_settled = all(best[key] > SETTLED * before.get(key, 0.0) for key in best) and bool(before)
        if i >= ROUNDS[0] and (is_settled or time.perf_counter() - started > BUDGET_S):
            return


def _time_pass(session: Session, num_tokens: int) -> float:
    """Milliseconds of one pass; ``session`` is left as it was."""
    tokens = list(session.tokens)
    draft = Draft.chain([tokens[-1]] * (num_tokens - 1))
    session.sync(tokens)
    began = time.perf_counter()
    float(session.score(draft).logits[-1, 0])  # reading a number waits for the device
    ms = 1e3 * (time.perf_counter() - began)
    session.sync(tokens)
    return ms


def fit(shape: Shape, timed: Sequence[TimedPass], number_bytes: float) -> Priced:
    """``shape`` on this machine: bandwidth, FLOP/s, and what a pass wider than one token pays, from ``timed`` passes.

    A processor overlaps little, so streaming and multiplying add up: a pass takes bytes / bandwidth + FLOPs / peak
    (+ wide_s). That is linear in the three unknowns; relative errors are what is made small, and none may be negative.
    Raises ``ValueError`` with fewer passes than unknowns.
    """
    if len(timed) < 3:
        raise ValueError(f"A fit needs at least three measured passes, not {len(timed)}.")
    rows = [(*_work(shape, p, number_bytes), float(p.new_tokens > 1)) for p in timed]
    seconds = np.array([p.ms / 1e3 for p in timed])
    per_byte, per_flop, wide = _least_squares(np.array(rows) / seconds[:, None])
    hardware = Hardware("this machine", 1 / per_byte, 1 / per_flop, _memory_bytes())
    return Priced(shape, hardware, Profile(NAME, is_serial=True, wide_s=wide), number_bytes, number_bytes)


def _work(network: Network, timed: TimedPass, number_bytes: float) -> tuple[float, float]:
    """Bytes and FLOPs of a pass."""
    unit = Hardware("unit", 1.0, 1.0, 1.0)
    one = pass_time(network, unit, 1, timed.new_tokens, timed.context, weight_bytes=number_bytes, kv_bytes=number_bytes)
    return float(one.memory_s), float(one.compute_s)


def _least_squares(rows: np.ndarray) -> tuple[float, float, float]:
    """The x >= 0 that brings rows @ x nearest to 1; a column that would go negative is left out."""
    free = [0, 1, 2]
    tiny = 1e-18  # stands for "no time at all"
    while True:
        x, *_ = np.linalg.lstsq(rows[:, free], np.ones(len(rows)), rcond=None)
        if (x >= 0).all():
            found = dict(zip(free, x, strict=True))
            return (max(found.get(0, 0.0), tiny), max(found.get(1, 0.0), tiny), float(found.get(2, 0.0)))
        free.pop(int(x.argmin()))


def predict(served: Priced, timed: Sequence[TimedPass]) -> list[TimedPass]:
    """``timed`` with what the profile says of each."""
    return [replace(p, predicted_ms=1e3 * served.time(1, p.new_tokens, p.context).total_s) for p in timed]


def worst_error(timed: Sequence[TimedPass]) -> float | None:
    """The largest relative error; ``None`` without a prediction."""
    return max((abs(p.error) for p in timed if p.error is not None), default=None)


def speed_against_plain(served: Priced, k: Size, context: Size, tokens: Size) -> Size:
    """What a free drafter gains here that puts out ``tokens`` per pass: the figure that a run can check."""
    return tokens * served.time(1, 1, context).total_s / served.time(1, k + 1, context).total_s


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return 8e9
