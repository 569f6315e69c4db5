"""An exact toy model: the law of the next token is looked up from the two tokens before it.

It has a real KV cache in miniature. A row holds a token and its position; the law after a row is computed from the rows
that it can see, by position. A row too many, a wrong position or a wrong mask therefore changes the law, as in a
transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from playground.engine.beam import BeamState, CopiedSessions
from playground.engine.kv import BlockPool, BlockTables
from playground.engine.model import Scores
from playground.engine.trace import KVRows
from playground.engine.tree import Draft

ROW_BYTES = 16  # a position and a token
Law = Callable[[tuple[int | None, ...]], Tensor]  # the tokens at positions -2 and -1 (None: none there) -> [vocab]


class TableSession:
    """A session of a ``TableModel``; ``rows`` are (position, token)."""

    def __init__(self, model: TableModel, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ValueError("The prompt is empty: there is no token to continue from.")
        self.model, self.tokens, self.rows = model, list(tokens), []
        self.draft = Draft()

    @property
    def num_kv_rows(self) -> int:
        return len(self.rows) - len(self.draft)

    @property
    def max_tokens(self) -> int:
        return self.model.max_tokens

    def score(self, draft: Draft) -> Scores:
        del self.rows[len(self.tokens) - 1 :]  # the newest token is fed again if it was scored before
        for position in range(len(self.rows), len(self.tokens)):
            self.rows.append((position, self.tokens[position]))
        base = len(self.rows)
        self.rows += [(base + depth - 1, token) for depth, token in zip(draft.depths, draft.tokens, strict=True)]
        self.draft = draft
        seen = [self.rows[:base]] + [
            self.rows[:base] + [self.rows[base + j] for j in range(len(draft)) if draft.mask[i, j]]
            for i in range(len(draft))
        ]
        return Scores(torch.stack([self.model.logits(rows) for rows in seen]))

    def _drop_draft(self) -> None:
        if self.draft:
            del self.rows[-len(self.draft) :]
            self.draft = Draft()

    def commit(self, path: Sequence[int], token: int) -> KVRows:
        draft, base = self.draft, len(self.rows) - len(self.draft)
        self.rows[base:] = [self.rows[base + i] for i in path]
        self.draft = Draft()
        self.tokens += [*(draft.tokens[i] for i in path), token]
        return KVRows(base - 1, 1 + len(draft), 1 + len(path), len(draft) - len(path))

    def sync(self, tokens: Sequence[int]) -> KVRows:
        self._drop_draft()
        before = len(self.rows)
        same = 0
        for old, new in zip(self.tokens, tokens, strict=False):
            if old != new:
                break
            same += 1
        kept = min(same, before, len(tokens) - 1)
        del self.rows[kept:]
        self.tokens = list(tokens)
        return KVRows(before, 0, 0, before - kept, missing=len(tokens) - 1 - kept)

    def fork(self) -> TableSession:
        twin = TableSession(self.model, self.tokens)
        twin.rows, twin.draft = list(self.rows), self.draft
        return twin


class TableBeams:
    """Beams whose rows lie in the blocks of a pool, and are read through their block tables."""

    def __init__(self, model: TableModel, prompt: Sequence[int], pool: BlockPool) -> None:
        self.model, self.prompt, self.tables = model, list(prompt), BlockTables(pool)
        self.rows: list[list[tuple[int, int] | None]] = [[None] * pool.block_size for _ in range(pool.num_blocks)]

    @property
    def block_bytes(self) -> int:
        return ROW_BYTES * self.tables.pool.block_size

    def start(self) -> Tensor:
        table = self.tables.open(len(self.prompt))
        for position, token in enumerate(self.prompt):
            block, offset = divmod(position, self.tables.pool.block_size)
            self.rows[table.blocks[block]][offset] = (position, token)
        return self._logits()

    def advance(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        writes = self.tables.advance(parents)
        for write in writes:
            if write.copied_from is not None:
                self.rows[write.block][: write.offset] = self.rows[write.copied_from][: write.offset]
        for write, table, token in zip(writes, self.tables.tables, tokens, strict=True):
            self.rows[write.block][write.offset] = (table.num_tokens - 1, token)
        return self._logits()

    def _logits(self) -> Tensor:
        read = [[row for block in t.blocks for row in self.rows[block]][: t.num_tokens] for t in self.tables.tables]
        return torch.stack([self.model.logits(rows) for rows in read])  # [beams, vocab]


@dataclass(frozen=True)
class TableModel:
    """Tokens are indices into ``words``. ``law`` gives the next token's probabilities."""

    words: tuple[str, ...]
    law: Law = field(repr=False)
    name: str = "table"
    eos_ids: frozenset[int] = frozenset()
    max_tokens: int = 512

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def session(self, tokens: Sequence[int], taps: Sequence[int] = ()) -> TableSession:
        return TableSession(self, tokens)

    def beams(self, prompt: Sequence[int], pool: BlockPool | None = None) -> BeamState:
        return CopiedSessions(self.session(prompt)) if pool is None else TableBeams(self, prompt, pool)

    def logits(self, rows: Sequence[tuple[int, int]]) -> Tensor:
        """Logits ``[vocab]`` after the last of ``rows``, which sees all of them."""
        last, _ = rows[-1]
        at = dict(rows)
        clash = len(at) != len(rows)  # two visible rows claim one position: attention would blend them
        return self.law((None if clash else at.get(last - 1), at.get(last))).double().log()

    def encode(self, text: str) -> list[int]:
        """Longest word first, from the left; raises ``ValueError`` at text that no word covers."""
        tokens: list[int] = []
        words = sorted(range(len(self.words)), key=lambda i: -len(self.words[i]))
        while text:
            token = next((i for i in words if self.words[i] and text.startswith(self.words[i])), None)
            if token is None:
                known = ", ".join(map(repr, self.words))
                raise ValueError(f"The table model knows only {known}; it cannot read {text[:20]!r}.")
            tokens.append(token)
            text = text[len(self.words[token]) :]
        return tokens

    chat = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.words[t] for t in tokens)

    def texts(self, tokens: Sequence[int]) -> Mapping[int, str]:
        return {t: self.words[t] for t in tokens}

    def token_bytes(self) -> list[bytes | None]:
        return [None if i in self.eos_ids else word.encode() for i, word in enumerate(self.words)]

    def provenance(self) -> Mapping[str, str | int | float | None]:
        return {"target": self.name, "dtype": "fp64", "device": "cpu"}


def random_law(vocab_size: int, seed: int, sharpness: float = 1.0) -> Law:
    """A law with full support, fixed by ``seed``: independent random logits for each pair of preceding tokens."""

    def law(context: tuple[int | None, ...]) -> Tensor:
        key = hash((seed, *(-1 if t is None else t for t in context))) % 2**63
        logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(key), dtype=torch.float64)
        return torch.softmax(sharpness * logits, -1)

    return law


def cyclic_law(vocab_size: int) -> Law:
    """Word i is always followed by word i + 1, the last by the first."""

    def law(context: tuple[int | None, ...]) -> Tensor:
        return torch.eye(vocab_size, dtype=torch.float64)[((context[-1] or 0) + 1) % vocab_size]

    return law
