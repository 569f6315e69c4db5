"""What a lab keeps of a law under knobs: the law after each knob, after each order, in each engine, and one draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.order import ENGINES, walk
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


def is_left(logits: Tensor) -> Tensor:
    """``[vocab]`` bool of one row: the tokens that can still be sampled."""
    return ~logits[0].isneginf()


def shaped(order: str, states: Sequence[Tensor], tokens: Sequence[int]) -> list[Shaped]:
    """The steps of one lane: ``states`` are logits ``[1, vocab]`` before the first knob of ``order`` and after each."""
    steps: list[Shaped] = []
    before = is_left(states[0])
    for letter, state in zip(("", *order), states, strict=True):
        left = is_left(state)
        law = tuple(softmax(state)[0][list(tokens)].tolist())
        steps.append(
            Shaped(
                letter=letter,
                tokens=tuple(tokens),
                law=law,
                tail=max(0.0, 1 - sum(law)),
                num_left=int(left.sum()),
                num_removed=int((before & ~left).sum()),
                removed=tuple(token for token in tokens if before[token] and not left[token]),
            )
        )
        before = left
    return steps


def likeliest(logits: Tensor, which: Tensor, count: int) -> tuple[int, ...]:
    """At most ``count`` ids where ``which`` ``[vocab]`` is true, the likeliest first; ties: lowest id."""
    ids = which.nonzero().flatten()
    order = logits[0][ids].argsort(descending=True, stable=True)[:count]
    return tuple(ids[order].tolist())


def distinct_sets(laws: Laws, logits: Tensor) -> list[CandidateSet]:
    """The different sets that the orders leave, smallest first; ``logits`` ``[1, vocab]`` rank their tokens."""
    found: dict[bytes, list[str]] = {}
    for order, law in laws.items():
        found.setdefault(is_left(law).numpy(force=True).tobytes(), []).append(order)
    masks = [is_left(laws[orders[0]]) for orders in found.values()]
    sets = [
        CandidateSet(tuple(sorted(orders)), int(mask.sum()), likeliest(logits, mask, MAX_LISTED))
        for orders, mask in zip(found.values(), masks, strict=True)
    ]
    return sorted(sets, key=lambda each: each.num_tokens)


def contested(laws: Laws, logits: Tensor) -> list[Contested]:
    """Tokens that only some orders allow, likeliest first, at most ``MAX_LISTED``."""
    masks = {order: is_left(law) for order, law in sorted(laws.items())}
    together = torch.stack(list(masks.values()))
    listed = likeliest(logits, together.any(0) & ~together.all(0), MAX_LISTED)
    return [Contested(token, tuple(order for order in masks if masks[order][token])) for token in listed]


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
        left = int(is_left(last).sum())
        found.append(InEngine(engine.name, engine.version, order, engine.missing(on), left, engine.note))
    return found


def drawn(a: Tensor, b: Tensor, coin: float) -> Drawn:
    """One coin against the laws of two lanes, each logits ``[1, vocab]``."""
    return Drawn(coin, draw(softmax(a)[0], coin), draw(softmax(b)[0], coin))
