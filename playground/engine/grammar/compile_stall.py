"""Grammars that are compiled while a server decodes: a discrete-event simulation of continuous batching.

Requests arrive at random (Poisson) and decode in one batch; every step gives each running request one token. What a
compilation holds up depends on where it runs: on the scheduler's own thread every running request waits. Prompts count
as read already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from playground.engine.trace import step

FREE, SCHEDULER, WORKER, CACHE = "no grammar", "scheduler thread", "worker", "worker and cache"
PLACES = (FREE, SCHEDULER, WORKER, CACHE)
Span = tuple[float, float]  # from, to, in seconds


@dataclass(frozen=True)
class Request:
    """``schema`` is a number: equal numbers mean the same text."""

    arrives_s: float
    schema: int
    num_tokens: int


@dataclass(frozen=True)
class Costs:
    """``step_s[b - 1]``: seconds of a decode step with b requests. The others are seconds of a compilation: cold, found
    in the cache, and of a schema that differs by one key from one in the cache; and of one mask."""

    step_s: tuple[float, ...]
    cold_s: float = 0.0
    cached_s: float = 0.0
    renamed_s: float = 0.0
    mask_s: float = 0.0

    def step(self, batch: int) -> float:
        """Masks are written while the GPU computes the pass; the longer of the two counts."""
        return max(self.step_s[batch - 1], batch * self.mask_s)


@dataclass(frozen=True)
class Served:
    """One request: its arrival, when its grammar was ready, and its first and last token (seconds)."""

    arrives_s: float
    ready_s: float
    first_s: float
    last_s: float
    schema: int


@step
@dataclass(frozen=True)
class Schedule:
    """One simulated lane. ``stalls``: the scheduler compiles; ``compiles``: the worker does.

    ``stall_steps``: decode steps that stalls took the place of. ``tokens_lost``: what the requests that ran meanwhile
    would have got. Times between tokens are over all tokens behind the first of each request.
    """

    name: str
    stalls: tuple[Span, ...]
    compiles: tuple[Span, ...]
    requests: tuple[Served, ...]
    num_compiles: int
    num_steps: int
    num_tokens: int
    ended_s: float
    mean_batch: float
    stall_steps: float
    tokens_lost: float
    p50_itl_ms: float | None
    p99_itl_ms: float | None
    longest_itl_ms: float | None
    p99_first_ms: float


def arrivals(rate: float, count: int, num_schemas: int, num_tokens: int, seed: int) -> tuple[Request, ...]:
    """``count`` requests, ``rate`` per second on average, each with one of ``num_schemas`` at random."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, count)) - 1 / rate
    schemas = rng.integers(num_schemas, size=count)
    return tuple(Request(max(0.0, float(t)), int(s), num_tokens) for t, s in zip(times, schemas, strict=True))


@dataclass
class _Desk:
    """Where compilations run, and what they hold up."""

    place: str
    costs: Costs
    worker_free_s: float = 0.0
    done_s: dict[int, float] = field(default_factory=dict)  # schema -> when it is compiled
    compiles: list[Span] = field(default_factory=list)
    num_compiles: int = 0

    def take(self, request: Request) -> tuple[float, float]:
        """Seconds that the scheduler's thread is held up, and the time from which the grammar is there."""
        if self.place == FREE:
            return 0.0, request.arrives_s
        if self.place == SCHEDULER:
            self.num_compiles += 1
            return self.costs.cold_s, request.arrives_s
        if self.place == CACHE and request.schema in self.done_s:
            return self.costs.cached_s, self.done_s[request.schema]
        seconds = self.costs.renamed_s if self.place == CACHE and self.done_s else self.costs.cold_s
        began = max(request.arrives_s, self.worker_free_s)
        self.worker_free_s = self.done_s[request.schema] = began + seconds
        self.compiles.append((began, began + seconds))
        self.num_compiles += 1
        return 0.0, began + seconds


class _Server:
    """The scheduler: its clock, who waits for a grammar, who waits for room, who decodes."""

    def __init__(self, place: str, requests: Sequence[Request], costs: Costs, max_batch: int) -> None:
        self.requests, self.costs, self.max_batch, self.desk = requests, costs, max_batch, _Desk(place, costs)
        self.now, self.arrived, self.num_steps, self.num_tokens = 0.0, 0, 0, 0
        self.compiling: list[tuple[float, int]] = []  # (ready, request)
        self.queue: deque[int] = deque()
        self.running: dict[int, int] = {}  # request -> tokens left
        self.ready_s: dict[int, float] = {}
        self.first_s: dict[int, float] = {}
        self.last_s: dict[int, float] = {}
        self.gaps: list[float] = []
        self.stalls: list[Span] = []
        self.stall_steps = self.tokens_lost = 0.0

    def receive(self) -> None:
        """Take in whoever has arrived by now, and compile on this thread where that is the rule.

        Who arrives during a stall is taken in after the next step.
        """
        until = self.now
        while self.arrived < len(self.requests) and self.requests[self.arrived].arrives_s <= until:
            held, ready = self.desk.take(self.requests[self.arrived])
            if held:
                self.stalls.append((self.now, self.now + held))
                self.now += held
                if self.running:
                    steps = held / self.costs.step(len(self.running))
                    self.stall_steps += steps
                    self.tokens_lost += steps * len(self.running)
            heappush(self.compiling, (max(ready, self.now) if held else ready, self.arrived))
            self.arrived += 1

    def admit(self) -> None:
        """Requests whose grammar is ready join the batch while there is room."""
        while self.compiling and self.compiling[0][0] <= self.now:
            ready, i = heappop(self.compiling)
            self.ready_s[i] = ready
            self.queue.append(i)
        while self.queue and len(self.running) < self.max_batch:
            i = self.queue.popleft()
            self.running[i] = self.requests[i].num_tokens

    def sleep(self) -> bool:
        """Move the clock on to the next event; ``False`` when there is none."""
        later = [self.requests[self.arrived].arrives_s] if self.arrived < len(self.requests) else []
        later += [self.compiling[0][0]] if self.compiling else []
        self.now = max(self.now, min(later, default=self.now))
        return bool(later)

    def decode(self) -> None:
        """One step: a token for everyone who runs."""
        self.now += self.costs.step(len(self.running))
        self.num_steps += 1
        self.num_tokens += len(self.running)
        for i in list(self.running):
            if i in self.last_s:
                self.gaps.append(self.now - self.last_s[i])
            self.first_s.setdefault(i, self.now)
            self.last_s[i] = self.now
            self.running[i] -= 1
            if not self.running[i]:
                del self.running[i]


def simulate(place: str, requests: Sequence[Request], costs: Costs, max_batch: int) -> Schedule:
    """Serve ``requests``, in order of arrival, until the last one is done; ``place``, one of ``PLACES``, compiles."""
    server = _Server(place, requests, costs, max_batch)
    while True:
        server.receive()
        server.admit()
        if server.running:
            server.decode()
        elif not server.sleep():
            break
    served = tuple(
        Served(request.arrives_s, server.ready_s[i], server.first_s[i], server.last_s[i], request.schema)
        for i, request in enumerate(requests)
    )
    p50, p99 = (float(1e3 * np.percentile(server.gaps, share)) if server.gaps else None for share in (50, 99))
    return Schedule(
        name=place,
        stalls=tuple(server.stalls),
        compiles=tuple(server.desk.compiles),
        requests=served,
        num_compiles=server.desk.num_compiles,
        num_steps=server.num_steps,
        num_tokens=server.num_tokens,
        ended_s=server.now,
        mean_batch=server.num_tokens / server.num_steps,
        stall_steps=server.stall_steps,
        tokens_lost=server.tokens_lost,
        p50_itl_ms=p50,
        p99_itl_ms=p99,
        longest_itl_ms=1e3 * max(server.gaps) if server.gaps else None,
        p99_first_ms=float(1e3 * np.percentile([s.first_s - s.arrives_s for s in served], 99)),
    )
