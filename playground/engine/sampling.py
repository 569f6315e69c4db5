"""From logits to a token: the knobs, the law they leave, and the coins that draw from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Coin = Callable[[int, str], float]  # (position of the token being decided, purpose) -> uniform in [0, 1)

GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM


def coins(seed: int) -> Coin:
    """Coins keyed by (seed, position, purpose): a token that is thrown away never shifts a later coin.

    >>> coins(1)(5, "accept") == coins(1)(5, "accept"), coins(1)(5, "accept") == coins(2)(5, "accept")
    (True, False)
    """

    def coin(position: int, purpose: str) -> float:
        digest = hashlib.blake2b(f"{seed}/{position}/{purpose}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) * 2.0**-53

    return coin


def draw(law: Tensor, coin: float) -> int:
    """The token at ``coin`` in [0, 1) of the cumulated ``law`` ``[vocab]``; never one of probability 0.

    >>> draw(torch.tensor([0.5, 0.0, 0.5]), 0.5)
    2
    """
    cumulated = law.double().cumsum(0)
    total = cumulated[-1].item()
    index = int(torch.searchsorted(cumulated, coin * total, right=True))
    if index >= len(law) or law[index] <= 0:  # the coin rounded up to the very end
        index = int(law.nonzero()[-1])
    return index


class Context(NamedTuple):
    """The tokens a row of logits has seen, and how many of them were the prompt."""

    tokens: Sequence[int]
    num_prompt: int


class Knob(Protocol):
    """Changes logits ``[n, vocab]``, row i having seen ``contexts[i]``. A removed token gets -inf."""

    reads_context: bool

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor: ...


def _keep(logits: Tensor, ranking: Tensor, cut: Tensor, count: Tensor | int) -> Tensor:
    """``logits`` of the ``count`` tokens that rank highest; ``cut`` is the last one's rank (ties: lowest id)."""
    above, ties = ranking > cut, ranking == cut
    room = count - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | (ties & (ties.cumsum(-1) <= room))), -torch.inf)


@dataclass(frozen=True)
class Temperature:
    """Divides by ``value``; below 1e-5 all but the likeliest token goes (ties: lowest id), without a division."""

    value: float
    reads_context = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"temperature must be 0 or more, not {self.value}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.value >= GREEDY_BELOW:
            return logits / self.value
        best = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))


@dataclass(frozen=True)
class TopK:
    """Keeps the ``k`` likeliest tokens, exactly k of them (ties: lowest id). 0 or -1 keeps all."""

    k: int
    reads_context = False

    def __post_init__(self) -> None:
        if self.k < -1:
            raise ValueError(f"top-k must be -1 or 0 (off) or a number of tokens, not {self.k}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.k <= 0 or self.k >= logits.shape[-1]:
            return logits
        return _keep(logits, logits, logits.topk(self.k, dim=-1).values[..., -1:], self.k)


@dataclass(frozen=True)
class TopP:
    """Keeps the shortest list of likeliest tokens that reaches mass ``p``, the one that crosses it included.

    Ties: lowest id first. 0 keeps the likeliest token, 1 keeps all.
    """

    p: float
    reads_context = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"top-p must lie between 0 and 1, not {self.p}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.p >= 1:
            return logits
        law = softmax(logits)
        for size in (256, 4096, law.shape[-1]):  # a full sort is slow, and seldom needed
            ranked = law.topk(min(size, law.shape[-1]), dim=-1).values  # [n, size], likeliest first
            if (ranked.sum(-1) >= self.p).all():
                break
        before = ranked.cumsum(-1) - ranked  # mass of the tokens ahead of this one
        count = (before < self.p - 1e-12).sum(-1, keepdim=True).clamp(min=1)  # [n, 1]; an exact hit adds nothing
        return _keep(logits, law, ranked.gather(-1, count - 1), count)


@dataclass(frozen=True)
class MinP:
    """Removes tokens less likely than ``p`` times the likeliest one."""

    p: float
    reads_context = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"min-p must lie between 0 and 1, not {self.p}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
        if self.p <= 0:
            return logits
        return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(self.p) - 1e-12, -torch.inf)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Every token seen so far, prompt included: a logit above 0 is divided by ``penalty``, one below multiplied."""

    penalty: float
    reads_context = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.penalty) and self.penalty > 0):
            raise ValueError(f"the repetition penalty must be above 0, not {self.penalty}")

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
        logits = logits.clone()
        for row, context in zip(logits, contexts or (), strict=True):
            seen = torch.tensor(sorted(set(context.tokens)), device=row.device, dtype=torch.long)
            row[seen] = torch.where(row[seen] > 0, row[seen] / self.penalty, row[seen] * self.penalty)
        return logits


@dataclass(frozen=True)
class CountPenalty:
    """OpenAI's pair over output tokens: minus ``frequency`` per occurrence and ``presence`` once."""

    frequency: float = 0.0
    presence: float = 0.0
    reads_context = True

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
        logits = logits.clone()
        for row, context in zip(logits, contexts or (), strict=True):
            output = torch.tensor(list(context.tokens[context.num_prompt :]), device=row.device, dtype=torch.long)
            seen, counts = output.unique(return_counts=True)
            row[seen] -= self.frequency * counts.to(row) + self.presence
        return logits


def softmax(logits: Tensor) -> Tensor:
    """Probabilities in double precision, the maximum subtracted first.

    The largest logit has the largest probability, also where rounding would make a smaller one its equal.
    """
    law = torch.softmax(logits.double(), -1)
    best, first = logits.argmax(-1, keepdim=True), law.argmax(-1, keepdim=True)
    if torch.equal(best, first):
        return law
    above = torch.nextafter(law.gather(-1, first), law.new_tensor(torch.inf))
    return torch.where(best == first, law, law.scatter(-1, best, above))


def has_nan(logits: Tensor) -> bool:
    """Whether any logit is NaN: a maximum is NaN when anything below it is."""
    return bool(logits.amax().isnan())


def apply(knobs: Sequence[Knob], logits: Tensor, contexts: Sequence[Context] | None = None) -> Tensor:
    """``logits`` ``[n, vocab]`` after the knobs in their order, in double precision.

    A NaN counts as -inf. Raises ``ValueError`` where a row is +inf somewhere or has nothing left to sample.
    """
    logits = logits.double()
    if has_nan(logits):
        logits = logits.masked_fill(logits.isnan(), -torch.inf)
    for knob in knobs:
        logits = knob(logits, contexts)
    best = logits.amax(-1)
    if best.isposinf().any():
        raise ValueError("The model put out an infinite logit: there is no law to sample from.")
    if best.isneginf().any():
        raise ValueError("No token is left to sample: every logit is -inf.")
    return logits


def chain(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> tuple[Knob, ...]:
    """The knobs that change something, in vLLM's order: penalties, temperature, min-p, top-k, top-p."""
    knobs: list[tuple[bool, Callable[[], Knob]]] = [
        (repetition_penalty != 1, lambda: RepetitionPenalty(repetition_penalty)),
        (bool(frequency_penalty or presence_penalty), lambda: CountPenalty(frequency_penalty, presence_penalty)),
        (temperature != 1, lambda: Temperature(temperature)),
        (min_p != 0, lambda: MinP(min_p)),
        (top_k not in (0, -1), lambda: TopK(top_k)),
        (top_p != 1, lambda: TopP(top_p)),
    ]
    return tuple(make() for changes, make in knobs if changes)
