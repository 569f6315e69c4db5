"""Draft lengths that adapt to the request: what they gain in closed form, and a simulation with common random numbers.

Time is counted in plain passes of the target: a step with k drafts takes ``costs[k]``, for instance 1 + c k.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from playground.engine.cost import expected_tokens
from playground.engine.trace import step

CODE, CHAT = "code", "chat"
CLASSES = (CODE, CHAT)
MAX_K = 32
REQUEST_TOKENS = 256  # put out by each simulated request
BLOCKS = 24
Costs = tuple[float, ...]


def linear_costs(cost: float, max_k: int = MAX_K) -> Costs:
    """What a step costs by draft length when verification is free: 1 + c k."""
    return tuple(1 + cost * k for k in range(max_k + 1))


def best_length(alpha: float, costs: Costs) -> int:
    """The draft length with the most tokens per time; the shortest of equals.

    >>> best_length(0.77, linear_costs(0.04)), best_length(0.35, linear_costs(0.04))
    (8, 2)
    """
    best, most, tokens, term = 0, 0.0, 0.0, 1.0
    for k, cost in enumerate(costs):
        tokens += term
        term *= alpha
        if tokens / cost > most * (1 + 1e-12):
            best, most = k, tokens / cost
    return best


# --- Closed form ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """Two classes of requests: acceptance of each, and the share of output tokens that is code."""

    alpha_code: float
    alpha_chat: float
    share_code: float

    def alpha(self, kind: str) -> float:
        return self.alpha_code if kind == CODE else self.alpha_chat

    def share(self, kind: str) -> float:
        return self.share_code if kind == CODE else 1 - self.share_code

    def best_lengths(self, costs: Costs) -> dict[str, int]:
        return {kind: best_length(self.alpha(kind), costs) for kind in CLASSES}

    def time_per_token(self, k: Mapping[str, int], costs: Costs) -> float:
        """Of one sequence at a time, with draft length ``k`` by class."""
        return sum(self.share(kind) * costs[k[kind]] / expected_tokens(self.alpha(kind), k[kind]) for kind in CLASSES)

    def best_fixed(self, costs: Costs) -> int:
        """The one draft length that suits the mix best."""
        return min(range(len(costs)), key=lambda k: (self.time_per_token(same(k), costs), k))

    def share_of_steps(self, k: Mapping[str, int]) -> dict[str, float]:
        """The share of a slot's steps that each class takes: its tokens by what a step puts out."""
        steps = {kind: self.share(kind) / expected_tokens(self.alpha(kind), k[kind]) for kind in CLASSES}
        return {kind: n / sum(steps.values()) for kind, n in steps.items()}

    def batch_time_per_token(self, k: Mapping[str, int], costs: Costs, batch: int, in_turn: bool = True) -> float:
        """Of a batch in lock-step: the draft phase lasts as long as the longest draft in it.

        ``in_turn``: code and chat arrive evenly mixed, so a batch holds its share of each, give or take one. Otherwise
        at random, and each sequence of a batch is of either class by itself.
        """
        tokens = sum(share * expected_tokens(self.alpha(kind), k[kind])
                     for kind, share in self.share_of_steps(k).items())  # fmt: skip
        longer = CODE if costs[k[CODE]] >= costs[k[CHAT]] else CHAT
        shorter = CHAT if longer == CODE else CODE
        share = self.share_of_steps(k)[longer]
        any_longer = min(1.0, batch * share) if in_turn else 1 - (1 - share) ** batch
        step_cost = any_longer * costs[k[longer]] + (1 - any_longer) * costs[k[shorter]]
        return step_cost / (batch * tokens)


def same(k: int) -> dict[str, int]:
    return dict.fromkeys(CLASSES, k)


def gain(mix: Mix, costs: Costs, fixed_k: int, batch: int = 1, in_turn: bool = True) -> float:
    """What a length per class gains over ``fixed_k``, as a share: 0.05 is five per cent more tokens per time."""
    fixed, best = same(fixed_k), mix.best_lengths(costs)
    old, new = (mix.batch_time_per_token(k, costs, batch, in_turn) for k in (fixed, best))
    return old / new - 1


# --- Policies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Controller:
    """A draft length per request from an estimate of its acceptance.

    Drafts that stood and drafts that fell are counted with ``decay``, beside a prior worth ``weight`` drafts, so the
    estimate starts at ``prior`` and follows a request that changes. Drafts behind the first that fell say nothing. When
    the best length is 0 nothing is learnt, and the estimate drifts back to the prior until drafting is tried again.
    """

    costs: Costs
    prior: float
    weight: float = 4.0
    decay: float = 0.97
    stood: float = 0.0
    fell: float = 0.0

    @property
    def alpha(self) -> float:
        return (self.prior * self.weight + self.stood) / (self.weight + self.stood + self.fell)

    @property
    def k(self) -> int:
        return best_length(self.alpha, self.costs)

    def after(self, drafted: int, accepted: int) -> Controller:
        fell = float(accepted < drafted)
        return replace(self, stood=self.decay * self.stood + accepted, fell=self.decay * self.fell + fell)


# --- Simulation -------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """A request that is being served. ``standing[i]``: how many drafts in a row stand from position i on.

    That comes from a coin per (request, position), so every policy sees the same ones.
    """

    kind: str
    standing: tuple[int, ...]
    done: int = 0
    state: Controller | None = None

    @property
    def is_done(self) -> bool:
        return self.done >= REQUEST_TOKENS


Policy = Callable[[Request, int], int]  # (request, drafts that would stand) -> k
Step = tuple[float, list[tuple[str, int, int]]]  # time, and (class, drafted, accepted) of each sequence


def policies(mix: Mix, costs: Costs, fixed_k: int) -> dict[str, Policy]:
    """The policies by name. The oracle knows which drafts will stand, and drafts those if they are worth their time."""
    per_class, best_fixed = mix.best_lengths(costs), mix.best_fixed(costs)
    prior = mix.share_code * mix.alpha_code + (1 - mix.share_code) * mix.alpha_chat
    start = Controller(costs, prior)

    def controlled(request: Request, standing: int) -> int:
        state = request.state or start
        k = _remembered_length(round(state.alpha, 2), costs)
        request.state = state.after(k, min(k, standing))
        return k

    def foreseen(request: Request, standing: int) -> int:
        k = min(standing, len(costs) - 1)
        return k if costs[k] < (k + 1) * costs[0] else 0

    return {
        "fixed": lambda request, standing: fixed_k,
        "best fixed": lambda request, standing: best_fixed,
        "per class": lambda request, standing: per_class[request.kind],
        "controller": controlled,
        "oracle": foreseen,
    }


_remembered_length = lru_cache(4096)(best_length)  # a simulation asks a hundred thousand times


@dataclass(frozen=True)
class PolicyBlock:
    """What one policy did in one block: time in plain passes, tokens put out, mean draft length by class."""

    name: str
    time: float
    tokens: int
    drafted: int
    accepted: int
    mean_k: tuple[float | None, ...]  # as CLASSES


@step
@dataclass(frozen=True)
class Block:
    """One block of the simulation: every policy served the same requests with the same coins."""

    policies: tuple[PolicyBlock, ...]


def simulate(mix: Mix, costs: Costs, fixed_k: int, batch: int, seed: int, in_turn: bool = True) -> Iterator[Block]:
    """``BLOCKS`` blocks, after one that fills the batch and is thrown away.

    Sequences step together; a step costs that of the longest draft among them, and whoever is done makes room for the
    next request.
    """
    goal = 2 * REQUEST_TOKENS * max(4, batch // 3)  # whole pairs of requests: both classes in every block
    servers = {
        name: _serve(mix, costs, policy, batch, seed, in_turn) for name, policy in policies(mix, costs, fixed_k).items()
    }
    running = {name: _blocks(name, steps, goal, batch) for name, steps in servers.items()}
    for i in range(BLOCKS + 1):
        block = Block(tuple(next(each) for each in running.values()))
        if i:
            yield block


def _blocks(name: str, steps: Iterator[Step], goal: int, batch: int) -> Iterator[PolicyBlock]:
    """Blocks of ``goal`` tokens; the first one is longer, until the first requests have gone."""
    least = goal + REQUEST_TOKENS * batch * (batch > 1)
    while True:
        time, tokens, drafted, accepted = 0.0, 0, 0, 0
        lengths: dict[str, list[int]] = {kind: [] for kind in CLASSES}
        while tokens < least:
            took, made = next(steps)
            time += took
            for kind, k, stood in made:
                tokens, drafted, accepted = tokens + stood + 1, drafted + k, accepted + stood
                lengths[kind].append(k)
        mean = tuple(statistics.fmean(lengths[kind]) if lengths[kind] else None for kind in CLASSES)
        yield PolicyBlock(name, time, tokens, drafted, accepted, mean)
        least = goal


def _serve(mix: Mix, costs: Costs, policy: Policy, batch: int, seed: int, in_turn: bool) -> Iterator[Step]:
    """Steps of one policy for ever."""
    coming = arrivals(mix, seed, in_turn)
    slots = [next(coming) for _ in range(batch)]
    while True:
        made = []
        for i, request in enumerate(slots):
            standing = request.standing[request.done]
            k = policy(request, standing)
            stood = min(k, standing)
            made.append((request.kind, k, stood))
            request.done += stood + 1
            if request.is_done:
                slots[i] = next(coming)
        yield max(costs[k] for _, k, _ in made), made


def arrivals(mix: Mix, seed: int, in_turn: bool) -> Iterator[Request]:
    """Requests of equal length: of code as often as ``share_code`` says, evenly mixed or at random."""
    order = random.Random(f"{seed}/order")
    for i in itertools.count():
        if in_turn:
            is_code = int((i + 1) * mix.share_code + 0.5) > int(i * mix.share_code + 0.5)
        else:
            is_code = order.random() < mix.share_code
        kind = CODE if is_code else CHAT
        yield Request(kind, _standing(mix.alpha(kind), random.Random(f"{seed}/{i}")))


def _standing(alpha: float, coins: random.Random) -> tuple[int, ...]:
    """Runs of coins below ``alpha``, by where they start."""
    runs, run = [], 0
    for _ in range(REQUEST_TOKENS + MAX_K):
        run = run + 1 if coins.random() < alpha else 0
        runs.append(run)
    return tuple(reversed(runs))


# --- Estimates --------------------------------------------------------------------------------------------------------

Z = 2.807  # of Student's t at 99 %, BLOCKS - 1 degrees of freedom


@dataclass(frozen=True)
class Estimate:
    """A gain with its 99 % interval; ``low`` and ``high`` are ``None`` with fewer than two blocks."""

    mean: float
    low: float | None
    high: float | None


def estimate(blocks: Sequence[Block], name: str, against: str = "fixed") -> Estimate | None:
    """Tokens per time of one policy against another, from paired blocks, with a jackknife over them."""
    if not blocks:
        return None
    ours, theirs = ([next(p for p in b.policies if p.name == n) for b in blocks] for n in (name, against))

    def ratio(skip: int | None = None) -> float:
        rate = [
            sum(p.tokens for i, p in enumerate(side) if i != skip)
            / sum(p.time for i, p in enumerate(side) if i != skip)
            for side in (ours, theirs)
        ]
        return rate[0] / rate[1] - 1

    n, mean = len(blocks), ratio()
    if n < 2:
        return Estimate(mean, None, None)
    left_out = [ratio(i) for i in range(n)]
    center = statistics.fmean(left_out)
    error = ((n - 1) / n * sum((x - center) ** 2 for x in left_out)) ** 0.5
    reach = Z * error * (1 + 8 / n**2)  # wider while blocks are few
    return Estimate(mean, mean - reach, mean + reach)
