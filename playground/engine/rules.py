"""Ways to judge one drafted token, and the law each of them puts out: exact, and by drawing.

A scheme is a pair: how the drafter picks its token from q, and how the target judges it. Only the pair decides whether
the output keeps the target's law. Everything here runs the rules of ``verify``; no formula stands in for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from playground.engine.exact import first_token, first_token_law
from playground.engine.sampling import Coin, Knob, apply, coins, draw, softmax
from playground.engine.trace import step
from playground.engine.verify import Rule, verify_match_keep, verify_match_redraw, verify_sampling

Pick = Callable[[Tensor, float], int]  # (q [vocab], coin) -> token


def pick_likeliest(law: Tensor, coin: float) -> int:
    """The drafter's greedy choice. Its true law is one-hot; whoever reports ``law`` as q breaks the proof."""
    return int(law.argmax())


class Scheme(NamedTuple):
    """How a draft token is picked from q, and the rule that judges it against p and q."""

    pick: Pick
    verify: Rule

    def propose(self, q: Tensor, coin: Coin) -> tuple[int, Tensor]:
        """A token picked from ``q`` ``[vocab]``, and the law that the drafter reports for it."""
        return self.pick(q, coin(0, "draft")), q


SCHEMES: Mapping[str, Scheme] = {
    "rejection": Scheme(draw, verify_sampling),
    "match_keep": Scheme(draw, verify_match_keep),
    "match_redraw": Scheme(draw, verify_match_redraw),
    "argmax_soft_q": Scheme(pick_likeliest, verify_sampling),
}


def shaped(law: Sequence[float], knobs: Sequence[Knob]) -> Tensor:
    """A typed-in ``law`` after the knobs, ``[vocab]``: they act on log(law) as they would on logits."""
    return softmax(apply(knobs, torch.tensor([law], dtype=torch.float64).log()))[0]


def total_variation(a: Sequence[float], b: Sequence[float]) -> float:
    """Half the sum of absolute differences: the most by which the probability of any event can differ.

    >>> total_variation([0.75, 0.25], [0.5, 0.5])
    0.25
    """
    return 0.5 * math.fsum(abs(x - y) for x, y in zip(a, b, strict=True))


@step
@dataclass(frozen=True)
class RuleLaw:
    """The exact output law of one rule on ``p`` and ``q`` (both after the knobs), ``[vocab]`` each.

    ``accepted[x]`` is the probability that x comes out as an accepted draft, ``recovered[x]`` that it comes out after a
    rejection; ``law`` is their sum. ``alpha`` is the acceptance rate, ``error`` the total variation between law and p.
    """

    rule: str
    p: tuple[float, ...]
    q: tuple[float, ...]
    accepted: tuple[float, ...]
    recovered: tuple[float, ...]
    law: tuple[float, ...]
    alpha: float
    error: float


def rule_law(name: str, p: Tensor, q: Tensor) -> RuleLaw:
    """The law of rule ``name``, by integrating its code over every coin it asks for."""
    scheme = SCHEMES[name]
    exact = first_token_law(scheme.verify, p, q, scheme.propose)
    return RuleLaw(
        rule=name,
        p=tuple(p.tolist()),
        q=tuple(q.tolist()),
        accepted=exact.accepted,
        recovered=exact.recovered,
        law=exact.law,
        alpha=exact.acceptance,
        error=total_variation(exact.law, p.tolist()),
    )


@step
@dataclass(frozen=True)
class Draws:
    """A simulation so far: ``num_draws`` output tokens, how often each came out, how many were accepted drafts.

    ``distance`` is the total variation between the frequencies and p. ``chance`` is what it would be on average if the
    tokens were drawn from p itself: it falls with the square root of the number of draws.
    """

    rule: str
    num_draws: int
    counts: tuple[int, ...]
    num_accepted: int
    distance: float
    chance: float

    @property
    def frequencies(self) -> tuple[float, ...]:
        return tuple(n / self.num_draws for n in self.counts)


def simulate(name: str, p: Tensor, q: Tensor, seed: int, sizes: Sequence[int]) -> Iterator[Draws]:
    """Draw tokens with rule ``name``; report whenever the number of draws reaches one of the rising ``sizes``."""
    scheme, coin = SCHEMES[name], coins(seed)
    tokens: Counter[int] = Counter()
    accepted = done = 0
    for size in sizes:
        for i in range(done, size):
            # a pass asks for coins of two positions: the drafted token's and the next one's
            token, stands = first_token(
                scheme.verify, p, q, scheme.propose, lambda position, purpose, i=i: coin(2 * i + position, purpose)
            )
            tokens[token] += 1
            accepted += stands
        done = size
        counts = tuple(tokens[t] for t in range(len(p)))
        distance = total_variation([n / done for n in counts], p.tolist())
        yield Draws(name, done, counts, accepted, distance, chance_distance(p.tolist(), done))


def chance_distance(law: Sequence[float], num_draws: int) -> float:
    """The mean total variation between ``law`` and the frequencies of ``num_draws`` draws from it.

    Each frequency is nearly normal with variance law (1 - law) / n, and the mean absolute value of a centred normal
    number is sqrt(2 / pi) of its standard deviation.
    """
    return 0.5 * math.fsum(math.sqrt(2 * max(0.0, p * (1 - p)) / (math.pi * num_draws)) for p in law)


def rising_sizes(num_draws: int, frames: int = 32) -> tuple[int, ...]:
    """At most ``frames`` rising numbers of draws from 1 to ``num_draws``, evenly spread on a logarithmic axis.

    >>> rising_sizes(1000, 4)
    (1, 10, 100, 1000)
    """
    return tuple(sorted({round(num_draws ** (i / (frames - 1))) for i in range(frames)}))
