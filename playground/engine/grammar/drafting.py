"""Grammars on the drafter's side: a knob that masks a draft model, and a drafter of the tokens that have no choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from playground.engine.grammar.bitmask import allocate, unpack
from playground.engine.grammar.matcher import Matcher
from playground.engine.sampling import Coin, Context
from playground.engine.trace import KVRows
from playground.engine.tree import Draft


@dataclass
class Follower:
    """Keeps a matcher level with a sequence of output tokens, taking back and reading on as it changes."""

    matcher: Matcher
    tokens: list[int] = field(default_factory=list)

    def follow(self, output: Sequence[int]) -> bool:
        """Whether ``output`` is legal from its first to its last token; the matcher then stands behind it."""
        same = 0
        while same < min(len(self.tokens), len(output)) and self.tokens[same] == output[same]:
            same += 1
        self.matcher.rollback(len(self.tokens) - same)
        del self.tokens[same:]
        for token in output[same:]:
            if not self.matcher.accept(token):
                return False
            self.tokens.append(token)
        return True


class GrammarKnob:
    """A knob that masks what the grammar forbids after the row's context. Give it a matcher of its own (``fork``).

    For a draft model: its q is then the law after the same mask as the target's p. Rows that are illegal already, at
    the end of the text or at a dead end stay as they are.
    """

    reads_context = True

    def __init__(self, matcher: Matcher) -> None:
        self.follower = Follower(matcher)

    def __call__(self, logits: Tensor, contexts: Sequence[Context] | None) -> Tensor:
        rows = []
        for row, context in zip(logits, contexts or (), strict=True):
            mask = allocate(1, row.shape[-1])
            if self.follower.follow(context.tokens[context.num_prompt :]):
                self.follower.matcher.fill(mask)
            legal = torch.from_numpy(unpack(mask[0], row.shape[-1])).to(row.device)
            rows.append(row.masked_fill(~legal, -torch.inf) if legal.any() else row)
        return torch.stack(rows)


class ForcedTokens:
    """Drafts tokens for as long as exactly one is legal: jump-forward as speculation, always accepted."""

    name = "forced"
    taps: tuple[int, ...] = ()

    def __init__(self, matcher: Matcher, vocab_size: int) -> None:
        self.follower, self.vocab_size = Follower(matcher), vocab_size

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        output = list(context.tokens[context.num_prompt :])
        forced: list[int] = []
        mask = allocate(1, self.vocab_size)
        while len(forced) < k and self.follower.follow([*output, *forced]):
            self.follower.matcher.fill(mask)
            legal = unpack(mask[0], self.vocab_size).nonzero()[0]
            if len(legal) != 1:
                break
            forced.append(int(legal[0]))
        return Draft.chain(forced)

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None
