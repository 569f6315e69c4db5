"""Who guesses: nobody, a look-up in the text so far, or a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from playground.engine.model import Session
from playground.engine.sampling import Coin, Context, Knob, apply, draw, softmax
from playground.engine.trace import KVRows
from playground.engine.tree import Draft


class Drafter(Protocol):
    """Proposes a draft after the committed tokens.

    ``taps`` names the target's layers whose hidden states it reads (none: ``()``); ``propose`` then gets them for the
    tokens committed since the last call, ``[new, taps, dim]``.
    """

    name: str
    taps: tuple[int, ...]

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        """At most ``k`` levels of tokens that could follow ``context``."""

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        """Follow what was committed: cut own KV rows that no longer hold. ``None`` for a drafter without KV."""


@dataclass
class NoDrafter:
    """Plain decoding is the empty draft."""

    name = "none"
    taps: tuple[int, ...] = ()
    num_parameters = 0

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        return Draft()

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


@dataclass(frozen=True)
class Match:
    """Where the last ``length`` tokens were seen before: they start at ``start``; the copy begins right behind."""

    start: int
    length: int


def find_match(tokens: Sequence[int], longest: int, shortest: int = 1) -> Match | None:
    """The leftmost earlier place of the longest suffix of at most ``longest`` tokens (prompt lookup, Saxena 2023).

    >>> find_match([1, 2, 9, 1, 2, 8, 1, 2], longest=2)
    Match(start=0, length=2)
    """
    tokens = list(tokens)
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == suffix:
                return Match(start, length)
    return None


@dataclass
class NGram:
    """Copies what followed the last match; stops before an end-of-sequence id. Needs no model."""

    longest: int = 3
    shortest: int = 1
    eos_ids: frozenset[int] = frozenset()
    name = "ngram"
    taps: tuple[int, ...] = ()
    num_parameters = 0
    match: Match | None = None  # of the last proposal

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        tokens = list(context.tokens)
        self.match = find_match(tokens, self.longest, self.shortest)
        if self.match is None:
            return Draft()
        copy = tokens[self.match.start + self.match.length :][:k]
        for i, token in enumerate(copy):
            if token in self.eos_ids:
                copy = copy[:i]
                break
        return Draft.chain(copy)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


class DraftModel:
    """A smaller model decoding ahead with its own KV; ``q`` is its law after the same knobs as the target's."""

    taps: tuple[int, ...] = ()
    num_parameters: int | None = None  # its own, tables shared with the target apart

    def __init__(self, session: Session, knobs: Sequence[Knob], name: str = "draft_model") -> None:
        self.session, self.knobs, self.name = session, tuple(knobs), name
        self._before = session.num_kv_rows

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        self.session.sync(context.tokens)
        self._before = self.session.num_kv_rows
        tokens: list[int] = []
        laws: list[Tensor] = []
        for _ in range(min(k, self.session.max_tokens - len(context.tokens))):
            seen = Context(self.session.tokens, context.num_prompt)
            law = softmax(apply(self.knobs, self.session.score(Draft()).logits[:1], [seen]))[0]
            tokens.append(self.pick(law, coin(len(self.session.tokens), "draft")))
            laws.append(law)
            self.session.commit((), tokens[-1])
        return Draft.chain(tokens, torch.stack(laws) if laws else None)

    def pick(self, law: Tensor, coin: float) -> int:
        """The drafted token: drawn from ``law``, which is then the q of verification."""
        return draw(law, coin)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        before, rows = self._before, self.session.num_kv_rows
        self.session.sync(tokens)
        kept = self._before = self.session.num_kv_rows
        return KVRows(before, rows - before, kept - before, rows - kept, missing=len(tokens) - 1 - kept)


@dataclass
class Replay:
    """Proposes a reply known in advance: the oracle, or, given wrong tokens, a drafter that never hits."""

    reply: tuple[int, ...]
    name: str = "oracle"
    taps: tuple[int, ...] = ()

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        done = len(context.tokens) - context.num_prompt
        return Draft.chain(self.reply[done : done + k])

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


def never_right(reply: Sequence[int], words: Sequence[int]) -> tuple[int, ...]:
    """One of ``words`` (tokens of the prompt, say) at each place of ``reply``, always another token than the reply's.

    >>> never_right([7, 8], [7, 8])
    (8, 7)
    """
    choice = dict.fromkeys(words)
    return tuple(next((word for word in choice if word != token), int(token == 0)) for token in reply)
