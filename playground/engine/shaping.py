"""What a lab keeps of a law under knobs: the law after each knob, after each order, in each engine, and one draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from playground.engine.order import ENGINES, candidates, walk
from playground.engine.sampling import Context, Knob, draw, softmax
from playground.engine.trace import step

MAX_LISTED = 64  # tokens of a candidate set that are named
Laws = Mapping[str, Tensor]  # order -> logits [1, vocab] it leaves


@step
@dataclass(frozen=True)
class Shaped:
    """The law after one knob (``letter`` empty: before the first), of the ``tokens`` shown; ``tail`` is all others'.

    ``removed`` are the shown tokens that this knob took away, ``num_left`` how many tokens can still be sampled.
    """

    letter: str
    tokens: tuple[int, ...]
    law: tuple[float, ...]
    tail: float
    num_left: int
    num_removed: int
    removed: tuple[int, ...]


@step
@dataclass(frozen=True)
class Ordered:
    """What one order leaves: the number of candidates, which of the distinct sets they are, the law of ``tokens``."""

    order: str
    num_left: int
    set_index: int
    tokens: tuple[int, ...]
    law: tuple[float, ...]


@step
@dataclass(frozen=True)
class CandidateSet:
    """A set of tokens that can be sampled, the orders that leave it, and its likeliest tokens (at most 64)."""

    orders: tuple[str, ...]
    num_tokens: int
    tokens: tuple[int, ...]


@step
@dataclass(frozen=True)
class Contested:
    """A token that some orders allow and others do not."""

    token: int
    orders: tuple[str, ...]


@step
@dataclass(frozen=True)
class InEngine:
    """What an engine's own order leaves; ``missing`` are letters that are on but that it does not have."""

    engine: str
    version: str
    order: str
    missing: str
    num_left: int
    note: str


@step
@dataclass(frozen=True)
class Drawn:
    """The tokens that one coin draws from the law of order A and from that of order B."""

    coin: float
    a: int
    b: int


def shaped(order: str, states: Sequence[Tensor], tokens: Sequence[int]) -> list[Shaped]:
    """The steps of one lane: ``states`` are logits ``[1, vocab]`` before the first knob of ``order`` and after each."""
    steps: list[Shaped] = []
    for i, state in enumerate(states):
        law = softmax(state)[0]
        left = candidates(state)
        before = candidates(states[i - 1]) if i else left
        shown = tuple(law[list(tokens)].tolist())
        steps.append(
            Shaped(
                letter=order[i - 1] if i else "",
                tokens=tuple(tokens),
                law=shown,
                tail=max(0.0, 1 - sum(shown)),
                num_left=len(left),
                num_removed=len(before) - len(left),
                removed=tuple(token for token in tokens if token in before and token not in left),
            )
        )
    return steps


def distinct_sets(laws: Laws, ranked: Sequence[int]) -> list[CandidateSet]:
    """The different sets that the orders leave, smallest first; their tokens in the order of ``ranked``."""
    found: dict[frozenset[int], list[str]] = {}
    for order, logits in laws.items():
        found.setdefault(candidates(logits), []).append(order)
    return [
        CandidateSet(tuple(sorted(orders)), len(kept), tuple([t for t in ranked if t in kept][:MAX_LISTED]))
        for kept, orders in sorted(found.items(), key=lambda item: len(item[0]))
    ]


def contested(laws: Laws, ranked: Sequence[int]) -> list[Contested]:
    """Tokens that only some orders allow, likeliest first, at most ``MAX_LISTED``."""
    kept = {order: candidates(logits) for order, logits in laws.items()}
    some = frozenset().union(*kept.values()) - frozenset.intersection(*kept.values())
    listed = [token for token in ranked if token in some][:MAX_LISTED]
    return [Contested(token, tuple(sorted(order for order in kept if token in kept[order]))) for token in listed]


def ordered(laws: Laws, sets: Sequence[CandidateSet], tokens: Sequence[int]) -> list[Ordered]:
    """One step per order, by its letters."""
    place = {order: i for i, each in enumerate(sets) for order in each.orders}
    return [
        Ordered(
            order,
            sets[place[order]].num_tokens,
            place[order],
            tuple(tokens),
            tuple(softmax(logits)[0][list(tokens)].tolist()),
        )
        for order, logits in sorted(laws.items())
    ]


def in_engines(on: Mapping[str, Knob], logits: Tensor, contexts: Sequence[Context] | None) -> list[InEngine]:
    """What each engine leaves of the law with these knobs."""
    found = []
    for engine in ENGINES:
        order = engine.order_for(on)
        *_, last = walk(order, on, logits, contexts)
        left = len(candidates(last))
        found.append(InEngine(engine.name, engine.version, order, engine.missing(on), left, engine.note))
    return found


def drawn(a: Tensor, b: Tensor, coin: float) -> Drawn:
    """One coin against the laws of two lanes, each logits ``[1, vocab]``."""
    return Drawn(coin, draw(softmax(a)[0], coin), draw(softmax(b)[0], coin))
