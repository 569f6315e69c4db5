"""One set of knobs in every order: what each order leaves, which orders agree, and the orders that engines use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.engine.filters import TopKTopP, TopNSigma, TypicalP
from playground.engine.sampling import (
    Context,
    CountPenalty,
    Knob,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    apply,
    chain,
    softmax,
)
from playground.engine.trace import step

LETTERS = {
    "T": "temperature",
    "K": "top_k",
    "P": "top_p",
    "M": "min_p",
    "Y": "typical_p",
    "S": "top_n_sigma",
    "R": "repetition_penalty",
    "F": "count_penalty",
    "J": "joint",
}
ALIASES = {"frequency_penalty": "F", "presence_penalty": "F"}
KINDS = {Temperature: "T", TopK: "K", TopP: "P", MinP: "M", RepetitionPenalty: "R", CountPenalty: "F"}
MAX_ORDERED = 5  # knobs whose every order is worked out: 120 orders
SAME = 1e-12  # laws nearer than this are one law


def switched_on(typical_p: float = 1.0, top_n_sigma: float = 0.0, **settings: float) -> dict[str, Knob]:
    """The knobs that change something, by letter; ``settings`` are those of ``sampling.chain``.

    >>> list(switched_on(temperature=2, top_k=4, min_p=0))
    ['T', 'K']
    """
    on: dict[str, Knob] = {KINDS[type(knob)]: knob for knob in chain(**settings)}
    if typical_p != 1:
        on["Y"] = TypicalP(typical_p)
    if top_n_sigma > 0:
        on["S"] = TopNSigma(top_n_sigma)
    return {letter: on[letter] for letter in LETTERS if letter in on}


def read_order(text: str) -> str:
    """An order as letters, from letters or from names between commas. Raises ``ValueError`` with the remedy.

    >>> read_order("KPT"), read_order("top_k, top_p, temperature"), read_order("k,p,t")
    ('KPT', 'KPT', 'KPT')
    """
    named = {name: letter for letter, name in LETTERS.items()} | ALIASES
    text = text.strip()
    whole = text.lower().replace("-", "_")
    parts = [part.strip() for part in text.split(",")] if "," in text or whole in named else list(text.replace(" ", ""))
    letters = ""
    for part in filter(None, parts):
        letter = part.upper() if part.upper() in LETTERS else named.get(part.lower().replace("-", "_"))
        if letter is None:
            known = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
            raise ValueError(f"An order has no knob {part[:20]!r}; there are {known}.")
        letters += letter
    if twice := [letter for letter in LETTERS if letters.count(letter) > 1]:
        raise ValueError(f"The order {letters[:20]} names {twice[0]} twice; each knob acts once.")
    if "J" in letters and ("K" in letters or "P" in letters):
        raise ValueError("J is top-k and top-p at once: an order names either J, or K and P.")
    return letters


def fit(order: str, on: Mapping[str, Knob]) -> tuple[str, str]:
    """``order`` for the knobs that are on: what acts, one after another, and the letters it had not named.

    Letters of knobs that are off go; knobs that are on but not named act last. Without one of its two, J is the other.
    """
    if "J" in order and not {"K", "P"} <= on.keys():
        order = order.replace("J", "K" if "K" in on else "P" if "P" in on else "")
    named = "".join(letter for letter in order if letter in on or letter == "J")
    rest = "".join(letter for letter in on if letter not in named and not ("J" in named and letter in "KP"))
    return named + rest, rest


def knob_of(letter: str, on: Mapping[str, Knob]) -> Knob:
    """The knob behind a letter; J is made of top-k and top-p."""
    return TopKTopP(on["K"].k, on["P"].p) if letter == "J" else on[letter]


def walk(
    order: str, on: Mapping[str, Knob], logits: Tensor, contexts: Sequence[Context] | None = None
) -> Iterator[Tensor]:
    """Logits ``[1, vocab]`` before the first knob and after each; every knob sees the law that the last one left."""
    state = apply((), logits, contexts)
    yield state
    for letter in order:
        state = apply((knob_of(letter, on),), state, contexts)
        yield state


def all_orders(
    on: Mapping[str, Knob], logits: Tensor, contexts: Sequence[Context] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every order of the knobs with the logits it leaves; what orders begin with alike is worked out once."""

    def visit(done: str, state: Tensor) -> Iterator[tuple[str, Tensor]]:
        left = [letter for letter in on if letter not in done]
        if not left:
            yield done, state
        for letter in left:
            yield from visit(done + letter, apply((on[letter],), state, contexts))

    yield from visit("", apply((), logits, contexts))


def candidates(logits: Tensor) -> frozenset[int]:
    """The tokens of one row that can still be sampled."""
    return frozenset((~logits.reshape(-1).isneginf()).nonzero().flatten().tolist())


# --- What commutes ----------------------------------------------------------------------------------------------------


@step
@dataclass(frozen=True)
class Pair:
    """Two knobs in both orders: the same law here or not, and on how many of ``num_tried`` random laws they differ."""

    first: str
    second: str
    is_same_here: bool
    num_different: int
    num_tried: int


def commuting(
    on: Mapping[str, Knob], logits: Tensor, contexts: Sequence[Context] | None = None, tries: int = 200
) -> list[Pair]:
    """Each pair of knobs tried in both orders: on ``logits`` ``[1, vocab]``, and on random laws of twelve tokens.

    A pair that differs on none of the random laws may still differ on another; one that differs once does not commute.
    """
    trials = 2 * torch.randn(tries, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = [Context((0, 1, 1), 1)] * tries
    pairs = []
    for a, b in itertools.combinations(on, 2):
        here = differ((on[a], on[b]), logits, contexts)
        tried = differ((on[a], on[b]), trials, seen)
        pairs.append(Pair(a, b, not bool(here.any()), int(tried.sum()), tries))
    return pairs


def differ(pair: tuple[Knob, Knob], logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
    """``[n]`` bool: the rows on which the two orders of a pair leave different laws."""
    laws = [
        softmax(apply((second,), apply((first,), logits, contexts), contexts)) for first, second in (pair, pair[::-1])
    ]
    return (laws[0] - laws[1]).abs().amax(-1) > SAME


# --- Engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """The order in which an engine applies the knobs it has; ``joint`` is its order without min-p."""

    name: str
    version: str
    order: str
    note: str = ""
    joint: str = ""

    def order_for(self, on: Mapping[str, Knob]) -> str:
        """The letters that act in this engine with these knobs on."""
        order = self.joint if self.joint and "M" not in on else self.order
        return fit(order, {letter: knob for letter, knob in on.items() if letter in self.order})[0]

    def missing(self, on: Mapping[str, Knob]) -> str:
        """The letters that are on but that this engine does not have."""
        return "".join(letter for letter in on if letter not in self.order)


ENGINES = (
    Engine(
        "transformers",
        "5.24",
        "RTKPMY",
        "Filters keep every token that ties with the last one. No frequency or presence penalty.",
    ),
    Engine("vLLM", "0.22, V1 sampler", "RFTMKP", "Penalties, temperature, min-p, then top-k and top-p in one call."),
    Engine(
        "llama.cpp",
        "default sampler chain, 2026",
        "RFSKYPMT",
        "Temperature comes last. Penalties look at the last 64 tokens, prompt included.",
    ),
    Engine(
        "SGLang",
        "July 2026, FlashInfer backend",
        "RFTKPM",
        "Top-k and top-p judge the same law and both must agree; with min-p they act one after another.",
        joint="RFTJ",
    ),
)
