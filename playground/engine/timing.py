"""How long a target pass takes here, by the number of positions it scores: what verification costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from playground.engine.model import Session
from playground.engine.trace import step
from playground.engine.tree import Draft


@step
@dataclass(frozen=True)
class PassTime:
    """One pass over ``positions`` tokens: the last committed one and the drafts below it. ``ms`` is measured."""

    positions: int
    ms: float


def pass_times(session: Session, positions: Sequence[int], repeats: int = 3) -> Iterator[PassTime]:
    """The fastest of ``repeats`` passes for each number of ``positions``, on a fork of ``session``.

    What else the machine does can only slow a pass down. The drafts repeat the last token: which tokens are fed does
    not change the time.
    """
    twin = session.fork()
    tokens = list(twin.tokens)
    for n in positions:
        draft = Draft.chain([tokens[-1]] * (n - 1))
        times = []
        for _ in range(repeats + 1):  # the first one warms up
            twin.sync(tokens)
            began = time.perf_counter()
            float(twin.score(draft).logits[-1, 0])  # reading a number waits for the device
            times.append(1e3 * (time.perf_counter() - began))
        yield PassTime(n, min(times[1:]))
